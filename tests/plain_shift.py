"""Label shift in plain loops: pairs, pruning, label distributions, and sampled federations."""

from itertools import combinations
from math import exp, log

import numpy as np

from robfcp.binning import Binning
from robfcp.federation import Federation
from robfcp.reports import Report, StratifiedCounts


def random_table(rng):
    """Return (K, C) cumulative counts at one bin, sizes and m; up to m clients are malicious."""
    n_clients, n_classes = int(rng.integers(3, 25)), int(rng.integers(1, 7))
    max_malicious = int(rng.integers(0, n_clients // 2 if rng.random() < 0.9 else n_clients))
    sizes = rng.integers(0, 60, (n_clients, n_classes)) * (rng.random((n_clients, n_classes)) < 0.8)
    sizes[:, 0] += 1
    cumulative = rng.binomial(sizes, rng.uniform(0.6, 1, n_classes))
    n_malicious = int(rng.integers(0, max_malicious + 1))
    cumulative[:n_malicious] = 0 if rng.random() < 0.5 else sizes[:n_malicious]
    return cumulative, sizes, max_malicious


def common_classes(cumulative, sizes, k, peer):
    """Yield for each class of both: sizes a and b, cumulative counts x and y, pooled fraction."""
    for c in range(sizes.shape[1]):
        a, b = int(sizes[k, c]), int(sizes[peer, c])
        if a and b:
            x, y = int(cumulative[k, c]), int(cumulative[peer, c])
            yield a, b, x, y, (x + y) / (a + b)


def moments(cumulative, sizes, k, peer):
    """Return k's samples, cumulative count, and the mean and variance given the pooled counts."""
    pairs = list(common_classes(cumulative, sizes, k, peer))
    n, x = sum(a for a, *_ in pairs), sum(x for _, _, x, _, _ in pairs)
    mean = sum(a * fraction for a, _, _, _, fraction in pairs)
    variance = sum(a * b / (a + b - 1) * f * (1 - f) for a, b, _, _, f in pairs)
    return n, x, mean, variance


def divergence(p, q):
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    return (p * log(p / q) if p else 0.0) + ((1 - p) * log((1 - p) / (1 - q)) if p < 1 else 0.0)


def pair_p(cumulative, sizes, k, peer, sigma):
    """Return the p-value for "k and peer are both benign" at one bin."""
    if sigma:
        pairs = list(common_classes(cumulative, sizes, k, peer))
        weight = sum(a * b / (a + b) for a, b, *_ in pairs)
        difference = sum(a * b / (a + b) * (x / a - y / b) for a, b, x, y, _ in pairs)
        excess = max(abs(difference) - 2 * sigma * weight, 0.0)
        return min(1.0, 2 * exp(-2 * excess**2 / weight)) if weight else 1.0
    n, x, mean, variance = moments(cumulative, sizes, k, peer)
    if not n or variance <= 0:
        return 1.0
    if x > mean:
        x, mean = n - x, n - mean
    draws = mean * mean / (mean - variance)  # the binomial of equal mean and variance
    return min(1.0, 2 * exp(-draws * max(divergence(x / draws, mean / draws), 0)))


def pruned_clients(cumulative, sizes, max_malicious, beta, sigma):
    """Return the clients that theorem P keeps, or None."""
    n_clients = len(sizes)
    n_witnesses = max(1, (n_clients - 2 * max_malicious) // 4)
    remaining, max_left = list(range(n_clients)), max_malicious
    if max_malicious == 0 or max_malicious + n_witnesses > n_clients - 1:
        return remaining
    p_values = [
        [pair_p(cumulative, sizes, k, i, sigma) for i in range(n_clients)] for k in range(n_clients)
    ]
    while True:
        contradicted = []
        for k in remaining:
            peer_p_values = sorted(p_values[k][i] for i in remaining if i != k)
            if len(peer_p_values) >= max_left + n_witnesses:
                contradicted += [k] * (
                    peer_p_values[max_left + n_witnesses - 1]
                    * (n_clients - 1 - max_malicious)
                    / n_witnesses
                    <= beta / n_clients
                )
        if not contradicted:
            return remaining
        if len(contradicted) > max_left:
            return None
        remaining = [k for k in remaining if k not in contradicted]
        max_left -= len(contradicted)


def max_miss_fraction(miss, sizes, max_malicious):
    """Return the largest pooled miscoverage of a class over removals of at most m holders."""
    holders = [k for k in range(len(sizes)) if sizes[k]]
    max_fraction = 0.0
    for n_removed in range(min(max_malicious, len(holders) - 1) + 1):
        for removed in combinations(holders, n_removed):
            remaining = [k for k in holders if k not in removed]
            max_fraction = max(
                max_fraction, sum(miss[k] for k in remaining) / sum(sizes[k] for k in remaining)
            )
    return max_fraction


def critical_value(effective, alpha, delta):
    """Return the largest y <= alpha with exponent ln(1/delta) or more, by bisection, or None."""
    if effective * alpha < log(1 / delta):
        return None
    low, high = 0.0, alpha
    for _ in range(100):
        y = (low + high) / 2
        is_reached = effective * (alpha - y + (y * log(y / alpha) if y else 0)) >= log(1 / delta)
        low, high = (y, high) if is_reached else (low, y)
    return low


def accepts(cumulative, sizes, max_malicious, distribution, alpha, delta):
    """Return whether rule T accepts one label distribution at one bin, on the clients kept."""
    classes = [c for c in range(len(distribution)) if distribution[c] > 0]
    n_clients = len(sizes)
    bound, effective, weights = 0.0, float("inf"), [0.0] * n_clients
    for c in classes:
        total = int(sizes[:, c].sum())
        min_size = total - sum(sorted(sizes[:, c].tolist(), reverse=True)[:max_malicious])
        if min_size <= 0:
            return False
        effective = min(effective, min_size / distribution[c])
        fraction = (total - int(cumulative[:, c].sum())) / total
        bound += distribution[c] * fraction
        for k in range(n_clients):
            e = (sizes[k, c] - cumulative[k, c]) - fraction * sizes[k, c]
            weights[k] += distribution[c] * max(-e / total, -e / min_size)
    threshold = critical_value(effective, alpha, delta)
    if threshold is None:
        return False
    if bound + sum(sorted((max(w, 0) for w in weights), reverse=True)[:max_malicious]) <= threshold:
        return True
    n_missed = sizes - cumulative
    return (
        sum(
            distribution[c] * max_miss_fraction(n_missed[:, c], sizes[:, c], max_malicious)
            for c in classes
        )
        <= threshold
    )


def label_distribution_bin(
    counts, distributions, alpha, max_malicious, delta, sigma=0.0, without=None
):
    """Return the bin of rule T, from the top bin down, without one client if given, or None."""
    rows = [k for k in range(len(counts.clients)) if k != without]
    sizes, bin_index = counts.class_sizes[rows], None
    for position in reversed(range(len(counts.edges))):
        cumulative = counts.cumulative[position][rows]
        remaining = pruned_clients(cumulative, sizes, max_malicious, 0.2 * delta, sigma)
        if remaining is None:
            return None
        max_left = max_malicious - (len(rows) - len(remaining))
        available_alpha = alpha - sigma
        if not all(
            accepts(
                cumulative[remaining], sizes[remaining], max_left, p, available_alpha, 0.8 * delta
            )
            for p in distributions
        ):
            break
        bin_index = int(counts.edges[position])
    return bin_index


# Sampled federations


def class_cdfs(n_classes, bins, spread=1.0):
    """Return (C, B) CDFs of the classes at each edge: classes differ, clients do not."""
    powers = np.exp(np.linspace(-spread, spread, n_classes)) * 2
    return ((np.arange(bins) + 1) / bins)[None, :] ** powers[:, None]


def draw_clients(rng, label_counts, cdfs):
    """Return (K, C, B) benign counts of clients with the given label counts."""
    return rng.multinomial(label_counts, np.diff(cdfs, axis=1, prepend=0))


def label_counts(rng, n_clients, n_classes, n, concentration=2.0):
    """Return (K, C) label counts of n samples for each client, whose distributions differ."""
    return rng.multinomial(n, rng.dirichlet(np.full(n_classes, concentration), n_clients))


def client_reports(tables, names=None):
    """Return a report by class of each client from (K, C, B) counts."""
    tables = np.asarray(tables)
    _, n_classes, bins = tables.shape
    reports = []
    for k, table in enumerate(tables):
        flat = table.ravel()
        cells = np.flatnonzero(flat)
        strata = StratifiedCounts("class", names or n_classes, cells, flat[cells], bins)
        reports.append(Report(f"site-{k:02d}", None, Binning.uniform(bins), strata=strata))
    return reports


def federation_by_class(tables, names=None):
    """Return a federation from (K, C, B) counts by class."""
    return Federation.from_reports(client_reports(tables, names))


ATTACKS = ("bottom", "top", "shifted", "mimic")


def attack_tables(rng, tables, n_malicious, attack):
    """Forge the last clients: all lowest, all highest, lower by a fifth, or half lowest."""
    attacked = tables.copy()
    bins = tables.shape[2]
    for k in range(len(tables) - n_malicious, len(tables)):
        sizes = tables[k].sum(axis=1)
        attacked[k] = 0
        if attack == "shifted":
            moved = np.maximum(np.arange(bins) - bins // 5, 0)
            np.add.at(attacked[k].T, moved, tables[k].T)
        elif attack == "mimic":
            attacked[k] = rng.binomial(tables[k], 0.5)
            attacked[k][:, 0] += sizes - attacked[k].sum(axis=1)
        else:
            attacked[k][:, 0 if attack == "bottom" else -1] = sizes
    return attacked
