"""The threshold of one client: its peers' for its label distribution, clipped by its samples."""

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

UNSEEN_CLIENT = "this site"  # the name of a client that sent no report


class PeerThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The thresholds that the reports of its peers certify for one client's label distribution.

    Attributes
    ----------
    thresholds : tuple of float
        One for each level, for any label of the next sample; infinite if nothing is certified.
    label_counts : tuple of int
        The numbers of the client's labels by class, as it reported them.
    max_malicious : int
        At most so many of the peers are malicious.
    heterogeneity : float
        How much benign clients may differ within a class.
    max_malicious_given : bool
        Whether `max_malicious` was given before the round; an estimate certifies nothing.
    """

    stored_thresholds: tuple[float | None, ...] = msgspec.field(name="thresholds")
    label_counts: tuple[Annotated[int, Meta(ge=0)], ...]
    max_malicious: Annotated[int, Meta(ge=0)]
    heterogeneity: Annotated[float, Meta(ge=0, le=1)]
    max_malicious_given: bool

    @property
    def thresholds(self) -> tuple[float, ...]:
        """One threshold for each level; infinite where a file has null."""
        return tuple(
            np.inf if threshold is None else threshold for threshold in self.stored_thresholds
        )


def _local_bound_text(local_threshold: float, values: str) -> str:
    """Return what the client's data, or losses, certify of the threshold."""
    if np.isinf(local_threshold):
        return f"this site's own {values} prove nothing: too few samples"
    return f"it is never above what this site's own {values} prove with 97.5% confidence"


@dataclass(frozen=True)
class LocalThreshold:
    """One level at one client: three thresholds, what is certified of each, and the one to use.

    Parameters
    ----------
    coverage : float
        The target coverage, 1 - alpha.
    peer_threshold : float
        The threshold from the peers' reports, for any label of the next sample.
    local_upper : float
        The PAC threshold from the client's samples alone.
    threshold : float
        max(low, min(peer_threshold, local_upper)), where low is the threshold of `marginal_lower`.
    unclipped : float
        max(low, federation), which keeps the marginal guarantee under declared label shift.
    marginal_lower : float
        The marginal coverage of `threshold` whatever any client reports, a/(n+1).
    n_samples : int
        The number of the client's samples.
    mean_set_sizes : tuple of float
        The mean set sizes of federation, own and clipped threshold on the client's samples.
    max_malicious : int, optional
        At most so many peers are malicious; None if nothing is certified from their reports.
    heterogeneity : float
        How much benign clients may differ within a class.
    """

    coverage: float
    peer_threshold: float
    local_upper: float
    threshold: float
    unclipped: float
    marginal_lower: float
    n_samples: int
    mean_set_sizes: tuple[float, float, float]
    max_malicious: int | None
    heterogeneity: float

    @property
    def statements(self) -> tuple[str, ...]:
        """What is certified, one sentence each.

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
            f"{format_lower(self.marginal_lower)} on average",
            _local_bound_text(self.local_upper, "data"),
        )
        if self.max_malicious is None or np.isinf(self.peer_threshold):
            return local_statements

        coverage = format_lower(self.coverage)
        return (
            f"while at most {self.max_malicious} other sites are malicious and benign ones agree "
            "within classes "
            f"up to {self.heterogeneity:g}, {self.unclipped:.4g} (not clipped from above) covers "
            f"at least {coverage} of this site's patients on average",
            f"where the federation's threshold covers {coverage} here, so does the clipped one, "
            "with 97.5% confidence",
            *local_statements,
        )


@dataclass(frozen=True, eq=False)
class LocalCalibration:
    """A calibration with the thresholds of one client; predicts as the calibration does.

    `levels` are the thresholds of each level, `notes` what the client should know.
    """

    client: str
    calibration: Calibration
    levels: tuple[LocalThreshold, ...]
    notes: tuple[str, ...] = ()

    @property
    def threshold(self) -> float | tuple[float, ...]:
        """The clipped threshold; a tuple for several levels."""
        if not self.calibration.has_multiple_levels:
            return self.levels[0].threshold
        return tuple(level.threshold for level in self.levels)

    def predict_set(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        clip: bool = True,
        non_empty: bool = False,
    ) -> BoolArray:
        """Return the prediction sets, (n, C), with the client's threshold; (n, C, L) for L levels.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            The class probabilities.
        rng : int or Generator, optional
            A seed or generator, for randomized scores.
        clip : bool
            Never exceed the PAC threshold of the client; if False the marginal guarantee holds.
        non_empty : bool
            Put the likeliest label into sets that would be empty; coverage can only rise.
        """
        rows = reorder_columns(probabilities, self.calibration.classes)
        thresholds = [level.threshold if clip else level.unclipped for level in self.levels]
        score = self.calibration.classification_score()
        sets = score.prediction_sets(rows, thresholds, rng, non_empty=non_empty)
        if not self.calibration.has_multiple_levels:
            return sets[:, :, 0]
        return sets

    def evaluate(
        self, probabilities: ArrayLike, labels: ArrayLike, *, level: int = 0, **options: Any
    ) -> CoverageEvaluation:
        """Evaluate the client's threshold on fresh labeled samples.

        As `Calibration.evaluate`, whose other options it takes; if no floor is stated, it is the
        coverage that the client's samples certify with 95% confidence.
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
    """The scores of a client's labeled calibration samples.

    Attributes
    ----------
    scores : ndarray of float, shape (n,)
        The scores of the true labels.
    label_scores : ndarray of float, shape (n, C)
        The scores of all labels.
    label_counts : ndarray of int, shape (C,)
        The number of samples of each class.
    """

    scores: FloatArray
    label_scores: FloatArray
    label_counts: IndexArray


def score_samples(
    calibration: Calibration, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
) -> LocalSamples:
    """Score a client's labeled samples by the calibration's score.

    Parameters
    ----------
    calibration : Calibration
        The calibration whose score and classes are used.
    probabilities : array_like, shape (n, C)
        The class probabilities.
    labels : array_like, shape (n,)
        The true classes.
    rng : int or Generator, optional
        A seed or generator, for randomized scores.
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
    """Combine the peers' thresholds for a client's labels with its samples.

    Parameters
    ----------
    client : str
        The client.
    calibration : Calibration
        The calibration of the federation.
    samples : LocalSamples
        The samples of the client.
    peers : PeerThresholds, optional
        What the peers certify, if they certify something.
    """
    problem = _problem_of_peers(peers, samples)
    notes = [problem] if problem else []
    thresholds = (np.inf,) * len(calibration.levels)
    if peers is not None:
        thresholds = peers.thresholds
        if np.inf in thresholds:
            notes.append(
                "the other sites' reports prove nothing for this site's label mix at some level: "
                f"too few hold its classes, or more than {peers.max_malicious} of them disagree "
                "within "
                f"classes by more than {peers.heterogeneity:g}"
            )

    max_malicious = None
    if peers is not None and not problem:
        max_malicious = peers.max_malicious
    heterogeneity = 0.0 if peers is None else peers.heterogeneity

    levels = []
    for level, federation_threshold in zip(calibration.levels, thresholds, strict=True):
        local = local_threshold_range(samples.scores, float(1 - level.coverage))
        clipped = max(local.lower, min(federation_threshold, local.upper))
        set_sizes = (
            _mean_set_size(samples, federation_threshold),
            _mean_set_size(samples, local.upper),
            _mean_set_size(samples, clipped),
        )
        threshold = LocalThreshold(
            coverage=float(level.coverage),
            peer_threshold=federation_threshold,
            local_upper=local.upper,
            threshold=clipped,
            unclipped=max(local.lower, federation_threshold),
            marginal_lower=local.marginal_lower,
            n_samples=local.n_samples,
            mean_set_sizes=set_sizes,
            max_malicious=max_malicious,
            heterogeneity=heterogeneity,
        )
        levels.append(threshold)
    return LocalCalibration(client, calibration, tuple(levels), tuple(notes))


def _problem_of_peers(peers: PeerThresholds | None, samples: LocalSamples) -> str:
    """Return why the peers' thresholds certify nothing for a client's samples; empty if they do."""
    if peers is None:
        return (
            "the letter has no threshold from other sites: they reported no counts by class, or "
            "few did; reports made with --stratify-by-class (stratify_by_class=True) give one"
        )
    if tuple(samples.label_counts) != peers.label_counts:
        return (
            "these are not the labels this site reported: what the other sites prove does not "
            "hold for them; send a new report"
        )
    if not peers.max_malicious_given:
        return (
            "how many lie was estimated, not stated beforehand: what the other sites say proves "
            "nothing; calibrate with a number"
        )
    return ""


def _mean_set_size(samples: LocalSamples, threshold: float) -> float:
    """Return the mean number of labels in the samples' sets with a threshold."""
    set_sizes = (samples.label_scores <= threshold).sum(axis=1)
    return float(set_sizes.mean())


@dataclass(frozen=True)
class LocalRiskThreshold:
    """A mean loss at one client: the federation's lambda, clipped to what its losses allow.

    Parameters
    ----------
    risk : Risk
        The loss.
    target_risk : float
        The mean loss accepted.
    peer_threshold : float
        The lambda of the calibration.
    local_upper : float
        The smallest lambda that the client's losses certify with 97.5% confidence; infinite if
        they certify none.
    threshold : float
        max(low, min(peer_threshold, local_upper)), where low is that of conformal risk control at
        `max_risk`.
    max_risk : float
        The mean loss of `threshold` at this client on average, whatever any client reports:
        `target_risk` and a standard deviation of so many losses.
    n_samples : int
        The number of the client's samples.
    """

    risk: Risk
    target_risk: float
    peer_threshold: float
    local_upper: float
    threshold: float
    max_risk: float
    n_samples: int

    @property
    def statements(self) -> tuple[str, ...]:
        """What is certified, one sentence each."""
        target_loss = format_loss_upper(self.target_risk, self.risk.upper_bound)
        max_loss = format_loss_upper(self.max_risk, self.risk.upper_bound)
        return (
            f"whatever anybody does, {self.threshold:.4g} has a mean {self.risk.name} of at most "
            f"{max_loss} here on average",
            f"where the federation's lambda keeps {target_loss} here, so does this one, with 97.5% "
            "confidence",
            _local_bound_text(self.local_upper, "losses"),
        )

    def predict_multilabel(self, probabilities: ArrayLike) -> BoolArray:
        """Return whether each label is predicted at this client, (n, C): 1 - p at most its lambda.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            A probability for each label, each in [0, 1].
        """
        sets = self.risk.multilabel_sets(probabilities, np.array([self.threshold]))
        return sets[:, :, 0]


def calibrate_local_risk(
    calibration: Calibration, report: Report, level: int = 0
) -> LocalRiskThreshold:
    """Return the lambda of the client whose losses are in the report.

    Of a coarsened report the counts as sent are used, which are never too many at any lambda: what
    is proved then holds too, of larger lambdas than necessary.
    """
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

    coverage = risk_level.coverage  # one minus the mean loss, as a fraction of the largest loss
    local = local_lambda_range(
        report.counts, report.n_samples, risk.resolution, coverage, report.binning.upper_edges
    )
    return LocalRiskThreshold(
        risk=risk,
        target_risk=float(1 - coverage) * risk.upper_bound,
        peer_threshold=risk_level.threshold,
        local_upper=local.upper,
        threshold=max(local.lower, min(risk_level.threshold, local.upper)),
        max_risk=(1 - local.marginal_lower) * risk.upper_bound,
        n_samples=report.n_samples,
    )


def calibrate_unseen_client(
    calibration: Calibration, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
) -> LocalCalibration:
    """Return thresholds for a client that sent no report, from the record and its labeled outputs.

    Parameters and result are as of `ClientFeedback.calibrate_locally`; the reports of the
    calibration must be by class.
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
        max_malicious=calibration.n_malicious,
        heterogeneity=heterogeneity,
        max_malicious_given=calibration.max_malicious is not None,
    )
    return build_local_calibration(UNSEEN_CLIENT, calibration, samples, peers)


def local_coverage_bound(report: Report, threshold: float, confidence: float = 0.95) -> float:
    """Return the coverage that a client's report certifies at any threshold.

    The p with n kl(c/n, p) = ln(2 H/delta) below the fraction c/n: it holds at all H edges at once.
    A threshold between two edges has the bound of the lower one; of several pass the smallest.
    """
    _refuse_noise(report)
    check_fraction("confidence", confidence, "give 0.95, say")
    bin_index = int(np.searchsorted(report.binning.upper_edges, threshold, side="right")) - 1
    if bin_index < 0:
        return 0.0
    bounds = count_bounds(Federation.from_reports([report]))
    lower, _ = coverage_intervals(bounds, np.array([bin_index]), [0], 1 - confidence)
    return float(lower[0, 0])


def _refuse_noise(report: Report) -> None:
    """Refuse a report whose counts of the client's samples are not exact."""
    if report.privacy is not None:
        raise RobfcpError(
            f"{report.client}: privacy: the report holds noise; keep and pass an exact one, "
            "which never leaves the site"
        )
