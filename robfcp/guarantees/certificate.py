"""What coverage is proved for a threshold, with which confidence, under which assumptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.alike import homogeneous_liars_forcing_full_sets
from robfcp.guarantees.budgets import check_budget, check_delta
from robfcp.guarantees.coverage import coverage_interval, first_vacuous
from robfcp.guarantees.engine import CountBounds, first_edge
from robfcp.guarantees.marginal import liars_forcing_full_sets
from robfcp.guarantees.pruning import PRUNING_SHARE, ClientIntervals, PruningEvidence, prune
from robfcp.guarantees.rank import Exchangeability
from robfcp.guarantees.tails import bounds_of, pac_liars_forcing_full_sets

Kind = Literal["any-threshold", "marginal", "pac", "pac-homogeneous", "mix"]
_INDEPENDENT = (
    "independent",
    "samples are independent within a site and between sites (nobody is counted at two)",
)
_SAMPLES = {
    "any-threshold": _INDEPENDENT,
    "marginal": (
        "exchangeable",
        "a site's new cases are like its samples (exchangeable), given the other sites",
    ),
    "pac": _INDEPENDENT,
    "mix": _INDEPENDENT,
    "pac-homogeneous": (
        "iid",
        "samples within a site are independent and alike, and independent between sites",
    ),
}


@dataclass(frozen=True)
class Assumption:
    """One thing a certificate rests on: a name, the value it takes here, and the words for it."""

    name: str
    value: int | float | str
    text: str


def assumptions_of(
    federation: Federation,
    kind: Kind,
    m: int | None,
    *,
    sigma: float | None = None,
    size_budget: int | None = None,
    estimated: bool = False,
    exchangeability: Exchangeability = "partial",
    label_shift: float | None = None,
) -> tuple[Assumption, ...]:
    """Everything a certificate of this kind rests on, as data."""
    found: list[Assumption] = []
    if m is not None:
        found.append(liars_assumption(m, federation.n_clients, estimated=estimated))
    if size_budget is not None:
        text = f"lying sites hold, and claim, at most {size_budget} samples together"
        found.append(Assumption("size_budget", size_budget, text))
    found.append(
        Assumption(
            "corruption", "fixed", "who lies or is missing does not depend on the honest samples"
        )
    )
    samples = _SAMPLES[kind if sigma is None else "pac-homogeneous"]
    found.append(Assumption("samples", *samples))
    if kind == "marginal" and exchangeability == "full":
        text = "the scores of all honest sites are exchangeable altogether, not only within them"
        found.append(Assumption("clients", "exchangeable", text))
    if kind == "mix":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        found.append(Assumption("mixture", "stated", text))
    weight = "n_k + 1" if (kind, exchangeability) == ("marginal", "published") else "n_k"
    if kind != "mix":
        text = (
            "new cases come from the honest sites that reported, in proportion to their numbers "
            "of samples" + (", plus 1 each" if weight == "n_k + 1" else "")
        )
        found.append(Assumption("mixture", weight, text))
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
    if kind == "pac-homogeneous" or sigma is not None:
        text = (
            "honest sites' scores are distributed alike: their CDFs are within "
            f"{sigma or 0:g} of a common one"
        )
        found.append(Assumption("heterogeneity", float(sigma or 0), text))
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


def liars_assumption(m: int, n_clients: int, *, estimated: bool) -> Assumption:
    """How many lie at most, and when that number was chosen."""
    when = "a number read off the reports" if estimated else "stated before they were seen"
    return Assumption("liars", m, f"at most {m} of the {n_clients} reporting sites lie, {when}")


def curve_assumptions(
    stated: tuple[Assumption, ...], m: int, n_clients: int
) -> tuple[Assumption, ...]:
    """What an interval for m liars rests on, from another certificate of the same round."""
    text = f"at most {m} of the {n_clients} reporting sites lie; the number may be any"
    found = [Assumption("liars", m, text)]
    for assumption in stated:
        if assumption.name == "samples" and assumption.value == "exchangeable":
            found.append(Assumption("samples", *_INDEPENDENT))
        elif assumption.name not in ("liars", "size_budget", "clients"):
            found.append(assumption)
    return tuple(found)


def outside_of(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(sorted({*federation.missing, *(fault.client for fault in federation.faulty)}))


_PLACES = Decimal("0.01")  # of a percentage


def at_least(share: float) -> str:
    """The share as a percentage that is not larger: 0.899951 is 89.99%."""
    return _percent(share, ROUND_FLOOR)


def at_most(share: float) -> str:
    """The share as a percentage that is not smaller: 0.899951 is 90%."""
    return _percent(share, ROUND_CEILING)


def loss_at_most(loss: float, bound: float) -> str:
    """A mean loss that is not smaller: a percentage where the bound is 1, else a number."""
    return at_most(loss) if bound == 1 else _number(loss, ROUND_CEILING)


def loss_at_least(loss: float, bound: float) -> str:
    """A mean loss that is not larger: a percentage where the bound is 1, else a number."""
    return at_least(loss) if bound == 1 else _number(loss, ROUND_FLOOR)


def _number(value: float, rounding: str) -> str:
    exact = Decimal(repr(float(value)))
    if not exact:
        return "0"
    places = Decimal(1).scaleb(exact.adjusted() - 3)  # four significant digits
    return f"{exact.quantize(places, rounding=rounding).normalize():f}"


def _percent(share: float, rounding: str) -> str:
    exact = 100 * Decimal(repr(float(share)))
    rounded = exact.quantize(_PLACES, rounding=rounding)
    return f"{rounded.normalize():f}%"


def tolerance_statement(number: int | None, level: Fraction) -> str:
    """What a tolerance promises, in the words that make it true: it is read off the data."""
    if number is None:
        return f"tolerance none: not guaranteed at {at_least(float(level))} even if nobody lies"
    return (
        f"tolerance {number}: the chance that the true label is missed while the tolerance is at "
        f"least the true number of liars is at most {at_most(float(1 - level))}"
    )


GuaranteeKind = Literal["marginal", "pac", "pac-homogeneous"]
FULL = "every set is full"


@dataclass(frozen=True)
class Certificate:
    """Coverage of the benign clients' mixture, proved to lie in [lower, upper].

    Attributes
    ----------
    kind
        Which theorem it is: "any-threshold", "marginal", "pac" or "pac-homogeneous".
    lower
        Coverage is at least this.
    upper
        Coverage is at most this; 1 where nothing is said.
    confidence
        Over the calibration data; None says that the bound holds on average over them.
    m
        How many clients may lie.
    n_clients
        How many clients reported.
    estimated
        Whether m is estimated from the reports; then it is no proof against liars who hide.
    assumptions
        What it rests on, one by one.
    outside
        Missing and faulty clients, of whom nothing is said.
    n_outside
        Their number, which files keep without the names.
    full_sets_from
        The number of liars that can make every set full, where known.
    note
        What else must be said.
    size_budget
        The most samples that liars may hold together, where that is what was stated.
    by
        "class" or "group" where it is said of every one of them at once.
    risk, bound
        The loss that is bounded in place of coverage, and the most one sample can lose.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10]] * 20)
    >>> print(robfcp.certify(federation, index=0, m=1).statement)
    with 95% confidence, either more than 1 of the 20 sites lie or coverage is ... 91.92%
    """

    kind: Kind
    lower: float
    upper: float
    confidence: float | None
    m: int
    n_clients: int
    estimated: bool = False
    assumptions: tuple[Assumption, ...] = ()
    outside: tuple[str, ...] = ()  # missing and faulty clients, of whom nothing is said
    n_outside: int = 0  # their number, which files keep without the names
    full_sets_from: int | None = None
    note: str = ""
    size_budget: int | None = None
    risk: str = ""  # the loss that is bounded in place of coverage, by name
    bound: float = 1.0  # B, the most one sample can lose
    by: str = ""  # said of every class, or every group, at once

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outside", max(self.n_outside, len(self.outside)))

    @property
    def vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1

    @property
    def width(self) -> float:
        """upper - lower."""
        return self.upper - self.lower

    @property
    def every_site(self) -> bool:
        """Whether it speaks of every honest site by itself, not only of their mixture."""
        return self.kind == "pac-homogeneous"

    def __str__(self) -> str:
        return self.statement

    @property
    def statement(self) -> str:
        """The certificate in words; lower ends are rounded down, upper ends up."""
        words = self._any_threshold() if self.kind == "any-threshold" else self._guaranteed()
        if self.n_outside:
            sites = "site" if self.n_outside == 1 else "sites"
            words += f"; outside it: {self.n_outside} missing or faulty {sites}"
        return f"{words}; {self.note}" if self.note else words

    def _any_threshold(self) -> str:
        """True for every m at once, so also for one that was read off the reports."""
        sure = f"with {at_least(self.confidence or 0)} confidence"
        what = f"mean {self.risk}" if self.risk else "coverage"
        what += f" of every {self.by}" if self.by else ""
        if self.vacuous:
            return f"nothing is proved about {what} if {self.m} of {self.n_clients} sites lie"
        if self.m == 0:
            return f"{sure}, either at least one of the {self.n_clients} sites lies or {self._span}"
        return (
            f"{sure}, either more than {self.m} of the {self.n_clients} sites lie or {self._span}"
        )

    def _guaranteed(self) -> str:
        whom = f"at most {self.m} of {self.n_clients} sites"
        if self.size_budget is not None:
            whom += f" with at most {self.size_budget} samples together"
        proved = f"{self._span}, whatever {whom} do"
        if self.confidence is None:
            return f"{proved}, on average over calibration data"
        return f"{proved}, with {at_least(self.confidence)} confidence"

    @property
    def _span(self) -> str:
        """Where coverage lies, or the mean loss."""
        if self.risk:
            most = loss_at_most((1 - self.lower) * self.bound, self.bound)
            least = loss_at_least((1 - self.upper) * self.bound, self.bound)
            words = f"between {least} and {most}" if self.upper < 1 else f"at most {most}"
            return f"mean {self.risk} is {words}"
        where = "coverage at every honest site" if self.every_site else "coverage"
        where += f" of every {self.by}" if self.by else ""
        where += " of the stated label mix" if self.kind == "mix" else ""
        if self.upper < 1:
            return f"{where} is between {at_least(self.lower)} and {at_most(self.upper)}"
        return f"{where} is at least {at_least(self.lower)}"


def certify(
    federation: Federation,
    index: int | None,
    m: int,
    confidence: float = 0.95,
    *,
    sigma: float | None = None,
    estimated: bool = False,
) -> Certificate:
    """The certificate of any threshold (its edge, None = infinite), however it was found.

    With a stated heterogeneity bound sigma, clients that cannot be benign are dropped first;
    a fifth of the chance of failure pays for that.

    Parameters
    ----------
    federation
        The reports of one round.
    index
        The bin whose upper edge is the threshold; None for an infinite one.
    m
        How many clients may lie, stated before the reports were seen.
    confidence
        With which the interval holds, over the calibration data.
    sigma
        How far (in Kolmogorov distance) an honest client's score distribution is from a common
        one; no bound if None.
    estimated
        Whether m is an estimate; the certificate then says so.

    Returns
    -------
    Certificate
        The interval that holds the benign clients' coverage, and what it rests on.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10]] * 20)
    >>> certificate = robfcp.certify(federation, index=0, m=1)
    >>> round(certificate.lower, 3), round(certificate.upper, 3)
    (0.878, 0.919)
    """
    m = check_budget(m, federation.n_clients)
    delta = check_delta(1 - confidence)
    kept, remaining, note = federation, m, ""
    if sigma is not None:
        mask, remaining, evidence = prune(federation, m, sigma, PRUNING_SHARE * delta)
        delta *= 1 - PRUNING_SHARE
        kept = federation.subset(mask)
        note = pruning_note(evidence, m)
    lower, upper = 1.0, 1.0
    if index is not None:
        lows, highs = coverage_interval(
            bounds_of(kept), np.array([index]), remaining, delta, federation.grid.n_bins
        )
        lower, upper = float(lows[0]), float(highs[0])
    return Certificate(
        kind="any-threshold",
        lower=lower,
        upper=upper,
        confidence=confidence,
        m=m,
        n_clients=federation.n_clients,
        estimated=estimated,
        assumptions=assumptions_of(
            federation, "any-threshold", m, sigma=sigma, estimated=estimated
        ),
        outside=outside_of(federation),
        note=noise_note(federation, note) if index is not None else FULL,
        **_loss(federation),
    )


def guarantee_certificate(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int | None,
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    size_budget: int | None = None,
    exchangeability: Exchangeability = "partial",
) -> Certificate:
    """What the marginal, pac or pac-homogeneous threshold at `level` promises.

    For the pac kinds `confidence` is the whole confidence stated.
    """
    if m is None and size_budget is None:
        raise RobfcpError("malicious: state how many sites, or how many samples, may lie")
    bound = federation.n_clients - 1 if m is None else check_budget(m, federation.n_clients)
    forcing = None
    if m is not None and size_budget is None:
        forcing = _forcing(federation, kind, level, m, 1 - confidence, sigma)
    note = _impossibility_note(forcing, bound, federation.n_clients, kind)
    return Certificate(
        kind=kind,
        lower=float(level),
        upper=1.0,
        confidence=None if kind == "marginal" else confidence,
        m=bound,
        n_clients=federation.n_clients,
        assumptions=assumptions_of(
            federation,
            kind,
            m,
            sigma=sigma,
            size_budget=size_budget,
            exchangeability=exchangeability,
        ),
        outside=outside_of(federation),
        full_sets_from=forcing,
        note=noise_note(federation, note),
        size_budget=size_budget,
        **_loss(federation),
    )


def _forcing(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int,
    delta: float,
    sigma: float | None,
) -> int | None:
    """How many liars can make every set full; None where pruning may stop them."""
    sizes = federation.sizes
    if federation.risk is not None and kind != "marginal":
        return None
    if kind == "pac-homogeneous":
        return homogeneous_liars_forcing_full_sets(sizes, level, m, delta, sigma or 0.0)
    if sigma is not None:
        return None
    if kind == "pac":
        return pac_liars_forcing_full_sets(sizes, level, m, delta)
    return liars_forcing_full_sets(sizes, level, m)


def _impossibility_note(forcing: int | None, m: int, n_clients: int, kind: GuaranteeKind) -> str:
    """How many liars can make every set full, where the stated bound reaches that number."""
    if not forcing or forcing > m:
        return ""
    if kind == "pac-homogeneous":
        return (
            f"guaranteed against {m} of {n_clients}, but {forcing} or more liars can make every "
            "set full; collect more samples or state fewer liars to prevent that"
        )
    return (
        f"guaranteed against {m} of {n_clients}, but without a bound on how sites differ "
        f"{forcing} or more liars can make every set full; "
        "state a heterogeneity bound to prevent that"
    )


def _loss(federation: Federation) -> dict[str, Any]:
    """What the certificate speaks of in place of coverage, where the reports hold losses."""
    risk = federation.risk
    return {} if risk is None else {"risk": risk.name, "bound": risk.bound}


def noise_note(federation: Federation, note: str = "") -> str:
    """The note, and that reports are private and their noise is paid for."""
    if not federation.private:
        return note
    words = f"noise of {federation.n_private} private reports is allowed for"
    return f"{note}; {words}" if note else words


def pruning_note(evidence: PruningEvidence, m: int) -> str:
    """What pruning did, in words."""
    if evidence.refuted:
        return (
            f"the reports contradict a heterogeneity of {evidence.sigma:g} with at most {m} liars, "
            "so nobody was dropped; state a larger bound"
        )
    dropped = len(evidence.exclusions)
    return f"{dropped} sites that cannot be honest were dropped first" if dropped else ""


ALL_UP_TO = 24  # numbers of liars shown one by one
FEW = 16  # and among more clients
MANY_CLIENTS = 20_000
FEWER = 8


@dataclass(frozen=True)
class CurvePoint:
    """Coverage lies in [lower, upper] unless more than m clients lie."""

    m: int
    lower: float
    upper: float

    @property
    def vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1


def coverage_curve(
    federation: Federation,
    index: int | None,
    budgets: Sequence[int],
    confidence: float = 0.95,
    *,
    sigma: float | None = None,
) -> tuple[CurvePoint, ...]:
    """The interval of the threshold at this edge for each number of liars.

    One event of probability `confidence` makes all of them true: the interval for m holds the one
    for the true number j <= m, so that m may be read off the reports. (For m below j nothing is
    claimed; there a stated sigma may be refuted, and the interval wider than for more liars.)
    """
    if index is None:
        return tuple(CurvePoint(m, 1.0, 1.0) for m in budgets)
    at = _interval(federation, index, confidence, sigma)
    if sigma is None:
        foresee(federation, index, budgets)
    return tuple(at(m) for m in budgets)


def foresee(federation: Federation, index: int | None, budgets: Sequence[int]) -> None:
    """Work out together what certificates and curves will be asked for at this edge.

    With it the last number of liars, which tells whether something is always proved.
    """
    if index is not None:
        most = federation.n_clients - 1
        numbers = [m for m in (*budgets, most) if 0 <= m <= most]
        bounds_of(federation).foresee(np.array([index]), numbers)


def empty_from(
    federation: Federation,
    index: int | None,
    confidence: float = 0.95,
    *,
    sigma: float | None = None,
) -> int | None:
    """The least number of liars for which nothing is proved about this threshold; None if none."""
    if index is None:
        return None
    at = _interval(federation, index, confidence, sigma)
    if not at(federation.n_clients - 1).vacuous:
        return None
    guess = None
    if sigma is None:
        delta = check_delta(1 - confidence)
        guess = first_vacuous(bounds_of(federation), index, delta, federation.grid.n_bins)
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


def _interval(
    federation: Federation, index: int, confidence: float, sigma: float | None
) -> Callable[[int], CurvePoint]:
    """The interval at one edge as a function of m."""
    delta = check_delta(1 - confidence)
    edges, n_edges = np.array([index]), federation.grid.n_bins
    bounds = bounds_of(federation)
    beta = PRUNING_SHARE * delta
    intervals = None if sigma is None else ClientIntervals(federation, beta)

    def at(m: int) -> CurvePoint:
        m = check_budget(m, federation.n_clients)
        kept: CountBounds = bounds
        remaining, left = m, delta
        if sigma is not None and intervals is not None:
            pruning = prune(federation, m, sigma, beta, lambda _: intervals)
            kept, remaining = bounds_of(federation.subset(pruning.kept)), pruning.m
            left = delta - beta
        lower, upper = coverage_interval(kept, edges, remaining, left, n_edges)
        return CurvePoint(m, float(lower[0]), float(upper[0]))

    return at
