"""Tables: ours beside the paper's and the closed form, all cells compared, bounds and times."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from robfcp.defense import Consensus, get_defense
from robfcp.experiments.outputs import entries
from robfcp.experiments.paper import ranks, runner, theorem_1
from robfcp.experiments.paper.figures import METHOD_STYLES
from robfcp.experiments.paper.paper_tables import BASELINES, DATASETS, ExperimentCase
from robfcp.experiments.paper.runner import CONSENSUS, FCP, ROB_FCP, ROB_FCP_RELEASED
from robfcp.guarantees import certify_threshold

# Tables of attacks on clients; the others vary parameters of Rob-FCP.
COMPARED_TABLES = (
    "main",
    "known",
    "unknown",
    "benign",
    "beta-sweep",
    "mimic",
    "evasion",
    "gaussian-noise",
    "attributes",
    "misspecified",
    "scores",
)
MIN_LEAD = 0.005  # coverage: a smaller difference between two methods does not count
LARGE_ERROR = 0.02  # coverage: an error beyond this is counted in the ranking

Row = Mapping[str, Any]
Cell = tuple[str, Mapping[str, Row]]  # a table, and every method's row in one setting of it


def make_rows(cases: Iterable[ExperimentCase], results: runner.Results) -> list[dict[str, Any]]:
    """Return a row a case, in their order; a case that comes twice is one row.

    Rows are means over seeds with standard deviations; `closed_form_coverage` is given where there
    is one, `coverage_all_clients` is on all clients' test halves, `split` is how clients were made.

    Parameters
    ----------
    cases : iterable of ExperimentCase
        The cells of a table.
    results : mapping
        What `run_cases` returns.
    """
    accuracy = {}
    for entry in entries():
        key = (entry["dataset"], entry["split"], entry["stage"])
        accuracy[key] = float(entry["accuracy"])

    rows = {}
    for case in cases:
        scenario = case.scenario
        model_accuracy = accuracy[scenario.dataset, scenario.split, scenario.stage]
        outcomes = results[scenario, case.run]
        rows[scenario, case.run, case.variant] = _case_row(case, outcomes, model_accuracy)
    return list(rows.values())


def _case_row(
    case: ExperimentCase, outcomes: Sequence[runner.RunOutcome], model_accuracy: float
) -> dict[str, Any]:
    """Return the row of one case."""
    published_coverage, published_set_size = case.published or (None, None)
    return {
        "dataset": case.scenario.dataset,
        "model": case.scenario.stage,
        "accuracy": model_accuracy,
        "split": _split_text(case.scenario),
        "n_clients": runner.n_clients_of(case.scenario),
        "malicious_fraction": case.run.malicious_fraction,
        "number_given": case.number_given,
        "attack": case.run.attack,
        "variant": case.variant,
        "method": case.run.method,
        "coverage": _mean(outcomes, "coverage"),
        "coverage_sd": _standard_deviation(outcomes, "coverage"),
        "set_size": _mean(outcomes, "set_size"),
        "set_size_sd": _standard_deviation(outcomes, "set_size"),
        "benign_coverage": _mean(outcomes, "benign_coverage"),
        "benign_set_size": _mean(outcomes, "benign_set_size"),
        "coverage_all_clients": _mean(outcomes, "coverage_all_clients"),
        "closed_form_coverage": _mean(outcomes, "closed_form_coverage"),
        "published_coverage": published_coverage,
        "published_set_size": published_set_size,
        "assumed_n_malicious": _mean(outcomes, "assumed_n_malicious"),
        "n_flagged": _mean(outcomes, "n_flagged"),
        "n_detected": _mean(outcomes, "n_detected"),
        "fraction_given": case.run.fraction_given,
        "malicious_maliciousness": _mean(outcomes, "malicious_maliciousness"),
        "benign_maliciousness": _mean(outcomes, "benign_maliciousness"),
        "first_bin": _mean(outcomes, "first_bin"),
        "last_bin": _mean(outcomes, "last_bin"),
        "n_runs": len(outcomes),
    }


def _split_text(scenario: runner.PaperScenario) -> str:
    """Return how the samples are split, in words."""
    if scenario.attribute:
        return scenario.attribute
    if scenario.beta == 0:
        return "iid"
    return f"beta={scenario.beta:g}"


def _mean(outcomes: Sequence[runner.RunOutcome], name: str) -> float | None:
    """Return the mean of a field over the outcomes that have it; None where none has."""
    values = [getattr(outcome, name) for outcome in outcomes]
    values = [value for value in values if value is not None]
    if not values:
        return None
    return float(np.mean(values))


def _standard_deviation(outcomes: Sequence[runner.RunOutcome], name: str) -> float:
    """Return the standard deviation of a field over the outcomes."""
    return float(np.std([getattr(outcome, name) for outcome in outcomes], ddof=1))


def to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as CSV with a header, floats to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {
            name: f"{value:.6g}" if isinstance(value, float) else value
            for name, value in row.items()
        }
        writer.writerow(cells)
    return text.getvalue()


def coverage_error(row: Row) -> float:
    """Return coverage minus that of the benign clients alone."""
    return float(row["coverage"] - row["benign_coverage"])


def setting_text(row: Row) -> str:
    """Return a row's setting in words."""
    is_attacked = bool(row["malicious_fraction"])
    texts = [row["dataset"]]
    if row["model"] != "final":
        texts.append(row["model"])
    texts.append(row["split"])
    if is_attacked:
        texts.append(row["attack"])
        texts.append(f"{row['malicious_fraction']:.0%}")
    if row["variant"] not in row["attack"]:
        texts.append(row["variant"])
    if row["number_given"] == "unknown" and is_attacked:
        texts.append("number estimated")
    return " ".join(dict.fromkeys(text for text in texts if text))


def table_cells(contents: Mapping[str, Sequence[Row]]) -> list[Cell]:
    """Return every setting once, in the order of the tables.

    Parameters
    ----------
    contents : mapping of str to sequence of rows
        The tables by name.
    """
    cells: dict[tuple[Any, ...], Cell] = {}
    for table in COMPARED_TABLES:
        settings: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in contents.get(table, ()):
            settings.setdefault(_setting_key(row), {})[row["method"]] = row
        for key, rows in settings.items():
            if CONSENSUS in rows:
                cells.setdefault(key, (table, rows))
    return list(cells.values())


def _setting_key(row: Row) -> tuple[Any, ...]:
    """Return what tells a row's setting from others, whichever table it is in."""
    names = ("dataset", "model", "split", "malicious_fraction", "attack", "fraction_given")
    is_aps = row["variant"] == "aps"
    return (*(row[name] for name in names), is_aps)


def ranking(cells: Sequence[Cell]) -> Sequence[tuple[str, ...]]:
    """Return a line a method over all cells that have it.

    It has the mean and the worst distance from the benign clients alone, where that is, and how
    often the method is more than LARGE_ERROR off.

    Parameters
    ----------
    cells : sequence
        What `table_cells` returns.
    """
    rows_of_method: dict[str, list[Row]] = {}
    for _, rows in cells:
        for method, row in rows.items():
            rows_of_method.setdefault(method, []).append(row)

    lines = []
    for method, method_rows in rows_of_method.items():
        errors = np.array([coverage_error(row) for row in method_rows])
        distances = np.abs(errors)
        worst = int(distances.argmax())
        n_large = int((distances > LARGE_ERROR).sum())
        _, _, label = METHOD_STYLES[method]
        lines.append(
            (
                label,
                f"{distances.mean():.4f}",
                f"{errors[worst]:+.3f}",
                setting_text(method_rows[worst]),
                f"{n_large} of {len(method_rows)}",
            )
        )
    return lines


def losses_to_baselines(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return a row a cell in which the best baseline beats Consensus by more than MIN_LEAD.

    That is, it is nearer to the benign clients alone. The row says by how much, and every method's
    error and set size.

    Parameters
    ----------
    cells : sequence
        What `table_cells` returns.
    """
    losses = []
    for table, rows in cells:
        distances = {method: abs(coverage_error(row)) for method, row in rows.items()}
        leads = [
            (distances[CONSENSUS] - distances[method], method)
            for method in BASELINES
            if method in rows
        ]
        lead, best_method = max(leads, default=(0.0, ""))
        if lead <= MIN_LEAD:
            continue
        loss = {
            "table": table,
            "setting": setting_text(rows[CONSENSUS]),
            "best_baseline": best_method,
            "lead": lead,
        }
        for method in (FCP, ROB_FCP, ROB_FCP_RELEASED, CONSENSUS):
            if method in rows:
                loss[f"{method} error"] = coverage_error(rows[method])
                loss[f"{method} set size"] = rows[method]["set_size"]
        losses.append(loss)
    return sorted(losses, key=lambda loss: -loss["lead"])


# Of the quantile at 40% malicious on an RTX A6000, as the paper states them.
PUBLISHED_SECONDS = {
    "mnist": 0.5284,
    "cifar10": 0.5169,
    "tinyimagenet": 0.5563,
    "sleep": 0.2227,
    "pathmnist": 0.3032,
}

# Data sets and attacks of the table of bounds; the paper's figure is the first.
BOUND_SCENARIOS = (
    ("tinyimagenet", "gaussian"),
    ("tinyimagenet", "coverage"),
    ("pathmnist", "coverage"),
    ("sleep", "coverage"),
)
BOUND_FRACTIONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
CERTIFICATE_CONFIDENCE = 0.95


def bound_rows(seeds: int) -> list[dict[str, Any]]:
    """Return published and certified intervals beside measured coverage.

    A row is a data set, an attack and a fraction of malicious clients.

    Parameters
    ----------
    seeds : int
        The number of seeds that a row is the mean of.
    """
    rows = []
    for dataset, attack in BOUND_SCENARIOS:
        scenario = runner.PaperScenario(dataset, "iid")
        trials = [runner.make_trial(scenario, seed) for seed in range(seeds)]
        for fraction in BOUND_FRACTIONS:
            trial_rows = [
                _trial_bounds(trial, attack, fraction, seed) for seed, trial in enumerate(trials)
            ]
            means = {}
            for name in trial_rows[0]:
                means[name] = float(np.mean([row[name] for row in trial_rows]))
            rows.append(
                {
                    "dataset": dataset,
                    "attack": attack,
                    "malicious_fraction": fraction,
                    **means,
                    "n_runs": seeds,
                }
            )
    return rows


def _trial_bounds(
    trial: runner.Trial, attack: str, malicious_fraction: float, seed: int
) -> dict[str, float]:
    """Return the measured coverage, the published and the certified interval of one trial."""
    n_malicious = round(malicious_fraction * trial.federation.n_clients)
    benign_mask = trial.benign(n_malicious)
    federation = trial.attacked(attack, n_malicious, np.random.default_rng(seed))

    rob_fcp_mask = get_defense(ROB_FCP, n_malicious).assess(federation).benign_mask
    rob_fcp_bin = ranks.table_bin(federation, runner.LEVEL, rob_fcp_mask)
    rob_fcp_coverage, _ = trial.measure(rob_fcp_bin, benign_mask)
    outliers = Consensus().find_outliers(federation)
    consensus_bin, _ = runner.consensus_threshold(n_malicious, federation, outliers)
    consensus_coverage, _ = trial.measure(consensus_bin, benign_mask)
    certified = certify_threshold(federation, consensus_bin, n_malicious, CERTIFICATE_CONFIDENCE)

    theorem_setting = theorem_1.TheoremSetting(
        n_benign_clients=int(benign_mask.sum()),
        n_malicious=n_malicious,
        n_b=int(federation.sample_sizes[benign_mask].min()),
        n_malicious_samples=int(federation.sample_sizes[~benign_mask].sum()),
        n_bins=100,
    )
    printed = theorem_1.theorem_1(theorem_setting)
    dkw = theorem_1.theorem_1(theorem_setting, theorem_1.dkw_radius)
    released_code = theorem_1.released_code_bound(theorem_setting)
    return {
        "rob_fcp_coverage": rob_fcp_coverage,
        "theorem_1_lower": printed[0],
        "theorem_1_upper": printed[1],
        "dkw_lower": dkw[0],
        "dkw_upper": dkw[1],
        "released_code_lower": released_code[0],
        "released_code_upper": released_code[1],
        "consensus_coverage": consensus_coverage,
        "certificate_lower": certified.lower,
        "certificate_upper": certified.upper,
    }


def runtime_rows(repeats: int) -> list[dict[str, Any]]:
    """Return median seconds from the reports to the threshold, a row a data set.

    Of 100 clients 40 attack coverage. Every repeat has a federation of its own, since one may
    remember what was computed of it.

    Parameters
    ----------
    repeats : int
        How many times each defense is timed.
    """
    rows = []
    for dataset in DATASETS.values():
        scenario = runner.PaperScenario(dataset, "beta0.5", "final", 0.5)
        trial = runner.make_trial(scenario, 0)
        row: dict[str, Any] = {"dataset": dataset, "published": PUBLISHED_SECONDS[dataset]}
        for method in (ROB_FCP, ROB_FCP_RELEASED, CONSENSUS):
            seconds = [_time_defense(trial, method) for _ in range(repeats)]
            row[method] = float(np.median(seconds))
        rows.append(row)
    return rows


def _time_defense(trial: runner.Trial, method: str) -> float:
    """Return the seconds of one defense from fresh reports to the threshold."""
    defense = get_defense(method, 40)
    federation = trial.attacked("coverage", 40, np.random.default_rng(0))
    start = perf_counter()
    benign_mask = defense.assess(federation).benign_mask
    ranks.table_bin(federation, runner.LEVEL, benign_mask)
    return perf_counter() - start
