"""A site's own threshold: the federation's for its label mix, clipped by what the site trusts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import encode_labels, reorder_columns
from robfcp._validation import Rng, check_fraction
from robfcp.calibration import Calibration
from robfcp.certificates import format_loss_upper, format_lower
from robfcp.errors import RobfcpError
from robfcp.evaluation import CoverageEvaluation, evaluate, get_level
from robfcp.federation import Federation
from robfcp.guarantees import (
    class_counts,
    count_bounds,
    coverage_intervals,
    local_lambda_range,
    local_threshold_range,
    unseen_client_threshold,
)
from robfcp.reports import Report
from robfcp.scores import Risk

UNSEEN_CLIENT = "this site"  # what a site that sent no report is called


class PeerThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the other sites' reports prove for one site's own label mix.

    `thresholds`: one a level, for whatever mix the site's next patient makes; infinite where
    nothing is proved. `label_counts`: the site's own labels by class, as it reported them. `liars`:
    how many of the others may lie, and whether that was stated beforehand; an estimate proves
    nothing. `alike`: how much honest sites may differ within a class.
    """

    stored_thresholds: tuple[float | None, ...] = msgspec.field(name="thresholds")
    label_counts: tuple[Annotated[int, Meta(ge=0)], ...]
    liars: Annotated[int, Meta(ge=0)]
    alike: Annotated[float, Meta(ge=0, le=1)]
    stated: bool

    @property
    def thresholds(self) -> tuple[float, ...]:
        """One threshold a level; infinite where a file has null."""
        return tuple(
            np.inf if threshold is None else threshold for threshold in self.stored_thresholds
        )


def _own_words(own: float, what: str) -> str:
    if np.isinf(own):
        return f"this site's own {what} prove nothing: too few samples"
    return f"it is never above what this site's own {what} prove with 97.5% confidence"


@dataclass(frozen=True)
class LocalThreshold:
    """One level at one site: three thresholds, what each proves, and the one to use.

    Parameters
    ----------
    coverage
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
    liars
        How many of the others may lie; None where nothing is proved from their reports.
    alike
        How much honest sites may differ within a class.
    """

    coverage: float
    federation: float
    own: float
    threshold: float
    unclipped: float
    floor: float
    n: int
    set_sizes: tuple[float, float, float]
    liars: int | None
    alike: float

    @property
    def statements(self) -> tuple[str, ...]:
        """What is proved, one sentence each.

        Examples
        --------
        >>> from robfcp.local._threshold import LocalThreshold
        >>> sizes = (1.5, 2.0, 1.5)
        >>> local = LocalThreshold(0.9, 0.6, 0.7, 0.6, 0.6, 0.82, 50, sizes, None, 0.0)
        >>> local.statements[0]
        'whatever anybody does, 0.6 covers at least 82% on average'
        """
        wanted = format_lower(self.coverage)
        found = []
        if self.liars is not None and np.isfinite(self.federation):
            found = [
                f"while at most {self.liars} other sites lie and honest sites agree within classes "
                f"up to {self.alike:g}, {self.unclipped:.4g} (not clipped from above) covers "
                f"at least {wanted} of this site's patients on average",
                f"where the federation's threshold covers {wanted} here, so does the clipped one, "
                "with 97.5% confidence",
            ]
        floor = f"{self.threshold:.4g} covers at least {format_lower(self.floor)} on average"
        return (*found, f"whatever anybody does, {floor}", _own_words(self.own, "data"))


@dataclass(frozen=True, eq=False)
class LocalCalibration:
    """A calibration with one site's own thresholds; predicts as the calibration does.

    `levels` are the thresholds of each level asked for, `remarks` what the site should know.
    """

    client: str
    calibration: Calibration
    levels: tuple[LocalThreshold, ...]
    notes: tuple[str, ...] = ()

    @property
    def threshold(self) -> float | tuple[float, ...]:
        """The clipped threshold; a tuple for several levels."""
        found = tuple(level.threshold for level in self.levels)
        return found if self.calibration.has_multiple_levels else found[0]

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
        """
        rows = reorder_columns(probabilities, self.calibration.classes)
        limits = [one.threshold if clip else one.unclipped for one in self.levels]
        sets = self.calibration.classification_score().prediction_sets(
            rows, limits, rng, non_empty=non_empty
        )
        return sets if self.calibration.has_multiple_levels else sets[:, :, 0]

    def evaluate(
        self, probabilities: ArrayLike, labels: ArrayLike, *, level: int = 0, **options: Any
    ) -> CoverageEvaluation:
        """Whether the site's own threshold covers fresh labelled samples as its own data prove.

        As `Calibration.evaluate`, whose other options it takes; the floor is what the site's own
        samples prove with 95% confidence, where none is stated.
        """
        get_level(self.calibration, level)
        own = self.levels[level]
        return evaluate(
            self.calibration, probabilities, labels, level=level, local_threshold=own, **options
        )


def build_local_calibration(
    client: str,
    calibration: Calibration,
    told: Callable[[NDArray[np.intp]], PeerThresholds | None],
    probabilities: ArrayLike,
    labels: ArrayLike,
    rng: Rng = None,
) -> LocalCalibration:
    """The site's thresholds from what the others say of its labels and its own labelled outputs."""
    score, labels = calibration.classification_score(), encode_labels(labels, calibration.classes)
    probabilities = reorder_columns(probabilities, calibration.classes)
    scores = score(probabilities, labels, rng)
    every = score.score_all_labels(probabilities, rng)
    counts = np.bincount(labels, minlength=every.shape[1])
    others, remarks = told(counts), []
    if others is None:
        remarks.append("the letter has no threshold from other sites: they kept no labels, or few")
    elif tuple(counts) != others.label_counts:
        remarks.append(
            "these are not the labels this site reported: what the other sites prove does not "
            "hold for them; send a new report"
        )
    elif not others.stated:
        remarks.append(
            "how many lie was estimated, not stated beforehand: what the other sites say proves "
            "nothing; calibrate with a number"
        )
    liars = None if others is None or remarks else others.liars
    limits = (np.inf,) * len(calibration.levels) if others is None else others.thresholds
    if others is not None and np.inf in limits:
        remarks.append(
            "the other sites' reports prove nothing for this site's label mix at some level: too "
            f"few hold its classes, or more than {others.liars} of them disagree within classes by "
            f"more than {others.alike:g}"
        )
    levels = []
    for level, limit in zip(calibration.levels, limits, strict=True):
        own = local_threshold_range(scores, float(1 - level.coverage))
        clipped = max(own.low, min(limit, own.high))
        sizes = [float((every <= one).sum(axis=1).mean()) for one in (limit, own.high, clipped)]
        levels.append(
            LocalThreshold(
                coverage=float(level.coverage),
                federation=limit,
                own=own.high,
                threshold=clipped,
                unclipped=max(own.low, limit),
                floor=own.marginal_lower,
                n=own.n,
                set_sizes=(sizes[0], sizes[1], sizes[2]),
                liars=liars,
                alike=0.0 if others is None else others.alike,
            )
        )
    return LocalCalibration(client, calibration, tuple(levels), tuple(remarks))


@dataclass(frozen=True)
class LocalRiskThreshold:
    """A mean loss at one site: the federation's lambda, held between what its own losses allow.

    Parameters
    ----------
    risk
        The loss.
    wanted
        The mean loss accepted.
    federation
        The calibration's lambda.
    own
        The least lambda that the site's own losses prove with 97.5% confidence; infinite if none.
    threshold
        max(low, min(federation, own)), low that of conformal risk control at `most`.
    most
        The mean loss of `threshold` at this site on average, whatever anybody does: `wanted` and a
        standard deviation of so many losses.
    n
        The site's samples.
    """

    risk: Risk
    wanted: float
    federation: float
    own: float
    threshold: float
    most: float
    n: int

    @property
    def statements(self) -> tuple[str, ...]:
        """What is proved, one sentence each."""
        kept, most = (format_loss_upper(x, self.risk.bound) for x in (self.wanted, self.most))
        held = f"{self.threshold:.4g} has a mean {self.risk.name} of at most {most} here on average"
        return (
            f"whatever anybody does, {held}",
            f"where the federation's lambda keeps {kept} here, so does this one, with 97.5% "
            "confidence",
            _own_words(self.own, "losses"),
        )

    def predict_multilabel(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """(n, C) whether each label is taken at this site: 1 - p at most its lambda.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1].
        """
        return self.risk.multilabel_sets(probabilities, np.array([self.threshold]))[:, :, 0]


def calibrate_local_risk(
    calibration: Calibration, report: Report, level: int = 0
) -> LocalRiskThreshold:
    """The lambda of the site whose own losses, exact, are in the report."""
    found, risk = get_level(calibration, level), calibration.risk
    _refuse_noise(report)
    if risk is None or report.risk != risk:
        wanted = (
            "no losses; use calibrate_locally"
            if risk is None
            else f"the loss {risk.name}; report that"
        )
        raise RobfcpError(f"{report.client}: risk: the calibration is of {wanted}")
    n, upper = report.n_samples, report.grid.upper_edges
    own = local_lambda_range(report.counts, n, risk.resolution, found.coverage, upper)
    return LocalRiskThreshold(
        risk=risk,
        wanted=float(1 - found.coverage) * risk.bound,
        federation=found.threshold,
        own=own.high,
        threshold=max(own.low, min(found.threshold, own.high)),
        most=(1 - own.marginal_lower) * risk.bound,
        n=n,
    )


def calibrate_unseen_client(
    calibration: Calibration, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
) -> LocalCalibration:
    """Thresholds of a site that sent no report, from the record and its own labelled outputs.

    Takes and gives what `ClientFeedback.calibrate_locally` does; the calibration's reports must be
    by class.
    """
    federation = calibration.federation
    counts = class_counts(federation)
    liars, alike = (
        calibration.n_malicious,
        calibration.require_record().heterogeneity_within_classes,
    )

    def told(sizes: NDArray[np.intp]) -> PeerThresholds:
        edges = (
            unseen_client_threshold(counts, sizes, float(1 - level.coverage), liars, alike)
            for level in calibration.levels
        )
        limits = tuple(map(federation.threshold_at, edges))
        return PeerThresholds(
            limits, tuple(sizes.tolist()), liars, alike, calibration.n_malicious_given
        )

    return build_local_calibration(UNSEEN_CLIENT, calibration, told, probabilities, labels, rng)


def local_coverage_bound(report: Report, threshold: float, confidence: float = 0.95) -> float:
    """What a site's own report proves of its coverage at a threshold, whoever chose that.

    The p with n kl(c/n, p) = ln(2 H/delta) below the share c/n: at all H edges at once. A threshold
    between two edges has the floor of the lower one; of several give the smallest.
    """
    _refuse_noise(report)
    grid, delta = report.grid, 1 - check_fraction("confidence", confidence, "give 0.95, say")
    edge = int(np.searchsorted(grid.upper_edges, threshold, side="right")) - 1
    if edge < 0:
        return 0.0
    alone = count_bounds(Federation.from_reports([report]))
    low, _ = coverage_intervals(alone, np.array([edge]), [0], delta)
    return float(low[0, 0])


def _refuse_noise(report: Report) -> None:
    if report.privacy is not None:
        raise RobfcpError(
            f"{report.client}: privacy: the report holds noise; keep and pass an exact one, "
            "which never leaves the site"
        )
