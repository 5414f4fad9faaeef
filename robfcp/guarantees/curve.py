"""What is proved of any threshold, for each number of liars, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from robfcp.certificate import (
    FULL,
    INDEPENDENT,
    Assumption,
    Certificate,
    CurvePoint,
    Kind,
    liars_assumption,
)
from robfcp.federation import Federation
from robfcp.guarantees.engine import (
    check_budget,
    check_delta,
    coverage_interval,
    first_edge,
    first_vacuous,
)
from robfcp.guarantees.tails import bounds_of

ALL_UP_TO = 24  # numbers of liars shown one by one
FEW = 16  # and among more clients
MANY_CLIENTS = 20_000
FEWER = 8


def assumptions_of(
    federation: Federation,
    kind: Kind,
    m: int | None,
    *,
    estimated: bool = False,
    samples: int | None = None,
    alike: float | None = None,
    label_shift: float | None = None,
) -> tuple[Assumption, ...]:
    """Everything a certificate of this kind rests on, as data."""
    found: list[Assumption] = []
    if m is not None:
        found.append(liars_assumption(m, federation.n_clients, estimated=estimated))
    if samples is not None:
        text = f"lying sites hold, and claim, at most {samples} samples together"
        found.append(Assumption("held", samples, text))
    found.append(
        Assumption(
            "corruption", "fixed", "who lies or is missing does not depend on the honest samples"
        )
    )
    if alike is not None:
        text = "samples within a site are independent and alike, and independent between sites"
        found.append(Assumption("samples", "iid", text))
    elif kind == "marginal":
        text = "a site's new cases are like its samples (exchangeable), given the other sites"
        found.append(Assumption("samples", "exchangeable", text))
    else:
        found.append(Assumption("samples", *INDEPENDENT))
    if kind == "mix":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        found.append(Assumption("mixture", "stated", text))
    else:
        text = (
            "new cases come from the honest sites that reported, in proportion to their numbers "
            "of samples"
        )
        found.append(Assumption("mixture", "n_k", text))
    if federation.checked.signatures == "not checked":
        text = "each report comes from the site it names: signatures were not checked"
        found.append(Assumption("identity", "claimed", text))
    if federation.registered:
        text = "each site's number of samples was registered beforehand"
        found.append(Assumption("sizes", "registered", text))
    elif not federation.sizes_known:
        text = "each site's number of samples is hidden by noise, which is allowed for"
        found.append(Assumption("sizes", "hidden", text))
    else:
        text = "each site's number of samples is its own claim; liars may inflate theirs"
        found.append(Assumption("sizes", "claimed", text))
    if alike is not None:
        what = "scores are distributed alike: their CDFs"
        what = what if federation.risk is None else "losses are alike: their means"
        text = f"honest sites' {what} are within {alike:g} of a common one"
        found.append(Assumption("alike", float(alike), text))
    if label_shift is not None:
        text = (
            "within each class honest sites' scores are distributed alike: their CDFs are within "
            f"{label_shift:g} of a common one (label shift, declared)"
        )
        found.append(Assumption("label_shift", label_shift, text))
    if federation.private:
        text = "honest sites with private reports added the noise that these state"
        found.append(Assumption("noise", federation.n_private, text))
    return tuple(found)


def outside_of(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(sorted({*federation.missing, *(fault.client for fault in federation.faulty)}))


def noise_note(federation: Federation) -> str:
    """That reports are private and their noise is paid for."""
    number = federation.n_private if federation.private else 0
    return f"noise of {number} private reports is allowed for" if number else ""


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
    >>> federation = robfcp.Federation.from_counts([[90, 10]] * 20)
    >>> certificate = robfcp.guarantees.certify(federation, index=0, m=1)
    >>> round(certificate.lower, 3), round(certificate.upper, 3)
    (0.878, 0.919)
    """
    m = check_budget(m, federation.n_clients)
    check_delta(1 - confidence)
    point = CurvePoint(m, 1.0, 1.0) if index is None else interval(federation, index, confidence)(m)
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
        note=FULL if index is None else noise_note(federation),
        **loss_of(federation),
    )


def coverage_curve(
    federation: Federation, index: int | None, budgets: Sequence[int], confidence: float = 0.95
) -> tuple[CurvePoint, ...]:
    """The interval of the threshold at this edge for each number of liars.

    One event of probability `confidence` makes all of them true: the interval for m holds the one
    for the true number j <= m, so that m may be read off the reports.
    """
    if index is None:
        return tuple(CurvePoint(m, 1.0, 1.0) for m in budgets)
    foresee(federation, index, budgets)
    return tuple(map(interval(federation, index, confidence), budgets))


def foresee(federation: Federation, index: int | None, budgets: Sequence[int]) -> None:
    """Work out together what certificates and curves will be asked for at this edge.

    With it the last number of liars, which tells whether something is always proved.
    """
    if index is not None:
        most = federation.n_clients - 1
        numbers = [m for m in (*budgets, most) if 0 <= m <= most]
        bounds_of(federation).foresee(np.array([index]), numbers)


def empty_from(federation: Federation, index: int | None, confidence: float = 0.95) -> int | None:
    """The least number of liars for which nothing is proved about this threshold; None if none."""
    if index is None:
        return None
    at = interval(federation, index, confidence)
    if not at(federation.n_clients - 1).vacuous:
        return None
    bounds, n_edges = bounds_of(federation), federation.grid.n_bins
    guess = first_vacuous(bounds, index, 1 - confidence, n_edges)
    if guess is None or not at(guess).vacuous:
        return first_edge(federation.n_clients, lambda m: at(m).vacuous)
    if not guess or not at(guess - 1).vacuous:
        return guess
    return first_edge(guess, lambda m: at(m).vacuous)


def curve_budgets(n_clients: int, also: int = 0) -> tuple[int, ...]:
    """Numbers of liars to show: all below half of few clients, else some, densest at the start."""
    most = max(0, (n_clients - 1) // 2)
    if most <= ALL_UP_TO:
        chosen = set(range(most + 1))
    else:
        number = FEW if n_clients <= MANY_CLIENTS else FEWER
        chosen = set(np.round(most * np.linspace(0, 1, number) ** 2).astype(int).tolist())
        chosen |= {0, 1, 2}
    return tuple(sorted({*chosen, min(also, n_clients - 1)}))


def interval(federation: Federation, index: int, confidence: float) -> Callable[[int], CurvePoint]:
    """The interval at one edge as a function of m."""
    bounds, n_edges = bounds_of(federation), federation.grid.n_bins

    def at(m: int) -> CurvePoint:
        lower, upper = coverage_interval(bounds, np.array([index]), m, 1 - confidence, n_edges)
        return CurvePoint(m, float(lower[0]), float(upper[0]))

    return at
