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
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.defence import base, explanations
from robfcp.defence.copies import copy_notes, find_copies
from robfcp.defence.explanations import Array, Mask
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, RankRule, rank_charge

# What was chosen, not derived; the documentation shows what half and twice of each do.
VOUCH = 0.5  # deviations above the level that a site may vouch for; it objects with one over it

WHOLE = 2.0**59  # what votes add up to at most, about, in whole numbers: in any order


class Finding(NamedTuple):
    """What was found about everybody, before it is asked how many may be left out.

    `oddness` is (K,), minus the logarithm (base 10) of the chance that an honest site is so odd;
    `stands_out` says who goes; `others` are the sites that go or stand out in some plausible
    explanation; `harder` whoever is doubted for it; `named` whom the remarks name; `reasons` why;
    `remarks` what else to say; `phi` how much sites differ beyond sampling, None of too few.
    """

    oddness: Array
    stands_out: Mask
    others: list[Mask]
    harder: Mask
    named: Mask
    reasons: base.Reasons
    remarks: tuple[base.Note, ...]
    phi: float | None


FOUND = [("odd", "f4"), ("out", "u1"), ("stands", "u1"), ("harder", "?")]
FOUND += [("edge", "u1"), ("have", "u1"), ("want", "u1")]  # shares in percent


@lru_cache(maxsize=1)  # verdict and vote both ask for it
def stand_out(federation: Federation, seed: int = 0) -> Finding:
    """Who stands out so that no plausible explanation keeps it."""
    n_clients, copies = federation.n_clients, find_copies(federation)
    first: Any = np.arange(n_clients) if copies else slice(None)  # of each site's copies
    for group in copies:
        first[group.rows] = group.rows[0]
    n_sites = n_clients - sum(len(group.rows) - 1 for group in copies)
    few = explanations.drawn(n_sites, seed)
    few = np.unique(first)[few] if copies else few
    part = federation if len(few) == n_clients else federation.take(few)
    frame = explanations.Frame.of(federation, part)
    tried = explanations.plausible(frame.sites(part), n_sites) if n_sites > 3 else []
    members = np.zeros(n_clients, dtype=np.uint8)
    for number, one in enumerate(tried):
        members[few] |= one.reference.astype(np.uint8) << number

    def judged(block: Federation, members: NDArray[np.uint8]) -> NDArray[Any]:
        found = np.zeros(block.n_clients, FOUND)
        for rows in frame.parts(block.n_clients):
            own, sites = found[rows[0] : rows[-1] + 1], frame.sites(block.take(rows))
            for number, one in enumerate(tried):
                seen = one.beside(sites, (members[rows] >> number & 1).astype(bool))
                verdict = one.verdict(sites, seen, one.chances(sites, seen))
                own["out"] |= verdict.out.astype(np.uint8) << number
                own["stands"] |= verdict.stands.astype(np.uint8) << number
                if not number:
                    own["odd"], own["edge"] = -np.log10(verdict.chance), seen[0].edge
                    own["have"], own["want"] = np.rint([100 * seen[0].have, 100 * seen[0].want])
                    own["harder"] = verdict.harder
        return found

    found = federation.map(judged, members)[first]
    every, remarks = 2 ** len(tried) - 1, copy_notes(copies)
    out = (found["out"] == every) & bool(tried)
    out &= 2 * out.sum() < n_clients  # copies of an honest report could make it a majority
    unsure, stands = (found["out"] > 0) & ~out, (found["stands"] & 1 > 0) & (found["out"] == 0)
    if n_sites < 4:
        remarks += (
            base.Note("fewer than four sites are too few to tell a liar from an unusual site"),
        )
    for some, how in (
        (unsure, "out in one explanation of the reports, kept in another as good"),
        (stands, "standing out, as another population would"),
    ):
        if some.any():
            clients = federation.names(some)
            text = (
                f"{how}: {a_few(clients)}. Nobody was left out for it and the safer "
                "threshold was kept; ask these sites what differs, state the number of liars "
                "(--exactly, Consensus(exactly=m)) or give a trusted sample (--anchor, anchor=)"
            )
            remarks += (base.Note(text, clients),)
    masks = (found[how] >> k & 1 > 0 for k in range(len(tried)) for how in ("out", "stands"))
    others = explanations.distinct(mask for mask in masks if (mask != out).any())
    rows, edges = np.flatnonzero(out).astype(np.int32), federation.grid.upper[frame.ends]
    said = "its labels lead one to expect {}" if frame.n_classes else "{} is usual"
    reasons = base.Reasons(federation, rows, lambda row: in_words(found[rows[row]], edges, said))
    phi, named = min(tried[0].laws[-1][0].phi, 0.3) if tried else None, unsure | stands
    return Finding(found["odd"], out, others, found["harder"], named, reasons, remarks, phi)


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
class Consensus(base.Defence):
    """Trust all but the sites whose scores their own labels cannot explain, and let those vote.

    Parameters
    ----------
    exactly
        Leave out so many, the oddest, whatever they look like.
    at_most
        Leave out the oddest of those that stand out, at most so many; all of them if None.
    seed
        Of the lot among many sites; `calibrate` draws one that nobody can foresee and records it.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> federation = robfcp.Federation.from_counts(counts)
    >>> robfcp.calibrate(federation, defence=robfcp.Consensus(at_most=1)).flagged
    ('client-03',)
    """

    exactly: int | None = None
    at_most: int | None = None
    seed: int = 0
    name: ClassVar[str] = "consensus"

    def __post_init__(self) -> None:
        if self.exactly is not None and self.at_most is not None:
            raise RobfcpError("at_most: exactly as many are to be left out; state one of the two")
        base.numbers_told(self, "exactly", "at_most", "seed")

    def __call__(self, federation: Federation) -> base.Assessment:
        return self.judge(federation, self.look(federation))

    def unforeseen(self, federation: Federation) -> Consensus:
        """The same with a lot of its own, where one is drawn.

        Parameters
        ----------
        federation
            The reports of one round.
        """
        told = self.seed or federation.n_clients <= explanations.DRAWN
        return self if told else replace(self, seed=secrets.randbits(48) + 1)

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
        return stand_out(federation, self.seed)

    def judge(self, federation: Federation, finding: Finding) -> base.Assessment:
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
            told = copy_notes(find_copies(federation))
            found = base.without_farthest(federation, self.exactly, oddness, "the majority", told)
            named = {name: finding.reasons.get(name, why) for name, why in found.reasons.items()}
            return replace(found, reasons=named)
        most = int(finding.stands_out.sum())
        liars = most if self.at_most is None else self.at_most
        base.check_minority(federation, liars)
        trusted = ~finding.stands_out
        if liars < most:
            ranked = np.where(finding.stands_out, oddness, -np.inf)
            trusted = base.trust_lowest(federation, ranked, federation.n_clients - liars)
        why = finding.reasons.among(~trusted)
        return base.Assessment(oddness, trusted, why, remarks, liars, self.at_most is not None)

    def threshold(
        self, federation: Federation, trusted: Mask, rank: RankRule = rank_charge
    ) -> base.ThresholdRule:
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
        finding = None if federation.noisy or federation.unit != 1 else self.look(federation)
        if finding is None or finding.phi is None:
            return FcpThreshold(federation, trusted, rank)
        whoever = [np.asarray(trusted)]
        if self.exactly is None and (trusted | finding.stands_out).all():
            whoever += [~out for out in finding.others]
        return VotedThreshold(federation, whoever, finding, rank)


class VotedThreshold:
    """FCP's threshold, raised where some vouch for more than their samples can show.

    At an edge t a site's share F_k(t) counts as g_k(F_k(t) - L) - e_k: g_k(x) is x cut off at v s_k
    above and at s_k / v below (v s_k if it is doubted for its harder scores), v = VOUCH, s_k^2 =
    L (1 - L) (1/n_k + phi), and e_k is the mean of g_k(s_k Z) for Z normal. The edge
    is the first at or beyond FCP's with sum_k w_k [g_k(F_k(t) - L + d) - e_k] >= 0, d the standard
    deviation of the difference between vote and mean when nobody lies, less 1/N. Weights are
    sizes, at most CAP times the median unless registered. One of several copies speaks. Of several
    sets of sites that may vote the one with the highest threshold does.
    """

    def __init__(
        self, federation: Federation, whoever: list[Mask], finding: Finding, rank: RankRule
    ) -> None:
        self._federation, self._harder = federation, finding.harder
        self._phi, self._votes = finding.phi or 0.0, []
        for some in map(np.array, whoever):
            for group in find_copies(federation):
                some[group.rows[some[group.rows]][1:]] = False
            self._votes.append((some, FcpThreshold(federation, some, rank)))
        middle = 2**40 if federation.registered else float(np.median(federation.sizes))
        self._most = max(1, int(explanations.CAP * middle))

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        edges = [self._voted(speaks, plain.index(level), level) for speaks, plain in self._votes]
        return None if None in edges else max(edge for edge in edges if edge is not None)

    def _voted(self, speaks: Mask, first: int | None, level: Fraction) -> int | None:
        """The first edge that the vote accepts, at or beyond FCP's."""
        if first is None:
            return None
        federation, share, phi, most = self._federation, float(level), self._phi, self._most
        last, (mean, off) = federation.grid.n_bins - 1, _law(VOUCH)
        sizes, times = np.unique(federation.sizes[speaks], return_counts=True)
        weights = np.minimum(sizes, most).astype(np.float64)
        weight = float(times @ weights)
        variance = float(times @ (weights**2 * (1 / sizes + phi)))
        deviation = float(np.sqrt(share * (1 - share) * variance))
        wanted = share - max((off * deviation - 1) / weight, 0.0)

        def said(block: Federation, speaks: Mask, harder: Mask, edges: NDArray[np.intp]) -> Any:
            rows = np.flatnonzero(speaks)
            sizes = block.sizes[rows, None].astype(np.float64)
            unit = np.sqrt(share * (1 - share) * (1 / sizes + phi))
            lowest = np.where(harder[rows, None], VOUCH, 1 / VOUCH)
            ahead = (block.cumulative(edges)[rows] / sizes - wanted) / unit
            own = np.minimum(sizes, most) * unit * (np.clip(ahead, -lowest, VOUCH) - mean)
            return np.rint(WHOLE / weight * own).astype(np.int64).sum(axis=0)

        low, high = first, last + 1
        while low < high:  # accepted at `high` and above, not below `low`
            edges = np.unique(np.linspace(low, high - 1, 16).astype(np.intp))
            total = federation.fold(partial(said, edges=edges), speaks, self._harder)
            number = int(np.append(total >= -1e-9 * WHOLE, True).argmax())
            low, high = int([low - 1, *edges][number]) + 1, int([*edges, high][number])
        return low if low <= last else None


@lru_cache
def _law(vouch: float) -> tuple[float, float]:
    """Of Z normal, cut off as votes are: E g(Z), and the deviation of Z - (g(Z) - E g(Z)) / P."""
    z = np.array([NormalDist().inv_cdf((k + 0.5) / 10**4) for k in range(10**4)])
    cut = np.clip(z, -1 / vouch, vouch)
    return cut.mean(), (z - (cut - cut.mean()) / (cut == z).mean()).std()


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
    kept = (one.clients for one in find_copies(federation) if one.clients[0] not in left_out)
    return min(len(left_out) + sum(len(one) - 1 for one in kept), (federation.n_clients - 1) // 2)
