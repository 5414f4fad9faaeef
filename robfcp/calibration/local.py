"""A site's own threshold: the federation's for its label mix, clipped by what the site trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.check import Check, check
from robfcp.calibration.levels import Level
from robfcp.calibration.promise import level_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, Stratified
from robfcp.grid import Grid
from robfcp.guarantees import (
    MOST_COMPARED,
    at_least,
    class_counts,
    own_interval,
    site_thresholds,
    stranger_threshold,
)
from robfcp.prediction import predict_sets
from robfcp.scores import ClassificationScore, Rng

STRANGER = "this site"  # what a site that sent no report is called


@dataclass(frozen=True)
class FromOthers:
    """What the other sites' reports say of one site.

    Parameters
    ----------
    thresholds
        One a level, for whatever mix the site's next patient makes; infinite where nothing is
        proved.
    label_counts
        The site's own labels by class, as it reported them.
    m
        How many of the others may lie.
    label_shift
        How much honest sites may differ within a class.
    stated
        Whether m was stated beforehand; an estimate proves nothing.
    """

    thresholds: tuple[float, ...]
    label_counts: tuple[int, ...]
    m: int
    label_shift: float
    stated: bool


def covered_at_sites(calibration: Calibration) -> NDArray[np.float64]:
    """(K, L) the share of each site's own reported scores that the calibration covers.

    By class each score is held against its own class's threshold; a site that did not report by
    class, and what a site merged, against the largest.
    """
    federation = calibration.evidence.federation
    found = site_coverage(federation, [level.threshold for level in calibration.levels])
    strata = federation.strata
    if calibration.by is None or strata is None:
        return found
    for place, level in enumerate(calibration.levels):
        covered, sizes = covered_by_stratum(strata, federation.grid, level)
        found[strata.rows, place] = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    return found


def stratum_limits(strata: Stratified, level: Level) -> NDArray[np.float64]:
    """(C,) the threshold that each class or group is held to; the common one without its own."""
    own = {one.name: one.threshold for one in level.strata}
    return np.array([own.get(name, level.threshold) for name in strata.labels])


def covered_by_stratum(
    strata: Stratified, grid: Grid, level: Level
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(R, C) counts at or below each class's threshold, and all counts; what noise left of them."""
    edges = grid.edge_at(stratum_limits(strata, level))
    first = np.arange(strata.n_strata) * strata.n_bins
    ends = np.unique(np.concatenate([first + edges, first + strata.n_bins - 1]))
    merged = np.cumsum(strata.table.merged(ends), axis=1)
    reached = merged[:, np.searchsorted(ends, first + edges)]
    through = merged[:, np.searchsorted(ends, first + strata.n_bins - 1)]
    before = np.concatenate([np.zeros((len(merged), 1), dtype=merged.dtype), through[:, :-1]], 1)
    sizes = np.maximum(through - before, 0)
    return np.clip(reached - before, 0, sizes), sizes


def site_coverage(federation: Federation, thresholds: Sequence[float]) -> NDArray[np.float64]:
    """(K, L) the share of each site's own reported scores at or below each threshold."""
    edges = federation.grid.edge_at(thresholds)
    below = np.stack([federation.below(int(edge)) for edge in edges], axis=1)
    covered = np.clip(below / federation.masses[:, None], 0, 1)
    return np.where(np.isinf(np.asarray(thresholds)), 1.0, covered)


def from_others(
    calibration: Calibration, federation: Federation, chosen: set[str] | None = None
) -> dict[str, FromOthers]:
    """What the others' reports say of each site (or the chosen ones); empty without classes."""
    strata = federation.exact_strata
    if strata is None or strata.by != "class":
        return {}
    if federation.risk is not None or not 2 <= len(strata.rows) <= MOST_COMPARED:
        return {}
    counts = class_counts(federation)
    wanted = [k for k, name in enumerate(counts.ids) if chosen is None or name in chosen]
    m, sigma = calibration.n_malicious, calibration.settings.label_shift or 0.0
    if not wanted or m > len(counts.ids) - 1:
        return {}
    upper = np.append(federation.grid.upper, np.inf)  # edge -1: nothing is proved
    edges = [
        site_thresholds(counts, float(1 - level.confidence_level), m, sigma, wanted)
        for level in calibration.levels
    ]
    return {
        counts.ids[k]: FromOthers(
            tuple(float(upper[found[k]]) for found in edges),
            tuple(counts.sizes[k].tolist()),
            m,
            sigma,
            calibration.settings.malicious != "estimate",
        )
        for k in wanted
    }


@dataclass(frozen=True)
class LocalThreshold:
    """One confidence level at one site: three thresholds, what each proves, and the one to use.

    Parameters
    ----------
    confidence_level
        1 - alpha.
    federation
        From the other sites' reports, for whatever mix the next patient makes.
    own
        The site's own PAC threshold, from its data alone.
    threshold
        max(low, min(federation, own)): never above the own one, never below the floor's.
    unclipped
        max(low, federation), which keeps the marginal promise under declared label shift.
    floor
        What `threshold` covers on average whatever anybody does, a/(n+1).
    n
        The site's samples.
    set_sizes
        Mean set size of federation, own and clipped on the site's samples.
    m
        How many of the others may lie; None where nothing is proved from their reports.
    label_shift
        How much honest sites may differ within a class.
    """

    confidence_level: float
    federation: float
    own: float
    threshold: float
    unclipped: float
    floor: float
    n: int
    set_sizes: tuple[float, float, float]
    m: int | None
    label_shift: float

    @property
    def statements(self) -> tuple[str, ...]:
        """What is proved, one sentence each.

        Examples
        --------
        >>> from robfcp.calibration import LocalThreshold
        >>> sizes = (1.5, 2.0, 1.5)
        >>> local = LocalThreshold(0.9, 0.6, 0.7, 0.6, 0.6, 0.82, 50, sizes, None, 0.0)
        >>> local.statements[0]
        'whatever anybody does, 0.6 covers at least 82% on average'
        """
        wanted = at_least(self.confidence_level)
        found = []
        if self.m is not None and np.isfinite(self.federation):
            found = [
                f"while at most {self.m} other sites lie and honest sites agree within classes "
                f"up to {self.label_shift:g}, {self.unclipped:.4g} (not clipped from above) covers "
                f"at least {wanted} of this site's patients on average",
                f"where the federation's threshold covers {wanted} here, so does the clipped one, "
                "with 97.5% confidence",
            ]
        return (
            *found,
            f"whatever anybody does, {self.threshold:.4g} covers at least {at_least(self.floor)} "
            "on average",
            "it is never above the threshold that this site's own data prove with 97.5% confidence",
        )

    @property
    def rows(self) -> tuple[tuple[str, float, float, str], ...]:
        """Name, threshold, mean set size and what is proved, for a table.

        Examples
        --------
        >>> from robfcp.calibration import LocalThreshold
        >>> sizes = (1.5, 2.0, 1.5)
        >>> local = LocalThreshold(0.9, 0.6, 0.7, 0.6, 0.6, 0.82, 50, sizes, None, 0.0)
        >>> [row[0] for row in local.rows]
        ['federation', 'own data', 'clipped']
        """
        wanted = at_least(self.confidence_level)
        proved = self.m is not None and np.isfinite(self.federation)
        others = f">= {wanted} on average while at most {self.m} others lie, under label shift"
        return (
            ("federation", self.federation, self.set_sizes[0], others if proved else "nothing"),
            (
                "own data",
                self.own,
                self.set_sizes[1],
                f">= {wanted} with 97.5% confidence, whoever lies"
                if np.isfinite(self.own)
                else "nothing: too few samples",
            ),
            (
                "clipped",
                self.threshold,
                self.set_sizes[2],
                f">= {at_least(self.floor)} on average, whoever lies",
            ),
        )


@dataclass(frozen=True, eq=False)
class Localised:
    """A calibration with one site's own thresholds; predicts as the calibration does.

    Parameters
    ----------
    client
        The site.
    calibration
        What it was made from.
    levels
        The thresholds of each confidence level.
    notes
        What the site should know.
    """

    client: str
    calibration: Calibration
    levels: tuple[LocalThreshold, ...]
    notes: tuple[str, ...] = ()

    @property
    def threshold(self) -> float | tuple[float, ...]:
        """The clipped threshold; a tuple for several levels."""
        found = tuple(level.threshold for level in self.levels)
        return found if self.calibration.several else found[0]

    def predict_set(
        self, probabilities: ArrayLike, rng: Rng = None, *, clip: bool = True
    ) -> NDArray[np.bool_]:
        """(n, C) labels at or below this site's threshold; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities.
        rng
            A seed or generator, for randomised scores.
        clip
            Never above the site's own threshold; without it the promise on average is kept.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([0.3, 0.3], 400)
        >>> y = (rng.random(400) < p[:, 1]).astype(int)
        >>> lac = robfcp.LAC()
        >>> reports = [
        ...     robfcp.Report.from_scores(
        ...         f"site-{k}", lac(p[k::4], y[k::4]), score=lac, labels=y[k::4], classes=2
        ...     )
        ...     for k in range(4)
        ... ]
        >>> calibration = robfcp.calibrate(reports, malicious=0)
        >>> local = calibration.letter("site-1").at_site(p[1::4], y[1::4])
        >>> local.predict_set([[0.99, 0.01]]).tolist()
        [[True, False]]
        """
        self.calibration.check_classes(probabilities)
        limits = np.array([one.threshold if clip else one.unclipped for one in self.levels])
        sets = predict_sets(self.calibration.score_of(), probabilities, limits, rng)
        return sets if self.calibration.several else sets[:, :, 0]

    def check(
        self,
        probabilities: ArrayLike,
        labels: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        level: int = 0,
        floor: float | None = None,
        confidence: float = 0.95,
        rng: Rng = None,
    ) -> Check:
        """Whether the site's own threshold covers fresh labelled samples as its own data prove.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities of samples that took no part in the threshold.
        labels
            (n,) their true classes.
        groups
            (n,) any further split: ward, scanner, night.
        level
            Which confidence level, counted from 0.
        floor
            The coverage to hold; what the site's own samples prove with 95% confidence if None.
        confidence
            Of the exact intervals.
        rng
            A seed or generator, for randomised scores.

        Returns
        -------
        Check
            As `Calibration.check` gives it.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([0.3, 0.3], 1000)
        >>> y = (rng.random(1000) < p[:, 1]).astype(int)
        >>> lac = robfcp.LAC()
        >>> reports = [
        ...     robfcp.Report.from_scores(
        ...         f"site-{k}", lac(p[k::5], y[k::5]), score=lac, labels=y[k::5], classes=2
        ...     )
        ...     for k in range(4)
        ... ]
        >>> calibration = robfcp.calibrate(reports, malicious=0)
        >>> local = calibration.letter("site-1").at_site(p[1::5], y[1::5])
        >>> local.check(p[4::5], y[4::5]).verdict
        'within'
        """
        level_of(self.calibration, level)
        return check(
            self.calibration,
            probabilities,
            labels,
            groups=groups,
            level=level,
            floor=floor,
            confidence=confidence,
            rng=rng,
            own=self.levels[level],
        )


def localised(
    client: str,
    calibration: Calibration,
    others: FromOthers | None,
    probabilities: ArrayLike,
    labels: ArrayLike,
    rng: Rng = None,
) -> Localised:
    """The site's thresholds from what the others say and its own labelled outputs."""
    score = calibration.score_of()
    if not isinstance(score, ClassificationScore):
        raise RobfcpError(f"{client}: {score.name} has no classes; a site's own mix needs them")
    calibration.check_classes(probabilities)
    scores = score(probabilities, labels, rng)
    every = score.all_labels(probabilities, rng)
    numbers = array("labels", labels)
    notes: list[str] = []
    if others is None:
        notes.append("the letter has no threshold from other sites: they kept no labels, or few")
    elif tuple(np.bincount(numbers, minlength=every.shape[1])) != others.label_counts:
        notes.append(
            "these are not the labels this site reported: what the other sites prove does not "
            "hold for them; send a new report"
        )
    elif not others.stated:
        notes.append(
            "how many lie was estimated, not stated beforehand: what the other sites say proves "
            "nothing; calibrate with a number"
        )
    m = None if others is None or len(notes) else others.m
    if others is not None and np.inf in others.thresholds:
        notes.append(
            "the other sites' reports prove nothing for this site's label mix at some level: too "
            f"few hold its classes, or more than {others.m} of them disagree within classes by "
            f"more than {others.label_shift:g}"
        )
    found = tuple(
        _one(
            scores,
            every,
            float(level.confidence_level),
            np.inf if others is None else others.thresholds[k],
            m,
            0.0 if others is None else others.label_shift,
        )
        for k, level in enumerate(calibration.levels)
    )
    return Localised(client, calibration, found, tuple(notes))


def at_stranger(
    calibration: Calibration, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
) -> Localised:
    """Thresholds of a site that sent no report, from the evidence and its own labelled outputs.

    Parameters
    ----------
    calibration
        With its evidence: reports by class.
    probabilities
        (n, C) the shared model's class probabilities for the site's calibration samples.
    labels
        (n,) their true classes, as column numbers.
    rng
        A seed or generator, for randomised scores.

    Returns
    -------
    Localised
        As `Letter.at_site` gives it.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from robfcp.calibration import at_stranger
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet([0.3, 0.3], 4000)
    >>> y = (rng.random(4000) < p[:, 1]).astype(int)
    >>> lac = robfcp.LAC()
    >>> reports = [
    ...     robfcp.Report.from_scores(
    ...         f"site-{k}", lac(p[k::8], y[k::8]), score=lac, labels=y[k::8], classes=2
    ...     )
    ...     for k in range(7)
    ... ]
    >>> calibration = robfcp.calibrate(reports, malicious=1)
    >>> local = at_stranger(calibration, p[7::8], y[7::8])
    >>> local.client, local.levels[0].federation <= 1
    ('this site', True)
    """
    calibration.check_classes(probabilities)
    counts = class_counts(calibration.evidence.federation)
    numbers = array("labels", labels)
    calibration.score_of()(probabilities, labels, rng)  # refuses what are no labels
    sizes = np.bincount(numbers, minlength=len(counts.names))
    m, sigma = calibration.n_malicious, calibration.settings.label_shift or 0.0
    upper = calibration.evidence.federation.grid.upper
    limits = []
    for level in calibration.levels:
        edge = stranger_threshold(counts, sizes, float(1 - level.confidence_level), m, sigma)
        limits.append(np.inf if edge is None else float(upper[edge]))
    stated = calibration.settings.malicious != "estimate"
    others = FromOthers(tuple(limits), tuple(sizes.tolist()), m, sigma, stated)
    return localised(STRANGER, calibration, others, probabilities, labels, rng)


def _one(
    scores: NDArray[np.float64],
    every: NDArray[np.float64],
    level: float,
    federation: float,
    m: int | None,
    label_shift: float,
) -> LocalThreshold:
    own = own_interval(scores, 1 - level)
    clipped = max(own.low, min(federation, own.high))
    sizes = [float((every <= limit).sum(axis=1).mean()) for limit in (federation, own.high)]
    return LocalThreshold(
        confidence_level=level,
        federation=federation,
        own=own.high,
        threshold=clipped,
        unclipped=max(own.low, federation),
        floor=own.floor,
        n=own.n,
        set_sizes=(sizes[0], sizes[1], float((every <= clipped).sum(axis=1).mean())),
        m=m,
        label_shift=label_shift,
    )
