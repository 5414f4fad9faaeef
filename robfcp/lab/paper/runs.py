"""Running attacks and methods on the clients of one seed, by the paper's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.calibrating import _calibrate
from robfcp.defence import (
    Finding,
    LooksFirst,
    RobFCP,
    RobFCPReleased,
    named_defence,
    threshold_of,
)
from robfcp.defence.rob_fcp import Characterisation, Metric
from robfcp.federation import Federation
from robfcp.guarantees import conformal_rank, fcp_index
from robfcp.lab.paper.methods import BY_CLASS, FCP, OURS, QQ, RELEASED, TEXT
from robfcp.lab.paper.trials import PaperWorld, Trial, make_trial, world_key
from robfcp.lab.published_bounds import full_rank
from robfcp.lab.quantile_of_quantiles import fedcp_qq_index

LEVEL = Fraction(9, 10)


@dataclass(frozen=True)
class Run:
    """An attack by a share of the clients and a method told their share, or left to estimate it."""

    attack: str
    ratio: float
    method: str  # one of `methods.COMPARED`
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
    everywhere: float  # coverage on all clients' test halves, attackers' too
    expected: float | None
    assumed: int
    caught: int
    flagged: int
    liar_oddity: float | None  # mean maliciousness of the attackers by the method's own measure
    honest_oddity: float | None
    first_bin: float  # share of the honest calibration scores in the first of 100 uniform bins
    last_bin: float


@dataclass(frozen=True, eq=False)
class Verdict:
    """The threshold's bin, whom the method trusts, how malicious all look, the liars assumed."""

    edge: int | None
    trusted: NDArray[np.bool_]
    maliciousness: NDArray[np.float64]
    assumed: int


class _Scene:
    """One attack on one trial; what several methods need of it is worked out once."""

    def __init__(self, trial: Trial, attack: str, ratio: float, rng: np.random.Generator) -> None:
        self.trial = trial
        self.n_malicious = round(ratio * trial.federation.n_clients)
        self.benign = trial.benign(self.n_malicious)
        self.scores = trial.forged(attack, self.n_malicious, rng)
        self.federation = trial.sketched(self.scores)
        self.findings: dict[str, Finding] = {}

    @cached_property
    def by_class(self) -> Federation:
        return self.trial.sketched(self.scores, by_class=True)

    def looked(self, method: str, reports: Federation, told: int | None) -> Verdict:
        """A defence of ours as `calibrate` takes it; it looks once, whatever it is told."""
        rule = named_defence(OURS if method == BY_CLASS else method, told)
        assert isinstance(rule, LooksFirst)
        if method not in self.findings:
            self.findings[method] = rule.look(reports)
        found = rule.judge(reports, self.findings[method])
        edge = threshold_of(rule, reports, found.trusted, full_rank).index(LEVEL)
        return Verdict(edge, found.trusted, found.oddness, int(found.liars or 0))

    @cached_property
    def likelihood(self) -> int:
        return RobFCP().estimate(self.federation)

    def judge(self, run: Run) -> Verdict:
        """What the method makes of the reports."""
        reports = self.federation
        told = None if run.told is None else round(run.told * reports.n_clients)
        everybody, nothing = np.ones(reports.n_clients, bool), np.zeros(reports.n_clients)
        if run.method == FCP:
            return Verdict(edge_of(reports, everybody), everybody, nothing, 0)
        if run.method == QQ:
            return Verdict(fedcp_qq_index(reports, LEVEL), everybody, nothing, 0)
        if run.method == TEXT:
            assumed = self.likelihood if told is None else told
            found = RobFCP(assumed, run.distance, run.characterisation, run.bins)(reports)
        elif run.method == RELEASED:
            found = RobFCPReleased(told, run.bins)(reports)
            assumed = int(found.liars or 0)
        else:
            seen = self.by_class if run.method == BY_CLASS else reports
            return self.looked(run.method, seen, told)
        return Verdict(edge_of(reports, found.trusted), found.trusted, found.oddness, assumed)

    def oddities(self, number: NDArray[np.float64]) -> tuple[float | None, float | None]:
        """Mean maliciousness of the attackers and of the honest clients."""
        if self.benign.all() or not number.any():
            return None, None
        return float(number[~self.benign].mean()), float(number[self.benign].mean())

    def ends(self) -> tuple[float, float]:
        """Shares of the honest clients' calibration scores in the outermost of 100 bins."""
        pooled = self.trial.federation.counts[self.benign].sum(axis=0)
        upper = self.trial.federation.grid.upper
        first, last = pooled[upper <= 0.01].sum(), pooled[upper > 0.99].sum()
        return float(first / pooled.sum()), float(last / pooled.sum())


def by_calibration(federation: Federation, defence: str, told: int | None) -> Verdict:
    """What `calibrate` makes of the reports: the product itself, its threshold included."""
    calibration = _calibrate(
        federation, LEVEL, defence=named_defence(defence, told), rank=full_rank
    )
    threshold = calibration.threshold
    edge = int(np.searchsorted(federation.grid.upper, threshold))
    return Verdict(
        edge if edge < federation.grid.n_bins and np.isfinite(threshold) else None,
        np.isin(np.array(federation.ids), calibration.trusted),
        np.asarray(calibration.oddness),
        calibration.liars,
    )


def edge_of(federation: Federation, trusted: NDArray[np.bool_]) -> int | None:
    """FCP's threshold on the trusted clients by the N + 1 rule, as a bin of the reported grid."""
    return fcp_index(federation, LEVEL, trusted, full_rank)


def expected_coverage(
    scene_sizes: NDArray[np.int64], benign: NDArray[np.bool_], run: Run
) -> float | None:
    """Undefended FCP's mean coverage in closed form: r' / (N_b + 1), where r' = r - N_m against
    minimal forged scores, r against maximal ones (1 once r > N_b) and with no attack.

    With f = N_m/N this is (0.9 - f)/(1 - f) and min(1, 0.9/(1 - f)) up to terms in 1/N.
    """
    if run.method != FCP or run.attack not in ("none", "coverage", "efficiency"):
        return None
    total, honest = int(scene_sizes.sum()), int(scene_sizes[benign].sum())
    rank = conformal_rank(LEVEL, total, len(scene_sizes), full_rank)
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
        verdict = scene.judge(run)
        coverage, size = trial.measure(verdict.edge, scene.benign)
        honest = trial.measure(edge_of(trial.federation, scene.benign), scene.benign)
        everybody = np.ones(len(scene.benign), bool)
        oddities, ends = scene.oddities(verdict.maliciousness), scene.ends()
        outcomes.append(
            RunOutcome(
                coverage=coverage,
                set_size=size,
                honest_coverage=honest[0],
                honest_set_size=honest[1],
                everywhere=trial.measure(verdict.edge, everybody)[0],
                expected=expected_coverage(trial.federation.sizes, scene.benign, run),
                assumed=verdict.assumed,
                caught=int((~verdict.trusted & ~scene.benign).sum()),
                flagged=int((~verdict.trusted).sum()),
                liar_oddity=oddities[0],
                honest_oddity=oddities[1],
                first_bin=ends[0],
                last_bin=ends[1],
            )
        )
    return outcomes
