"""What privacy adds to a report: noise on every cell, nothing that shows by a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import MAX_SAMPLES, as_array, as_floats_or_nan
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy, add_noise, noise_bound
from robfcp.reports._strata import StratifiedCounts

if TYPE_CHECKING:
    from robfcp.reports._report import Report

MIN_NOISE_PROBABILITY = (
    1e-10  # noisy counts are refused beyond what their noise exceeds with this chance
)
MAX_NOISY_CELLS = 100_000
NOISY_RESOLUTION = 360  # noise is added to parts of a loss, so there are fewer


def clip_to_binning(scores: NDArray[Any], grid: Binning) -> NDArray[np.float64]:
    """The scores of a private report, whatever they are, so that none shows by a refusal.

    Scores outside the grid count in its end bins, NaN in the top one. A threshold in the top bin is
    therefore infinite: `Federation.threshold_at`.
    """
    values = as_floats_or_nan(scores)
    top = np.where(np.isnan(values), np.inf, values)
    return np.asarray(np.clip(top, grid.edges[0], grid.edges[-1]))


def clip_losses(losses: ArrayLike, bound: float) -> NDArray[np.float64]:
    """The losses within [0, B], the bound where they are none, raised where they would rise."""
    found = as_floats_or_nan(as_array("losses", losses))
    held = np.clip(np.where(np.isnan(found), bound, found), 0, bound)
    return np.maximum.accumulate(held[..., ::-1], axis=-1)[..., ::-1]


def clip_multilabel(
    probabilities: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Probabilities within [0, 1], 0 where they are none; what is no 0 is a true label."""
    p = as_floats_or_nan(as_array("probabilities", probabilities))
    return np.clip(np.nan_to_num(p), 0, 1), as_floats_or_nan(as_array("labels", labels)) != 0


def check_patient_ids(privacy: Privacy | None, n_samples: int, patients: ArrayLike | None) -> None:
    """Refuse more samples of one person than the statement speaks of, or names without one."""
    if patients is None:
        return
    if privacy is None:
        raise RobfcpError("patients: only privacy protects them; pass privacy=")
    names = as_array("patients", patients)
    if names.shape != (n_samples,):
        raise RobfcpError(f"patients: need one name a score ({n_samples})")
    most = int(np.unique(names, return_counts=True)[1].max())
    if most > privacy.samples_per_patient:
        raise RobfcpError(
            f"patients: somebody has {most} samples but samples_per_patient is "
            f"{privacy.samples_per_patient}; drop the surplus or state the larger bound"
        )


def add_noise_to_strata(strata: StratifiedCounts, privacy: Privacy) -> StratifiedCounts:
    """With noise on every cell, used or not: labels are protected too."""
    dense = strata.dense().reshape(-1)
    if dense.size > MAX_NOISY_CELLS:
        raise RobfcpError(
            f"privacy: {strata.n_strata} x {strata.n_bins} cells would drown in noise; "
            f"use a coarse grid, at most {MAX_NOISY_CELLS} cells"
        )
    noisy = add_noise(dense, privacy)
    return StratifiedCounts(strata.by, strata.names, np.arange(dense.size), noisy, strata.n_bins)


def check_noisy_size(report: Report, privacy: Privacy, unit: int) -> int:
    """n_k, refused where the counts cannot come from n_k and the noise.

    Where n_k is hidden it is the noisy total, at least 1.
    """
    counts, n_samples, strata = report.counts, report.n_samples, report.strata
    total, draws = int(counts.sum()), 1 if strata is None else strata.n_strata
    noise, refused = privacy.noise_for_counts(unit), report._rejection
    most: float = np.inf
    size = max(1, total)
    if privacy.protects_sample_size:
        if unit > 1:
            raise refused("privacy", "losses need n_samples, which add-remove privacy hides")
        if n_samples is not None:
            raise refused("n_samples", "n_samples is stated though add-remove privacy hides it")
    else:
        whole = isinstance(n_samples, (int, np.integer)) and not isinstance(n_samples, bool)
        if not whole or not 1 <= n_samples <= MAX_SAMPLES:
            raise refused("n_samples", f"n_samples is {n_samples!r}, not a number of samples")
        most = size = int(n_samples)
        slack = noise_bound(((noise, draws * counts.size),), MIN_NOISE_PROBABILITY)
        if abs(total - unit * size) > slack:
            problem = f"counts sum to {total}, which noise cannot make of {size} samples"
            raise refused("counts", problem)
        slack = noise_bound(((noise, draws),), MIN_NOISE_PROBABILITY / counts.size)
        if counts.min() < -slack or counts.max() > unit * size + slack:
            raise refused("counts", "a count is beyond what the stated noise can make of it")
    if strata is not None and strata.counts.size:
        slack = noise_bound(((noise, 1),), MIN_NOISE_PROBABILITY / strata.counts.size)
        if strata.counts.min() < -slack or strata.counts.max() > most + slack:
            problem = f"a count by {strata.by} is beyond what the stated noise can make of it"
            raise refused("strata", problem)
    return size
