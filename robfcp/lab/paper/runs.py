"""Running attacks and defences on the clients of one seed, by the paper's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp.defence import (
    Assessment,
    Band,
    Characterisation,
    Finding,
    Metric,
    NoDefence,
    RobFCP,
    estimate_malicious,
)
from robfcp.federation import Federation
from robfcp.guarantees import conformal_rank, fcp_index
from robfcp.lab.paper.trials import PaperWorld, Trial, make_trial, world_key

LEVEL = Fraction(9, 10)


@dataclass(frozen=True)
class Run:
    """An attack by a share of the clients and a method told their share, or left to estimate it."""

    attack: str
    ratio: float
    method: str  # fcp, rob-fcp or band
    told: float | None  # None: the method's own estimate
    distance: Metric = "l2"
    characterisation: Characterisation = "histogram"
    bins: int = 100


@dataclass(frozen=True)
class RunOutcome:
    """What one run gave on one seed, beside the honest clients alone and the closed form."""

    coverage: float
    set_size: float
    honest_coverage: float
    honest_set_size: float
    expected: float | None
    assumed: int
    caught: int
    flagged: int
    liar_oddity: float | None  # mean maliciousness of the attackers by the method's own measure
    honest_oddity: float | None
    first_bin: float  # share of the honest calibration scores in the first of 100 uniform bins
    last_bin: float


class _Scene:
    """One attack on one trial; what several methods need of it is worked out once."""

    def __init__(self, trial: Trial, attack: str, ratio: float, rng: np.random.Generator) -> None:
        self.trial = trial
        self.n_malicious = round(ratio * trial.federation.n_clients)
        self.benign = trial.benign(self.n_malicious)
        self.federation = trial.attacked(attack, self.n_malicious, rng)
        self.attack = attack
        self._finding: Finding | None = None
        self._likelihood: int | None = None

    @property
    def finding(self) -> Finding:
        if self._finding is None:
            self._finding = Band().look(self.federation)
        return self._finding

    @property
    def likelihood(self) -> int:
        if self._likelihood is None:
            self._likelihood = int(estimate_malicious(self.federation, "likelihood"))
        return self._likelihood

    def assess(self, run: Run) -> tuple[Assessment, int]:
        """The method's verdict, and how many liars it assumed."""
        told = None if run.told is None else round(run.told * self.federation.n_clients)
        if run.method == "fcp":
            return NoDefence()(self.federation, 0), 0
        if run.method == "rob-fcp":
            assumed = self.likelihood if told is None else told
            rule = RobFCP(run.distance, run.characterisation, run.bins)
            return rule(self.federation, assumed), assumed
        assumed = int(self.finding.outstanding.sum()) if told is None else told
        return Band().judge(self.federation, self.finding, assumed), assumed

    def oddities(self, assessment: Assessment) -> tuple[float | None, float | None]:
        """Mean maliciousness of the attackers and of the honest clients."""
        number = assessment.maliciousness
        if self.benign.all() or not number.any():
            return None, None
        return float(number[~self.benign].mean()), float(number[self.benign].mean())

    def ends(self) -> tuple[float, float]:
        """Shares of the honest clients' calibration scores in the outermost of 100 bins."""
        pooled = self.trial.federation.counts[self.benign].sum(axis=0)
        upper = self.trial.federation.grid.upper
        first, last = pooled[upper <= 0.01].sum(), pooled[upper > 0.99].sum()
        return float(first / pooled.sum()), float(last / pooled.sum())


def edge_of(federation: Federation, trusted: NDArray[np.bool_]) -> int | None:
    """FCP's threshold on the trusted clients by the N + 1 rule, as a bin of the reported grid."""
    return fcp_index(federation, LEVEL, trusted, "full")


def expected_coverage(
    scene_sizes: NDArray[np.int64], benign: NDArray[np.bool_], run: Run
) -> float | None:
    """Undefended FCP's mean coverage in closed form: r' / (N_b + 1), where r' = r - N_m against
    minimal forged scores, r against maximal ones (1 once r > N_b) and with no attack.

    With f = N_m/N this is (0.9 - f)/(1 - f) and min(1, 0.9/(1 - f)) up to terms in 1/N.
    """
    if run.method != "fcp" or run.attack not in ("none", "coverage", "efficiency"):
        return None
    total, honest = int(scene_sizes.sum()), int(scene_sizes[benign].sum())
    rank = conformal_rank(LEVEL, total, len(scene_sizes), "full")
    if run.attack == "coverage":
        rank -= total - honest
    return 1.0 if rank > honest else max(0, rank) / (honest + 1)


def run_seed(world: PaperWorld, runs: Sequence[Run], seed: int) -> list[RunOutcome]:
    """The outcome of every run on the clients of one seed; runs under one attack share it."""
    trial = make_trial(world, seed)
    scenes: dict[tuple[str, float], _Scene] = {}
    outcomes = []
    for run in runs:
        key = (run.attack, run.ratio)
        if key not in scenes:
            noise = [seed, *run.attack.encode(), round(1000 * run.ratio), *world_key(world)]
            rng = np.random.default_rng(noise)
            scenes[key] = _Scene(trial, *key, rng)
        scene = scenes[key]
        assessment, assumed = scene.assess(run)
        trusted = assessment.trusted
        edge = edge_of(scene.federation, trusted)
        coverage, size = trial.measure(edge, scene.benign)
        honest = trial.measure(edge_of(trial.federation, scene.benign), scene.benign)
        oddities, ends = scene.oddities(assessment), scene.ends()
        outcomes.append(
            RunOutcome(
                coverage=coverage,
                set_size=size,
                honest_coverage=honest[0],
                honest_set_size=honest[1],
                expected=expected_coverage(trial.federation.sizes, scene.benign, run),
                assumed=assumed,
                caught=int((~trusted & ~scene.benign).sum()),
                flagged=int((~trusted).sum()),
                liar_oddity=oddities[0],
                honest_oddity=oddities[1],
                first_bin=ends[0],
                last_bin=ends[1],
            )
        )
    return outcomes
