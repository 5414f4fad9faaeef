"""Reports that copy one another: closer than two independent samples can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.federation import Counts, Federation

FALSE_ALARM = 1e-3  # the chance of calling any independent samples copies
MANY = 4000  # beyond so many different reports only equal ones are looked for
CLOSE = 0.3  # of the bins in use: more than the squared distance of the roots of copies
MARGIN = 1e3  # by which the chi-square law may be too large in its lower tail
_PAIRS = 2**12  # looked at together
_CELLS = 2**22  # of a block of all pairs
_TILTS = np.geomspace(0.05, 30, 24)
_NORMAL = 200  # standard deviation of a count beyond which it is taken as normal

Indices = NDArray[np.intp]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Copies:
    """Clients that report the same sample, exactly or with a few counts moved."""

    clients: tuple[str, ...]
    exact: bool
    p_value: float


@lru_cache(maxsize=1)  # verdict and vote both ask for them
def find_copies(federation: Federation, false_alarm: float = FALSE_ALARM) -> tuple[Copies, ...]:
    """Groups of clients whose reports are all closer than independent samples ever are.

    Pairs are compared by X^2 = sum_b (a_b - q s_b)^2 / (q (1-q) s_b), s_b = a_b + c_b, q = n_a/(n_a
    + n_c). For independent samples of one distribution a_b is Binomial(s_b, q) and X^2 is about the
    number of bins in use; different distributions only enlarge it. A pair are copies when the
    Chernoff bound on P(X^2 <= observed) times the number of pairs is at most `false_alarm`. Of
    reports that hold noise, and of very many, only equal ones are copies.
    """
    table, n_bins = federation.table, federation.grid.n_bins
    codes, equal = _codes_and_chances(table, n_bins)
    first, owner = np.unique(codes, return_index=True, return_inverse=True)[1:]
    order = np.argsort(owner, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(owner))[:-1])
    n_pairs = max(1.0, federation.n_clients * (federation.n_clients - 1) / 2)
    noisy = np.array([law is not None and not law.never_moves for law in federation.noises])[first]
    p_values: dict[tuple[int, int], float] = {}

    def chance(one: int, other: int) -> float:
        pair = min(one, other), max(one, other)
        if pair not in p_values:
            p_values[pair] = n_pairs * lower_tail(*(table.row(first[row]) for row in pair))
        return p_values[pair]

    close: list[tuple[int, int]] = []
    plain = np.flatnonzero(~noisy)
    if 1 < len(plain) <= MANY:
        left, right = (plain[ends] for ends in _similar(table.rows(first[plain]).dense()))
        likely = _close_enough(table, first[left], first[right], MARGIN * false_alarm / n_pairs)
        pairs = zip(left[likely].tolist(), right[likely].tolist(), strict=True)
        close = [pair for pair in pairs if chance(*pair) <= false_alarm]
    rare = noisy | (n_pairs * equal[first] <= false_alarm)
    same = np.flatnonzero((np.bincount(owner) > 1) & rare)
    found = []
    for rows in _mutual(close, lambda *pair: chance(*pair) <= false_alarm, same.tolist()):
        clients = tuple(
            federation.ids[k] for k in np.sort(np.concatenate([members[r] for r in rows]))
        )
        own = 0.0 if noisy[rows[0]] else n_pairs * float(equal[first[rows[0]]])
        p_value = max((chance(rows[0], row) for row in rows[1:]), default=own)
        found.append(Copies(clients, len(rows) == 1, p_value))
    return tuple(sorted(found, key=lambda group: group.clients))


def _codes_and_chances(table: Counts, n_bins: int) -> tuple[NDArray[np.uint64], Array]:
    """(K,) numbers equal for equal rows, for others with chance 2^-63; P(another sample equals it).

    The latter is prod_b C(2 a_b, a_b) / 4^a_b given the sums of both.
    """
    from scipy.special import gammaln

    starts, bins, values = table.entries()
    factors = np.random.default_rng(0).integers(2**63, size=n_bins).astype(np.uint64)
    factors = factors * np.uint64(2) + np.uint64(1)  # odd: products lose nothing
    counts = np.maximum(values, 0).astype(np.float64)
    logs = gammaln(2 * counts + 1) - 2 * gammaln(counts + 1) - 2 * counts * np.log(2)

    def sums(numbers: NDArray[Any]) -> NDArray[Any]:
        passed = np.concatenate([np.zeros(1, numbers.dtype), np.cumsum(numbers)])
        return passed[starts[1:]] - passed[starts[:-1]]

    return sums(factors[bins] * values.astype(np.uint64)), np.exp(sums(logs))


def copy_note(copies: Sequence[Copies]) -> tuple[str, ...]:
    """Who sends the same report: together they have one site's say."""
    return tuple(
        f"{a_few(group.clients)} send {'the same' if group.exact else 'nearly the same'} report "
        f"(chance among independent samples {group.p_value:.2g}): they have one site's say together"
        for group in copies
    )


def _mutual(
    pairs: list[tuple[int, int]],
    close: Callable[[int, int], bool],
    alone: Sequence[int] = (),
) -> list[list[int]]:
    """Groups of rows that are all close to each other, and those `alone` that are in none.

    Whoever is close to many who are not close to each other (a mean of theirs) joins one of them.
    """
    near: dict[int, set[int]] = {}
    for one, other in pairs:
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    found: dict[int, list[int]] = {}  # by member
    for row in sorted(near, key=lambda row: (-len(near[row]), row)):
        for group in {
            id(found[other]): found[other] for other in near[row] if other in found
        }.values():
            if all(other in near[row] or close(row, other) for other in group):
                group.append(row)
                found[row] = group
                break
        else:
            found[row] = [row]
    groups = {id(group): group for group in found.values()}.values()
    single = [[row] for row in alone if len(found.get(row, ())) < 2]
    return sorted([*(sorted(group) for group in groups if len(group) > 1), *single])


def _close_enough(table: Counts, left: Indices, right: Indices, most: float) -> NDArray[np.bool_]:
    """The pairs whose X^2 is below the chi-square quantile `most`: the others are never copies.

    The exact bound takes a moment for each pair, and on a few bins many pairs are similar.
    """
    from scipy.special import gammainc

    kept = np.zeros(len(left), dtype=bool)
    for start in range(0, len(left), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        first, second = (table.rows(ends[pairs]).dense() for ends in (left, right))
        total = first + second
        share = (first.sum(axis=1) / total.sum(axis=1))[:, None]
        scale = share * (1 - share) * np.maximum(total, 1)
        squared = ((first - share * total) ** 2 / scale).sum(axis=1)
        free = np.maximum((total > 0).sum(axis=1) - 1, 1)
        kept[pairs] = gammainc(free / 2, squared / 2) <= most
    return kept


def _similar(counts: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Pairs of rows with sum (sqrt a - sqrt c)^2 below 0.3 of the bins used by either.

    X^2 is at most twice that sum; independent samples come to between half and all of the bins.
    """
    counts = counts[:, counts.any(axis=0)]
    roots = np.sqrt(counts).astype(np.float32)  # near enough to choose whom to compare
    filled = (counts > 0).astype(np.float32)
    sizes, bins = counts.sum(axis=1), filled.sum(axis=1)
    left, right = [], []
    step = max(1, _CELLS // max(1, len(counts)))
    for start in range(0, len(counts), step):
        rows = slice(start, min(start + step, len(counts)))
        squared = sizes[rows, None] + sizes - 2 * roots[rows] @ roots.T
        either = bins[rows, None] + bins - filled[rows] @ filled.T
        first, second = np.nonzero(squared < CLOSE * either)
        later = second > first + start
        left.append(first[later] + start)
        right.append(second[later])
    return np.concatenate(left), np.concatenate(right)


def lower_tail(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Chernoff bound on P(X^2 <= observed) for two independent samples of one distribution.

    min_t exp(t x) prod_b E exp(-t X_b^2), X_b^2 the term of a bin under Binomial(s_b, q).
    """
    total = first + second
    share = float(first.sum() / total.sum())
    sums, repeats = np.unique(total[total > 0], return_counts=True)
    kept = total > 0
    terms = (first[kept] - share * total[kept]) ** 2 / (share * (1 - share) * total[kept])
    observed = float(terms.sum())
    log_mgf = np.zeros(len(_TILTS))
    for size, times in zip(sums, repeats, strict=True):
        log_mgf += times * _log_laplace(int(size), share)
    return float(np.exp(min(0.0, float((_TILTS * observed + log_mgf).min()))))


def _log_laplace(size: int, share: float) -> Array:
    """log E exp(-t (a - q s)^2 / (q (1-q) s)) for a ~ Binomial(s, q), at every tilt t.

    Summed over the values within 40 standard deviations; where these are too many for a sum, that
    of the normal limit, -log(1 + 2t)/2.
    """
    from scipy.special import gammaln, logsumexp

    deviation = np.sqrt(share * (1 - share) * size)
    if deviation > _NORMAL:
        return np.asarray(-np.log1p(2 * _TILTS) / 2)
    low = max(0, int(share * size - 40 * deviation) - 1)
    high = min(size, int(share * size + 40 * deviation) + 1)
    a = np.arange(low, high + 1)
    log_choose = gammaln(size + 1) - gammaln(a + 1) - gammaln(size - a + 1)
    log_mass = log_choose + a * np.log(share) + (size - a) * np.log1p(-share)
    squared = (a - share * size) ** 2 / (share * (1 - share) * size)
    result: Array = logsumexp(log_mass[None, :] - _TILTS[:, None] * squared, axis=1)
    return result
