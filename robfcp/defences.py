"""Whom to trust: every defence ranks clients by maliciousness and leaves some out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp.characterisations import Characterisation, characterise
from robfcp.distances import Metric, Space
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.large import Estimate, scalable_means

Exclude = Literal["outstanding", "exactly"]


@dataclass(frozen=True, eq=False)
class Assessment:
    """What a defence found: a number and a verdict for every client, a reason for each flag.

    `notes` say what was approximated, for the calibration to keep.
    """

    maliciousness: NDArray[np.float64]
    trusted: NDArray[np.bool_]
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Defence(Protocol):
    """Decides whom to trust when at most `n_malicious` clients lie."""

    name: ClassVar[str]

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """The verdict on every client."""
        ...


@dataclass(frozen=True)
class NoDefence:
    """FCP: everybody is trusted."""

    name: ClassVar[str] = "none"

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Trust in all clients."""
        everybody = np.ones(federation.n_clients, dtype=bool)
        return Assessment(np.zeros(federation.n_clients), everybody)


@dataclass(frozen=True)
class RobFCP:
    """The paper: trust the K_b clients with the lowest mean distance to their K_b - 1 nearest.

    seed: what the reference clients of a large federation are drawn from; a secret one if None.
    device: an accelerator ("cuda") that computes all distances, however many clients there are.
    """

    distance: Metric = "l2"
    characterisation: Characterisation = "histogram"
    bins: int = 100
    seed: int | None = None
    device: str | None = None
    name: ClassVar[str] = "rob-fcp"

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Exactly `n_malicious` clients left out, whatever they look like."""
        n_benign = check_minority(federation, n_malicious)
        vectors = characterise(federation, self.characterisation, self.bins)
        estimate = nearest_means(vectors, n_benign, self.distance, self.seed, self.device)
        trusted = trust_lowest(estimate.means, federation.ids, n_benign)
        reasons = {
            federation.ids[k]: f"among the {n_malicious} clients farthest from their neighbours"
            for k in np.flatnonzero(~trusted)
        }
        notes = () if estimate.note is None else (estimate.note,)
        return Assessment(estimate.means, trusted, reasons, notes)


def named_defence(name: str, distance: Metric = "l2", exclude: Exclude = "outstanding") -> Defence:
    """The defence callers name by a string."""
    if exclude not in ("outstanding", "exactly"):
        raise RobfcpError(f"exclude: {exclude!r} is neither 'outstanding' nor 'exactly'")
    if name == "none":
        return NoDefence()
    if name == "rob-fcp":
        return RobFCP(distance)
    if name == "band":
        from robfcp.band import Band

        if distance != "l2":
            raise RobfcpError(
                "distance: band measures in units of sampling noise; "
                "leave it at 'l2' or choose defence='rob-fcp'"
            )
        return Band(exclude)
    raise RobfcpError(f"defence: {name!r} is unknown; use 'band', 'rob-fcp' or 'none'")


def maliciousness(
    federation: Federation, n_benign: int, distance: Metric = "l2", bins: int = 100
) -> NDArray[np.float64]:
    """(K,) mean distance of each client's histogram to its n_benign - 1 nearest others."""
    check_minority(federation, federation.n_clients - n_benign)
    return nearest_mean(characterise(federation, "histogram", bins), n_benign, distance)


def nearest_mean(
    vectors: NDArray[np.float64], n_benign: int, distance: Metric
) -> NDArray[np.float64]:
    """Mean distance to the n_benign - 1 nearest others; 0 where there are none."""
    return nearest_means(vectors, n_benign, distance).means


def nearest_means(
    vectors: NDArray[np.float64],
    n_benign: int,
    distance: Metric,
    seed: int | None = None,
    device: str | None = None,
) -> Estimate:
    """The same with its standard errors: exact up to 20,000 clients or on an accelerator."""
    exact = np.zeros(len(vectors))
    if n_benign < 2:
        return Estimate(np.zeros(len(vectors)), exact)
    if device is not None:
        from robfcp.gpu import gpu_neighbour_means

        return Estimate(gpu_neighbour_means(vectors, distance, 1, n_benign - 1, device), exact)
    return scalable_means(Space.of(vectors, distance), 1, n_benign - 1, cut=n_benign, seed=seed)


def trust_lowest(
    number: NDArray[np.float64], ids: tuple[str, ...], n_trusted: int
) -> NDArray[np.bool_]:
    """The n_trusted clients with the lowest maliciousness; ties go by client id.

    Compared to twelve decimals: beyond them rounding would decide, not the reports.
    """
    order = np.lexsort((np.array(ids), np.round(number, 12)))
    trusted = np.zeros(len(number), dtype=bool)
    trusted[order[:n_trusted]] = True
    return trusted


def check_minority(federation: Federation, n_malicious: int) -> int:
    """K_b = K - K_m, refused unless liars are fewer than half of those who reported."""
    n_clients = federation.n_clients
    if not n_malicious >= 0 or 2 * n_malicious >= n_clients:
        raise RobfcpError(
            f"malicious: cannot tell {n_malicious} liars from {n_clients - n_malicious} honest "
            f"clients among {n_clients}; a defence needs 2 x malicious < clients"
        )
    return n_clients - n_malicious
