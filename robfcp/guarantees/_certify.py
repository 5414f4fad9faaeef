"""What is proved of any threshold, for each number of malicious clients, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from robfcp import certificates
from robfcp._typing import FloatArray, IndexArray
from robfcp.certificates import Assumption, Certificate, CertificatePoint
from robfcp.federation import Federation
from robfcp.guarantees._checks import NOISE_DELTA_FRACTION, check_delta, check_max_malicious
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._tail_bounds import kl_lower
from robfcp.guarantees._worst_case import min_and_max_coverage

# A curve shows all numbers m below K / 2 if the largest of them is at most this, else N_VALUES.
MAX_MALICIOUS_SHOWN_SINGLY = 24
N_VALUES = 16

# Of very many clients it shows fewer, as each takes a pass over all of them.
MAX_CLIENTS_MANY_VALUES = 20_000
N_VALUES_OF_LARGE_ROUND = 8

# Numbers of malicious clients that are tried in each step of a search.
N_VALUES_PER_STEP = 12


def list_assumptions(
    federation: Federation,
    kind: certificates.CertificateKind,
    max_malicious: int | None,
    *,
    max_malicious_estimated: bool = False,
    max_malicious_samples: int | None = None,
    heterogeneity: float | None = None,
    label_shift: float | None = None,
) -> tuple[Assumption, ...]:
    """Return everything that a certificate of one kind rests on, in the order in which it is shown.

    Names that `Certificate` matches are constants of `robfcp.certificates`; the other names are
    only stored and shown.

    Parameters
    ----------
    federation : Federation
        The clients that the certificate speaks of.
    kind : str
        The kind of the certificate.
    max_malicious : int or None
        m; None if only the samples of malicious clients are bounded.
    max_malicious_estimated : bool
        Whether that number was read off the reports.
    max_malicious_samples : int, optional
        The number of samples that malicious clients hold together, if it is bounded.
    heterogeneity : float, optional
        sigma: how far benign clients' CDFs (under a loss: mean losses) are from a common one, if
        that is declared.
    label_shift : float, optional
        How far their CDFs within each class are from a common one, if that is declared.
    """
    assumptions = []
    if max_malicious is not None:
        malicious = certificates.max_malicious_assumption(
            max_malicious, federation.n_clients, max_malicious_estimated=max_malicious_estimated
        )
        assumptions.append(malicious)
    if max_malicious_samples is not None:
        text = f"lying sites hold, and claim, at most {max_malicious_samples} samples together"
        assumptions.append(
            Assumption(certificates.MAX_MALICIOUS_SAMPLES, max_malicious_samples, text)
        )

    text = "who lies or is missing does not depend on the honest samples"
    assumptions.append(Assumption("non_adaptive_corruption", "fixed", text))
    assumptions.append(_sampling_assumption(kind, heterogeneity))
    assumptions.append(_test_distribution_assumption(kind))
    if federation.verification.signatures == "not checked":
        text = "each report comes from the site it names: signatures were not checked"
        assumptions.append(Assumption("client_identity", "claimed", text))
    assumptions.append(_sizes_assumption(federation))

    if heterogeneity is not None:
        if federation.risk is None:
            differences = "scores are distributed alike: their CDFs are within"
        else:
            differences = "losses are alike: their means are within"
        text = f"honest sites' {differences} {heterogeneity:g} of a common one"
        assumptions.append(Assumption(certificates.HETEROGENEITY, heterogeneity, text))
    if label_shift is not None:
        differences = "scores are distributed alike: their CDFs are within"
        text = (
            f"within each class honest sites' {differences} {label_shift:g} of a common one "
            "(label shift, declared)"
        )
        name = certificates.HETEROGENEITY_WITHIN_CLASSES
        assumptions.append(Assumption(name, label_shift, text))
    if federation.has_private_reports:
        text = "honest sites with private reports added the noise that these state"
        assumptions.append(Assumption("noise", federation.n_private, text))
    return tuple(assumptions)


def _sampling_assumption(
    kind: certificates.CertificateKind, heterogeneity: float | None
) -> Assumption:
    """Return what is assumed about the samples within a client, and between clients.

    Pruning compares each client's samples with one distribution, hence they must be identically
    distributed; a marginal certificate needs least.
    """
    if heterogeneity is not None:
        text = "samples within a site are independent and alike, and independent between sites"
        return Assumption(certificates.SAMPLING, "iid", text)
    if kind == "marginal":
        text = "a site's new cases are like its samples (exchangeable), given the other sites"
        return Assumption(certificates.SAMPLING, "exchangeable", text)
    return Assumption(certificates.SAMPLING, *certificates.INDEPENDENCE_ASSUMPTION)


def _test_distribution_assumption(kind: certificates.CertificateKind) -> Assumption:
    """Return what is assumed about new cases."""
    if kind == "label-distribution":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        return Assumption(certificates.TEST_DISTRIBUTION, "given", text)
    text = "new cases come from the honest sites that reported, in proportion to their numbers "
    return Assumption(certificates.TEST_DISTRIBUTION, "n_k", f"{text}of samples")


def _sizes_assumption(federation: Federation) -> Assumption:
    """Return where the clients' numbers of samples come from."""
    sizes = "each site's number of samples"
    if federation.sizes_registered:
        return Assumption("sizes", "registered", f"{sizes} was registered beforehand")
    if not federation.sizes_known:
        return Assumption("sizes", "hidden", f"{sizes} is hidden by noise, which is allowed for")
    return Assumption("sizes", "claimed", f"{sizes} is its own claim; liars may inflate theirs")


def missing_or_rejected_clients(federation: Federation) -> tuple[str, ...]:
    """Return the names of the missing and rejected clients, of whom no certificate speaks.

    They have no valid report and are no clients of the federation. That is not the complement of
    `covered_federation`, which may also leave out clients with valid reports.
    """
    rejected = {rejection.client for rejection in federation.rejected_reports}
    return tuple(sorted({*federation.missing_clients, *rejected}))


def noise_note(federation: Federation) -> str:
    """Return that some reports are private and their noise is allowed for; empty where none is."""
    if not federation.has_private_reports:
        return ""
    return f"noise of {federation.n_private} private reports is allowed for"


def risk_fields(federation: Federation) -> dict[str, Any]:
    """Return the fields of a `Certificate` that name the loss; none where scores are reported."""
    if federation.risk is None:
        return {}
    return {"risk": federation.risk.name, "loss_bound": federation.risk.upper_bound}


def certify_threshold(
    federation: Federation,
    bin_index: int | None,
    max_malicious: int,
    certificate_confidence: float = 0.95,
    *,
    max_malicious_estimated: bool = False,
) -> Certificate:
    """Return the certificate of any threshold, however it was chosen.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    max_malicious : int
        The largest number of malicious clients, stated before the reports were seen.
    certificate_confidence : float, default=0.95
        The confidence of the interval, over the calibration data.
    max_malicious_estimated : bool, default=False
        Whether the number is an estimate; the certificate then says so.

    Returns
    -------
    Certificate
        The interval that holds the benign clients' coverage, and what it rests on.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[91, 9]] * 20)
    >>> certificate = robfcp.guarantees.certify_threshold(federation, bin_index=0, max_malicious=1)
    >>> round(certificate.lower, 3), round(certificate.upper, 3)
    (0.889, 0.928)
    """
    max_malicious = check_max_malicious(max_malicious, federation.n_clients)
    bounds = count_bounds(federation)
    (point,) = certificate_points(bounds, bin_index, [max_malicious], certificate_confidence)
    return certificate_of_point(
        federation,
        bin_index,
        point,
        certificate_confidence,
        max_malicious_estimated=max_malicious_estimated,
    )


def certificate_of_point(
    federation: Federation,
    bin_index: int | None,
    point: CertificatePoint,
    certificate_confidence: float = 0.95,
    *,
    max_malicious_estimated: bool = False,
) -> Certificate:
    """Return the certificate of a threshold whose interval is known.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    point : CertificatePoint
        The number of malicious clients and the interval.
    certificate_confidence : float
        The confidence of the interval, over the calibration data.
    max_malicious_estimated : bool
        Whether the number is an estimate; the certificate then says so.
    """
    note = noise_note(federation)
    if bin_index is None:
        note = certificates.TRIVIAL_SETS
    assumptions = list_assumptions(
        federation,
        "any-threshold",
        point.max_malicious,
        max_malicious_estimated=max_malicious_estimated,
    )
    return Certificate(
        kind="any-threshold",
        lower=point.lower,
        upper=point.upper,
        confidence=certificate_confidence,
        max_malicious=point.max_malicious,
        n_clients=federation.n_clients,
        max_malicious_estimated=max_malicious_estimated,
        assumptions=assumptions,
        n_uncovered_clients=len(missing_or_rejected_clients(federation)),
        note=note,
        **risk_fields(federation),
    )


class CoverageCurve(NamedTuple):
    """What is certified of one threshold, for several numbers of malicious clients.

    Intervals alone; `calibration.CertificateCurve` holds whole certificates.

    Attributes
    ----------
    points : tuple of CertificatePoint
        One for each of the numbers that were asked for, ascending.
    vacuous_from : int or None
        The smallest number for which the certificate is vacuous; None if it never is.
    """

    points: tuple[CertificatePoint, ...]
    vacuous_from: int | None


def certificate_curve(
    bounds: CountBounds,
    bin_index: int | None,
    max_malicious_values: Iterable[int],
    certificate_confidence: float = 0.95,
) -> CoverageCurve:
    """Return what is certified of a threshold for several numbers of malicious clients.

    The search for the first vacuous certificate passes over a few numbers at a time, the requested
    ones among them: nearly all points of the curve are by-products of it.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    max_malicious_values : iterable of int
        The numbers, from 0 to K - 1, in any order; points are returned in rising order.
    certificate_confidence : float
        The confidence of all intervals at once.
    """
    values = sorted(set(max_malicious_values))
    if bin_index is None:
        return CoverageCurve(_points_of_infinite_threshold(values), None)

    points: dict[int, CertificatePoint] = {}
    n_clients = bounds.federation.n_clients

    # Invariant: below `first` no certificate is vacuous, and from `stop` on all are, as what is
    # proved against many malicious clients is proved against fewer.
    first = 0
    stop = n_clients
    while first < stop:
        steps = (stop - 1 - first) * np.linspace(0, 1, N_VALUES_PER_STEP) ** 3
        candidates = {*(first + np.ceil(steps).astype(int)).tolist(), *values}
        tried = sorted(m for m in candidates if first <= m < stop)
        new_points = certificate_points(bounds, bin_index, tried, certificate_confidence)
        points.update(zip(tried, new_points, strict=True))
        for point in new_points:
            if point.is_vacuous:
                stop = point.max_malicious
                break
            first = point.max_malicious + 1

    missing = [m for m in values if m not in points]
    if missing:
        new_points = certificate_points(bounds, bin_index, missing, certificate_confidence)
        points.update(zip(missing, new_points, strict=True))
    first_vacuous = first if first < n_clients else None
    return CoverageCurve(tuple(points[m] for m in values), first_vacuous)


def certificate_points(
    bounds: CountBounds,
    bin_index: int | None,
    max_malicious_values: Iterable[int],
    certificate_confidence: float = 0.95,
) -> tuple[CertificatePoint, ...]:
    """Return the interval of the threshold for each number of malicious clients.

    One event of probability `certificate_confidence` makes all of them true: the interval for m
    holds the one for the true number j <= m, so that m may be read off the reports (docs/theory.md,
    section 9, "True for every number of liars at once").

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    max_malicious_values : iterable of int
        The numbers, from 0 to K - 1, in any order; points are returned in the same order.
    certificate_confidence : float
        The confidence of all intervals at once.
    """
    values = list(max_malicious_values)
    if bin_index is None:
        return _points_of_infinite_threshold(values)
    rising_values = sorted(set(values))
    if not rising_values:
        return ()
    lower, upper = coverage_intervals(
        bounds, np.array([bin_index]), rising_values, 1 - certificate_confidence
    )
    points = {}
    for row, m in enumerate(rising_values):
        points[m] = CertificatePoint(m, lower.item(row, 0), upper.item(row, 0))
    return tuple(points[m] for m in values)


def _points_of_infinite_threshold(values: Iterable[int]) -> tuple[CertificatePoint, ...]:
    """Return the points of a threshold that covers everything, in the order of the values."""
    return tuple(CertificatePoint(m, 1.0, 1.0) for m in values)


def coverage_intervals(
    bounds: CountBounds,
    bin_indices: IndexArray,
    max_malicious_values: Sequence[int],
    delta: float,
) -> tuple[FloatArray, FloatArray]:
    """Return intervals of the benign coverage, at all bins and for all m at once w.p. 1 - delta.

    The lower end is the least p with N_min kl(L_m, p) <= ln(2 H / delta), the upper end likewise
    above U_m (docs/theory.md, section 9, theorem H): a union bound over both ends at all H bins,
    so that the bin may be chosen by the reports. Where reports hold noise a fifth of delta is
    shared by the noise at all bins.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bin_indices : ndarray of shape (E,)
        The bins whose upper edges are the thresholds.
    max_malicious_values : sequence of int
        Rising values of m, from 0 to K - 1.
    delta : float
        The probability to fail, before noise takes its fraction.

    Returns
    -------
    tuple of ndarray of shape (M, E)
        Lower and upper ends, fractions; 0 and 1 where nothing is certified.
    """
    values = np.array(max_malicious_values, dtype=np.int64)
    for m in (int(values.min()), int(values.max())):
        check_max_malicious(m, len(bounds.sizes))

    noise_delta, sampling_delta = bounds.split_delta(check_delta(delta), NOISE_DELTA_FRACTION)
    n_ends = 2 * bounds.n_bins
    if bounds.sizes_known:
        noise_delta_per_end = noise_delta / n_ends
    else:
        # The hidden total is bounded once, with half the probability of an end.
        noise_delta_per_end = noise_delta / (n_ends + 0.5)

    # Where all remaining samples may be noise, nothing is certified.
    n_samples = bounds.min_n_samples(values, noise_delta_per_end / 2)
    has_samples = n_samples >= 1  # min_and_max_coverage requires that of every m
    lower = np.zeros((len(values), len(bin_indices)))
    upper = np.ones((len(values), len(bin_indices)))
    if has_samples.any():
        radius = np.log(n_ends / sampling_delta) / n_samples[has_samples, None]  # (M', 1)
        min_coverage, max_coverage = min_and_max_coverage(
            bounds, bin_indices, values[has_samples], noise_delta_per_end
        )
        # (2, M', E): the upper end of coverage is 1 less the lower end of the miss rate.
        kl_ends = kl_lower(np.stack([min_coverage, 1 - max_coverage]), radius)
        lower[has_samples] = kl_ends[0]
        upper[has_samples] = 1 - kl_ends[1]
    return lower, upper


def vacuous_from(
    bounds: CountBounds, bin_index: int | None, certificate_confidence: float = 0.95
) -> int | None:
    """Return the least number of malicious clients with a vacuous certificate; None if none has.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    certificate_confidence : float
        The confidence of all intervals at once.
    """
    return certificate_curve(bounds, bin_index, (), certificate_confidence).vacuous_from


def certified_max_malicious(n_clients: int, additional: int = 0) -> tuple[int, ...]:
    """Return the numbers of malicious clients that a curve shows, rising.

    All numbers below half the clients if they are few; else some of them, densest at the start,
    where certificates differ most.

    Parameters
    ----------
    n_clients : int
        K.
    additional : int
        A number that is shown too, if it is below K.
    """
    largest = max(0, (n_clients - 1) // 2)
    if largest <= MAX_MALICIOUS_SHOWN_SINGLY:
        values = set(range(largest + 1))
    else:
        n_values = N_VALUES if n_clients <= MAX_CLIENTS_MANY_VALUES else N_VALUES_OF_LARGE_ROUND
        spread = largest * np.linspace(0, 1, n_values) ** 2
        values = {0, 1, 2, *np.round(spread).astype(int).tolist()}
    values.add(min(additional, n_clients - 1))
    return tuple(sorted(values))
