"""What every defence is: a verdict on everybody, from the reports and the number it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import whole
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, rank_charge


@dataclass(frozen=True, eq=False)
class Assessment:
    """What a defence decides: a number and a verdict for every site, a reason for each flag.

    Attributes
    ----------
    oddness
        (K,) how odd each site is, by the defence's own measure.
    trusted
        (K,) whom the threshold rests on.
    reasons
        Why each site that is left out is.
    remarks
        What else must be said: what was approximated, who sends the same report.
    liars
        How many lie: as the defence was told, as it estimates, or all that it leaves out (None).
    stated
        Whether that number was told to it.
    """

    oddness: NDArray[np.float64]
    trusted: NDArray[np.bool_]
    reasons: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    liars: int | None = None
    stated: bool = False


class Defence(Protocol):
    """Decides whom to trust; how many may lie is its own business."""

    name: ClassVar[str]

    def __call__(self, federation: Federation) -> Assessment:
        """The verdict on every site.

        Parameters
        ----------
        federation
            The reports of one round.
        """
        ...


@dataclass(frozen=True)
class NoDefence(Defence):
    """FCP: everybody is trusted.

    Federated conformal prediction as in Lu et al. (2023), "Federated conformal predictors for
    distributed uncertainty quantification".

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> robfcp.calibrate(reports, 0.5, defence=robfcp.defence.NoDefence()).flagged
    ()
    """

    name: ClassVar[str] = "none"

    def __call__(self, federation: Federation) -> Assessment:
        everybody = np.ones(federation.n_clients, dtype=bool)
        return Assessment(np.zeros(federation.n_clients), everybody)


def trust_lowest(
    number: NDArray[np.float64], ids: tuple[str, ...], n_trusted: int
) -> NDArray[np.bool_]:
    """The n_trusted sites with the lowest oddness; ties go by name.

    Compared to twelve decimals: beyond them rounding would decide, not the reports.
    """
    order = np.lexsort((np.array(ids), np.round(number, 12)))
    trusted = np.zeros(len(number), dtype=bool)
    trusted[order[:n_trusted]] = True
    return trusted


def check_minority(federation: Federation, liars: int) -> int:
    """K_b = K - K_m, refused unless liars are fewer than half of those who reported."""
    n_clients = federation.n_clients
    if not liars >= 0 or 2 * liars >= n_clients:
        raise RobfcpError(
            f"liars: {liars} of {n_clients} sites cannot be told from the honest ones; a "
            f"defence needs a majority of honest sites, that is at most {(n_clients - 1) // 2}"
        )
    return n_clients - liars


def without_farthest(
    federation: Federation,
    liars: int,
    number: NDArray[np.float64],
    origin: str,
    remarks: tuple[str, ...] = (),
    *,
    stated: bool = True,
) -> Assessment:
    """Exactly so many left out: those farthest from `origin` by the number."""
    trusted = trust_lowest(number, federation.ids, check_minority(federation, liars))
    reasons = {
        federation.ids[k]: f"among the {liars} sites farthest from {origin}"
        for k in np.flatnonzero(~trusted)
    }
    return Assessment(number, trusted, reasons, remarks, liars, stated)


def numbers_told(rule: Defence, *names: str) -> None:
    """Make the numbers a defence was told plain ones; refused where they are none."""
    for name in names:
        if getattr(rule, name) is not None:
            number = whole(name, getattr(rule, name), "give a number of sites")
            object.__setattr__(rule, name, number)


class ThresholdRule(Protocol):
    """Gives the bin of a threshold at a level."""

    def index(self, level: Fraction) -> int | None:
        """The bin; None = infinite."""
        ...


def threshold_of(
    rule: Defence | None,
    federation: Federation,
    trusted: NDArray[np.bool_],
    rank: RankRule = rank_charge,
) -> ThresholdRule:
    """The defence's own threshold on the trusted; FCP's where it has none."""
    own: Callable[..., ThresholdRule] = getattr(rule, "threshold", FcpThreshold)
    return own(federation, trusted, rank)
