"""What coverage is proved for a threshold, with which confidence, under which assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget
from robfcp.assumptions import Assumption, Kind, assumptions_of, outside_of
from robfcp.envelope import envelope, smallest_benign_total
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import liars_forcing_full_sets
from robfcp.pac import (
    check_delta,
    homogeneous_liars_forcing_full_sets,
    pac_liars_forcing_full_sets,
)
from robfcp.pruning import prune

GuaranteeKind = Literal["marginal", "pac", "pac-homogeneous"]
FULL = "every set is full"
PRUNING_SHARE = 0.2  # of a certificate's chance of failure, where clients are pruned first


@dataclass(frozen=True)
class Certificate:
    """Coverage of the benign clients' mixture, proved to lie in [lower, upper].

    `confidence` is over the calibration data; None says that the bound holds on average over
    them. `full_sets_from` is the number of liars that can make every set full, where known.
    """

    kind: Kind
    lower: float
    upper: float
    confidence: float | None
    m: int
    n_clients: int
    estimated: bool = False
    assumptions: tuple[Assumption, ...] = ()
    outside: tuple[str, ...] = ()
    full_sets_from: int | None = None
    note: str = ""
    size_budget: int | None = None

    @property
    def vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1

    @property
    def width(self) -> float:
        """upper - lower."""
        return self.upper - self.lower

    @property
    def statement(self) -> str:
        """The certificate in words."""
        whom = f"at most {self.m} of {self.n_clients} clients"
        if self.size_budget is not None:
            whom += f" with at most {self.size_budget} samples together"
        if self.estimated:
            condition = f"if {whom} lie ({self.m} is estimated from the reports, not stated)"
        else:
            condition = f"whatever {whom} do"
        if self.vacuous:
            proved = f"nothing is proved about coverage {condition}"
        elif self.upper >= 1:
            proved = f"coverage is at least {_percent(self.lower)}, {condition}"
        else:
            span = f"{_percent(self.lower)} and {_percent(self.upper)}"
            proved = f"coverage is between {span}, {condition}"
        sure = "on average over calibration data"
        if self.confidence is not None:
            sure = f"with {_percent(self.confidence)} confidence"
        words = f"{proved}, {sure}"
        if self.outside:
            words += f"; outside it: {len(self.outside)} missing or faulty clients"
        return f"{words}; {self.note}" if self.note else words


def coverage_band(
    below: NDArray[np.int64], sizes: NDArray[np.int64], m: int, delta: float, n_edges: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper benign coverage, at all n_edges edges at once with probability >= 1 - delta.

    The p with N_min kl(L_m, p) <= ln(2 H/delta) below L_m, likewise above U_m: never wider than
    L_m - e, U_m + e with e = sqrt(ln(2 H/delta) / (2 N_min)).
    """
    low, high = envelope(below, sizes, m)
    radius = np.log(2 * n_edges / check_delta(delta)) / smallest_benign_total(sizes, m)
    return kl_lower(low, radius), 1 - kl_lower(1 - high, radius)


def kl_lower(share: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """The least p <= share with kl(share, p) <= radius, from below, by bisection."""
    share = np.asarray(share, dtype=float)
    low, high = np.zeros_like(share), share.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = _xlog(share, share) + _xlog(1 - share, 1 - share)
        for _ in range(50):
            middle = (low + high) / 2
            far = entropy - _xlog(share, middle) - _xlog(1 - share, 1 - middle) > radius
            low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.asarray(np.where(share > 0, low, 0.0))


def _xlog(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.where(x > 0, x * np.log(y), 0.0))


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
    """
    m = check_budget(m, federation.n_clients)
    delta = check_delta(1 - confidence)
    kept, remaining, note = federation, m, ""
    if sigma is not None:
        mask, remaining, evidence = prune(federation, m, sigma, PRUNING_SHARE * delta)
        delta *= 1 - PRUNING_SHARE
        kept = federation.subset(mask)
        note = pruning_note(len(evidence.exclusions), evidence.refuted, sigma, m)
    lower, upper = 1.0, 1.0
    if index is not None:
        lower, upper = _band(kept, index, remaining, delta)
    return Certificate(
        "any-threshold",
        lower,
        upper,
        confidence,
        m,
        federation.n_clients,
        estimated,
        assumptions_of(federation, "any-threshold", m, sigma=sigma, estimated=estimated),
        outside_of(federation),
        note=noise_note(federation, note) if index is not None else FULL,
    )


def _band(federation: Federation, index: int, m: int, delta: float) -> tuple[float, float]:
    """`coverage_band` at one edge, wider by the noise where reports are private."""
    if federation.private:
        from robfcp.private_certificates import private_band

        lows, highs = private_band(federation, np.array([index]), m, delta)
        return float(lows[0]), float(highs[0])
    below, n_edges = federation.below(index), federation.grid.n_bins
    low, high = coverage_band(below, federation.sizes, m, delta, n_edges)
    return float(low), float(high)


def guarantee_certificate(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int | None,
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    beta: float = 0.0,
    size_budget: int | None = None,
) -> Certificate:
    """What the marginal, pac or pac-homogeneous threshold at `level` promises.

    `beta` is the chance given to pruning beforehand: a marginal guarantee then holds at
    level - beta. For the pac kinds `confidence` is the whole confidence stated.
    """
    if m is None and size_budget is None:
        raise RobfcpError("malicious: state how many clients, or how many samples, may lie")
    bound = federation.n_clients - 1 if m is None else check_budget(m, federation.n_clients)
    forcing = None
    if m is not None and size_budget is None:
        forcing = _forcing(federation, kind, level, m, 1 - confidence, sigma)
    note = _impossibility_note(forcing, bound, federation.n_clients, kind)
    return Certificate(
        kind,
        float(level) - beta,
        1.0,
        None if kind == "marginal" else confidence,
        bound,
        federation.n_clients,
        False,
        assumptions_of(federation, kind, m, sigma=sigma, size_budget=size_budget),
        outside_of(federation),
        forcing,
        noise_note(federation, note),
        size_budget,
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
        f"guaranteed against {m} of {n_clients}, but without a bound on how clients differ "
        f"{forcing} or more liars can make every set full; "
        "state a heterogeneity bound to prevent that"
    )


def noise_note(federation: Federation, note: str = "") -> str:
    """The note, and that reports are private and their noise is paid for."""
    if not federation.private:
        return note
    number = sum(mark is not None for mark in federation.privacy)
    words = f"noise of {number} private reports is allowed for"
    return f"{note}; {words}" if note else words


def pruning_note(dropped: int, refuted: bool, sigma: float, m: int) -> str:
    """What pruning did, in words."""
    if refuted:
        return (
            f"the reports contradict a heterogeneity of {sigma:g} with at most {m} liars, "
            "so nobody was dropped; state a larger bound"
        )
    return f"{dropped} clients that cannot be benign were dropped first" if dropped else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"
