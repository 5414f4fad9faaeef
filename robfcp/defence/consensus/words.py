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


def reason(
    federation: Federation,
    tables: Tables,
    reference: Mask,
    site: int,
    total: Array,
    *,
    ratio: float,
    chance: float,
    ordinary: float,
) -> str:
    """Why a site is left out: its scores against those its labels lead one to expect."""
    block = slice(site, site + 1)
    given = expected(tables, reference, block, total)
    counts, means = given.counts[0], given.means[0]
    size = counts.sum()
    own, usual = np.cumsum(counts) / size, np.cumsum(means) / size
    place = int(np.argmax(np.abs(own - usual)[:-1])) if len(own) > 1 else 0
    edge = federation.grid.upper[tables.ends[place]]
    expected_share = f"{usual[place]:.0%}"
    said = (
        f"its labels lead one to expect {expected_share}"
        if tables.shape[1] > 1
        else f"{expected_share} is usual"
    )
    rarity = f"1 in {1 / chance:,.0f}" if chance > 1e-6 else "fewer than 1 in a million"
    return (
        f"{own[place]:.0%} of its scores are at most {edge:.3g} where {said}: "
        f"{ratio:.3g} times as far off as sampling explains, as {rarity} honest sites of its "
        f"size would be (ordinary up to {ordinary:.2g} times)"
    )


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
