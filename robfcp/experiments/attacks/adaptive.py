"""The attacker who knows the defence, the number told and the honest reports, and searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import Rng, parse_level
from robfcp.defense import Consensus, Defense, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks import base, coordinated, simple
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index

Rule = Callable[[Federation], int | None]
LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.82, 0.88, 0.92, 0.96)
STEPS = (0.4, 1.0, 2.0)
STALE = 40  # steps without success after which a search goes on from another start
EXPELLED = 0.15  # what having all honest clients left out counts for, in coverage


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The worst reports a search came upon: what they do and how they were made."""

    federation: Federation
    coverage: float
    family: str
    value: float  # what the attacker has of it: the less the better


@dataclass(frozen=True)
class AdaptiveAttack:
    """Searches all families and then freely for the reports with the least or greatest coverage.

    against: a defence, by name or itself, told the true number of attackers; or any rule that
        gives the threshold's bin for a federation.
    direction: "down" seeks the least coverage of the honest clients, "up" the greatest.
    trials: steps of the free search, over the `AttackParameters` of what the attackers send. It
        moves at random and is kept when coverage gets worse or more honest clients are left out.
    beyond: whether only what is lost beyond FCP, undefended, on the same reports counts.
    """

    defense_rule: str | Defense | Rule = Consensus.name
    direction: Literal["down", "up"] = "down"
    coverage: float = 0.9
    trials: int = 100
    beyond: bool = False
    name: ClassVar[str] = "adaptive"
    stage: ClassVar[base.Stage] = "counts"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Federation:
        """The worst federation found."""
        return self.search(data, malicious, rng).federation

    def search(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> SearchResult:
        """The worst reports found, with the honest coverage they lead to."""
        if self.direction not in ("down", "up"):
            raise RobfcpError(f"direction: {self.direction!r} is neither 'down' nor 'up'")
        generator = np.random.default_rng(rng)
        bad = base.malicious_indices(malicious, data.n_clients)
        honest = np.setdiff1d(np.arange(data.n_clients), bad)
        cdf = (
            np.append(np.cumsum(data.counts[honest].sum(axis=0)), 0)
            / data.sample_sizes[honest].sum()
        )
        cdf[-1], level = 1.0, parse_level(self.coverage)
        sign = 1.0 if self.direction == "down" else -1.0
        alone = cdf[_place(fcp_bin_index(data, level, np.isin(np.arange(data.n_clients), honest)))]

        def judged(federation: Federation, family: str) -> tuple[SearchResult, float]:
            index, trusted = self._judge(federation, len(bad))
            coverage = float(cdf[_place(index)])
            value = sign * coverage
            if self.beyond:
                value -= min(sign * alone, sign * cdf[_place(fcp_bin_index(federation, level))])
            expelled = float((~trusted[honest]).mean())
            return SearchResult(
                federation, coverage, family, float(value)
            ), value - EXPELLED * expelled

        best, _ = judged(data, "honest")
        if not len(bad):
            return best
        for attack in parameter_families(self.direction):
            found, _ = judged(attack(data, bad, generator), repr(attack))
            best = min(best, found, key=lambda one: one.value)
        forge = _AttackBuilder(data, bad, generator)
        ends: list[tuple[float, AttackParameters]] = []  # how far each start has come
        at, stale, starts = 0, 0, forge.starts(self.direction == "up")
        for trial in range(self.trials):
            shape = starts[trial] if trial < len(starts) else forge.moved(ends[at][1])
            found, value = judged(forge.sent(shape), f"free: {shape}")
            best = min(best, found, key=lambda one: one.value)
            if trial < len(starts):
                ends.append((value, shape))
                at = min(range(len(ends)), key=lambda k: ends[k][0])
            elif value < ends[at][0]:
                ends[at], stale = (value, shape), 0
            else:
                stale += 1
                if stale > STALE:
                    at, stale = (at + 1) % len(ends), 0
        return best

    def _judge(self, federation: Federation, liars: int) -> tuple[int | None, NDArray[np.bool_]]:
        """The bin of the threshold the rule gives when told the number, and whom it trusts."""
        against: Any = self.defense_rule
        if isinstance(against, str):
            against = get_defense(against, liars)
        if not hasattr(against, "name"):
            return against(federation), np.ones(federation.n_clients, bool)
        assessment = against.assess(federation)
        rule = assessment.threshold_rule(federation)
        return rule.bin_index(parse_level(self.coverage)), assessment.benign_mask


def _place(index: int | None) -> int:
    """Where a threshold's coverage stands; that of none at all is last."""
    return -1 if index is None else index


def parameter_families(direction: str) -> list[base.ConcreteAttack]:
    """The attacks an adaptive attacker tries first, each in several strengths."""
    down, levels = direction == "down", (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
    gross = simple.coverage_attack if down else simple.efficiency_attack
    twin = coordinated.mimic_low if down else coordinated.mimic_high
    cut = simple.truncation if down else simple.lower_truncation
    found: list[tuple[Any, ...]] = [
        *(
            (gross,),
            (coordinated.decoy, gross),
            (simple.gaussian_attack,),
            (coordinated.two_sided_trimming,),
        ),
        *((simple.gaussian_relative, scale) for scale in (0.5, 1.0, 2.0)),
        *((simple.near_coverage, step if down else 1 - step) for step in (0.0005, 0.001, 0.01)),
        *((cut, level if down else 1 - level) for level in levels),
        *((coordinated.collusion_attack, level) for level in levels if down),
        *(
            (simple.partial_manipulation, share, gross)
            for share in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
        ),
        *((twin, copy) for copy in ("exact", "resampled", "jittered")),
        *((coordinated.displace_benign, share, not down) for share in (0.05, 0.1, 0.2, 0.35, 0.5)),
    ]
    return list(starmap(base.ScoreAttack, found))


@dataclass(frozen=True, eq=False)
class AttackParameters:
    """What attackers who act together send, relative to the honest clients' pool p(c, h).

    Attacker k draws from q(c, h) ~ m_k(c) exp(claim_c) p(h | c) exp(tilt_c,b(h)), b(h) the block of
    honest quantiles that bin h is in, m_k its own mix of classes or, by 1 - own, that of the pool.

    tilt: (C, B) which scores of which class.
    claim: (C,) which classes.
    loyal: the share of the attackers that stay honest.
    own: how much of its own mix of classes each keeps.
    tight: whether what they expect is sent, rounded, instead of a draw.
    size: log of how many times the samples they have are claimed.
    """

    tilt: base.FloatArray
    claim: base.FloatArray
    loyal: float = 0.0
    own: float = 1.0
    tight: bool = False
    size: float = 0.0

    def __str__(self) -> str:
        tilt = self.tilt.mean(axis=0).round().astype(int).tolist()
        words = f"scores {' '.join(map(str, tilt))}, a class by {np.ptp(self.claim):.0f}"
        return f"{words}, {self.loyal:.0%} loyal, {np.exp(self.size):.1f} n{', exact' * self.tight}"


class _AttackBuilder:
    """Makes shapes, and reports of them; by class where all reports are."""

    def __init__(self, data: Federation, bad: base.IndexArray, rng: np.random.Generator) -> None:
        self.data, self.bad, self.rng, strata = data, bad, rng, data.strata
        counts, self.by_class = data.counts[:, None], False
        if strata is not None and strata.by == "class" and len(strata.rows) == data.n_clients:
            counts, self.by_class = strata.table.dense(), True
            counts = counts.reshape(data.n_clients, strata.n_strata, strata.n_bins)
        pool = np.delete(counts, bad, axis=0).sum(axis=0)
        cdf = pool.sum(axis=0).cumsum() / pool.sum()
        last = len(cdf) - 1
        ends = np.unique(np.append(np.minimum(np.searchsorted(cdf, LEVELS), last), last))
        self.block = np.searchsorted(ends, np.arange(len(cdf)))
        self.n_blocks, self.occurs = len(ends), pool.sum(axis=1) > 0
        self.given_class = pool / np.maximum(pool.sum(axis=1, keepdims=True), 1)
        self.mix = pool.sum(axis=1) / pool.sum()
        self.own = counts[bad].sum(axis=2) / data.sample_sizes[bad, None]

    def starts(self, upwards: bool) -> list[AttackParameters]:
        """Shapes to start from: nothing, one end, cut tails, squeezed, claimed classes."""
        n, rarest = len(self.mix), int(np.argmin(np.where(self.occurs, self.mix, 2)))
        heights = [(0, 0), (12, 0), (0, -8), (-8, -8), (0, -3), (-3, -6), (1, -2)]
        shapes = []
        for low, high in heights:
            tilt = np.zeros(self.n_blocks)
            tilt[: self.n_blocks // 4], tilt[-(self.n_blocks // 3) :] = low, high
            tilt = tilt[::-1] if upwards else tilt
            shapes.append(
                AttackParameters(np.tile(tilt, (n, 1)), np.zeros(n), tight=abs(high) in (3, 6))
            )
        claims = (8 * (np.arange(n) == rarest), 2 * self.rng.normal(size=n))
        shapes += [replace(shapes[2], claim=np.asarray(claim, float)) for claim in claims]
        return shapes

    def moved(self, shape: AttackParameters) -> AttackParameters:
        """A random step away."""
        rng = self.rng
        step, (n, blocks) = rng.choice(STEPS), shape.tilt.shape
        chance = rng.random(6)
        tilt = shape.tilt + 0.0
        if chance[0] < 0.7:
            tilt += step * rng.normal(size=blocks) * (rng.random(blocks) < 0.5)
        if chance[1] < 0.2:
            tilt[rng.integers(n)] += 2 * step * rng.normal(size=blocks)
        claim = shape.claim + step * rng.normal(size=n) * (rng.random(n) < 0.4) * (chance[2] < 0.3)
        loyal, own, size = rng.normal(size=3) * (0.2, 0.4, 0.5) * (chance[3:] < (0.3, 0.2, 0.15))
        return AttackParameters(
            tilt=tilt,
            claim=claim,
            loyal=float(np.clip(shape.loyal + loyal, 0, 0.8)),
            own=float(np.clip(shape.own + own, 0, 1)),
            tight=shape.tight ^ (rng.random() < 0.1),
            size=float(np.clip(shape.size + size, -1, 1.2)),
        )

    def sent(self, shape: AttackParameters) -> Federation:
        """The federation with the reports of all but the loyal attackers of this shape."""
        first = round(shape.loyal * len(self.bad))
        scores = self.given_class * np.exp(shape.tilt)[:, self.block]
        scores /= np.maximum(scores.sum(axis=1, keepdims=True), 1e-300)
        edges, forged = base.upper_edges(self.data.binning), []
        for k, own in zip(self.bad[first:], self.own[first:], strict=True):
            mix = shape.own * own + (1 - shape.own) * self.mix + 1e-12
            mix = mix * np.exp(shape.claim) * self.occurs
            share = (mix[:, None] * scores).ravel() / mix.sum()
            size = max(1, round(float(self.data.sample_sizes[k] * np.exp(shape.size))))
            if shape.tight:
                below = np.floor(share.cumsum() * size + self.rng.random())
                counts = np.diff(np.minimum(below, size), prepend=0).astype(np.int64)
                counts[np.argmax(share)] += size - counts.sum()
            else:
                counts = self.rng.multinomial(size, share / share.sum())
            label, bins = np.divmod(np.repeat(np.arange(len(counts)), counts), len(edges))
            forged.append((edges[bins], label))
        if self.by_class:
            return base.replace_pairs(self.data, self.bad[first:], forged)
        return base.replace_scores(self.data, self.bad[first:], [scores for scores, _ in forged])
