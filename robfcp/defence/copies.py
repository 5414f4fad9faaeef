"""Reports that copy one another: closer than two independent samples can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence.explanations import Array, Indices
from robfcp.federation import Federation
from robfcp.report import Strata

FALSE_ALARM = 1e-3  # the chance of calling any independent samples copies
MANY = 4000  # beyond so many different reports only equal ones are looked for
CLOSE = 0.3  # of the bins in use: more than the squared distance of the roots of copies
_PAIRS = 2**12  # looked at together
_CELLS = 2**22  # of a block of all pairs
_TILTS = np.geomspace(0.1, 20, 8)


@dataclass(frozen=True, eq=False)
class Copies:
    """Clients that report the same sample, exactly or with a few counts moved."""

    rows: Indices
    clients: tuple[str, ...]
    exact: bool
    p_value: float


@lru_cache(maxsize=1)  # verdict and vote both ask for them
def find_copies(federation: Federation, false_alarm: float = FALSE_ALARM) -> tuple[Copies, ...]:
    """Groups of clients whose reports are all closer than independent samples ever are.

    Equal reports, by the chance of an equal one, and pairs by `lower_tail`, times the number of
    pairs. Whoever is close to many who are not close to each other (a mean of theirs) joins one of
    them. Of reports that hold noise or are in fives, and of very many, only equal ones are copies.
    """
    table = federation.table
    fives, codes = federation.in_fives, federation.map(_codes)
    noisy = np.zeros(len(codes), dtype=bool)
    if federation.noisy:
        noisy[:] = [law is not None and not law.never_moves for law in federation.noises]
    simple, ordered = ~(noisy | fives), np.sort(codes)
    several = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    chosen = np.isin(codes, several) if len(several) else np.zeros_like(simple)
    if (simple & ~chosen).sum() <= MANY:
        chosen |= simple
    rows = np.flatnonzero(chosen)
    _, first, owner, times = np.unique(
        codes[rows], return_index=True, return_inverse=True, return_counts=True
    )
    first, chosen[:] = rows[first], False
    chosen[first] = True
    n_pairs = max(1.0, federation.n_clients * (federation.n_clients - 1) / 2)
    own = np.zeros(len(first))
    if len(first):
        units = np.where(fives[chosen], federation.unit * Strata.FEW, 1)
        own[np.argsort(first)] = n_pairs * federation.subset(chosen).map(_chances, units)
    own[noisy[first]] = 0.0
    plain = np.flatnonzero(simple[first])
    near: dict[int, dict[int, float]] = {}  # of each report those close to it, and the chance
    if 1 < len(plain) <= MANY:
        left, right = (plain[ends] for ends in _similar(table.rows(first[plain]).dense()))
        for start in range(0, len(left), _PAIRS):
            pairs = left[start : start + _PAIRS], right[start : start + _PAIRS]
            chances = n_pairs * lower_tail(*(table.rows(first[ends]).dense() for ends in pairs))
            for one, other, chance in zip(*(ends.tolist() for ends in pairs), chances, strict=True):
                if chance <= false_alarm:
                    near.setdefault(one, {})[other] = float(chance)
                    near.setdefault(other, {})[one] = float(chance)
    groups: list[list[int]] = []
    for row in sorted(near, key=lambda row: (-len(near[row]), row)):
        joins = (group for group in groups if all(one in near[row] for one in group))
        if (group := next(joins, None)) is None:
            groups.append(group := [])
        group.append(row)
    groups = [sorted(group) for group in groups if len(group) > 1]
    joined = {row for group in groups for row in group}
    alone = np.flatnonzero((times > 1) & (own <= false_alarm)).tolist()
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(times)
    found = []
    for group in [*groups, *([row] for row in alone if row not in joined)]:
        members = [rows[order[ends[row] - times[row] : ends[row]]] for row in group]
        places = np.sort(np.concatenate(members))
        p_value = max((near[group[0]][row] for row in group[1:]), default=float(own[group[0]]))
        clients = tuple(federation.names(places))
        found.append(Copies(places, clients, len(group) == 1, p_value))
    return tuple(sorted(found, key=lambda group: group.clients))


def one_of_copies(federation: Federation) -> Indices | slice:
    """(K,) the place of the first of each site's copies, its own where it has none."""
    copies = find_copies(federation)
    if not copies:
        return slice(None)
    first = np.arange(federation.n_clients)
    for group in copies:
        first[group.rows] = group.rows[0]
    return first


def _codes(block: Federation) -> NDArray[np.uint64]:
    """(K,) codes equal for equal rows, for others with chance 2^-63."""
    starts, bins, values = block.table.entries()
    lottery = np.random.default_rng(0)
    factors = lottery.integers(2**63, size=block.grid.n_bins).astype(np.uint64)
    factors = factors * np.uint64(2) + np.uint64(1)  # odd: products lose nothing
    passed = np.concatenate([[np.uint64(0)], np.cumsum(factors[bins] * values.astype(np.uint64))])
    return np.diff(passed[starts])


def _chances(block: Federation, units: NDArray[np.int64]) -> Array:
    """(K,) P(another sample equals it): prod_b C(2 a_b, a_b) / 4^a_b given the sums of both.

    a_b is in a row's units.
    """
    from scipy.special import gammaln

    starts, _, values = block.table.entries()
    counts = np.maximum(values, 0) / np.repeat(units, np.diff(starts))
    logs = gammaln(2 * counts + 1) - 2 * gammaln(counts + 1) - 2 * counts * np.log(2)
    rows = np.repeat(np.arange(block.n_clients), np.diff(starts))
    found: Array = np.exp(np.bincount(rows, logs, minlength=block.n_clients))
    return found


def copy_note(copies: Sequence[Copies]) -> tuple[str, ...]:
    """Who sends the same report: together they have one site's say."""
    return tuple(
        f"{a_few(group.clients)} send {'the same' if group.exact else 'nearly the same'} report "
        f"(chance among independent samples {group.p_value:.2g}): they have one site's say together"
        for group in copies
    )


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


def lower_tail(first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
    """(P,) bounds on P(X^2 <= observed) for P pairs of independent samples of one distribution.

    X^2 = sum_b (a_b - q s_b)^2 / (q (1-q) s_b), s_b = a_b + c_b, q = n_a / (n_a + n_c). Given the
    sums a_b is Binomial(s_b, q), so that each term X has mean 1 and mean square M = 3 + (1 - 6 q
    (1-q)) / (q (1-q) s_b), hence E exp(-t X) <= 1 - (1 - exp(-t M)) / M; Chernoff's bound, the best
    of a few t. Different distributions only enlarge X^2.
    """
    rows, bins = np.nonzero(first + second)
    own, total = first[rows, bins], (first + second)[rows, bins]
    share = first.sum(axis=1) / (first + second).sum(axis=1)
    variance = (share * (1 - share))[rows]
    observed = np.bincount(rows, (own - share[rows] * total) ** 2 / (variance * total), len(first))
    square = 3 + (1 - 6 * variance) / (variance * total)
    logs = [
        t * observed + np.bincount(rows, np.log1p(np.expm1(-t * square) / square), len(first))
        for t in _TILTS
    ]
    found: Array = np.exp(np.minimum(np.min(logs, axis=0), 0))
    return found
