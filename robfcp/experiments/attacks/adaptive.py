"""The attacker who knows the defense, the number it is given and all benign reports, and searches.

The search first tries the attacks of `parameter_families`, then moves freely, at random, over the
`AttackParameters` of what malicious clients report together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp._validation import Rng, parse_level
from robfcp.defense import Consensus, Defense, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks import base, coordinated, mimic, paper_attacks, simple
from robfcp.experiments.coarsening import as_default_reports
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index

ThresholdFunction = Callable[[Federation], int | None]

# Levels of the benign quantiles between which all scores are tilted together. They lie closer at
# the top, where thresholds are.
BLOCK_LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.82, 0.88, 0.92, 0.96)

STEP_SIZES = (0.4, 1.0, 2.0)  # of a random move, in log odds
MAX_STALE_TRIALS = 40  # trials without success before the search moves on to another start
EXPULSION_WEIGHT = 0.15  # coverage that excluding all benign clients is worth to the attacker


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The worst reports that a search came upon.

    Attributes
    ----------
    federation : Federation
        The attacked reports.
    coverage : float
        Of the threshold that follows, on the benign clients' samples.
    family : str
        How the reports were made.
    value : float
        What the attacker minimizes.
    """

    federation: Federation
    coverage: float
    family: str
    value: float


@dataclass(frozen=True)
class AdaptiveAttack:
    """Searches the reports that lead to the least or the greatest coverage.

    Attributes
    ----------
    defense_rule : str or Defense or ThresholdFunction
        A defense, by name or itself, that is given the true number of malicious clients; or a
        function that returns the bin of the threshold for a federation.
    direction : str
        "down" seeks the least coverage of the benign clients, "up" the greatest.
    coverage : float
        The target coverage of the threshold.
    trials : int
        Steps of the free search. A step is kept when coverage gets worse or more benign clients
        are excluded.
    beyond : bool
        Whether only what is lost beyond FCP, undefended, on the same reports counts.
    min_cell_count : int
        That of the reports which the server receives, and by which forged counts are judged; 1
        for exact counts. The attacker knows exact counts all the same.
    """

    defense_rule: str | Defense | ThresholdFunction = Consensus.name
    direction: Literal["down", "up"] = "down"
    coverage: float = 0.9
    trials: int = 100
    beyond: bool = False
    min_cell_count: int = 1
    name: ClassVar[str] = "adaptive"
    stage: ClassVar[base.Stage] = "counts"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Federation:
        """Return the worst federation that the search finds.

        Parameters
        ----------
        data : Federation
            The reports before the attack.
        malicious : array_like
            The positions of the malicious clients, or a mask of all clients.
        rng : int, Generator or None
            A seed or a generator.
        """
        return self.search(data, malicious, rng).federation

    def search(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> SearchResult:
        """Return the worst reports that the search finds, with the coverage they lead to.

        Parameters
        ----------
        data : Federation
            The reports before the attack.
        malicious : array_like
            The positions of the malicious clients, or a mask of all clients.
        rng : int, Generator or None
            A seed or a generator.
        """
        if self.direction not in ("down", "up"):
            raise RobfcpError(f"direction: {self.direction!r} is neither 'down' nor 'up'")
        generator = np.random.default_rng(rng)
        malicious_rows = base.malicious_indices(malicious, data.n_clients)
        objective = _Objective.from_attack(self, data, malicious_rows)

        best = objective.evaluate(data, "benign").result
        if not len(malicious_rows):
            return best
        for attack in parameter_families(self.direction):
            federation = attack(data, malicious_rows, generator)
            result = objective.evaluate(federation, repr(attack)).result
            best = _better(best, result)

        builder = _AttackBuilder(data, malicious_rows, generator)
        return self._search_freely(builder, objective, best)

    def _search_freely(
        self, builder: _AttackBuilder, objective: _Objective, best: SearchResult
    ) -> SearchResult:
        """Return the better of `best` and of what random moves from several starts reach.

        All starts are tried first; then the most promising is followed until it is stale.
        """
        starts = builder.starts(self.direction == "up")
        reached: list[tuple[float, AttackParameters]] = []  # from each start: objective, parameters
        current = 0
        n_stale = 0
        for trial in range(self.trials):
            is_start = trial < len(starts)
            parameters = starts[trial] if is_start else builder.moved(reached[current][1])
            federation = builder.forge_reports(parameters)
            evaluation = objective.evaluate(federation, f"free: {parameters}")
            best = _better(best, evaluation.result)

            if is_start:
                reached.append((evaluation.search_value, parameters))
                values = [value for value, _ in reached]
                current = values.index(min(values))
            elif evaluation.search_value < reached[current][0]:
                reached[current] = (evaluation.search_value, parameters)
                n_stale = 0
            else:
                n_stale += 1
                if n_stale > MAX_STALE_TRIALS:
                    current = (current + 1) % len(reached)
                    n_stale = 0
        return best


def _better(first: SearchResult, second: SearchResult) -> SearchResult:
    """Return the result with the lesser value; of equals the first."""
    return second if second.value < first.value else first


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """What attacked reports lead to, and what the search minimizes on its way."""

    result: SearchResult
    search_value: float


@dataclass(frozen=True, eq=False)
class _Objective:
    """What an attacker wants: little coverage, or much.

    Attributes
    ----------
    attack : AdaptiveAttack
        For the defense, the direction and the coverage.
    n_malicious : int
        The number that the defense is given.
    benign_indices : array of int
        The positions of the benign clients.
    benign_cdf : (H + 1,) array of float
        The coverage of each bin's edge on the benign samples; the last one is that of an infinite
        threshold.
    benign_coverage : float
        Of FCP on the benign clients alone.
    """

    attack: AdaptiveAttack
    n_malicious: int
    benign_indices: IndexArray
    benign_cdf: FloatArray
    benign_coverage: float

    @staticmethod
    def from_attack(
        attack: AdaptiveAttack, federation: Federation, malicious_rows: IndexArray
    ) -> _Objective:
        """Return the objective of an attack on a federation."""
        all_clients = np.arange(federation.n_clients)
        benign_indices = np.setdiff1d(all_clients, malicious_rows)
        cumulative = np.cumsum(federation.counts[benign_indices].sum(axis=0))
        benign_cdf = np.append(cumulative, 0) / federation.sample_sizes[benign_indices].sum()
        benign_cdf[-1] = 1.0

        level = parse_level(attack.coverage)
        benign_mask = np.isin(all_clients, benign_indices)
        benign_bin = fcp_bin_index(federation, level, benign_mask)
        return _Objective(
            attack=attack,
            n_malicious=len(malicious_rows),
            benign_indices=benign_indices,
            benign_cdf=benign_cdf,
            benign_coverage=benign_cdf[_last_if_none(benign_bin)],
        )

    @property
    def level(self) -> Fraction:
        """The target coverage."""
        return parse_level(self.attack.coverage)

    def evaluate(self, federation: Federation, family: str) -> _Evaluation:
        """Return what the reports lead to when the defense sees them."""
        received = as_default_reports(federation, self.attack.min_cell_count)
        bin_index, benign_mask = self._judge(received)
        coverage = float(self.benign_cdf[_last_if_none(bin_index)])
        sign = 1.0 if self.attack.direction == "down" else -1.0
        value = sign * coverage
        if self.attack.beyond:
            undefended_bin = fcp_bin_index(received, self.level)
            undefended = self.benign_cdf[_last_if_none(undefended_bin)]
            value -= min(sign * self.benign_coverage, sign * undefended)

        expelled = float((~benign_mask[self.benign_indices]).mean())
        result = SearchResult(federation, coverage, family, float(value))
        return _Evaluation(result, value - EXPULSION_WEIGHT * expelled)

    def _judge(self, federation: Federation) -> tuple[int | None, BoolArray]:
        """Return the bin of the defense's threshold and its mask of benign clients."""
        defense: Any = self.attack.defense_rule
        if isinstance(defense, str):
            defense = get_defense(defense, self.n_malicious)
        if not hasattr(defense, "name"):
            return defense(federation), np.ones(federation.n_clients, bool)
        assessment = defense.assess(federation)
        threshold_rule = assessment.threshold_rule(federation)
        return threshold_rule.bin_index(self.level), assessment.benign_mask


def _last_if_none(bin_index: int | None) -> int:
    """Return the position of a threshold's coverage; that of an infinite threshold is last."""
    return -1 if bin_index is None else bin_index


def parameter_families(direction: str) -> list[base.ConcreteAttack]:
    """Return the attacks that an adaptive attacker tries first, each in several strengths.

    Parameters
    ----------
    direction : str
        "down" for attacks that lower coverage, "up" for those that raise it.
    """
    is_down = direction == "down"
    extreme: base.AttackFunction = paper_attacks.coverage_attack
    copy_attack: base.AttackFunction = mimic.mimic_low
    truncate: base.AttackFunction = simple.truncation
    if not is_down:
        extreme = paper_attacks.efficiency_attack
        copy_attack = mimic.mimic_high
        truncate = simple.lower_truncation
    levels = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)

    attacks = [
        base.ScoreAttack(extreme),
        base.ScoreAttack(coordinated.decoy, extreme),
        base.ScoreAttack(paper_attacks.gaussian_attack),
        base.ScoreAttack(coordinated.two_sided_trimming),
    ]
    for scale in (0.5, 1.0, 2.0):
        attacks.append(base.ScoreAttack(simple.gaussian_relative, scale))
    for step in (0.0005, 0.001, 0.01):
        attacks.append(base.ScoreAttack(simple.near_coverage, step if is_down else 1 - step))
    for level in levels:
        attacks.append(base.ScoreAttack(truncate, level if is_down else 1 - level))
    if is_down:
        for level in levels:
            attacks.append(base.ScoreAttack(coordinated.collusion_attack, level))
    for fraction in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        attacks.append(base.ScoreAttack(simple.partial_manipulation, fraction, extreme))
    for copy in ("exact", "resampled", "jittered"):
        attacks.append(base.ScoreAttack(copy_attack, copy))
    for fraction in (0.05, 0.1, 0.2, 0.35, 0.5):
        attacks.append(base.ScoreAttack(coordinated.displace_benign, fraction, not is_down))
    return attacks


@dataclass(frozen=True, eq=False)
class AttackParameters:
    """What malicious clients who act together report, relative to the benign samples.

    With p(c, h) the fraction of the benign samples in class c and bin h, malicious client k draws
    from q(c, h) ~ m_k(c) exp(claim_c) p(h | c) exp(tilt_c,b(h)). b(h) is the block of benign
    quantiles (`BLOCK_LEVELS`) that bin h is in; m_k mixes the client's class fractions, with the
    weight `own_weight`, and those of the benign samples.

    Attributes
    ----------
    tilt : (C, B) array of float
        Which scores of which class are favored.
    claim : (C,) array of float
        Which classes are favored.
    loyal : float
        The fraction of the malicious clients that report truthfully.
    own_weight : float
        The weight of each client's class fractions.
    tight : bool
        Whether the expected counts are reported, rounded, instead of a draw.
    size : float
        Logarithm of how many times the samples that there are get reported.
    """

    tilt: FloatArray
    claim: FloatArray
    loyal: float = 0.0
    own_weight: float = 1.0
    tight: bool = False
    size: float = 0.0

    def __str__(self) -> str:
        mean_tilt = self.tilt.mean(axis=0).round().astype(int).tolist()
        scores = f"scores {' '.join(map(str, mean_tilt))}"
        classes = f"a class by {np.ptp(self.claim):.0f}"
        loyal = f"{self.loyal:.0%} loyal"
        size = f"{np.exp(self.size):.1f} n{', exact' * self.tight}"
        return f"{scores}, {classes}, {loyal}, {size}"


class _AttackBuilder:
    """Makes attack parameters, and the reports that follow; by class where all reports are.

    Parameters
    ----------
    federation : Federation
        The reports before the attack.
    malicious_rows : array of int
        The positions of the malicious clients.
    rng : Generator
        For moves and draws.
    """

    def __init__(
        self, federation: Federation, malicious_rows: IndexArray, rng: np.random.Generator
    ) -> None:
        self.federation = federation
        self.malicious_rows = malicious_rows
        self.rng = rng

        strata = federation.strata
        self.by_class = (
            strata is not None and strata.by == "class" and len(strata.rows) == federation.n_clients
        )
        counts = _counts_by_class(federation) if self.by_class else federation.counts[:, None]
        benign_counts = np.delete(counts, malicious_rows, axis=0).sum(axis=0)

        # Each bin's block of benign quantiles.
        cdf = benign_counts.sum(axis=0).cumsum() / benign_counts.sum()
        last_bin = len(cdf) - 1
        bins_of_levels = np.minimum(np.searchsorted(cdf, BLOCK_LEVELS), last_bin)
        block_ends = np.unique(np.append(bins_of_levels, last_bin))
        self.block = np.searchsorted(block_ends, np.arange(len(cdf)))
        self.n_blocks = len(block_ends)

        # p(h | c) and p(c) of the benign samples, and the class fractions of malicious clients.
        class_sizes = benign_counts.sum(axis=1)
        self.class_occurs = class_sizes > 0
        self.given_class = benign_counts / np.maximum(class_sizes[:, None], 1)
        self.class_fractions = class_sizes / benign_counts.sum()
        malicious_sizes = federation.sample_sizes[malicious_rows, None]
        self.malicious_class_fractions = counts[malicious_rows].sum(axis=2) / malicious_sizes

    def starts(self, upwards: bool) -> list[AttackParameters]:
        """Return the parameters that the search starts from.

        They are: the true distribution, one extreme score, cut upper tails, cut tails on both
        sides, and two with claimed classes.

        Parameters
        ----------
        upwards : bool
            Whether large scores are to be favored rather than small ones.
        """
        n_classes = len(self.class_fractions)
        n_low = self.n_blocks // 4
        n_high = self.n_blocks // 3
        tail_tilts = [(0, 0), (12, 0), (0, -8), (-8, -8), (0, -3), (-3, -6), (1, -2)]
        starts = []
        for low, high in tail_tilts:
            tilt = np.zeros(self.n_blocks)
            tilt[:n_low] = low
            tilt[-n_high:] = high
            if upwards:
                tilt = tilt[::-1]
            all_classes = np.tile(tilt, (n_classes, 1))
            is_tight = abs(high) in (3, 6)
            starts.append(AttackParameters(all_classes, np.zeros(n_classes), tight=is_tight))

        fraction_if_any = np.where(self.class_occurs, self.class_fractions, 2)
        rarest = int(np.argmin(fraction_if_any))
        claims_rarest = 8 * (np.arange(n_classes) == rarest)
        claims_at_random = 2 * self.rng.normal(size=n_classes)
        cut_upper_tail = starts[2]
        for claim in (claims_rarest, claims_at_random):
            starts.append(replace(cut_upper_tail, claim=np.asarray(claim, float)))
        return starts

    def moved(self, parameters: AttackParameters) -> AttackParameters:
        """Return parameters a random step away; each of them moves with a probability of its own.

        Parameters
        ----------
        parameters : AttackParameters
            Where the step begins.
        """
        rng = self.rng
        n_classes, n_blocks = parameters.tilt.shape
        step = rng.choice(STEP_SIZES)
        uniforms = rng.random(6)

        tilt = parameters.tilt + 0.0
        if uniforms[0] < 0.7:
            tilt += step * rng.normal(size=n_blocks) * (rng.random(n_blocks) < 0.5)
        if uniforms[1] < 0.2:
            tilt[rng.integers(n_classes)] += 2 * step * rng.normal(size=n_blocks)

        normals = rng.normal(size=n_classes)
        is_moved = rng.random(n_classes) < 0.4
        claim = parameters.claim + step * normals * is_moved * (uniforms[2] < 0.3)

        deviations = (0.2, 0.4, 0.5)
        is_scalar_moved = uniforms[3:] < (0.3, 0.2, 0.15)
        scalar_moves = rng.normal(size=3) * deviations * is_scalar_moved
        loyal_move, own_move, size_move = scalar_moves
        loyal = np.clip(parameters.loyal + loyal_move, 0, 0.8)
        own_weight = np.clip(parameters.own_weight + own_move, 0, 1)
        size = np.clip(parameters.size + size_move, -1, 1.2)
        tight = parameters.tight ^ (rng.random() < 0.1)
        return AttackParameters(tilt, claim, float(loyal), float(own_weight), tight, float(size))

    def forge_reports(self, parameters: AttackParameters) -> Federation:
        """Return the federation with forged reports of all malicious clients but the loyal ones.

        Parameters
        ----------
        parameters : AttackParameters
            Of the reports.
        """
        n_loyal = round(parameters.loyal * len(self.malicious_rows))
        forging_rows = self.malicious_rows[n_loyal:]
        tilted = self.given_class * np.exp(parameters.tilt)[:, self.block]
        tilted /= np.maximum(tilted.sum(axis=1, keepdims=True), 1e-300)

        upper_edges = base.upper_edges(self.federation.binning)
        forged = []
        for k, fractions in zip(
            forging_rows, self.malicious_class_fractions[n_loyal:], strict=True
        ):
            # A small mass everywhere keeps the sum positive where no claimed class occurs.
            own_mass = parameters.own_weight * fractions
            benign_mass = (1 - parameters.own_weight) * self.class_fractions
            mixed = own_mass + benign_mass + 1e-12
            mixed = mixed * np.exp(parameters.claim) * self.class_occurs
            probabilities = (mixed[:, None] * tilted).ravel() / mixed.sum()
            size = self.federation.sample_sizes[k] * np.exp(parameters.size)
            counts = self._draw_counts(probabilities, max(1, round(float(size))), parameters.tight)
            cells = np.repeat(np.arange(len(counts)), counts)
            labels, bins = np.divmod(cells, len(upper_edges))
            forged.append((upper_edges[bins], labels))

        if self.by_class:
            return base.replace_pairs(self.federation, forging_rows, forged)
        forged_scores = [scores for scores, _ in forged]
        return base.replace_scores(self.federation, forging_rows, forged_scores)

    def _draw_counts(self, probabilities: FloatArray, size: int, tight: bool) -> IntArray:
        """Return counts that sum to `size`: drawn, or the expected ones, rounded."""
        if not tight:
            return self.rng.multinomial(size, probabilities / probabilities.sum())
        cumulative = np.floor(probabilities.cumsum() * size + self.rng.random())
        counts = np.diff(np.minimum(cumulative, size), prepend=0).astype(np.int64)
        counts[np.argmax(probabilities)] += size - counts.sum()
        return counts


def _counts_by_class(federation: Federation) -> IntArray:
    """Return the (K, C, H) counts of a federation whose reports are all by class."""
    strata = federation.strata
    assert strata is not None
    return strata.table.dense().reshape(federation.n_clients, strata.n_strata, strata.n_bins)
