"""What every defence is: a verdict on everybody, from the reports and the number it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import whole
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, rank_charge


class Note(NamedTuple):
    """What else must be said of a round, and the clients that the text names.

    A note that names nobody is public: it stands in the calibration, which goes to everybody.
    """

    text: str
    clients: Sequence[str] = ()


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
    remarks: tuple[Note, ...] = ()
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


class Reasons(Mapping[str, str]):
    """Why sites are left out, put in words when asked for: `words(i)` of the i-th of the `rows`.

    Parameters
    ----------
    federation
        The reports of one round.
    rows
        The rising places of those left out.
    words
        Why the i-th of them is.
    """

    def __init__(
        self, federation: Federation, rows: NDArray[Any], words: Callable[[int], str]
    ) -> None:
        self.federation, self.rows, self.words = federation, rows, words

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self)}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.federation.names(self.rows))

    def __getitem__(self, name: str) -> str:
        return self.words(self._places[name])

    def items(self) -> Any:
        """Names and reasons, one after another."""
        return zip(self, map(self.words, range(len(self))), strict=True)

    def __repr__(self) -> str:
        return repr(dict(self.items()))

    def __reduce__(self) -> Any:
        """Pickled as the dictionary it stands for."""
        return dict, (list(self.items()),)

    def among(self, mask: NDArray[np.bool_]) -> Reasons:
        """Of the chosen sites alone.

        Parameters
        ----------
        mask
            (K,) of whom.
        """
        chosen = mask[self.rows]
        if chosen.all():
            return self
        kept = np.flatnonzero(chosen)
        return Reasons(self.federation, self.rows[kept], lambda row: self.words(kept[row]))


def trust_lowest(
    federation: Federation, number: NDArray[np.float64], n_trusted: int
) -> NDArray[np.bool_]:
    """The n_trusted sites with the lowest oddness; ties go by name.

    Compared to twelve decimals: beyond them rounding would decide, not the reports.
    """
    rounded = np.round(number, 12)
    last = np.partition(rounded, n_trusted - 1)[n_trusted - 1]
    trusted, tied = rounded < last, np.flatnonzero(rounded == last)
    wanted = n_trusted - int(trusted.sum())
    if wanted < len(tied):
        tied = tied[np.argsort(list(federation.names(tied)), kind="stable")]
    trusted[tied[:wanted]] = True
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
    remarks: tuple[Note, ...] = (),
    *,
    stated: bool = True,
) -> Assessment:
    """Exactly so many left out: those farthest from `origin` by the number."""
    trusted = trust_lowest(federation, number, check_minority(federation, liars))
    words = f"among the {liars} sites farthest from {origin}"
    reasons = Reasons(federation, np.flatnonzero(~trusted), lambda row: words)
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
    rule: Defence,
    federation: Federation,
    trusted: NDArray[np.bool_],
    rank: RankRule = rank_charge,
) -> ThresholdRule:
    """The defence's own threshold on the trusted; FCP's where it has none."""
    own: Callable[..., ThresholdRule] = getattr(rule, "threshold", FcpThreshold)
    return own(federation, trusted, rank)
