"""What privacy adds to a report: noise on every cell, nothing that shows by a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import as_array, as_floats_or_nan
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy, add_noise
from robfcp.reports._strata import StratifiedCounts

MAX_NOISY_CELLS = 100_000
NOISY_RESOLUTION = 360  # noise is added to parts of a loss, so there are fewer


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
        raise RobfcpError("patient_ids: only privacy protects them; pass privacy=")
    ids = as_array("patient_ids", patient_ids)
    if ids.shape != (n_samples,):
        raise RobfcpError(f"patient_ids: need one name a score ({n_samples})")

    samples_of_patients = np.unique(ids, return_counts=True)[1]
    max_samples = int(samples_of_patients.max())
    if max_samples > privacy.max_samples_per_patient:
        raise RobfcpError(
            f"patient_ids: somebody has {max_samples} samples but max_samples_per_patient is "
            f"{privacy.max_samples_per_patient}; drop the surplus or state the larger bound"
        )


def add_noise_to_strata(strata: StratifiedCounts, privacy: Privacy) -> StratifiedCounts:
    """Add noise to every cell, used or not: labels are protected too."""
    counts = strata.dense().reshape(-1)
    if counts.size > MAX_NOISY_CELLS:
        raise RobfcpError(
            f"privacy: {strata.n_strata} x {strata.n_bins} cells would drown in noise; "
            f"use a coarse binning, at most {MAX_NOISY_CELLS} cells"
        )
    cells = np.arange(counts.size)
    noisy = add_noise(counts, privacy)
    return StratifiedCounts(strata.by, strata.names, cells, noisy, strata.n_bins)
