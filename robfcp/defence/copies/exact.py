"""Reports that copy one another: closer than two independent samples can be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies.large import MANY, codes_of, similar_rows
from robfcp.defence.copies.links import Copies, components
from robfcp.federation import Counts, Federation

_BLOCK = 2**24
_PAIRS = 2**14
MARGIN = 1e3  # by which the chi-square law may be too large in its lower tail
_TILTS = np.geomspace(0.05, 30, 24)
_NORMAL = 200  # standard deviation of a count beyond which it is taken as normal

Array = NDArray[np.float64]


def exact_copies(federation: Federation, false_alarm: float) -> tuple[Copies, ...]:
    """Groups of clients whose reports are closer than independent samples ever are.

    Pairs are compared by X^2 = sum_b (a_b - q s_b)^2 / (q (1-q) s_b), s_b = a_b + c_b, q = n_a/(n_a
    + n_c). For independent samples of one distribution a_b is Binomial(s_b, q) and X^2 is about the
    number of bins in use; different distributions only enlarge it. A pair are copies when the
    Chernoff bound on P(X^2 <= observed) times the number of pairs is at most `false_alarm`.
    """
    table, codes = federation.table, codes_of(federation.table, federation.grid.n_bins)
    first, owner = np.unique(codes.rows, return_index=True, return_inverse=True)[1:]
    n_pairs = federation.n_clients * (federation.n_clients - 1) / 2
    repeated = np.flatnonzero(np.bincount(owner) > 1)
    few = len(first) <= MANY
    left, right = _similar(table.rows(first).dense()) if few else similar_rows(table, codes, first)
    likely = _close_enough(table, first[left], first[right], MARGIN * false_alarm / max(n_pairs, 1))
    left, right = (np.concatenate([repeated, ends[likely]]) for ends in (left, right))
    pairs = zip(left, right, strict=True)
    p_values = n_pairs * np.array(
        [lower_tail(table.row(first[i]), table.row(first[j])) for i, j in pairs]
    )
    close = p_values <= false_alarm
    groups = components(owner, left[close], right[close])
    member = np.zeros(len(first), dtype=np.intp)
    for number, group in enumerate(groups):
        member[owner[group]] = number
    worst = np.zeros(len(groups))
    np.maximum.at(worst, member[left[close]], p_values[close])
    return tuple(
        Copies(tuple(federation.ids[k] for k in group), len(set(owner[group])) == 1, float(p_value))
        for group, p_value in zip(groups, worst, strict=True)
    )


def _close_enough(
    table: Counts, left: NDArray[np.intp], right: NDArray[np.intp], most: float
) -> NDArray[np.bool_]:
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


def _similar(counts: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of rows with sum (sqrt a - sqrt c)^2 below 0.3 of the bins used by either.

    X^2 is at most twice that sum; independent samples come to between half and all of the bins.
    """
    counts = counts[:, counts.any(axis=0)]
    roots = np.sqrt(counts)
    filled = (counts > 0).astype(np.float64)
    sizes, bins = counts.sum(axis=1), filled.sum(axis=1)
    left, right = [], []
    step = max(1, _BLOCK // max(1, len(counts)))
    for start in range(0, len(counts), step):
        rows = slice(start, min(start + step, len(counts)))
        squared = sizes[rows, None] + sizes - 2 * roots[rows] @ roots.T
        either = bins[rows, None] + bins - filled[rows] @ filled.T
        first, second = np.nonzero(squared < 0.3 * either)
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
