"""Counts by class for the test range: of samples, and of pooled counts that were forged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Counts, Stratified, table

Whole = NDArray[np.int64]
Indices = NDArray[np.intp]


def stratified(
    owner: Indices, label: Indices, bins: Indices, n_clients: int, n_classes: int, n_bins: int
) -> Stratified:
    """All clients' counts by class: N[k, c H + h] = #{i: owner_i = k, label_i = c, bin_i = h}."""
    width = n_classes * n_bins
    keys, counts = np.unique(owner * width + label * n_bins + bins, return_counts=True)
    rows = np.arange(n_clients)
    return Stratified("class", n_classes, _rows(keys, counts, n_clients, width), rows, n_bins)


def with_rows(
    strata: Stratified, owner: Indices, label: Indices, bins: Indices, clients: Indices
) -> Stratified:
    """The same with the rows of `clients` counted anew from these samples; others are kept."""
    width = strata.n_strata * strata.n_bins
    starts, cells, values = strata.table.entries()
    whose = strata.rows[np.repeat(np.arange(len(strata.rows)), np.diff(starts))]
    kept = ~np.isin(whose, clients)
    new, counts = np.unique(owner * width + label * strata.n_bins + bins, return_counts=True)
    keys = np.concatenate([whose[kept] * width + cells[kept].astype(np.int64), new])
    order = np.argsort(keys, kind="stable")
    every = np.concatenate([values[kept].astype(np.int64), counts])[order]
    rows = np.union1d(strata.rows[~np.isin(strata.rows, clients)], clients).astype(np.intp)
    place = np.searchsorted(rows, keys[order] // width)
    joined = _rows(place * width + keys[order] % width, every, len(rows), width)
    return replace(strata, table=joined, rows=rows)


def respread(strata: Stratified, counts: Whole, clients: Indices) -> Stratified:
    """The same where these clients' pooled counts (A, H) were forged without classes.

    Each is spread over the classes as `spread` says; who reported no classes still does not.
    """
    reported = np.isin(clients, strata.rows)
    clients, counts = clients[reported], counts[reported]
    if not len(clients):
        return strata
    sizes = strata.sizes[np.searchsorted(strata.rows, clients)]
    owner, label, bins = spread(counts, sizes)
    return with_rows(strata, clients[owner], label, bins, clients)


def spread(counts: Whole, sizes: Whole) -> tuple[Indices, Indices, Indices]:
    """(row, class, bin) of each sample of pooled counts (A, H) in the proportions of (A, C) sizes.

    Class c gets n_c = n s_c / sum(s) samples, rounded by largest remainders; its j-th stands at
    (j + 1/2) / n_c of the client's samples in the order of their bins, so that every class has the
    pooled distribution, all bins add up, and nothing is drawn.
    """
    quota = shares_of(counts.sum(axis=1), sizes)
    group = np.repeat(np.arange(quota.size), quota.ravel())
    owner, label = np.divmod(group, quota.shape[1])
    first = np.cumsum(quota.ravel()) - quota.ravel()
    place = (np.arange(len(group)) - first[group] + 0.5) / quota.ravel()[group]
    order = np.lexsort((label, place, owner))
    bins = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return owner, label[order], bins


def shares_of(totals: Whole, sizes: Whole) -> Whole:
    """(A, C) whole numbers that add up to the totals, next to totals x sizes / sum(sizes).

    Largest remainders: floors first, what is left to the largest fractions, the first of equals.
    """
    whole, rest = np.divmod(totals[:, None] * sizes, sizes.sum(axis=1, keepdims=True))
    rank = np.argsort(np.argsort(-rest, axis=1, kind="stable"), axis=1, kind="stable")
    found: Whole = whole + (rank < (totals - whole.sum(axis=1))[:, None])
    return found


def labelled(strata: Stratified, n_clients: int) -> list[tuple[Indices, Indices]]:
    """(bins, labels) of each client's samples, in the order of the bins, then of the classes."""
    starts, cells, values = strata.table.entries()
    found = [(np.zeros(0, np.intp), np.zeros(0, np.intp))] * n_clients
    for row, client in enumerate(strata.rows):
        here = slice(int(starts[row]), int(starts[row + 1]))
        each = np.repeat(cells[here].astype(np.intp), values[here].astype(np.intp))
        label, bins = np.divmod(each, strata.n_bins)
        order = np.argsort(bins, kind="stable")
        found[client] = bins[order], label[order]
    return found


def _rows(keys: Whole, counts: Whole, n_rows: int, width: int) -> Counts:
    """Rows of a table from rising keys row x width + cell."""
    starts = np.searchsorted(keys, np.arange(n_rows + 1) * width)
    return table(starts, keys % width, counts, width)
