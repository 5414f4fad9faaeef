"""Reports that copy one another: equal, where two independent samples hardly ever are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence.base import Note
from robfcp.federation import Federation
from robfcp.report import Strata

FALSE_ALARM = 1e-3  # the chance of calling any independent samples copies


class Copies(NamedTuple):
    """Clients that send the same report, and the chance of it among independent samples."""

    rows: NDArray[np.intp]
    clients: tuple[str, ...]
    p_value: float


@lru_cache(maxsize=1)  # verdict and vote both ask for them
def find_copies(federation: Federation, false_alarm: float = FALSE_ALARM) -> tuple[Copies, ...]:
    """Groups of clients with equal reports, where chance does not explain it in any pair."""
    factors = np.random.default_rng().integers(2**63, size=federation.grid.n_bins, dtype=np.uint64)
    codes = federation.map(partial(_codes, factors=2 * factors + 1))  # odd: products lose nothing
    ordered = np.sort(codes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(several):
        return ()
    rows = np.flatnonzero(np.isin(codes, several))
    rows = rows[np.argsort(codes[rows], kind="stable")]
    groups = np.split(rows, np.flatnonzero(np.diff(codes[rows])) + 1)
    groups.sort(key=lambda group: int(group[0]))
    part = federation.take(np.array([group[0] for group in groups]))
    units = np.where(part.in_fives, part.unit * Strata.FEW, 1)
    chances = federation.n_clients * (federation.n_clients - 1) / 2 * _chances(part, units)
    return tuple(
        Copies(group, tuple(federation.names(group)), float(chance))
        for group, chance in zip(groups, chances, strict=True)
        if chance <= false_alarm
    )


def copy_notes(copies: Sequence[Copies]) -> tuple[Note, ...]:
    """Who sends the same report: together they have one site's say."""
    notes = []
    for group in copies:
        text = (
            f"{a_few(group.clients)} send the same report (chance among independent samples "
            f"{group.p_value:.2g}): they have one site's say together"
        )
        notes.append(Note(text, group.clients))
    return tuple(notes)


def _codes(block: Federation, factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(K,) codes equal for equal rows, for others with chance 2^-63 by factors nobody foresees."""
    starts, bins, values = block.table.entries()
    passed = np.concatenate([[np.uint64(0)], np.cumsum(factors[bins] * values.astype(np.uint64))])
    return np.diff(passed[starts])


def _chances(block: Federation, units: NDArray[np.int64]) -> NDArray[np.float64]:
    """(K,) P(another sample equals it): prod_b C(2 a_b, a_b) / 4^a_b given the sums of both.

    a_b is in a row's units.
    """
    from scipy.special import gammaln

    starts, _, values = block.table.entries()
    counts = np.maximum(values, 0) / np.repeat(units, np.diff(starts))
    logs = gammaln(2 * counts + 1) - 2 * gammaln(counts + 1) - 2 * counts * np.log(2)
    rows = np.repeat(np.arange(block.n_clients), np.diff(starts))
    found: NDArray[np.float64] = np.exp(np.bincount(rows, logs, minlength=block.n_clients))
    return found
