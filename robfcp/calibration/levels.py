"""One confidence level's outcome."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from robfcp.guarantees import Certificate


@dataclass(frozen=True)
class Level:
    """The threshold at one confidence level, its tolerance and its certificate."""

    confidence_level: Fraction
    threshold: float
    tolerance: int | None
    certificate: Certificate
