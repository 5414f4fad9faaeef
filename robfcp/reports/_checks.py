"""The rules about a report's numbers, each with its words.

They are about summaries of the numbers: those of a Python caller come as arrays, those of a file as
lists, and either is summarized by what is fastest for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from robfcp._validation import MAX_SAMPLES
from robfcp.errors import ReportError
from robfcp.privacy import Privacy, noise_bound
from robfcp.reports._class_totals import find_problem_of_totals
from robfcp.reports._coarsening import MAX_MIN_CELL_COUNT, find_cell_below_minimum
from robfcp.scores import Risk

MIN_NOISE_PROBABILITY = 1e-10  # noise that is less likely than this is not taken for noise
REBUILD_HINT = "rebuild the report from the scores"
ALL_LABELS_NOT_PRIVATE = "sizes of sets would tell what the noise hides"
ALL_LABELS_NOT_PRIVATE_HINT = "leave them out of private reports"


IntSequence = Sequence[int] | NDArray[np.int64]


class CountSummary(NamedTuple):
    """What the rules need to know of some counts.

    Attributes
    ----------
    n_counts : int
        How many counts there are, those of 0 among them.
    smallest, largest, total : int
        Of these counts; 0 where there are none.
    """

    n_counts: int
    smallest: int
    largest: int
    total: int


class StratumSummary(NamedTuple):
    """What the rules need to know of counts by class or group.

    Attributes
    ----------
    by : str
        "class" or "group".
    n_strata : int
        C, how many of them there are.
    counts : CountSummary
        The counts that are listed.
    """

    by: str
    n_strata: int
    counts: CountSummary


def summarize_array(counts: NDArray[Any]) -> CountSummary:
    """Return the summary of a vector of integers; a total beyond 2**53 may be rounded."""
    if not counts.size:
        return CountSummary(0, 0, 0, 0)
    total = int(counts.sum(dtype=np.float64))  # integers could overflow
    return CountSummary(counts.size, int(counts.min()), int(counts.max()), total)


def summarize_list(counts: IntSequence, n_counts: int) -> CountSummary:
    """Return the summary of `n_counts` counts, of which those not listed are 0."""
    smallest = min(counts, default=0)
    largest = max(counts, default=0)
    if len(counts) < n_counts:
        smallest = min(smallest, 0)
        largest = max(largest, 0)
    return CountSummary(n_counts, smallest, largest, sum(counts))


def as_count_vector(client: str, field: str, values: Any, n_bins: int) -> NDArray[Any]:
    """Return a fresh vector of integers, one a bin; refuse anything else."""
    try:
        counts = np.array(values)
    except (ValueError, OverflowError):  # ragged lists
        problem = "counts are not a vector of integers"
        raise ReportError(client, field, problem, REBUILD_HINT) from None
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        problem = f"counts are not a vector of integers ({counts.dtype}, {counts.ndim}-d)"
        raise ReportError(client, field, problem, REBUILD_HINT)
    if counts.size != n_bins:
        problem = f"{counts.size} counts do not fit the binning's {n_bins} bins"
        raise ReportError(client, field, problem, REBUILD_HINT)
    return counts


def check_limits(client: str, field: str, counts: CountSummary) -> None:
    """Refuse counts whose sums could leave 64 bits."""
    size = max(counts.largest, counts.total, -counts.smallest, -counts.total)
    if size > MAX_SAMPLES:
        raise ReportError(client, field, f"counts exceed {MAX_SAMPLES} samples", REBUILD_HINT)


def reject_negative_count(client: str, bin_index: int) -> None:
    """Refuse a count below 0 that no noise explains."""
    raise ReportError(client, "counts", f"counts[{bin_index}] is negative", REBUILD_HINT)


def check_not_empty(client: str, counts: CountSummary) -> None:
    """Refuse a report without noise that counts nothing."""
    if counts.smallest == counts.largest == 0:
        raise ReportError(client, "counts", "counts are all zero", REBUILD_HINT)


def check_strata_go_with_scores(client: str, risk: Risk | None) -> None:
    """Refuse counts by class of losses."""
    if risk is not None:
        problem = "counts by class go with scores, not with losses"
        raise ReportError(client, "strata", problem, REBUILD_HINT)


def check_positive_strata(client: str, strata: StratumSummary) -> None:
    """Refuse counts by class below 1 that no noise explains."""
    if strata.counts.n_counts and strata.counts.smallest < 1:
        problem = f"a count by {strata.by} is not positive"
        raise ReportError(client, "strata", problem, REBUILD_HINT)


def _is_whole_number(value: object) -> TypeGuard[int | np.integer[Any]]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_sample_size(client: str, n_samples: object, total: int, counts_per_sample: int) -> int:
    """Return n_k of a report without noise; refuse counts that do not add up to it.

    Parameters
    ----------
    client : str
        Whose report it is.
    n_samples : object
        What the report states; None for the sum of the counts.
    total : int
        What its counts add up to.
    counts_per_sample : int
        How many counts one sample makes; 1 but for losses.
    """
    if n_samples is None and counts_per_sample == 1:
        return total
    if _is_whole_number(n_samples) and counts_per_sample * int(n_samples) == total:
        return int(n_samples)

    problem = f"counts sum to {total} but n_samples says {n_samples!r}"
    if counts_per_sample > 1:
        problem = (
            f"the losses fall by {total} parts, not by {counts_per_sample} for each of "
            f"{n_samples!r} samples"
        )
    raise ReportError(client, "n_samples", problem, "rebuild the report")


def check_min_cell_count(client: str, min_cell_count: object, privacy: Privacy | None) -> int:
    """Return the stated minimum cell count; refuse what is none, or goes with noise.

    Parameters
    ----------
    client : str
        Whose report it is.
    min_cell_count : object
        What the report states.
    privacy : Privacy or None
        The noise of its counts, which are not coarsened.
    """
    is_possible = _is_whole_number(min_cell_count) and 1 <= min_cell_count <= MAX_MIN_CELL_COUNT
    if not is_possible or not _is_whole_number(min_cell_count):
        problem = f"min_cell_count is {min_cell_count!r:.40}, not 1 to {MAX_MIN_CELL_COUNT}"
        raise ReportError(client, "min_cell_count", problem, "use 5, or 1 for exact counts")
    if privacy is not None and min_cell_count != 1:
        problem = "counts with noise are not coarsened"
        raise ReportError(client, "min_cell_count", problem, "state 1 beside privacy")
    return int(min_cell_count)


def check_coarsened_cells(
    client: str, cells: IntSequence, counts: IntSequence, n_bins: int, min_count: int
) -> None:
    """Refuse counts that break the stated minimum cell count.

    Parameters
    ----------
    client : str
        Whose report it is.
    cells, counts : sequence of int
        The cells in use, rising, and what they hold; all positive.
    n_bins : int
        H, the bins of a stratum.
    min_count : int
        The minimum in counts: of losses `counts_per_sample` times that in samples.
    """
    if min_count == 1:
        return
    lower = find_cell_below_minimum(cells, counts, n_bins, min_count)
    if lower is not None:
        cell, count = lower
        problem = (
            f"bin {cell % n_bins} holds {count} counts, which coarsening to cells of at least "
            f"{min_count} does not give"
        )
        raise ReportError(client, "min_cell_count", problem, REBUILD_HINT)


def check_class_totals(
    client: str,
    totals: Sequence[int],
    n_samples: int,
    min_cell_count: int,
    privacy: Privacy | None,
    risk: Risk | None,
) -> None:
    """Refuse class totals that cannot be those of the report.

    Parameters
    ----------
    client : str
        Whose report it is.
    totals : (C,) sequence of int
        The stated totals.
    n_samples, min_cell_count : int
        What the report states besides.
    privacy : Privacy or None
        The noise of its counts, which does not hide totals.
    risk : Risk or None
        The loss that it counts in place of scores.
    """
    problem = find_problem_of_totals(totals, n_samples, min_cell_count)
    if privacy is not None:
        problem = "noise on the counts does not hide them"
    if risk is not None:
        problem = "they go with scores, not with losses"
    if problem:
        raise ReportError(client, "class_totals", f"class totals: {problem}", REBUILD_HINT)


def check_all_labels_allowed(client: str, privacy: Privacy | None, risk: Risk | None) -> None:
    """Refuse the scores of all labels in private reports, and in those of losses."""
    if privacy is not None:
        raise ReportError(
            client, "all_label_counts", ALL_LABELS_NOT_PRIVATE, ALL_LABELS_NOT_PRIVATE_HINT
        )
    if risk is not None:
        problem = "sizes of sets go with scores, not with losses"
        raise ReportError(client, "all_label_counts", problem, REBUILD_HINT)


def check_all_label_counts(client: str, counts: CountSummary, n_samples: int) -> None:
    """Refuse scores of all labels that are not as many for each sample."""
    check_limits(client, "all_label_counts", counts)
    if counts.smallest < 0:
        raise ReportError(client, "all_label_counts", "a count of labels is negative", REBUILD_HINT)
    if counts.total < n_samples or counts.total % n_samples:
        problem = f"{counts.total} labels do not make as many for each of {n_samples} samples"
        raise ReportError(client, "all_label_counts", problem, REBUILD_HINT)


def check_noisy_size(
    client: str,
    privacy: Privacy,
    n_samples: object,
    counts_per_sample: int,
    counts: CountSummary,
    strata: StratumSummary | None,
) -> int:
    """Return n_k of a private report; refuse counts that cannot come from it and the noise.

    Parameters
    ----------
    client : str
        Whose report it is.
    privacy : Privacy
        The noise that the counts are stated to hold.
    n_samples : object
        What the report states.
    counts_per_sample : int
        How many counts one sample makes; 1 but for losses.
    counts : CountSummary
        Of the noisy counts of all H bins.
    strata : StratumSummary or None
        Of noisy counts by class.

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
        return max(1, counts.total)

    if not _is_whole_number(n_samples) or not 1 <= n_samples <= MAX_SAMPLES:
        problem = f"n_samples is {n_samples!r}, not a number of samples"
        raise ReportError(client, "n_samples", problem, REBUILD_HINT)
    size = int(n_samples)
    n_strata = 1 if strata is None else strata.n_strata
    _check_noisy_counts(client, privacy, size, counts_per_sample, counts, n_strata)
    _check_noisy_strata(client, privacy, strata, counts_per_sample, size)
    return size


def _check_noisy_counts(
    client: str,
    privacy: Privacy,
    size: int,
    counts_per_sample: int,
    counts: CountSummary,
    draws_per_bin: int,
) -> None:
    """Refuse a total, or a count, that is farther from its sample size than noise can bring it."""
    noise = privacy.noise_for_counts(counts_per_sample)
    expected_total = counts_per_sample * size

    n_draws = draws_per_bin * counts.n_counts
    slack = noise_bound(((noise, n_draws),), MIN_NOISE_PROBABILITY)
    if abs(counts.total - expected_total) > slack:
        problem = f"counts sum to {counts.total}, which noise cannot make of {size} samples"
        raise ReportError(client, "counts", problem, REBUILD_HINT)

    slack = noise_bound(((noise, draws_per_bin),), MIN_NOISE_PROBABILITY / counts.n_counts)
    if counts.smallest < -slack or counts.largest > expected_total + slack:
        problem = "a count is beyond what the stated noise can make of it"
        raise ReportError(client, "counts", problem, REBUILD_HINT)


def _check_noisy_strata(
    client: str,
    privacy: Privacy,
    strata: StratumSummary | None,
    counts_per_sample: int,
    max_count: float,
) -> None:
    """Refuse a count by class that noise cannot make of anything from 0 to `max_count`."""
    if strata is None or not strata.counts.n_counts:
        return
    counts = strata.counts
    noise = privacy.noise_for_counts(counts_per_sample)
    slack = noise_bound(((noise, 1),), MIN_NOISE_PROBABILITY / counts.n_counts)
    if counts.smallest < -slack or counts.largest > max_count + slack:
        problem = f"a count by {strata.by} is beyond what the stated noise can make of it"
        raise ReportError(client, "strata", problem, REBUILD_HINT)
