"""Numbers and texts as the page writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robfcp._typing import FloatArray
from robfcp.scores import Risk

_DECIMALS = 5  # of fractions in the data: enough to draw with and to print


def finite_or_none(value: float) -> float | None:
    """Return a float for JSON; infinite ones become null."""
    return float(value) if np.isfinite(value) else None


def round_for_plot(values: FloatArray) -> list[float]:
    """Return values rounded to five decimals."""
    return [float(value) for value in np.round(values, _DECIMALS)]


def rounded_ratio(numerator: float, denominator: float) -> float | None:
    """Return a ratio rounded to five decimals; None if the denominator is not positive."""
    if denominator <= 0:
        return None
    return round(float(numerator) / float(denominator), _DECIMALS)


def format_percent(fraction: float) -> str:
    """Return a fraction as a percentage of at most four digits; not for certified bounds."""
    return f"{100 * fraction:.4g}%"


def format_mean_loss(risk: Risk, coverage: float) -> str:
    """Return the mean loss B * (1 - coverage); as a percentage if the largest loss B is 1."""
    if risk.upper_bound == 1:
        return format_percent(1 - coverage)
    return f"{risk.upper_bound * (1 - coverage):.3g}"


def pluralize(count: int, noun: str) -> str:
    """Return '1 site', '2 sites'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def capitalize(text: str) -> str:
    """Return a text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def enumerate_in_words(items: Sequence[str]) -> str:
    """Return 'a', 'a and b', 'a, b and c'."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"
