"""What is expected of a site, given the others and its own labels, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies import Copies
from robfcp.federation import Federation

LEVELS = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
DRAWN = 2048  # of many sites, whose quantiles choose the bins and among whom the core is sought
_CELLS = 2**16  # of a block of sites worked on together
MOST_CELLS = 2**28  # of a table by class; beyond it classes are pooled

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tables:
    """(K, C, B) counts of K sites, copies merged; `owner` says which of them a client belongs to.

    `scale` brings each site to its `sizes` (K,), at most `cap` times the median; `noise` (K, B) is
    the variance of privacy noise in the bins.
    """

    counts: NDArray[np.integer]
    scale: Array
    sizes: Array
    noise: Array | None
    owner: Indices
    ends: Indices

    @property
    def shape(self) -> tuple[int, int, int]:
        """K, C, B."""
        n_sites, n_classes, n_bins = self.counts.shape
        return n_sites, n_classes, n_bins

    def rows(self, block: slice) -> Array:
        """(k, C, B) the scaled counts of a block of sites."""
        scaled: Array = self.counts[block] * self.scale[block, None, None]
        return scaled

    def blocks(self) -> Iterator[slice]:
        """Slices of sites that fit into memory together."""
        n_sites, n_classes, n_bins = self.shape
        step = max(1, _CELLS // (n_classes * n_bins))
        for start in range(0, n_sites, step):
            yield slice(start, min(start + step, n_sites))

    def total(self, mask: Mask) -> Array:
        """(C, B) the scaled counts of the chosen sites together."""
        found = np.zeros(self.shape[1:])
        for block in self.blocks():
            found += np.einsum("k,kcb->cb", self.scale[block] * mask[block], self.counts[block])
        return found

    def pooled(self) -> Tables:
        """The same without classes."""
        counts = self.counts.sum(axis=1, keepdims=True)
        return Tables(counts, self.scale, self.sizes, self.noise, self.owner, self.ends)

    def subset(self, chosen: Indices) -> Tables:
        """Of the chosen sites alone."""
        noise = None if self.noise is None else self.noise[chosen]
        counts, scale, sizes = self.counts[chosen], self.scale[chosen], self.sizes[chosen]
        return Tables(counts, scale, sizes, noise, np.arange(len(chosen)), self.ends)


def tables_of(federation: Federation, copies: Sequence[Copies], cap: float) -> Tables:
    """The tables of a round: by class where reports keep exact classes, pooled where not.

    Sites that keep their classes back while others do not are a class of their own. Copies are
    one site with their mean counts.
    """
    ends = _ends(federation)
    counts = np.maximum(_counts(federation, ends), 0)
    place = {client: k for k, client in enumerate(federation.ids)} if copies else {}
    first = np.arange(federation.n_clients)
    for group in copies:
        members = [place[client] for client in group.clients]
        first[members] = members[0]
        counts[members[0]] = np.rint(counts[members].mean(axis=0)).astype(counts.dtype)
    kept, owner = np.unique(first, return_inverse=True)
    if len(kept) < len(first):
        counts = counts[kept]
    told = np.maximum(federation.sizes[kept], 1).astype(np.float64)
    sizes = np.minimum(told, cap * np.median(told))
    noise = None
    if federation.variances.any():
        noise = federation.variances[kept, None] * np.diff(ends, prepend=-1)
    sums = np.maximum(counts.sum(axis=(1, 2), dtype=np.int64), 1)
    return Tables(counts, sizes / sums, sizes, noise, owner, ends)


def drawn(n_sites: int, table: NDArray[np.integer]) -> Indices:
    """All sites, or the rising places of a few, by lot: what is drawn follows from the counts."""
    if n_sites <= DRAWN:
        return np.arange(n_sites)
    seed = [n_sites, *table.sum(axis=tuple(range(table.ndim - 1)), dtype=np.int64).tolist()]
    lot = np.random.default_rng([abs(number) for number in seed])
    return np.sort(lot.choice(n_sites, DRAWN, replace=False))


def _ends(federation: Federation) -> Indices:
    """The last bins of merged bins: at the medians of the sites' own quantiles."""
    few = drawn(federation.n_clients, federation.pooled())
    some = federation.table if len(few) == federation.n_clients else federation.table.rows(few)
    counts = some.dense()
    below = np.cumsum(np.maximum(counts, 0) if counts.min() < 0 else counts, axis=1)
    shares = below / np.maximum(below[:, -1:], 1)
    last = federation.grid.n_bins - 1
    reached = [np.median((shares < level - 1e-12).sum(axis=1)) for level in LEVELS]
    return np.unique(np.append(np.minimum(np.array(reached, dtype=np.intp), last), last))


def _counts(federation: Federation, ends: Indices) -> NDArray[np.integer]:
    """(K, C, B) merged counts in the smallest whole numbers that hold them."""
    strata = federation.exact_strata
    n_clients, n_bins = federation.n_clients, len(ends)
    if strata is None or n_clients * (strata.n_strata + 1) * n_bins > MOST_CELLS:
        merged = federation.merged(ends)
        return merged.astype(_kind(merged))[:, None, :]
    n_classes, keeps = strata.n_strata, np.zeros(n_clients, dtype=bool)
    keeps[strata.rows] = True
    every = (np.arange(n_classes)[:, None] * strata.n_bins + ends).ravel()
    kind = _kind(federation.sizes)
    merged = strata.table.merged(every, kind).reshape(-1, n_classes, n_bins)
    if keeps.all():
        return merged
    found = np.zeros((n_clients, n_classes + 1, n_bins), kind)
    found[strata.rows, :n_classes] = merged
    found[~keeps, n_classes] = federation.merged(ends)[~keeps]
    return found


def _kind(values: NDArray[np.integer]) -> np.dtype[np.integer]:
    """The smallest signed whole numbers that hold the values."""
    most = int(np.abs(values).max(initial=0))
    return np.dtype(np.int16 if most < 2**15 else np.int32 if most < 2**31 else np.int64)


SHARPEST = 100.0  # samples that the shares of all classes are worth for one of them, at most
_FINE, _FEW = 256, 64  # points a count in the table of few counts, and where it ends


@dataclass(frozen=True, eq=False)
class Expected:
    """A block of sites' counts and the (k, C, B) shares that their classes should have.

    With p_c the reference's shares of class c without the site itself, E_kb = sum_c n_kc p_cb and
    V_kb = sum_c n_kc p_cb (1 - p_cb) (1 + n_kc / (N_c + a)): the site's own noise and the error of
    the reference. What is not asked for is not computed.
    """

    counts: Array  # (k, B)
    labels: Array  # (k, C)
    shares: Array
    weight: Array  # (k, C) N_c + a

    @cached_property
    def means(self) -> Array:
        """(k, B) E, what the sites' labels lead one to expect."""
        return _over_classes(self.labels, self.shares)

    @cached_property
    def variances(self) -> Array:
        """(k, B) V, between the two."""
        return self._spread(self.shares)

    @cached_property
    def passed(self) -> Array:
        """(k, B - 1) the same of the counts up to each bin."""
        return self._spread(up_to(self.shares))

    def _spread(self, shares: Array) -> Array:
        sizes = self.labels * (1 + self.labels / self.weight)
        return _over_classes(sizes, shares * (1 - shares))


def _over_classes(weights: Array, values: Array) -> Array:
    """(k, B) sums over the classes of (k, C) weights times (k, C, B) values."""
    found: Array = np.matmul(weights[:, None, :], values)[:, 0]
    return found


def up_to(values: Array) -> Array:
    """(..., B - 1) sums up to each bin but the last; a product is several times faster."""
    n_bins = values.shape[-1]
    steps = np.triu(np.ones((n_bins, n_bins)))[:, :-1]
    found: Array = (values.reshape(-1, n_bins) @ steps).reshape(*values.shape[:-1], n_bins - 1)
    return found


def expected(tables: Tables, reference: Mask, block: slice, total: Array) -> Expected:
    """What a block of sites should look like, `total` being the reference's counts.

    Shares of all classes count for `a` samples of each: a class that nobody else holds is expected
    to differ from them as much as classes do.
    """
    own, worth, inside = tables.rows(block), samples_worth(total), reference[block]
    n_sites, n_classes, n_bins = own.shape
    labels = (own.reshape(-1, n_bins) @ np.ones(n_bins)).reshape(n_sites, n_classes)
    counts = _over_classes(np.ones((n_sites, n_classes)), own)
    prior = total.sum(axis=0) - counts * inside[:, None] + 0.5
    prior *= worth / (prior @ np.ones(n_bins))[:, None]
    weight = total.sum(axis=1) - labels * inside[:, None] + worth
    shares = np.multiply(own, -1.0 * inside[:, None, None], out=own)
    shares += total
    shares += prior[:, None, :]
    shares *= (1 / weight)[:, :, None]
    return Expected(counts, labels, shares, weight)


def samples_worth(total: Array) -> float:
    """Sampling variance over variance between classes: how alike the classes' scores are."""
    sizes = total.sum(axis=1)
    held, n_samples = sizes > 0, sizes.sum()
    if held.sum() < 2:
        return 1.0
    shares = total.sum(axis=0) / n_samples
    noise = (shares * (1 - shares)).sum()
    spread = ((total[held] - sizes[held, None] * shares) ** 2 / sizes[held, None]).sum()
    room = n_samples - (sizes**2).sum() / n_samples
    between = (spread - (held.sum() - 1) * noise) / max(room, 1e-9)
    return float(np.clip(noise / max(between, 1e-12), 1.0, SHARPEST))


def residuals(
    counts: Array, means: Array, variances: Array, noise: Array | float = 0.0
) -> tuple[Array, Array]:
    """(k, B) differences of root counts in units of noise, and the mean of each one's square.

    2 (sqrt(h + 3/8) - sqrt(E + 3/8)) sqrt((E + 3/8) / (V + 3/8)); the 3/8 also holds the variance
    of privacy noise.
    """
    shift = 0.375 + noise
    larger = means + shift
    scale = larger / (variances + shift)
    roots = np.sqrt(np.maximum(counts + shift, 0)) - np.sqrt(larger)
    rate = means + noise
    few = _few_counts()[np.minimum(rate * _FINE, _FINE * _FEW).astype(np.intp)]
    squares = few * (variances + noise) / np.maximum(rate, 1e-12) * scale
    return 2 * roots * np.sqrt(scale), squares


@cache
def _few_counts() -> Array:
    """E 4 (sqrt(X + 3/8) - sqrt(m + 3/8))^2 for X Poisson(m), at the middles of small steps of m.

    The last is 1, for all larger m.
    """
    from scipy.special import gammaln

    rates = (np.arange(_FINE * _FEW) + 0.5) / _FINE
    found = np.zeros(len(rates) + 1)
    for hits in range(3 * _FEW):
        masses = np.exp(hits * np.log(rates) - rates - gammaln(hits + 1))
        found[:-1] += masses * 4 * (np.sqrt(hits + 0.375) - np.sqrt(rates + 0.375)) ** 2
    found[-1] = 1.0
    return found


def ratios(tables: Tables, reference: Mask) -> Array:
    """(K,) X^2 by bin over its mean under noise alone: 1 where a site differs by sampling only."""
    total = tables.total(reference)
    found = np.empty(tables.shape[0])
    for block in tables.blocks():
        found[block] = _by_bin(tables, expected(tables, reference, block, total), block)
    return found


def views(tables: Tables, reference: Mask) -> Array:
    """(3, K) the same, and that of the counts up to each bin (as Anderson and Darling's).

    The first sees any difference of shape; the second is moved by honest differences far less than
    by scores that all went one way. The third row is the share of a site's variance that is its
    own sampling noise: little where hardly anybody else holds its classes.
    """
    total = tables.total(reference)
    found = np.ones((3, tables.shape[0]))
    for block in tables.blocks():
        given = expected(tables, reference, block, total)
        found[0, block] = _by_bin(tables, given, block)
        added = 0.0 if tables.noise is None else up_to(tables.noise[block])
        far = up_to(given.counts - given.means) ** 2 / (given.passed + added + 0.375)
        if far.shape[1]:
            found[1, block] = far.mean(axis=1)
        size = tables.sizes[block]
        own = size - (given.counts**2).sum(axis=1) / size
        found[2, block] = own / np.maximum(given.variances.sum(axis=1), 1e-12)
    return found


def _by_bin(tables: Tables, given: Expected, block: slice) -> Array:
    noise = 0.0 if tables.noise is None else tables.noise[block]
    differences, squares = residuals(given.counts, given.means, given.variances, noise)
    found: Array = (differences**2).sum(axis=1) / np.maximum(squares.sum(axis=1), 1e-9)
    return found


@dataclass(frozen=True)
class Constants:
    """What was chosen, not derived. `docs/defence.md` shows what half and twice of each do.

    Parameters
    ----------
    level
        The chance of leaving anybody out when nobody lies. A look at five times this level only
        chooses the reference.
    tail
        Standard deviation of the logarithm of how far honest sites differ beyond their labels;
        0.4 to 0.7 among sleepers, hospitals and schools, sampling noise included.
    mixed
        The same where reports do not keep classes, so that label mixes differ too.
    freedom
        Degrees of freedom of these logarithms (Student): real extremes are wider than normal.
    prior
        How many sites the expected location and scale count for: few sites cannot give a scale.
    cap
        Claimed sizes count for at most so many times the median.
    least
        Standard deviations from those kept that everybody left out must have: nobody goes for the
        company alone.
    diverse
        A group may differ within by at most so many times what the others do (twice that if it is
        easier): honest sites who differ in all directions are no group.
    within
        Or by this share of its squared distance from the others.
    cross
        A group is one-sided where its scores are nowhere easier (or nowhere harder) than expected
        by more than this share: another population can be, a forgery need not.
    lacks
        A one-sided group goes only where it has at most this share of what is expected: of the
        body if its scores are harder, of the tail if they are easier (harder ones alone: half way
        to all of it, since to lose one site costs little). Otherwise the reports of two honest
        populations look the same, and without the harder one coverage would fall.
    vouch
        Standard deviations beyond the level that a site may vouch for in the vote; it may object
        with four times as many.
    """

    level: float = 0.05
    tail: float = 0.5
    mixed: float = 0.7
    freedom: float = 10.0
    prior: float = 6.0
    cap: float = 3.0
    least: float = 2.0
    diverse: float = 1.5
    within: float = 0.1
    cross: float = 0.05
    lacks: float = 0.25
    vouch: float = 0.5


USUAL = Constants()


TESTS = 1.6  # independent tests that the two views are worth
_DEVIATION = 1.25  # standard deviation of a median over that of a mean
_EXACT, _BLOCK = 4096, 512  # sites judged one by one, and how many of them at a time
_GRID_SIZES, _GRID_POINTS = 32, 256  # of the grid for more sites
_NEAREST, _FARTHEST, _STEPS = -20.0, 200.0, 2**14  # of the table of Student's tail


@dataclass(frozen=True)
class Sampling:
    """u, what sampling alone makes of a view: chi-square over its degrees of freedom.

    A sum of unequal squares goes far out as its `largest` one alone does: of Anderson and
    Darling's, with parts 1 / (j (j + 1)), sqrt(3) times as often as half a square exceeds u.
    """

    freedom: float
    largest: float = 0.0

    def quantile(self, above: Array) -> Array:
        """What u exceeds with the given chances."""
        from scipy.special import gammainccinv

        bulk = gammainccinv(self.freedom / 2, above) / (self.freedom / 2)
        far = 2 * self.largest * gammainccinv(0.5, above / np.sqrt(3))
        found: Array = np.maximum(bulk, far)
        return found


UP_TO = Sampling(3.4, largest=0.5)  # of the counts up to each bin


def by_bin(tables: Tables) -> Sampling:
    """Of X^2 by bin over its mean, the bins being unequal."""
    return Sampling(max(1.0, 0.8 * (tables.shape[2] - 1)))


@dataclass(frozen=True)
class Law:
    """u (1 + phi n G), by which honest sites of n samples are off.

    u is sampling noise, log G = tail times Student: 0 for the usual site.
    """

    phi: float
    tail: float
    sampling: Sampling
    student: float

    def chance(self, ratio: Array, sizes: Array) -> Array:
        """(K,) P(u (1 + phi n G) >= ratio); of many sites between points of a grid.

        The grid has 32 sizes at most and 256 ratios, with straight lines between logarithms.
        """
        if len(ratio) <= _EXACT:
            return self._summed(ratio, sizes)
        every = np.unique(sizes)
        if len(every) > _GRID_SIZES:
            every = np.geomspace(every[0], every[-1], _GRID_SIZES)
        logs = np.log(np.maximum(ratio, 1e-3))
        points = np.linspace(logs.min(), logs.max() + 1e-3, _GRID_POINTS)
        known = np.log(
            self._summed(np.exp(np.tile(points, len(every))), np.repeat(every, _GRID_POINTS))
        )
        place = (logs - points[0]) / (points[1] - points[0])
        row = np.interp(np.log(sizes), np.log(every), np.arange(len(every)))
        above = np.minimum(row.astype(np.intp), max(len(every) - 2, 0))
        lower, upper = (
            _between(known, place + _GRID_POINTS * np.minimum(above + step, len(every) - 1))
            for step in (0, 1)
        )
        found: Array = np.exp(lower + (upper - lower) * (row - above))
        return found

    def _summed(self, ratio: Array, sizes: Array) -> Array:
        """The same exactly: summed over quantiles of u."""
        quantiles, weights = _nodes(self.sampling)
        tail, step = _student_tail(self.student), (_FARTHEST - _NEAREST) / _STEPS
        found = np.empty(len(ratio))
        spread = np.maximum(self.phi * sizes, 1e-12)
        for start in range(0, len(ratio), _BLOCK):
            some = slice(start, start + _BLOCK)
            excess = np.maximum(ratio[some] / quantiles[:, None] - 1, 1e-300)
            depth = np.log(excess / spread[some]) / self.tail
            found[some] = weights @ _between(tail, (depth - _NEAREST) / step)
        clipped: Array = np.clip(found, 1e-300, 1 - 1e-12)
        return clipped

    def ordinary(self, sizes: Array, chance: float = 0.05) -> Array:
        """(K,) the ratio that so large a share of honest sites of each size exceeds."""
        distinct, place = np.unique(sizes, return_inverse=True)
        low, high = np.full(len(distinct), 0.1), np.full(len(distinct), 1e9)
        for _ in range(40):
            middle = np.sqrt(low * high)
            rare = self.chance(middle, distinct) < chance
            low, high = np.where(rare, low, middle), np.where(rare, middle, high)
        return low[place]


def law_of(
    tables: Tables, ratio: Array, reference: Mask, constants: Constants, sampling: Sampling
) -> Law:
    """The law that the reference shows: a prediction from so many sites, no more.

    phi has its standard error added, and the tail is that of one more site than the reference's.
    """
    known = int(reference.sum())
    error = _DEVIATION * np.sqrt(2 / sampling.freedom / known) / float(np.median(tables.sizes))
    tail = constants.tail if tables.shape[1] > 1 else constants.mixed
    return Law(
        phi=heterogeneity(tables, ratio, reference, sampling) + float(error),
        tail=tail * float(np.sqrt(1 + _DEVIATION**2 / known)),
        sampling=sampling,
        student=constants.freedom,
    )


def heterogeneity(tables: Tables, ratio: Array, reference: Mask, sampling: Sampling) -> float:
    """phi: what the reference's X^2 exceed noise by, per sample."""
    excess = float(np.median(ratio[reference])) / _middle(sampling) - 1
    return max(excess, 0.0) / float(np.median(tables.sizes[reference]))


@lru_cache(maxsize=64)
def _middle(sampling: Sampling) -> float:
    """The median of u."""
    return float(sampling.quantile(np.array(0.5)))


def usual_spread(
    ratio: Array, share: float, tail: float, sampling: Sampling, student: float
) -> Array:
    """(K,) the phi n with which such a ratio is the quantile at `share`; 0 where noise suffices."""
    points, spreads = _usual_spreads(share, tail, sampling, student)
    found: Array = np.interp(np.log(np.maximum(ratio, 1e-3)), points, spreads)
    return found


@lru_cache(maxsize=64)
def _usual_spreads(
    share: float, tail: float, sampling: Sampling, student: float
) -> tuple[Array, Array]:
    """The same at many logarithms of ratios."""
    points = np.linspace(np.log(0.1), np.log(1e4), 256)
    law, ratio = Law(1.0, tail, sampling, student), np.exp(points)
    low, high = np.zeros(len(points)), np.full(len(points), 1e5)
    for _ in range(60):
        middle = (low + high) / 2
        enough = law.chance(ratio, middle) >= 1 - share
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return points, low


def joint_chance(chances: Array) -> Array:
    """(K,) of the smaller of two chances (2, K), which are not independent."""
    found: Array = -np.expm1(TESTS * np.log1p(-chances.min(axis=0)))
    return np.clip(found, 1e-300, 1 - 1e-12)


def _between(table: Array, place: Array) -> Array:
    """The table's values at broken places, straight lines between its own."""
    place = np.clip(place, 0, len(table) - 1)
    left = np.minimum(place.astype(np.intp), len(table) - 2)
    near = table[left]
    found: Array = near + (table[left + 1] - near) * (place - left)
    return found


@cache
def _student_tail(freedom: float) -> Array:
    """P(T > t) for Student's T at even steps of t."""
    from scipy.special import stdtr

    return np.asarray(stdtr(freedom, -np.linspace(_NEAREST, _FARTHEST, _STEPS + 1)), np.float64)


@lru_cache(maxsize=64)
def _nodes(sampling: Sampling) -> tuple[Array, Array]:
    """Quantiles of u and their weights: even in the bulk, by half decades beyond its last tenth."""
    cuts = 10.0 ** -np.arange(1.0, 12.0, 0.5)
    above = np.concatenate([np.arange(0.5, 20) / 20 * 0.9 + 0.1, np.sqrt(cuts[1:] * cuts[:-1])])
    weights = np.concatenate([np.full(20, 0.045), -np.diff(cuts)])
    return sampling.quantile(above), weights / weights.sum()
