"""What is proved of any threshold, for each number of liars, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from robfcp import certificates
from robfcp.certificates import Assumption, Certificate, CertificatePoint
from robfcp.federation import Federation
from robfcp.guarantees import _worst_case
from robfcp.guarantees._tail_bounds import kl_lower
from robfcp.guarantees._worst_case import FloatArray, IndexArray

MAX_CLIENTS_ALL_COUNTS = 24  # numbers of liars shown one by one


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
    """Everything a certificate of this kind rests on, as data."""
    found, number = list[Assumption](), "each site's number of samples"

    def add(name: str, value: float | str | None, text: str) -> None:
        found.extend([] if value is None else [Assumption(name, value, text)])

    if max_malicious is not None:
        found.append(
            certificates.max_malicious_assumption(
                max_malicious, federation.n_clients, estimated=max_malicious_estimated
            )
        )
    add(
        "held",
        max_malicious_samples,
        f"lying sites hold, and claim, at most {max_malicious_samples} samples together",
    )
    add("corruption", "fixed", "who lies or is missing does not depend on the honest samples")
    if heterogeneity is not None:
        text = "samples within a site are independent and alike, and independent between sites"
        add("samples", "iid", text)
    elif kind == "marginal":
        text = "a site's new cases are like its samples (exchangeable), given the other sites"
        add("samples", "exchangeable", text)
    else:
        add("samples", *certificates.INDEPENDENCE_ASSUMPTION)
    if kind == "mix":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        add("mixture", "stated", text)
    else:
        text = "new cases come from the honest sites that reported, in proportion to their numbers "
        add("mixture", "n_k", f"{text}of samples")
    if federation.verification.signatures == "not checked":
        text = "each report comes from the site it names: signatures were not checked"
        add("identity", "claimed", text)
    if federation.sizes_registered:
        add("sizes", "registered", f"{number} was registered beforehand")
    elif not federation.sizes_known:
        add("sizes", "hidden", f"{number} is hidden by noise, which is allowed for")
    else:
        add("sizes", "claimed", f"{number} is its own claim; liars may inflate theirs")
    scores = "scores are distributed alike: their CDFs are within"
    means = scores if federation.risk is None else "losses are alike: their means are within"
    add("alike", heterogeneity, f"honest sites' {means} {heterogeneity or 0:g} of a common one")
    text = f"within each class honest sites' {scores} {label_shift or 0:g} of a common one"
    add("label_shift", label_shift, f"{text} (label shift, declared)")
    private = federation.n_private if federation.has_private_reports else None
    add("noise", private, "honest sites with private reports added the noise that these state")
    return tuple(found)


def clients_not_covered(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(
        sorted(
            {*federation.missing_clients, *(fault.client for fault in federation.rejected_reports)}
        )
    )


def noise_note(federation: Federation) -> str:
    """That some reports are private and their noise is allowed for; empty where none is."""
    if not federation.has_private_reports:
        return ""
    return f"noise of {federation.n_private} private reports is allowed for"


def risk_fields(federation: Federation) -> dict[str, Any]:
    """What a certificate speaks of in place of coverage, where the reports hold losses."""
    risk = federation.risk
    return {} if risk is None else {"risk": risk.name, "bound": risk.bound}


def certify_threshold(
    federation: Federation,
    bin_index: int | None,
    max_malicious: int,
    certificate_confidence: float = 0.95,
    *,
    max_malicious_estimated: bool = False,
) -> Certificate:
    """The certificate of any threshold (its edge, None = infinite), however it was found.

    Parameters
    ----------
    federation
        The reports of one round.
    bin_index
        The bin whose upper edge is the threshold; None for an infinite one.
    max_malicious
        How many sites may lie, stated before the reports were seen.
    certificate_confidence
        With which the interval holds, over the calibration data.
    max_malicious_estimated
        Whether m is an estimate; the certificate then says so.

    Returns
    -------
    Certificate
        The interval that holds the honest sites' coverage, and what it rests on.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[91, 9]] * 20)
    >>> certificate = robfcp.guarantees.certify_threshold(federation, bin_index=0, max_malicious=1)
    >>> round(certificate.lower, 3), round(certificate.upper, 3)
    (0.889, 0.928)
    """
    max_malicious = _worst_case.check_max_malicious(max_malicious, federation.n_clients)
    (point,) = certificate_points(federation, bin_index, [max_malicious], certificate_confidence)
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
    return Certificate(
        kind="any-threshold",
        lower=point.lower,
        upper=point.upper,
        confidence=certificate_confidence,
        m=point.m,
        n_clients=federation.n_clients,
        estimated=max_malicious_estimated,
        assumptions=list_assumptions(
            federation,
            "any-threshold",
            point.m,
            max_malicious_estimated=max_malicious_estimated,
        ),
        n_outside=len(clients_not_covered(federation)),
        note=certificates.TRIVIAL_SETS if bin_index is None else noise_note(federation),
        **risk_fields(federation),
    )


class CertificateCurve(NamedTuple):
    """What is certified of one threshold, for several numbers of malicious clients.

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
    federation: Federation,
    bin_index: int | None,
    max_malicious_values: Iterable[int],
    certificate_confidence: float = 0.95,
) -> CertificateCurve:
    """Return what is certified of a threshold for several numbers of malicious clients.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    max_malicious_values : iterable of int
        The numbers.
    certificate_confidence : float
        The confidence of all intervals at once.
    """
    values = sorted(set(max_malicious_values))
    first_vacuous = vacuous_from(federation, bin_index, certificate_confidence, values)
    points = certificate_points(federation, bin_index, values, certificate_confidence)
    return CertificateCurve(points, first_vacuous)


def coverage_intervals(
    counts: _worst_case.CountBounds,
    bin_indices: IndexArray,
    max_malicious_values: Sequence[int],
    delta: float,
) -> tuple[FloatArray, FloatArray]:
    """(M, E) lower and upper benign coverage, at all edges and for all m at once w.p. 1 - delta.

    The p with N_min kl(L_m, p) <= ln(2 H/delta) below L_m, likewise above U_m: never wider than
    L_m - e, U_m + e with e = sqrt(ln(2 H/delta) / (2 N_min)). Where reports hold noise, a fifth
    of delta is shared by the noise at all edges.
    """
    most = np.array(max_malicious_values, dtype=np.int64)
    for m in (int(most.min()), int(most.max())):
        _worst_case.check_max_malicious(m, len(counts.sizes))
    noise, sampling = counts.split(_worst_case.check_delta(delta), _worst_case.NOISE_DELTA_FRACTION)
    ends = 2 * counts.n_edges
    one_end = noise / (ends if counts.sizes_known else ends + 0.5)  # a hidden total is half an end
    total = counts.smallest_totals(most, one_end / 2)
    (low, high), told = np.zeros((2, len(most), len(bin_indices))), total >= 1
    high += 1
    if told.any():
        radius = np.log(ends / sampling) / total[told, None]
        share, above = counts.min_coverage(bin_indices, most[told], one_end)
        low[told], rest = kl_lower(np.stack([share, 1 - above]), radius)
        high[told] = 1 - rest
    return low, high


def certificate_points(
    federation: Federation,
    bin_index: int | None,
    max_malicious_values: Iterable[int],
    certificate_confidence: float = 0.95,
) -> tuple[CertificatePoint, ...]:
    """The interval of the threshold at this edge for each number of liars.

    One event of probability `confidence` makes all of them true: the interval for m holds the one
    for the true number j <= m, so that m may be read off the reports.
    """
    if bin_index is None:
        return tuple(CertificatePoint(m, 1.0, 1.0) for m in max_malicious_values)
    counts = _worst_case.count_bounds(federation)
    known = counts.proved.setdefault((bin_index, certificate_confidence), {})
    if missing := sorted(set(max_malicious_values) - set(known)):
        low, high = coverage_intervals(
            counts, np.array([bin_index]), missing, 1 - certificate_confidence
        )
        points = zip(missing, low[:, 0].tolist(), high[:, 0].tolist(), strict=True)
        known.update({m: CertificatePoint(m, *ends) for m, *ends in points})
    return tuple(known[m] for m in max_malicious_values)


def vacuous_from(
    federation: Federation,
    bin_index: int | None,
    confidence: float = 0.95,
    max_malicious_values: Iterable[int] = (),
) -> int | None:
    """The least number of liars for which nothing is proved about this threshold; None if none.

    The curve's points for the `budgets` are found on the way: together is faster.
    """
    first, last = 0, federation.n_clients
    while bin_index is not None and first < last:  # what more liars leave proved, fewer do
        steps = (last - 1 - first) * np.linspace(0, 1, 12) ** 3
        own = {*(first + np.ceil(steps).astype(int)).tolist(), *max_malicious_values}
        tried = sorted(m for m in own if first <= m < last)
        points = certificate_points(federation, bin_index, tried, confidence)
        number = next((k for k, point in enumerate(points) if point.is_vacuous), len(tried))
        first, last = (tried[number - 1] + 1 if number else first), [*tried, last][number]
    return first if first < federation.n_clients and bin_index is not None else None


def certified_max_malicious(n_clients: int, also: int = 0) -> tuple[int, ...]:
    """Numbers of liars to show: all below half of few clients, else some, densest at the start."""
    most = max(0, (n_clients - 1) // 2)
    if most <= MAX_CLIENTS_ALL_COUNTS:
        chosen = set(range(most + 1))
    else:
        number = 16 if n_clients <= 20_000 else 8
        chosen = set(np.round(most * np.linspace(0, 1, number) ** 2).astype(int).tolist())
        chosen |= {0, 1, 2}
    return tuple(sorted({*chosen, min(also, n_clients - 1)}))
