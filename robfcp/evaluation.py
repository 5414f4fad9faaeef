"""Does a calibration still hold here? Coverage of fresh samples, with exact intervals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import check_labels, encode_labels, reorder_columns
from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import Rng, as_array, check_fraction
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore, Score

if TYPE_CHECKING:
    from robfcp.calibration import Calibration, CoverageLevel
    from robfcp.local import LocalThreshold

# The probability that a floor is too high at any of the clients, shared by them.
PER_CLIENT_TOTAL_DELTA = 0.05
MAX_SAMPLES_SOUGHT = 200_000  # beyond which no count of samples is looked for

EvaluationResult = Literal["ok", "undercoverage", "inconclusive"]


@dataclass(frozen=True)
class CoverageFloor:
    """A floor for coverage, its source in words, and whether it speaks of this very calibration.

    A level that holds on average over calibration data does not: half of all calibrations lie
    below it, so a test against it would blame good ones.
    """

    value: float
    source: str
    is_conditional: bool


def coverage_floor(
    calibration: Calibration,
    level: int = 0,
    min_coverage: float | None = None,
    local_threshold: LocalThreshold | None = None,
) -> CoverageFloor:
    """Return the coverage that fresh samples are held against, and what it comes from.

    It is the one that the caller gives; else what the client's own samples prove of its local
    threshold; else the certificate's lower bound; else 1 - alpha.

    Parameters
    ----------
    calibration : Calibration
        The calibration.
    level : int
        Which of its levels, counted from 0.
    min_coverage : float, optional
        A floor from the caller.
    local_threshold : LocalThreshold, optional
        The client's own threshold, where that is used.
    """
    target = get_level(calibration, level)
    if min_coverage is not None:
        check_fraction("min_coverage", min_coverage, "give 0.85, say")
        return CoverageFloor(float(min_coverage), "stated floor", is_conditional=True)
    if local_threshold is not None:
        return _floor_of_local_threshold(calibration, local_threshold)

    certificate = target.certificate
    if certificate.lower <= 0:
        source = "1 - alpha, as nothing is certified"
        return CoverageFloor(float(target.coverage), source, is_conditional=False)
    if certificate.confidence is None:
        source = "1 - alpha, which holds on average over calibration data"
        return CoverageFloor(float(target.coverage), source, is_conditional=False)

    source = f"certificate's lower end, {certificate.confidence:.4g} confidence"
    if certificate.max_malicious_estimated:
        condition = "nobody lies"
        if certificate.max_malicious:
            condition = f"at most {certificate.max_malicious} lie"
        source += f", if {condition} (estimated)"
    return CoverageFloor(certificate.lower, source, is_conditional=True)


def _floor_of_local_threshold(calibration: Calibration, local: LocalThreshold) -> CoverageFloor:
    """Return what a client's own n samples prove of its local threshold.

    That is never below X_(a), the a-th smallest score, and P(F(X_(a)) < q) <= P(Beta(a, n+1-a) < q)
    whatever anybody does; q is the 0.05/K quantile, so that the floors of all K clients hold
    together with 0.95 confidence.
    """
    from scipy.special import betaincinv

    n = local.n_samples
    a = round(local.marginal_lower * (n + 1))
    delta, joint_confidence = per_client_delta(calibration)
    min_coverage = float(betaincinv(a, n + 1 - a, delta))
    source = f"what the site's own {n} samples prove of its own threshold, {joint_confidence}"
    return CoverageFloor(min_coverage, source, is_conditional=True)


def per_client_delta(calibration: Calibration) -> tuple[float, str]:
    """Return with which probability one client's floor may fail so that all hold, and a text."""
    summary = calibration.summary
    n_clients = summary.n_clients + summary.n_rejected + summary.n_missing
    delta = PER_CLIENT_TOTAL_DELTA / n_clients
    return delta, f"0.95 confidence at all {n_clients} sites together"


def require_conditional_floor(
    calibration: Calibration,
    level: int,
    min_coverage: float | None,
    local_threshold: LocalThreshold | None,
) -> CoverageFloor:
    """Return a floor that holds of this very calibration and that a miss can speak against.

    Parameters
    ----------
    calibration, level, min_coverage, local_threshold
        As `coverage_floor` takes them.

    Raises
    ------
    RobfcpError
        Where the floor holds on average only, and where nothing can be missed.
    """
    lower_bound = coverage_floor(calibration, level, min_coverage, local_threshold)
    if local_threshold is None:
        is_trivial = calibration.levels[level].is_trivial
    else:
        is_trivial = bool(np.isinf(local_threshold.threshold))
    if is_trivial:
        raise RobfcpError("threshold: every set is full, so nothing can be missed; no need to look")
    if not lower_bound.is_conditional:
        raise RobfcpError(
            f"min_coverage: the calibration guarantees {lower_bound.source}; give min_coverage "
            "(--min-coverage) below that level, which this very calibration must hold, or use "
            "PACGuarantee (--guarantee pac)"
        )
    if lower_bound.value >= 1:
        raise RobfcpError("min_coverage: 1 leaves nothing to miss; give a smaller one")
    return lower_bound


def get_level(calibration: Calibration, level: int) -> CoverageLevel:
    """Return one of the calibration's levels, counted from 0."""
    if not 0 <= level < len(calibration.levels):
        raise RobfcpError(f"level: {level} is not 0 to {len(calibration.levels) - 1}; count from 0")
    return calibration.levels[level]


@dataclass(frozen=True)
class CoverageInterval:
    """Coverage of some of the samples, and the exact interval that holds the true one."""

    name: str
    n_samples: int
    n_covered: int
    lower: float
    upper: float

    @property
    def coverage(self) -> float:
        """covered / n."""
        return self.n_covered / self.n_samples


@dataclass(frozen=True)
class CoverageEvaluation:
    """How a calibration covers fresh samples, against what it promises.

    Attributes
    ----------
    overall : CoverageInterval
        All samples.
    classes : tuple of CoverageInterval
        By true class; the intervals of all classes hold together.
    groups : tuple of CoverageInterval
        By group, likewise.
    mean_set_size : float
        Mean number of labels in a set, or mean width of the intervals.
    set_size_counts : dict of int to int
        How many sets have how many labels; empty for intervals.
    min_coverage : CoverageFloor
        What coverage is held against, and where that comes from; it speaks of the mixture, not
        of a class or group.
    interval_confidence : float
        Of each list of intervals.
    result : EvaluationResult
        "ok" where the interval lies above the floor, "undercoverage" where it lies below.
    n_samples_needed : int or None
        The least number of other samples that would tell at this coverage, looked at once; None
        where the answer is there already or 200,000 would not do.
    target_coverage : float
        The coverage that was asked for, which may be far above what is promised.
    """

    overall: CoverageInterval
    classes: tuple[CoverageInterval, ...]
    groups: tuple[CoverageInterval, ...]
    mean_set_size: float
    set_size_counts: dict[int, int]
    min_coverage: CoverageFloor
    interval_confidence: float
    result: EvaluationResult
    n_samples_needed: int | None
    target_coverage: float

    def __str__(self) -> str:
        """How large sets are, or how wide intervals, and the answer."""
        if not self.set_size_counts:
            return f"mean width {self.mean_set_size:.4g}\n{self.line}"
        sizes = ", ".join(f"{size}: {count}" for size, count in self.set_size_counts.items())
        return f"mean set size {self.mean_set_size:.4g} (sets of {sizes})\n{self.line}"

    @property
    def line(self) -> str:
        """The answer in one line."""
        overall = self.overall
        text = (
            f"{self.result}: {overall.coverage:.4f} of {overall.n_samples} samples are covered "
            f"({self.interval_confidence:.4g} interval "
            f"{overall.lower:.4f} to {overall.upper:.4f}), "
            f"promised is {self.min_coverage.value:.4f} ({self.min_coverage.source})"
        )
        if overall.upper < self.target_coverage:
            text += f"; the wanted {self.target_coverage:.4f} is missed"
        elif overall.lower >= self.target_coverage:
            text += f"; the wanted {self.target_coverage:.4f} is reached"
        if self.result == "inconclusive":
            text += f"; {self._needed_text}"
        return text

    @property
    def _needed_text(self) -> str:
        """How many samples would tell."""
        if self.n_samples_needed is None:
            return f"at this coverage more than {MAX_SAMPLES_SOUGHT} samples would be needed"
        return (
            f"{self.n_samples_needed} other samples, looked at once, would tell at this coverage "
            f"(every evaluation may err with probability {1 - self.interval_confidence:.2g}; to "
            "evaluate often, monitor)"
        )


def evaluate(
    calibration: Calibration,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    level: int = 0,
    min_coverage: float | None = None,
    interval_confidence: float = 0.95,
    rng: Rng = None,
    score: Score | None = None,
    local_threshold: LocalThreshold | None = None,
) -> CoverageEvaluation:
    """Return whether fresh labeled samples are covered as certified, with exact intervals.

    Parameters
    ----------
    calibration : Calibration
        What is checked; as a method, the calibration itself.
    predictions : array_like, shape (n, C)
        Class probabilities, or what a regression score takes.
    targets : array_like, shape (n,)
        True labels or values.
    groups : array_like, shape (n,), optional
        Any further split: the night, the ward, the scanner.
    level : int
        Which level of the calibration, counted from 0.
    min_coverage : float, optional
        What to hold coverage against; the certificate's lower end, or 1 - alpha, if None.
    interval_confidence : float
        Of the Clopper-Pearson intervals.
    rng : int, Generator or None
        A seed or generator, for randomized scores.
    score : Score, optional
        The score, where the reports did not name it.
    local_threshold : LocalThreshold, optional
        A site's own threshold in place of the calibration's.

    Returns
    -------
    CoverageEvaluation
        Coverage overall, by class and by group; its `line` is the answer.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, defense="none")
    >>> found = calibration.evaluate([[0.9, 0.1]] * 100, [0] * 96 + [1] * 4, min_coverage=0.93)
    >>> found.overall.n_covered, found.result, found.n_samples_needed
    (96, 'inconclusive', 295)
    """
    check_fraction("interval_confidence", interval_confidence, "give for example 0.95")
    thresholds = thresholds_of(calibration, level, local_threshold)
    resolved_score = calibration.resolve_score(score)
    model_outputs = reorder_columns(predictions, calibration.classes)
    labels = encode_labels(targets, calibration.classes)
    if isinstance(resolved_score, ClassificationScore):
        sets = resolved_score.prediction_sets(model_outputs, thresholds, rng)[:, :, 0]
        is_covered = sets[np.arange(len(sets)), check_labels(labels, sets.shape, field="targets")]
        sizes = sets.sum(axis=1)
    else:
        sizes = _interval_widths(calibration, model_outputs, level, score)
        is_covered = resolved_score(model_outputs, labels) <= thresholds[0]
    if not len(is_covered):
        raise RobfcpError("predictions: there are none; pass at least one sample")

    lower_bound = coverage_floor(calibration, level, min_coverage, local_threshold)
    all_samples = np.full(len(is_covered), "all")
    (overall,) = _coverage_intervals(is_covered, all_samples, interval_confidence)
    result = _result_of(overall, lower_bound, thresholds)
    enough = None
    if result == "inconclusive":
        enough = n_samples_needed(
            overall.n_covered, overall.n_samples, lower_bound.value, interval_confidence
        )

    # Sets have whole numbers of labels and classes to go by; intervals have neither.
    class_intervals: tuple[CoverageInterval, ...] = ()
    set_sizes: dict[int, int] = {}
    if sizes.dtype.kind in "iu":
        class_intervals = _coverage_intervals(is_covered, labels, interval_confidence)
        set_sizes = dict(sorted(Counter(sizes.tolist()).items()))
    group_intervals: tuple[CoverageInterval, ...] = ()
    if groups is not None:
        group_of_sample = as_array("groups", groups)
        group_intervals = _coverage_intervals(is_covered, group_of_sample, interval_confidence)
    return CoverageEvaluation(
        overall=overall,
        classes=class_intervals,
        groups=group_intervals,
        mean_set_size=float(sizes.mean()),
        set_size_counts=set_sizes,
        min_coverage=lower_bound,
        interval_confidence=interval_confidence,
        result=result,
        n_samples_needed=enough,
        target_coverage=float(get_level(calibration, level).coverage),
    )


def _interval_widths(
    calibration: Calibration, predictions: NDArray[Any], level: int, score: Score | None
) -> FloatArray:
    """Return (n,) the widths of the prediction intervals at a level; 0 where they are empty."""
    bounds = calibration.predict_interval(predictions, score=score)
    bounds = bounds.reshape(-1, 2, len(calibration.levels))
    return np.maximum(bounds[:, 1, level] - bounds[:, 0, level], 0)


def _result_of(
    overall: CoverageInterval, lower_bound: CoverageFloor, thresholds: FloatArray
) -> EvaluationResult:
    """Return where the interval lies beside the floor; trivial sets are within any."""
    sets_are_trivial = not np.isfinite(thresholds).any()
    if overall.lower >= lower_bound.value or sets_are_trivial:
        return "ok"
    if overall.upper < lower_bound.value:
        return "undercoverage"
    return "inconclusive"


def thresholds_of(
    calibration: Calibration, level: int, local_threshold: LocalThreshold | None = None
) -> FloatArray:
    """Return (1,) the threshold of a level or a local one, or (C, 1) those of the level's classes.

    Parameters
    ----------
    calibration : Calibration
        The calibration.
    level : int
        Which of its levels, counted from 0.
    local_threshold : LocalThreshold, optional
        The client's own threshold, where that is used.
    """
    if calibration.risk is not None:
        target = calibration.target_text(get_level(calibration, level))
        raise RobfcpError(
            f"risk: the calibration promises {target}, "
            "not coverage; average that loss over fresh samples at the threshold yourself"
        )
    if local_threshold is not None:
        return np.array([local_threshold.threshold])
    coverage_level = get_level(calibration, level)
    if calibration.by == "group":
        raise RobfcpError("groups: thresholds by group are checked group by group; use predict_set")
    if calibration.by is None:
        return np.array([coverage_level.threshold])
    return np.array([[stratum.threshold] for stratum in coverage_level.strata])


def clopper_pearson(n_covered: int, n_samples: int, confidence: float) -> tuple[float, float]:
    """Return the range of p with P(Bin(n, p) >= covered) and P(Bin(n, p) <= covered) > delta / 2.

    That is the interval of Clopper and Pearson (1934), with delta = 1 - confidence.
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = 0.0
    if n_covered > 0:
        low = float(betaincinv(n_covered, n_samples - n_covered + 1, tail))
    high = 1.0
    if n_covered < n_samples:
        high = float(betaincinv(n_covered + 1, n_samples - n_covered, 1 - tail))
    return low, high


def n_samples_needed(
    n_covered: int, n_samples: int, min_coverage: float, confidence: float
) -> int | None:
    """Return the least size >= n whose interval at the coverage covered / n leaves out the floor.

    Hits are rounded towards the floor, so that the size is not too small; None beyond 200,000.
    """
    from scipy.special import betainc

    sizes = np.arange(n_samples, MAX_SAMPLES_SOUGHT)
    if n_covered > min_coverage * n_samples:
        # P(Bin(size, floor) >= hits)
        hits = np.maximum(n_covered * sizes // n_samples, 1)
        p_values = betainc(hits, sizes - hits + 1, min_coverage)
    else:
        # P(Bin(size, floor) <= hits), hits rounded up
        hits = np.minimum(-(-n_covered * sizes // n_samples), sizes - 1)
        p_values = betainc(sizes - hits, hits + 1, 1 - min_coverage)

    is_enough = p_values < (1 - confidence) / 2
    if not is_enough.any():
        return None
    return int(sizes[np.argmax(is_enough)])


def _coverage_intervals(
    is_covered: BoolArray, group_of_each: NDArray[Any], confidence: float
) -> tuple[CoverageInterval, ...]:
    """Return the interval of each group of samples; all of them hold together (Bonferroni).

    Parameters
    ----------
    is_covered : ndarray of bool, shape (n,)
        Which samples are covered.
    group_of_each : ndarray, shape (n,)
        The class or group of each.
    confidence : float
        Of all intervals together.
    """
    if group_of_each.shape != is_covered.shape:
        raise RobfcpError(f"groups: need one group a sample ({len(is_covered)})")
    if group_of_each.dtype.kind not in "iu":
        group_of_each = group_of_each.astype(str)
    names, group_indices = np.unique(group_of_each, return_inverse=True)
    n_samples = np.bincount(group_indices).tolist()
    n_covered = np.bincount(group_indices, is_covered).astype(int).tolist()

    confidence_of_each = 1 - (1 - confidence) / len(names)
    intervals = []
    for name, n, covered in zip(names.tolist(), n_samples, n_covered, strict=True):
        low, high = clopper_pearson(covered, n, confidence_of_each)
        intervals.append(CoverageInterval(str(name), n, covered, low, high))
    return tuple(intervals)
