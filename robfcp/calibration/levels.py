"""One confidence level's outcome."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from robfcp.calibration.by_class import StratumLevel
from robfcp.guarantees import Certificate, CurvePoint


@dataclass(frozen=True)
class Level:
    """The threshold at one confidence level, its tolerance and its certificate.

    `curve` says where coverage lies for each number of liars, all of it true at once;
    `empty_from` is the number from which on nothing is proved, None where something always is.
    With `strata` there is a threshold for each class or group, and `threshold` is their largest.
    """

    confidence_level: Fraction
    threshold: float
    tolerance: int | None
    certificate: Certificate
    curve: tuple[CurvePoint, ...] = ()
    empty_from: int | None = None
    strata: tuple[StratumLevel, ...] = ()
