"""What explains the reports: expect, test, guard, and majorities tried as the reference.

All of it is sought among some sites, drawn by lot where there are many; one pass over everybody
then judges each site by what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation

# What was chosen, not derived; the documentation shows what half and twice of each do.
LEVEL = 0.15  # honest sites that go beside liars, in the mean; below this chance a site is doubted
TAIL = 0.7  # deviation of the log of how far honest sites differ beyond sampling
CAP = 3  # a site vouches for at most so many times the median number of samples
WORTH = 10.0  # samples of a class that the shares of all classes stand for
LACKS = 0.37  # of the expected lower half: with less no honest population is left
CROSS = 0.05  # share of scores on the other side that no other population has
LOOSE = 1.35  # an explanation is plausible up to so many times the misfit of the best

QUANTILES = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
BODY = 0.92  # expected share up to the edge that parts body and tail, at most
VIEWS = 1.6  # tests that misfit and drift are worth
DRAWN = 256  # of many sites, whose quantiles choose the bins and among whom majorities are sought
CELLS = 2**16  # of sites judged together
MOST_CELLS = 2**24  # of the drawn sites' table by class; beyond it classes are pooled

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def drawn(n_sites: int, seed: int) -> Indices:
    """All sites, or the rising places of a few, by lot."""
    return np.sort(np.random.default_rng(seed).choice(n_sites, min(n_sites, DRAWN), replace=False))


@dataclass(frozen=True, eq=False)
class Frame:
    """How the sites of a round are looked at: on a few bins, by class where reports keep classes.

    The merged bins end at the medians of the drawn sites' own quantiles. Sites that keep their
    classes back while others do not (`withheld`) are one more class, with all classes together as
    its reference. Sizes count up to CAP times their `middle`; over `usual` (B,) counts in fives
    are spread.
    """

    ends: Indices
    middle: float
    n_classes: int = 0
    withheld: bool = False
    usual: Array | None = None

    @property
    def freedom(self) -> float:
        """Degrees of freedom of a misfit, the bins being unequal."""
        return max(1.0, 0.8 * (len(self.ends) - 1))

    @classmethod
    def of(cls, federation: Federation, part: Federation) -> Frame:
        """The one that the drawn part of a federation leads to."""
        strata = federation.exact_strata
        made = cls(ends_of(part), max(float(np.median(part.sizes)), 1.0))
        if strata is not None and DRAWN * strata.n_strata * len(made.ends) <= MOST_CELLS:
            withheld = len(strata.rows) < federation.n_clients
            made = replace(made, n_classes=strata.n_strata, withheld=withheld)
        if 2 * part.in_fives.sum() > part.n_clients:  # a few who look so are not excused
            made = replace(made, usual=part.merged(made.ends).sum(axis=0) + 1e-9)
        return made

    def counts(self, block: Federation) -> Array:
        """(k, C, B) merged counts of some sites, those in fives spread; none below 0."""
        pooled, strata = block.merged(self.ends), block.exact_strata
        found = pooled[:, None].astype(np.float64)
        if self.n_classes and strata is not None:
            every = np.arange(self.n_classes)[:, None] * strata.n_bins + self.ends
            found = np.zeros((len(pooled), self.n_classes + self.withheld, len(self.ends)))
            merged = strata.table.merged(every.ravel())
            found[strata.rows, : self.n_classes] = merged.reshape(-1, *every.shape)
            if self.withheld:
                found[:, -1] = pooled
                found[strata.rows, -1] = 0
        found = np.maximum(found, 0)
        return found if self.usual is None else self._spread(block, found, self.usual)

    def _spread(self, block: Federation, own: Array, usual: Array) -> Array:
        """Counts in fives over the bins they may lie in as all sites' are: what scores are moved up
        for makes nobody odd.
        """
        (rows, classes, *sides, values), known = block.spans()
        passed, n_bins = np.append(0, np.cumsum(usual)), len(usual)
        first, last = (np.searchsorted(self.ends, side) for side in sides)
        place = (rows * own.shape[1] + np.minimum(classes, own.shape[1] - 1)) * (n_bins + 1)
        rates = values / (passed[last + 1] - passed[first])
        begun, ended = (
            np.bincount(place + at, rates, own.size // n_bins * (n_bins + 1))
            for at in (first, last + 1)
        )
        rates = np.cumsum((begun - ended).reshape(*own.shape[:2], -1), axis=2)[:, :, :-1]
        return np.where(known[:, None, None], rates * usual, own)

    def parts(self, n_clients: int) -> Iterator[Indices]:
        """The places of sites whose tables fit the cache together."""
        step = max(1, CELLS // ((self.n_classes + 1) * len(self.ends)))
        return (np.arange(k, min(k + step, n_clients)) for k in range(0, n_clients, step))

    def sites(self, block: Federation) -> Sites:
        """Some sites, their counts brought to their sizes."""
        sizes = np.clip(block.sizes, 1, int(CAP * self.middle)).astype(np.float64)
        counts = self.counts(block)
        counts *= (sizes / np.maximum(counts.sum(axis=(1, 2)), 1))[:, None, None]
        noise = np.zeros((1, 1))
        if block.private and block.variances.any():
            noise = block.variances[:, None] * np.diff(self.ends, prepend=-1)
        return Sites(counts, sizes, noise, self)


def ends_of(federation: Federation) -> Indices:
    """The last bins of the merged ones, at the medians of a few sites' own quantiles."""
    below = np.cumsum(np.maximum(federation.counts, 0), axis=1)
    shares = below / np.maximum(below[:, -1:], 1)
    last = federation.grid.n_bins - 1
    reached = [np.median((shares < level - 1e-12).sum(axis=1)) for level in QUANTILES]
    return np.unique(np.append(np.minimum(np.array(reached, dtype=np.intp), last), last))


@dataclass(frozen=True, eq=False)
class Sites:
    """(k, C, B) counts of some sites, their sizes (k,) and the variances of privacy noise."""

    counts: Array
    sizes: Array
    noise: Array
    frame: Frame

    @cached_property
    def views(self) -> list[Sites]:
        """Itself, and the same without classes where it has some."""
        pooled = replace(self, counts=self.counts.sum(axis=1, keepdims=True))
        return [self, pooled] if self.counts.shape[1] > 1 else [self]

    def total(self, reference: Mask) -> Array:
        """(C, B) the counts of a reference."""
        return np.asarray((reference[:, None, None] * self.say * self.counts).sum(axis=0))

    @cached_property
    def say(self) -> Array:
        """(k, 1, 1) how much each counts in a reference: for no more than the median site."""
        return np.minimum(1, self.frame.middle / self.sizes)[:, None, None]

    @cached_property
    def known(self) -> Mask:
        """(C,) which classes most sites hold: three in four at least a quarter of its mean share.

        Of others liars may be most of the holders.
        """
        shares = self.counts.sum(axis=2) / self.sizes[:, None]
        few = np.quantile(shares, 0.25, axis=0) < 0.25 * shares.mean(axis=0)
        return np.asarray(~few & (len(few) > 1))


def expected(counts: Array, said: Array, total: Array, withheld: bool) -> tuple[Array, ...]:
    """(k, B) expected counts E, and their variances by bin and up to each bin.

    With p_c the reference's shares of class c without the site itself, E_b = sum_c n_c p_cb and
    V_b = sum_c n_c p_cb (1 - p_cb) (1 + n_c / (N_c + WORTH)): a site's own noise and the error of
    the reference. All classes' shares stand for WORTH samples of each.
    """
    rest, labels = total - said, counts.sum(axis=2)
    every = rest.sum(axis=1)
    if withheld:
        rest[:, -1] = every
    prior = WORTH * (every + 0.5) / (every + 0.5).sum(axis=1, keepdims=True)
    weight = rest.sum(axis=2) + WORTH
    shares = (rest + prior[:, None]) / weight[:, :, None]
    sizes, passed = labels * (1 + labels / weight), np.cumsum(shares, axis=2)[:, :, :-1]
    by_bin, up_to = (np.matmul(sizes[:, None], p * (1 - p))[:, 0] for p in (shares, passed))
    return np.matmul(labels[:, None], shares)[:, 0], by_bin, up_to


class Compared(NamedTuple):
    """(k,) each: how every site compares with what a reference leads one to expect.

    `misfit` is X^2 by bin over its mean under sampling, `drift` that of the counts up to each bin
    (as Anderson and Darling's); `hard`: whether F is below F expected in the mean, `other` how far
    F goes to the other side; `half`, `body`, `tail` what it has of the expected (of the tail, less
    a deviation of its noise); `edge`, `have`, `want`: where F is farthest from expected.
    """

    misfit: Array
    drift: Array
    hard: Mask
    other: Array
    half: Array
    body: Array
    tail: Array
    edge: Indices
    have: Array
    want: Array

    def lacks(self, hard: Mask) -> Mask:
        """Who lacks most of the tail if easier; if harder those told."""
        return np.where(self.hard, hard, self.tail <= LACKS / 4)


def compared(sites: Sites, total: Array, member: Mask) -> Compared:
    """Every site beside a reference, itself left out where it is a member."""
    said = sites.counts * sites.say * member[:, None, None]
    means, by_bin, up_to = expected(sites.counts, said, total, sites.frame.withheld)
    h, noise, size = sites.counts.sum(axis=1), sites.noise, sites.sizes[:, None]
    rate, larger = means + noise, means + noise + 0.375
    squares = 4 * (np.sqrt(h + noise + 0.375) - np.sqrt(larger)) ** 2
    usual = (1 - np.exp(-1.3 * rate)) * (by_bin + noise) / np.maximum(rate, 1e-9)
    scaled = larger / (by_bin + noise + 0.375)
    misfit = (squares * scaled).sum(axis=1) / np.maximum((usual * scaled).sum(axis=1), 1e-9)
    passed = np.cumsum(np.broadcast_to(noise, h.shape), axis=1)[:, :-1]
    far = np.cumsum(h - means, axis=1)[:, :-1] ** 2 / (up_to + passed + 0.375)
    drift = far.mean(axis=1) if far.shape[1] else np.ones(len(h))
    shares, wanted = np.cumsum(h, axis=1) / size, np.cumsum(means, axis=1) / size
    ahead = shares - wanted
    hard = ahead.mean(axis=1) < 0
    other = np.where(hard, ahead.max(axis=1), -ahead.min(axis=1))

    def at(edge: Indices) -> tuple[Array, Array]:
        have, want = (np.take_along_axis(x, edge[:, None], axis=1)[:, 0] for x in (shares, wanted))
        return have, np.maximum(want, 1e-12)

    own, half = at(np.argmax(wanted >= 0.5 - 1e-9, axis=1))
    have, body = at(np.maximum((wanted <= BODY).sum(axis=1) - 1, 0))
    tail = (1 - have - np.sqrt(noise.sum(axis=1)) / sites.sizes) / np.maximum(1 - body, 1e-12)
    edge = np.argmax(np.abs(ahead)[:, : max(h.shape[1] - 1, 1)], axis=1)
    return Compared(misfit, drift, hard, other, own / half, have / body, tail, edge, *at(edge))


def sampled(free: float, above: Array | float) -> Array:
    """What chi-square over `free` exceeds with the given chances."""
    from scipy.special import gammainccinv

    return np.asarray(gammainccinv(free / 2, above) / (free / 2), dtype=np.float64)


@dataclass(frozen=True)
class Law:
    """Of ratios u (1 + phi n G): u chi-square over `free`, log G normal with deviation `tail`.

    phi is what the reference's own ratios exceed sampling by, with its standard error, at their
    median or, of the nearest half of all sites, at the place of the median of three in five: who is
    chosen for being near is nearer than those it stands for. The tail is that of one more site.
    """

    free: float
    phi: float
    tail: float

    @classmethod
    def of(cls, ratio: Array, sites: Sites, reference: Mask, free: float) -> Law:
        """The one that a reference's own ratios follow."""
        own, n = ratio[reference], int(reference.sum())
        middle = np.quantile(own, max(0.5, 0.3 * len(reference) / n))
        excess = max(float(middle / sampled(free, 0.5)) - 1, 0)
        error = 1.25 * np.sqrt(2 / free / n) / sites.frame.middle
        phi = excess / float(np.median(sites.sizes[reference])) + error
        return cls(free, phi, TAIL * np.sqrt(1 + 1.5 / n))

    def chance(self, ratio: Array, sizes: Array) -> Array:
        """(k,) of so large a ratio, on a fine grid of ratios and sizes: alike in any company."""
        from scipy.special import ndtr

        cuts = np.concatenate([np.linspace(1, 0.1, 31)[:-1], np.geomspace(0.1, 1e-10, 46)])
        own, size = (np.rint(128 * np.log(np.maximum(one, 1e-3))) for one in (ratio, sizes))
        points, place = np.unique(own * 2**16 + size, return_inverse=True)
        own, size = (np.exp(one / 128)[:, None] for one in np.divmod(points, 2**16))
        over = own / sampled(self.free, np.sqrt(cuts[1:] * cuts[:-1])) - 1
        depth = np.log(np.maximum(over, 1e-300) / (self.phi * size))
        summed = (ndtr(-depth / self.tail) * -np.diff(cuts)).sum(axis=1)
        return np.asarray(np.clip(VIEWS * summed, 1e-300, 1)[place])


def rejected(chance: Array, n_sites: int) -> float:
    """Benjamini and Hochberg: the chance up to which the j oddest go, p_(j) <= LEVEL j / K."""
    ordered = np.sort(chance)
    fits = ordered <= LEVEL * np.arange(1, len(chance) + 1) / len(chance)
    return float(ordered[fits].max(initial=LEVEL / n_sites))


class Verdict(NamedTuple):
    """(k,) each: who goes, who stands out, who is doubted for harder scores."""

    chance: Array
    out: Mask
    stands: Mask
    harder: Mask


class Explanation:
    """A majority of the drawn sites as the reference, and how everybody compares with it.

    Twice: given the labels, and without classes. `cut` is the chance up to which sites stand out,
    `odd` the share of the drawn that do: where it is a half or more this is the majority of nobody.
    `measure` is the mean misfit, 1 at least, of the half that it was found from, beside itself.
    """

    def __init__(self, drawn: Sites, reference: Mask, n_sites: int, measure: float = 0.0) -> None:
        self.drawn, self.reference, self.n_sites = drawn, reference, n_sites
        self.totals = [one.total(reference) for one in drawn.views]
        own = self.beside(drawn, reference)
        self.measure = measure or max(float(own[0].misfit[reference].mean()), 1.0)
        of, free = partial(Law.of, sites=drawn, reference=reference), drawn.frame.freedom
        self.laws = [(of(one.misfit, free=free), of(one.drift, free=3.4)) for one in own]
        chances = self.chances(drawn, own)
        self.cut = rejected(chances[0], n_sites)
        self.odd = float((chances[0] <= self.cut).mean())
        self.judged = self.verdict(drawn, own, chances)

    def beside(self, sites: Sites, member: Mask) -> list[Compared]:
        """Some sites beside the reference, given the labels and, where there are any, without."""
        views = zip(sites.views, self.totals, strict=True)
        return [compared(view, total, member) for view, total in views]

    def chances(self, sites: Sites, found: list[Compared]) -> list[Array]:
        """(k,) the chances that honest sites are so far off by misfit or drift, in both views."""
        both, n = zip(self.laws, found, strict=True), sites.sizes
        return [np.minimum(m.chance(x.misfit, n), d.chance(x.drift, n)) for (m, d), x in both]

    def verdict(self, sites: Sites, found: list[Compared], chances: list[Array]) -> Verdict:
        """Who goes of some sites.

        Whoever goes is doubted in both views, and no honest population looks like it: in both its
        scores are easier and harder at once, or it lacks most of the tail (if easier) or of the
        lower half (if harder) of what its labels lead one to expect. Where most of its samples are
        of classes that few sites hold, labels lead nowhere: it must stand out in both and lack the
        tail, or nearly all of the lower half or of the body; where many stand out, all of the body.
        Where half stand out, LEVEL of them by chance, nobody goes for crossing.
        """
        seen, mixed, few = found[0], found[-1], LEVEL / self.n_sites
        chance, without = chances[0], chances[-1]
        known = 2 * sites.counts[:, self.drawn.known].sum(axis=(1, 2)) >= sites.sizes
        limit = LACKS / (64 if (many := self.odd > 0.25) else 4)
        lacks = [x.lacks((x.body <= limit) | ((x.half <= limit) & (not many))) for x in found]
        given = np.where(known, seen.lacks(seen.half <= LACKS), lacks[0] & lacks[-1])
        given |= (np.minimum(seen.other, mixed.other) > CROSS) & (self.odd * (1 - LEVEL) < 0.5)
        given &= (chance <= few) & (without <= np.where(known, LEVEL, few))
        harder = ((chance < LEVEL) & seen.hard) | ((without < LEVEL) & mixed.hard)
        return Verdict(chance, given, chance <= self.cut, harder)

    def parted(self) -> float:
        """The mean misfit, 1 at least of each, with those who stand out as another population."""
        both = (x for x in (self.judged.stands, ~self.judged.stands) if x.any())
        fits = [compared(self.drawn, self.drawn.total(x), x).misfit[x] for x in both]
        return float(np.maximum(np.concatenate(fits), 1).mean())

    def settled(self) -> Explanation:
        """The one in which all but those who stand out are the reference."""
        found = self
        for _ in range(10):
            stands, n = found.judged.stands, len(found.reference)
            if found.odd >= 0.5:
                stands = _nearest(np.where(stands, found.judged.chance, 2), (n - 1) // 2)
            if (found.reference == ~stands).all():
                break
            found = Explanation(self.drawn, ~stands, self.n_sites, self.measure)
        return found


def _nearest(distance: Array, n: int = 0) -> Mask:
    """The n with the least distances; unless told more than half."""
    return np.argsort(np.argsort(distance, kind="stable")) < (n or len(distance) // 2 + 1)


def concentrated(sites: Sites, reference: Mask) -> Mask:
    """The half nearest to the reference becomes the reference, a few times.

    Whoever fits stays: sites more alike than sampling allows win nothing by it.
    """
    fits = float(sampled(sites.frame.freedom, 0.05))
    for _ in range(8):
        misfit = compared(sites, sites.total(reference), reference).misfit
        phi = max(np.median(misfit[reference]) - 1, 0) / np.median(sites.sizes[reference])
        far = misfit / (1 + phi * sites.sizes)
        near = _nearest(np.where(far <= fits, np.where(reference, 0, 1 + far), 1 + fits + far))
        if (near == reference).all():
            break
        reference = near
    return reference


def distinct(masks: Iterable[Mask]) -> list[Mask]:
    """Each mask once."""
    return list({hash(mask.tobytes()): mask for mask in masks}.values())


def plausible(sites: Sites, n_sites: int) -> list[Explanation]:
    """What explains the reports of the drawn sites, the best first.

    Found from the half nearest to the median report, from everybody, and from those who stand out
    of either. What is found from the other half, the harder one and all who stand out of a majority
    of nobody counts beside them and makes none of them less plausible: it may save sites and raise
    the threshold. One from which half of the sites stand out counts where no other is near. One in
    which only some of those stand out who do in the best does not count where two populations
    explain the reports far better: K log(ratio of misfits) > 2 log N (the shares of a second one
    cost 1.25 log N by Schwarz).
    """

    def settle(halves: Iterable[Mask]) -> list[Explanation]:
        return [Explanation(sites, x, n_sites).settled() for x in distinct(halves)]

    below = np.cumsum(sites.views[-1].counts[:, 0], axis=1) / sites.sizes[:, None]
    far = ((below - np.median(below, axis=0)) ** 2).sum(axis=1) * sites.sizes
    half = concentrated(sites, _nearest(far / (1 + sites.sizes / np.median(sites.sizes))))
    found = settle([half, np.ones(len(half), dtype=bool)])
    several = [x.judged.stands for x in found if x.judged.stands.sum() > 1]
    found += settle(concentrated(sites, one) for one in distinct(several))
    limit = max(LOOSE, 1) * min(one.measure for one in found)
    found += settle(concentrated(sites, one) for one in (~half, _nearest(below.mean(axis=1))))
    found += settle(distinct(x.judged.stands for x in found if x.odd >= 0.5)[:2])  # eight: a byte
    best = {x.judged.stands.tobytes(): x for x in sorted(found, key=lambda x: -x.measure)}
    near = [x for x in best.values() if x.measure <= limit]
    first, *rest = sorted([x for x in near if x.odd < 0.5] or near, key=lambda x: x.measure)
    stands, most = first.judged.stands, first.parted() * sites.sizes.sum() ** (2 / len(half))
    return [first, *(x for x in rest if (x.judged.stands & ~stands).any() or x.parted() <= most)]
