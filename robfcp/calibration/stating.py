"""What a calibration says: its thresholds, and what is proved of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.levels import Level
from robfcp.calibration.settings import Settings
from robfcp.guarantees import Certificate, CurvePoint, curve_assumptions
from robfcp.reports import By

T = TypeVar("T")
Curves = Mapping[int, Certificate] | Mapping[str, Mapping[int, Certificate]]


class Stating:
    """Thresholds with what is proved of them."""

    levels: tuple[Level, ...]
    settings: Settings
    several: bool

    @property
    def threshold(self) -> float | tuple[float, ...] | NDArray[np.float64]:
        """A label is in the set when its score is at most this; infinite takes every label.

        By class or group an array: (C,), or (L, C) for several levels.
        """
        if self.by is not None:
            rows = np.array([[one.threshold for one in level.strata] for level in self.levels])
            return rows if self.several else rows[0]
        return self._single(tuple(level.threshold for level in self.levels))

    @property
    def by(self) -> By | None:
        """Whether there is a threshold for each class or group."""
        return self.settings.by

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes or groups that have thresholds of their own."""
        return tuple(one.name for one in self.levels[0].strata)

    @property
    def tolerance(self) -> int | tuple[int | None, ...] | None:
        """m*: how many arbitrary liars the threshold survives; None where not even zero."""
        return self._single(tuple(level.tolerance for level in self.levels))

    @property
    def certificate(self) -> Certificate | tuple[Certificate, ...]:
        """What coverage is proved, with which confidence, under which assumptions."""
        return self._single(tuple(level.certificate for level in self.levels))

    @property
    def certificates(self) -> Curves | tuple[Curves, ...]:
        """For each number of liars what coverage is proved; one event makes all of them true.

        By class or group, those of each of them by its name, about the clients that hold it; with
        `joint` one event makes all of these true.

        Examples
        --------
        >>> import robfcp
        >>> reports = robfcp.Federation.from_counts([[90, 10]] * 20)
        >>> found = robfcp.calibrate(reports, confidence_level=0.8, defence="none").certificates
        >>> print(found[2].statement[:65])
        with 95% confidence, either more than 2 of the 20 sites lie or co
        """
        return self._single(tuple(self._curves(level) for level in self.levels))

    @property
    def confidence_level(self) -> float | tuple[float, ...]:
        """The coverage asked for."""
        return self._single(tuple(float(level.confidence_level) for level in self.levels))

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        return values if self.several else values[0]

    def _curves(self, level: Level) -> Curves:
        if self.by is None:
            return self._curve(level.certificate, level.curve)
        return {one.name: self._curve(one.certificate, one.curve) for one in level.strata}

    def _curve(
        self, stated: Certificate, points: tuple[CurvePoint, ...]
    ) -> Mapping[int, Certificate]:
        return {
            point.m: replace(
                stated,
                kind="any-threshold",
                lower=point.lower,
                upper=point.upper,
                confidence=self.settings.certificate_confidence,
                m=point.m,
                assumptions=curve_assumptions(stated.assumptions, point.m, stated.n_clients),
                full_sets_from=None,
                note="",
                size_budget=None,
            )
            for point in points
        }
