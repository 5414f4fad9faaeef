"""The default defence: evidence given the labels, one null for any number of sites, a vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.base import Exclude, Finding, LooksFirst
from robfcp.defence.consensus.constants import USUAL, Constants
from robfcp.defence.consensus.core import find_core
from robfcp.defence.consensus.evidence import views
from robfcp.defence.consensus.groups import groups_of
from robfcp.defence.consensus.law import (
    UP_TO,
    Law,
    by_bin,
    heterogeneity,
    joint_chance,
    law_of,
)
from robfcp.defence.consensus.scan import heights, null
from robfcp.defence.consensus.tables import Tables, tables_of
from robfcp.defence.consensus.vote import VotedThreshold
from robfcp.defence.consensus.words import copy_note, group_note, reasons, unjudged_note
from robfcp.defence.copies import find_copies
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import Exchangeability, FcpThreshold

LOOKS = 6
DOUBTED = 1.28  # one in ten honest sites is so odd: it is not referred to
LOWEST = -3.0  # no site is more ordinary than this
COMPARED = 0.25  # share of the variance that is a site's own noise, below which it is not judged

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Consensus(LooksFirst):
    """Trust all but the sites whose scores their own labels cannot explain, and let those vote.

    Parameters
    ----------
    exclude
        "outstanding" leaves out only sites that stand out; "exactly" the K_m oddest.
    false_alarm
        The chance of excluding anybody when nobody lies.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> federation = robfcp.Federation.from_counts(counts)
    >>> robfcp.calibrate(federation, defence=robfcp.Consensus(false_alarm=0.01)).flagged
    ('client-03',)
    """

    exclude: Exclude = "outstanding"
    false_alarm: float = USUAL.level
    name: ClassVar[str] = "consensus"

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
        >>> finding = robfcp.Consensus().look(robfcp.Federation.from_counts(counts))
        >>> np.flatnonzero(finding.outstanding)
        array([3])
        """
        if not 0 < self.false_alarm < 1:
            raise RobfcpError(
                f"false_alarm: {self.false_alarm} is not between 0 and 1; give 0.05, say"
            )
        return stand_out(federation, Constants(level=self.false_alarm))

    def threshold(
        self, federation: Federation, trusted: Mask, exchangeability: Exchangeability
    ) -> VotedThreshold | FcpThreshold:
        """The rule's own threshold on the trusted: a vote, or FCP's where counts hold noise.

        Parameters
        ----------
        federation
            The reports of one round.
        trusted
            (K,) who votes.
        exchangeability
            Of which FCP's threshold is the least the vote can give.

        Returns
        -------
        VotedThreshold or FcpThreshold
            With `index(level)`, the threshold's bin at a level.

        Examples
        --------
        >>> from fractions import Fraction
        >>> import numpy as np
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[5, 4, 1, 0]] * 4)
        >>> rule = robfcp.Consensus().threshold(federation, np.ones(4, dtype=bool), "partial")
        >>> rule.index(Fraction("0.8"))
        1
        """
        if federation.noise.exact_only(federation.unit) != 1:
            return FcpThreshold(federation, trusted, exchangeability)
        return VotedThreshold(federation, trusted, exchangeability, find_copies(federation), USUAL)


def stand_out(federation: Federation, constants: Constants = USUAL) -> Finding:
    """Who stands out: the oddest sites, alone or as a group, from all that are less odd.

    The core chooses the first reference. A look at five times the level leaves those who stand out
    off the reference, a second one at the level decides; the others are looked at afresh until
    nobody stands out or half would be gone.
    """
    copies = find_copies(federation)
    tables = tables_of(federation, copies, constants.cap)
    n_sites, owner = tables.shape[0], tables.owner
    room = (n_sites - 1) // 2
    left_out = np.zeros(n_sites, dtype=bool)
    if room < 1:
        everybody = np.zeros(federation.n_clients)
        return Finding(everybody, everybody > 0, everybody + 1, {}, copy_note(copies))
    reference, doubtful = find_core(tables), None
    last: _Look | None = None
    for _ in range(LOOKS):
        live, top = ~left_out, min(room - int(left_out.sum()), (int((~left_out).sum()) - 1) // 2)
        if top < 1:
            break
        first = _look(tables, reference, live, top, min(0.5, 5 * constants.level), constants)
        others = live & ~first.found
        for reference in (others & (first.oddity < DOUBTED), others):
            last = second = _look(tables, reference, live, top, constants.level, constants)
            if second.found.any() or not first.found.any():
                break
        doubtful = second.doubtful if doubtful is None or second.found.any() else doubtful
        if not second.found.any():
            break
        left_out |= second.found
        reference, last = ~left_out, None
    if last is None:
        last = _look(tables, reference, ~left_out, 0, constants.level, constants)
    outside = np.flatnonzero(left_out[owner])
    sites = owner[outside]
    why = reasons(
        federation,
        tables,
        reference,
        sites,
        ratio=last.ratio[sites],
        chance=last.chance[sites],
        ordinary=last.law.ordinary(tables.sizes[sites]),
    )
    notes = list(copy_note(copies))
    if doubtful is not None:
        members, hard = doubtful
        notes.append(group_note([federation.ids[k] for k in np.flatnonzero(members[owner])], hard))
    if last.unjudged.any():
        notes.append(
            unjudged_note([federation.ids[k] for k in np.flatnonzero(last.unjudged[owner])])
        )
    return Finding(
        last.oddity[owner],
        left_out[owner],
        last.chance[owner],
        {federation.ids[k]: one for k, one in zip(outside, why, strict=True)},
        tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Look:
    """Everybody against one reference, and who stands out from the rest."""

    law: Law
    ratio: Array
    chance: Array
    oddity: Array
    unjudged: Mask  # of whose variance less than a quarter is their own sampling noise
    found: Mask
    doubtful: tuple[Mask, bool] | None = None


def _look(
    tables: Tables, reference: Mask, live: Mask, top: int, level: float, constants: Constants
) -> _Look:
    """The most conspicuous set among the live, at most `top` of them."""
    from scipy.special import ndtri

    *both, own = views(tables, reference)
    unjudged = (own < COMPARED) & (tables.shape[1] > 1)
    samplings = by_bin(tables), UP_TO
    laws = [
        law_of(tables, ratio, reference, constants, sampling)
        for ratio, sampling in zip(both, samplings, strict=True)
    ]
    each = [law.chance(ratio, tables.sizes) for law, ratio in zip(laws, both, strict=True)]
    ratio, law, chance = both[0], laws[0], joint_chance(np.stack(each))
    oddity = np.maximum(-ndtri(chance), LOWEST)
    nobody = np.zeros(len(ratio), dtype=bool)
    if top < 1:
        return _Look(law, ratio, chance, oddity, unjudged, nobody)
    places = np.flatnonzero(live)
    order = places[np.argsort(oddity[places], kind="stable")]
    usual = null(len(places), top, constants.prior, constants.least)
    height = heights(oddity[places], usual.ranks, constants.prior)
    standard = np.where(height >= constants.least, usual.standard(height), -np.inf)
    if usual.chance(float(standard.max())) > level:
        return _Look(law, ratio, chance, oddity, unjudged, nobody)
    phi = heterogeneity(tables, ratio, reference, samplings[0])
    groups = groups_of(tables, reference, order, usual.ranks, phi, constants)

    def best(allowed: Mask) -> tuple[Mask, int]:
        place = int(np.argmax(np.where(allowed, standard, -np.inf)))
        found = nobody.copy()
        if allowed[place] and usual.chance(float(standard[place])) <= level:
            found[order[len(order) - usual.widest_gap(place, oddity[order]) :]] = True
        return found, place

    found, _ = best(groups.coherent & groups.impossible)
    second, place = best(groups.coherent & ~groups.impossible & (usual.ranks > 1))
    doubtful = (second, bool(groups.hard[place])) if second.any() and not found.any() else None
    return _Look(law, ratio, chance, oddity, unjudged, found, doubtful=doubtful)
