"""A site's own threshold: the federation's for its label mix, clipped by what the site trusts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import Rng, array
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.checking import Check, check, level_of
from robfcp.calibration.local_threshold import LocalThreshold
from robfcp.calibration.others import FromOthers
from robfcp.errors import RobfcpError
from robfcp.guarantees import class_counts, own_interval, stranger_threshold
from robfcp.prediction import predict_sets
from robfcp.scores import ClassificationScore

STRANGER = "this site"  # what a site that sent no report is called


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
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        clip: bool = True,
        non_empty: bool = False,
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
        non_empty
            Put the likeliest label into sets that would be empty; coverage can only rise.

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
        >>> calibration = robfcp.calibrate(reports)
        >>> local = calibration.letter("site-1").at_site(p[1::4], y[1::4])
        >>> local.predict_set([[0.99, 0.01]]).tolist()
        [[True, False]]
        """
        self.calibration.check_classes(probabilities)
        limits = np.array([one.threshold if clip else one.unclipped for one in self.levels])
        score = self.calibration.score_of()
        sets = predict_sets(score, probabilities, limits, rng, non_empty=non_empty)
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
        floor
            The coverage to hold; what the site's own samples prove with 95% confidence if None.
        groups, level, confidence, rng
            As `Calibration.check` takes them.

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
        >>> calibration = robfcp.calibrate(reports)
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
            float(level.coverage),
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
    >>> calibration = robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=1))
    >>> local = at_stranger(calibration, p[7::8], y[7::8])
    >>> local.client, local.levels[0].federation <= 1
    ('this site', True)
    """
    calibration.check_classes(probabilities)
    counts = class_counts(calibration.evidence.federation)
    numbers = array("labels", labels)
    calibration.score_of()(probabilities, labels, rng)  # refuses what are no labels
    sizes = np.bincount(numbers, minlength=len(counts.names))
    m, sigma = calibration.liars, calibration.alike_within_classes
    upper = calibration.evidence.federation.grid.upper
    limits = []
    for level in calibration.levels:
        edge = stranger_threshold(counts, sizes, float(1 - level.coverage), m, sigma)
        limits.append(np.inf if edge is None else float(upper[edge]))
    stated = calibration.liars_stated
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
