"""What explains the reports: expect, test, guard, and majorities tried as the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies import Copies
from robfcp.federation import Federation
from robfcp.report import Strata

# What was chosen, not derived; the documentation shows what half and twice of each do.
LEVEL = 0.05  # chance of leaving anybody out when nobody lies; below it a site is doubted
TAIL = 0.7  # deviation of the log of how far honest sites differ beyond sampling
CAP = 3.0  # a site vouches for at most so many times the median number of samples
LACKS = 0.25  # of the expected body or tail: with less no honest population is left
CROSS = 0.05  # share of scores on the other side that no other population has
LOOSE = 2.0  # an explanation is plausible up to so many times the misfit of the best
BESIDE = 0.2  # honest sites left out beside liars, in the mean

QUANTILES = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
BODY = 0.92  # expected share up to the edge that parts body and tail, at most
VIEWS = 1.6  # tests that the two views are worth
STARTS, FOLLOWED, STEPS = 8, 3, 8  # of the search for majorities
DRAWN = 256  # of many sites, whose quantiles choose the bins and among whom majorities are sought
EXACT = 256  # sites whose chances are computed one by one; of more, on a fine grid
CELLS = 2**16  # of a block of sites worked on together
SPREADS = 2  # times that counts in fives are spread as all are
MOST_CELLS = 2**28  # of a table by class; beyond it classes are pooled
KINDS = 2 * [np.float32] + 5 * [np.float16]  # in which these of more sites are kept
SMALL = 6e4  # the largest number of half precision, about
EVERYBODY = slice(None)

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]


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


def expected(
    own: Array, said: Array, total: Array, withheld: bool = False
) -> tuple[Array, Array, Array]:
    """(k, B) expected counts E, and their variances by bin and up to each bin.

    With p_c the reference's shares of class c without the site itself, E_b = sum_c n_c p_cb and
    V_b = sum_c n_c p_cb (1 - p_cb) (1 + n_c / (N_c + a)): a site's own noise and the error of the
    reference. All classes' shares are worth `a` samples of each, by how alike classes are.
    """
    (n_classes, n_bins), rest, worth = total.shape, total - said, samples_worth(total)
    labels, every = own @ np.ones(n_bins), np.ones(n_classes) @ rest  # faster than sums
    rest[:, -1] = every if withheld else rest[:, -1]
    pooled = every + 0.5
    weight = rest @ np.ones(n_bins) + worth
    prior = worth * pooled / pooled.sum(axis=1, keepdims=True)
    shares = (rest + prior[:, None]) / weight[:, :, None]
    passed = (shares.reshape(-1, n_bins) @ np.triu(np.ones((n_bins, n_bins)))[:, :-1]).reshape(
        *shares.shape[:2], n_bins - 1
    )
    sizes = labels * (1 + labels / weight)
    by_bin, up_to = (np.matmul(sizes[:, None], p * (1 - p))[:, 0] for p in (shares, passed))
    return np.matmul(labels[:, None], shares)[:, 0], by_bin, up_to


def samples_worth(total: Array) -> float:
    """Sampling variance over variance between classes: how alike the classes' scores are."""
    sizes = total.sum(axis=1)
    total, sizes = total[sizes > 0], sizes[sizes > 0]
    if len(sizes) < 2:
        return 1.0
    shares = total.sum(axis=0) / sizes.sum()
    noise = (shares * (1 - shares)).sum()
    spread = ((total - sizes[:, None] * shares) ** 2 / sizes[:, None]).sum()
    room = sizes.sum() - (sizes**2).sum() / sizes.sum()
    between = (spread - (len(sizes) - 1) * noise) / max(room, 1e-9)
    return float(np.clip(noise / max(between, 1e-12), 1.0, 100.0))


@dataclass(frozen=True, eq=False)
class Compared:
    """(K,) each: how every site compares with what a reference leads one to expect.

    `misfit` is X^2 by bin over its mean under sampling, `drift` that of the counts up to each bin
    (as Anderson and Darling's); `lead` the mean of F less F expected (below 0: harder scores),
    `other` how far F goes to the other side; `body` and `tail` what it has of the expected, `lower`
    what it has of the lower half of the mean site's scores.
    """

    misfit: Floats
    drift: Floats
    lead: Floats
    other: Floats
    body: Floats
    tail: Floats
    lower: Floats

    @property
    def hard(self) -> Mask:
        """Harder scores on the whole."""
        return self.lead < 0

    def impossible(self, among: Mask) -> Mask:
        """Easier and harder at once, or without most of the body (if harder) or tail (if easier).

        One site alone goes half way to all of its body: to lose it costs little. Several must lack
        the lower half of all sites' scores too: else liars who share the easiest ones make the
        honest look impossible. More than a quarter of the sites must lack twice as much.
        """
        number = int(among.sum())
        body = self.body if number == 1 else np.maximum(self.body, self.lower)
        least = (1 + LACKS) / 2 if number == 1 else LACKS / (1 + (4 * number > len(among)))
        return (self.other > CROSS) | np.where(self.hard, body <= least, self.tail <= LACKS)


def compared(sites: Sites, reference: Mask) -> Compared:
    """Every site beside the reference, itself left out."""
    say = sites.say(reference)
    total = sites.total(say)
    found = [np.empty(sites.n, np.float64 if sites.n <= EXACT else kind) for kind in KINDS]
    for block in sites.blocks():
        for whole, part in zip(found, _compared(sites, say(block), total, block), strict=True):
            whole[block] = np.clip(part, -SMALL, SMALL) if whole.dtype == np.float16 else part
    return Compared(*found)


def _compared(sites: Sites, say: Array, total: Array, block: slice) -> tuple[NDArray[Any], ...]:
    counts, size = sites.counts[block], sites.sizes(block)[:, None]
    own = counts * sites.scale(block)[:, None, None]
    means, by_bin, up_to = expected(own, counts * say[:, None, None], total, sites.withheld)
    h = np.ones(own.shape[1]) @ own
    noise = np.zeros((1, h.shape[1])) if sites.noise is None else sites.noise[block]
    shift, rate = 0.375 + noise, means + noise
    larger, larger_variance = means + shift, by_bin + shift
    squares = 4 * (np.sqrt(np.maximum(h + shift, 0)) - np.sqrt(larger)) ** 2
    usual = (1 - np.exp(-1.3 * rate)) * (by_bin + noise) / np.maximum(rate, 1e-9)
    scaled = larger / larger_variance
    misfit = (squares * scaled).sum(axis=1) / np.maximum((usual * scaled).sum(axis=1), 1e-9)
    passed = np.cumsum(noise, axis=1)[:, :-1]
    far = np.cumsum(h - means, axis=1)[:, :-1] ** 2 / (up_to + passed + 0.375)
    drift = far.mean(axis=1) if far.shape[1] else np.ones(len(h))
    shares, wanted = np.cumsum(h, axis=1) / size, np.cumsum(means, axis=1) / size
    ahead = shares - wanted
    lead = ahead.mean(axis=1)
    other = np.where(lead < 0, ahead.max(axis=1), -ahead.min(axis=1))
    edge = np.maximum((wanted <= BODY).sum(axis=1) - 1, 0)[:, None]
    have, want = (np.take_along_axis(one, edge, axis=1)[:, 0] for one in (shares, wanted))
    body, tail = have / np.maximum(want, 1e-12), (1 - have) / np.maximum(1 - want, 1e-12)
    half, usually = sites.lower_half
    lower = shares[:, half] / usually
    return misfit, drift, lead, other, body, tail, lower


def chances(sites: Sites, seen: Compared, reference: Mask) -> Array:
    """(K,) the chance that an honest site of each one's size is so far off, by either view."""
    views = (seen.misfit, sites.freedom), (seen.drift, 3.4)
    found = np.ones(sites.n)
    for ratio, free in views:
        for block, chance in _chance(ratio, sites, reference, free):
            np.minimum(found[block], np.clip(VIEWS * chance, 1e-300, 1), out=found[block])
    return found


def sampled(free: float, above: Array | float) -> Array:
    """What chi-square over `free` exceeds with the given chances."""
    from scipy.special import gammainccinv

    return np.asarray(gammainccinv(free / 2, above) / (free / 2), dtype=np.float64)


def _chance(
    ratio: Floats, sites: Sites, reference: Mask, free: float
) -> Iterator[tuple[slice, Array]]:
    """P(u (1 + phi n G) >= ratio): u chi-square over `free`, log G normal with TAIL.

    phi is what the reference's own ratios exceed sampling by, with its standard error; the tail is
    that of one more site than the reference's.
    """
    from scipy.special import ndtr

    known, middle = reference.sum(), np.minimum(np.median(sites.told), sites.most)
    excess = float(np.median(ratio[reference]) / sampled(free, 0.5)) - 1
    phi = max(excess, 0.0) / float(np.minimum(np.median(sites.told[reference]), sites.most))
    phi += 1.25 * np.sqrt(2 / free / known) / middle
    cuts = np.concatenate([np.linspace(1, 0.1, 31)[:-1], np.geomspace(0.1, 1e-10, 46)])
    quantiles, weights = sampled(free, np.sqrt(cuts[1:] * cuts[:-1])), -np.diff(cuts)
    tail = TAIL * np.sqrt(1 + 1.5 / known)

    def summed(ratio: Array, sizes: Array) -> Array:
        depth = np.log(np.maximum(ratio / quantiles[:, None] - 1, 1e-300) / (phi * sizes))
        found: Array = weights @ ndtr(-depth / tail)
        return found

    if len(ratio) <= EXACT:
        yield EVERYBODY, summed(ratio.astype(np.float64), sites.sizes())
        return
    for start in range(0, len(ratio), CELLS):
        block = slice(start, start + CELLS)
        both = np.maximum(ratio[block].astype(np.float64), 1e-3), sites.sizes(block)
        logs = [np.round(64 * np.log(one)) for one in both]
        points, place = np.unique(logs[0] * 2**16 + logs[1], return_inverse=True)
        rare, size = np.divmod(points, 2**16)
        yield block, summed(np.exp(rare / 64), np.exp(size / 64))[place]


def rejected(chance: Array, level: float) -> Mask:
    """Benjamini and Hochberg: the j oddest, j the last with p_(j) <= level j / K."""
    values, times = np.unique(chance, return_counts=True)
    fits = values <= level * np.cumsum(times) / len(chance)
    return chance <= values[fits].max(initial=-1)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A majority as the reference: who goes, who stands out, and how everybody compares with it.

    `seen` is given the labels, `mixed` without classes. Without those `aside` the threshold is
    taken too, and the higher one counts. Where more than half would stand out (`refuted`) it is
    the majority of nobody.
    """

    out: Mask
    aside: Mask
    stands: Mask
    seen: Compared
    mixed: Compared
    refuted: bool = False

    def fits(self, some: Mask) -> list[float]:
        """Mean misfits of some sites, by class and without, 1 at least."""
        views = (one.misfit[some] for one in (self.seen, self.mixed))
        return [max(float(one.mean(dtype=np.float64)), 1.0) if one.size else 1.0 for one in views]

    def beside(self, best: Hypothesis) -> bool:
        """Whether it explains the reports by class as the best does, or both ways about as well.

        Whom the best leaves out fit it as its others do, in one way at least.
        """
        kept = best.out & ~self.stands
        far, usual = self.fits(kept), self.fits(~self.stands & ~kept)
        (own, pooled), (least, other) = self.fits(~self.stands), best.fits(~best.stands)
        close = own <= least or (own <= LOOSE * least and pooled <= LOOSE**2 * other)
        return close and (far[0] <= LOOSE * usual[0] or far[1] <= LOOSE * usual[1])


def both(sites: Sites, pooled: Sites, reference: Mask) -> tuple[Compared, Compared]:
    """Everybody beside the reference, given the labels and without classes."""
    seen = compared(sites, reference)
    return seen, seen if pooled is sites else compared(pooled, reference)


def settled(sites: Sites, pooled: Sites, reference: Mask, level: float) -> Hypothesis:
    """Who stands out from a reference, which becomes all the others until nothing changes.

    Whoever goes is doubted without classes too. Of several harder ones, without whom the threshold
    falls, each must be impossible there as well. Others with fewer large scores are set aside.
    """
    most, stands = (sites.n - 1) // 2, np.ones(sites.n, dtype=bool)
    for _ in range(10):
        seen = mixed = None  # what is not needed any more
        seen, mixed = both(sites, pooled, reference)
        chance = chances(sites, seen, reference)
        without = chance if mixed is seen else chances(pooled, mixed, reference)
        before, stands = stands, rejected(chance, level)
        odd, also = stands & (sites.n * chance <= BESIDE), sites.n * without <= BESIDE
        also &= rejected(without, level)
        out = odd & seen.impossible(stands) & (without < LEVEL)
        easier = also & mixed.impossible(also) & ~mixed.hard
        aside, stands = odd & (seen.tail < 1) | easier, stands | easier
        refuted = bool(2 * stands.sum() > sites.n)
        if stands.sum() > most:
            oddest = np.argsort(np.where(stands, chance, 2), kind="stable")[:most]
            stands = np.isin(np.arange(sites.n), oddest)
        out, aside = out & stands, aside & stands
        if (out & seen.hard).sum() > 1:
            out &= ~seen.hard | (also & mixed.impossible(stands))
        if (before == stands).all():
            break
        reference = ~stands
    else:
        seen, mixed = both(sites, pooled, reference)
    return Hypothesis(out, out | aside, stands, seen, mixed, refuted)


def majorities(sites: Sites, lot: np.random.Generator) -> list[Mask]:
    """Halves that agree: from the half nearest to the median report and from some by lot."""
    half, everybody = sites.n // 2 + 1, np.arange(sites.n)
    sizes = sites.sizes()
    below = np.cumsum(sites.counts.sum(axis=1) * sites.scale()[:, None], axis=1)
    below /= sizes[:, None]
    distance = ((below - np.median(below, axis=0)) ** 2).sum(axis=1)
    distance *= sizes / (1 + sizes / np.median(sizes))
    starts = [np.argsort(distance, kind="stable")[:half]]
    for number in range(STARTS):
        size = min(half, max(3, sites.n // (16 if number % 2 else 8)))
        starts.append(lot.choice(sites.n, size, replace=False))
    halves = [concentrated(sites, np.isin(everybody, start), 2) for start in starts]
    further = half + sites.n // 10

    def misfit(reference: Mask) -> float:
        seen = np.maximum(compared(sites, reference).misfit, 1)
        return float(np.log(np.sort(seen)[:further]).mean())

    best = sorted(distinct(halves), key=misfit)[:FOLLOWED]
    found = sorted(distinct(concentrated(sites, one, STEPS) for one in best), key=misfit)
    return [*found, concentrated(sites, ~found[0], STEPS)]


def distinct(masks: Iterable[Mask]) -> list[Mask]:
    """Each mask once."""
    return list({mask.tobytes(): mask for mask in masks}.values())


def concentrated(sites: Sites, reference: Mask, steps: int) -> Mask:
    """The half nearest to the reference becomes the reference, a few times.

    Whoever fits stays: sites more alike than sampling allows win nothing by it.
    """
    fits, sizes = float(sampled(sites.freedom, LEVEL)), sites.sizes()
    for _ in range(steps):
        misfit = compared(sites, reference).misfit
        phi = max(np.median(misfit[reference]) - 1, 0) / np.median(sizes[reference])
        far = misfit / (1 + phi * sizes)
        order = np.where(far <= fits, np.where(reference, 0, 1 + far), 1 + fits + far)
        nearest = np.zeros(sites.n, dtype=bool)
        nearest[np.argsort(order, kind="stable")[: sites.n // 2 + 1]] = True
        if (nearest == reference).all():
            break
        reference = nearest
    return reference


def plausible(sites: Sites, few: Indices, level: float, seed: int) -> list[Hypothesis]:
    """What explains the reports, the best first; sought among the drawn, settled among all."""
    part = sites.some(few)
    pooled, lot = part.pooled(), np.random.default_rng(seed)
    halves = [*majorities(part, lot), np.ones(part.n, dtype=bool)]
    settles = [settled(part, pooled, half, level) for half in distinct(halves)]
    others = [concentrated(part, one.stands, STEPS) for one in settles if one.stands.sum() > 1]
    settles += [settled(part, pooled, half, level) for half in distinct(others)]
    different = {one.stands.tobytes(): one for one in settles}.values()
    found = sorted(
        (one for one in different if not one.refuted), key=lambda one: prod(one.fits(~one.stands))
    )
    if not found:  # no half explains the reports: everybody is kept
        nobody = np.zeros(part.n, dtype=bool)
        found = [Hypothesis(nobody, nobody, nobody, *both(part, pooled, ~nobody))]
    found = [one for one in found if one.beside(found[0])]
    if len(few) == sites.n:
        return found
    whole = sites.pooled()
    references = np.zeros((len(found), sites.n), dtype=bool)
    for reference, one in zip(references, found, strict=True):
        reference[few[~one.stands]] = True
    return [settled(sites, whole, reference, level) for reference in references]


def numbers_of(
    every: Sites, reference: Mask, chosen: Indices, chance: Array, misfit: Floats
) -> NDArray[Any]:
    """Why each chosen site is left out, in numbers: where its scores are farthest from expected."""
    say = every.say(reference)
    total, kind = every.total(say), misfit.dtype
    names = "have", "want", "chance", "misfit"
    columns = [("edge", np.uint8), *((name, kind) for name in names)]
    found = np.zeros(len(chosen), columns)
    found["chance"], found["misfit"] = np.maximum(chance, 1e-30), misfit
    ends = np.searchsorted(chosen, [block.stop for block in every.blocks()]).tolist()
    for block, first, last in zip(every.blocks(), [0, *ends], ends, strict=False):
        rows = chosen[first:last]
        sites, weight = every.some(rows), say(block)[rows - block.start, None, None]
        own, size = sites.counts * sites.scale()[:, None, None], sites.sizes()[:, None]
        means, *_ = expected(own, sites.counts * weight, total, sites.withheld)
        have, want = (np.cumsum(one, axis=1) / size for one in (own.sum(axis=1), means))
        edge = np.argmax(np.abs(have - want)[:, : max(have.shape[1] - 1, 1)], axis=1)
        here = np.arange(len(rows)), edge
        told = found[first:last]
        told["have"], told["want"], told["edge"] = have[here], want[here], edge
    return found
