"""Reports that copy one another: closer than two independent samples can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.federation import Counts, Federation
from robfcp.privacy import Noise, pooled_mass

FALSE_ALARM = 1e-3  # the chance of calling any independent samples copies
MANY = 4000  # beyond so many different reports not every pair of them is compared
BINS_A_PART = 12  # bins in use that fall into one part, on average
MOST_PARTS = 64
LEAST = 6  # bins in use on which rows must agree before it means anything
CLOSE = 0.3  # of the bins in use: more than the squared distance of the roots of copies
MARGIN = 1e3  # by which the chi-square law may be too large in its lower tail
_PAIRS = 2**12  # looked at together
_CELLS = 2**22  # of a block of all pairs
_TILTS = np.geomspace(0.05, 30, 24)
_FINE_SCALE = 2000.0  # of noise, from which on E differs by less than a millionth
_NOISY_TILTS = np.geomspace(1e-6, 30, 60)
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
    """Groups of copies among the reports without noise, and among those with the same noise."""
    found: list[Copies] = []
    laws = [None if law is None or law.never_moves else law for law in federation.noises]
    n_pairs = federation.n_clients * (federation.n_clients - 1) / 2
    for law in sorted({law for law in laws if law is not None}):
        rows = np.array([own == law for own in laws])
        if rows.sum() > 1:
            found += _noisy_copies(federation.subset(rows), law, false_alarm, n_pairs)
    plain = np.array([law is None for law in laws])
    if plain.any():
        found += _exact_copies(federation.subset(plain), false_alarm)
    return tuple(sorted(found, key=lambda group: group.clients))


def _exact_copies(federation: Federation, false_alarm: float) -> list[Copies]:
    """Groups of clients whose reports are closer than independent samples ever are.

    Pairs are compared by X^2 = sum_b (a_b - q s_b)^2 / (q (1-q) s_b), s_b = a_b + c_b, q = n_a/(n_a
    + n_c). For independent samples of one distribution a_b is Binomial(s_b, q) and X^2 is about the
    number of bins in use; different distributions only enlarge it. A pair are copies when the
    Chernoff bound on P(X^2 <= observed) times the number of pairs is at most `false_alarm`.
    """
    table, (codes, used) = federation.table, codes_of(federation.table, federation.grid.n_bins)
    rows = codes.sum(axis=0, dtype=np.uint64)  # equal for equal reports
    first, owner = np.unique(rows, return_index=True, return_inverse=True)[1:]
    n_pairs = federation.n_clients * (federation.n_clients - 1) / 2
    repeated = np.flatnonzero(np.bincount(owner) > 1)
    if len(first) <= MANY:
        left, right = _similar(table.rows(first).dense())
    else:
        left, right = similar_rows(table, codes, used, first)
    likely = _close_enough(table, first[left], first[right], MARGIN * false_alarm / max(n_pairs, 1))
    p_values: dict[tuple[int, int], float] = {}

    def chance(one: int, other: int) -> float:
        pair = min(one, other), max(one, other)
        if pair not in p_values:
            p_values[pair] = n_pairs * lower_tail(*(table.row(first[row]) for row in pair))
        return p_values[pair]

    pairs = zip(left[likely].tolist(), right[likely].tolist(), strict=True)
    close = [pair for pair in pairs if chance(*pair) <= false_alarm]
    same = [[row] for row in repeated.tolist() if chance(row, row) <= false_alarm]
    return [
        _copies(federation, np.flatnonzero(np.isin(owner, rows)), chance(rows[0], rows[-1]))
        for rows in _mutual(close, lambda *pair: chance(*pair) <= false_alarm, same)
    ]


def _copies(federation: Federation, members: Indices, p_value: float) -> Copies:
    rows = federation.table.rows(members).dense()
    names = tuple(federation.ids[k] for k in members)
    return Copies(names, bool((rows == rows[0]).all()), p_value)


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
    alone: Sequence[list[int]] = (),
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
    single = [group for group in alone if len(found.get(group[0], ())) < 2]
    return sorted([*(sorted(group) for group in groups if len(group) > 1), *single])


def codes_of(table: Counts, n_bins: int) -> tuple[NDArray[np.uint64], Indices]:
    """(P, K) numbers that are equal for rows equal on a part of the bins; (P, K) its bins in use.

    For other rows they are equal with chance 2^-64. The bins fall into parts by lot.
    """
    starts, bins, values = table.entries()
    parts = int(np.clip(len(bins) // len(starts) // BINS_A_PART, 4, MOST_PARTS))
    part = np.random.default_rng(1).permutation(n_bins) % parts
    whole = values.astype(np.uint64)
    factors = np.random.default_rng(0).integers(2**63, size=n_bins).astype(np.uint64)
    factors = factors * np.uint64(2) + np.uint64(1)  # odd: products lose nothing
    codes = np.empty((parts, len(starts) - 1), dtype=np.uint64)
    used = np.empty(codes.shape, dtype=np.intp)
    for number in range(parts):
        inside = part == number
        codes[number] = np.add.reduceat((factors * inside)[bins] * whole, starts[:-1])
        used[number] = np.add.reduceat(inside[bins], starts[:-1], dtype=np.intp)
    return codes, used


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


def similar_rows(
    table: Counts, codes: NDArray[np.uint64], used: Indices, distinct: Indices
) -> tuple[Indices, Indices]:
    """Pairs of distinct rows that agree on a part and have sum (sqrt a - sqrt c)^2 below 0.3 bins.

    Copies with a few counts moved still agree on some part. Of several rows that agree only
    neighbours in their order are paired: pairs stay linear in K and groups are joined through
    common members. Rows are given by their places among the distinct.
    """
    found = []
    for own, bins in zip(codes[:, distinct], used[:, distinct], strict=True):
        rows = np.flatnonzero(bins >= LEAST)
        rows = rows[np.argsort(own[rows], kind="stable")]
        (same,) = np.nonzero(own[rows[1:]] == own[rows[:-1]])
        found.append(np.stack([rows[same], rows[same + 1]]))
    left, right = np.unique(np.concatenate(found, axis=1), axis=1)
    kept = np.zeros(len(left), dtype=bool)
    for start in range(0, len(left), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        first, second = (table.rows(distinct[ends[pairs]]).dense() for ends in (left, right))
        squared = ((np.sqrt(first) - np.sqrt(second)) ** 2).sum(axis=1)
        kept[pairs] = squared < CLOSE * ((first > 0) | (second > 0)).sum(axis=1)
    return left[kept], right[kept]


def _similar(counts: NDArray[np.int64]) -> tuple[Indices, Indices]:
    """Pairs of rows with sum (sqrt a - sqrt c)^2 below 0.3 of the bins used by either.

    X^2 is at most twice that sum; independent samples come to between half and all of the bins.
    """
    counts = counts[:, counts.any(axis=0)]
    roots = np.sqrt(counts)
    filled = (counts > 0).astype(np.float64)
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


def _noisy_copies(
    federation: Federation, law: Noise, false_alarm: float, n_pairs: float
) -> list[Copies]:
    """Groups of reports that hold one law of noise.

    Pairs whose squared distance noise alone undercuts with chance <= false_alarm / pairs.
    """
    counts = federation.counts.astype(np.float64)
    tilts, log_laplace = _noisy_log_laplace(law)
    exponent = counts.shape[1] * log_laplace + np.log(n_pairs)
    farthest = float(((np.log(false_alarm) - exponent) / tilts).max())
    norms = np.einsum("kb,kb->k", counts, counts)
    left, right, squares = [], [], []
    step = max(1, _CELLS // len(counts))
    for start in range(0, len(counts), step):
        rows = slice(start, min(start + step, len(counts)))
        squared = norms[rows, None] + norms - 2 * counts[rows] @ counts.T
        first, second = np.nonzero(squared <= farthest)
        later = second > first + start
        left.append(first[later] + start)
        right.append(second[later])
        squares.append(np.maximum(squared[first[later], second[later]], 0))
    ends = np.concatenate(left).tolist(), np.concatenate(right).tolist()
    p_value = np.exp((np.outer(np.concatenate(squares), tilts) + exponent).min(axis=1))
    known = dict(zip(zip(*ends, strict=True), p_value.tolist(), strict=True))
    groups = _mutual(list(known), lambda one, other: (min(one, other), max(one, other)) in known)
    return [
        _copies(federation, np.array(rows), max(known[pair] for pair in combinations(rows, 2)))
        for rows in groups
    ]


def _noisy_log_laplace(law: Noise) -> tuple[Array, Array]:
    """Tilts t and log E exp(-t N^2), N the difference of two noises.

    The counts differ by N and by whatever the samples differ by; the latter only lengthens the
    distance, so exp(t x) (E exp(-t N^2))^H bounds the chance of a squared distance of at most x.
    Beyond a scale the law has one shape: E is that of a smaller one, with t to match.
    """
    small = replace(law, scale=min(law.scale, _FINE_SCALE))
    mass = pooled_mass(((small, 2),))
    squares = np.arange(-(len(mass) // 2), len(mass) // 2 + 1) ** 2.0
    tilts = _NOISY_TILTS / max(1.0, 2 * small.variance)
    logs = np.array([np.log(mass @ np.exp(-tilt * squares)) for tilt in tilts])
    return _NOISY_TILTS / max(1.0, 2 * law.variance), logs
