"""Reports that copy one another: closer than two independent samples can be."""

from __future__ import annotations

import numpy as np

from robfcp.defence.copies.exact import exact_copies
from robfcp.defence.copies.links import FALSE_ALARM, Copies
from robfcp.defence.copies.noisy import noisy_copies
from robfcp.federation import Federation

__all__ = ["FALSE_ALARM", "Copies", "find_copies"]


def find_copies(federation: Federation, false_alarm: float = FALSE_ALARM) -> tuple[Copies, ...]:
    """Groups of copies among the reports without noise, and among those with the same noise.

    Evidence and vote ask for them both: what was found is kept with the federation.
    """
    kept: dict[float, tuple[Copies, ...]] = federation.memo.setdefault("copies", {})
    if false_alarm not in kept:
        kept[false_alarm] = _sought(federation, false_alarm)
    return kept[false_alarm]


def _sought(federation: Federation, false_alarm: float) -> tuple[Copies, ...]:
    if not federation.noise.moves(federation.unit):
        return exact_copies(federation, false_alarm)
    laws = federation.noise.moving_laws(federation.unit)
    n_pairs = federation.n_clients * (federation.n_clients - 1) / 2
    found: list[Copies] = []
    for law in sorted({law for law in laws if law is not None}):
        rows = np.array([own == law for own in laws])
        if rows.sum() > 1:
            found += noisy_copies(federation.subset(rows), law, false_alarm, n_pairs)
    plain = np.array([law is None for law in laws])
    if plain.any():
        found += exact_copies(federation.subset(plain), false_alarm)
    return tuple(sorted(found, key=lambda group: group.clients))
