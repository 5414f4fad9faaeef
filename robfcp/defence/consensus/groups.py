"""What the oddest sites have in common: whether they are one group, and one that can be honest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.constants import Constants
from robfcp.defence.consensus.evidence import expected, residuals
from robfcp.defence.consensus.tables import Tables

BODY = 0.08  # expected share beyond the edge that parts body and tail, at least

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ranks = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """For each number j of oddest sites: are they a group, and may it be left out.

    `coherent`: they differ among themselves hardly more than the others do, or little beside their
    distance from them. `impossible`: their scores are both easier and harder than expected, or
    they lack most of what is expected of their body or their tail: no honest population. `hard`:
    harder on the whole.
    """

    coherent: Mask
    impossible: Mask
    hard: Mask


def groups_of(
    tables: Tables,
    reference: Mask,
    order: NDArray[np.intp],
    ranks: Ranks,
    phi: float,
    constants: Constants,
) -> Groups:
    """Of the sites in `order`, least odd first, those of the given ranks and odder ones together.

    All in one pass: sums over the sites between two ranks.
    """
    segment = np.full(tables.shape[0], -1)
    segment[order[::-1]] = np.searchsorted(ranks, np.arange(1, len(order) + 1))
    total = tables.total(reference)
    sums = _Sums(len(ranks) + 1, tables.shape[2])
    for block in tables.blocks():
        live = segment[block] >= 0
        given = expected(tables, reference, block, total)
        counts, means, variances = (
            part[live] for part in (given.counts, given.means, given.variances)
        )
        noise = 0.0 if tables.noise is None else tables.noise[block][live]
        sizes = tables.sizes[block][live][:, None]
        differences, _ = residuals(counts, means, variances, noise)
        roots = 2 * np.sqrt((counts + 0.375) / sizes)
        sums.add(
            segment[block][live],
            (sizes / (1 + phi * sizes))[:, 0],
            differences / np.sqrt(sizes),
            roots,
            counts,
            means,
        )
    return sums.judged(ranks, len(order), constants)


class _Sums:
    """Weighted sums over segments of sites."""

    def __init__(self, n_segments: int, n_bins: int) -> None:
        self.scalars = np.zeros((n_segments, 3))  # weights, weighted squares of both vectors
        self.vectors = np.zeros((n_segments, 4, n_bins))  # both vectors, counts, expected counts

    def add(self, segment: Ranks, weights: Array, *parts: Array) -> None:
        """Add a block of sites: their weights, residuals, roots, counts and expected counts."""
        residual, roots, counts, means = parts
        squares = [weights * (part**2).sum(axis=1) for part in (residual, roots)]
        for number, values in enumerate((weights, *squares)):
            self.scalars[:, number] += self._summed(segment, values)
        vectors = weights[:, None] * residual, weights[:, None] * roots, counts, means
        for number, table in enumerate(vectors):
            for column, values in enumerate(table.T):
                self.vectors[:, number, column] += self._summed(segment, values)

    def _summed(self, segment: Ranks, values: Array) -> Array:
        return np.asarray(np.bincount(segment, values, minlength=len(self.scalars)))

    def judged(self, ranks: Ranks, n_sites: int, constants: Constants) -> Groups:
        """The same for every rank from sums of all segments up to it and of those beyond."""
        scalars, vectors = np.cumsum(self.scalars, axis=0), np.cumsum(self.vectors, axis=0)
        upper, lower = (
            (scalars[:-1], vectors[:-1]),
            (
                scalars[-1] - scalars[:-1],
                vectors[-1] - vectors[:-1],
            ),
        )
        (within, apart), (_, apart_roots) = (
            _spread(upper, lower, ranks, n_sites, number) for number in (0, 1)
        )
        close = np.minimum(apart, apart_roots) <= constants.within
        counts, means = upper[1][:, 2], upper[1][:, 3]
        size = counts.sum(axis=1, keepdims=True)
        lead = np.cumsum(counts - means, axis=1) / size  # F observed less F expected
        hard = lead.mean(axis=1) < 0
        # twice as much for easier sites: to lose them costs no coverage
        diverse = np.where(hard, 1, 2) * constants.diverse
        coherent = (ranks == 1) | (within <= diverse) | close
        crosses = np.where(hard, lead.max(axis=1), -lead.min(axis=1)) > constants.cross
        own, usual = (np.cumsum(part, axis=1) / size for part in (counts, means))
        everybody = np.cumsum(vectors[-1, 2])[None] / vectors[-1, 2].sum()
        body, tail = _shares(own, usual, BODY)
        # a group must lack the lower half of all scores too: else liars who share the easiest
        # scores make the honest look impossible
        lower_half, _ = _shares(own, everybody, 0.5)
        body = np.where(ranks == 1, body, np.maximum(body, lower_half))
        lacking = np.where(ranks == 1, 1 - (1 - constants.lacks) / 2, constants.lacks)
        without = np.where(hard, body <= lacking, tail <= constants.lacks)
        return Groups(coherent, crosses | without, hard)


def _shares(own: Array, usual: Array, least: float) -> tuple[Array, Array]:
    """(J,) how much groups have of the usual body and of the usual tail.

    The tail is what is expected beyond the last edge with so much beyond it, or all there is.
    """
    beyond = 1 - usual
    inside = beyond >= np.minimum(least, beyond.max(axis=1, keepdims=True))
    edge = usual.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1)[:, None]
    known = np.take_along_axis(usual, edge, axis=1)[:, 0]
    found = np.take_along_axis(own, np.broadcast_to(edge, (len(own), 1)), axis=1)[:, 0]
    return found / np.maximum(known, 1e-12), (1 - found) / np.maximum(1 - known, 1e-12)


def _spread(
    upper: tuple[Array, Array], lower: tuple[Array, Array], ranks: Ranks, n_sites: int, number: int
) -> tuple[Array, Array]:
    """Variance within the upper sites over that within the lower, and over their distance."""

    def within(part: tuple[Array, Array]) -> Array:
        scalars, vectors = part
        squares = (vectors[:, number] ** 2).sum(axis=1) / np.maximum(scalars[:, 0], 1e-300)
        return np.maximum(scalars[:, 1 + number] - squares, 0)

    def mean(part: tuple[Array, Array]) -> Array:
        found: Array = part[1][:, number] / np.maximum(part[0][:, :1], 1e-300)
        return found

    own = within(upper) / np.maximum(ranks - 1, 1)
    others = within(lower) / np.maximum(n_sites - ranks - 1, 1)
    distance = ((mean(upper) - mean(lower)) ** 2).sum(axis=1) * upper[0][:, 0] / ranks
    return own / np.maximum(others, 1e-12), own / np.maximum(distance, 1e-12)
