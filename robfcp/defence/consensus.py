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
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from math import sqrt
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence import explanations
from robfcp.defence.base import (
    Assessment,
    Defence,
    Reasons,
    check_minority,
    numbers_told,
    trust_lowest,
    without_farthest,
)
from robfcp.defence.copies import copy_note, find_copies, one_of_copies
from robfcp.defence.explanations import CAP, LEVEL, Array, Frame, Indices, Mask, drawn, plausible
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, rank_charge

# What was chosen, not derived; the documentation shows what half and twice of each do.
VOUCH = 0.5  # deviations above the level that a site may vouch for; it objects with one over it

AT_ONCE = 16  # edges of a vote
KEPT = 10**5  # sites whose votes are kept for another level
MOST, MOST_OF_MANY = 8, 3  # plausible explanations that are heard, the best
WHOLE = 2.0**59  # what votes add up to at most, about, in whole numbers: in any order

Whole = NDArray[np.int64]


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


FOUND = [("odd", "f4"), ("out", "u1"), ("aside", "u1"), ("stands", "?"), ("harder", "?")]
FOUND += [("edge", "u1"), ("have", "u1"), ("want", "u1")]  # shares in percent


@lru_cache(maxsize=1)  # verdict and vote both ask for it
def stand_out(federation: Federation, level: float = LEVEL, seed: int = 0) -> Finding:
    """Who stands out so that no plausible explanation keeps it."""
    n_clients = n_sites = federation.n_clients
    first, few, copies = one_of_copies(federation), drawn(n_clients, seed), find_copies(federation)
    if not isinstance(first, slice):
        kept = np.unique(first)
        n_sites, few = len(kept), kept[drawn(len(kept), seed)]
    part = federation if len(few) == n_clients else federation.take(few)
    frame = Frame.of(federation, part)
    tried = plausible(frame.sites(part), level, seed, n_sites) if n_sites > 3 else []
    tried = tried[: MOST if len(few) == n_sites else MOST_OF_MANY]
    remarks, members = copy_note(copies), np.zeros(n_clients, dtype=np.uint8)
    for number, one in enumerate(tried):
        members[few] |= one.reference.astype(np.uint8) << number

    def judged(block: Federation, members: NDArray[np.uint8]) -> NDArray[Any]:
        found = np.zeros(block.n_clients, FOUND)
        for rows in frame.parts(block.n_clients):
            own, sites = found[rows], frame.sites(block.take(np.r_[rows]))
            for number, one in enumerate(tried):
                seen = one.beside(sites, (members[rows] >> number & 1).astype(bool))
                verdict = one.verdict(sites, seen)
                own["out"] |= verdict.out.astype(np.uint8) << number
                own["aside"] |= verdict.aside.astype(np.uint8) << number
                if not number:
                    own["odd"], own["edge"] = -np.log10(verdict.chance), seen[0].edge
                    own["stands"], own["harder"] = verdict.stands, verdict.harder
                    own["have"], own["want"] = np.rint([100 * seen[0].have, 100 * seen[0].want])
        return found

    found = federation.map(judged, members)[first]
    out = (found["out"] == 2 ** len(tried) - 1) & bool(tried)
    out &= 2 * out.sum() < n_clients  # copies of an honest report could make it a majority
    unsure, stands = (found["out"] > 0) & ~out, found["stands"] & ~out & (found["out"] == 0)
    if n_sites < 4:
        remarks += ("fewer than four sites are too few to tell a liar from an unusual site",)
    for some, how in (
        (unsure, "out in one explanation of the reports, kept in another as good"),
        (stands, "standing out, as another population would"),
    ):
        if some.any():
            remarks += (
                f"{how}: {a_few(federation.names(some))}. Nobody was left out for it and the safer "
                "threshold was kept; ask these sites what differs, state the number of liars "
                "(--exactly, Consensus(exactly=m)) or give a trusted sample (--anchor, anchor=)",
            )
    tried_out = (found[side] >> k & 1 > 0 for k in range(len(tried)) for side in ("out", "aside"))
    others = tuple(explanations.distinct(mask for mask in tried_out if (mask != out).any()))
    rows, edges = np.flatnonzero(out), federation.grid.upper[frame.ends]
    said = "its labels lead one to expect {}" if frame.n_classes else "{} is usual"
    reasons = Reasons(federation, rows, lambda row: in_words(found[rows[row]], edges, said))
    return Finding(found["odd"], out, others, found["harder"], unsure | stands, reasons, remarks)


def in_words(told: Any, edges: Array, said: str) -> str:
    """Why a site is left out: its scores against those its labels lead one to expect."""
    rare = 10.0 ** -float(told["odd"])
    rarity = f"1 in {1 / rare:,.0f}" if rare > 1e-6 else "fewer than 1 in a million"
    wanted = said.format(f"{told['want']}%")
    return (
        f"{told['have']}% of its scores are at most {edges[told['edge']]:.3g} where {wanted}: as "
        f"far off as {rarity} honest sites of its size would be"
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
            raise RobfcpError(f"false_alarm: {self.false_alarm} is not in (0, 1); give 0.05, say")
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
        trusted = ~finding.stands_out
        if liars < most:
            ranked = np.where(finding.stands_out, oddness, -np.inf)
            trusted = trust_lowest(federation, ranked, federation.n_clients - liars)
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
        whoever, harder = [np.asarray(trusted)], np.zeros(federation.n_clients, dtype=bool)
        if finding is not None:
            harder, every = finding.harder, (whoever[0] | finding.stands_out).all()
            whoever += [~out for out in finding.others if every]
        votes = (partial(Vote, federation, some, rank, harder) for some in whoever)
        kept = int(federation.n_clients <= KEPT)
        self._votes = [lru_cache(maxsize=kept)(vote) for vote in votes]

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        edges = [vote().index(level) for vote in self._votes]
        return None if None in edges else max(edge for edge in edges if edge is not None)


class Vote:
    """FCP's threshold, raised where some vouch for more than their samples can show.

    At an edge t a site's share F_k(t) counts as g_k(F_k(t) - L) - e_k: g_k(x) is x cut off at v s_k
    above and at s_k / v below (v s_k if it is doubted for its harder scores), v = VOUCH, s_k^2 =
    L (1 - L) (1/n_k + phi), and e_k is the mean of g_k(s_k Z) for Z normal. The edge
    is the first at or beyond FCP's with sum_k w_k [g_k(F_k(t) - L + d) - e_k] >= 0, d the standard
    deviation of the difference between vote and mean when nobody lies, less 1/N. Weights are
    sizes, at most CAP times the median unless registered. One of several copies speaks.
    """

    def __init__(self, federation: Federation, trusted: Mask, rank: RankRule, harder: Mask) -> None:
        self._federation, self._harder, self._trusted = federation, harder, trusted
        self._speaks = np.array(trusted)
        if not isinstance(first := one_of_copies(federation), slice):
            some = np.flatnonzero(trusted)
            self._speaks[:] = False
            self._speaks[some[np.unique(first[some], return_index=True)[1]]] = True
        self._plain = FcpThreshold(federation, self._speaks, rank)
        middle = 2**40 if federation.registered else float(np.median(federation.small_sizes))
        self._most = max(1, int(CAP * middle))

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        first, last = self._plain.index(level), self._federation.grid.n_bins - 1
        if first is None or self._trusted.sum() < 3:
            return first
        share, phi, most, (mean, off) = float(level), self._phi, self._most, _law()

        sizes, total, square = self._federation.small_sizes, 0.0, 0.0  # in an order of their own
        step = explanations.CELLS
        for rows in (slice(k, k + step) for k in range(0, len(sizes), step)):
            own = sizes[rows][self._speaks[rows]].astype(np.float64)
            weights = np.minimum(own, most)
            total, square = total + weights.sum(), square + (weights**2 * (1 / own + phi)).sum()
        deviation = np.sqrt(share * (1 - share) * square)
        wanted = share - max((off * deviation - 1) / total, 0.0)

        def said(block: Federation, speaks: Mask, harder: Mask, edges: Indices) -> Whole:
            rows = np.flatnonzero(speaks)
            sizes = block.sizes[rows, None].astype(np.float64)
            unit = np.sqrt(share * (1 - share) * (1 / sizes + phi))
            lowest = np.where(harder[rows, None], VOUCH, 1 / VOUCH)
            ahead = (block.cumulative(edges)[rows] / sizes - wanted) / unit
            own = np.minimum(sizes, most) * unit * (np.clip(ahead, -lowest, VOUCH) - mean)
            return np.rint(WHOLE / total * own).astype(np.int64).sum(axis=0)

        low, high = first, last + 1
        while low < high:  # accepted at `high` and above, not below `low`
            edges = np.unique(np.linspace(low, high - 1, AT_ONCE).astype(np.intp))
            work = partial(said, edges=edges)
            accepted = self._federation.fold(work, self._speaks, self._harder) >= -1e-9 * WHOLE
            number = int(np.append(accepted, True).argmax())
            before, high = int([low - 1, *edges][number]), int([*edges, high][number])
            low = before + 1
        return low if low <= last else None

    @cached_property
    def _phi(self) -> float:
        """phi by which the closer 30% of some differ beyond sampling: liars would widen later."""
        rows = np.flatnonzero(self._trusted)
        part = self._federation.take(rows[drawn(len(rows), 0)])
        counts = part.merged(explanations.ends_of(part)).astype(np.float64)
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
