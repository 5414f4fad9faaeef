"""Numbers, arrays and names that callers pass: checked, and refused with the field's name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import nan
from numbers import Real
from typing import Any, TypeGuard

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp.errors import MAX_NAME, ReportError, RobfcpError

Rng = int | np.random.Generator | None

MAX_SAMPLES = 2**40  # of a client: every sum over a million clients stays inside int64
_INTEGER_LIMIT = 2**62  # twice any number that is allowed still fits into int64
_MAX_EXACT_FLOAT = 2**53  # below it every whole number is a float64

_TEXTS_OF_MISSING = ("None", "nan", "NaN", "<NA>", "NaT")  # of Python, numpy, decimals and pandas
_NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")
_CONVERSION_ERRORS = (ValueError, TypeError, OverflowError)

RESERVED_PREFIXES = ("file:", "report #")  # how sources without a client's name are called
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_FIRST_VARIATION_SELECTOR = "\ufe00"
_LAST_VARIATION_SELECTOR = "\ufe0f"
# Scripts that have letters of the same shape.
_CONFUSABLE_SCRIPTS = {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE", "COPTIC"}

# Exponents of more than two digits would take gigabytes as fractions.
_SHORT_NUMBER = re.compile(r"[\d./]{1,40}([eE][+-]?\d{1,2})?", re.ASCII)


def _is_real_number(value: object) -> TypeGuard[Real | Decimal]:
    """Return whether a value is a real number; True and False are none."""
    return isinstance(value, (Real, Decimal)) and not isinstance(value, bool)


def _is_integer(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a value is a whole number; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_fraction(
    field: str, value: object, remedy: str, *, allow_zero: bool = False, allow_one: bool = False
) -> float:
    """Return the value as a float between 0 and 1; refuse anything else.

    Parameters
    ----------
    field : str
        How the error names the value.
    value : object
        What the caller passed.
    remedy : str
        What the error advises.
    allow_zero, allow_one : bool, default=False
        Whether the ends are allowed too.
    """
    fraction = float(value) if _is_real_number(value) else nan
    is_allowed_end = (allow_zero and fraction == 0) or (allow_one and fraction == 1)
    if not (0 < fraction < 1 or is_allowed_end):
        raise RobfcpError(f"{field}: {value!r} is not a number between 0 and 1; {remedy}")
    return fraction


def check_integer(field: str, value: object, remedy: str, min_value: int = 0) -> int:
    """Return the value as an int of at least `min_value`; refuse anything else.

    Parameters
    ----------
    field : str
        How the error names the value.
    value : object
        What the caller passed.
    remedy : str
        What the error advises.
    min_value : int, default=0
        The least that is allowed.
    """
    if _is_integer(value) and min_value <= value < _INTEGER_LIMIT:
        return int(value)
    raise RobfcpError(f"{field}: {value!r} is not a whole number from {min_value}; {remedy}")


def as_array(field: str, values: ArrayLike) -> NDArray[Any]:
    """Return the values as an array of this process; refuse ragged ones.

    Parameters
    ----------
    field : str
        How errors name the values.
    values : array_like
        Of any library. Tensors may lie on any device, need a gradient and have kinds of floats
        numpy does not know.

    Returns
    -------
    array
        Of the same shape; floats that numpy does not know become float32.
    """
    try:
        array = np.asarray(_to_numpy(values))
    except _CONVERSION_ERRORS:
        raise RobfcpError(f"{field}: rows differ in length; pass a full array") from None
    except (RuntimeError, NotImplementedError):  # a tensor without data, say
        raise RobfcpError(f"{field}: hold no numbers that can be read; pass an array") from None

    # bfloat16 and float8 of other libraries
    if array.dtype.kind == "V" and "float" in array.dtype.name:
        return array.astype(np.float32)
    return array


def _to_numpy(values: Any) -> Any:
    """Return what numpy can read, judged by what the values can do; no library is loaded."""
    if isinstance(values, (list, tuple)) and values and _is_tensor(values[0]):
        return [_to_numpy(value) for value in values]
    if _is_tensor(values):
        return _tensor_to_numpy(values)
    if hasattr(values, "get") and hasattr(values, "__cuda_array_interface__"):
        return values.get()
    return values


def _is_tensor(values: object) -> bool:
    """Return whether values can do what PyTorch's tensors can."""
    return hasattr(values, "detach") and hasattr(values, "is_floating_point")


def _tensor_to_numpy(tensor: Any) -> Any:
    """Return a tensor's numbers as a numpy array, of floats that numpy knows."""
    tensor = tensor.detach().to("cpu")
    if getattr(tensor, "is_sparse", False):
        tensor = tensor.to_dense()
    if tensor.is_floating_point() and str(tensor.dtype) not in _NUMPY_FLOATS:
        tensor = tensor.float()
    return tensor.resolve_conj().resolve_neg().numpy()


def as_float_array(field: str, values: ArrayLike) -> FloatArray:
    """Return the values as float64, in their shape; refuse what is no real number."""
    array = as_array(field, values)
    if array.dtype.kind in "fiuO" or not array.size:
        with suppress(*_CONVERSION_ERRORS):
            return array.astype(np.float64)
    raise RobfcpError(f"{field}: must be real numbers, not {array.dtype}; convert them")


def as_floats_or_nan(values: NDArray[Any]) -> FloatArray:
    """Return the values as float64, in their shape, with NaN where they are no numbers."""
    with suppress(*_CONVERSION_ERRORS):
        return values.astype(np.float64)

    # Some value is no number: convert one after the other.
    floats = np.full(values.shape, np.nan)
    for index, value in np.ndenumerate(values):
        with suppress(*_CONVERSION_ERRORS):
            floats[index] = float(value)
    return floats


def as_integers(values: NDArray[Any]) -> IntArray:
    """Return whole numbers as int64, in their shape; -2**53 stands in place of anything else."""
    floats = np.asarray(values, dtype=np.float64)
    is_whole = np.isfinite(floats) & (floats == np.round(floats))
    is_exact = np.abs(floats) < _MAX_EXACT_FLOAT
    return np.where(is_whole & is_exact, floats, -_MAX_EXACT_FLOAT).astype(np.int64)


def reject_missing(field: str, values: NDArray[Any]) -> None:
    """Refuse NaN, None and their like, by the row of the first.

    Parameters
    ----------
    field : str
        How the error names the values.
    values : (n, ...) array
        One row a sample, of any kind.
    """
    kind = values.dtype.kind
    if kind == "O":
        is_missing = np.array([_is_missing(value) for value in values.ravel().tolist()], dtype=bool)
    elif kind in "mM":
        is_missing = np.isnat(values)
    elif kind in "fc":
        is_missing = np.isnan(values)
    else:
        return
    if is_missing.any():
        is_missing_row = is_missing.reshape(len(values), -1).any(axis=1)
        row = int(np.argmax(is_missing_row))
        raise RobfcpError(f"{field}: row {row} is missing; fill it in or leave the sample out")


def _is_missing(value: object) -> bool:
    """Return whether an object says that a value is missing; the text "None" is a text."""
    return not isinstance(value, str) and str(value) in _TEXTS_OF_MISSING


def as_generator(rng: Rng) -> np.random.Generator:
    """Return the generator itself, or one from a seed."""
    try:
        return np.random.default_rng(rng)
    except (ValueError, TypeError):
        raise RobfcpError(f"rng: {rng!r} is no seed; pass a whole number from 0") from None


def deceptive_name_reason(name: str) -> str:
    """Return why a name could be taken for another one; empty where it could not."""
    is_reserved = name.startswith(RESERVED_PREFIXES)
    if name.isascii() and name == name.strip() and not is_reserved:
        return ""
    if name != name.strip():
        return "begins or ends with a blank"
    if is_reserved:
        return "begins like the name of a file or of a report without a name"
    if any(_is_invisible(character) for character in name):
        return "holds a letter that cannot be seen"
    if unicodedata.normalize("NFKC", name) != name:
        return "holds letters that have a plainer form"

    scripts = {_script_of(character) for character in name if character.isalpha()}
    confusable = sorted(script.title() for script in scripts & _CONFUSABLE_SCRIPTS)
    if len(confusable) > 1:
        return f"mixes {' and '.join(confusable)} letters"
    return ""


def _script_of(character: str) -> str:
    """Return the first word of a character's name in Unicode: of letters, their script."""
    return unicodedata.name(character, "").split(" ")[0]


def _is_invisible(character: str) -> bool:
    """Return whether a printable character leaves no mark."""
    is_variation = _FIRST_VARIATION_SELECTOR <= character <= _LAST_VARIATION_SELECTOR
    return is_variation or character in _INVISIBLE


def abbreviate(names: Sequence[str], max_shown: int = 5) -> str:
    """Return the first names in one line, and how many more there are."""
    first_names = ", ".join(names[:max_shown])
    n_more = len(names) - max_shown
    return f"{first_names} and {n_more} more" if n_more > 0 else first_names


def check_client_name(client: object) -> None:
    """Refuse what cannot be a client's name."""
    if not isinstance(client, str) or not 0 < len(client) <= MAX_NAME:
        remedy = f"use 1 to {MAX_NAME} characters"
        raise ReportError(repr(client)[:40], "client", "is not a site name", remedy)
    remedy = "use a plain name"
    if not client.isprintable():
        raise ReportError(repr(client)[:40], "client", "holds unprintable characters", remedy)
    problem = deceptive_name_reason(client)
    if problem:
        escaped = ascii(client)[1:-1][:MAX_NAME]
        raise ReportError(escaped, "client", problem, remedy)


def are_client_names(names: Sequence[str]) -> BoolArray:
    """Return which of n names can be clients' names, as (n,) booleans."""
    return np.fromiter(map(_is_client_name, names), dtype=bool, count=len(names))


def _is_client_name(name: str) -> bool:
    """Return whether `check_client_name` lets a name pass."""
    is_short = 0 < len(name) <= MAX_NAME
    return is_short and name.isprintable() and not deceptive_name_reason(name)


def check_text(client: str, field: str, value: object) -> None:
    """Refuse a round's or model's name that is no short text; None is no name."""
    if value is None:
        return
    is_short_text = isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    if not is_short_text:
        problem = f"{field} is not a short text"
        raise ReportError(client, field, problem, f"use at most {MAX_NAME} characters")


def parse_level(
    level: float | str | Fraction | Decimal, field: str = "coverage", example: str = "0.9"
) -> Fraction:
    """Return a level strictly between 0 and 1 as a fraction; refuse anything else.

    Parameters
    ----------
    level : float, str, Fraction or Decimal
        Floats are read as decimals of at most 12 places: 0.9 means 9/10 and 1 - 0.7 means 3/10,
        not the binary numbers next to them.
    field, example : str
        The argument that it was given as, and a value that is right, for errors.
    """
    try:
        exact = _as_fraction(level)
    except (ValueError, ZeroDivisionError):
        exact = None
    if exact is None:
        raise RobfcpError(f"{field}: {level!r} is not a number; give for example {example}")
    if not 0 < exact < 1:
        raise RobfcpError(f"{field}: {level} is not between 0 and 1; give for example {example}")
    return exact


def _as_fraction(level: float | str | Fraction | Decimal) -> Fraction | None:
    """Return the fraction that a level is written as; None for a text that is no short number."""
    if isinstance(level, (Fraction, Decimal, str)):
        return Fraction(level) if _SHORT_NUMBER.fullmatch(str(level)) else None
    printed = str(level)  # float32's 0.9 is 9/10 as it is printed, and no longer as a float64
    return Fraction(f"{float(printed):.12f}")


def set_fields(instance: object, **values: object) -> None:
    """Set fields of a frozen dataclass or struct, whose `__post_init__` normalizes its arguments.

    Nothing but a `__post_init__` may call this: whoever has the object relies on its fields.

    Parameters
    ----------
    instance : object
        What is being constructed.
    **values : object
        The new value of each field.
    """
    for name, value in values.items():
        if isinstance(instance, msgspec.Struct):
            msgspec.structs.force_setattr(instance, name, value)
        else:
            object.__setattr__(instance, name, value)
