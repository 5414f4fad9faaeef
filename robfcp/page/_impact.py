"""The page's first sentence: what would have happened to the benign clients without a defense."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp.calibration import Calibration, CoverageLevel, stratum_federations
from robfcp.diagnosis import MIN_REFERENCE_SCORES
from robfcp.federation import Federation, StratifiedTable
from robfcp.guarantees import FCPThreshold
from robfcp.page._format import capitalize, format_mean_loss

_N_CASES = 1000  # of which the page counts those that would be missed
_DECIMALS = 3  # of the coverages that are compared: smaller differences are no impact


class _Effect(NamedTuple):
    """What would have happened: a clause, and details for a second sentence, if there are any."""

    clause: str
    details: str


def impact_text(calibration: Calibration) -> dict[str, str]:
    """Return what would happen to the benign clients' cases without a defense.

    An estimate: their reported samples against FCP's threshold on all clients together. Empty if no
    more cases are missed than the target allows, and sets do not grow.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.

    Returns
    -------
    dict
        "sentence" is the impact, "details" a second sentence on it.
    """
    level = calibration.levels[0]
    undefended_level = _undefended_level(calibration)
    coverages = benign_coverages(calibration, level, undefended_level)
    coverage, undefended = np.round(coverages, _DECIMALS)

    sets_grow = undefended > coverage
    too_many_missed = undefended < min(coverage, level.coverage)
    if not (sets_grow or too_many_missed):
        return {"sentence": "", "details": ""}

    if calibration.risk is not None:
        loss = format_mean_loss(calibration.risk, coverage)
        undefended_loss = format_mean_loss(calibration.risk, undefended)
        clause = (
            f"the mean {calibration.risk.name} would be about {undefended_loss} instead of {loss}"
        )
        effect = _Effect(clause, "")
    elif too_many_missed:
        effect = _missed_cases(calibration, undefended_level, coverage, undefended)
    else:
        clause = _larger_sets(calibration, undefended_level)
        effect = _Effect(clause, _missed_details(coverage, undefended))

    kind = "unflagged" if calibration.is_guaranteed else "included"
    source = f"estimated from the reports of the {kind} sites, which may be malicious too."
    details = f"{effect.details}; {source}" if effect.details else capitalize(source)
    return {"sentence": f"Without a defense, {effect.clause}.", "details": details}


def _n_missed(coverage: float) -> int:
    """Return how many of 1,000 cases a coverage misses."""
    return round(_N_CASES * (1 - coverage))


def _missed_details(coverage: float, undefended: float) -> str:
    """Return how many cases would be missed without a defense, and how many are."""
    return (
        f"{_n_missed(undefended)} of 1,000 sets would miss the true label instead of "
        f"{_n_missed(coverage)}"
    )


def _missed_cases(
    calibration: Calibration, undefended_level: CoverageLevel, coverage: float, undefended: float
) -> _Effect:
    """Return how many more cases would be missed, and in which class or group most of them."""
    n_more = _n_missed(undefended) - _n_missed(coverage)
    clause = f"about {n_more} more of every 1,000 cases would get a wrong set"
    details = _missed_details(coverage, undefended)
    strata = calibration.federation.strata
    if strata is None:
        return _Effect(clause, details)

    # Missed samples of the benign clients by stratum, as it is and without a defense.
    is_benign = calibration.benign_mask[strata.rows]
    _, covered, sizes = calibration.class_coverage(calibration.levels[0])
    undefended_covered = calibration.class_coverage(undefended_level).covered
    n_samples = sizes[is_benign].sum(axis=0)
    n_missed = n_samples - covered[is_benign].sum(axis=0)
    n_missed_undefended = n_samples - undefended_covered[is_benign].sum(axis=0)
    n_additional = n_missed_undefended - n_missed

    # The highest rate among strata with more misses; small strata need many of them to be named.
    rates = n_missed_undefended / np.maximum(n_samples, MIN_REFERENCE_SCORES)
    worst = int(np.argmax(np.where(n_additional > 0, rates, -1)))
    is_majority = 2 * n_additional[worst] > n_additional.sum()
    adverb = "mostly" if is_majority else "worst"
    name = f"{strata.by} {strata.labels[worst]}"

    n_worst = max(n_samples[worst], 1)
    missed = round(_N_CASES * n_missed[worst] / n_worst)
    missed_undefended = round(_N_CASES * n_missed_undefended[worst] / n_worst)
    return _Effect(
        f"{clause}, {adverb} in {name}",
        f"{details}, in {name} {missed_undefended} instead of {missed}",
    )


def _larger_sets(calibration: Calibration, undefended_level: CoverageLevel) -> str:
    """Return by how much sets would grow, if reports hold the scores of all labels."""
    federation = calibration.federation
    label_counts = federation.all_label_counts
    if label_counts is None or calibration.by is not None:
        return "sets would be wider than needed"

    mean_sizes = mean_sizes_by_bin(federation, label_counts, calibration.benign_mask)
    thresholds = [calibration.levels[0].threshold, undefended_level.threshold]
    size, undefended = mean_sizes[federation.binning.bin_index_of_threshold(thresholds)]
    return f"a set would hold about {undefended:.2f} labels instead of {size:.2f}"


def mean_sizes_by_bin(
    federation: Federation, label_counts: StratifiedTable, benign_mask: BoolArray
) -> FloatArray:
    """Return (H,) the mean number of labels in a set with each threshold, at benign clients.

    Parameters
    ----------
    federation : Federation
        The reports of the round, of K clients.
    label_counts : StratifiedTable
        The counts of all labels' scores, of the clients that reported them.
    benign_mask : (K,) ndarray of bool
        Which clients are benign.
    """
    labels = federation.of_all_labels()
    is_benign = benign_mask[label_counts.rows]
    n_samples = int(labels.sample_sizes[is_benign].sum())
    n_labels = np.cumsum(labels.pooled_midpoints(is_benign))
    return np.asarray(n_labels / max(1, n_samples))


def benign_coverages(calibration: Calibration, *levels: CoverageLevel) -> FloatArray:
    """Return (L,) the fraction of the benign clients' reported samples that each level covers."""
    benign_mask = calibration.benign_mask
    totals = calibration.federation.total_counts[benign_mask]
    coverages = calibration.client_coverage(levels)[benign_mask]
    return np.asarray(totals @ coverages / totals.sum())


def _undefended_level(calibration: Calibration) -> CoverageLevel:
    """Return the first level with FCP's thresholds on all clients together."""
    federation = calibration.federation
    level = calibration.levels[0]
    if calibration.by is None:
        return replace(level, threshold=_fcp_threshold_of_all(federation, level))

    clusters = calibration.require_record().clusters
    threshold_of_member = {}
    for stratum in stratum_federations(federation, calibration.by, clusters):
        threshold = _fcp_threshold_of_all(stratum.federation(), level)
        for member in stratum.members:
            threshold_of_member[member] = threshold
    strata = [
        replace(stratum, threshold=threshold_of_member[stratum.name]) for stratum in level.strata
    ]
    return replace(level, threshold=max(threshold_of_member.values()), strata=tuple(strata))


def _fcp_threshold_of_all(federation: Federation, level: CoverageLevel) -> float:
    """Return FCP's threshold on all clients; infinite where there are none."""
    return fcp_threshold(federation, np.ones(federation.n_clients, dtype=bool), level)


def fcp_threshold(federation: Federation, benign_mask: BoolArray, level: CoverageLevel) -> float:
    """Return FCP's threshold on the benign clients; infinite where a federation has no clients."""
    bin_index = None
    if federation.n_clients > 0:
        bin_index = FCPThreshold(federation, benign_mask).bin_index(level.coverage)
    return federation.threshold_at(bin_index)
