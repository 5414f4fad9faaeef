"""Simulations on model outputs: federations without attack, attacked and defended, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import check_integer
from robfcp.calibration import CoverageLevel, calibrate
from robfcp.defense import Consensus, Defense, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments import baselines
from robfcp.experiments.attacks import Attack, get_attack
from robfcp.experiments.coarsening import as_default_reports, as_reports_by_class
from robfcp.experiments.scenarios import (
    Scenario,
    ScenarioConfig,
    Thresholds,
    apply_attack,
    make_scenario,
)
from robfcp.federation import Federation
from robfcp.figures import GRAY, _method_styles, new_axes, style

MEASURES = ("coverage", "set_size", "worst_class_coverage", "worst_client_coverage")


@dataclass(frozen=True)
class ResultRow:
    """One defense or baseline under one attack: one run, or the mean of several.

    Fields with `benign_` are what the exact counts of the benign clients alone give. The worst
    class and the worst client are the least covered of those with test samples.

    Attributes
    ----------
    attack, defense : str
        Their names.
    malicious_fraction : float
        The fraction of the clients that is malicious.
    n_clients, n_malicious : int
        The number of all and of the malicious clients.
    seed : int
        Of the run.
    threshold : float
        With by="class" there is a threshold for each class; this is the largest.
    assumed_n_malicious : float
        The number of malicious clients that the defense was given or assumes.
    n_flagged, n_detected : float
        The number of clients that the defense excludes, and of the malicious ones among them.
    by : "class" or None
        Whether there is a threshold for each class.
    n_runs : int
        How many runs the row is the mean of.
    min_cell_count : int
        Of the reports that it was given; 1 where counts were exact.
    """

    attack: str
    defense: str
    malicious_fraction: float
    n_clients: int
    n_malicious: int
    seed: int
    threshold: float
    assumed_n_malicious: float
    n_flagged: float
    n_detected: float
    by: Literal["class"] | None
    coverage: float
    set_size: float
    worst_class_coverage: float
    worst_client_coverage: float
    benign_coverage: float
    benign_set_size: float
    benign_worst_class_coverage: float
    benign_worst_client_coverage: float
    n_runs: int = 1
    min_cell_count: int = 1

    @property
    def coverage_error(self) -> float:
        """Coverage minus that of the benign clients alone."""
        return self.coverage - self.benign_coverage

    @property
    def set_size_ratio(self) -> float:
        """Set size over that of the benign clients alone; NaN where that is 0."""
        if self.benign_set_size == 0:
            return float("nan")
        return self.set_size / self.benign_set_size


_BENIGN = tuple(f"benign_{name}" for name in MEASURES)
AVERAGED = ("threshold", "assumed_n_malicious", "n_flagged", "n_detected", *MEASURES, *_BENIGN)


def average_rows(rows: Sequence[ResultRow], *by: str) -> tuple[ResultRow, ...]:
    """Return the means of the rows that agree in some fields, in the order they first come.

    Parameters
    ----------
    rows : sequence of ResultRow
        Single runs.
    by : str
        Names of fields.
    """
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in by)
        groups.setdefault(key, []).append(row)

    averages = []
    for group in groups.values():
        means: dict[str, Any] = {name: _mean(group, name) for name in AVERAGED}
        averages.append(replace(group[0], n_runs=len(group), **means))
    return tuple(averages)


def simulate(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attack: str | Attack = "coverage",
    defenses: Sequence[str | Defense] = ("none", "rob-fcp", Consensus.name),
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **options: Any,
) -> tuple[ResultRow, ...]:
    """Return a table with a row a seed and defense, each beside what the benign clients alone give.

    The samples are split among the clients (iid, or Dirichlet(beta) over labels, or by the data's
    own `partition`); each keeps a random half for calibration and half for testing; a fraction of
    the clients attacks. Coverage and set size are those of the benign clients' test halves. The
    server receives default reports, or exact counts with `min_cell_count=1`; what the benign
    clients alone give is that of their exact counts.

    Parameters
    ----------
    probabilities : array_like, shape (n, C)
        A model's class probabilities.
    labels : array_like, shape (n,)
        True class numbers.
    attack : str or Attack
        The name of an attack, or an attack of your own.
    defenses : Sequence[str or Defense]
        Names of defenses or of baselines (`robfcp.experiments.baselines.BASELINES`), or defenses
        of your own.
    n_runs : int
        The number of runs.
    rng : int
        The seed of all randomness.
    progress : callable
        Called after every row, for a progress bar.
    options
        What `ScenarioConfig` takes: `malicious_fraction`, `n_clients`, `beta`, `coverage`,
        `min_cell_count` and so on.

    Returns
    -------
    tuple of ResultRow
        Seed by seed, the defenses in the order given.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.experiments import simulate
    >>> rng = np.random.default_rng(0)
    >>> probabilities = rng.dirichlet([0.3] * 4, 2000)
    >>> labels = (probabilities.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    >>> rows = simulate(probabilities, labels, n_clients=20, n_runs=1)
    >>> for row in rows:
    ...     print(row.defense, row.n_malicious, row.n_detected, f"{row.coverage_error:+.2f}")
    none 8 0 -0.06
    rob-fcp 8 8 -0.01
    consensus 8 8 -0.01
    """
    check_integer("n_runs", n_runs, "give the number of runs", 1)
    check_integer("rng", rng, "give a seed")
    config = ScenarioConfig(**options)
    resolved_attack = get_attack(attack) if isinstance(attack, str) else attack
    if not hasattr(resolved_attack, "stage"):
        raise RobfcpError(
            f"attack: {resolved_attack!r:.40} is a bare function; wrap it: ScoreAttack(f)"
        )
    for defense in defenses:
        if not isinstance(defense, str) and not hasattr(defense, "name"):
            raise RobfcpError(f"defense: {defense!r:.40} has no name; give it one, name = 'mine'")

    attack_name = attack if isinstance(attack, str) else attack.name
    rows = []
    for seed in range(n_runs):
        generator = np.random.default_rng([rng, seed])
        scenario = make_scenario(probabilities, labels, config, generator)
        attacked = apply_attack(resolved_attack, scenario, generator)
        for row in evaluate_defenses(
            scenario, attacked, defenses, config, attack=attack_name, seed=seed
        ):
            rows.append(row)
            progress()
    return tuple(rows)


def evaluate_defenses(
    scenario: Scenario,
    attacked: Federation,
    defenses: Sequence[str | Defense],
    config: ScenarioConfig,
    *,
    attack: str,
    seed: int,
) -> Iterator[ResultRow]:
    """Yield a row a defense: what it makes of the attacked federation.

    Parameters
    ----------
    scenario : Scenario
        The clients before the attack, and the test data.
    attacked : Federation
        The exact counts of all clients after the attack. The server receives reports of the
        minimum cell count that is asked for, made of them.
    defenses : sequence of str or Defense
        Names of defenses or baselines, or defenses.
    config : ScenarioConfig
        What is asked for.
    attack : str
        The name of the attack, for the rows.
    seed : int
        Of the run, for the rows.
    """
    benign_federation = scenario.federation.select(scenario.benign)
    benign_calibration = calibrate(
        benign_federation, coverage=config.coverage, by=config.by, defense="none"
    )
    benign_thresholds = thresholds_of(benign_calibration.levels[0])
    benign_measures = scenario.measured(benign_thresholds).measures()
    benign_fields: Mapping[str, Any] = {
        f"benign_{name}": value for name, value in benign_measures.items()
    }

    reports = ReceivedReports(attacked, config.min_cell_count)
    for defense in defenses:
        if isinstance(defense, str) and defense in baselines.BASELINES:
            received = reports.of_baseline(defense)
            outcome = _run_baseline(defense, scenario, received, config)
        else:
            received = reports.of_defense(config.by)
            outcome = _run_defense(defense, scenario, received, config)
        measures: Mapping[str, Any] = scenario.measured(outcome.thresholds).measures()
        yield ResultRow(
            attack=attack,
            defense=outcome.name,
            malicious_fraction=config.malicious_fraction,
            n_clients=scenario.federation.n_clients,
            n_malicious=len(scenario.malicious),
            seed=seed,
            threshold=float(np.max(outcome.thresholds)),
            assumed_n_malicious=outcome.assumed_n_malicious,
            n_flagged=len(outcome.flagged_clients),
            n_detected=len(scenario.malicious_clients.intersection(outcome.flagged_clients)),
            by=config.by,
            min_cell_count=int(received.min_cell_counts.max()),
            **measures,
            **benign_fields,
        )


@dataclass(frozen=True, eq=False)
class ReceivedReports:
    """The reports that a server receives of one round, each kind made when it is needed.

    Attributes
    ----------
    exact : Federation
        Exact counts of all clients, by class too.
    min_cell_count : int
        The minimum cell count of the reports; 1 for exact counts.
    """

    exact: Federation
    min_cell_count: int

    @cached_property
    def default(self) -> Federation:
        """Default reports: coarsened counts of all classes together, and class totals."""
        return as_default_reports(self.exact, self.min_cell_count)

    @cached_property
    def by_class(self) -> Federation:
        """Reports with coarsened counts by class."""
        return as_reports_by_class(self.exact, self.min_cell_count)

    def of_defense(self, by: Literal["class"] | None) -> Federation:
        """Return default reports; reports by class where there is a threshold for each class."""
        return self.default if by is None else self.by_class

    def of_baseline(self, name: str) -> Federation:
        """Return what the clients of a baseline report.

        Methods of other papers get exact counts, since their clients send no reports of this
        package. Methods on reports get default ones; reports by class where they need them.

        Parameters
        ----------
        name : str
            A key of `BASELINES`.
        """
        if name not in baselines.ON_REPORTS:
            return self.exact
        return self.by_class if name in baselines.BY_CLASS else self.default


@dataclass(frozen=True, eq=False)
class _DefenseOutcome:
    """What a defense or baseline gives: its name, its thresholds, and whom it excludes."""

    name: str
    thresholds: Thresholds
    assumed_n_malicious: int = 0
    flagged_clients: tuple[str, ...] = ()


def _count_malicious(scenario: Scenario, attacked: Federation) -> int:
    """Return the number of malicious clients whose reports are in a federation."""
    return sum(client in scenario.malicious_clients for client in attacked.clients)


def _run_baseline(
    name: str, scenario: Scenario, attacked: Federation, config: ScenarioConfig
) -> _DefenseOutcome:
    """Return what a baseline gives; a client whose report was rejected has infinite thresholds."""
    all_clients = scenario.federation.clients
    rows = [all_clients.index(client) for client in attacked.clients]
    scores = [scenario.scores[k] for k in rows]
    n_malicious = _count_malicious(scenario, attacked)
    thresholds = baselines.baseline_thresholds(name, attacked, config.coverage, scores, n_malicious)
    if isinstance(thresholds, np.ndarray) and thresholds.ndim == 2:
        by_client = np.full((len(all_clients), thresholds.shape[1]), np.inf)
        by_client[rows] = thresholds
        thresholds = by_client
    return _DefenseOutcome(name, thresholds)


def _run_defense(
    defense: str | Defense, scenario: Scenario, attacked: Federation, config: ScenarioConfig
) -> _DefenseOutcome:
    """Return what a defense gives; infinite thresholds where the round is refused."""
    if isinstance(defense, str):
        n_malicious = None
        if config.n_malicious_known:
            n_malicious = _count_malicious(scenario, attacked)
        defense = get_defense(defense, n_malicious, exclude_exactly=config.exclude_exactly)
    try:
        calibration = calibrate(attacked, coverage=config.coverage, by=config.by, defense=defense)
    except RobfcpError:
        return _DefenseOutcome(defense.name, np.inf)
    return _DefenseOutcome(
        name=calibration.defense,
        thresholds=thresholds_of(calibration.levels[0]),
        assumed_n_malicious=calibration.n_malicious,
        flagged_clients=calibration.flagged_clients,
    )


def thresholds_of(level: CoverageLevel) -> Thresholds:
    """Return the threshold of a level, or (C,) those of the classes where each has its own."""
    if not level.strata:
        return float(level.threshold)
    return np.array([stratum.threshold for stratum in level.strata])


def summarize(rows: Sequence[ResultRow]) -> Iterator[dict[str, Any]]:
    """Yield a record a defense, means over the runs, with the benign clients alone first.

    Parameters
    ----------
    rows : sequence of ResultRow
        What `simulate` returns.
    """
    if rows:
        benign_means = {name: _mean(rows, f"benign_{name}") for name in MEASURES}
        yield {
            "defense": "benign clients alone",
            **benign_means,
            "error": 0.0,
            "n_flagged": 0.0,
            "n_detected": 0.0,
        }
    for row in average_rows(rows, "defense"):
        measures = {name: getattr(row, name) for name in MEASURES}
        yield {
            "defense": row.defense,
            **measures,
            "error": row.coverage_error,
            "n_flagged": row.n_flagged,
            "n_detected": row.n_detected,
        }


def worker_pool(workers: int | None) -> Executor:
    """Return a pool of so many processes, or one a core; of one thread of this process for one.

    Parameters
    ----------
    workers : int or None
        The number of workers; None for one a core.
    """
    if workers == 1:
        return ThreadPoolExecutor(1)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # else every process would start a thread a core
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _mean(rows: Sequence[ResultRow], name: str) -> float:
    """Return the mean of a field."""
    return float(np.mean([getattr(row, name) for row in rows]))


def to_records(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Return the rows as plain dictionaries, for JSON or a data frame."""
    return [{**asdict(row), "error": row.coverage_error} for row in rows]


@style()
def plot_comparison(rows: Sequence[ResultRow], level: float = 0.9) -> NDArray[Any]:
    """Return (2,) axes with coverage and set size of every defense under every attack.

    Marks are means over the runs, whiskers the extremes; gray is what the benign clients alone
    give.

    Parameters
    ----------
    rows : sequence of ResultRow
        Of one or more calls of `simulate`.
    level : float
        The target coverage, drawn as a line.
    """
    axes = new_axes(2)
    for ax, field, title in zip(
        axes, ("coverage", "set_size"), ("Coverage", "Set size"), strict=True
    ):
        _plot_measure(ax, rows, field)
        ax.set_title(title)
    axes[0].axhline(level, color=GRAY, linestyle=":", linewidth=1, label=f"wanted {level:g}")
    axes[0].legend()
    return axes


def _plot_measure(ax: Any, rows: Sequence[ResultRow], field: str) -> None:
    """Draw one field of the rows: attacks along the axis, the defenses beside each other."""
    attacks = list(dict.fromkeys(row.attack for row in rows))
    defenses = list(dict.fromkeys(row.defense for row in rows))

    for position, attack in enumerate(attacks):
        benign_values = [getattr(row, f"benign_{field}") for row in rows if row.attack == attack]
        ax.plot(
            [position - 0.36, position + 0.36],
            [np.mean(benign_values)] * 2,
            color=GRAY,
            linewidth=5,
            alpha=0.35,
            solid_capstyle="butt",
            label=None if position else "benign clients alone",
        )

    offsets = np.linspace(-0.2, 0.2, len(defenses)) if len(defenses) > 1 else np.zeros(1)
    for offset, (defense, (color, marker)) in zip(offsets, _method_styles(defenses), strict=True):
        runs = [_values(rows, attack, defense, field) for attack in attacks]
        means = np.array([values.mean() if values.size else np.nan for values in runs])
        low_whiskers = means - [values.min(initial=np.inf) for values in runs]
        high_whiskers = [values.max(initial=-np.inf) for values in runs] - means
        ax.errorbar(
            np.arange(len(attacks)) + offset,
            means,
            [low_whiskers, high_whiskers],
            color=color,
            marker=marker,
            linestyle="none",
            capsize=3,
            label="undefended" if defense == "none" else defense,
        )
    ax.set_xticks(range(len(attacks)), attacks)
    ax.set_xlim(-0.6, len(attacks) - 0.4)
    ax.grid(axis="x", visible=False)


def _values(
    rows: Sequence[ResultRow], attack: str, defense: str, field: str
) -> NDArray[np.float64]:
    """Return a field of all runs of one defense under one attack."""
    return np.array(
        [getattr(row, field) for row in rows if row.attack == attack and row.defense == defense]
    )
