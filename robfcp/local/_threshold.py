"""A site's own threshold: the federation's for its label mix, clipped by what the site trusts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from robfcp._probabilities import encode_labels, reorder_columns
from robfcp._typing import BoolArray, FloatArray, IndexArray
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


def _local_bound_text(local_threshold: float, values: str) -> str:
    """What the site's own data, or losses, prove of the threshold."""
    if np.isinf(local_threshold):
        return f"this site's own {values} prove nothing: too few samples"
    return f"it is never above what this site's own {values} prove with 97.5% confidence"


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
        local_statements = (
            f"whatever anybody does, {self.threshold:.4g} covers at least "
            f"{format_lower(self.floor)} on average",
            _local_bound_text(self.own, "data"),
        )
        if self.liars is None or np.isinf(self.federation):
            return local_statements

        wanted = format_lower(self.coverage)
        return (
            f"while at most {self.liars} other sites lie and honest sites agree within classes "
            f"up to {self.alike:g}, {self.unclipped:.4g} (not clipped from above) covers "
            f"at least {wanted} of this site's patients on average",
            f"where the federation's threshold covers {wanted} here, so does the clipped one, "
            "with 97.5% confidence",
            *local_statements,
        )


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
        thresholds = tuple(level.threshold for level in self.levels)
        return thresholds if self.calibration.has_multiple_levels else thresholds[0]

    def predict_set(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        clip: bool = True,
        non_empty: bool = False,
    ) -> BoolArray:
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
        thresholds = [level.threshold if clip else level.unclipped for level in self.levels]
        score = self.calibration.classification_score()
        sets = score.prediction_sets(rows, thresholds, rng, non_empty=non_empty)
        return sets if self.calibration.has_multiple_levels else sets[:, :, 0]

    def evaluate(
        self, probabilities: ArrayLike, labels: ArrayLike, *, level: int = 0, **options: Any
    ) -> CoverageEvaluation:
        """Whether the site's own threshold covers fresh labelled samples as its own data prove.

        As `Calibration.evaluate`, whose other options it takes; the floor is what the site's own
        samples prove with 95% confidence, where none is stated.
        """
        get_level(self.calibration, level)
        return evaluate(
            self.calibration,
            probabilities,
            labels,
            level=level,
            local_threshold=self.levels[level],
            **options,
        )


class LocalSamples(NamedTuple):
    """A site's labelled calibration samples, scored.

    Attributes
    ----------
    scores
        (n,) the scores of the true labels.
    label_scores
        (n, C) the scores of all labels.
    label_counts
        (C,) how many samples each class has.
    """

    scores: FloatArray
    label_scores: FloatArray
    label_counts: IndexArray


def score_samples(
    calibration: Calibration, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
) -> LocalSamples:
    """Score a site's labelled samples by the calibration's score.

    Parameters
    ----------
    calibration
        Whose score and classes are used.
    probabilities
        (n, C) class probabilities.
    labels
        (n,) the true classes.
    rng
        A seed or generator, for randomised scores.
    """
    score = calibration.classification_score()
    true_labels = encode_labels(labels, calibration.classes)
    columns = reorder_columns(probabilities, calibration.classes)
    scores = score(columns, true_labels, rng)
    label_scores = score.score_all_labels(columns, rng)
    label_counts = np.bincount(true_labels, minlength=label_scores.shape[1])
    return LocalSamples(scores, label_scores, label_counts)


def build_local_calibration(
    client: str,
    calibration: Calibration,
    samples: LocalSamples,
    peers: PeerThresholds | None,
) -> LocalCalibration:
    """Combine what the other sites say of a site's labels with its own samples.

    Parameters
    ----------
    client
        The site's name.
    calibration
        The federation's.
    samples
        The site's own.
    peers
        What the other sites prove; None where they say nothing.
    """
    problem = _problem_of_peers(peers, samples)
    notes = [problem] if problem else []
    n_levels = len(calibration.levels)
    thresholds = (np.inf,) * n_levels
    if peers is not None:
        thresholds = peers.thresholds
        if np.inf in thresholds:
            notes.append(
                "the other sites' reports prove nothing for this site's label mix at some level: "
                f"too few hold its classes, or more than {peers.liars} of them disagree within "
                f"classes by more than {peers.alike:g}"
            )

    levels = []
    for level, federation_threshold in zip(calibration.levels, thresholds, strict=True):
        local = local_threshold_range(samples.scores, float(1 - level.coverage))
        clipped = max(local.low, min(federation_threshold, local.high))
        set_sizes = (
            _mean_set_size(samples, federation_threshold),
            _mean_set_size(samples, local.high),
            _mean_set_size(samples, clipped),
        )
        threshold = LocalThreshold(
            coverage=float(level.coverage),
            federation=federation_threshold,
            own=local.high,
            threshold=clipped,
            unclipped=max(local.low, federation_threshold),
            floor=local.marginal_lower,
            n=local.n,
            set_sizes=set_sizes,
            liars=None if peers is None or problem else peers.liars,
            alike=0.0 if peers is None else peers.alike,
        )
        levels.append(threshold)
    return LocalCalibration(client, calibration, tuple(levels), tuple(notes))


def _problem_of_peers(peers: PeerThresholds | None, samples: LocalSamples) -> str:
    """Why what the other sites say proves nothing for a site's samples; empty where it does."""
    if peers is None:
        return "the letter has no threshold from other sites: they kept no labels, or few"
    if tuple(samples.label_counts) != peers.label_counts:
        return (
            "these are not the labels this site reported: what the other sites prove does not "
            "hold for them; send a new report"
        )
    if not peers.stated:
        return (
            "how many lie was estimated, not stated beforehand: what the other sites say proves "
            "nothing; calibrate with a number"
        )
    return ""


def _mean_set_size(samples: LocalSamples, threshold: float) -> float:
    """The mean number of labels in the samples' sets with a threshold."""
    return float((samples.label_scores <= threshold).sum(axis=1).mean())


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
        wanted = format_loss_upper(self.wanted, self.risk.bound)
        most = format_loss_upper(self.most, self.risk.bound)
        return (
            f"whatever anybody does, {self.threshold:.4g} has a mean {self.risk.name} of at most "
            f"{most} here on average",
            f"where the federation's lambda keeps {wanted} here, so does this one, with 97.5% "
            "confidence",
            _local_bound_text(self.own, "losses"),
        )

    def predict_multilabel(self, probabilities: ArrayLike) -> BoolArray:
        """(n, C) whether each label is taken at this site: 1 - p at most its lambda.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1].
        """
        sets = self.risk.multilabel_sets(probabilities, np.array([self.threshold]))
        return sets[:, :, 0]


def calibrate_local_risk(
    calibration: Calibration, report: Report, level: int = 0
) -> LocalRiskThreshold:
    """The lambda of the site whose own losses, exact, are in the report."""
    risk_level = get_level(calibration, level)
    risk = calibration.risk
    _refuse_noise(report)
    if risk is None:
        raise RobfcpError(
            f"{report.client}: risk: the calibration is of no losses; use calibrate_locally"
        )
    if report.risk != risk:
        raise RobfcpError(
            f"{report.client}: risk: the calibration is of the loss {risk.name}; report that"
        )

    coverage = risk_level.coverage  # one minus the mean loss, as a share of the largest loss
    local = local_lambda_range(
        report.counts, report.n_samples, risk.resolution, coverage, report.grid.upper_edges
    )
    return LocalRiskThreshold(
        risk=risk,
        wanted=float(1 - coverage) * risk.bound,
        federation=risk_level.threshold,
        own=local.high,
        threshold=max(local.low, min(risk_level.threshold, local.high)),
        most=(1 - local.marginal_lower) * risk.bound,
        n=report.n_samples,
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
    heterogeneity = calibration.require_record().heterogeneity_within_classes
    samples = score_samples(calibration, probabilities, labels, rng)

    thresholds = []
    for level in calibration.levels:
        bin_index = unseen_client_threshold(
            counts,
            samples.label_counts,
            float(1 - level.coverage),
            calibration.n_malicious,
            heterogeneity,
        )
        thresholds.append(federation.threshold_at(bin_index))
    peers = PeerThresholds(
        stored_thresholds=tuple(thresholds),
        label_counts=tuple(samples.label_counts.tolist()),
        liars=calibration.n_malicious,
        alike=heterogeneity,
        stated=calibration.n_malicious_given,
    )
    return build_local_calibration(UNSEEN_CLIENT, calibration, samples, peers)


def local_coverage_bound(report: Report, threshold: float, confidence: float = 0.95) -> float:
    """What a site's own report proves of its coverage at a threshold, whoever chose that.

    The p with n kl(c/n, p) = ln(2 H/delta) below the share c/n: at all H edges at once. A threshold
    between two edges has the floor of the lower one; of several give the smallest.
    """
    _refuse_noise(report)
    check_fraction("confidence", confidence, "give 0.95, say")
    bin_index = int(np.searchsorted(report.grid.upper_edges, threshold, side="right")) - 1
    if bin_index < 0:
        return 0.0
    bounds = count_bounds(Federation.from_reports([report]))
    lower, _ = coverage_intervals(bounds, np.array([bin_index]), [0], 1 - confidence)
    return float(lower[0, 0])


def _refuse_noise(report: Report) -> None:
    """Refuse a report whose counts say nothing exact about the site's own samples."""
    if report.privacy is not None:
        raise RobfcpError(
            f"{report.client}: privacy: the report holds noise; keep and pass an exact one, "
            "which never leaves the site"
        )
