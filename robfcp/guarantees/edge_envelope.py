"""The envelope of one edge for any number of liars, worked out for many numbers together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import integers

_BLOCK = 2**17  # counts worked on at a time, so that they stay in the cache
FEW_CLIENTS = 512  # up to here looking for clients alike does not pay
Whole = NDArray[np.int64]
Shares = NDArray[np.float64]


class EdgeEnvelope:
    """L, U = min, max over removals R, |R| <= m, of sum_{k not in R} c_k / sum_{k not in R} n_k.

    Clients with the same count and the same size are of one kind, and only kinds are sorted.
    """

    def __init__(self, counts: Whole, sizes: Whole) -> None:
        below, weights, self.number = kinds(counts, sizes)
        largest = int(weights.max()) * int((weights * self.number).sum()) * 2
        self.sizes = integers(weights, largest)
        self.below = integers(below, largest)
        self._lower = _LeastShare(self.below, self.sizes, self.number)
        self._above = _LeastShare(self.sizes - self.below, self.sizes, self.number)
        self._known: dict[int, tuple[float, float]] = {}

    def ends(self, m: int) -> tuple[float, float]:
        """L and U if at most m clients lie."""
        if m not in self._known:
            self.work_out((m,))
        return self._known[m]

    def work_out(self, budgets: Sequence[int]) -> None:
        """The ends for several numbers of liars, kept until they are asked for."""
        missing = np.array(sorted(set(budgets) - set(self._known)), dtype=np.int64)
        step = max(1, _BLOCK // len(self.number))
        for start in range(0, len(missing), step):
            some = missing[start : start + step]
            low, low_total = self._lower(some)
            above, above_total = self._above(some)
            lows, highs = low / low_total, (above_total - above) / above_total
            pairs = zip(lows.tolist(), highs.tolist(), strict=True)
            self._known.update(zip(some.tolist(), pairs, strict=True))

    def without_most(self) -> tuple[Shares, Shares]:
        """(K,) L and U as if the m with most counts below, or above, were those to remove.

        Never outside the envelope of m, and close to it where the ends are close to 0 and 1.
        """
        return self._lower.without_most(), 1 - self._above.without_most()


class _LeastShare:
    """The least share of one side. More liars never make it larger: they start where fewer end."""

    def __init__(self, counts: NDArray[Any], sizes: NDArray[Any], number: Whole) -> None:
        self._counts, self._sizes, self._number = counts, sizes, number
        self._total, self._weight = (counts * number).sum(), (sizes * number).sum()
        self._alone = bool((number == 1).all())
        self._alike = bool((sizes == sizes[0]).all())
        self._budgets = [0]
        self._found = [(self._total, self._weight)]

    def __call__(self, budgets: Whole) -> tuple[Shares, Shares]:
        """Numerator and denominator (M,) for rising numbers of liars.

        Remove the <= m largest positive c_k - lambda n_k, lambda the share left, until it rests.
        """
        if self._alike:
            return self._of_alike(budgets)
        if self._alone and len(self._number) > FEW_CLIENTS:
            return self._one_by_one(budgets)
        place = np.searchsorted(self._budgets, budgets, side="right") - 1
        start = [self._found[at] for at in place.tolist()]
        numerator = np.array([pair[0] for pair in start], dtype=self._sizes.dtype)
        denominator = np.array([pair[1] for pair in start], dtype=self._sizes.dtype)
        active = np.flatnonzero(budgets)
        while active.size:
            old, weight = numerator[active], denominator[active]
            left, rest = self._without(budgets[active], old, weight)
            lower = (left * weight < old * rest).astype(bool)
            active = active[lower]
            numerator[active], denominator[active] = left[lower], rest[lower]
        self._remember(budgets, numerator, denominator)
        return numerator.astype(float), denominator.astype(float)

    def _of_alike(self, budgets: Whole) -> tuple[Shares, Shares]:
        """The same of clients of one size: without those of the most counts."""
        order = np.argsort(-self._counts)
        counts, number = self._counts[order], self._number[order]
        ends = np.cumsum(number)
        sums = np.concatenate([[0], np.cumsum(counts * number)])
        last = np.searchsorted(ends, budgets, side="left")
        part = budgets - np.concatenate([[0], ends])[last]
        gone = sums[last] + part * counts[last]
        left, rest = self._total - gone, self._weight - budgets * self._sizes[0]
        return left.astype(float), np.asarray(rest).astype(float)

    def without_most(self) -> Shares:
        """(K,) the share without the m clients of most counts, for every m < K."""
        order = np.argsort(-self._counts, kind="stable")
        number = self._number[order]
        gone = np.cumsum(np.repeat(self._counts[order], number)[:-1])
        weight = np.cumsum(np.repeat(self._sizes[order], number)[:-1])
        left = np.concatenate([[self._total], self._total - gone])
        return np.asarray(left / np.concatenate([[self._weight], self._weight - weight]), float)

    def _one_by_one(self, budgets: Whole) -> tuple[Shares, Shares]:
        """The same of many clients: each number starts where the last one ended.

        The m largest gains are parted from the others, which takes a fifth of sorting.
        """
        found: list[tuple[Any, Any]] = []
        for most in budgets.tolist():
            place = int(np.searchsorted(self._budgets, most, side="right")) - 1
            old, weight = self._found[place]
            while most > 0:
                loss = self._sizes * old - self._counts * weight
                chosen = np.argpartition(loss, most - 1)[:most]
                chosen = chosen[loss[chosen] < 0]
                left = self._total - self._counts[chosen].sum()
                rest = self._weight - self._sizes[chosen].sum()
                if not left * weight < old * rest:
                    break
                old, weight = left, rest
            found.append((old, weight))
            self._remember(np.array([most]), np.array([old]), np.array([weight]))
        numerator, denominator = zip(*found, strict=True)
        return np.array(numerator, dtype=float), np.array(denominator, dtype=float)

    def _without(
        self, budgets: Whole, old: NDArray[Any], weight: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """What is left of counts and sizes without the m largest positive gains, row by row."""
        loss = self._sizes * old[:, None]
        loss -= self._counts * weight[:, None]
        order = np.argsort(loss, axis=1)
        taken: NDArray[Any] = loss[np.arange(len(loss))[:, None], order] < 0
        if self._alone:
            taken &= np.arange(loss.shape[1]) < budgets[:, None]
        else:
            number = self._number[order] * taken
            before = np.cumsum(number, axis=1) - number
            taken = np.minimum(np.maximum(budgets[:, None] - before, 0), number)
        left = self._total - (taken * self._counts[order]).sum(axis=1)
        return left, self._weight - (taken * self._sizes[order]).sum(axis=1)

    def _remember(self, budgets: Whole, numerator: NDArray[Any], denominator: NDArray[Any]) -> None:
        found = dict(zip(self._budgets, self._found, strict=True))
        pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
        found.update(zip(budgets.tolist(), pairs, strict=True))
        self._budgets = sorted(found)
        self._found = [found[m] for m in self._budgets]


def kinds(counts: Whole, sizes: Whole) -> tuple[Whole, Whole, Whole]:
    """Distinct pairs of a count and a size, and how many clients have each.

    Every client by itself where clients are few or hardly any are alike.
    """
    n_clients, width = len(sizes), int(sizes.max()) + 1
    pairs = (int(counts.max()) + 1) * width
    if n_clients >= FEW_CLIENTS and pairs <= 4 * n_clients:
        table = np.bincount(counts * width + sizes)
        keys = np.flatnonzero(table)
        if len(keys) <= n_clients // 2:
            return keys // width, keys % width, table[keys]
    return counts, sizes, np.ones(n_clients, dtype=np.int64)
