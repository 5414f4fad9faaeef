"""The artefact people keep: threshold, whom it rests on and what is proved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import read_limited, write_atomically
from robfcp._numbers import share, whole
from robfcp._version import __version__
from robfcp.certificates import Certificate
from robfcp.defences import Exclude
from robfcp.distances import Metric
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.prediction import iterate_sets, predict_intervals, predict_sets
from robfcp.quantiles import Exchangeability
from robfcp.scores import Rng, Score

Guarantee = Literal["marginal", "pac", "pac-homogeneous"]
MAX_CALIBRATION_BYTES = 2**30
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How a calibration was made: what `calibrate` was told, for the auditor."""

    defence: str = "band"
    malicious: int | Literal["estimate"] = "estimate"
    exclude: Exclude = "outstanding"
    distance: Metric = "l2"
    exchangeability: Exchangeability = "partial"
    guarantee: Guarantee | None = None
    heterogeneity: float | None = None
    certificate_confidence: float = 0.95
    max_share: float | None = None
    size_budget: int | None = None

    def __post_init__(self) -> None:
        for option, words in _WORDS.items():
            if getattr(self, option) not in words:
                known = ", ".join(map(repr, words))
                raise RobfcpError(f"{option}: {getattr(self, option)!r} is unknown; use {known}")
        if not (isinstance(self.malicious, str) and self.malicious == "estimate"):
            self._set("malicious", whole, "state how many may lie, or 'estimate'")
        if self.heterogeneity is not None:
            self._set("heterogeneity", share, "give 0.02, say", zero=True, one=True)
        if self.max_share is not None:
            self._set("max_share", share, "give 0.2, say", one=True)
        if self.size_budget is not None:
            self._set("size_budget", whole, "give a number of samples")
        self._set("certificate_confidence", share, "give 0.95, say")

    def _set(self, option: str, kind: Callable[..., float], remedy: str, **ends: bool) -> None:
        """The option as a plain number, whatever library it came from."""
        object.__setattr__(self, option, kind(option, getattr(self, option), remedy, **ends))


_WORDS = {
    "exclude": get_args(Exclude),
    "distance": get_args(Metric),
    "exchangeability": get_args(Exchangeability),
    "guarantee": (None, *get_args(Guarantee)),
}


@dataclass(frozen=True)
class Level:
    """One confidence level's outcome."""

    confidence_level: Fraction
    threshold: float
    tolerance: int | None
    certificate: Certificate


@dataclass(frozen=True, eq=False)
class Calibration:
    """Thresholds, the clients they rest on and what is proved about them.

    `threshold`, `tolerance`, `certificate` and `confidence_level` are single values where one
    level was asked for, and tuples in the order asked where there were several.
    """

    levels: tuple[Level, ...]
    federation: Federation
    maliciousness: NDArray[np.float64]
    trusted_mask: NDArray[np.bool_]
    n_malicious: int
    settings: Settings
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    several: bool = False
    version: str = __version__
    provenance: Mapping[str, Any] = field(default_factory=dict)  # an engine's record of the round

    @property
    def threshold(self) -> float | tuple[float, ...]:
        """A label is in the set when its score is at most this; infinite takes every label."""
        return self._single(tuple(level.threshold for level in self.levels))

    @property
    def tolerance(self) -> int | tuple[int | None, ...] | None:
        """m*: how many arbitrary liars the threshold survives; None where not even zero."""
        return self._single(tuple(level.tolerance for level in self.levels))

    @property
    def certificate(self) -> Certificate | tuple[Certificate, ...]:
        """What coverage is proved, with which confidence, under which assumptions."""
        return self._single(tuple(level.certificate for level in self.levels))

    @property
    def confidence_level(self) -> float | tuple[float, ...]:
        """The coverage asked for."""
        return self._single(tuple(float(level.confidence_level) for level in self.levels))

    @property
    def trusted(self) -> tuple[str, ...]:
        """The clients the threshold rests on."""
        return self._chosen(self.trusted_mask)

    @property
    def flagged(self) -> tuple[str, ...]:
        """The clients whose valid reports the defence left out; `reasons` says why."""
        return self._chosen(~self.trusted_mask)

    @property
    def faulty(self) -> tuple[Fault, ...]:
        """The clients whose reports were refused, and why."""
        return self.federation.faulty

    @property
    def missing(self) -> tuple[str, ...]:
        """The registered clients that sent nothing."""
        return self.federation.missing

    @property
    def score(self) -> Score | None:
        """The score of the reports."""
        return self.federation.score

    def predict_set(
        self, probabilities: ArrayLike, rng: Rng = None, *, score: Score | None = None
    ) -> NDArray[np.bool_]:
        """(n, C) whether each label is in each sample's set; (n, C, L) for several levels."""
        sets = predict_sets(self._score(score), probabilities, self._thresholds, rng)
        return sets if self.several else sets[:, :, 0]

    def iterate_sets(
        self, probabilities: ArrayLike, rng: Rng = None, *, score: Score | None = None
    ) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """The sets as (rows, members) blocks, for more samples than memory holds."""
        for rows, sets in iterate_sets(self._score(score), probabilities, self._thresholds, rng):
            yield rows, sets if self.several else sets[:, :, 0]

    def predict_interval(
        self, predictions: ArrayLike, *, score: Score | None = None
    ) -> NDArray[np.float64]:
        """(n, 2) lower and upper ends; (n, 2, L) for several levels."""
        ends = predict_intervals(self._score(score), predictions, self._thresholds)
        return ends if self.several else ends[:, :, 0]

    def to_json(self) -> bytes:
        """The calibration with its reports as one JSON object, sealed by a digest."""
        from robfcp._calibration_file import encode_calibration

        return encode_calibration(self)

    @staticmethod
    def from_json(data: bytes | str, source: str = "calibration") -> Calibration:
        """A calibration from JSON, refused when it was altered or is of a newer schema."""
        from robfcp._calibration_file import decode_calibration

        return decode_calibration(data, source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON whole or not at all."""
        write_atomically(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Calibration:
        """Read a saved calibration."""
        return Calibration.from_json(read_limited(path, MAX_CALIBRATION_BYTES), os.fspath(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def _thresholds(self) -> tuple[float, ...]:
        return tuple(level.threshold for level in self.levels)

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        return values if self.several else values[0]

    def _chosen(self, mask: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(self.federation.ids[k] for k in np.flatnonzero(mask))

    def _score(self, score: Score | None) -> Score:
        chosen = self.score if score is None else score
        if chosen is None:
            raise RobfcpError("score: the reports did not name their score; pass score=")
        return chosen
