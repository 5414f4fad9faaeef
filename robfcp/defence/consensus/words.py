"""Verdicts in words: what is odd about a site, how odd, and what would be ordinary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robfcp._util.names import a_few
from robfcp.defence.consensus.evidence import expected
from robfcp.defence.consensus.tables import Tables
from robfcp.defence.copies import Copies
from robfcp.federation import Federation

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]


def reasons(
    federation: Federation,
    tables: Tables,
    reference: Mask,
    sites: Indices,
    *,
    ratio: Array,
    chance: Array,
    ordinary: Array,
) -> list[str]:
    """Why each of the sites is left out: its scores against those its labels lead one to expect."""
    part, total = tables.subset(sites), tables.total(reference)
    edges = [f"{edge:.3g}" for edge in federation.grid.upper[tables.ends]]
    said = "its labels lead one to expect {}" if tables.shape[1] > 1 else "{} is usual"
    found: list[str] = []
    for block in part.blocks():
        given = expected(part, reference[sites], block, total)
        size = given.counts.sum(axis=1, keepdims=True)
        own, usual = (np.cumsum(one, axis=1) / size for one in (given.counts, given.means))
        place = np.argmax(np.abs(own - usual)[:, : max(own.shape[1] - 1, 1)], axis=1)[:, None]
        shares = (np.take_along_axis(one, place, axis=1)[:, 0].tolist() for one in (own, usual))
        numbers = (one[block].tolist() for one in (ratio, chance, ordinary))
        for at, have, want, times, rare, most in zip(
            place[:, 0].tolist(), *shares, *numbers, strict=True
        ):
            rarity = f"1 in {1 / rare:,.0f}" if rare > 1e-6 else "fewer than 1 in a million"
            found.append(
                f"{have:.0%} of its scores are at most {edges[at]} where "
                f"{said.format(f'{want:.0%}')}: {times:.3g} times as far off as sampling explains, "
                f"as {rarity} honest sites of its size would be (ordinary up to {most:.2g} times)"
            )
    return found


def copy_note(copies: Sequence[Copies]) -> tuple[str, ...]:
    """Who sends the same report: together they have one site's say."""
    return tuple(
        f"{a_few(group.clients)} send {'the same' if group.exact else 'nearly the same'} report "
        f"(chance among independent samples {group.p_value:.2g}): they have one site's say together"
        for group in copies
    )


def group_note(names: Sequence[str], hard: bool) -> str:
    """Two groups that the reports cannot tell apart from a lie."""
    kind = "harder" if hard else "easier"
    return (
        f"two groups: {a_few(names)} have {kind} scores than the others, as another population "
        f"would and as some lies do; the reports cannot tell which, so nobody was left out for it: "
        f"ask these sites what differs"
    )


def unjudged_note(names: Sequence[str]) -> str:
    """Sites whose classes hardly anybody else holds."""
    return (
        f"{a_few(names)}: hardly anybody else holds their classes, so that there is little to "
        f"compare them with"
    )
