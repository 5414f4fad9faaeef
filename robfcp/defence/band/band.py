"""The default of the first release: leave out who stands out from the more coherent half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.band.loners import SHARE as LONERS
from robfcp.defence.band.loners import few_outstanding
from robfcp.defence.band.spacings import CLEAR, most_conspicuous, tail_p_values
from robfcp.defence.band.views import (
    CORE_REFERENCES,
    capped_sizes,
    core_cdf,
    core_points,
    oddity,
    trusted_core,
)
from robfcp.defence.base import Exclude, Finding, LooksFirst
from robfcp.defence.copies import Copies, find_copies
from robfcp.defence.rob_fcp import LARGE, secret_seed
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

FALSE_ALARM = 0.05
CAUTION = 0.5  # most of the false alarms for groups without whom coverage would fall, K/200 of them
ODD_COPY = 0.005  # a report sent by three or more is odd itself below this p-value


@dataclass(frozen=True)
class Band(LooksFirst):
    """Trust all but the clients that stand out from the more coherent half, at most K_m of them.

    Parameters
    ----------
    exclude
        "outstanding" leaves out only clients that stand out; "exactly" the K_m oddest.
    false_alarm
        The chance of excluding anybody when nobody lies.
    seed
        What the reference clients of a large federation are drawn from; a secret one if None.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> federation = robfcp.Federation.from_counts(counts)
    >>> robfcp.calibrate(federation, defence=robfcp.Band(false_alarm=0.01)).flagged
    ('client-03',)
    """

    exclude: Exclude = "outstanding"
    false_alarm: float = FALSE_ALARM
    seed: int | None = None
    name: ClassVar[str] = "band"

    def look(self, federation: Federation) -> Finding:
        """How odd everybody is and who stands out.

        Parameters
        ----------
        federation
            The reports of one round.

        Returns
        -------
        Finding
            What `judge` takes, for any number of liars.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
        >>> counts[3] = [200] + [0] * 19
        >>> finding = robfcp.Band().look(robfcp.Federation.from_counts(counts))
        >>> np.flatnonzero(finding.outstanding)
        array([3])
        """
        return outside_band(federation, self.false_alarm, self.seed)


def outside_band(
    federation: Federation, false_alarm: float = FALSE_ALARM, seed: int | None = None
) -> Finding:
    """Who stands out: surplus copies, groups parted from the rest by a gap, a few far out.

    All but one of every group of copies are set aside first. Then the most conspicuous minority
    is, or else the few oddest clients, when the p-value is at most their part of `false_alarm`,
    and the others are looked at afresh, until nobody stands out or half would be gone. Groups that
    raise the threshold, unless their gap is clear, have min(1/2, K/200) of that part: to lose
    honest ones costs coverage, and among few clients some are alike by nature. A report sent
    by several must fit in by itself too.
    """
    if not 0 < false_alarm < 1:
        raise RobfcpError(f"false_alarm: {false_alarm} is not between 0 and 1; give 0.05, say")
    notes: tuple[str, ...] = ()
    if federation.n_clients > LARGE:
        seed = secret_seed() if seed is None else seed
        notes = (
            f"the majority was sought by {CORE_REFERENCES} reference clients drawn after the "
            f"reports were in (seed {seed})",
        )
    room = (federation.n_clients - 1) // 2
    copies = find_copies(federation)
    reasons = dict(_copy_reasons(copies)[:room])
    while True:
        kept = np.array([client not in reasons for client in federation.ids])
        rest = federation.subset(kept)
        core = trusted_core(rest, seed)
        numbers = oddity(rest, core)
        split = most_conspicuous(numbers, core_points(rest, core), capped_sizes(rest))
        p_value, size = split.p_value, split.size
        if size and split.gap < CLEAR and _raises(rest, core, numbers, size):
            p_value = min(1.0, p_value / min(CAUTION, len(numbers) / 200))
        if p_value > (1 - LONERS) * false_alarm:
            size, p_value = few_outstanding(numbers, split.coherent, LONERS * false_alarm)
            if size == 0:
                break
        if len(reasons) + size > room:
            break
        order = np.argsort(numbers, kind="stable")
        reach = numbers[order[-size - 1]]
        for k in order[-size:]:
            reasons[rest.ids[k]] = (
                f"one of {size} sites that stand out: squared distance {numbers[k]:.3g} "
                f"from the majority, where the others reach {reach:.3g} (chance of such a gap "
                f"among honest sites {p_value:.2g})"
            )
    numbers = oddity(federation, np.flatnonzero(kept)[core])
    p_values = tail_p_values(numbers, kept)
    place = {client: k for k, client in enumerate(federation.ids)} if copies else {}
    for group in copies:
        first = place[group.clients[0]]
        if kept[first] and len(group.clients) > 2 and p_values[first] <= ODD_COPY:
            reasons[group.clients[0]] = (
                f"sends the same odd report as {len(group.clients) - 1} others "
                f"(chance for an honest client {p_values[first]:.2g})"
            )
    outstanding = np.array([client in reasons for client in federation.ids])
    return Finding(numbers, outstanding, p_values, reasons, notes)


def _raises(
    federation: Federation, core: NDArray[np.intp], numbers: NDArray[np.float64], size: int
) -> bool:
    """Whether the oddest raise the threshold: they have less below the core's 90% quantile."""
    edge = int(np.searchsorted(core_cdf(federation, core), 0.9))
    below = federation.below(edge) / federation.sizes
    order = np.argsort(numbers, kind="stable")
    return bool(below[order[len(order) - size :]].mean() < below[order[: len(order) - size]].mean())


def _copy_reasons(copies: tuple[Copies, ...]) -> list[tuple[str, str]]:
    """Client and reason for all but one of every group: copies tell no more than one of them."""
    return [
        (
            client,
            f"{'an exact copy' if group.exact else 'nearly a copy'} of {group.clients[0]}'s report "
            f"({len(group.clients)} alike, chance among independent samples {group.p_value:.2g})",
        )
        for group in copies
        for client in group.clients[1:]
    ]
