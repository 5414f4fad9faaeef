"""What privacy adds to a report: noise on every cell, nothing that shows by a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp._validation import MAX_SAMPLES, as_array, as_floats_or_nan
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.privacy import Privacy, add_noise, noise_bound
from robfcp.reports._strata import StratifiedCounts

MIN_NOISE_PROBABILITY = 1e-10  # noise that is less likely than this is not taken for noise
MAX_NOISY_CELLS = 100_000
NOISY_RESOLUTION = 360  # noise is added to parts of a loss, so there are fewer
REBUILD_HINT = "rebuild the report from the scores"


def clip_to_binning(scores: NDArray[Any], binning: Binning) -> FloatArray:
    """Return the scores of a private report, whatever they are, so that none shows by a refusal.

    Scores outside the bins count in the end bins, NaN in the top one. A threshold in the top bin is
    therefore infinite: `Federation.threshold_at`.
    """
    values = as_floats_or_nan(scores)
    values = np.where(np.isnan(values), np.inf, values)
    return np.asarray(np.clip(values, binning.edges[0], binning.edges[-1]))


def clip_losses(losses: ArrayLike, bound: float) -> FloatArray:
    """Return losses within [0, B], the bound in place of NaN, that fall along each row."""
    values = as_floats_or_nan(as_array("losses", losses))
    values = np.clip(np.where(np.isnan(values), bound, values), 0, bound)
    # The largest loss from here on, read from the right.
    return np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]


def clip_multilabel(probabilities: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, BoolArray]:
    """Return probabilities within [0, 1], 0 in place of NaN, and which labels are not 0."""
    values = as_floats_or_nan(as_array("probabilities", probabilities))
    is_true_label = as_floats_or_nan(as_array("labels", labels)) != 0
    return np.clip(np.nan_to_num(values), 0, 1), is_true_label


def check_patient_ids(
    privacy: Privacy | None, n_samples: int, patient_ids: ArrayLike | None
) -> None:
    """Refuse more samples of a patient than the budget allows for, and ids without a budget."""
    if patient_ids is None:
        return
    if privacy is None:
        raise RobfcpError("patients: only privacy protects them; pass privacy=")
    ids = as_array("patients", patient_ids)
    if ids.shape != (n_samples,):
        raise RobfcpError(f"patients: need one name a score ({n_samples})")

    samples_of_patients = np.unique(ids, return_counts=True)[1]
    most = int(samples_of_patients.max())
    if most > privacy.samples_per_patient:
        raise RobfcpError(
            f"patients: somebody has {most} samples but samples_per_patient is "
            f"{privacy.samples_per_patient}; drop the surplus or state the larger bound"
        )


def add_noise_to_strata(strata: StratifiedCounts, privacy: Privacy) -> StratifiedCounts:
    """Add noise to every cell, used or not: labels are protected too."""
    counts = strata.dense().reshape(-1)
    if counts.size > MAX_NOISY_CELLS:
        raise RobfcpError(
            f"privacy: {strata.n_strata} x {strata.n_bins} cells would drown in noise; "
            f"use a coarse grid, at most {MAX_NOISY_CELLS} cells"
        )
    cells = np.arange(counts.size)
    noisy = add_noise(counts, privacy)
    return StratifiedCounts(strata.by, strata.names, cells, noisy, strata.n_bins)


def check_noisy_size(
    client: str,
    privacy: Privacy,
    n_samples: int | None,
    counts: IntArray,
    counts_per_sample: int,
    strata: StratifiedCounts | None,
) -> int:
    """Return n_k of a private report; refuse counts that cannot come from it and the noise.

    Parameters
    ----------
    client : str
        Whose report it is.
    privacy : Privacy
        The noise that the counts are stated to hold.
    n_samples : int or None
        What the report states.
    counts : IntArray
        (H,) noisy counts.
    counts_per_sample : int
        How many counts one sample makes; 1 but for losses.
    strata : StratifiedCounts or None
        Noisy counts by class.

    Returns
    -------
    int
        What is stated; where the budget hides it the noisy total, at least 1.

    Raises
    ------
    ReportError
        Where such counts have a probability below `MIN_NOISE_PROBABILITY`.
    """
    if privacy.protects_sample_size:
        if counts_per_sample > 1:
            problem = "losses need n_samples, which add-remove privacy hides"
            raise ReportError(client, "privacy", problem, REBUILD_HINT)
        if n_samples is not None:
            problem = "n_samples is stated though add-remove privacy hides it"
            raise ReportError(client, "n_samples", problem, REBUILD_HINT)
        _check_noisy_strata(client, privacy, strata, counts_per_sample, np.inf)
        return max(1, int(counts.sum()))

    is_whole = isinstance(n_samples, (int, np.integer)) and not isinstance(n_samples, bool)
    if not is_whole or not 1 <= n_samples <= MAX_SAMPLES:  # type: ignore[operator]
        problem = f"n_samples is {n_samples!r}, not a number of samples"
        raise ReportError(client, "n_samples", problem, REBUILD_HINT)
    size = int(n_samples)  # type: ignore[arg-type]
    _check_noisy_counts(client, privacy, size, counts, counts_per_sample, strata)
    _check_noisy_strata(client, privacy, strata, counts_per_sample, size)
    return size


def _check_noisy_counts(
    client: str,
    privacy: Privacy,
    size: int,
    counts: IntArray,
    counts_per_sample: int,
    strata: StratifiedCounts | None,
) -> None:
    """Refuse a total, or a count, that is farther from its sample size than noise can bring it."""
    noise = privacy.noise_for_counts(counts_per_sample)
    draws_per_bin = 1 if strata is None else strata.n_strata
    expected_total = counts_per_sample * size

    total = int(counts.sum())
    slack = noise_bound(((noise, draws_per_bin * counts.size),), MIN_NOISE_PROBABILITY)
    if abs(total - expected_total) > slack:
        problem = f"counts sum to {total}, which noise cannot make of {size} samples"
        raise ReportError(client, "counts", problem, REBUILD_HINT)

    slack = noise_bound(((noise, draws_per_bin),), MIN_NOISE_PROBABILITY / counts.size)
    if counts.min() < -slack or counts.max() > expected_total + slack:
        problem = "a count is beyond what the stated noise can make of it"
        raise ReportError(client, "counts", problem, REBUILD_HINT)


def _check_noisy_strata(
    client: str,
    privacy: Privacy,
    strata: StratifiedCounts | None,
    counts_per_sample: int,
    max_count: float,
) -> None:
    """Refuse a count by class that noise cannot make of anything from 0 to `max_count`."""
    if strata is None or not strata.counts.size:
        return
    noise = privacy.noise_for_counts(counts_per_sample)
    slack = noise_bound(((noise, 1),), MIN_NOISE_PROBABILITY / strata.counts.size)
    if strata.counts.min() < -slack or strata.counts.max() > max_count + slack:
        problem = f"a count by {strata.by} is beyond what the stated noise can make of it"
        raise ReportError(client, "strata", problem, REBUILD_HINT)
