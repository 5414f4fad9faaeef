"""Numbers and promises in words: lower ends rounded down, upper ends up, one wording for each."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

_PLACES = Decimal("0.01")  # of a percentage


def at_least(share: float) -> str:
    """The share as a percentage that is not larger: 0.899951 is 89.99%."""
    return _percent(share, ROUND_FLOOR)


def at_most(share: float) -> str:
    """The share as a percentage that is not smaller: 0.899951 is 90%."""
    return _percent(share, ROUND_CEILING)


def loss_at_most(loss: float, bound: float) -> str:
    """A mean loss that is not smaller: a percentage where the bound is 1, else a number."""
    return at_most(loss) if bound == 1 else _number(loss, ROUND_CEILING)


def loss_at_least(loss: float, bound: float) -> str:
    """A mean loss that is not larger: a percentage where the bound is 1, else a number."""
    return at_least(loss) if bound == 1 else _number(loss, ROUND_FLOOR)


def _number(value: float, rounding: str) -> str:
    exact = Decimal(repr(float(value)))
    if not exact:
        return "0"
    places = Decimal(1).scaleb(exact.adjusted() - 3)  # four significant digits
    return f"{exact.quantize(places, rounding=rounding).normalize():f}"


def _percent(share: float, rounding: str) -> str:
    exact = 100 * Decimal(repr(float(share)))
    rounded = exact.quantize(_PLACES, rounding=rounding)
    return f"{rounded.normalize():f}%"


def tolerance_statement(number: int | None, level: Fraction) -> str:
    """What a tolerance promises, in the words that make it true: it is read off the data."""
    if number is None:
        return f"tolerance none: not guaranteed at {at_least(float(level))} even if nobody lies"
    return (
        f"tolerance {number}: the chance that the true label is missed while the tolerance is at "
        f"least the true number of liars is at most {at_most(float(1 - level))}"
    )
