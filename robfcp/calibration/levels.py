"""What came out at one level."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from robfcp.calibration.by_class import StratumLevel
from robfcp.certificate import Certificate, CurvePoint


@dataclass(frozen=True)
class Level:
    """The threshold for one coverage wanted, and its certificate.

    `curve` says where coverage lies for each number of liars, all of it true at once;
    `empty_from` is the number from which on nothing is proved, None where something always is.
    With `strata` there is a threshold for each class or group, and `threshold` is their largest.
    """

    coverage: Fraction
    threshold: float
    certificate: Certificate
    curve: tuple[CurvePoint, ...] = ()
    empty_from: int | None = None
    strata: tuple[StratumLevel, ...] = ()
