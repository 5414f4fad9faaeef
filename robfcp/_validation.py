"""Numbers callers pass: taken from any library's types, refused with the field's name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import MAX_NAME, ReportError, RobfcpError

Rng = int | np.random.Generator | None

_MISSING = ("None", "nan", "NaN", "<NA>", "NaT")  # of Python, numpy, decimals and pandas
_NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")


def check_fraction(
    field: str, value: object, remedy: str, *, allow_zero: bool = False, allow_one: bool = False
) -> float:
    """The value as a float between 0 and 1, with these ends where they are allowed."""
    number = isinstance(value, (Real, Decimal)) and not isinstance(value, bool)
    found = float(value) if number else np.nan  # type: ignore[arg-type]
    if not (0 < found < 1 or (allow_zero and found == 0) or (allow_one and found == 1)):
        raise RobfcpError(f"{field}: {value!r} is not a number between 0 and 1; {remedy}")
    return found


def check_integer(field: str, value: object, remedy: str, min_value: int = 0) -> int:
    """The value as an int of at least `low`."""
    number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not number or not min_value <= value < 2**62:  # type: ignore[operator]
        raise RobfcpError(f"{field}: {value!r} is not a whole number from {min_value}; {remedy}")
    return int(value)  # type: ignore[call-overload]


def as_array(field: str, values: ArrayLike) -> NDArray[Any]:
    """The values as an array of this process, refused where they are ragged.

    Tensors may lie on any device, need a gradient and have kinds of floats numpy does not know.
    """
    try:
        found = np.asarray(_to_numpy(values))
    except (ValueError, TypeError, OverflowError):
        raise RobfcpError(f"{field}: rows differ in length; pass a full array") from None
    except (RuntimeError, NotImplementedError):  # a tensor without data, say
        raise RobfcpError(f"{field}: hold no numbers that can be read; pass an array") from None
    if found.dtype.kind == "V" and "float" in found.dtype.name:  # bfloat16 and float8 of others
        return found.astype(np.float32)
    return found


def _to_numpy(values: Any) -> Any:
    """Tensors as numpy arrays of floats numpy knows, by what they can do; no library is loaded."""
    if isinstance(values, (list, tuple)) and values and _is_tensor(values[0]):
        return [_to_numpy(value) for value in values]
    if _is_tensor(values):
        values = values.detach().to("cpu")
        values = values.to_dense() if getattr(values, "is_sparse", False) else values
        if values.is_floating_point() and str(values.dtype) not in _NUMPY_FLOATS:
            values = values.float()
        return values.resolve_conj().resolve_neg().numpy()
    if hasattr(values, "get") and hasattr(values, "__cuda_array_interface__"):
        return values.get()
    return values


def _is_tensor(values: object) -> bool:
    return hasattr(values, "detach") and hasattr(values, "is_floating_point")


def as_float_array(field: str, values: ArrayLike) -> NDArray[np.float64]:
    """The values as float64, refused where they are no real numbers."""
    found = as_array(field, values)
    try:
        if found.dtype.kind in "fiuO" or not found.size:
            return found.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        pass
    raise RobfcpError(f"{field}: must be real numbers, not {found.dtype}; convert them")


def as_floats_or_nan(values: NDArray[Any]) -> NDArray[np.float64]:
    """The values as numbers, NaN where they are none."""
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.full(values.shape, np.nan)
        for place, value in np.ndenumerate(values):
            try:
                found[place] = float(value)
            except (ValueError, TypeError, OverflowError):
                continue
        return found


def as_integers(values: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers that are whole; one far below zero in place of others."""
    number = np.asarray(values, dtype=np.float64)
    whole = np.isfinite(number) & (number == np.round(number)) & (np.abs(number) < 2**53)
    return np.where(whole, number, -(2**53)).astype(np.int64)


def reject_missing(field: str, values: NDArray[Any]) -> None:
    """Refuse NaN, None and their like, by the row of the first."""
    if values.dtype.kind not in "fcOmM":
        return
    if values.dtype.kind == "O":
        each = values.ravel().tolist()
        missing = np.array(
            [not isinstance(v, str) and str(v) in _MISSING for v in each], dtype=bool
        )
    else:
        missing = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
    if missing.any():
        row = int(np.flatnonzero(missing.reshape(len(values), -1).any(axis=1))[0])
        raise RobfcpError(f"{field}: row {row} is missing; fill it in or leave the sample out")


def as_generator(rng: Rng) -> np.random.Generator:
    """The generator itself, or one from a seed."""
    try:
        return np.random.default_rng(rng)
    except (ValueError, TypeError):
        raise RobfcpError(f"rng: {rng!r} is no seed; pass a whole number from 0") from None


RESERVED_PREFIXES = ("file:", "report #")  # how sources without a client's name are called
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_CONFUSABLE_SCRIPTS = {
    "LATIN",
    "GREEK",
    "CYRILLIC",
    "ARMENIAN",
    "CHEROKEE",
    "COPTIC",
}  # share shapes


def deceptive_name_reason(name: str) -> str:
    """Why a name could be taken for another one; empty where it could not."""
    if name.isascii() and name == name.strip() and not name.startswith(RESERVED_PREFIXES):
        return ""
    if name != name.strip():
        return "begins or ends with a blank"
    if name.startswith(RESERVED_PREFIXES):
        return "begins like the name of a file or of a report without a name"
    if any(letter in _INVISIBLE or "\ufe00" <= letter <= "\ufe0f" for letter in name):
        return "holds a letter that cannot be seen"
    if unicodedata.normalize("NFKC", name) != name:
        return "holds letters that have a plainer form"
    scripts = {unicodedata.name(letter, "").split(" ")[0] for letter in name if letter.isalpha()}
    mixed = sorted(script.title() for script in scripts & _CONFUSABLE_SCRIPTS)
    if len(mixed) > 1:
        return f"mixes {' and '.join(mixed)} letters"
    return ""


def abbreviate(names: Sequence[str], max_shown: int = 5) -> str:
    """The first names in one line, and how many more there are."""
    more = f" and {len(names) - max_shown} more" if len(names) > max_shown else ""
    return ", ".join(names[:max_shown]) + more


MAX_SAMPLES = 2**40  # of a client: every sum over a million clients stays inside int64


def check_client_name(client: object) -> None:
    """Refuse what cannot be a client's name."""
    name, problem, remedy = repr(client)[:40], "", "use a plain name"
    if not isinstance(client, str) or not 0 < len(client) <= MAX_NAME:
        problem, remedy = "is not a site name", f"use 1 to {MAX_NAME} characters"
    elif not client.isprintable():
        problem = "holds unprintable characters"
    elif problem := deceptive_name_reason(client):
        name = ascii(client)[1:-1][:MAX_NAME]
    if problem:
        raise ReportError(name, "client", problem, remedy)


def are_client_names(names: Sequence[str]) -> NDArray[np.bool_]:
    """Which can be clients' names."""
    fine = (
        0 < len(n) <= MAX_NAME and n.isprintable() and not deceptive_name_reason(n) for n in names
    )
    return np.fromiter(fine, dtype=bool, count=len(names))


def check_text(client: str, field: str, value: object) -> None:
    """Refuse a round's or model's name that is no short text."""
    short = isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    if value is not None and not short:
        problem, remedy = f"{field} is not a short text", f"use at most {MAX_NAME} characters"
        raise ReportError(client, field, problem, remedy)


# Exponents of more than two digits would take gigabytes as fractions.
_SHORT_NUMBER = re.compile(r"[\d./]{1,40}([eE][+-]?\d{1,2})?", re.ASCII)


def parse_level(level: float | str | Fraction | Decimal) -> Fraction:
    """A level as a fraction; floats are read as decimals of at most 12 places.

    0.9 means 9/10 and 1 - 0.7 means 3/10, not the binary numbers next to them.
    """
    try:
        if isinstance(level, (Fraction, Decimal, str)):
            exact = Fraction(level) if _SHORT_NUMBER.fullmatch(str(level)) else None
        else:
            exact = Fraction(f"{float(str(level)):.12f}")  # as printed: float32's 0.9 is 9/10 too
    except (ValueError, ZeroDivisionError):
        exact = None
    if exact is None:
        raise RobfcpError(f"coverage: {level!r} is not a number; give 0.9, say")
    if not 0 < exact < 1:
        raise RobfcpError(f"coverage: {level} is not between 0 and 1; give 0.9, say")
    return exact
