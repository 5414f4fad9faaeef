"""What explains the reports: expect, test, guard, and majorities tried as the reference.

All of it is sought among some sites, drawn by lot where there are many; one pass over everybody
then judges each site by what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.report import Strata

# What was chosen, not derived; the documentation shows what half and twice of each do.
LEVEL = 0.05  # chance of leaving anybody out when nobody lies; below it a site is doubted
TAIL = 0.7  # deviation of the log of how far honest sites differ beyond sampling
CAP = 3  # a site vouches for at most so many times the median number of samples
LACKS = 0.35  # of the expected lower half, body or tail: with less no honest population is left
CROSS = 0.05  # share of scores on the other side that no other population has
LOOSE = 1.6  # an explanation is plausible up to so many times the misfit of the best
BESIDE = 0.2  # honest sites left out beside liars, in the mean

QUANTILES = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
BODY = 0.92  # expected share up to the edge that parts body and tail, at most
VIEWS = 1.6  # tests that the two views are worth
STARTS, STEPS = 8, 8  # of the search for majorities
DRAWN = 256  # of many sites, whose quantiles choose the bins and among whom majorities are sought
SPREADS = 2  # times that counts in fives are spread as all are
CELLS = 2**16  # of sites judged together
MOST_CELLS = 2**24  # of the drawn sites' table by class; beyond it classes are pooled

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def drawn(n_sites: int, seed: int) -> Indices:
    """All sites, or the rising places of a few, by lot."""
    if n_sites <= DRAWN:
        return np.arange(n_sites)
    return np.sort(np.random.default_rng(seed).choice(n_sites, DRAWN, replace=False))


@dataclass(frozen=True, eq=False)
class Frame:
    """How the sites of a round are looked at: on a few bins, by class where reports keep classes.

    The merged bins end at the medians of the drawn sites' own quantiles. Sites that keep their
    classes back while others do not (`withheld`) are one more class, with all classes together as
    its reference. `most` is the largest size that counts, `usual` (C, B) over what counts in fives
    are spread.
    """

    ends: Indices
    most: int
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
        middle, strata = max(float(np.median(part.sizes)), 1.0), federation.exact_strata
        made = cls(ends_of(part), int(CAP * middle), middle)
        if strata is not None and DRAWN * strata.n_strata * len(made.ends) <= MOST_CELLS:
            withheld = len(strata.rows) < federation.n_clients
            made = replace(made, n_classes=strata.n_strata, withheld=withheld)
        for _ in range(SPREADS if 2 * part.in_fives.sum() > part.n_clients else 0):
            counts = made.counts(part)  # a few who look so are not excused
            say = 1 / np.maximum(part.sizes, middle)
            usual = np.einsum("k,kcb->cb", say, counts) + 1e-9
            usual[-1] = usual.sum(axis=0) if made.withheld else usual[-1]
            made = replace(made, usual=usual)
        return made

    def counts(self, block: Federation) -> Array:
        """(k, C, B) merged counts of some sites, those in fives spread; none below 0."""
        pooled, strata = block.merged(self.ends), block.exact_strata
        found = pooled[:, None].astype(np.float64)
        if self.n_classes and strata is not None:
            every = np.arange(self.n_classes)[:, None] * strata.n_bins + self.ends
            merged = strata.table.merged(every.ravel())
            found = np.zeros((len(pooled), self.n_classes + self.withheld, len(self.ends)))
            found[strata.rows, : self.n_classes] = merged.reshape(-1, *every.shape)
            if self.withheld:
                kept_back = np.setdiff1d(np.arange(len(pooled)), strata.rows, assume_unique=True)
                found[kept_back, -1] = pooled[kept_back]
        found = np.maximum(found, 0)
        return found if self.usual is None else self._spread(block, found)

    def _spread(self, block: Federation, own: Array) -> Array:
        """Counts in fives over the bins they may lie in as all sites' are: what scores are moved up
        for makes nobody odd. Reports with very few samples a class are taken as they are: else
        liars would be spread among the honest.
        """
        (rows, classes, *sides, values), known = block.spans()
        assert self.usual is not None
        known &= ~self._coarse(block)
        (n_classes, n_bins), passed = self.usual.shape, np.cumsum(self.usual, axis=1) - self.usual
        classes = classes if n_classes > 1 else 0 * classes
        first, last = (np.searchsorted(self.ends, side) for side in sides)
        within = passed[classes, last] + self.usual[classes, last] - passed[classes, first]
        place = (rows * n_classes + classes) * (n_bins + 1)
        begun, ended = (
            np.bincount(place + at, values / within, len(own) * n_classes * (n_bins + 1))
            for at in (first, last + 1)
        )
        rates = np.cumsum((begun - ended).reshape(-1, n_classes, n_bins + 1), axis=2)[:, :, :-1]
        return np.where(known[:, None, None], rates * self.usual, own)

    def parts(self, n_clients: int) -> Iterator[slice]:
        """Slices of sites whose tables fit the cache together."""
        step = max(1, CELLS // ((self.n_classes + 1) * len(self.ends)))
        return (slice(k, min(k + step, n_clients)) for k in range(0, n_clients, step))

    def sites(self, block: Federation) -> Sites:
        """Some sites, their counts brought to their sizes."""
        sizes = np.minimum(np.maximum(block.sizes, 1), self.most).astype(np.float64)
        counts = self.counts(block)
        counts *= (sizes / np.maximum(counts.sum(axis=(1, 2)), 1))[:, None, None]
        noise = np.zeros((1, 1))
        if block.private and block.variances.any():
            noise = block.variances[:, None] * np.diff(self.ends, prepend=-1)
        coarse = self._coarse(block) if self.usual is not None else np.zeros(1, dtype=bool)
        return Sites(counts, sizes, noise, self, coarse)

    def _coarse(self, block: Federation) -> Mask:
        """(k,) whose samples a class are so few that fives move them far."""
        rows: Any = block.strata.rows if self.n_classes and block.strata is not None else []
        few: Mask = block.sizes < Strata.CROWD * self.n_classes
        return few & np.isin(np.arange(block.n_clients), rows)


def ends_of(federation: Federation) -> Indices:
    """The last bins of the merged ones, at the medians of a few sites' own quantiles."""
    below = np.cumsum(np.maximum(federation.counts, 0), axis=1)
    shares = below / np.maximum(below[:, -1:], 1)
    last = federation.grid.n_bins - 1
    reached = [np.median((shares < level - 1e-12).sum(axis=1)) for level in QUANTILES]
    return np.unique(np.append(np.minimum(np.array(reached, dtype=np.intp), last), last))


@dataclass(frozen=True, eq=False)
class Sites:
    """(k, C, B) counts of some sites, their sizes (k,) and the variances of privacy noise.

    The lower half of those `coarse` is not looked at, but all of the body.
    """

    counts: Array
    sizes: Array
    noise: Array
    frame: Frame
    coarse: Mask

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def views(self) -> list[Sites]:
        """Itself, and the same without classes where it has some."""
        if self.counts.shape[1] == 1:
            return [self]
        counts = self.counts.sum(axis=1, keepdims=True)
        return [self, Sites(counts, self.sizes, self.noise, self.frame, self.coarse)]

    def total(self, reference: Mask) -> Array:
        """(C, B) the counts of a reference."""
        return np.asarray(np.einsum("k,kcb->cb", reference * self.say, self.counts))

    @cached_property
    def say(self) -> Array:
        """(k,) how much each counts in a reference: for no more than the median site."""
        return np.minimum(1, self.frame.middle / self.sizes)

    @cached_property
    def known(self) -> Mask:
        """(C,) which classes most sites hold: three in four at least a quarter of its mean share.

        Of others liars may be most of the holders.
        """
        if self.counts.shape[1] == 1:
            return np.zeros(1, dtype=bool)
        shares = self.counts.sum(axis=2) / self.sizes[:, None]
        found: Mask = np.quantile(shares, 0.25, axis=0) >= 0.25 * shares.mean(axis=0)
        return found


def expected(counts: Array, said: Array, total: Array, withheld: bool) -> tuple[Array, ...]:
    """(k, B) expected counts E, and their variances by bin and up to each bin.

    With p_c the reference's shares of class c without the site itself, E_b = sum_c n_c p_cb and
    V_b = sum_c n_c p_cb (1 - p_cb) (1 + n_c / (N_c + a)): a site's own noise and the error of the
    reference. All classes' shares are worth `a` samples of each, by how alike classes are.
    """
    rest, worth, labels = total - said, samples_worth(total), counts.sum(axis=2)
    every = rest.sum(axis=1)
    if withheld:
        rest[:, -1] = every
    prior = worth * (every + 0.5) / (every + 0.5).sum(axis=1, keepdims=True)
    weight = rest.sum(axis=2) + worth
    shares = (rest + prior[:, None]) / weight[:, :, None]
    sizes, passed = labels * (1 + labels / weight), np.cumsum(shares, axis=2)[:, :, :-1]
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
    """(k,) each: how every site compares with what a reference leads one to expect.

    `misfit` is X^2 by bin over its mean under sampling, `drift` that of the counts up to each bin
    (as Anderson and Darling's); `hard`: whether F is below F expected in the mean, `other` how far
    F goes to the other side; `half`, `body`, `tail` what it has of the expected; `edge`, `have`,
    `want`: where F is farthest from expected.
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

    @property
    def ratios(self) -> tuple[Array, Array]:
        """Both, each over its mean under sampling."""
        return self.misfit, self.drift

    def impossible(self, cross: float, lacking: Mask) -> Mask:
        """Easier and harder at once, or without most of the tail, or lacking so much if harder."""
        found: Mask = (self.other > cross) | np.where(self.hard, lacking, self.tail <= LACKS / 2)
        return found


def compared(sites: Sites, total: Array, member: Mask) -> Compared:
    """Every site beside a reference, itself left out where it is a member."""
    said = sites.counts * (member * sites.say)[:, None, None]
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
    tail = (1 - have) / np.maximum(1 - body, 1e-12)
    edge = np.argmax(np.abs(ahead)[:, : max(h.shape[1] - 1, 1)], axis=1)
    half, body = np.where(sites.coarse, have / body, own / half), have / body
    return Compared(misfit, drift, hard, other, half, body, tail, edge, *at(edge))


def sampled(free: float, above: Array | float) -> Array:
    """What chi-square over `free` exceeds with the given chances."""
    from scipy.special import gammainccinv

    return np.asarray(gammainccinv(free / 2, above) / (free / 2), dtype=np.float64)


@dataclass(frozen=True)
class Law:
    """Of ratios u (1 + phi n G): u chi-square over `free`, log G normal with deviation `tail`.

    phi is what the reference's own ratios exceed sampling by, with its standard error; the tail is
    that of one more site than the reference's.
    """

    free: float
    phi: float
    tail: float
    coarse: bool = False

    @classmethod
    def of(cls, ratio: Array, sizes: Array, free: float, middle: float, coarse: bool) -> Law:
        """The one that a reference's own ratios follow."""
        excess = max(float(np.median(ratio) / sampled(free, 0.5)) - 1, 0) / float(np.median(sizes))
        error = 1.25 * np.sqrt(2 / free / len(ratio)) / middle
        return cls(free, excess + error, TAIL * np.sqrt(1 + 1.5 / len(ratio)), coarse)

    def chance(self, ratio: Array, sizes: Array) -> Array:
        """(k,) of so large a ratio; if `coarse` on a fine grid of ratios and sizes."""
        from scipy.special import ndtr

        cuts = np.concatenate([np.linspace(1, 0.1, 31)[:-1], np.geomspace(0.1, 1e-10, 46)])
        place = None
        if self.coarse:
            logs = (np.rint(64 * np.log(np.maximum(one, 1e-3))) for one in (ratio, sizes))
            points, place = np.unique(next(logs) * 2**16 + next(logs), return_inverse=True)
            ratio, sizes = (np.exp(one / 64) for one in np.divmod(points, 2**16))
        over = ratio[:, None] / sampled(self.free, np.sqrt(cuts[1:] * cuts[:-1])) - 1
        depth = np.log(np.maximum(over, 1e-300) / (self.phi * sizes[:, None]))
        summed = (ndtr(-depth / self.tail) * -np.diff(cuts)).sum(axis=1)  # alike in any company
        found = np.clip(VIEWS * summed, 1e-300, 1)
        return found if place is None else found[place]


def rejected(chance: Array, level: float) -> float:
    """Benjamini and Hochberg: the chance up to which the j oddest go, p_(j) <= level j / K."""
    values, times = np.unique(chance, return_counts=True)
    fits = values <= level * np.cumsum(times) / len(chance)
    return float(values[fits].max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Verdict:
    """(k,) each: who goes, who is set aside, who stands out, who is doubted for harder scores.

    Without those `aside` the threshold is taken too, and the higher one counts.
    """

    chance: Array
    out: Mask
    aside: Mask
    stands: Mask
    harder: Mask


class Explanation:
    """A majority of the drawn sites as the reference, and how everybody compares with it.

    Twice: given the labels, and without classes. `cuts` are the chances from which on sites stand
    out in each, `many` whether more than a quarter of the drawn do. Where half or more do
    (`refuted`) it is the majority of nobody. `origin` is the half that it was found from.
    """

    def __init__(
        self, drawn: Sites, reference: Mask, level: float, n_sites: int, origin: Any = None
    ) -> None:
        self.drawn, self.reference, self.level, self.n_sites = drawn, reference, level, n_sites
        self.origin: Explanation = origin or self
        self.totals = [one.total(reference) for one in drawn.views]
        self.own = self.beside(drawn, reference)
        of = partial(Law.of, sizes=drawn.sizes[reference], middle=drawn.frame.middle)
        of, frees = partial(of, coarse=n_sites > DRAWN), (drawn.frame.freedom, 3.4)
        self.laws = [
            [of(x[reference], free=free) for x, free in zip(one.ratios, frees, strict=True)]
            for one in self.own
        ]
        chances = self.chances(drawn, self.own)
        self.cuts = [max(rejected(p, level), level / n_sites) for p in chances]
        self.many = bool(4 * (chances[0] <= self.cuts[0]).sum() > len(drawn))
        self.judged = self.verdict(drawn, self.own)
        self.refuted = bool(2 * self.judged.stands.sum() >= len(drawn))

    def beside(self, sites: Sites, member: Mask) -> list[Compared]:
        """Some sites beside the reference, given the labels and, where there are any, without."""
        views = zip(sites.views, self.totals, strict=True)
        return [compared(view, total, member) for view, total in views]

    def chances(self, sites: Sites, found: list[Compared]) -> list[Array]:
        """(k,) the chances that honest sites are so far off by misfit or drift, in both views."""
        return [
            np.minimum(
                *(law.chance(x, sites.sizes) for law, x in zip(own, one.ratios, strict=True))
            )
            for own, one in zip(self.laws, found, strict=True)
        ]

    def verdict(self, sites: Sites, found: list[Compared]) -> Verdict:
        """Who goes of some sites.

        Whoever goes is doubted in both views, and no honest population looks like it: its scores
        are easier and harder at once, or it lacks most of the tail (if easier) or of the lower half
        (if harder) of what its labels lead one to expect. Where most of its samples are of classes
        that few sites hold, labels lead nowhere: it must stand out and lack twice as much in both
        views; where many stand out, nearly all of the body.
        """
        seen, mixed, chances = found[0], found[-1], self.chances(sites, found)
        chance, without = chances[0], chances[-1]
        stands, also = chance <= self.cuts[0], without <= self.cuts[-1]
        odd = stands & (self.n_sites * chance <= BESIDE)
        also &= self.n_sites * without <= BESIDE
        known = 2 * sites.counts[:, self.drawn.known].sum(axis=(1, 2)) >= sites.sizes
        hopeless = [
            one.impossible(CROSS, one.body <= LACKS / 16 if self.many else one.half <= LACKS / 2)
            for one in found
        ]
        given = seen.impossible(CROSS, seen.half <= LACKS)
        given = np.where(known, given, hopeless[0] & hopeless[-1] & also)
        out, easier = odd & (without < LEVEL) & given, also & hopeless[-1] & ~mixed.hard
        harder = ((chance < LEVEL) & seen.hard) | ((without < LEVEL) & mixed.hard)
        return Verdict(chance, out, out | odd & (seen.tail < 1) | easier, stands | easier, harder)

    def fits(self, some: Mask) -> list[float]:
        """Mean misfits of some sites, by class and without, 1 at least."""
        misfits = (one.misfit[some] for one in (self.own[0], self.own[-1]))
        return [max(float(one.mean()), 1.0) if one.size else 1.0 for one in misfits]

    @cached_property
    def measure(self) -> list[float]:
        """How well the half it was found from fits itself."""
        return self.origin.fits(self.origin.reference)

    def close_to(self, best: Explanation) -> bool:
        """Whether it explains the reports by class as the best does, or both ways about as well.

        Whom the best leaves out fit it as its others do, in one way at least.
        """
        stands = self.judged.stands
        kept = best.judged.out & ~stands
        far, usual = self.fits(kept), self.fits(~stands & ~kept)
        (own, pooled), (least, other) = self.measure, best.measure
        close = own <= least or (own <= LOOSE**0.5 * least and pooled <= LOOSE * other)
        return close and (far[0] <= LOOSE * usual[0] or far[1] <= LOOSE * usual[1])

    def settled(self) -> Explanation:
        """The one in which all but those who stand out are the reference."""
        found = self
        for _ in range(10):
            stands, n = found.judged.stands, len(found.drawn)
            if found.refuted:
                oddest = np.argsort(np.where(stands, found.judged.chance, 2), kind="stable")
                stands = np.isin(np.arange(n), oddest[: (n - 1) // 2])
            if (found.reference == ~stands).all():
                break
            found = Explanation(self.drawn, ~stands, self.level, self.n_sites, self)
        return found


def starts(sites: Sites, lot: np.random.Generator) -> Iterator[Mask]:
    """The half nearest to the median report, and some sites by lot."""
    n, sizes = len(sites), sites.sizes
    half, everybody = n // 2 + 1, np.arange(n)
    below = np.cumsum(sites.views[-1].counts[:, 0], axis=1) / sizes[:, None]
    distance = ((below - np.median(below, axis=0)) ** 2).sum(axis=1)
    distance *= sizes / (1 + sizes / np.median(sizes))
    yield np.isin(everybody, np.argsort(distance, kind="stable")[:half])
    for number in range(STARTS):
        size = min(half, max(3, n // (16 if number % 2 else 8)))
        yield np.isin(everybody, lot.choice(n, size, replace=False))


def concentrated(sites: Sites, reference: Mask) -> Mask:
    """The half nearest to the reference becomes the reference, a few times.

    Whoever fits stays: sites more alike than sampling allows win nothing by it.
    """
    fits = float(sampled(sites.frame.freedom, LEVEL))
    for _ in range(STEPS):
        misfit = compared(sites, sites.total(reference), reference).misfit
        phi = max(np.median(misfit[reference]) - 1, 0) / np.median(sites.sizes[reference])
        far = misfit / (1 + phi * sites.sizes)
        order = np.where(far <= fits, np.where(reference, 0, 1 + far), 1 + fits + far)
        nearest = np.zeros(len(sites), dtype=bool)
        nearest[np.argsort(order, kind="stable")[: len(sites) // 2 + 1]] = True
        if (nearest == reference).all():
            break
        reference = nearest
    return reference


def distinct(masks: Iterable[Mask]) -> list[Mask]:
    """Each mask once."""
    return list({hash(mask.tobytes()): mask for mask in masks}.values())


def plausible(sites: Sites, level: float, seed: int, n_sites: int) -> list[Explanation]:
    """What explains the reports of the drawn sites, the best first; everybody is one of these."""

    def settle(halves: Iterable[Mask]) -> list[Explanation]:
        return [Explanation(sites, x, level, n_sites).settled() for x in distinct(halves)]

    some = starts(sites, np.random.default_rng(seed))
    halves = [concentrated(sites, start) for start in some]
    found = settle([*halves, np.ones(len(sites), dtype=bool)])
    others = distinct(one.judged.stands for one in found)
    found += settle(concentrated(sites, one) for one in others if one.sum() > 1)
    found.sort(key=lambda one: -prod(one.measure))
    best = {one.judged.stands.tobytes(): one for one in found}  # of equals the last
    ranked = sorted(best.values(), key=lambda one: prod(one.measure))
    near = [one for one in ranked if one.close_to(ranked[0])]
    return [one for one in near if not one.refuted] or near
