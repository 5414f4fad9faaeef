"""The sites of a round as a judge sees them: few bins, copies merged, small numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies import Copies
from robfcp.federation import Federation
from robfcp.report import Strata

CAP = 3.0  # a site vouches for at most so many times the median number of samples
QUANTILES = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
DRAWN = 256  # of many sites, whose quantiles choose the bins and among whom majorities are sought
CELLS = 2**16  # of a block of sites worked on together
SPREADS = 2  # times that counts in fives are spread as all are
MOST_CELLS = 2**28  # of a table by class; beyond it classes are pooled
EVERYBODY = slice(None)

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def drawn(n_sites: int, seed: int) -> Indices:
    """All sites, or the rising places of a few, by lot."""
    if n_sites <= DRAWN:
        return np.arange(n_sites)
    return np.sort(np.random.default_rng(seed).choice(n_sites, DRAWN, replace=False))


@dataclass(frozen=True, eq=False)
class Sites:
    """(K, C, B) counts of K sites on a few bins, copies merged; `owner` tells each client's site.

    `told` are their sizes as they claim them, `most` the largest one that counts; `noise` (K, B) is
    the variance of privacy noise. `withheld`: whether the last class is of those who keep theirs
    back. Both tables are in the smallest whole numbers: what else there is to know of a site is
    worked out block by block.
    """

    counts: NDArray[np.integer]
    told: NDArray[np.integer]
    most: float
    noise: Array | None
    owner: Indices | slice
    ends: Indices
    withheld: bool = False

    @property
    def n(self) -> int:
        """How many."""
        return len(self.told)

    def sizes(self, block: slice | Mask = EVERYBODY) -> Array:
        """(k,) sizes, at most CAP times the median."""
        return np.minimum(self.told[block], self.most)

    def scale(self, block: slice = EVERYBODY) -> Array:
        """(k,) what brings the counts to the sizes."""
        sums = self.counts[block].sum(axis=(1, 2), dtype=np.int64)
        return self.sizes(block) / np.maximum(sums, 1)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of a misfit, the bins being unequal."""
        return max(1.0, 0.8 * (len(self.ends) - 1))

    @cached_property
    def lower_half(self) -> tuple[int, float]:
        """The last bin of the lower half of all sites' scores, and the mean site's share there."""
        every = self.total(lambda block: self.scale(block) / self.sizes(block))
        below = np.cumsum(every.sum(axis=0)) / max(every.sum(), 1e-300)
        half = int(np.searchsorted(below, 0.5))
        return half, float(below[half])

    def total(self, weights: Callable[[slice], Array]) -> Array:
        """(C, B) the counts of all with the given weights."""
        found = np.zeros(self.counts.shape[1:])
        for block in self.blocks():
            found = found + np.einsum("k,kcb->cb", weights(block), self.counts[block])
        return found

    def pooled(self) -> Sites:
        """The same without classes; itself where it has none."""
        if self.counts.shape[1] == 1:
            return self
        counts = self.counts.sum(axis=1, keepdims=True, dtype=self.counts.dtype)
        return replace(self, counts=counts, withheld=False)

    def some(self, chosen: Indices) -> Sites:
        """Of the chosen alone."""
        parts = self.counts[chosen], self.told[chosen], self.most
        noise = None if self.noise is None else self.noise[chosen]
        return Sites(*parts, noise, EVERYBODY, self.ends, self.withheld)

    def blocks(self) -> Iterator[slice]:
        """Slices of sites that fit into memory together."""
        step = max(1, CELLS // (self.counts.shape[1] * self.counts.shape[2]))
        for start in range(0, self.n, step):
            yield slice(start, min(start + step, self.n))

    def say(self, reference: Mask) -> Callable[[slice], Array]:
        """(k,) how much each of a block counts in the reference: for no more than the median."""
        middle = np.minimum(np.median(self.told), self.most)

        def said(block: slice) -> Array:
            least = np.minimum(1, middle / self.sizes(block))
            return reference[block] * self.scale(block) * least

        return said


def sites_of(federation: Federation, copies: Sequence[Copies], few: Indices) -> Sites:
    """The table of a round, its bins ending at the medians of some sites' own quantiles.

    By class where reports keep exact classes; sites that keep theirs back while others do not
    are one more, with all classes together as its reference. Copies are one site with their mean
    counts.
    """
    ends = ends_of(federation if len(few) == federation.n_clients else federation.take(few))
    counts, strata = _counts(federation, ends), federation.exact_strata
    counts = np.maximum(counts, 0) if federation.noisy else counts
    withheld = strata is not None and counts.shape[1] > strata.n_strata
    if 2 * federation.in_fives.sum() > federation.n_clients:  # a few who look so are not excused
        counts = spread(federation, ends, counts, withheld)
    kept: Indices | slice = EVERYBODY
    owner: Indices | slice = EVERYBODY
    if copies:
        place = {client: k for k, client in enumerate(federation.ids)}
        first = np.arange(federation.n_clients)
        for group in copies:
            members = [place[client] for client in group.clients]
            first[members] = members[0]
            counts[members[0]] = np.rint(counts[members].mean(axis=0)).astype(counts.dtype)
        kept, owner = np.unique(first, return_inverse=True)
        counts = counts[kept]
    told, noise = np.maximum(federation.sizes[kept], 1), None
    told = told.astype(np.min_scalar_type(told.max(initial=1)))
    if federation.private and federation.variances.any():
        noise = federation.variances[kept, None] * np.diff(ends, prepend=-1)
    return Sites(counts, told, CAP * float(np.median(told)), noise, owner, ends, withheld)


def ends_of(federation: Federation) -> Indices:
    """The last bins of the merged ones, at the medians of a few sites' own quantiles."""
    below = np.cumsum(np.maximum(federation.counts, 0), axis=1)
    shares = below / np.maximum(below[:, -1:], 1)
    last = federation.grid.n_bins - 1
    reached = [np.median((shares < level - 1e-12).sum(axis=1)) for level in QUANTILES]
    return np.unique(np.append(np.minimum(np.array(reached, dtype=np.intp), last), last))


def _counts(federation: Federation, ends: Indices) -> NDArray[np.integer]:
    """(K, C, B) merged counts in the smallest whole numbers that hold them."""
    most = int(np.abs(federation.sizes).max(initial=0))
    kind = np.min_scalar_type(most)
    strata = federation.exact_strata
    n_clients, n_bins = federation.n_clients, len(ends)
    if strata is None or n_clients * (strata.n_strata + 1) * n_bins > MOST_CELLS:
        return federation.merged(ends, np.int64 if federation.noisy else kind)[:, None, :]
    n_classes, keeps = strata.n_strata, np.zeros(n_clients, dtype=bool)
    keeps[strata.rows] = True
    every = (np.arange(n_classes)[:, None] * strata.n_bins + ends).ravel()
    merged = strata.table.merged(every, kind).reshape(-1, n_classes, n_bins)
    if keeps.all():
        return merged
    found = np.zeros((n_clients, n_classes + 1, n_bins), kind)
    found[strata.rows, :n_classes] = merged
    found[~keeps, n_classes] = federation.merged(ends)[~keeps]
    return found


def spread(
    federation: Federation, ends: Indices, counts: NDArray[np.integer], withheld: bool
) -> NDArray[np.integer]:
    """(K, C, B) counts, those in fives spread over the bins they may lie in as all sites' are.

    What scores are moved up for makes nobody odd. Reports with fewer samples a class than these
    are kept for by themselves are taken as they are: else liars would be spread among the honest.
    """
    shape, say = counts.shape, 1 / np.maximum(federation.sizes, np.median(federation.sizes))
    n_classes, width, exact = shape[1], shape[2] + 1, federation.exact_strata is not None
    for _ in range(SPREADS):
        usual = np.einsum("k,kcb->cb", say, counts) + 1e-9
        usual[-1] = usual.sum(axis=0) if withheld else usual[-1]
        passed = np.cumsum(usual, axis=1) - usual

        def moved(
            block: Federation,
            own: NDArray[np.integer],
            usual: Array = usual,
            passed: Array = passed,
        ) -> NDArray[np.integer]:
            (rows, classes, *sides, values), known = block.spans()
            if exact and block.strata is not None:  # few samples a class are moved far
                crowd = block.sizes >= Strata.CROWD * block.strata.n_strata
                known[block.strata.rows] &= crowd[block.strata.rows]
            if not known.any():
                return own
            classes = classes if n_classes > 1 else 0 * classes
            first, last = (np.searchsorted(ends, side) for side in sides)
            place = (rows * n_classes + classes) * width
            rate = values / (passed[classes, last] + usual[classes, last] - passed[classes, first])
            begun, ended = (
                np.bincount(place + at, rate, len(own) * n_classes * width)
                for at in (first, last + 1)
            )
            rates = np.cumsum((begun - ended).reshape(-1, n_classes, width), axis=2)[:, :, :-1]
            below = np.rint(np.cumsum(rates * usual, axis=2))
            found = np.diff(below, axis=2, prepend=0).astype(own.dtype)
            return np.where(known[:, None, None], found, own)

        counts = federation.map(moved, counts)
    return counts
