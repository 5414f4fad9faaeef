"""What coverage is proved for a threshold, with which confidence, under which assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.alike import homogeneous_liars_forcing_full_sets
from robfcp.guarantees.assumptions import Assumption, Kind, assumptions_of, outside_of
from robfcp.guarantees.budgets import check_budget, check_delta
from robfcp.guarantees.coverage import coverage_interval
from robfcp.guarantees.levels import Exchangeability
from robfcp.guarantees.marginal import liars_forcing_full_sets
from robfcp.guarantees.noisy import bounds_of
from robfcp.guarantees.pac import pac_liars_forcing_full_sets
from robfcp.guarantees.pruning import PRUNING_SHARE, PruningEvidence, prune
from robfcp.guarantees.words import at_least, at_most, loss_at_least, loss_at_most

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
    return federation.noise.joined(note)


def pruning_note(evidence: PruningEvidence, m: int) -> str:
    """What pruning did, in words."""
    if evidence.refuted:
        return (
            f"the reports contradict a heterogeneity of {evidence.sigma:g} with at most {m} liars, "
            "so nobody was dropped; state a larger bound"
        )
    dropped = len(evidence.exclusions)
    return f"{dropped} sites that cannot be honest were dropped first" if dropped else ""
