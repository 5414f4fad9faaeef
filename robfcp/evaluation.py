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

Verdict = Literal["within", "below", "cannot tell yet"]


@dataclass(frozen=True)
class CoverageFloor:
    """A floor for coverage, its source in words, and whether it speaks of this very calibration.

    A level that holds on average over calibration data does not: half of all calibrations lie
    below it, so a test against it would blame good ones.
    """

    value: float
    source: str
    holds: bool


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
    calibration
        The calibration.
    level
        Which of its levels, counted from 0.
    min_coverage
        A floor from the caller.
    local_threshold
        The client's own threshold, where that is used.
    """
    target = get_level(calibration, level)
    if min_coverage is not None:
        check_fraction("floor", min_coverage, "give 0.85, say")
        return CoverageFloor(float(min_coverage), "stated floor", holds=True)
    if local_threshold is not None:
        return _floor_of_local_threshold(calibration, local_threshold)

    certificate = target.certificate
    if certificate.lower <= 0:
        source = "1 - alpha, as nothing is certified"
        return CoverageFloor(float(target.coverage), source, holds=False)
    if certificate.confidence is None:
        source = "1 - alpha, which holds on average over calibration data"
        return CoverageFloor(float(target.coverage), source, holds=False)

    source = f"certificate's lower end, {certificate.confidence:.4g} confidence"
    if certificate.estimated:
        condition = f"at most {certificate.m} lie" if certificate.m else "nobody lies"
        source += f", if {condition} (estimated)"
    return CoverageFloor(certificate.lower, source, holds=True)


def _floor_of_local_threshold(calibration: Calibration, local: LocalThreshold) -> CoverageFloor:
    """Return what a client's own n samples prove of its local threshold.

    That is never below X_(a), the a-th smallest score, and P(F(X_(a)) < q) <= P(Beta(a, n+1-a) < q)
    whatever anybody does; q is the 0.05/K quantile, so that the floors of all K clients hold
    together with 0.95 confidence.
    """
    from scipy.special import betaincinv

    n = local.n
    a = round(local.floor * (n + 1))
    delta, joint_confidence = per_client_delta(calibration)
    min_coverage = float(betaincinv(a, n + 1 - a, delta))
    source = f"what the site's own {n} samples prove of its own threshold, {joint_confidence}"
    return CoverageFloor(min_coverage, source, holds=True)


def per_client_delta(calibration: Calibration) -> tuple[float, str]:
    """Return with which probability one client's floor may fail so that all hold, and a text."""
    summary = calibration.summary
    n_clients = summary.n_clients + summary.n_faulty + summary.n_missing
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
    floor = coverage_floor(calibration, level, min_coverage, local_threshold)
    if local_threshold is None:
        is_trivial = calibration.levels[level].is_trivial
    else:
        is_trivial = bool(np.isinf(local_threshold.threshold))
    if is_trivial:
        raise RobfcpError("threshold: every set is full, so nothing can be missed; no need to look")
    if not floor.holds:
        raise RobfcpError(
            f"floor: the calibration promises {floor.source}; state a floor (--floor) that this "
            "very calibration must hold, below that level, or promise PACGuarantee (--promise pac)"
        )
    if floor.value >= 1:
        raise RobfcpError("floor: a promise of 1 leaves nothing to miss; state a smaller floor")
    return floor


def get_level(calibration: Calibration, level: int) -> CoverageLevel:
    """Return one of the calibration's levels, counted from 0."""
    if not 0 <= level < len(calibration.levels):
        raise RobfcpError(f"level: {level} is not 0 to {len(calibration.levels) - 1}; count from 0")
    return calibration.levels[level]


@dataclass(frozen=True)
class CoverageInterval:
    """Coverage of some of the samples, and the exact interval that holds the true one."""

    name: str
    n: int
    covered: int
    low: float
    high: float

    @property
    def coverage(self) -> float:
        """covered / n."""
        return self.covered / self.n


@dataclass(frozen=True)
class CoverageEvaluation:
    """How a calibration covers fresh samples, against what it promises.

    Attributes
    ----------
    overall
        All samples.
    classes
        By true class; the intervals of all classes hold together.
    groups
        By group, likewise.
    set_size
        Mean number of labels in a set, or mean width of the intervals.
    set_sizes
        How many sets have how many labels; empty for intervals.
    floor
        What coverage is held against, and where that comes from; it speaks of the mixture, not
        of a class or group.
    confidence
        Of each list of intervals.
    verdict
        "within" where the interval lies above the floor, "below" where it lies below.
    enough
        The least number of other samples that would tell at this coverage, looked at once; None
        where the answer is there already or 200,000 would not do.
    wanted
        The coverage that was asked for, which may be far above what is promised.
    """

    overall: CoverageInterval
    classes: tuple[CoverageInterval, ...]
    groups: tuple[CoverageInterval, ...]
    set_size: float
    set_sizes: dict[int, int]
    floor: CoverageFloor
    confidence: float
    verdict: Verdict
    enough: int | None
    wanted: float

    def __str__(self) -> str:
        """How large sets are, or how wide intervals, and the answer."""
        if not self.set_sizes:
            return f"mean width {self.set_size:.4g}\n{self.line}"
        sizes = ", ".join(f"{size}: {count}" for size, count in self.set_sizes.items())
        return f"mean set size {self.set_size:.4g} (sets of {sizes})\n{self.line}"

    @property
    def line(self) -> str:
        """The answer in one line."""
        overall = self.overall
        text = (
            f"{self.verdict}: {overall.coverage:.4f} of {overall.n} samples are covered "
            f"({self.confidence:.4g} interval {overall.low:.4f} to {overall.high:.4f}), "
            f"promised is {self.floor.value:.4f} ({self.floor.source})"
        )
        if overall.high < self.wanted:
            text += f"; the wanted {self.wanted:.4f} is missed"
        elif overall.low >= self.wanted:
            text += f"; the wanted {self.wanted:.4f} is reached"
        if self.verdict == "cannot tell yet":
            text += f"; {self._needed_text}"
        return text

    @property
    def _needed_text(self) -> str:
        """How many samples would tell."""
        if self.enough is None:
            return f"at this coverage more than {MAX_SAMPLES_SOUGHT} samples would be needed"
        return (
            f"{self.enough} other samples, looked at once, would tell at this coverage "
            f"(every look may err with a chance of {1 - self.confidence:.2g}; to look often, "
            "monitor)"
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
    calibration
        What is checked; as a method, the calibration itself.
    predictions
        (n, C) class probabilities, or what a regression score takes.
    targets
        (n,) true labels or values.
    groups
        (n,) any further split: the night, the ward, the scanner.
    level
        Which level of the calibration, counted from 0.
    min_coverage
        What to hold coverage against; the certificate's lower end, or 1 - alpha, if None.
    interval_confidence
        Of the Clopper-Pearson intervals.
    rng
        A seed or generator, for randomised scores.
    score
        The score, where the reports did not name it.
    local_threshold
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
    >>> found.overall.covered, found.verdict, found.enough
    (96, 'cannot tell yet', 295)
    """
    check_fraction("confidence", interval_confidence, "give 0.95, say")
    thresholds = thresholds_of(calibration, level, local_threshold)
    resolved_score = calibration.resolve_score(score)
    model_outputs = reorder_columns(predictions, calibration.classes)
    labels = encode_labels(targets, calibration.classes)
    if isinstance(resolved_score, ClassificationScore):
        sets = resolved_score.prediction_sets(model_outputs, thresholds, rng)[:, :, 0]
        is_covered = sets[np.arange(len(sets)), check_labels(labels, sets.shape)]
        sizes = sets.sum(axis=1)
    else:
        sizes = _interval_widths(calibration, model_outputs, level, score)
        is_covered = resolved_score(model_outputs, labels) <= thresholds[0]
    if not len(is_covered):
        raise RobfcpError("samples: there are none; pass at least one")

    floor = coverage_floor(calibration, level, min_coverage, local_threshold)
    all_samples = np.full(len(is_covered), "all")
    (overall,) = _coverage_intervals(is_covered, all_samples, interval_confidence)
    verdict = _verdict_of(overall, floor, thresholds)
    enough = None
    if verdict == "cannot tell yet":
        enough = n_samples_needed(overall.covered, overall.n, floor.value, interval_confidence)

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
        set_size=float(sizes.mean()),
        set_sizes=set_sizes,
        floor=floor,
        confidence=interval_confidence,
        verdict=verdict,
        enough=enough,
        wanted=float(get_level(calibration, level).coverage),
    )


def _interval_widths(
    calibration: Calibration, predictions: NDArray[Any], level: int, score: Score | None
) -> FloatArray:
    """Return (n,) the widths of the prediction intervals at a level; 0 where they are empty."""
    bounds = calibration.predict_interval(predictions, score=score)
    bounds = bounds.reshape(-1, 2, len(calibration.levels))
    return np.maximum(bounds[:, 1, level] - bounds[:, 0, level], 0)


def _verdict_of(overall: CoverageInterval, floor: CoverageFloor, thresholds: FloatArray) -> Verdict:
    """Return where the interval lies beside the floor; trivial sets are within any."""
    sets_are_trivial = not np.isfinite(thresholds).any()
    if overall.low >= floor.value or sets_are_trivial:
        return "within"
    if overall.high < floor.value:
        return "below"
    return "cannot tell yet"


def thresholds_of(
    calibration: Calibration, level: int, local_threshold: LocalThreshold | None = None
) -> FloatArray:
    """Return (1,) the threshold of a level or a local one, or (C, 1) those of the level's classes.

    Parameters
    ----------
    calibration
        The calibration.
    level
        Which of its levels, counted from 0.
    local_threshold
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


def clopper_pearson(covered: int, n: int, confidence: float) -> tuple[float, float]:
    """Return the range of p with P(Bin(n, p) >= covered) and P(Bin(n, p) <= covered) > delta / 2.

    That is the interval of Clopper and Pearson (1934), with delta = 1 - confidence.
    """
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = 0.0
    if covered > 0:
        low = float(betaincinv(covered, n - covered + 1, tail))
    high = 1.0
    if covered < n:
        high = float(betaincinv(covered + 1, n - covered, 1 - tail))
    return low, high


def n_samples_needed(covered: int, n: int, floor: float, confidence: float) -> int | None:
    """Return the least size >= n whose interval at the coverage covered / n leaves out the floor.

    Hits are rounded towards the floor, so that the size is not too small; None beyond 200,000.
    """
    from scipy.special import betainc

    sizes = np.arange(n, MAX_SAMPLES_SOUGHT)
    if covered > floor * n:
        # P(Bin(size, floor) >= hits)
        hits = np.maximum(covered * sizes // n, 1)
        p_values = betainc(hits, sizes - hits + 1, floor)
    else:
        # P(Bin(size, floor) <= hits), hits rounded up
        hits = np.minimum(-(-covered * sizes // n), sizes - 1)
        p_values = betainc(sizes - hits, hits + 1, 1 - floor)

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
    is_covered
        (n,) which samples are covered.
    group_of_each
        (n,) the class or group of each.
    confidence
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
