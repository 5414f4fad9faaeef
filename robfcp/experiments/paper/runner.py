"""Attacks and methods on clients made of shipped outputs, by the paper's rules, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from robfcp import __version__, defense
from robfcp._files import write_atomically
from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp._validation import Rng
from robfcp.binning import Binning
from robfcp.defense import Characterization, Metric
from robfcp.defense.consensus import OutlierAnalysis
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import ScoreAttack, get_attack
from robfcp.experiments.baselines import FEDCP_QQ, fedcp_qq_index
from robfcp.experiments.coarsening import as_default_reports
from robfcp.experiments.paper.ranks import rank_n_plus_1, table_bin
from robfcp.experiments.scenarios import build_federation
from robfcp.experiments.simulation import worker_pool
from robfcp.federation import Federation
from robfcp.guarantees import conformal_rank
from robfcp.scores import APS, LAC, ClassificationScore

FCP = "fcp"
ROB_FCP = defense.RobFCP.name
ROB_FCP_RELEASED = defense.RobFCPReleased.name
CONSENSUS = defense.Consensus.name
BY_CLASS = f"{CONSENSUS} by class"  # the same on exact counts by class
DEFAULT_REPORTS = f"{CONSENSUS} on default reports"  # the same on what `robfcp report` writes

LEVEL = Fraction(9, 10)
CLIENTS = 100
SUBJECTS = 3  # whole nights a client, where clients are made of subjects
MIN_CLIENT_SAMPLES = 20  # samples a client: ten to calibrate with, ten to test on
STAGES = ("wake", "N1", "N2", "N3", "REM")


@dataclass(frozen=True)
class PaperScenario:
    """Which model's outputs are split among clients, and how.

    The values of the fields seed the draws (`scenario_key`).

    Attributes
    ----------
    dataset, split, stage : str
        Of the shipped outputs; the stage is "final" or "early".
    beta : float
        The samples are split by Dirichlet(beta) over labels; 0 for iid.
    attribute : str
        A sleep stage: instead, subjects are kept whole and sorted by its fraction in their nights.
    score : str
        "lac" or "aps".
    has_all_granularities : bool
        Whether the binning holds every k/10000, so that vectors of any granularity can be merged
        from it.
    """

    dataset: str
    split: str
    stage: str = "final"
    beta: float = 0.0
    attribute: str = ""
    score: str = "lac"
    has_all_granularities: bool = False


@dataclass(frozen=True, eq=False)
class Trial:
    """A federation before the attack, and what a threshold gives on each client's test half.

    Attributes
    ----------
    federation : Federation
        The reports before the attack.
    scores, labels : list of array
        Each client's calibration half.
    covered, members : (K, H) array of int
        How many test scores, of the true label and of all labels, are at or below each edge.
    tested : (K,) array of int
        How many test samples there are.
    order : (K,) array of int
        A permutation of the clients; its first ones are malicious.
    n_classes : int
        The number of classes.
    """

    federation: Federation
    scores: list[FloatArray]
    labels: list[IndexArray]
    covered: IntArray
    members: IntArray
    tested: IntArray
    order: IndexArray
    n_classes: int

    def benign(self, n_malicious: int) -> BoolArray:
        """Return the (K,) mask of the benign clients.

        Parameters
        ----------
        n_malicious : int
            The number of malicious clients.
        """
        benign_mask = np.ones(self.federation.n_clients, dtype=bool)
        benign_mask[self.order[:n_malicious]] = False
        return benign_mask

    def measure(self, bin_index: int | None, client_mask: BoolArray) -> tuple[float, float]:
        """Return coverage and mean set size on the test halves of some clients.

        Parameters
        ----------
        bin_index : int or None
            The bin of the threshold; None where sets hold every label.
        client_mask : (K,) array of bool
            The clients.
        """
        if bin_index is None:
            return 1.0, float(self.n_classes)
        n_tested = self.tested[client_mask].sum()
        coverage = self.covered[client_mask, bin_index].sum() / n_tested
        set_size = self.members[client_mask, bin_index].sum() / n_tested
        return float(coverage), float(set_size)

    def attacked(
        self, attack: str, n_malicious: int, seed: Rng | list[int], *, by_class: bool = False
    ) -> Federation:
        """Return what the server receives; malicious clients keep their labels.

        Parameters
        ----------
        attack : str
            "none", or the name of an attack on scores, which a strength may follow:
            `gaussian:0.02`.
        n_malicious : int
            The number of malicious clients.
        seed : Rng or list[int]
            Of the attack.
        by_class : bool
            Whether reports keep counts by class.
        """
        scores = self.scores
        if attack != "none" and n_malicious:
            generator = np.random.default_rng(seed)
            scores = _parse_attack(attack)(scores, self.order[:n_malicious], generator)
        score = self.federation.score
        assert isinstance(score, ClassificationScore)
        return build_federation(
            scores,
            self.federation.binning,
            score,
            labels=self.labels if by_class else None,
            n_classes=self.n_classes,
        )


def _parse_attack(text: str) -> Any:
    """Return the attack of `name` or `name:strength`."""
    name, _, strength = text.partition(":")
    attack: Any = get_attack(name)
    if not strength:
        return attack
    return ScoreAttack(attack.craft, float(strength))


def make_trial(scenario: PaperScenario, seed: int) -> Trial:
    """Return the clients of one seed: their calibration scores and the counts of their test halves.

    Parameters
    ----------
    scenario : PaperScenario
        The outputs and their split.
    seed : int
        Of all draws, with the scenario's key.
    """
    rng = np.random.default_rng([seed, *scenario_key(scenario)])
    data = outputs.load(scenario.dataset, scenario.split, scenario.stage)
    score: ClassificationScore = LAC() if scenario.score == "lac" else APS(randomized=True)
    binning = fine_binning() if scenario.has_all_granularities else Binning.default()

    label_scores = score.score_all_labels(data.probabilities, rng)
    n_samples, n_classes = label_scores.shape
    true_scores = label_scores[np.arange(n_samples), data.labels]
    label_bins = binning.bin_indices(label_scores)
    true_bins = label_bins[np.arange(n_samples), data.labels]

    halves = [np.array_split(rng.permutation(rows), 2) for rows in split(scenario, data, rng)]
    calibration_rows = [calibration for calibration, _ in halves]
    test_rows = [test for _, test in halves]
    order = rng.permutation(len(halves))

    # Samples of no test half have client -1.
    client_index = np.full(n_samples, -1)
    for client, rows in enumerate(test_rows):
        client_index[rows] = client
    is_tested = client_index >= 0
    tested_client = client_index[is_tested]
    shape = (len(halves), binning.n_bins)
    true_counts = _count_by_client(tested_client, true_bins[is_tested], shape)
    label_counts = _count_by_client(
        np.repeat(tested_client, n_classes), label_bins[is_tested].ravel(), shape
    )

    scores = [np.asarray(true_scores[rows], np.float64) for rows in calibration_rows]
    return Trial(
        federation=build_federation(scores, binning, score),
        scores=scores,
        labels=[data.labels[rows] for rows in calibration_rows],
        covered=true_counts.cumsum(axis=1),
        members=label_counts.cumsum(axis=1),
        tested=np.array([len(rows) for rows in test_rows]),
        order=order,
        n_classes=n_classes,
    )


def scenario_key(scenario: PaperScenario) -> list[int]:
    """Return numbers that differ between scenarios, to seed with."""
    # This text is a seed, frozen for ever: it names the class and its fields as they were first
    # called, and another letter in it changes every result. `test_seeds_of_scenarios_are_frozen`.
    text = (
        f"World(dataset={scenario.dataset!r}, split={scenario.split!r}, stage={scenario.stage!r}, "
        f"beta={scenario.beta!r}, attribute={scenario.attribute!r}, score={scenario.score!r}, "
        f"fine={scenario.has_all_granularities!r})"
    )
    return list(sha256(text.encode()).digest()[:8])


def n_clients_of(scenario: PaperScenario) -> int:
    """Return the number of clients that a scenario's samples are split among."""
    if not scenario.attribute:
        return CLIENTS
    subjects = outputs.load(scenario.dataset, scenario.split, scenario.stage).groups
    if subjects is None:
        return CLIENTS
    return -(-len(np.unique(subjects)) // SUBJECTS)


def split(
    scenario: PaperScenario, data: outputs.Outputs, rng: np.random.Generator
) -> list[IndexArray]:
    """Return the samples of each client.

    Where Dirichlet(beta) leaves clients fewer samples than `MIN_CLIENT_SAMPLES` (beta = 0.1), the
    largest clients give them some.

    Parameters
    ----------
    scenario : PaperScenario
        How the samples are split.
    data : Outputs
        The samples.
    rng : Generator
        For the split.
    """
    if scenario.attribute:
        return _split_by_stage(scenario, data)
    if scenario.beta == 0:
        return partitions.partition_iid(len(data.labels), CLIENTS, rng)
    try:
        return partitions.partition_dirichlet(
            data.labels, CLIENTS, scenario.beta, rng, minimum=MIN_CLIENT_SAMPLES, attempts=20
        )
    except RobfcpError:
        clients = partitions.partition_dirichlet(
            data.labels, CLIENTS, scenario.beta, rng, minimum=0
        )
    return _fill_small_clients([rng.permutation(samples) for samples in clients])


def _split_by_stage(scenario: PaperScenario, data: outputs.Outputs) -> list[IndexArray]:
    """Return clients of `SUBJECTS` whole subjects, sorted by the fraction of a sleep stage."""
    if data.groups is None:
        raise RobfcpError(f"{scenario.dataset}: has no subjects to split by; use sleep")
    _, subject = np.unique(data.groups, return_inverse=True)
    is_stage = data.labels == STAGES.index(scenario.attribute)
    stage_fraction = np.bincount(subject, is_stage) / np.bincount(subject)
    rank = np.argsort(np.argsort(stage_fraction, kind="stable"), kind="stable")
    client_index = (rank // SUBJECTS)[subject]
    return [np.flatnonzero(client_index == client) for client in range(client_index.max() + 1)]


def _fill_small_clients(clients: list[IndexArray]) -> list[IndexArray]:
    """Return clients that have enough samples, each small one filled up from the largest."""
    filled = list(clients)
    for small in range(len(filled)):
        n_missing = MIN_CLIENT_SAMPLES - len(filled[small])
        while n_missing > 0:
            largest = int(np.argmax([len(samples) for samples in filled]))
            filled[small] = np.concatenate([filled[small], filled[largest][:n_missing]])
            filled[largest] = filled[largest][n_missing:]
            n_missing = MIN_CLIENT_SAMPLES - len(filled[small])
    return filled


@lru_cache(maxsize=1)
def fine_binning() -> Binning:
    """Return the default binning with every k/10000 among its edges."""
    return Binning(np.union1d(Binning.default().edges, Binning.uniform(10000).edges))


def _count_by_client(
    client_index: IndexArray, bins: IndexArray, shape: tuple[int, int]
) -> IntArray:
    """Return (K, H) counts of samples by client and bin."""
    n_clients, n_bins = shape
    counts = np.bincount(client_index * n_bins + bins, minlength=n_clients * n_bins)
    return counts.reshape(shape)


@dataclass(frozen=True)
class Run:
    """An attack by a fraction of the clients, and a method.

    Attributes
    ----------
    attack : str
        As in `Trial.attacked`.
    malicious_fraction : float
        The fraction of malicious clients.
    method : str
        FCP, FEDCP_QQ, ROB_FCP, ROB_FCP_RELEASED, CONSENSUS, BY_CLASS or DEFAULT_REPORTS. All but
        the last are given exact counts.
    fraction_given : float or None
        The fraction that the method is given; None for its own estimate.
    metric, characterization, n_bins
        Of Rob-FCP: the metric, the vectors and their length H.
    """

    attack: str
    malicious_fraction: float
    method: str
    fraction_given: float | None
    metric: Metric = "l2"
    characterization: Characterization = "histogram"
    n_bins: int = 100


@dataclass(frozen=True)
class RunOutcome:
    """What one run gave on one seed.

    Attributes
    ----------
    coverage, set_size : float
        On the benign clients' test halves.
    benign_coverage, benign_set_size : float
        The same of the threshold of the benign clients alone.
    coverage_all_clients : float
        Coverage on all clients' test halves, the malicious ones' too.
    closed_form_coverage : float or None
        Coverage in closed form (`expected_coverage`).
    assumed_n_malicious : int
        The number of malicious clients that the method was given or estimated.
    n_detected, n_flagged : int
        How many malicious clients, and how many clients at all, the method excluded.
    malicious_maliciousness, benign_maliciousness : float or None
        The mean maliciousness of the malicious and of the benign clients, in the method's measure.
    first_bin, last_bin : float
        The fractions of the benign calibration scores in the first and last of 100 uniform bins.
    """

    coverage: float
    set_size: float
    benign_coverage: float
    benign_set_size: float
    coverage_all_clients: float
    closed_form_coverage: float | None
    assumed_n_malicious: int
    n_detected: int
    n_flagged: int
    malicious_maliciousness: float | None
    benign_maliciousness: float | None
    first_bin: float
    last_bin: float


class _AttackedTrial:
    """One attack on one trial; what several methods need of it is computed once.

    Parameters
    ----------
    trial : Trial
        The clients.
    attack : str
        As in `Trial.attacked`.
    malicious_fraction : float
        Of the clients.
    seed : list of int
        Of the attack.
    """

    def __init__(
        self, trial: Trial, attack: str, malicious_fraction: float, seed: list[int]
    ) -> None:
        self.trial = trial
        self.attack = attack
        self.seed = seed
        self.n_malicious = round(malicious_fraction * trial.federation.n_clients)
        self.benign_mask = trial.benign(self.n_malicious)
        self.federation = trial.attacked(attack, self.n_malicious, seed)

    @cached_property
    def federation_by_class(self) -> Federation:
        """The same counts by class."""
        return self.trial.attacked(self.attack, self.n_malicious, self.seed, by_class=True)

    @cached_property
    def likelihood_estimate(self) -> int:
        """The number of malicious clients that Eq. (8) of the paper estimates."""
        return defense.RobFCP().estimate_n_malicious(self.federation)

    @cached_property
    def outliers(self) -> OutlierAnalysis:
        """What Consensus finds in the pooled reports."""
        return defense.Consensus().find_outliers(self.federation)

    @cached_property
    def default_reports(self) -> Federation:
        """The default reports of the same samples: coarsened counts, and class totals."""
        return as_default_reports(self.federation_by_class)

    @cached_property
    def outliers_of_default_reports(self) -> OutlierAnalysis:
        """What Consensus finds in the default reports."""
        return defense.Consensus().find_outliers(self.default_reports)

    @cached_property
    def outliers_by_class(self) -> OutlierAnalysis:
        """What Consensus finds in the reports by class."""
        return defense.Consensus().find_outliers(self.federation_by_class)

    def judge(self, run: Run) -> tuple[int | None, defense.Assessment]:
        """Return the bin of a method's threshold, and its assessment of the clients.

        Parameters
        ----------
        run : Run
            The method and what it is given.
        """
        federation = self.federation
        n_given = (
            None if run.fraction_given is None else round(run.fraction_given * federation.n_clients)
        )
        if run.method == FEDCP_QQ:
            return fedcp_qq_index(federation, LEVEL), defense.FCP().assess(federation)
        if run.method == CONSENSUS:
            return consensus_threshold(n_given, federation, self.outliers)
        if run.method == BY_CLASS:
            return consensus_threshold(n_given, self.federation_by_class, self.outliers_by_class)
        if run.method == DEFAULT_REPORTS:
            outliers = self.outliers_of_default_reports
            return consensus_threshold(n_given, self.default_reports, outliers)

        assessment = self._paper_defense(run, n_given).assess(federation)
        return table_bin(federation, LEVEL, assessment.benign_mask), assessment

    def _paper_defense(self, run: Run, n_given: int | None) -> defense.Defense:
        """Return FCP or Rob-FCP, as printed or as released."""
        if run.method == ROB_FCP:
            n_malicious = self.likelihood_estimate if n_given is None else n_given
            return defense.RobFCP(n_malicious, run.metric, run.characterization, run.n_bins)
        if run.method == ROB_FCP_RELEASED:
            return defense.RobFCPReleased(n_given, run.n_bins)
        return defense.FCP()


def consensus_threshold(
    n_malicious: int | None, federation: Federation, outliers: OutlierAnalysis
) -> tuple[int | None, defense.Assessment]:
    """Return the bin of Consensus's threshold by the rank of the tables, and its assessment.

    Parameters
    ----------
    n_malicious : int or None
        The exact number that the defense is given, as Rob-FCP is; None for its own estimate.
    federation : Federation
        The reports.
    outliers : OutlierAnalysis
        What the defense finds in them.
    """
    assessment = defense.Consensus(n_malicious=n_malicious).decide(federation, outliers)
    threshold_rule = assessment.threshold_rule(federation, rank_n_plus_1)
    return threshold_rule.bin_index(LEVEL), assessment


def expected_coverage(sizes: IntArray, benign_mask: BoolArray, run: Run) -> float | None:
    """Return the mean coverage of FCP, undefended, in closed form; None for other runs.

    It is r' / (N_b + 1), where r' = r - N_m against minimal forged scores, and r against maximal
    ones (1 once r > N_b) and with no attack. With f = N_m / N this is (0.9 - f) / (1 - f) and
    min(1, 0.9 / (1 - f)) up to terms in 1/N.

    Parameters
    ----------
    sizes : (K,) array of int
        The sample sizes.
    benign_mask : (K,) array of bool
        The benign clients.
    run : Run
        The attack and the method.
    """
    if run.method != FCP or run.attack not in ("none", "coverage", "efficiency"):
        return None
    n_samples = int(sizes.sum())
    n_benign_samples = int(sizes[benign_mask].sum())
    rank = conformal_rank(LEVEL, n_samples, len(sizes), rank_n_plus_1)
    if run.attack == "coverage":
        rank -= n_samples - n_benign_samples
    if rank > n_benign_samples:
        return 1.0
    return max(0, rank) / (n_benign_samples + 1)


def run_seed(scenario: PaperScenario, runs: Sequence[Run], seed: int) -> list[RunOutcome]:
    """Return the outcome of every run on the clients of one seed; runs under one attack share it.

    Parameters
    ----------
    scenario : PaperScenario
        The clients.
    runs : sequence of Run
        The attacks and methods.
    seed : int
        Of the clients and the attacks.
    """
    trial = make_trial(scenario, seed)
    attacked_trials: dict[tuple[str, float], _AttackedTrial] = {}
    outcomes = []
    for run in runs:
        key = (run.attack, run.malicious_fraction)
        if key not in attacked_trials:
            fraction_seed = round(1000 * run.malicious_fraction)
            attack_seed = [seed, *run.attack.encode(), fraction_seed, *scenario_key(scenario)]
            attacked_trials[key] = _AttackedTrial(
                trial, run.attack, run.malicious_fraction, attack_seed
            )
        outcomes.append(_measure_run(attacked_trials[key], run))
    return outcomes


def _measure_run(attacked: _AttackedTrial, run: Run) -> RunOutcome:
    """Return the outcome of one run."""
    trial = attacked.trial
    benign_mask = attacked.benign_mask
    bin_index, assessment = attacked.judge(run)
    coverage, set_size = trial.measure(bin_index, benign_mask)
    benign_bin = table_bin(trial.federation, LEVEL, benign_mask)
    benign_coverage, benign_set_size = trial.measure(benign_bin, benign_mask)
    all_clients = np.ones(trial.federation.n_clients, bool)
    coverage_all_clients, _ = trial.measure(bin_index, all_clients)

    # A method that does not rank clients gives all of them 0.
    malicious_mean = None
    benign_mean = None
    maliciousness = assessment.maliciousness
    if not benign_mask.all() and maliciousness.any():
        malicious_mean = float(maliciousness[~benign_mask].mean())
        benign_mean = float(maliciousness[benign_mask].mean())

    flagged_mask = ~assessment.benign_mask
    upper_edges = trial.federation.binning.upper_edges
    benign_counts = trial.federation.pooled_counts(benign_mask)
    n_benign_samples = benign_counts.sum()
    return RunOutcome(
        coverage=coverage,
        set_size=set_size,
        benign_coverage=benign_coverage,
        benign_set_size=benign_set_size,
        coverage_all_clients=coverage_all_clients,
        closed_form_coverage=expected_coverage(trial.federation.sample_sizes, benign_mask, run),
        assumed_n_malicious=int(assessment.n_malicious or 0),
        n_detected=int((flagged_mask & ~benign_mask).sum()),
        n_flagged=int(flagged_mask.sum()),
        malicious_maliciousness=malicious_mean,
        benign_maliciousness=benign_mean,
        first_bin=float(benign_counts[upper_edges <= 0.01].sum() / n_benign_samples),
        last_bin=float(benign_counts[upper_edges > 0.99].sum() / n_benign_samples),
    )


Results = dict[tuple[PaperScenario, Run], list[RunOutcome]]
RunResults = dict[Run, list[RunOutcome]]


def run_cases(
    cases: Iterable[tuple[PaperScenario, Run]],
    *,
    seeds: int,
    store: Path | None = None,
    workers: int | None = None,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> Results:
    """Return the outcomes of every case on seeds 0..seeds-1.

    Several tables share many runs: each is done once. Runs that are in the store are not done
    again.

    Parameters
    ----------
    cases : iterable of pairs
        Scenarios and runs.
    seeds : int
        The number of seeds.
    store : Path, optional
        A folder with a file a scenario.
    workers : int or None
        The number of processes; None for one a core.
    start, advance : callable
        For a progress bar: called with the number of tasks, and after each of them.
    """
    runs_of: dict[PaperScenario, dict[Run, None]] = {}
    for scenario, run in cases:
        runs_of.setdefault(scenario, {})[run] = None

    results: dict[PaperScenario, RunResults] = {}
    missing: dict[PaperScenario, list[Run]] = {}
    tasks: list[tuple[PaperScenario, int]] = []
    for scenario, runs in runs_of.items():
        results[scenario] = _load(store, scenario, seeds)
        missing[scenario] = [run for run in runs if run not in results[scenario]]
        if missing[scenario]:
            tasks.extend((scenario, seed) for seed in range(seeds))
    start(len(tasks))

    outcomes_of: dict[PaperScenario, dict[int, list[RunOutcome]]] = {}
    with worker_pool(workers) as pool:
        jobs = {
            pool.submit(run_seed, scenario, missing[scenario], seed): (scenario, seed)
            for scenario, seed in tasks
        }
        for job in as_completed(jobs):
            scenario, seed = jobs[job]
            outcomes_by_seed = outcomes_of.setdefault(scenario, {})
            outcomes_by_seed[seed] = job.result()
            advance()
            if len(outcomes_by_seed) == seeds:
                for i, run in enumerate(missing[scenario]):
                    run_outcomes = [outcomes_by_seed[seed][i] for seed in range(seeds)]
                    results[scenario][run] = run_outcomes
                _save(store, scenario, seeds, results[scenario])

    return {
        (scenario, run): results[scenario][run]
        for scenario, runs in runs_of.items()
        for run in runs
    }


class _File(msgspec.Struct):
    """The runs of one scenario, and what they were made with."""

    version: str
    seeds: int
    runs: list[tuple[Run, list[RunOutcome]]]


def _path(store: Path, scenario: PaperScenario) -> Path:
    """Return the path of a scenario's file."""
    fields = (scenario.dataset, scenario.split, scenario.stage)
    name = "-".join(str(field) for field in fields if field)
    return store / f"{name}-{bytes(scenario_key(scenario)).hex()}.json"


def _save(store: Path | None, scenario: PaperScenario, seeds: int, results: RunResults) -> None:
    """Write the runs of a scenario, where there is a store."""
    if store is None:
        return
    store.mkdir(parents=True, exist_ok=True)
    file = _File(__version__, seeds, list(results.items()))
    write_atomically(_path(store, scenario), msgspec.json.encode(file))


def _load(store: Path | None, scenario: PaperScenario, seeds: int) -> RunResults:
    """Return the stored runs of a scenario; none of another version or number of seeds."""
    if store is None or not _path(store, scenario).is_file():
        return {}
    try:
        file = msgspec.json.decode(_path(store, scenario).read_bytes(), type=_File)
    except msgspec.DecodeError:  # of a version with other fields
        return {}
    if file.version != __version__ or file.seeds != seeds:
        return {}
    return dict(file.runs)
