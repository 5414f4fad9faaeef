"""How a report shows its counts: as they are, or with noise. The one place of a report that asks.

The exact form does and refuses what a plain report needs; the noisy one all that privacy adds:
nothing may show by a refusal, every cell holds noise, and counts are plausible, not exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import Rng, array
from robfcp.errors import ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Mechanism, Neighbours, Privacy, add_noise, noise_bound
from robfcp.report.by_class import Strata
from robfcp.report.checks import MAX_SAMPLES, check_fineness, check_total, is_whole
from robfcp.report.sketches import clamped
from robfcp.scores import Risk, Score, scores_or_nan

IMPLAUSIBLE = 1e-10  # noisy counts are refused beyond what their noise exceeds with this chance
MAX_NOISY_CELLS = 100_000
NOISY_RESOLUTION = 360  # noise is added to parts, so there are fewer
_REBUILD = "rebuild the report from the scores"

Whole = NDArray[np.int64]


class WirePrivacy(msgspec.Struct, forbid_unknown_fields=True):
    """All of a report's privacy, nothing left to defaults."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    samples_per_patient: int
    rounds: int
    mechanism: Mechanism
    scale: float


class Exact:
    """Counts as they are."""

    schema = 1  # the least that can hold such a report
    resolution = Risk.resolution  # parts of a loss
    keeps_classes = True  # unless told otherwise
    refuses_samples = True  # one that cannot be used is named
    statement = ""  # what is said of it, in words
    brief = ""  # ... and in a line of a log

    def scores(self, score: Score, predictions: ArrayLike, targets: ArrayLike, rng: Rng) -> Any:
        """(n,) the scores; what the score refuses is refused."""
        return score(predictions, targets, rng)

    def values(self, scores: ArrayLike, grid: Grid) -> ArrayLike:
        """The scores that are counted."""
        return scores

    def check_fineness(self, client: str, scores: ArrayLike, grid: Grid, most: float) -> None:
        """Refuse more bins a sample than the site allows."""
        check_fineness(client, len(np.atleast_1d(scores)), grid, most)

    def check_merging(self, least: int) -> None:
        """Thin classes may be merged."""

    def check_groups(self, names: Sequence[str] | int | None) -> None:
        """Groups may be those that occur."""

    def check_patients(self, client: str, n_samples: int, patients: ArrayLike | None) -> None:
        """Refuse what suggests a protection that is not there."""
        if patients is not None:
            raise RobfcpError(f"{client}: patients: only privacy protects them; pass privacy=")

    def shown(self, counts: Whole, unit: int = 1) -> Whole:
        """The counts as they are sent, `unit` of them a sample."""
        return counts

    def shown_strata(self, strata: Strata) -> Strata:
        """The counts by class as they are sent."""
        return strata

    def stated(self, n_samples: int) -> int | None:
        """n_k as it is sent."""
        return n_samples

    def cells(self, row: Whole) -> NDArray[np.intp]:
        """Which cells of a row of counts by class stand in a report: those in use."""
        return np.flatnonzero(row)

    def check_counts(self, client: str, counts: Whole) -> None:
        """Refuse what no count can be."""
        if counts.min() < 0:
            problem = f"counts[{int(counts.argmin())}] is negative"
            raise ReportError(client, "counts", problem, _REBUILD)
        if not counts.any():
            raise ReportError(client, "counts", "counts are all zero", _REBUILD)

    def check_set_sizes(self, client: str) -> None:
        """Sizes of sets may be told."""

    def check_cells(self, client: str, strata: Strata) -> None:
        """Refuse cells that should not be there."""
        if strata.counts.min(initial=1) < 1:
            problem = f"a count by {strata.by} is not positive"
            raise ReportError(client, "strata", problem, _REBUILD)

    def size(
        self, client: str, counts: Whole, n_samples: Any, *, unit: int, strata: Strata | None
    ) -> int:
        """n_k, refused where the counts do not add up to it."""
        return check_total(client, int(counts.sum()), n_samples, unit)

    def wire(self) -> WirePrivacy | None:
        """What a file says of it."""
        return None

    def data(self) -> dict[str, Any]:
        """What is said of it to programs."""
        return {}

    def check_exact(self, client: str) -> None:
        """Refuse what can only be had from exact counts."""


class Noisy(Exact):
    """Counts with the noise that a privacy statement names."""

    schema = 2
    resolution = NOISY_RESOLUTION
    keeps_classes = False  # noise is on every cell
    refuses_samples = False  # that one was refused would tell of it

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy

    @property
    def statement(self) -> str:  # type: ignore[override]
        """The budget in words."""
        return self.privacy.statement

    @property
    def brief(self) -> str:  # type: ignore[override]
        """The statement as Python writes it."""
        return f", {self.privacy!r}"

    def scores(self, score: Score, predictions: ArrayLike, targets: ArrayLike, rng: Rng) -> Any:
        """(n,) the scores, NaN where the score refuses a sample."""
        return scores_or_nan(score, predictions, targets, rng)

    def values(self, scores: ArrayLike, grid: Grid) -> ArrayLike:
        """The scores brought into the grid, whatever they are."""
        return clamped(scores, grid)

    def check_fineness(self, client: str, scores: ArrayLike, grid: Grid, most: float) -> None:
        """Noise hides single scores anyway."""

    def check_merging(self, least: int) -> None:
        """Refuse what would show how many samples a class has."""
        if least > 1:
            raise RobfcpError(
                "least: which classes are merged tells what noise should hide; "
                "merge them beforehand, for all sites alike"
            )

    def check_groups(self, names: Sequence[str] | int | None) -> None:
        """Refuse what would show which groups occur."""
        if names is None:
            raise RobfcpError("groups: which ones occur is data; state them all in classes=")

    def check_patients(self, client: str, n_samples: int, patients: ArrayLike | None) -> None:
        """Refuse more samples of one person than the statement speaks of."""
        if patients is None:
            return
        names = array("patients", patients)
        if names.shape != (n_samples,):
            raise RobfcpError(f"{client}: patients: need one name a score ({n_samples})")
        most = int(np.unique(names, return_counts=True)[1].max())
        if most > self.privacy.samples_per_patient:
            raise RobfcpError(
                f"{client}: patients: somebody has {most} samples but samples_per_patient is "
                f"{self.privacy.samples_per_patient}; drop the surplus or state the larger bound"
            )

    def shown(self, counts: Whole, unit: int = 1) -> Whole:
        """With fresh noise."""
        return add_noise(counts, self.privacy, unit)

    def shown_strata(self, strata: Strata) -> Strata:
        """With noise on every cell, used or not: labels are protected too."""
        dense = strata.dense().reshape(-1)
        if dense.size > MAX_NOISY_CELLS:
            raise RobfcpError(
                f"privacy: {strata.n_strata} x {strata.n_bins} cells would drown in noise; "
                f"use a coarse grid, at most {MAX_NOISY_CELLS} cells"
            )
        noisy = add_noise(dense, self.privacy)
        return Strata(strata.by, strata.names, np.arange(dense.size), noisy, strata.n_bins)

    def stated(self, n_samples: int) -> int | None:
        """n_k unless it is protected too."""
        return None if self.privacy.hides_size else n_samples

    def cells(self, row: Whole) -> NDArray[np.intp]:
        """All: which ones are in use is protected."""
        return np.arange(len(row))

    def check_counts(self, client: str, counts: Whole) -> None:
        """Noise may leave any whole number; `size` refuses what it cannot leave."""

    def check_set_sizes(self, client: str) -> None:
        """Refuse what holds no noise and tells of the samples."""
        problem = "sizes of sets would tell what the noise hides"
        raise ReportError(client, "set_sizes", problem, "leave them out of private reports")

    def check_cells(self, client: str, strata: Strata) -> None:
        """The same of counts by class."""

    def size(
        self, client: str, counts: Whole, n_samples: Any, *, unit: int, strata: Strata | None
    ) -> int:
        """n_k, refused where the counts cannot come from n_k and the noise."""
        total, draws = int(counts.sum()), 1 if strata is None else strata.n_strata

        def refuse(field: str, problem: str) -> ReportError:
            return ReportError(client, field, problem, _REBUILD)

        if self.privacy.hides_size:
            if unit > 1:
                raise refuse("privacy", "losses need n_samples, which add-remove privacy hides")
            if n_samples is not None:
                raise refuse("n_samples", "n_samples is stated though add-remove privacy hides it")
            self._check_plausible_cells(client, strata, np.inf)
            return max(1, total)
        if not is_whole(n_samples) or not 1 <= n_samples <= MAX_SAMPLES:
            raise refuse("n_samples", f"n_samples is {n_samples!r}, not a number of samples")
        noise = self.privacy.noise_on(unit)
        slack = noise_bound(((noise, draws * counts.size),), IMPLAUSIBLE)
        if abs(total - unit * int(n_samples)) > slack:
            raise refuse(
                "counts", f"counts sum to {total}, which noise cannot make of {n_samples} samples"
            )
        slack = noise_bound(((noise, draws),), IMPLAUSIBLE / counts.size)
        if counts.min() < -slack or counts.max() > unit * n_samples + slack:
            raise refuse("counts", "a count is beyond what the stated noise can make of it")
        self._check_plausible_cells(client, strata, int(n_samples))
        return int(n_samples)

    def _check_plausible_cells(self, client: str, strata: Strata | None, most: float) -> None:
        """Refuse a cell that the noise cannot have made of at most so many samples."""
        if strata is None or not strata.counts.size:
            return
        slack = noise_bound(((self.privacy.noise_on(1), 1),), IMPLAUSIBLE / strata.counts.size)
        if strata.counts.min() < -slack or strata.counts.max() > most + slack:
            problem = f"a count by {strata.by} is beyond what the stated noise can make of it"
            raise ReportError(client, "strata", problem, _REBUILD)

    def wire(self) -> WirePrivacy | None:
        """The whole statement."""
        return WirePrivacy(**asdict(self.privacy))

    def data(self) -> dict[str, Any]:
        """The whole statement."""
        return {"privacy": asdict(self.privacy)}

    def check_exact(self, client: str) -> None:
        """Refuse: the site has the exact counts, and nobody else needs them."""
        raise RobfcpError(
            f"{client}: privacy: the report holds noise; keep and pass an exact one, "
            "which never leaves the site"
        )


EXACT = Exact()


def disclosure_of(privacy: Privacy | None) -> Exact:
    """How counts are shown under this privacy, or without any."""
    return EXACT if privacy is None else Noisy(privacy)


def check_privacy(client: str, privacy: object) -> None:
    """Refuse what stands in the place of a privacy statement but is none."""
    if privacy is not None and not isinstance(privacy, Privacy):
        raise ReportError(
            client, "privacy", "privacy is not stated as such", "pass Privacy(epsilon=1)"
        )


def read_privacy(wire: WirePrivacy | None) -> Privacy | None:
    """The privacy a file states."""
    return None if wire is None else Privacy(**msgspec.structs.asdict(wire))
