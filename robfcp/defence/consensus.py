"""The default defence: who stands out from what is expected of it, and a vote of the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence.base import (
    Assessment,
    Defence,
    check_minority,
    numbers_told,
    trust_lowest,
    without_farthest,
)
from robfcp.defence.copies import Copies, find_copies
from robfcp.defence.expected_scores import (
    UP_TO,
    USUAL,
    Array,
    Constants,
    Indices,
    Law,
    Mask,
    Tables,
    by_bin,
    drawn,
    expected,
    heterogeneity,
    joint_chance,
    law_of,
    ratios,
    residuals,
    tables_of,
    usual_spread,
    views,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, conformal_rank, rank_charge


def reasons(
    federation: Federation,
    tables: Tables,
    reference: Mask,
    sites: Indices,
    *,
    ratio: Array,
    chance: Array,
    ordinary: Array,
) -> list[str]:
    """Why each of the sites is left out: its scores against those its labels lead one to expect."""
    part, total = tables.subset(sites), tables.total(reference)
    edges = [f"{edge:.3g}" for edge in federation.grid.upper[tables.ends]]
    said = "its labels lead one to expect {}" if tables.shape[1] > 1 else "{} is usual"
    found: list[str] = []
    for block in part.blocks():
        given = expected(part, reference[sites], block, total)
        size = given.counts.sum(axis=1, keepdims=True)
        own, usual = (np.cumsum(one, axis=1) / size for one in (given.counts, given.means))
        place = np.argmax(np.abs(own - usual)[:, : max(own.shape[1] - 1, 1)], axis=1)[:, None]
        shares = (np.take_along_axis(one, place, axis=1)[:, 0].tolist() for one in (own, usual))
        numbers = (one[block].tolist() for one in (ratio, chance, ordinary))
        for at, have, want, times, rare, most in zip(
            place[:, 0].tolist(), *shares, *numbers, strict=True
        ):
            rarity = f"1 in {1 / rare:,.0f}" if rare > 1e-6 else "fewer than 1 in a million"
            found.append(
                f"{have:.0%} of its scores are at most {edges[at]} where "
                f"{said.format(f'{want:.0%}')}: {times:.3g} times as far off as sampling explains, "
                f"as {rarity} honest sites of its size would be (ordinary up to {most:.2g} times)"
            )
    return found


def copy_note(copies: Sequence[Copies]) -> tuple[str, ...]:
    """Who sends the same report: together they have one site's say."""
    return tuple(
        f"{a_few(group.clients)} send {'the same' if group.exact else 'nearly the same'} report "
        f"(chance among independent samples {group.p_value:.2g}): they have one site's say together"
        for group in copies
    )


BODY = 0.08  # expected share beyond the edge that parts body and tail, at least

Ranks = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """For each number j of oddest sites: are they a group, and may it be left out.

    `coherent`: they differ among themselves hardly more than the others do, or little beside their
    distance from them. `impossible`: their scores are both easier and harder than expected, or
    they lack most of what is expected of their body or their tail: no honest population. `hard`:
    harder on the whole.
    """

    coherent: Mask
    impossible: Mask
    hard: Mask


def groups_of(
    tables: Tables,
    reference: Mask,
    order: Indices,
    ranks: Ranks,
    phi: float,
    constants: Constants,
) -> Groups:
    """Of the sites in `order`, least odd first, those of the given ranks and odder ones together.

    All in one pass: sums over the sites between two ranks, of weights, weighted squares of both
    vectors (residuals and roots of shares), both vectors, counts and expected counts.
    """
    segment = np.full(tables.shape[0], -1)
    segment[order[::-1]] = np.searchsorted(ranks, np.arange(1, len(order) + 1))
    total, n_bins = tables.total(reference), tables.shape[2]
    sums = np.zeros((len(ranks) + 1, 3 + 4 * n_bins))
    for block in tables.blocks():
        live = segment[block] >= 0
        given = expected(tables, reference, block, total)
        counts, means, variances = (
            part[live] for part in (given.counts, given.means, given.variances)
        )
        noise = 0.0 if tables.noise is None else tables.noise[block][live]
        sizes = tables.sizes[block][live][:, None]
        differences, _ = residuals(counts, means, variances, noise)
        vectors = differences / np.sqrt(sizes), 2 * np.sqrt((counts + 0.375) / sizes)
        weights = sizes / (1 + phi * sizes)
        squares = [weights * (one**2).sum(axis=1, keepdims=True) for one in vectors]
        weighted = [weights * one for one in vectors]
        columns = np.concatenate([weights, *squares, *weighted, counts, means], axis=1).T
        for number, values in enumerate(columns):
            sums[:, number] += np.bincount(segment[block][live], values, minlength=len(sums))
    through = np.cumsum(sums, axis=0)
    upper, everybody = through[:-1], through[-1]
    (within, apart), (_, apart_roots) = (
        _spread(upper, everybody - upper, ranks, len(order), number) for number in (0, 1)
    )
    counts, means = np.split(upper[:, -2 * n_bins :], 2, axis=1)
    size = counts.sum(axis=1, keepdims=True)
    lead = np.cumsum(counts - means, axis=1) / size  # F observed less F expected
    hard = lead.mean(axis=1) < 0
    # twice as much for easier sites: to lose them costs no coverage
    diverse = np.where(hard, 1, 2) * constants.diverse
    close = np.minimum(apart, apart_roots) <= constants.within
    crosses = np.where(hard, lead.max(axis=1), -lead.min(axis=1)) > constants.cross
    own, usual = (np.cumsum(part, axis=1) / size for part in (counts, means))
    all_counts = everybody[-2 * n_bins : -n_bins]
    body, tail = _shares(own, usual, BODY)
    # a group must lack the lower half of all scores too: else liars who share the easiest
    # scores make the honest look impossible
    lower_half, _ = _shares(own, np.cumsum(all_counts)[None] / all_counts.sum(), 0.5)
    body = np.where(ranks == 1, body, np.maximum(body, lower_half))
    lacking = np.where(ranks == 1, 1 - (1 - constants.lacks) / 2, constants.lacks)
    without = np.where(hard, body <= lacking, tail <= constants.lacks)
    return Groups((ranks == 1) | (within <= diverse) | close, crosses | without, hard)


def _shares(own: Array, usual: Array, least: float) -> tuple[Array, Array]:
    """(J,) how much groups have of the usual body and of the usual tail.

    The tail is what is expected beyond the last edge with so much beyond it, or all there is.
    """
    beyond = 1 - usual
    inside = beyond >= np.minimum(least, beyond.max(axis=1, keepdims=True))
    edge = usual.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1)[:, None]
    known = np.take_along_axis(usual, edge, axis=1)[:, 0]
    found = np.take_along_axis(own, np.broadcast_to(edge, (len(own), 1)), axis=1)[:, 0]
    return found / np.maximum(known, 1e-12), (1 - found) / np.maximum(1 - known, 1e-12)


def _spread(
    upper: Array, lower: Array, ranks: Ranks, n_sites: int, number: int
) -> tuple[Array, Array]:
    """Variance within the upper sites over that within the lower, and over their distance."""
    n_bins = (upper.shape[1] - 3) // 4
    own = slice(3 + number * n_bins, 3 + (number + 1) * n_bins)

    def within(sums: Array) -> Array:
        squares = (sums[:, own] ** 2).sum(axis=1) / np.maximum(sums[:, 0], 1e-300)
        return np.maximum(sums[:, 1 + number] - squares, 0)

    above, below = (part[:, own] / np.maximum(part[:, :1], 1e-300) for part in (upper, lower))
    variance = within(upper) / np.maximum(ranks - 1, 1)
    others = within(lower) / np.maximum(n_sites - ranks - 1, 1)
    distance = ((above - below) ** 2).sum(axis=1) * upper[:, 0] / ranks
    return variance / np.maximum(others, 1e-12), variance / np.maximum(distance, 1e-12)


DRAWS = 400
_EVERY = 400  # ranks that are looked at one by one; beyond them in steps of 3%
_LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Null:
    """What the scan gives when all K oddities are standard normal."""

    ranks: Ranks
    middle: Array
    high: Array
    largest: Array

    def standard(self, heights: Array) -> Array:
        """(J,) heights comparable over the ranks: 0 is usual, 1 its 95% point."""
        found: Array = (heights - self.middle) / (self.high - self.middle)
        return found

    def chance(self, standard: float) -> float:
        """The chance of such a largest standard height."""
        above = len(self.largest) - np.searchsorted(self.largest, standard)
        return float((1 + above) / (1 + len(self.largest)))

    def widest_gap(self, place: int, rising: Array) -> int:
        """The number of oddest sites before the widest gap up to the next rank looked at."""
        first = int(self.ranks[place])
        last = int(self.ranks[place + 1]) if place + 1 < len(self.ranks) else first + 1
        falling = rising[::-1][first - 1 : last]
        return first + int(np.argmax(falling[:-1] - falling[1:]))


def heights(oddity: Array, ranks: Ranks, prior: float) -> Array:
    """(J,) R_j: how far the j-th oddest is from the K - j less odd, in their standard deviations.

    Location and scale of those are shrunk to 0 and 1 by `prior` sites. Small j is a test for
    outliers, j near K/2 one for a gap.
    """
    rising = np.sort(oddity)
    rest = len(rising) - ranks
    sums, squares = np.cumsum(rising)[rest - 1], np.cumsum(rising**2)[rest - 1]
    return _heights(rising[rest], sums, squares, rest, prior)


def _heights(value: Array, sums: Array, squares: Array, rest: Ranks, prior: float) -> Array:
    location = sums / (prior + rest)
    within = (
        np.maximum(squares - sums**2 / rest, 0) + prior * rest / (prior + rest) * (sums / rest) ** 2
    )
    found: Array = (value - location) / np.sqrt((prior + within) / (prior + rest))
    return found


@lru_cache(maxsize=64)
def null(n_sites: int, most: int, prior: float, least: float) -> Null:
    """The scan's law by simulation: order statistics of K normal numbers at a grid of ranks.

    All ranks up to 400; between later ones the order statistics are taken as linear, so that a
    million sites cost as much as a thousand.
    """
    from scipy.special import ndtri

    lot = np.random.default_rng(0)
    grid = _grid(n_sites)
    steps = np.diff(grid, prepend=0)
    passed = np.cumsum(lot.standard_gamma(steps, (DRAWS, len(grid))), axis=1)
    above = passed / (passed[:, -1:] + lot.standard_exponential((DRAWS, 1)))
    values = -ndtri(above)
    before = np.concatenate([values[:, :1], values[:, :-1]], axis=1)
    middle = np.where(steps > 1, (values + before) / 2, values)
    lower = [np.cumsum((steps * power)[:, ::-1], axis=1)[:, ::-1] for power in (middle, middle**2)]
    inside = np.flatnonzero(grid <= most)
    ranks = grid[inside]
    sums, squares = (below[:, inside + 1] for below in lower)
    found = _heights(values[:, inside], sums, squares, n_sites - ranks, prior)
    usual, high = np.median(found, axis=0), np.quantile(found, _LEVEL, axis=0)
    standard = np.where(found >= least, (found - usual) / (high - usual), -np.inf)
    return Null(ranks, usual, high, np.sort(standard.max(axis=1)))


def _grid(n_sites: int) -> Ranks:
    """Rising ranks from 1 to K."""
    ranks = np.arange(1, min(n_sites, _EVERY) + 1)
    if n_sites > _EVERY:
        number = int(np.ceil(np.log(n_sites / _EVERY) / np.log(1.03))) + 1
        further = np.round(np.geomspace(_EVERY, n_sites, number)).astype(np.int64)
        ranks = np.unique(np.concatenate([ranks, further]))
    return ranks.astype(np.int64)


STARTS, STEPS = 8, 6
CLASS_STARTS = 4  # of these also given the labels
USUAL_HETEROGENEITY = 0.02  # heterogeneity per sample that starts are compared with


def find_core(tables: Tables) -> Mask:
    """(K,) the more coherent half.

    It is sought in the pooled counts and, from there and afresh, given the labels: pooled, honest
    sites with unlike labels look less alike than liars who agree; given the labels, liars who
    claim a rare class explain each other. The core is the half that does best by both. Being more
    alike than noise allows earns nothing, and a half is judged by the sites just beyond it, so that
    a tight minority does not win.
    """
    few = drawn(tables.shape[0], tables.counts)
    part = tables.subset(few)
    pooled, given = _Halves(part.pooled()), _Halves(part)
    starts = _starts(pooled.tables)
    found = [pooled.concentrated(start) for start in starts]
    views = [pooled]
    if part.shape[1] > 1:
        views, best = [pooled, given], min(found, key=pooled.beyond)
        found = [best, *(given.concentrated(start) for start in (best, *starts[:CLASS_STARTS]))]
    core = min(found, key=lambda half: round(sum(view.beyond(half) for view in views), 9))
    if len(few) == tables.shape[0]:
        return core
    reference = np.zeros(tables.shape[0], dtype=bool)
    reference[few[core]] = True
    return _Halves(tables).nearest(reference)


class _Halves:
    """Halves of the sites, each the one nearest to another; what was compared is remembered."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._ratios: dict[bytes, Array] = {}

    def _compared(self, reference: Mask) -> Array:
        """(K,) everybody's X^2 over its mean."""
        key = reference.tobytes()
        if key not in self._ratios:
            self._ratios[key] = ratios(self.tables, reference)
        return self._ratios[key]

    def nearest(self, reference: Mask) -> Mask:
        """The half closest to the reference."""
        ratio, tables = self._compared(reference), self.tables
        phi = heterogeneity(tables, ratio, reference, by_bin(tables))
        closeness = np.maximum(ratio, 1) / (1 + phi * tables.sizes)
        found = np.zeros(len(ratio), dtype=bool)
        found[np.argsort(closeness, kind="stable")[: len(ratio) // 2 + 1]] = True
        return found

    def concentrated(self, reference: Mask) -> Mask:
        """The half closest to the reference, which becomes the reference, a few times."""
        for _ in range(STEPS):
            before, reference = reference, self.nearest(reference)
            if (before == reference).all():
                break
        return reference

    def beyond(self, half: Mask) -> float:
        """Mean log oddity of the tenth of the sites just beyond the closest half."""
        oddity = np.maximum(self._compared(half), 1) / (1 + USUAL_HETEROGENEITY * self.tables.sizes)
        middle = len(oddity) // 2
        return float(np.sort(np.log(oddity))[middle : middle + len(oddity) // 10 + 1].mean())


def _starts(pooled: Tables) -> list[Mask]:
    """Everybody, the half nearest to the median of the shares, and a few by lot."""
    n_sites = pooled.shape[0]
    half = n_sites // 2 + 1
    counts, sizes = pooled.rows(slice(None))[:, 0], pooled.sizes
    below = np.cumsum(counts, axis=1) / sizes[:, None]
    distance = ((below - np.median(below, axis=0)) ** 2).sum(axis=1)
    distance *= sizes / (1 + sizes / np.median(sizes))
    lot = np.random.default_rng(n_sites)
    chosen = [np.arange(n_sites), np.argsort(distance, kind="stable")[:half]]
    for number in range(STARTS - 2):
        size = min(half, max(3, n_sites // (16 if number % 2 else 8)))
        chosen.append(lot.choice(n_sites, size, replace=False))
    return [np.isin(np.arange(n_sites), places) for places in chosen]


LOOKS = 6
DOUBTED = 1.28  # one in ten honest sites is so odd: it is not referred to
LOWEST = -3.0  # no site is more ordinary than this
COMPARED = 0.25  # share of the variance that is a site's own noise, below which it is not judged


@dataclass(frozen=True, eq=False)
class Finding:
    """What was found about everybody, before it is asked how many may be left out.

    `oddness` is (K,), `stands_out` says who does, `reasons` why; `remarks` what else must be said.
    """

    oddness: Array
    stands_out: Mask
    reasons: Mapping[str, str]
    remarks: tuple[str, ...] = ()


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
    false_alarm: float = USUAL.level
    name: ClassVar[str] = "consensus"

    def __post_init__(self) -> None:
        if self.exactly is not None and self.at_most is not None:
            raise RobfcpError("at_most: exactly as many are to be left out; state one of the two")
        if not 0 < self.false_alarm < 1:
            raise RobfcpError(
                f"false_alarm: {self.false_alarm} is not between 0 and 1; give 0.05, say"
            )
        numbers_told(self, "exactly", "at_most")

    def __call__(self, federation: Federation) -> Assessment:
        return self.judge(federation, self.look(federation))

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
        return stand_out(federation, Constants(level=self.false_alarm))

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
        if self.exactly is not None:
            found = without_farthest(federation, self.exactly, oddness, "the majority", remarks)
            named = {name: finding.reasons.get(name, why) for name, why in found.reasons.items()}
            return replace(found, reasons=named)
        most = int(finding.stands_out.sum())
        liars = most if self.at_most is None else self.at_most
        check_minority(federation, liars)
        ranked = np.where(finding.stands_out, oddness, -np.inf)
        trusted = trust_lowest(ranked, federation.ids, federation.n_clients - min(liars, most))
        flagged = {federation.ids[k] for k in np.flatnonzero(~trusted)}
        reasons = {name: why for name, why in finding.reasons.items() if name in flagged}
        return Assessment(oddness, trusted, reasons, remarks, liars, self.at_most is not None)

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
        return VotedThreshold(federation, trusted, rank, find_copies(federation), USUAL)


def stand_out(federation: Federation, constants: Constants = USUAL) -> Finding:
    """Who stands out: the oddest sites, alone or as a group, from all that are less odd.

    The core chooses the first reference. A look at five times the level leaves those who stand out
    off the reference, a second one at the level decides; the others are looked at afresh until
    nobody stands out or half would be gone.
    """
    copies = find_copies(federation)
    tables = tables_of(federation, copies, constants.cap)
    n_sites, owner = tables.shape[0], tables.owner
    room = (n_sites - 1) // 2
    left_out = np.zeros(n_sites, dtype=bool)
    if room < 1:
        everybody = np.zeros(federation.n_clients)
        return Finding(everybody, everybody > 0, {}, copy_note(copies))
    reference, doubtful = find_core(tables), None
    last: _Look | None = None
    for _ in range(LOOKS):
        live, top = ~left_out, min(room - int(left_out.sum()), (int((~left_out).sum()) - 1) // 2)
        if top < 1:
            break
        first = _look(tables, reference, live, top, min(0.5, 5 * constants.level), constants)
        others = live & ~first.found
        for reference in (others & (first.oddity < DOUBTED), others):
            last = second = _look(tables, reference, live, top, constants.level, constants)
            if second.found.any() or not first.found.any():
                break
        doubtful = second.doubtful if doubtful is None or second.found.any() else doubtful
        if not second.found.any():
            break
        left_out |= second.found
        reference, last = ~left_out, None
    if last is None:
        last = _look(tables, reference, ~left_out, 0, constants.level, constants)
    outside = np.flatnonzero(left_out[owner])
    sites = owner[outside]
    why = reasons(
        federation,
        tables,
        reference,
        sites,
        ratio=last.ratio[sites],
        chance=last.chance[sites],
        ordinary=last.law.ordinary(tables.sizes[sites]),
    )

    def named(sites: Mask) -> str:
        return a_few([federation.ids[k] for k in np.flatnonzero(sites[owner])])

    notes = list(copy_note(copies))
    if doubtful is not None:
        members, hard = doubtful
        notes.append(
            f"two groups: {named(members)} have {'harder' if hard else 'easier'} scores than the "
            f"others, as another population would and as some lies do; the reports cannot tell "
            f"which, so nobody was left out for it: ask these sites what differs"
        )
    if last.unjudged.any():
        notes.append(
            f"{named(last.unjudged)}: hardly anybody else holds their classes, so that there is "
            f"little to compare them with"
        )
    return Finding(
        last.oddity[owner],
        left_out[owner],
        {federation.ids[k]: one for k, one in zip(outside, why, strict=True)},
        tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Look:
    """Everybody against one reference, and who stands out from the rest."""

    law: Law
    ratio: Array
    chance: Array
    oddity: Array
    unjudged: Mask  # of whose variance less than a quarter is their own sampling noise
    found: Mask
    doubtful: tuple[Mask, bool] | None = None


def _look(
    tables: Tables, reference: Mask, live: Mask, top: int, level: float, constants: Constants
) -> _Look:
    """The most conspicuous set among the live, at most `top` of them."""
    from scipy.special import ndtri

    *both, own = views(tables, reference)
    unjudged = (own < COMPARED) & (tables.shape[1] > 1)
    samplings = by_bin(tables), UP_TO
    laws = [
        law_of(tables, ratio, reference, constants, sampling)
        for ratio, sampling in zip(both, samplings, strict=True)
    ]
    each = [law.chance(ratio, tables.sizes) for law, ratio in zip(laws, both, strict=True)]
    ratio, law, chance = both[0], laws[0], joint_chance(np.stack(each))
    oddity = np.maximum(-ndtri(chance), LOWEST)
    nobody = np.zeros(len(ratio), dtype=bool)
    if top < 1:
        return _Look(law, ratio, chance, oddity, unjudged, nobody)
    places = np.flatnonzero(live)
    order = places[np.argsort(oddity[places], kind="stable")]
    usual = null(len(places), top, constants.prior, constants.least)
    height = heights(oddity[places], usual.ranks, constants.prior)
    standard = np.where(height >= constants.least, usual.standard(height), -np.inf)
    if usual.chance(float(standard.max())) > level:
        return _Look(law, ratio, chance, oddity, unjudged, nobody)
    phi = heterogeneity(tables, ratio, reference, samplings[0])
    groups = groups_of(tables, reference, order, usual.ranks, phi, constants)

    def best(allowed: Mask) -> tuple[Mask, int]:
        place = int(np.argmax(np.where(allowed, standard, -np.inf)))
        found = nobody.copy()
        if allowed[place] and usual.chance(float(standard[place])) <= level:
            found[order[len(order) - usual.widest_gap(place, oddity[order]) :]] = True
        return found, place

    found, _ = best(groups.coherent & groups.impossible)
    second, place = best(groups.coherent & ~groups.impossible & (usual.ranks > 1))
    doubtful = (second, bool(groups.hard[place])) if second.any() and not found.any() else None
    return _Look(law, ratio, chance, oddity, unjudged, found, doubtful=doubtful)


OBJECTION = 4.0  # times what a site may vouch for is what it may object with
CLOSER = 0.3  # the quantile of oddities that gives the heterogeneity: liars would widen later ones
LEAST, WIDEST = 1e-6, 0.3  # heterogeneity below and beyond which nothing is learnt
_NORMAL = 300  # samples from which on a share is taken as normal
_SIZES = 32  # sizes of which the law is computed; others lie between them
_VOTE_CELLS = 2**22  # shares at every edge that are kept


class VotedThreshold:
    """FCP's threshold, raised where some vouch for more than their samples can show.

    At an edge t a site's share F_k(t) counts as g_k(F_k(t) - L) - e_k: g_k(x) is x cut off at b_k
    above and at 4 b_k below, b_k = c s_k, s_k^2 = L (1 - L) (1/n_k + phi), and e_k is the mean of
    g_k(X/n_k - L) for X beta-binomial. The edge is the first at or beyond FCP's with
    sum_k w_k [g_k(F_k(t) - L + v) - e_k] >= 0, v the standard deviation of the difference between
    vote and mean when nobody lies, less 1/N. Weights are sizes, at most `cap` times the median
    unless registered; copies speak once, with the least of their shares.
    """

    def __init__(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_],
        rank: RankRule,
        copies: Sequence[Copies],
        constants: Constants,
    ) -> None:
        self._plain = FcpThreshold(federation, trusted, rank)
        kept = federation.subset(trusted)
        self._rank = (kept.n_samples, kept.n_clients, rank)
        self._kept, self._constants = kept, constants
        self._sizes = kept.sizes.astype(np.float64)
        self._weights = self._sizes.copy()
        if not federation.registered:
            most = constants.cap * float(np.median(federation.sizes))
            self._weights = np.minimum(self._sizes, most)
        place = {client: k for k, client in enumerate(kept.ids)} if copies else {}
        groups = [[place[c] for c in group.clients if c in place] for group in copies]
        self._groups = [group for group in groups if len(group) > 1]
        for group in self._groups:
            self._weights[group[0]] = self._weights[group].max()
            self._weights[group[1:]] = 0
        self._uneven = bool((self._weights != self._sizes).any())
        self._phi: float | None = None
        few = kept.n_clients * kept.grid.n_bins <= _VOTE_CELLS
        self._below = kept.cumulative() if few else None

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        first = self._first(level)
        if first is None or self._kept.n_clients < 3:
            return first
        share, weights = float(level), self._weights
        limits, means, spread = _laws(self._sizes, share, self._heterogeneity(), self._constants)
        total = weights.sum()
        allowed = float(np.sqrt((weights**2 * spread**2).sum()) / total)
        wanted = share - max(allowed - 1 / total, 0.0)

        def accepted(edge: int) -> bool:
            votes = np.clip(self._shares(edge) - wanted, -OBJECTION * limits, limits) - means
            return float(weights @ votes) >= -1e-9 * total

        last = self._kept.grid.n_bins - 1
        if not accepted(last):
            return None
        return first + bisect_left(range(first, last), True, key=accepted)

    def _first(self, level: Fraction) -> int | None:
        """FCP's edge with these weights; exact where they are the sizes."""
        if not self._uneven:
            return self._plain.index(level)
        n_samples, n_clients, rule = self._rank
        wanted = conformal_rank(level, n_samples, n_clients, rule) / n_samples
        if wanted > 1:
            return None
        least, last = wanted * self._weights.sum() * (1 - 1e-12), self._kept.grid.n_bins - 1

        def covers(edge: int) -> bool:
            return bool(self._weights @ self._shares(edge) >= least)

        return bisect_left(range(last), True, key=covers)

    def _shares(self, edge: int) -> Array:
        """(K,) F_k at an edge; of copies the least."""
        if self._below is None:
            found: Array = self._kept.below(edge) / self._sizes
        else:
            found = self._below[:, edge] / self._sizes
        for group in self._groups:
            found[group[0]] = found[group].min()
        return found

    def _heterogeneity(self) -> float:
        """phi such that the closer 30% of those kept are as close as they should be."""
        if self._phi is None:
            kept = replace(self._kept, strata=None)
            some = np.zeros(kept.n_clients, dtype=bool)
            some[drawn(kept.n_clients, kept.pooled())] = True
            pooled = tables_of(kept.subset(some), (), self._constants.cap)
            ratio = ratios(pooled, np.ones(pooled.shape[0], dtype=bool))
            law = self._constants.mixed, by_bin(pooled), self._constants.freedom
            needed = usual_spread(ratio, CLOSER, *law) / pooled.sizes
            phi = min(float(np.quantile(needed, CLOSER)), WIDEST)
            self._phi = float(f"{phi:.1e}") if phi >= LEAST else 0.0
        return self._phi


def _laws(
    sizes: Array, level: float, phi: float, constants: Constants
) -> tuple[Array, Array, Array]:
    """(K,) each: b_k, e_k and the standard deviation of the mean less the vote's answer."""
    deviation = np.sqrt(level * (1 - level) * (1 / sizes + phi))
    every = np.unique(np.minimum(sizes, _NORMAL + 1)).astype(np.int64)
    if len(every) > _SIZES:
        every = np.unique(np.round(np.geomspace(every[0], every[-1], _SIZES)).astype(np.int64))
    known = _in_deviations(tuple(every.tolist()), level, phi, constants.vouch)
    means, spread = (np.interp(np.log(sizes), np.log(every), column) for column in known)
    return constants.vouch * deviation, means * deviation, spread * deviation


@lru_cache(maxsize=4096)
def _in_deviations(
    sizes: tuple[int, ...], level: float, phi: float, vouch: float
) -> tuple[Array, Array]:
    """(S,) each: e and the standard deviation, in units of s, for X beta-binomial.

    Variance n^2 s^2; beyond 300 samples a normal X, for which these are the same for all sizes.
    """
    n = np.array(sizes)[:, None]
    hits = np.arange(n.max() + 1)
    rest = np.maximum(n - hits, 0)
    deviation = np.sqrt(level * (1 - level) * (1 / n + phi))
    logs = np.where(hits <= n, _log_chances(hits, rest, level, phi), -np.inf)
    mean, spread = _mean_and_spread((hits / n - level) / deviation, logs, vouch)
    if sizes[-1] > _NORMAL:
        values = np.linspace(-6, 6, 1201)[None]
        (mean[-1],), (spread[-1],) = _mean_and_spread(values, -(values**2) / 2, vouch)
    return mean, spread


def _log_chances(
    hits: NDArray[np.int64], rest: NDArray[np.int64], level: float, phi: float
) -> Array:
    """(S, n + 1) logarithms of the chances of so many hits, up to a constant for each size."""
    from scipy.special import gammaln

    def risen(start: float) -> Array:
        return np.asarray(gammaln(np.arange(len(hits)) + start), dtype=np.float64)

    ways = -risen(1.0)
    if phi < LEAST:
        below, above = hits * np.log(level), rest * np.log1p(-level)
    else:
        strength = 1 / phi - 1
        below, above = risen(level * strength)[hits], risen((1 - level) * strength)[rest]
    found: Array = ways[hits] + ways[rest] + below + above
    return found


def _mean_and_spread(values: Array, logs: Array, vouch: float) -> tuple[Array, Array]:
    """(S,) the mean of the cut values, and how far the uncut are from what the vote answers."""
    masses = np.exp(logs - logs.max(axis=1, keepdims=True))
    masses /= masses.sum(axis=1, keepdims=True)
    votes = np.clip(values, -OBJECTION * vouch, vouch)
    mean = (masses * votes).sum(axis=1)
    inside = (masses * ((values < vouch) & (values > -OBJECTION * vouch))).sum(axis=1)
    answer = (votes - mean[:, None]) / np.maximum(inside, 0.05)[:, None]
    return mean, np.sqrt((masses * (values - answer) ** 2).sum(axis=1))
