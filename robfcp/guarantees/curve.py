"""What is proved of any threshold, for each number of liars, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from robfcp import certificate
from robfcp.certificate import Assumption, Certificate, CurvePoint
from robfcp.federation import Federation
from robfcp.guarantees import engine
from robfcp.guarantees.engine import Edges, Shares
from robfcp.guarantees.tails import kl_lower

ALL_UP_TO = 24  # numbers of liars shown one by one


def assumptions_of(
    federation: Federation,
    kind: certificate.Kind,
    m: int | None,
    *,
    estimated: bool = False,
    samples: int | None = None,
    alike: float | None = None,
    label_shift: float | None = None,
) -> tuple[Assumption, ...]:
    """Everything a certificate of this kind rests on, as data."""
    found, number = list[Assumption](), "each site's number of samples"

    def add(name: str, value: float | str | None, text: str) -> None:
        found.extend([] if value is None else [Assumption(name, value, text)])

    if m is not None:
        found.append(certificate.liars_assumption(m, federation.n_clients, estimated=estimated))
    add("held", samples, f"lying sites hold, and claim, at most {samples} samples together")
    add("corruption", "fixed", "who lies or is missing does not depend on the honest samples")
    if alike is not None:
        text = "samples within a site are independent and alike, and independent between sites"
        add("samples", "iid", text)
    elif kind == "marginal":
        text = "a site's new cases are like its samples (exchangeable), given the other sites"
        add("samples", "exchangeable", text)
    else:
        add("samples", *certificate.INDEPENDENT)
    if kind == "mix":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        add("mixture", "stated", text)
    else:
        text = "new cases come from the honest sites that reported, in proportion to their numbers "
        add("mixture", "n_k", f"{text}of samples")
    if federation.checked.signatures == "not checked":
        text = "each report comes from the site it names: signatures were not checked"
        add("identity", "claimed", text)
    if federation.registered:
        add("sizes", "registered", f"{number} was registered beforehand")
    elif not federation.sizes_known:
        add("sizes", "hidden", f"{number} is hidden by noise, which is allowed for")
    else:
        add("sizes", "claimed", f"{number} is its own claim; liars may inflate theirs")
    scores = "scores are distributed alike: their CDFs are within"
    means = scores if federation.risk is None else "losses are alike: their means are within"
    add("alike", alike, f"honest sites' {means} {alike or 0:g} of a common one")
    text = f"within each class honest sites' {scores} {label_shift or 0:g} of a common one"
    add("label_shift", label_shift, f"{text} (label shift, declared)")
    private = federation.n_private if federation.private else None
    add("noise", private, "honest sites with private reports added the noise that these state")
    return tuple(found)


def outside_of(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(sorted({*federation.missing, *(fault.client for fault in federation.faulty)}))


def noise_note(federation: Federation) -> str:
    """That some reports are private and their noise is allowed for; empty where none is."""
    if not federation.private:
        return ""
    return f"noise of {federation.n_private} private reports is allowed for"


def loss_of(federation: Federation) -> dict[str, Any]:
    """What a certificate speaks of in place of coverage, where the reports hold losses."""
    risk = federation.risk
    return {} if risk is None else {"risk": risk.name, "bound": risk.bound}


def certify(
    federation: Federation,
    index: int | None,
    m: int,
    confidence: float = 0.95,
    *,
    estimated: bool = False,
) -> Certificate:
    """The certificate of any threshold (its edge, None = infinite), however it was found.

    Parameters
    ----------
    federation
        The reports of one round.
    index
        The bin whose upper edge is the threshold; None for an infinite one.
    m
        How many sites may lie, stated before the reports were seen.
    confidence
        With which the interval holds, over the calibration data.
    estimated
        Whether m is an estimate; the certificate then says so.

    Returns
    -------
    Certificate
        The interval that holds the honest sites' coverage, and what it rests on.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[91, 9]] * 20)
    >>> certificate = robfcp.guarantees.certify(federation, index=0, m=1)
    >>> round(certificate.lower, 3), round(certificate.upper, 3)
    (0.889, 0.928)
    """
    m = engine.check_budget(m, federation.n_clients)
    (point,) = coverage_curve(federation, index, [m], confidence)
    return Certificate(
        kind="any-threshold",
        lower=point.lower,
        upper=point.upper,
        confidence=confidence,
        m=m,
        n_clients=federation.n_clients,
        estimated=estimated,
        assumptions=assumptions_of(federation, "any-threshold", m, estimated=estimated),
        n_outside=len(outside_of(federation)),
        note=certificate.FULL if index is None else noise_note(federation),
        **loss_of(federation),
    )


def coverage_interval(
    counts: engine.ExactCounts, edges: Edges, budgets: Sequence[int], delta: float
) -> tuple[Shares, Shares]:
    """(M, E) lower and upper benign coverage, at all edges and for all m at once w.p. 1 - delta.

    The p with N_min kl(L_m, p) <= ln(2 H/delta) below L_m, likewise above U_m: never wider than
    L_m - e, U_m + e with e = sqrt(ln(2 H/delta) / (2 N_min)). Where reports hold noise, a fifth
    of delta is shared by the noise at all edges.
    """
    most = np.array(budgets, dtype=np.int64)
    for m in (int(most.min()), int(most.max())):
        engine.check_budget(m, len(counts.sizes))
    noise, sampling = counts.split(engine.check_delta(delta), engine.NOISE_SHARE)
    ends = 2 * counts.n_edges
    one_end = noise / (ends if counts.sizes_known else ends + 0.5)  # a hidden total is half an end
    total = counts.smallest_totals(most, one_end / 2)
    (low, high), told = np.zeros((2, len(most), len(edges))), total >= 1
    high += 1
    if told.any():
        radius = np.log(ends / sampling) / total[told, None]
        share, above = counts.shares(edges, most[told], one_end)
        low[told], rest = kl_lower(np.stack([share, 1 - above]), radius)
        high[told] = 1 - rest
    return low, high


def coverage_curve(
    federation: Federation, index: int | None, budgets: Iterable[int], confidence: float = 0.95
) -> tuple[CurvePoint, ...]:
    """The interval of the threshold at this edge for each number of liars.

    One event of probability `confidence` makes all of them true: the interval for m holds the one
    for the true number j <= m, so that m may be read off the reports.
    """
    if index is None:
        return tuple(CurvePoint(m, 1.0, 1.0) for m in budgets)
    counts = engine.counts_of(federation)
    known = counts.proved.setdefault((index, confidence), {})
    if missing := sorted(set(budgets) - set(known)):
        low, high = coverage_interval(counts, np.array([index]), missing, 1 - confidence)
        points = zip(missing, low[:, 0].tolist(), high[:, 0].tolist(), strict=True)
        known.update({m: CurvePoint(m, *ends) for m, *ends in points})
    return tuple(known[m] for m in budgets)


def empty_from(
    federation: Federation, index: int | None, confidence: float = 0.95, budgets: Iterable[int] = ()
) -> int | None:
    """The least number of liars for which nothing is proved about this threshold; None if none.

    The curve's points for the `budgets` are found on the way: together is faster.
    """
    first, last = 0, federation.n_clients
    while index is not None and first < last:  # what more liars leave proved, fewer do
        steps = (last - 1 - first) * np.linspace(0, 1, 12) ** 3
        own = {*(first + np.ceil(steps).astype(int)).tolist(), *budgets}
        tried = sorted(m for m in own if first <= m < last)
        points = coverage_curve(federation, index, tried, confidence)
        number = next((k for k, point in enumerate(points) if point.vacuous), len(tried))
        first, last = (tried[number - 1] + 1 if number else first), [*tried, last][number]
    return first if first < federation.n_clients and index is not None else None


def curve_budgets(n_clients: int, also: int = 0) -> tuple[int, ...]:
    """Numbers of liars to show: all below half of few clients, else some, densest at the start."""
    most = max(0, (n_clients - 1) // 2)
    if most <= ALL_UP_TO:
        chosen = set(range(most + 1))
    else:
        number = 16 if n_clients <= 20_000 else 8
        chosen = set(np.round(most * np.linspace(0, 1, number) ** 2).astype(int).tolist())
        chosen |= {0, 1, 2}
    return tuple(sorted({*chosen, min(also, n_clients - 1)}))
