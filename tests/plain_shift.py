"""Label shift in plain loops: pairs, pruning, mixes and worlds to draw federations from."""

from itertools import combinations
from math import exp, log

import numpy as np

from robfcp.binning import Binning
from robfcp.federation import Federation
from robfcp.reports import Report, StratifiedCounts


def random_table(rng):
    """Counts below and sizes (K, C) at one edge, a bound m, and up to m gross liars."""
    n_sites, n_classes = int(rng.integers(3, 25)), int(rng.integers(1, 7))
    m = int(rng.integers(0, n_sites // 2 if rng.random() < 0.9 else n_sites))
    sizes = rng.integers(0, 60, (n_sites, n_classes)) * (rng.random((n_sites, n_classes)) < 0.8)
    sizes[:, 0] += 1
    below = rng.binomial(sizes, rng.uniform(0.6, 1, n_classes))
    liars = int(rng.integers(0, m + 1))
    below[:liars] = 0 if rng.random() < 0.5 else sizes[:liars]
    return below, sizes, m


def in_common(below, sizes, k, other):
    """Of every class that both hold: sizes a and b, counts below x and y, and the pooled share."""
    for c in range(sizes.shape[1]):
        a, b = int(sizes[k, c]), int(sizes[other, c])
        if a and b:
            x, y = int(below[k, c]), int(below[other, c])
            yield a, b, x, y, (x + y) / (a + b)


def moments(below, sizes, k, other):
    """Samples of k, its count below, and the mean and variance of that given the pooled counts."""
    shared = list(in_common(below, sizes, k, other))
    n, x = sum(a for a, *_ in shared), sum(x for _, _, x, _, _ in shared)
    mean = sum(a * share for a, _, _, _, share in shared)
    variance = sum(a * b / (a + b - 1) * s * (1 - s) for a, b, _, _, s in shared)
    return n, x, mean, variance


def divergence(p, q):
    """Kullback and Leibler's, of two coins."""
    return (p * log(p / q) if p else 0.0) + ((1 - p) * log((1 - p) / (1 - q)) if p < 1 else 0.0)


def pair_p(below, sizes, k, other, sigma):
    """The p-value for "k and other are both honest" at one edge."""
    if sigma:
        shared = list(in_common(below, sizes, k, other))
        weight = sum(a * b / (a + b) for a, b, *_ in shared)
        difference = sum(a * b / (a + b) * (x / a - y / b) for a, b, x, y, _ in shared)
        beyond = max(abs(difference) - 2 * sigma * weight, 0.0)
        return min(1.0, 2 * exp(-2 * beyond**2 / weight)) if weight else 1.0
    n, x, mean, variance = moments(below, sizes, k, other)
    if not n or variance <= 0:
        return 1.0
    if x > mean:
        x, mean = n - x, n - mean
    draws = mean * mean / (mean - variance)  # the binomial of equal mean and variance
    return min(1.0, 2 * exp(-draws * max(divergence(x / draws, mean / draws), 0)))


def pruned(below, sizes, m, beta, sigma):
    """Whom theorem P keeps, or None."""
    n_sites = len(sizes)
    j = max(1, (n_sites - 2 * m) // 4)
    kept, left = list(range(n_sites)), m
    if m == 0 or m + j > n_sites - 1:
        return kept
    p = [[pair_p(below, sizes, k, i, sigma) for i in range(n_sites)] for k in range(n_sites)]
    while True:
        odd = []
        for k in kept:
            against = sorted(p[k][i] for i in kept if i != k)
            if len(against) >= left + j:
                odd += [k] * (against[left + j - 1] * (n_sites - 1 - m) / j <= beta / n_sites)
        if not odd:
            return kept
        if len(odd) > left:
            return None
        kept = [k for k in kept if k not in odd]
        left -= len(odd)


def largest_share(miss, sizes, m):
    """The largest pooled miss share of a class over the removals of at most m holders."""
    holders = [k for k in range(len(sizes)) if sizes[k]]
    found = 0.0
    for removed in range(min(m, len(holders) - 1) + 1):
        for gone in combinations(holders, removed):
            rest = [k for k in holders if k not in gone]
            found = max(found, sum(miss[k] for k in rest) / sum(sizes[k] for k in rest))
    return found


def critical(effective, alpha, delta):
    """The largest y <= alpha whose exponent reaches ln(1/delta), by bisection; None: none does."""
    if effective * alpha < log(1 / delta):
        return None
    low, high = 0.0, alpha
    for _ in range(100):
        y = (low + high) / 2
        reached = effective * (alpha - y + (y * log(y / alpha) if y else 0)) >= log(1 / delta)
        low, high = (y, high) if reached else (low, y)
    return low


def accepts(below, sizes, left, mix, alpha, delta):
    """Rule T at one edge for one mix, on those kept."""
    wanted = [c for c in range(len(mix)) if mix[c] > 0]
    n_sites = len(sizes)
    bound, effective, weights = 0.0, float("inf"), [0.0] * n_sites
    for c in wanted:
        total = int(sizes[:, c].sum())
        least = total - sum(sorted(sizes[:, c].tolist(), reverse=True)[:left])
        if least <= 0:
            return False
        effective = min(effective, least / mix[c])
        share = (total - int(below[:, c].sum())) / total
        bound += mix[c] * share
        for k in range(n_sites):
            e = (sizes[k, c] - below[k, c]) - share * sizes[k, c]
            weights[k] += mix[c] * max(-e / total, -e / least)
    limit = critical(effective, alpha, delta)
    if limit is None:
        return False
    if bound + sum(sorted((max(w, 0) for w in weights), reverse=True)[:left]) <= limit:
        return True
    miss = sizes - below
    return sum(mix[c] * largest_share(miss[:, c], sizes[:, c], left) for c in wanted) <= limit


def mix_edge(counts, mixes, alpha, m, delta, sigma=0.0, without=None):
    """Rule T from the top edge down, without one site if so asked; None: infinite."""
    rows = [k for k in range(len(counts.clients)) if k != without]
    sizes, found = counts.class_sizes[rows], None
    for place in reversed(range(len(counts.edges))):
        below = counts.cumulative[place][rows]
        kept = pruned(below, sizes, m, 0.2 * delta, sigma)
        if kept is None:
            return None
        left = m - (len(rows) - len(kept))
        room = alpha - sigma
        if not all(accepts(below[kept], sizes[kept], left, p, room, 0.8 * delta) for p in mixes):
            break
        found = int(counts.edges[place])
    return found


# Worlds


def class_cdfs(n_classes, bins, spread=1.0):
    """(C, B) the share of each class at or below each edge: classes differ, sites do not."""
    powers = np.exp(np.linspace(-spread, spread, n_classes)) * 2
    return ((np.arange(bins) + 1) / bins)[None, :] ** powers[:, None]


def draw_sites(rng, sizes, cdfs):
    """(K, C, B) honest counts of sites with the given label counts."""
    return rng.multinomial(sizes, np.diff(cdfs, axis=1, prepend=0))


def label_counts(rng, n_sites, n_classes, n, concentration=2.0):
    """(K, C) label counts of n samples a site, with mixes that differ."""
    return rng.multinomial(n, rng.dirichlet(np.full(n_classes, concentration), n_sites))


def site_reports(tables, names=None):
    """One report by class a site from (K, C, B) counts."""
    tables = np.asarray(tables)
    _, n_classes, bins = tables.shape
    reports = []
    for k, table in enumerate(tables):
        flat = table.ravel()
        cells = np.flatnonzero(flat)
        strata = StratifiedCounts("class", names or n_classes, cells, flat[cells], bins)
        reports.append(Report(f"site-{k:02d}", None, Binning.uniform(bins), strata=strata))
    return reports


def by_class(tables, names=None):
    """A federation from (K, C, B) counts by class."""
    return Federation.from_reports(site_reports(tables, names))


ATTACKS = ("bottom", "top", "shifted", "mimic")


def lie(rng, tables, liars, attack):
    """The last `liars` sites lie: all lowest, all highest, low by a fifth, or half lowest."""
    told = tables.copy()
    bins = tables.shape[2]
    for k in range(len(tables) - liars, len(tables)):
        sizes = tables[k].sum(axis=1)
        told[k] = 0
        if attack == "shifted":
            moved = np.maximum(np.arange(bins) - bins // 5, 0)
            np.add.at(told[k].T, moved, tables[k].T)
        elif attack == "mimic":
            told[k] = rng.binomial(tables[k], 0.5)
            told[k][:, 0] += sizes - told[k].sum(axis=1)
        else:
            told[k][:, 0 if attack == "bottom" else -1] = sizes
    return told
