"""The threshold of one level and its certificate: for a whole round, or for each of its strata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import msgspec
import numpy as np

from robfcp._typing import BoolArray, IntArray
from robfcp._validation import abbreviate
from robfcp.calibration._levels import CoverageLevel, StratumThreshold
from robfcp.calibration._request import Request
from robfcp.calibration._strata import StratumFederation, resolve_strata, stratum_federations
from robfcp.certificates import Certificate, CertificatePoint, max_malicious_assumption
from robfcp.defense import Assessment
from robfcp.federation import Federation
from robfcp.guarantees import (
    CountBounds,
    FCPThreshold,
    MarginalGuarantee,
    TrustedInterval,
    certificate_curve,
    certificate_of_point,
    certificate_points,
    certified_max_malicious,
    certify_threshold,
    check_max_malicious,
    count_bounds,
)
from robfcp.reports import OTHER_STRATUM, Report, StratumKind, stratum_labels

# Where there are more strata, the curve of each has only its first points, as each point of each
# stratum takes a pass over its counts.
MAX_STRATA_ALL_POINTS = 25
N_POINTS_OF_MANY_STRATA = 5


@dataclass(frozen=True)
class MaliciousBound:
    """The number of clients that are held to be malicious at most.

    Attributes
    ----------
    max_malicious : int
        The number of the guarantee, else of the defense, else of the excluded clients. It may be as
        large as the number of clients: who certifies against it checks it.
    is_given : bool
        Whether it was given beforehand, rather than read off the reports.
    """

    max_malicious: int
    is_given: bool

    @staticmethod
    def from_request(request: Request, assessment: Assessment) -> MaliciousBound:
        """Return the bound that certificates of a round speak of.

        Parameters
        ----------
        request : Request
            For the number in its guarantee, which comes first.
        assessment : Assessment
            For the number that the defense was given, or found.
        """
        guarantee = request.guarantee
        if guarantee is not None and guarantee.max_malicious is not None:
            return MaliciousBound(guarantee.max_malicious, is_given=True)
        if assessment.n_malicious is not None:
            return MaliciousBound(assessment.n_malicious, assessment.n_malicious_given)
        n_excluded = int((~assessment.benign_mask).sum())
        return MaliciousBound(n_excluded, assessment.n_malicious_given)


def calibrate_level(
    level: Fraction,
    counts: CountBounds,
    request: Request,
    assessment: Assessment,
    bound: MaliciousBound,
) -> CoverageLevel:
    """Return the threshold of one level: for everybody, or for each class or group.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    counts : CountBounds
        The counts of one round.
    request : Request
        What is asked for.
    assessment : Assessment
        The verdict of the defense.
    bound : MaliciousBound
        The number of malicious clients that the certificate speaks of.
    """
    if request.by is None:
        return _calibrate_round(level, counts, request, assessment, bound)
    federation = counts.federation
    return _calibrate_strata(level, federation, request, request.by, assessment, bound)


def _calibrate_round(
    level: Fraction,
    counts: CountBounds,
    request: Request,
    assessment: Assessment,
    bound: MaliciousBound,
) -> CoverageLevel:
    """Return the guarantee's threshold, else the defense's, held by the trusted samples.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    counts : CountBounds
        The counts of the whole round.
    request, assessment, bound
        As `calibrate_level` takes them.
    """
    federation = counts.federation
    confidence = request.certificate_confidence
    trusted_interval = request.trusted_interval(level)
    if request.guarantee is not None:
        # The guarantee clips its threshold to the trusted samples and says so in the certificate.
        guarantee = request.guarantee
        bin_index, certificate = guarantee.threshold_from_bounds(
            counts, level, confidence, trusted_interval
        )

        # The curve is about the clients that the guarantee covers, which need not be all.
        covered = guarantee.covered_federation(federation)
        covered_counts = counts if covered is federation else count_bounds(covered)
        max_malicious_values = certified_max_malicious(covered.n_clients, bound.max_malicious)
        curve = certificate_curve(covered_counts, bin_index, max_malicious_values, confidence)
    else:
        # The defense's threshold knows nothing of trusted samples: it is clipped, and its
        # certificate annotated, here.
        bin_index = assessment.threshold_rule(federation).bin_index(level)
        if trusted_interval is not None:
            bin_index = trusted_interval.clip(bin_index)
        max_malicious = check_max_malicious(bound.max_malicious, federation.n_clients)
        max_malicious_values = certified_max_malicious(federation.n_clients, max_malicious)
        curve = certificate_curve(counts, bin_index, max_malicious_values, confidence)
        certificate = certificate_of_point(
            federation,
            bin_index,
            _point_of(curve.points, max_malicious),
            confidence,
            max_malicious_estimated=not bound.is_given,
        )
        if trusted_interval is not None:
            certificate = trusted_interval.annotate(certificate)

    return CoverageLevel(
        coverage=level,
        threshold=federation.threshold_at(bin_index),
        certificate=certificate,
        certificate_points=curve.points,
        vacuous_from=curve.vacuous_from,
    )


def _calibrate_strata(
    level: Fraction,
    federation: Federation,
    request: Request,
    by: StratumKind,
    assessment: Assessment,
    bound: MaliciousBound,
) -> CoverageLevel:
    """Return the threshold of every class or group, and the largest of them for all others.

    The certificates of all strata hold at once with the confidence that was asked for: each of G
    strata takes 1/G of the probability to fail (Bonferroni). Marginal guarantees need no share, as
    an expectation holds for each stratum by itself.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    federation : Federation
        The whole round, with its strata.
    request : Request
        What is asked for.
    by : {"class", "group"}
        The kind of the strata: `request.by`, which is not None here.
    assessment, bound
        As `calibrate_level` takes them.
    """
    strata = stratum_federations(federation, by, request.clusters)
    confidence = 1 - (1 - request.certificate_confidence) / len(strata)
    trusted_intervals: Mapping[str, TrustedInterval] = {}
    if request.trusted_report is not None:
        trusted_intervals = _trusted_intervals(
            request.trusted_report, by, strata, level, 1 - confidence
        )

    max_points = None
    if len(strata) > MAX_STRATA_ALL_POINTS:
        max_points = N_POINTS_OF_MANY_STRATA
    labels = resolve_strata(federation, by).labels
    clients_merged_some = request.clusters is not None and OTHER_STRATUM in labels

    threshold_of_member: dict[str, StratumThreshold] = {}
    for stratum in strata:
        calibrator = _StratumCalibrator(
            level=level,
            request=request,
            confidence=confidence,
            trusted_interval=trusted_intervals.get(stratum.name),
            bound=bound,
            max_points=max_points,
        )
        threshold = calibrator.calibrate(stratum, assessment)

        # What clients merged may belong to any cluster, whose certificate does not speak of it.
        if clients_merged_some:
            certificate = threshold.certificate.of_reported_classes()
            threshold = replace(threshold, certificate=certificate)
        # The classes of a cluster share its threshold, each under its own name.
        for member in stratum.members:
            threshold_of_member[member] = replace(threshold, name=member)

    # In the order of the labels, which is not that of the clusters.
    thresholds = tuple(threshold_of_member[label] for label in labels if label != OTHER_STRATUM)
    return CoverageLevel(
        coverage=level,
        threshold=max(stratum.threshold for stratum in thresholds),
        certificate=_certificate_of_all_strata(thresholds, federation, request, by, bound),
        strata=thresholds,
    )


@dataclass(frozen=True)
class _StratumCalibrator:
    """Calibrates one stratum at one level.

    Attributes
    ----------
    level : Fraction
        The target coverage.
    request : Request
        For the guarantee.
    confidence : float
        Of the certificate of one stratum: the share of each stratum was taken from the confidence
        of `request` already, which is not to be used here.
    trusted_interval : TrustedInterval or None
        What the trusted samples of the stratum allow, with the same confidence.
    bound : MaliciousBound
        The number of malicious clients that the certificate speaks of.
    max_points : int or None
        How many points the curve has at most, its first ones; None for all.
    """

    level: Fraction
    request: Request
    confidence: float
    trusted_interval: TrustedInterval | None
    bound: MaliciousBound
    max_points: int | None

    def calibrate(self, stratum: StratumFederation, assessment: Assessment) -> StratumThreshold:
        """Return the threshold of one stratum from the clients that hold it.

        Parameters
        ----------
        stratum : StratumFederation
            The stratum.
        assessment : Assessment
            The verdict on the clients of the whole round. A defense's threshold of a stratum is
            FCP's on its benign holders, whatever `assessment.threshold_rule` is.
        """
        holders = stratum.federation()
        counts = count_bounds(holders)
        benign_mask = assessment.benign_mask[holders.rows]  # of the holders, in their order
        max_malicious_values = certified_max_malicious(holders.n_clients, self.bound.max_malicious)
        max_malicious_values = max_malicious_values[: self.max_points]

        malicious_clients_decide = self.bound.max_malicious >= holders.n_clients
        if malicious_clients_decide:
            bin_index = self._bin_of_few_holders(holders, benign_mask)
            certificate = self._certificate_of_few_holders(holders, bin_index)
            points = self._points(counts, bin_index, max_malicious_values)
        elif self.request.guarantee is not None:
            bin_index, certificate = self.request.guarantee.threshold_from_bounds(
                counts, self.level, self.confidence, self.trusted_interval
            )
            points = self._points(counts, bin_index, max_malicious_values)
        else:
            # The certificate needs the point of the bound, which the curve may not show.
            bin_index = self._clip(_fcp_bin(holders, benign_mask, self.level))
            needed_values = {*max_malicious_values, self.bound.max_malicious}
            all_points = self._points(counts, bin_index, sorted(needed_values))
            certificate = self._certify(holders, bin_index, all_points)
            points = tuple(
                point for point in all_points if point.max_malicious in max_malicious_values
            )

        return StratumThreshold(
            name=stratum.name,
            threshold=holders.threshold_at(bin_index),
            certificate=certificate,
            n_clients=holders.n_clients,
            n_samples=int(holders.sample_sizes.sum()),
            certificate_points=points,
        )

    def _points(
        self, counts: CountBounds, bin_index: int | None, max_malicious_values: Sequence[int]
    ) -> tuple[CertificatePoint, ...]:
        """Return the points of the curve; none where nobody holds the stratum.

        Parameters
        ----------
        counts : CountBounds
            The counts of the holders.
        bin_index : int or None
            The bin of the threshold; None for an infinite one.
        max_malicious_values : sequence of int
            The numbers of malicious clients, each below the number of holders if there are any.
        """
        if counts.federation.n_clients == 0:
            return ()
        return certificate_points(counts, bin_index, max_malicious_values, self.confidence)

    def _clip(self, bin_index: int | None) -> int | None:
        """Return the bin within what the trusted samples allow; None for an infinite threshold."""
        if self.trusted_interval is None:
            return bin_index
        return self.trusted_interval.clip(bin_index)

    def _certify(
        self,
        holders: Federation,
        bin_index: int | None,
        points: Sequence[CertificatePoint],
    ) -> Certificate:
        """Return the certificate of the defense's threshold.

        Parameters
        ----------
        holders : Federation
            The clients that hold the stratum, more than `bound.number` of them.
        bin_index : int or None
            The bin of the threshold; None for an infinite one.
        points : sequence of CertificatePoint
            With the one of `bound.number`.
        """
        certificate = certificate_of_point(
            holders,
            bin_index,
            _point_of(points, self.bound.max_malicious),
            self.confidence,
            max_malicious_estimated=not self.bound.is_given,
        )
        if self.trusted_interval is None:
            return certificate
        return self.trusted_interval.annotate(certificate)

    def _bin_of_few_holders(self, holders: Federation, benign_mask: BoolArray) -> int | None:
        """Return the bin where all holders may be malicious: nothing is guaranteed of any.

        Without a guarantee the defense's threshold stands. With one the sets must be full, unless
        trusted samples give the threshold an upper end; an average does not survive that end.

        Parameters
        ----------
        holders : Federation
            The clients that hold the stratum; at most `bound.number` of them, perhaps none.
        benign_mask : ndarray of bool, shape (K,)
            The benign ones among these holders.
        """
        if self.request.guarantee is None:
            return self._clip(_fcp_bin(holders, benign_mask, self.level))
        if self.trusted_interval is not None and isinstance(
            self.request.guarantee, MarginalGuarantee
        ):
            return self.trusted_interval.lower_only().clip(None)
        return self._clip(None)

    def _certificate_of_few_holders(
        self, holders: Federation, bin_index: int | None
    ) -> Certificate:
        """Return the certificate where all holders may be malicious.

        A finite threshold certifies nothing, an infinite one covers every sample.

        Parameters
        ----------
        holders : Federation
            The clients that hold the stratum; at most `bound.number` of them, perhaps none.
        bin_index : int or None
            The bin of the threshold; None for an infinite one.
        """
        lower = 0.0
        if bin_index is None:
            lower = 1.0
        max_malicious = self.bound.max_malicious
        if holders.n_clients > 0:
            # No certificate can be made against as many clients as there are holders. One against
            # none lends what it says of the round; number and interval are those of the point.
            point = CertificatePoint(max_malicious, lower, 1.0)
            certificate = certify_threshold(holders, None, 0, self.confidence)
            certificate = certificate.for_max_malicious(point, self.confidence)
        else:
            # A certificate needs a client to speak of, though nobody holds the stratum.
            certificate = Certificate(
                "any-threshold", lower, 1.0, self.confidence, max_malicious, n_clients=1
            )
        certificate = msgspec.structs.replace(
            certificate,
            note=f"held by {holders.n_clients} sites, so that {max_malicious} liars decide it",
        )
        if self.trusted_interval is None:
            return certificate
        trusted_interval = self.trusted_interval
        if isinstance(self.request.guarantee, MarginalGuarantee):
            trusted_interval = trusted_interval.lower_only()
        return trusted_interval.annotate(certificate)


def _fcp_bin(holders: Federation, benign_mask: BoolArray, level: Fraction) -> int | None:
    """Return the bin of FCP's threshold on the benign holders; None where nobody is benign.

    None also stands for an infinite threshold of benign holders with too few samples.

    Parameters
    ----------
    holders : Federation
        The clients that hold a stratum.
    benign_mask : ndarray of bool, shape (K,)
        The benign ones among these holders.
    level : Fraction
        The target coverage.
    """
    if not benign_mask.any():
        return None
    return FCPThreshold(holders, benign_mask).bin_index(level)


def _point_of(points: Sequence[CertificatePoint], max_malicious: int) -> CertificatePoint:
    """Return the point of one number of malicious clients, which the caller had computed.

    Raises
    ------
    ValueError
        Where it was not: a fault of the program, not of the reports.
    """
    for point in points:
        if point.max_malicious == max_malicious:
            return point
    raise ValueError(f"no point for {max_malicious} malicious clients was computed")


def _certificate_of_all_strata(
    thresholds: Sequence[StratumThreshold],
    federation: Federation,
    request: Request,
    by: StratumKind,
    bound: MaliciousBound,
) -> Certificate:
    """Return what is certified of every stratum: the lowest lower bound among them.

    What is not replaced here is that of the stratum with the lowest lower bound, the first of them.

    Parameters
    ----------
    thresholds : sequence of StratumThreshold
        Of all strata, at least one; the certificates hold at once with `request.confidence`.
    federation : Federation
        The whole round.
    request : Request
        What was asked for.
    by : {"class", "group"}
        The kind of the strata.
    bound : MaliciousBound
        The number of malicious clients that the certificates speak of.
    """
    certificates = [stratum.certificate for stratum in thresholds]
    weakest = min(certificates, key=lambda certificate: certificate.lower)
    n_clients = len(resolve_strata(federation, by).rows)  # that keep strata at all

    # A floor that trusted samples give holds for all strata only if each of them has one.
    floors = [
        certificate.trusted_lower
        for certificate in certificates
        if certificate.trusted_lower is not None
    ]
    weakest_floor = None
    if len(floors) == len(certificates):
        weakest_floor = min(floors)

    # The shares of all strata add up to the confidence asked for; None where coverage holds on
    # average. Trusted samples that may lower a guaranteed threshold take as much of it again.
    confidence = None
    if weakest.confidence is not None:
        confidence = request.certificate_confidence
        if request.trusted_report is not None and request.guarantee is not None:
            confidence = request.certificate_confidence - (1 - request.certificate_confidence)

    # The bound on malicious clients is among all clients that keep strata, not among the holders of
    # the weakest stratum. Assumptions of one kind have one name.
    assumption = max_malicious_assumption(
        bound.max_malicious, n_clients, max_malicious_estimated=not bound.is_given
    )
    assumptions = tuple(
        assumption if candidate.name == assumption.name else candidate
        for candidate in weakest.assumptions
    )

    notes = []
    for protection in ("trivial", "unprotected", "weakly protected"):
        names = [stratum.name for stratum in thresholds if stratum.protection == protection]
        if names:
            notes.append(f"{protection}: {abbreviate(names)}")

    trusted_report = request.trusted_report
    return msgspec.structs.replace(
        weakest,
        trusted_lower=weakest_floor,
        n_trusted_samples=0 if trusted_report is None else int(trusted_report.counts.sum()),
        upper=max(certificate.upper for certificate in certificates),
        confidence=confidence,
        by=by if request.clusters is None else "cluster",
        n_clients=n_clients,
        assumptions=assumptions,
        n_uncovered_clients=0,
        note="; ".join(notes),
    )


def _trusted_intervals(
    trusted_report: Report,
    by: StratumKind,
    strata: Sequence[StratumFederation],
    level: Fraction,
    failure_probability: float,
) -> dict[str, TrustedInterval]:
    """Return what the trusted samples of each stratum allow.

    Strata with too few trusted samples for an upper end share one interval without an upper end,
    from the samples of all of them; if the trusted report keeps no strata, all share it.

    Parameters
    ----------
    trusted_report : Report
        The report of the server's trusted samples, without noise and on the round's binning.
    by : {"class", "group"}
        The kind of the round's strata.
    strata : sequence of StratumFederation
        The strata or clusters of the round.
    level : Fraction
        The target coverage.
    failure_probability : float
        The share of one stratum, for either end of its interval.

    Returns
    -------
    dict of str to TrustedInterval
        By the name of the stratum or cluster; empty where nobody has trusted samples.
    """
    intervals: dict[str, TrustedInterval] = {}
    shared_counts: IntArray = trusted_report.counts

    trusted_strata = trusted_report.strata
    if trusted_strata is not None and trusted_strata.by == by:
        counts_by_label = trusted_strata.dense()  # (C, H), in the order of the report's labels
        labels = stratum_labels(trusted_strata.names)
        row_of_label = {label: row for row, label in enumerate(labels)}
        shared_counts = np.zeros_like(shared_counts)
        for stratum in strata:
            # Labels are matched by name, as the trusted report may keep others than the round.
            rows = [row_of_label[name] for name in stratum.members if name in row_of_label]
            counts = counts_by_label[rows].sum(axis=0)
            interval = TrustedInterval.from_counts(counts, level, failure_probability)
            if interval.upper is None:
                shared_counts = shared_counts + counts
            else:
                intervals[stratum.name] = interval

    # Samples of other classes do not prove coverage of this one, so no average is claimed.
    if shared_counts.any():
        shared = TrustedInterval.from_counts(shared_counts, level, failure_probability)
        note = f"held from below by {shared.n_samples} trusted samples, with those of other classes"
        shared = shared.lower_only()._replace(marginal_lower=None, note=note)
        for stratum in strata:
            intervals.setdefault(stratum.name, shared)
    return intervals
