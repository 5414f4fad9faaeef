"""Does a calibration still hold here? Coverage of fresh samples, with exact intervals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import check_labels, encode_labels, reorder_columns
from robfcp._validation import Rng, as_array, check_fraction
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore, Score

if TYPE_CHECKING:
    from robfcp.calibration import Calibration, CoverageLevel
    from robfcp.local._threshold import LocalThreshold

PER_CLIENT_TOTAL_DELTA = (
    0.05  # the chance that a floor is too high at any of the sites, shared by them
)


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
    floor: float | None = None,
    own: LocalThreshold | None = None,
) -> CoverageFloor:
    """The stated floor, else the certificate's lower end, else 1 - alpha, and which it is.

    Of a site's own threshold it is what its own n samples prove: that is never below X_(a), and
    P(F(X_(a)) < q) <= P(Beta(a, n+1-a) < q) whatever anybody does; q is the 0.05/K quantile, so
    that the floors of all K sites hold together with 0.95 confidence.
    """
    chosen = get_level(calibration, level)
    if floor is not None:
        return CoverageFloor(check_fraction("floor", floor, "give 0.85, say"), "stated floor", True)
    if own is not None:
        from scipy.special import betaincinv

        a = round(own.floor * (own.n + 1))
        each, together = per_client_delta(calibration)
        proved = float(betaincinv(a, own.n + 1 - a, each))
        words = f"what the site's own {own.n} samples prove of its own threshold, {together}"
        return CoverageFloor(proved, words, True)
    certificate = chosen.certificate
    if certificate.lower > 0 and certificate.confidence is not None:
        source = f"certificate's lower end, {certificate.confidence:.4g} confidence"
        if certificate.estimated:
            who = f"at most {certificate.m} lie" if certificate.m else "nobody lies"
            source += f", if {who} (estimated)"
        return CoverageFloor(certificate.lower, source, True)
    words = "1 - alpha, which holds on average over calibration data"
    if certificate.lower <= 0:
        words = "1 - alpha, as nothing is certified"
    return CoverageFloor(float(chosen.coverage), words, False)


def per_client_delta(calibration: Calibration) -> tuple[float, str]:
    """With which chance one site's own floor may fail so that all hold together, and the words."""
    summary = calibration.summary
    sites = summary.n_clients + summary.n_faulty + summary.n_missing
    return PER_CLIENT_TOTAL_DELTA / sites, f"0.95 confidence at all {sites} sites together"


def require_conditional_floor(
    calibration: Calibration, level: int, floor: float | None, own: LocalThreshold | None
) -> CoverageFloor:
    """A promise that this very calibration, or the site's own threshold, makes and that a miss can
    speak against."""
    found = coverage_floor(calibration, level, floor, own)
    if np.isinf(own.threshold) if own else calibration.levels[level].is_trivial:
        raise RobfcpError("threshold: every set is full, so nothing can be missed; no need to look")
    if not found.holds:
        raise RobfcpError(
            f"floor: the calibration promises {found.source}; state a floor (--floor) that this "
            "very calibration must hold, below that level, or promise PACGuarantee (--promise pac)"
        )
    if found.value >= 1:
        raise RobfcpError("floor: a promise of 1 leaves nothing to miss; state a smaller floor")
    return found


def get_level(calibration: Calibration, level: int) -> CoverageLevel:
    """One of the calibration's levels, counted from 0."""
    if not 0 <= level < len(calibration.levels):
        raise RobfcpError(f"level: {level} is not 0 to {len(calibration.levels) - 1}; count from 0")
    return calibration.levels[level]


Verdict = Literal["within", "below", "cannot tell yet"]
MAX_SAMPLES_SOUGHT = 200_000  # beyond which no number of samples is looked for


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
        sizes = ", ".join(f"{size}: {count}" for size, count in self.set_sizes.items())
        words = f"mean set size {self.set_size:.4g} (sets of {sizes})"
        return f"{words if sizes else f'mean width {self.set_size:.4g}'}\n{self.line}"

    @property
    def line(self) -> str:
        """The answer in one line."""
        part, floor = self.overall, self.floor.value
        words = (
            f"{self.verdict}: {part.coverage:.4f} of {part.n} samples are covered "
            f"({self.confidence:.4g} interval {part.low:.4f} to {part.high:.4f}), promised is "
            f"{floor:.4f} ({self.floor.source})"
        )
        if part.high < self.wanted:
            words += f"; the wanted {self.wanted:.4f} is missed"
        elif part.low >= self.wanted:
            words += f"; the wanted {self.wanted:.4f} is reached"
        if self.verdict != "cannot tell yet":
            return words
        if self.enough is None:
            return (
                f"{words}; at this coverage more than {MAX_SAMPLES_SOUGHT} samples would be needed"
            )
        return (
            f"{words}; {self.enough} other samples, looked at once, would tell at this coverage "
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
    """Whether fresh labelled samples are covered as promised, with exact intervals.

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
    limits, rule = (
        thresholds_of(calibration, level, local_threshold),
        calibration.resolve_score(score),
    )
    predictions = reorder_columns(predictions, calibration.classes)
    targets = encode_labels(targets, calibration.classes)
    if isinstance(rule, ClassificationScore):
        sets = rule.prediction_sets(predictions, limits, rng)[:, :, 0]
        hit, sizes = sets[np.arange(len(sets)), check_labels(targets, sets.shape)], sets.sum(axis=1)
    else:
        ends = calibration.predict_interval(predictions, score=score)
        ends = ends.reshape(-1, 2, len(calibration.levels))
        hit = rule(predictions, targets) <= limits[0]
        sizes = np.maximum(ends[:, 1, level] - ends[:, 0, level], 0)
    if not len(hit):
        raise RobfcpError("samples: there are none; pass at least one")
    found = coverage_floor(calibration, level, min_coverage, local_threshold)
    (overall,) = _coverage_intervals(hit, np.full(len(hit), "all"), interval_confidence)
    verdict: Verdict = "within"
    enough = None
    if np.isfinite(limits).any() and overall.low < found.value:
        verdict = "below" if overall.high < found.value else "cannot tell yet"
    if verdict == "cannot tell yet":
        enough = n_samples_needed(overall.covered, overall.n, found.value, interval_confidence)
    whole = sizes.dtype.kind in "iu"
    return CoverageEvaluation(
        overall=overall,
        classes=_coverage_intervals(hit, targets, interval_confidence) if whole else (),
        groups=()
        if groups is None
        else _coverage_intervals(hit, as_array("groups", groups), interval_confidence),
        set_size=float(sizes.mean()),
        set_sizes=dict(sorted(Counter(sizes.tolist()).items())) if whole else {},
        floor=found,
        confidence=interval_confidence,
        verdict=verdict,
        enough=enough,
        wanted=float(get_level(calibration, level).coverage),
    )


def thresholds_of(
    calibration: Calibration, level: int, own: LocalThreshold | None = None
) -> NDArray[np.float64]:
    """(1,) the threshold of a level or the site's own, or (C, 1) those of the level's classes."""
    if calibration.risk is not None:
        target = calibration.target_text(get_level(calibration, level))
        raise RobfcpError(
            f"risk: the calibration promises {target}, "
            "not coverage; average that loss over fresh samples at the threshold yourself"
        )
    if own is not None:
        return np.array([own.threshold])
    chosen = get_level(calibration, level)
    if calibration.by == "group":
        raise RobfcpError("groups: thresholds by group are checked group by group; use predict_set")
    if calibration.by is None:
        return np.array([chosen.threshold])
    return np.array([[one.threshold] for one in chosen.strata])


def clopper_pearson(covered: int, n: int, confidence: float) -> tuple[float, float]:
    """The shares p with P(Bin(n, p) >= covered) and P(Bin(n, p) <= covered) above delta / 2."""
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    low = float(betaincinv(covered, n - covered + 1, tail)) if covered else 0.0
    high = float(betaincinv(covered + 1, n - covered, 1 - tail)) if covered < n else 1.0
    return low, high


def n_samples_needed(covered: int, n: int, floor: float, confidence: float) -> int | None:
    """The least number >= n whose interval at the share covered / n leaves out the floor.

    Hits are rounded towards the floor, so that the number is not too small; None beyond 200,000.
    """
    from scipy.special import betainc

    size = np.arange(n, MAX_SAMPLES_SOUGHT)
    if covered > floor * n:  # P(Bin(size, floor) >= hits)
        hits = np.maximum(covered * size // n, 1)
        chance = betainc(hits, size - hits + 1, floor)
    else:  # P(Bin(size, floor) <= hits)
        hits = np.minimum(-(-covered * size // n), size - 1)
        chance = betainc(size - hits, hits + 1, 1 - floor)
    found = np.flatnonzero(chance < (1 - confidence) / 2)
    return int(size[found[0]]) if found.size else None


def _coverage_intervals(
    hit: NDArray[np.bool_], by: NDArray[Any], confidence: float
) -> tuple[CoverageInterval, ...]:
    """One part a distinct value; each interval has its share of 1 - confidence."""
    if by.shape != hit.shape:
        raise RobfcpError(f"groups: need one group a sample ({len(hit)})")
    values, which = np.unique(by if by.dtype.kind in "iu" else by.astype(str), return_inverse=True)
    numbers, hits = np.bincount(which).tolist(), np.bincount(which, hit).astype(int).tolist()
    each = 1 - (1 - confidence) / len(values)
    return tuple(
        CoverageInterval(str(name), n, covered, *clopper_pearson(covered, n, each))
        for name, n, covered in zip(values.tolist(), numbers, hits, strict=True)
    )
