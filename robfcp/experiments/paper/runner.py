"""Attacks and methods on clients made of shipped outputs, by the paper's rules, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp import __version__, defense
from robfcp._files import write_atomically
from robfcp._validation import Rng
from robfcp.binning import Binning
from robfcp.defense._rob_fcp import Characterization, Metric
from robfcp.defense.consensus import OutlierAnalysis
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import ScoreAttack, get_attack
from robfcp.experiments.baselines import FEDCP_QQ, fedcp_qq_index
from robfcp.experiments.paper.theorems import rank_n_plus_1, table_bin
from robfcp.experiments.scenarios import build_federation
from robfcp.experiments.simulation import worker_pool
from robfcp.federation import Federation
from robfcp.guarantees import conformal_rank
from robfcp.scores import APS, LAC, ClassificationScore

FCP = "fcp"
ROB_FCP = defense.RobFCP.name
ROB_FCP_RELEASED = defense.RobFCPReleased.name
CONSENSUS = defense.Consensus.name
BY_CLASS = f"{CONSENSUS} by class"  # the same on reports that keep counts by class

LEVEL = Fraction(9, 10)
CLIENTS = 100
SUBJECTS = 3  # whole nights a client, where clients are made of subjects
MIN_CLIENT_SAMPLES = 20  # samples a client: ten to calibrate with, ten to test on
STAGES = ("wake", "N1", "N2", "N3", "REM")
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class PaperScenario:
    """Which model's outputs are split how: Dirichlet(beta) over labels (0: iid), or by the share
    of a sleep stage in each subject's night, subjects kept whole."""

    dataset: str
    split: str
    stage: str = "final"
    beta: float = 0.0
    attribute: str = ""
    score: str = "lac"
    fine: bool = False  # a grid that holds every k/10000, to merge views of any granularity from


@dataclass(frozen=True, eq=False)
class Trial:
    """A federation before the attack and what a threshold gives on each client's test half.

    `covered` and `members` (K, H) count test scores of the true label and of all labels at or
    below each edge; `order` is a permutation of the clients whose first ones attack.
    """

    federation: Federation
    scores: list[NDArray[np.float64]]
    labels: list[NDArray[np.intp]]
    covered: NDArray[np.int64]
    members: NDArray[np.int64]
    tested: NDArray[np.int64]
    order: NDArray[np.intp]
    n_classes: int

    def benign(self, n_malicious: int) -> Mask:
        """(K,) who does not attack."""
        mask = np.ones(self.federation.n_clients, dtype=bool)
        mask[self.order[:n_malicious]] = False
        return mask

    def measure(self, edge: int | None, benign: Mask) -> tuple[float, float]:
        """Coverage and mean set size on the benign clients' test halves; None: every label."""
        if edge is None:
            return 1.0, float(self.n_classes)
        total = self.tested[benign].sum()
        return (
            float(self.covered[benign, edge].sum() / total),
            float(self.members[benign, edge].sum() / total),
        )

    def attacked(
        self, attack: str, n_malicious: int, seed: Rng | list[int], *, by_class: bool = False
    ) -> Federation:
        """What the server receives, by class too if wanted; attackers keep their labels."""
        scores, score, grid = self.scores, self.federation.score, self.federation.binning
        if attack != "none" and n_malicious:
            kind, _, strength = attack.partition(":")  # `gaussian:0.02`: in another strength
            rule: Any = get_attack(kind)
            if strength:
                rule = ScoreAttack(rule.rule, float(strength))
            scores = rule(scores, self.order[:n_malicious], np.random.default_rng(seed))
        assert isinstance(score, ClassificationScore)
        labels = self.labels if by_class else None
        return build_federation(scores, grid, score, labels=labels, n_classes=self.n_classes)


def make_trial(world: PaperScenario, seed: int) -> Trial:
    """The clients of one seed: their calibration scores and the counts of their test halves."""
    rng = np.random.default_rng([seed, *world_key(world)])
    given = outputs.load(world.dataset, world.split, world.stage)
    rule: ClassificationScore = LAC() if world.score == "lac" else APS(randomized=True)
    grid = fine_binning() if world.fine else Binning.default()
    every = rule.score_all_labels(given.probabilities, rng)
    cell = grid.bin_indices(every)
    true = every[np.arange(len(every)), given.labels]
    halves = [np.array_split(rng.permutation(part), 2) for part in split(world, given, rng)]
    owner = np.full(len(true), -1)
    for client, (_, test) in enumerate(halves):
        owner[test] = client
    held = owner >= 0
    shape = (len(halves), grid.n_bins)
    truth = cell[np.arange(len(true)), given.labels]
    covered = _counted(owner[held], truth[held], shape)
    n_classes = every.shape[1]
    members = _counted(np.repeat(owner[held], n_classes), cell[held].ravel(), shape)
    scores = [np.asarray(true[calibration], np.float64) for calibration, _ in halves]
    return Trial(
        federation=build_federation(scores, grid, rule),
        scores=scores,
        labels=[given.labels[calibration] for calibration, _ in halves],
        covered=covered.cumsum(axis=1),
        members=members.cumsum(axis=1),
        tested=np.array([len(test) for _, test in halves]),
        order=rng.permutation(len(halves)),
        n_classes=n_classes,
    )


def world_key(world: PaperScenario) -> list[int]:
    """Numbers that differ between worlds, to seed with."""
    words = repr(world).replace(type(world).__name__, "World", 1)  # seeds outlive a class's name
    return list(sha256(words.encode()).digest()[:8])


def n_clients_of(world: PaperScenario) -> int:
    """How many clients its samples are split among."""
    if not world.attribute:
        return CLIENTS
    groups = outputs.load(world.dataset, world.split, world.stage).groups
    return CLIENTS if groups is None else -(-len(np.unique(groups)) // SUBJECTS)


def split(
    world: PaperScenario, given: outputs.Outputs, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """The samples of each client. Where Dirichlet(beta) leaves clients too few samples to be used
    at all (beta = 0.1), the largest clients give them some."""
    if world.attribute:
        if given.groups is None:
            raise RobfcpError(f"{world.dataset}: has no subjects to split by; use sleep")
        _, subject = np.unique(given.groups, return_inverse=True)
        stage = STAGES.index(world.attribute)
        share = np.bincount(subject, given.labels == stage) / np.bincount(subject)
        client = np.argsort(np.argsort(share, kind="stable"), kind="stable") // SUBJECTS
        owner = client[subject]
        return [np.flatnonzero(owner == number) for number in range(owner.max() + 1)]
    if world.beta == 0:
        return partitions.partition_iid(len(given.labels), CLIENTS, rng)
    try:
        return partitions.partition_dirichlet(
            given.labels, CLIENTS, world.beta, rng, minimum=MIN_CLIENT_SAMPLES, attempts=20
        )
    except RobfcpError:
        parts = partitions.partition_dirichlet(given.labels, CLIENTS, world.beta, rng, minimum=0)
    parts = [rng.permutation(part) for part in parts]
    for poor in range(len(parts)):
        while (lacking := MIN_CLIENT_SAMPLES - len(parts[poor])) > 0:
            rich = int(np.argmax([len(part) for part in parts]))
            parts[poor] = np.concatenate([parts[poor], parts[rich][:lacking]])
            parts[rich] = parts[rich][lacking:]
    return parts


@lru_cache(maxsize=1)
def fine_binning() -> Binning:
    """The default grid with every k/10000 among its edges."""
    return Binning(np.union1d(Binning.default().edges, Binning.uniform(10000).edges))


def _counted(
    owner: NDArray[np.intp], cell: NDArray[np.intp], shape: tuple[int, int]
) -> NDArray[np.int64]:
    flat = np.bincount(owner * shape[1] + cell, minlength=shape[0] * shape[1])
    return flat.reshape(shape)


@dataclass(frozen=True)
class Run:
    """An attack by a share of the clients and a method told their share, or left to estimate it."""

    attack: str
    ratio: float
    method: str  # FCP, FEDCP_QQ, TEXT, RELEASED, OURS or BY_CLASS
    told: float | None  # None: the method's own estimate
    distance: Metric = "l2"
    characterisation: Characterization = "histogram"
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
    liar_oddity: float | None  # mean oddness of the attackers by the method's own measure
    honest_oddity: float | None
    first_bin: float  # share of the honest calibration scores in the first of 100 uniform bins
    last_bin: float


class _AttackedTrial:
    """One attack on one trial; what several methods need of it is worked out once."""

    def __init__(self, trial: Trial, attack: str, ratio: float, noise: list[int]) -> None:
        n_malicious = round(ratio * trial.federation.n_clients)
        self.benign = trial.benign(n_malicious)
        self.reports = partial(trial.attacked, attack, n_malicious, noise)
        self.federation = self.reports()
        self.findings: dict[str, tuple[Federation, OutlierAnalysis]] = {}

    @cached_property
    def likelihood(self) -> int:
        return defense.RobFCP().estimate_n_malicious(self.federation)

    def judge(self, run: Run) -> tuple[int | None, defense.Assessment]:
        """The threshold's bin and whom the method trusts."""
        reports = self.federation
        told = None if run.told is None else round(run.told * reports.n_clients)
        rule: defense.Defense = defense.FCP()
        if run.method == FEDCP_QQ:
            return fedcp_qq_index(reports, LEVEL), rule.assess(reports)
        if run.method == ROB_FCP:
            assumed = self.likelihood if told is None else told
            rule = defense.RobFCP(assumed, run.distance, run.characterisation, run.bins)
        elif run.method == ROB_FCP_RELEASED:
            rule = defense.RobFCPReleased(told, run.bins)
        elif run.method != FCP:
            if run.method not in self.findings:
                seen = self.reports(by_class=True) if run.method == BY_CLASS else reports
                self.findings[run.method] = seen, defense.Consensus().find_outliers(seen)
            return consensus_threshold(told, *self.findings[run.method])
        found = rule.assess(reports)
        return table_bin(reports, LEVEL, found.benign_mask), found


def consensus_threshold(
    told: int | None, reports: Federation, finding: OutlierAnalysis
) -> tuple[int | None, defense.Assessment]:
    """Our defence, told the number of liars as Rob-FCP is, by the rank of the paper's tables."""
    rule = defense.Consensus(exactly=told)
    assessment = rule.decide(reports, finding)
    return assessment.threshold_rule(reports, rank_n_plus_1).bin_index(LEVEL), assessment


def expected_coverage(sizes: NDArray[np.int64], benign: Mask, run: Run) -> float | None:
    """Undefended FCP's mean coverage in closed form: r' / (N_b + 1), where r' = r - N_m against
    minimal forged scores, r against maximal ones (1 once r > N_b) and with no attack.

    With f = N_m/N this is (0.9 - f)/(1 - f) and min(1, 0.9/(1 - f)) up to terms in 1/N.
    """
    if run.method != FCP or run.attack not in ("none", "coverage", "efficiency"):
        return None
    total, honest = int(sizes.sum()), int(sizes[benign].sum())
    rank = conformal_rank(LEVEL, total, len(sizes), rank_n_plus_1)
    if run.attack == "coverage":
        rank -= total - honest
    return 1.0 if rank > honest else max(0, rank) / (honest + 1)


def run_seed(world: PaperScenario, runs: Sequence[Run], seed: int) -> list[RunOutcome]:
    """The outcome of every run on the clients of one seed; runs under one attack share it."""
    trial = make_trial(world, seed)
    upper = trial.federation.binning.upper_edges
    everybody = np.ones(trial.federation.n_clients, bool)
    scenes: dict[tuple[str, float], _AttackedTrial] = {}
    outcomes = []
    for run in runs:
        key = (run.attack, run.ratio)
        if key not in scenes:
            noise = [seed, *run.attack.encode(), round(1000 * run.ratio), *world_key(world)]
            scenes[key] = _AttackedTrial(trial, *key, noise)
        benign = scenes[key].benign
        edge, found = scenes[key].judge(run)
        coverage, size = trial.measure(edge, benign)
        honest = trial.measure(table_bin(trial.federation, LEVEL, benign), benign)
        shown = not benign.all() and found.maliciousness.any()
        pooled = trial.federation.pooled_counts(benign)
        outcomes.append(
            RunOutcome(
                coverage=coverage,
                set_size=size,
                honest_coverage=honest[0],
                honest_set_size=honest[1],
                everywhere=trial.measure(edge, everybody)[0],
                expected=expected_coverage(trial.federation.sample_sizes, benign, run),
                assumed=int(found.n_malicious or 0),
                caught=int((~found.benign_mask & ~benign).sum()),
                flagged=int((~found.benign_mask).sum()),
                liar_oddity=float(found.maliciousness[~benign].mean()) if shown else None,
                honest_oddity=float(found.maliciousness[benign].mean()) if shown else None,
                first_bin=float(pooled[upper <= 0.01].sum() / pooled.sum()),
                last_bin=float(pooled[upper > 0.99].sum() / pooled.sum()),
            )
        )
    return outcomes


Results = dict[tuple[PaperScenario, Run], list[RunOutcome]]
Kept = dict[Run, list[RunOutcome]]


def run_cases(
    cases: Iterable[tuple[PaperScenario, Run]],
    *,
    seeds: int,
    store: Path | None = None,
    workers: int | None = None,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> Results:
    """The outcomes of every case on seeds 0..seeds-1; worlds found in `store` are not run again.

    Several tables share many runs: each is done once.
    """
    wanted: dict[PaperScenario, dict[Run, None]] = {}
    for world, run in cases:
        wanted.setdefault(world, {})[run] = None
    kept = {world: _load(store, world, seeds) for world in wanted}
    missing = {world: [r for r in wanted[world] if r not in kept[world]] for world in wanted}
    tasks = [(world, seed) for world in wanted if missing[world] for seed in range(seeds)]
    start(len(tasks))
    done: dict[PaperScenario, dict[int, list[RunOutcome]]] = {world: {} for world in wanted}
    with worker_pool(workers) as pool:
        jobs = {pool.submit(run_seed, world, missing[world], n): (world, n) for world, n in tasks}
        for job in as_completed(jobs):
            world, seed = jobs[job]
            done[world][seed] = job.result()
            advance()
            if len(done[world]) == seeds:
                by_seed = (done[world][s] for s in range(seeds))
                kept[world] |= zip(
                    missing[world], map(list, zip(*by_seed, strict=True)), strict=True
                )
                if store is not None:
                    store.mkdir(parents=True, exist_ok=True)
                    held = _File(__version__, seeds, list(kept[world].items()))
                    write_atomically(_path(store, world), msgspec.json.encode(held))
    return {(world, run): kept[world][run] for world, runs in wanted.items() for run in runs}


class _File(msgspec.Struct):
    """The runs of one world, and what they were made with."""

    version: str
    seeds: int
    runs: list[tuple[Run, list[RunOutcome]]]


def _path(store: Path, world: PaperScenario) -> Path:
    name = "-".join(str(part) for part in (world.dataset, world.split, world.stage) if part)
    return store / f"{name}-{bytes(world_key(world)).hex()}.json"


def _load(store: Path | None, world: PaperScenario, seeds: int) -> Kept:
    if store is None or not _path(store, world).is_file():
        return {}
    try:
        found = msgspec.json.decode(_path(store, world).read_bytes(), type=_File)
    except msgspec.DecodeError:  # of a version with other fields
        return {}
    return dict(found.runs) if (found.version, found.seeds) == (__version__, seeds) else {}
