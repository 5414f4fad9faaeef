"""The server's views of the reports: bins merged where a trusted core has its scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.rob_fcp import LARGE, Space, references, scalable_means
from robfcp.federation import Federation, projected, rising

CORE_LEVELS = np.arange(1, 10) / 10
LEVELS = np.concatenate([[0.002, 0.01, 0.04], np.arange(1, 10) / 10, [0.96, 0.99, 0.998]])
FAR_LEVELS = np.array([0.002, 0.998])
FAR_WEIGHT = 2.0
USUAL_ODDITY = 20.0  # oddity of clients that differ by noise alone: 15 + 2 x 2 + 1 free bins
CONCENTRATIONS = 4
REFINEMENTS = 2
MEDIAN_CLIENTS = 4096  # of many clients, whose median CDF the search for the core starts from
CORE_REFERENCES = 512  # of many clients, enough to tell the lower half from the rest

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def capped_sizes(federation: Federation) -> Array:
    """min(n_k, median n): sampling noise is 1/n_k, and nobody counts for more than the median."""
    sizes: Array = np.minimum(federation.sizes, np.median(federation.sizes)).astype(np.float64)
    return sizes


def median_cdf(federation: Federation, seed: int | None = None) -> Array:
    """(H,) coordinate-wise median of the clients' cumulative shares; of many, of some drawn."""
    if federation.n_clients > LARGE:
        drawn = np.zeros(federation.n_clients, dtype=bool)
        drawn[references(federation.n_clients, MEDIAN_CLIENTS, seed)] = True
        federation = federation.subset(drawn)
    shares = federation.cumulative() / federation.sizes[:, None]
    result: Array = np.median(shares, axis=0)
    return rising(result)


def core_cdf(federation: Federation, core: Indices) -> Array:
    """(H,) cumulative shares of the core, each client weighted by its capped size."""
    weights = capped_sizes(federation)[core]
    everybody = np.zeros(federation.n_clients)
    everybody[core] = weights / (weights.sum() * federation.sizes[core])
    result: Array = np.cumsum(federation.weighted(everybody))
    return rising(result)


def ends_at(cdf: Array, levels: Array) -> Indices:
    """The last bins of merged bins that end where the CDF reaches the levels."""
    last = len(cdf) - 1
    ends = np.searchsorted(cdf, levels - 1e-12)
    return np.unique(np.append(np.minimum(ends, last), last))


def offset(federation: Federation, ends: Indices) -> Array:
    """(K, B) 3/8, plus the variance of the privacy noise in each merged bin."""
    widths = np.diff(ends, prepend=-1)
    result: Array = 0.375 + federation.variances[:, None] * widths
    return result


def stabilised(
    merged: NDArray[np.int64], sizes: NDArray[np.int64], offset: Array | float = 0.375
) -> Array:
    """(K, B) 2 sqrt((c + 3/8) / n): variance about 1/n in every bin, empty ones included.

    With the variance of privacy noise in the offset (generalised Anscombe transform) noise and
    sampling together have that variance.
    """
    result: Array = 2 * np.sqrt(np.maximum(merged + offset, 0) / sizes[:, None])
    return result


def without_self(points: Array, sizes: Array, core: Indices) -> Array:
    """(K, B) weighted mean of the core's points, for a member of the core that of the others."""
    weights = np.zeros(len(points))
    weights[core] = sizes[core]
    total = weights @ points
    remaining = weights.sum() - weights
    result: Array = (total - weights[:, None] * points) / np.maximum(remaining, 1e-300)[:, None]
    return result


def squared_distance(federation: Federation, core: Indices, levels: Array) -> Array:
    """(K,) squared distance from the core in units of sampling noise, on the core's quantile bins.

    X_k^2 = n sum_b (2 sqrt((c_kb + 3/8)/n_k) - 2 sqrt(p_b + 3/(8 n_k)))^2, n = min(n_k, median):
    about the number of bins for a client that differs by noise alone, whatever its size.
    """
    ends = ends_at(core_cdf(federation, core), levels)
    merged, shift = federation.merged(ends), offset(federation, ends)
    own = federation.sizes[:, None]
    sizes = capped_sizes(federation)
    shares = np.maximum(without_self(merged / own, sizes, core), 0)
    differences = stabilised(merged, federation.sizes, shift) - 2 * np.sqrt(shares + shift / own)
    result: Array = sizes * np.einsum("kb,kb->k", differences, differences)
    return result


def lower_half(number: Array, federation: Federation) -> Indices:
    """The K // 2 + 1 clients with the lowest number; ties go by client id.

    Compared to nine decimals: beyond them rounding would decide, not the reports. Many clients
    are taken in the order they have, which is that of their ids where they come from reports.
    """
    by_id = np.arange(federation.n_clients)
    if federation.n_clients <= LARGE:
        by_id = np.argsort(np.array(federation.ids), kind="stable")
    order = by_id[np.argsort(np.round(number[by_id], 9), kind="stable")]
    return order[: federation.n_clients // 2 + 1]


def first_core(federation: Federation, seed: int | None = None) -> Indices:
    """The half closest to the median CDF, after a few concentration steps on ten equal bins."""
    cdf = median_cdf(federation, seed)
    ends = ends_at(cdf, CORE_LEVELS)
    merged = federation.merged(ends) / federation.sizes[:, None]
    roots = np.sqrt(merged)
    sizes = capped_sizes(federation)
    centre = np.diff(cdf[ends], prepend=0)
    core = np.arange(federation.n_clients)
    for _ in range(CONCENTRATIONS):
        distance = sizes * ((roots - np.sqrt(np.maximum(centre, 0))) ** 2).sum(axis=1)
        core = lower_half(distance, federation)
        centre = sizes[core] @ merged[core] / sizes[core].sum()
    return core


def group_directions(points: Array, sizes: Array) -> tuple[Array, Array]:
    """The mean and the directions (q, B) in which clients differ by more than sampling noise.

    Principal directions of the points weighted to unit noise whose variance exceeds
    (1 + sqrt(B/K))^2, the most that noise alone gives (Marchenko-Pastur); at least one.
    """
    mean = sizes @ points / sizes.sum()
    weighted = (points - mean) * np.sqrt(sizes)[:, None]
    n_clients, n_bins = points.shape
    variances, directions = np.linalg.eigh(weighted.T @ weighted / n_clients)
    edge = (1 + np.sqrt(n_bins / n_clients)) ** 2
    kept = max(1, int(np.count_nonzero(variances > edge)))
    return mean, directions[:, ::-1][:, :kept].T


def fair_distance(points: Array, sizes: Array, n_malicious: int, seed: int | None = None) -> Array:
    """Mean distance to the neighbours of rank max(1, K_m)..K_b-1, in units of their noise.

    d_kl = |x_k - x_l| / sqrt(1/n_k + 1/n_l). The K_m - 1 nearest may all be accomplices, so they
    earn nothing.
    """
    first = max(1, n_malicious)
    last = max(first, len(points) - n_malicious - 1)
    space = Space(np.ascontiguousarray(points), "l2", 1 / sizes)
    return scalable_means(space, first, last, number=CORE_REFERENCES, seed=seed).means


def trusted_core(federation: Federation, seed: int | None = None) -> Indices:
    """The more coherent half: lowest by that rule along the directions that part the clients.

    The bins follow the core's own quantiles, so core and bins are found in turn. `seed` is what
    the reference clients of a large federation are drawn from; a secret one if None.
    """
    core = first_core(projected(federation), seed)
    n_clients = federation.n_clients
    if n_clients < 3:
        return core
    sizes = capped_sizes(federation)
    for _ in range(REFINEMENTS):
        points = core_points(federation, core)
        mean, directions = group_directions(points, sizes)
        number = fair_distance((points - mean) @ directions.T, sizes, accomplices(n_clients), seed)
        core = lower_half(number, federation)
    return core


def accomplices(n_clients: int) -> int:
    """How many accomplices are allowed for while the core is sought: any minority."""
    return (n_clients - 1) // 2


def core_points(federation: Federation, core: Indices) -> Array:
    """(K, B) stabilised shares on 16 quantile bins of the core, finer towards both ends.

    Where the privacy noise differs, less what the core's shares would give with it.
    """
    cdf = core_cdf(federation, core)
    ends = ends_at(cdf, LEVELS)
    shift = offset(federation, ends)
    points = stabilised(federation.merged(ends), federation.sizes, shift)
    shares = np.maximum(np.diff(cdf[ends], prepend=0), 0)
    usual = 2 * np.sqrt(shares + shift / federation.sizes[:, None])
    return points - usual if federation.noisy else points


def oddity(federation: Federation, core: Indices) -> Array:
    """(K,) squared distance from the core, summed over three views of the same scores.

    X^2 on 16 quantile bins that are finer towards both ends, twice X^2 on the far tails (beyond
    the 0.2% and 99.8% quantiles, where forged scores pile up), and X^2 along the directions that
    part the clients, in which a group differs though its members do not. Brought to one size.
    """
    total = squared_distance(federation, core, LEVELS)
    total += FAR_WEIGHT * squared_distance(federation, core, FAR_LEVELS)
    if federation.n_clients < 3:
        return total
    sizes = capped_sizes(federation)
    points = core_points(federation, core)
    _, directions = group_directions(points, sizes)
    along = (points - without_self(points, sizes, core)) @ directions.T
    total += sizes * np.einsum("kq,kq->k", along, along)
    return total * _to_one_size(total, sizes, core)


def _to_one_size(total: Array, sizes: Array, core: Indices) -> Array:
    """(K,) factors that bring distances to what they would be at the greatest (capped) size.

    Honest clients who differ are at about c (1 + phi n): noise c, and a difference that shows the
    more the larger the sample. Then X^2 (1 + phi max n) / (1 + phi n) compares small and large
    ones; phi is that of the core's medians, c the bins in use.
    """
    excess = max(float(np.median(total[core])) / USUAL_ODDITY - 1, 0.0)
    phi = excess / float(np.median(sizes[core]))
    result: Array = (1 + phi * sizes.max()) / (1 + phi * sizes)
    return result
