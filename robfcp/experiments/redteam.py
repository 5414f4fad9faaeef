"""Every attack against every defense: what each costs in coverage and set size, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.defense import Consensus, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import ATTACKS, AdaptiveAttack, Attack, get_attack
from robfcp.experiments.baselines import (
    BASELINES,
    FEDCP_QQ,
    ON_REPORTS,
    baseline_thresholds,
)
from robfcp.experiments.scenarios import Scenario, ScenarioConfig, apply_attack, make_scenario
from robfcp.experiments.simulation import (
    ReceivedReports,
    ResultRow,
    average_rows,
    evaluate_defenses,
    worker_pool,
)
from robfcp.federation import Federation
from robfcp.figures import new_axes, plot_heatmap
from robfcp.reports import DEFAULT_MIN_CELL_COUNT

DEFENSES = ("none", FEDCP_QQ, "rob-fcp", "rob-fcp-released", Consensus.name)
MALICIOUS_FRACTIONS = (0.1, 0.2, 0.4)


def redteam(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    defenses: Sequence[str] = DEFENSES,
    malicious_fractions: Sequence[float] = MALICIOUS_FRACTIONS,
    n_clients: int = 20,
    trials: int = 50,
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **options: Any,
) -> tuple[ResultRow, ...]:
    """Return a row for every attack, fraction of malicious clients and defense.

    They are means over the runs. Runs of one seed and fraction have the same clients. An adaptive
    attack searches against each defense by itself.

    Parameters
    ----------
    probabilities, labels : array_like
        Of the samples, as in `simulate`.
    attacks, defenses : sequence of str
        Their names; baselines count as defenses.
    malicious_fractions : sequence of float
        Of the clients.
    n_clients : int
        The number of clients.
    trials : int
        Steps of the free search of adaptive attacks.
    n_runs : int
        The number of runs.
    rng : int
        The seed of all randomness.
    progress : callable
        Called after every run of a defense.
    options
        What else `ScenarioConfig` takes, `min_cell_count` among it.
    """
    for attack in attacks:
        get_attack(attack)
    if not attacks or not defenses or not malicious_fractions or n_runs < 1:
        raise RobfcpError("redteam: give at least one attack, defense, fraction and run")

    rows: list[ResultRow] = []
    for fraction, seed in product(malicious_fractions, range(n_runs)):
        config = ScenarioConfig(malicious_fraction=fraction, n_clients=n_clients, **options)
        scenario = make_scenario(probabilities, labels, config, np.random.default_rng([rng, seed]))
        for attack_index, attack in enumerate(attacks):
            attack_seed = [rng, seed, attack_index]
            for row in _attack_rows(
                attack, scenario, defenses, config, trials, seed=seed, attack_seed=attack_seed
            ):
                rows.append(row)
                progress()
    cells = average_rows(rows, "attack", "malicious_fraction", "defense")
    return tuple(sorted(cells, key=lambda cell: attacks.index(cell.attack)))


def _attack_rows(
    name: str,
    scenario: Scenario,
    defenses: Sequence[str],
    config: ScenarioConfig,
    trials: int,
    *,
    seed: int,
    attack_seed: Sequence[int],
) -> Iterator[ResultRow]:
    """Yield a row a defense under one attack; an adaptive attack is made anew for each of them."""
    attack = get_attack(name)
    pairings: list[tuple[Attack, Sequence[str]]] = [(attack, defenses)]
    if isinstance(attack, AdaptiveAttack):
        pairings = [
            (_informed_attack(attack, defense, scenario, config, trials), [defense])
            for defense in defenses
        ]
    for paired_attack, paired_defenses in pairings:
        generator = np.random.default_rng(attack_seed)
        attacked = apply_attack(paired_attack, scenario, generator)
        yield from evaluate_defenses(
            scenario, attacked, paired_defenses, config, attack=name, seed=seed
        )


def worst_cells(cells: Sequence[ResultRow]) -> dict[str, ResultRow]:
    """Return each defense's row with the greatest error of coverage, either way.

    Of equals it is the one whose sets grow or shrink most.

    Parameters
    ----------
    cells : sequence of ResultRow
        What `redteam` returns.
    """

    def harm(cell: ResultRow) -> tuple[float, float]:
        set_size_change = abs(cell.set_size - cell.benign_set_size)
        return round(abs(cell.coverage_error), 9), set_size_change

    by_defense: dict[str, list[ResultRow]] = {}
    for cell in cells:
        by_defense.setdefault(cell.defense, []).append(cell)
    return {defense: max(group, key=harm) for defense, group in by_defense.items()}


def search_attacks(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    defenses: Sequence[str] = (Consensus.name,),
    malicious_fractions: Sequence[float] = MALICIOUS_FRACTIONS,
    n_clients: int = 20,
    trials: int = 400,
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return a record a defense, fraction and seed, the worst first.

    Each says what an attacker who knows the defense and all benign reports reaches to lower
    coverage, beyond what the same reports do to FCP, undefended. The parameters are those of
    `redteam`.
    """
    records = []
    for fraction, seed, defense in product(malicious_fractions, range(n_runs), defenses):
        config = ScenarioConfig(malicious_fraction=fraction, n_clients=n_clients, **options)
        scenario = make_scenario(probabilities, labels, config, np.random.default_rng([rng, seed]))
        informed = _informed_attack(AdaptiveAttack(), defense, scenario, config, trials)
        result = replace(informed, beyond=True).search(
            scenario.federation, scenario.malicious, np.random.default_rng([rng, seed])
        )
        defended, undefended = evaluate_defenses(
            scenario, result.federation, (defense, "none"), config, attack=result.family, seed=seed
        )
        records.append(
            {
                "defense": defense,
                "malicious_fraction": fraction,
                "seed": seed,
                "error": defended.coverage_error,
                "undefended": undefended.coverage_error,
                "harm": defended.coverage_error - min(undefended.coverage_error, 0.0),
                "n_false_positives": defended.n_flagged - defended.n_detected,
                "attack_family": result.family,
            }
        )
        progress()
    return sorted(records, key=lambda record: record["harm"])


# A name of the full comparison -> the outputs, and their column of natural sites.
COMPARED_DATASETS: dict[str, tuple[str, str | None]] = {
    "stroke": ("stroke", "site"),
    "sleepers": ("sleep", "site"),
    "tinyimagenet": ("tinyimagenet", None),
    "mnist": ("mnist", None),
    "cifar10": ("cifar10", None),
    "pathmnist": ("pathmnist", None),
    "sleep": ("sleep", None),
    "countries": ("stroke", "country"),
    "heart": ("heart", "site"),
}
COMPARED_ATTACKS = ("coverage", "efficiency", "truncation")
MIN_CLIENT_SIZE = 50  # samples; smaller natural sites take no part in the comparison

# The fraction of malicious clients in each step of the full comparison; one at least.
STEPS = {"1 client": 0.0, "10%": 0.1, "20%": 0.2, "40%": 0.4}
NO_ATTACK = "none"

# What is shown of a method without attack.
BENIGN_MEASURES = ("coverage", "worst_class_coverage", "worst_client_coverage", "growth")
METHODS = ("none", "rob-fcp", "rob-fcp-released", *BASELINES, Consensus.name)

# Methods that are run on default reports, and on exact counts beside them.
METHODS_ON_REPORTS = ("none", "rob-fcp", "rob-fcp-released", *ON_REPORTS, Consensus.name)
EXACT_COUNTS = "exact counts"


def full_comparison(
    data: Sequence[str] = tuple(COMPARED_DATASETS),
    *,
    workers: int = 1,
    progress: Callable[[], None] = lambda: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Return a record a federation, step (those of `STEPS`, and no attack), attack and method.

    The methods are those of `METHODS`. Defenses estimate themselves how many clients are malicious;
    this package's guarantees are given the number. Those of `METHODS_ON_REPORTS` get default
    reports, and once more exact counts (`min_cell_count` 1); other papers' methods get exact
    counts, since their clients send no reports of this package.

    Parameters
    ----------
    data : sequence of str
        Keys of `COMPARED_DATASETS`.
    workers : int
        The number of processes.
    progress : callable
        Called after every federation.
    options
        `attacks`, `n_runs` and `rng` as in `redteam`. Artificial federations have `n_clients` by
        Dirichlet(`beta`), natural ones are as they are.
    """
    unknown = [name for name in data if name not in COMPARED_DATASETS]
    if unknown:
        raise RobfcpError(
            f"{unknown[0]}: is not among the compared data sets; "
            f"choose from {', '.join(COMPARED_DATASETS)}"
        )
    records: list[dict[str, Any]] = []
    with worker_pool(min(workers, len(data))) as pool:
        for dataset_records in pool.map(partial(_compare_on_dataset, **options), data):
            records.extend(dataset_records)
            progress()
    return records


def _compare_on_dataset(
    name: str,
    attacks: Sequence[str] = COMPARED_ATTACKS,
    n_clients: int = 20,
    beta: float = 0.5,
    n_runs: int = 1,
    rng: int = 0,
) -> list[dict[str, Any]]:
    """Return the records of one federation of the full comparison."""
    dataset, column = COMPARED_DATASETS[name]
    if column is None:
        data = outputs.load(dataset)
        partition: dict[str, Any] = {"n_clients": n_clients, "beta": beta}
    else:
        data = outputs.load(dataset, outputs.NATURAL)
        site_of_sample = data.column(column)
        partition = {"partition": site_of_sample, "min_client_size": MIN_CLIENT_SIZE}
        n_clients = len(partitions.partition_by_site(site_of_sample, MIN_CLIENT_SIZE))

    # Steps that come to the same number of malicious clients are one, under the first name.
    steps = {0: NO_ATTACK}
    for step, fraction in STEPS.items():
        steps.setdefault(max(1, round(fraction * n_clients)), step)

    methods_of_kind = {DEFAULT_MIN_CELL_COUNT: METHODS, 1: METHODS_ON_REPORTS}
    records = []
    for (n_malicious, step), (min_cell_count, methods) in product(
        steps.items(), methods_of_kind.items()
    ):
        cells = redteam(
            data.probabilities,
            data.labels,
            attacks=attacks if n_malicious else attacks[:1],
            defenses=methods,
            malicious_fractions=(n_malicious / n_clients,),
            n_runs=n_runs,
            rng=rng,
            n_malicious_known=False,
            min_cell_count=min_cell_count,
            **partition,
        )
        for cell in cells:
            attack = cell.attack if n_malicious else ""
            records.append({"data": name, "step": step, **_record(cell), "attack": attack})
    return records


def ranking(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one record for each method: means over the federations.

    A method that was run on default reports and on exact counts has a record for each, and
    `min_cell_count` says which. A record has what the method costs without attack, and for
    each step the least error of coverage and the largest growth of the sets under any attack.

    Parameters
    ----------
    records : sequence of mapping
        What `full_comparison` returns.
    """
    records_of_method: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        key = (record["defense"], record["min_cell_count"])
        records_of_method.setdefault(key, []).append(record)

    lines = []
    for (method, min_cell_count), method_records in records_of_method.items():
        line: dict[str, Any] = {"method": method, "min_cell_count": min_cell_count}
        for step in (NO_ATTACK, *STEPS):
            step_records = [record for record in method_records if record["step"] == step]
            if step == NO_ATTACK:
                for measure in BENIGN_MEASURES:
                    values = [record[measure] for record in step_records]
                    line[measure] = float(np.mean(values))
            elif step_records:
                line[step] = _worst_means(step_records)
        lines.append(line)
    return lines


def is_on_exact_counts(line: Mapping[str, Any]) -> bool:
    """Return whether a method was given exact counts in place of the reports that it is for.

    Parameters
    ----------
    line : mapping
        A record of `ranking`.
    """
    return line["min_cell_count"] == 1 and line["method"] in METHODS_ON_REPORTS


def _worst_means(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the means over federations of the least error of coverage and the largest growth."""
    least_errors: dict[str, float] = {}
    largest_growths: dict[str, float] = {}
    for record in records:
        name = record["data"]
        least_errors[name] = min(record["error"], least_errors.get(name, np.inf))
        largest_growths[name] = max(record["growth"], largest_growths.get(name, -np.inf))
    mean_error = np.mean(list(least_errors.values()))
    mean_growth = np.mean(list(largest_growths.values()))
    return float(mean_error), float(mean_growth)


def plot_ranking(lines: Sequence[Mapping[str, Any]]) -> NDArray[Any]:
    """Return two heat maps, method by step: coverage lost at worst, and growth of the sets.

    Parameters
    ----------
    lines : sequence of mapping
        What `ranking` returns.
    """
    steps = [step for step in STEPS if step in lines[0]]
    methods = []
    for line in lines:
        kind = f", {EXACT_COUNTS}" if is_on_exact_counts(line) else ""
        methods.append(line["method"] + kind)
    values = np.empty((len(lines), len(steps), 2))
    for row, line in enumerate(lines):
        for column, step in enumerate(steps):
            error, growth = line[step]
            values[row, column] = error, growth - 1
    return _two_maps(values, methods, steps, ", at worst")


def _two_maps(
    values: NDArray[Any], rows: Sequence[str], columns: Sequence[str], title_end: str = ""
) -> NDArray[Any]:
    """Return heat maps of (R, C, 2) errors of coverage and growths of the sets."""
    axes = new_axes(2, 1.4 + 0.3 * len(rows))
    for i, title in enumerate(("coverage - benign", "set size / benign - 1")):
        plot_heatmap(values[..., i], rows, columns, title=title + title_end, ax=axes[i])
    return axes


def to_records(cells: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """Return the rows as plain dictionaries, each defense's worst marked."""
    worst_by_defense = worst_cells(cells)
    return [{**_record(cell), "worst": worst_by_defense[cell.defense] is cell} for cell in cells]


def _record(cell: ResultRow) -> dict[str, Any]:
    """Return the fields of a row, with its error and its growth."""
    return {**asdict(cell), "error": cell.coverage_error, "growth": cell.set_size_ratio}


def plot_redteam(cells: Sequence[ResultRow]) -> NDArray[Any]:
    """Return two heat maps, attack and fraction by defense: coverage error and growth of the sets.

    Each defense's worst value is framed.

    Parameters
    ----------
    cells : sequence of ResultRow
        What `redteam` returns.
    """
    from matplotlib.patches import Rectangle

    attacks = list(dict.fromkeys((cell.attack, cell.malicious_fraction) for cell in cells))
    defenses = list(dict.fromkeys(cell.defense for cell in cells))
    values = np.full((len(attacks), len(defenses), 2), np.nan)
    for cell in cells:
        row = attacks.index((cell.attack, cell.malicious_fraction))
        column = defenses.index(cell.defense)
        values[row, column] = cell.coverage_error, cell.set_size_ratio - 1

    titles = [f"{attack} {fraction:.0%}" for attack, fraction in attacks]
    axes = _two_maps(values, titles, defenses)
    worst_rows = np.nanargmax(np.abs(values), axis=0)
    for (column, map_index), row in np.ndenumerate(worst_rows):
        frame = Rectangle(
            (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="crimson", linewidth=2
        )
        axes[map_index].add_patch(frame)
    return axes


def _informed_attack(
    attack: AdaptiveAttack, defense: str, scenario: Scenario, config: ScenarioConfig, trials: int
) -> AdaptiveAttack:
    """Return the attack by somebody who knows the defense and the number that it is given."""
    informed = replace(attack, coverage=config.coverage, trials=trials)
    if defense in BASELINES:
        return replace(informed, defense_rule=partial(_median_bin, defense, scenario, config))
    n_malicious = len(scenario.malicious) if config.n_malicious_known else None
    return replace(
        informed,
        defense_rule=get_defense(defense, n_malicious, exclude_exactly=config.exclude_exactly),
        min_cell_count=config.min_cell_count,
    )


def _median_bin(
    baseline: str, scenario: Scenario, config: ScenarioConfig, federation: Federation
) -> int | None:
    """Return the bin of the median of a baseline's thresholds; None where it is infinite.

    Of several thresholds an attacker aims at the one in the middle.
    """
    received = ReceivedReports(federation, config.min_cell_count).of_baseline(baseline)
    thresholds = baseline_thresholds(
        baseline, received, config.coverage, scenario.scores, len(scenario.malicious)
    )
    upper_edges = federation.binning.upper_edges
    bin_index = int(np.searchsorted(upper_edges, np.median(thresholds)))
    return bin_index if bin_index < federation.binning.n_bins else None
