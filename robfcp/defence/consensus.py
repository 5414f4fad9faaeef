"""The default defence: expect, test, guard, explain, vote.

1. expect  what a site's own labels lead one to expect of its scores, from a reference without it;
2. test    the chance that an honest site is so far off: sampling, and how honest sites differ;
3. guard   a site goes only if no honest population could look like it;
4. explain several majorities are tried as the reference; a site goes only if it goes in all that
           explain the reports about as well as the best;
5. vote    FCP's threshold on those kept, raised while some vouch for more than they can show.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod, sqrt
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence.base import (
    Assessment,
    Defence,
    Reasons,
    check_minority,
    numbers_told,
    trust_lowest,
    without_farthest,
)
from robfcp.defence.copies import copy_note, find_copies
from robfcp.defence.sites import CAP, CELLS, EVERYBODY, Sites, drawn, ends_of, sites_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, rank_charge

# What was chosen, not derived; the documentation shows what half and twice of each do.
LEVEL = 0.05  # chance of leaving anybody out when nobody lies; below it a site is doubted
TAIL = 0.7  # deviation of the log of how far honest sites differ beyond sampling
LACKS = 0.25  # of the expected body or tail: with less no honest population is left
CROSS = 0.05  # share of scores on the other side that no other population has
LOOSE = 2.0  # an explanation is plausible up to so many times the misfit of the best
BESIDE = 0.2  # honest sites left out beside liars, in the mean
VOUCH = 0.5  # deviations above the level that a site may vouch for; it objects with one over it

BODY = 0.92  # expected share up to the edge that parts body and tail, at most
VIEWS = 1.6  # tests that the two views are worth
STARTS, FOLLOWED, STEPS = 8, 3, 8  # of the search for majorities
EXACT = 256  # sites whose chances are computed one by one; of more, on a fine grid
KINDS = 2 * [np.float32] + 5 * [np.float16]  # in which these of more sites are kept
SMALL = 6e4  # the largest number of half precision, about
AT_ONCE = 16  # edges of a vote
WHOLE = 2.0**59  # what votes add up to at most, about, in whole numbers: in any order

Indices = NDArray[np.intp]
Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]


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

    def impossible(self, alone: bool) -> Mask:
        """Easier and harder at once, or without most of the body (if harder) or tail (if easier).

        One site alone goes half way to all of its body: to lose it costs little. Of several each
        must lack the lower half of all sites' scores too: else liars who share the easiest ones
        make the honest look impossible.
        """
        body = self.body <= (1 + LACKS) / 2
        if not alone:
            body = np.maximum(self.body, self.lower) <= LACKS
        lacking = np.where(self.hard, body, self.tail <= LACKS)
        return (self.other > CROSS) | lacking


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
        out = odd & seen.impossible(int(stands.sum()) == 1) & (without < LEVEL)
        easier = also & mixed.impossible(int(also.sum()) == 1) & ~mixed.hard
        aside, stands = odd & (seen.tail < 1) | easier, stands | easier
        refuted = bool(2 * stands.sum() > sites.n)
        if stands.sum() > most:
            oddest = np.argsort(np.where(stands, chance, 2), kind="stable")[:most]
            stands = np.isin(np.arange(sites.n), oddest)
        out, aside = out & stands, aside & stands
        if (out & seen.hard).sum() > 1:
            out &= ~seen.hard | (also & mixed.impossible(False))
        if (before == stands).all():
            break
        reference = ~stands
    else:
        seen, mixed = both(sites, pooled, reference)
    return Hypothesis(out, out | aside, stands, seen, mixed, refuted)


def majorities(sites: Sites, lot: np.random.Generator) -> list[Mask]:
    """Halves that agree: from the half nearest to the median report and from some by lot."""
    half, everybody = sites.n // 2 + 1, np.arange(sites.n)
    below, sizes = (
        np.cumsum(sites.counts.sum(axis=1) * sites.scale()[:, None], axis=1),
        sites.sizes(),
    )
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

    best = sorted(_distinct(halves), key=misfit)[:FOLLOWED]
    found = sorted(_distinct(concentrated(sites, one, STEPS) for one in best), key=misfit)
    return [*found, concentrated(sites, ~found[0], STEPS)]


def _distinct(masks: Iterable[Mask]) -> list[Mask]:
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


def explanations(sites: Sites, few: Indices, level: float, seed: int) -> list[Hypothesis]:
    """What explains the reports, the best first; sought among the drawn, settled among all."""
    part = sites.some(few)
    pooled, lot = part.pooled(), np.random.default_rng(seed)
    halves = [*majorities(part, lot), np.ones(part.n, dtype=bool)]
    settles = [settled(part, pooled, half, level) for half in _distinct(halves)]
    others = [concentrated(part, one.stands, STEPS) for one in settles if one.stands.sum() > 1]
    settles += [settled(part, pooled, half, level) for half in _distinct(others)]
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


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found about everybody, before it is asked how many may be left out.

    `oddness` is (K,), minus the logarithm (base 10) of the chance that an honest site is so odd;
    `stands_out` says who goes; `others` are the sites that go in other plausible explanations;
    `harder` whoever is doubted for it; `named` whom the remarks name; `reasons` why;
    `remarks` what else to say.
    """

    oddness: Array
    stands_out: Mask
    others: tuple[Mask, ...]
    harder: Mask
    named: Mask
    reasons: Reasons
    remarks: tuple[str, ...] = ()


@lru_cache(maxsize=1)  # verdict and vote both ask for it
def stand_out(federation: Federation, level: float = LEVEL, seed: int = 0) -> Finding:
    """Who stands out so that no plausible explanation keeps it."""
    copies = find_copies(federation)
    few = drawn(federation.n_clients, seed)
    sites = sites_of(federation, copies, few)
    owner, nobody = sites.owner, np.zeros(federation.n_clients, dtype=bool)
    if sites.n < 4:
        few_sites = "fewer than four sites are too few to tell a liar from an unusual site"
        remarks = [*copy_note(copies), few_sites]
        nothing = Reasons(federation, np.flatnonzero(nobody), str)
        masks = nobody, (), nobody, nobody
        return Finding(np.zeros(len(nobody)), *masks, nothing, tuple(remarks))
    few = few if sites.n == federation.n_clients else drawn(sites.n, seed)
    plausible = explanations(sites, few, level, seed)
    out = np.logical_and.reduce([one.out for one in plausible])
    out &= 2 * out[owner].sum() < len(nobody)  # copies of an honest report could make it a majority
    best, reference = plausible[0], ~plausible[0].stands
    seen, mixed = best.seen, best.mixed
    chance = chances(sites, seen, reference)
    without = chance if mixed is seen else chances(sites, mixed, reference)
    harder = ((chance < LEVEL) & seen.hard) | ((without < LEVEL) & mixed.hard)
    remarks = [*copy_note(copies)]
    unsure = np.logical_or.reduce([one.out for one in plausible]) & ~out
    for members, how in (
        (unsure, "out in one explanation of the reports, kept in another as good"),
        (best.stands & ~out & ~unsure, "standing out, as another population would"),
    ):
        if members.any():
            names = a_few(federation.names(members[owner]))
            remarks.append(
                f"{how}: {names}. Nobody was left out for it and the safer threshold was kept; ask "
                "these sites what differs, state the number of liars (--exactly, Consensus(exactly"
                "=m)) or give a trusted sample (--anchor, anchor=)"
            )
    others = [mask for one in plausible for mask in (one.out, one.aside) if (mask != out).any()]
    odd, rows = np.flatnonzero(out), np.flatnonzero(out[owner])
    misfit, named = seen.misfit[odd], (unsure | best.stands & ~out)[owner]
    del plausible, best, seen, mixed, without  # numbers of every site
    told = numbers_of(sites, reference, odd, chance[odd], misfit)
    if not isinstance(owner, slice):  # copies are told what one of them is
        told = told[np.searchsorted(odd, owner[rows])]
    edges = federation.grid.upper[sites.ends]
    said = "its labels lead one to expect {}" if sites.counts.shape[1] > 1 else "{} is usual"
    return Finding(
        oddness=0.0 - np.log10(chance)[owner],  # not -0.0
        stands_out=out[owner],
        others=tuple(_distinct([mask[owner] for mask in others])),
        harder=harder[owner],
        named=named,
        reasons=Reasons(federation, rows, lambda row: in_words(told[row], edges, said)),
        remarks=tuple(remarks),
    )


def numbers_of(
    every: Sites, reference: Mask, chosen: Indices, chance: Array, misfit: Floats
) -> NDArray[Any]:
    """Why each chosen site is left out, in numbers: where its scores are farthest from expected."""
    say = every.say(reference)
    total, kind = every.total(say), misfit.dtype
    columns = [
        ("have", kind),
        ("want", kind),
        ("edge", np.uint8),
        ("chance", kind),
        ("misfit", kind),
    ]
    found = np.zeros(len(chosen), columns)
    found["chance"], found["misfit"] = np.maximum(chance, 1e-30), misfit
    ends = np.searchsorted(chosen, [block.stop for block in every.blocks()]).tolist()
    for block, first, last in zip(every.blocks(), [0, *ends], ends, strict=False):
        rows = chosen[first:last]
        sites, spoken = (
            every.some(rows),
            every.counts[rows] * say(block)[rows - block.start, None, None],
        )
        own, size = sites.counts * sites.scale()[:, None, None], sites.sizes()[:, None]
        means, *_ = expected(own, spoken, total, sites.withheld)
        have, want = (np.cumsum(one, axis=1) / size for one in (own.sum(axis=1), means))
        edge = np.argmax(np.abs(have - want)[:, : max(have.shape[1] - 1, 1)], axis=1)
        here = np.arange(len(rows)), edge
        told = found[first:last]
        told["have"], told["want"], told["edge"] = have[here], want[here], edge
    return found


def in_words(told: Any, edges: Array, said: str) -> str:
    """Why a site is left out: its scores against those its labels lead one to expect."""
    have, want, edge, rare, times = told.tolist()
    rarity = f"1 in {1 / rare:,.0f}" if rare > 1e-6 else "fewer than 1 in a million"
    return (
        f"{have:.0%} of its scores are at most {edges[edge]:.3g} where "
        f"{said.format(f'{want:.0%}')}: {times:.3g} times as far off as sampling explains, as "
        f"{rarity} honest sites of its size would be"
    )


@dataclass(frozen=True)
class Consensus(Defence):
    """Trust all but the sites whose scores their own labels cannot explain, and let those vote.

    Parameters
    ----------
    exactly
        Leave out so many, the oddest, whatever they look like.
    at_most
        Leave out the oddest of those that stand out, at most so many; all of them if None.
    false_alarm
        The chance of excluding anybody when nobody lies.
    seed
        Of the lot among many sites; `calibrate` draws one that nobody can foresee and records it.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> federation = robfcp.Federation.from_counts(counts)
    >>> robfcp.calibrate(federation, defence=robfcp.Consensus(false_alarm=0.01)).flagged
    ('client-03',)
    """

    exactly: int | None = None
    at_most: int | None = None
    false_alarm: float = LEVEL
    seed: int = 0
    name: ClassVar[str] = "consensus"

    def __post_init__(self) -> None:
        if self.exactly is not None and self.at_most is not None:
            raise RobfcpError("at_most: exactly as many are to be left out; state one of the two")
        if not 0 < self.false_alarm < 1:
            raise RobfcpError(
                f"false_alarm: {self.false_alarm} is not between 0 and 1; give 0.05, say"
            )
        numbers_told(self, "exactly", "at_most", "seed")

    def __call__(self, federation: Federation) -> Assessment:
        return self.judge(federation, self.look(federation))

    def unforeseen(self, federation: Federation) -> Consensus:
        """The same with a lot of its own, where one is drawn.

        Parameters
        ----------
        federation
            The reports of one round.
        """
        if len(drawn(federation.n_clients, 0)) == federation.n_clients or self.seed:
            return self
        return replace(self, seed=secrets.randbits(48) + 1)

    def look(self, federation: Federation) -> Finding:
        """How odd everybody is and who stands out.

        Parameters
        ----------
        federation
            The reports of one round.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
        >>> counts[3] = [200] + [0] * 19
        >>> finding = robfcp.Consensus().look(robfcp.Federation.from_counts(counts))
        >>> np.flatnonzero(finding.stands_out)
        array([3])
        """
        return stand_out(federation, self.false_alarm, self.seed)

    def judge(self, federation: Federation, finding: Finding) -> Assessment:
        """The verdict from what is known of everybody, so that several numbers share the work.

        Parameters
        ----------
        federation
            The reports of one round.
        finding
            What `look` found in them.
        """
        oddness, remarks = finding.oddness, finding.remarks
        if self.exactly is not None:  # who stands out is answered by the number
            told = copy_note(find_copies(federation))
            found = without_farthest(federation, self.exactly, oddness, "the majority", told)
            named = {name: finding.reasons.get(name, why) for name, why in found.reasons.items()}
            return replace(found, reasons=named)
        most = int(finding.stands_out.sum())
        liars = most if self.at_most is None else self.at_most
        check_minority(federation, liars)
        ranked = np.where(finding.stands_out, oddness, -np.inf)
        trusted = trust_lowest(federation, ranked, federation.n_clients - min(liars, most))
        why = finding.reasons.among(~trusted)
        return Assessment(oddness, trusted, why, remarks, liars, self.at_most is not None)

    def threshold(
        self, federation: Federation, trusted: Mask, rank: RankRule = rank_charge
    ) -> VotedThreshold | FcpThreshold:
        """The rule's own threshold on the trusted: a vote, or FCP's where counts hold noise.

        Parameters
        ----------
        federation
            The reports of one round.
        trusted
            (K,) who votes.
        rank
            Of which FCP's threshold is the least the vote can give.
        """
        if federation.noisy or federation.unit != 1:
            return FcpThreshold(federation, trusted, rank)
        finding = None if self.exactly is not None else self.look(federation)
        return VotedThreshold(federation, trusted, rank, finding)


class VotedThreshold:
    """The vote of the trusted, as high as any plausible explanation asks."""

    def __init__(
        self,
        federation: Federation,
        trusted: Mask,
        rank: RankRule = rank_charge,
        finding: Finding | None = None,
    ) -> None:
        nobody = np.zeros(federation.n_clients, dtype=bool)
        harder = nobody if finding is None else finding.harder
        self._vote = lru_cache(lambda who: Vote(federation, np.frombuffer(who, bool), rank, harder))
        self._trusted, self._finding = np.asarray(trusted), finding

    def _edge(self, trusted: Mask, level: Fraction) -> float:
        """The edge of some sites' vote; infinite where there is none."""
        edge = self._vote(trusted.tobytes()).index(level)
        return np.inf if edge is None else edge

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        edge, finding = self._edge(self._trusted, level), self._finding
        if finding is not None and (self._trusted | finding.stands_out).all():
            edge = max([edge, *(self._edge(~out, level) for out in finding.others)])
        return None if np.isinf(edge) else int(edge)


class Vote:
    """FCP's threshold, raised where some vouch for more than their samples can show.

    At an edge t a site's share F_k(t) counts as g_k(F_k(t) - L) - e_k: g_k(x) is x cut off at v s_k
    above and at s_k / v below (v s_k if it is doubted for its harder scores), v = VOUCH, s_k^2 =
    L (1 - L) (1/n_k + phi), and e_k is the mean of g_k(s_k Z) for Z normal. The edge
    is the first at or beyond FCP's with sum_k w_k [g_k(F_k(t) - L + d) - e_k] >= 0, d the standard
    deviation of the difference between vote and mean when nobody lies, less 1/N. Weights are
    sizes, at most CAP times the median unless registered. Copies speak once, with the least of
    their shares.
    """

    def __init__(self, federation: Federation, trusted: Mask, rank: RankRule, harder: Mask) -> None:
        self._plain = FcpThreshold(federation, trusted, rank)
        self._federation, self._harder = federation, harder
        self._trusted, self._speaks = trusted, np.array(trusted)
        self._most = np.inf if federation.registered else CAP * float(np.median(federation.sizes))
        copies, self._groups = find_copies(federation), list[Indices]()
        place = {client: k for k, client in enumerate(federation.ids)} if copies else {}
        for group in copies:
            members = np.array([place[client] for client in group.clients])
            members = members[trusted[members]]
            if len(members) > 1:
                self._groups.append(members)
                self._speaks[members] = False  # but once, below

    def _weighed(self) -> Iterator[tuple[Array, Array]]:
        """Sizes and weights of those who speak, block by block; each group of copies as one."""
        sizes, speaks = self._federation.sizes, self._speaks
        for start in range(0, len(sizes), CELLS):
            own = sizes[start : start + CELLS][speaks[start : start + CELLS]].astype(np.float64)
            yield own, np.minimum(own, self._most)
        for group in self._groups:
            own = sizes[group].astype(np.float64)
            yield own[:1], np.minimum(own, self._most).max(keepdims=True)

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        first, last = self._plain.index(level), self._federation.grid.n_bins - 1
        if first is None or self._trusted.sum() < 3:
            return first
        share, phi = float(level), self._phi
        (mean, off), total = _law(), sum(float(weights.sum()) for _, weights in self._weighed())

        def deviation(sizes: Array) -> Array:
            return np.sqrt(share * (1 - share) * (1 / sizes + phi))

        squares = sum(float(((w * deviation(n)) ** 2).sum()) for n, w in self._weighed())
        most, wanted = self._most, share - max((off * np.sqrt(squares) - 1) / total, 0.0)

        def given(sizes: Array, weights: Array, shares: Array, harder: Mask) -> Whole:
            unit = deviation(sizes)[:, None]
            lowest = np.where(harder[:, None], VOUCH, 1 / VOUCH)
            own = unit * (np.clip((shares - wanted) / unit, -lowest, VOUCH) - mean)
            return np.rint(WHOLE / total * weights[:, None] * own).astype(np.int64).sum(axis=0)

        def accepted(edges: Indices) -> Mask:
            def said(block: Federation, speaks: Mask, harder: Mask) -> Whole:
                rows = np.flatnonzero(speaks)
                sizes = block.sizes[rows].astype(np.float64)
                shares = block.cumulative(edges)[rows] / sizes[:, None]
                return given(sizes, np.minimum(sizes, most), shares, harder[rows])

            found = self._federation.fold(said, self._speaks, self._harder)
            for group, (sizes, weights) in zip(self._groups, grouped, strict=True):
                part = self._federation.take(group)
                shares = (part.cumulative(edges) / part.sizes[:, None]).min(axis=0, keepdims=True)
                found = found + given(sizes, weights, shares, self._harder[group[:1]])
            return found >= -1e-9 * WHOLE

        grouped = list(self._weighed())[-len(self._groups) :] if self._groups else []
        low, high = first, last + 1
        while low < high:  # accepted at `high` and above, not below `low`
            edges = np.unique(np.linspace(low, high - 1, AT_ONCE).astype(np.intp))
            number = int(np.append(accepted(edges), True).argmax())
            low, high = (
                int([low - 1, *edges][number]) + 1,
                int([*edges, high][number]),
            )
        return low if low <= last else None

    @cached_property
    def _phi(self) -> float:
        """phi by which the closer 30% of some differ beyond sampling: liars would widen later."""
        rows = np.flatnonzero(self._trusted)
        part = self._federation.take(rows[drawn(len(rows), 0)])
        counts = part.merged(ends_of(part)).astype(np.float64)
        sizes = part.sizes.astype(np.float64)
        shares = counts.sum(axis=0) / max(counts.sum(), 1)
        squares = (counts / sizes[:, None] - shares) ** 2 / (shares + 1e-12)
        misfit = squares.sum(axis=1) * sizes / max(counts.shape[1] - 1, 1)
        excess = (misfit / 0.7 - 1) / np.minimum(sizes, CAP * np.median(sizes))
        return float(f"{np.clip(np.quantile(excess, 0.3), 0, 0.3):.1e}")


def _law() -> tuple[float, float]:
    """Of Z normal, cut off as votes are: E g(Z), and the deviation of Z - (g(Z) - E g(Z)) / P."""
    low, high, normal = -1 / VOUCH, VOUCH, NormalDist()
    below, above = normal.cdf(low), 1 - normal.cdf(high)
    inside = 1 - below - above
    mean = low * below + high * above + normal.pdf(low) - normal.pdf(high)
    square = low**2 * below + high**2 * above + inside
    square += low * normal.pdf(low) - high * normal.pdf(high)
    return mean, sqrt((square - mean**2) / inside**2 - 1)


def estimate_malicious(federation: Federation) -> int:
    """The estimated number of liars; an estimate never bounds liars who hide in honest noise.

    Those whom `Consensus` leaves out, and all but one of every group of copies that it keeps; at
    most a minority.

    Parameters
    ----------
    federation
        The reports of one round.

    Returns
    -------
    int
        0 in at least 95% of the rounds in which nobody lies.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> robfcp.defence.estimate_malicious(robfcp.Federation.from_counts(counts))
    1
    """
    left_out = set(federation.names(stand_out(federation).stands_out))
    groups = [group.clients for group in find_copies(federation)]
    surplus = sum(len(clients) - 1 for clients in groups if clients[0] not in left_out)
    return min(len(left_out) + surplus, (federation.n_clients - 1) // 2)
