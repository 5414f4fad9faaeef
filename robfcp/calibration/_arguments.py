"""Wrong calls of `calibrate`: what they may have meant, and what to type instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from robfcp._validation import parse_level
from robfcp.errors import RobfcpError, RobfcpWarning

P = ParamSpec("P")
R = TypeVar("R")

MIN_USUAL_COVERAGE = Fraction(1, 2)  # below it a coverage is more likely meant as alpha

# Names that other libraries and other spellings use, and what they may mean here.
_CONFIDENCE_HINT = (
    "write coverage=0.9 for the target coverage, or certificate_confidence=0.95 for the "
    "confidence of certificates"
)
_SUGGESTIONS = {
    "confidence": _CONFIDENCE_HINT,
    "confidence_level": _CONFIDENCE_HINT,
    "defence": "write defense",
    "liars": "write guarantee=MarginalGuarantee(max_malicious=3) or "
    "defense=Consensus(max_malicious=3)",
    "promise": "write guarantee",
    "anchor": "write trusted_report",
    "risk": "write risk_level",
    "level": "write coverage",
    "max_malicious": "write guarantee=MarginalGuarantee(max_malicious=3) or "
    "defense=Consensus(max_malicious=3)",
    "n_malicious": "write defense=Consensus(n_malicious=3)",
}


def explain_wrong_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `calibrate` so that a wrong call says what to type instead.

    A second positional number is refused, since `alpha` and `coverage` look alike there, and so
    are `confidence` and `confidence_level`, which mean the coverage elsewhere.

    Parameters
    ----------
    function : callable
        Takes one positional argument, the reports; `coverage` and `alpha` are among the others.

    Returns
    -------
    callable
        The same function, with the same signature.
    """
    known_names = signature(function).parameters.keys()

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1:
            raise TypeError(
                "calibrate() takes one positional argument, the reports; write "
                "calibrate(reports, coverage=0.9), or alpha=0.1 for the same"
            )
        for name in kwargs:
            if name not in known_names and name in _SUGGESTIONS:
                raise TypeError(f"calibrate() has no argument {name!r}; {_SUGGESTIONS[name]}")
        if "coverage" in kwargs and kwargs.get("alpha") is not None:
            raise RobfcpError("alpha: means coverage=1 - alpha; give one of them, not both")
        return function(*args, **kwargs)

    return checked


def coverage_of_alpha(alpha: Any) -> Any:
    """Return 1 - alpha of one miscoverage level, or of each in a sequence, exactly.

    Parameters
    ----------
    alpha : float, str, Fraction, or sequence of them
        The miscoverage level, between 0 and 1. A float means the decimal number that it prints as:
        alpha=0.1 is a coverage of 9/10.

    Raises
    ------
    RobfcpError
        Where it is no number.
    """
    is_sequence = isinstance(alpha, (Sequence, np.ndarray)) and not isinstance(alpha, str)
    if not is_sequence or np.ndim(alpha) == 0:
        return 1 - parse_level(alpha, "alpha", "0.1")
    if not len(alpha):
        raise RobfcpError("alpha: the list is empty; give for example [0.1, 0.2]")
    return [1 - parse_level(value, "alpha", "0.1") for value in alpha]


def warn_of_low_coverage(levels: Sequence[Fraction]) -> None:
    """Warn where a target coverage is so low that `alpha` was probably meant.

    Parameters
    ----------
    levels : sequence of Fraction
        The target coverages.
    """
    lowest = min(levels)
    if lowest >= MIN_USUAL_COVERAGE:
        return
    value = f"{float(lowest):g}"
    warnings.warn(
        f"coverage: {value} is below 0.5, so that most sets miss the true label; did you mean "
        f"alpha={value}, which is coverage={float(1 - lowest):g}?",
        RobfcpWarning,
        stacklevel=4,  # the caller of the decorated `calibrate`
    )
