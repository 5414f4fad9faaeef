"""Tables: ours beside the paper's and the closed form, all cells compared, bounds and times."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np

from robfcp.defense import Consensus, get_defense
from robfcp.experiments.outputs import entries
from robfcp.experiments.paper import runner, theorems
from robfcp.experiments.paper.configs import BASELINES, DATASETS, ExperimentCase
from robfcp.experiments.paper.figures import METHOD_STYLES
from robfcp.experiments.paper.runner import CONSENSUS, FCP, ROB_FCP, ROB_FCP_RELEASED
from robfcp.guarantees import certify_threshold

CELLS = (  # tables of attacks on clients; the others vary Rob-FCP's own parts
    *("main", "known", "unknown", "benign", "beta-sweep", "mimic", "evading", "noises"),
    *("attributes", "misstated", "scores"),
)
AHEAD = 0.005  # of coverage: what counts as ahead
APART = 0.02  # coverage, from that of the honest clients alone
Row = Mapping[str, Any]
Cell = tuple[str, Mapping[str, Row]]  # a table, and every method's row in one setting of it


def make_rows(cases: Iterable[ExperimentCase], results: runner.Results) -> list[dict[str, Any]]:
    """One row a case, in the order of the cases; a case that comes twice is one row.

    Means over seeds with standard deviations; `expected` is the closed form where one exists,
    `everywhere` coverage on all clients' test halves, `split` that of the calibration data.
    """
    rows = {}
    accuracy = {(e["dataset"], e["split"], e["stage"]): float(e["accuracy"]) for e in entries()}
    for case in cases:
        world, run, found = case.world, case.run, results[case.world, case.run]
        means = {name: _mean(asdict(one)[name] for one in found) for name in asdict(found[0])}
        sd = {
            name: float(np.std([getattr(one, name) for one in found], ddof=1))
            for name in ("coverage", "set_size")
        }
        coverage, set_size = case.published or (None, None)
        rows[world, run, case.variant] = {
            "dataset": world.dataset,
            "model": world.stage,
            "accuracy": accuracy[world.dataset, world.split, world.stage],
            "split": world.attribute or ("iid" if world.beta == 0 else f"beta={world.beta:g}"),
            "clients": runner.n_clients_of(world),
            "ratio": run.ratio,
            "number": case.number,
            "attack": run.attack,
            "variant": case.variant,
            "method": run.method,
            "coverage": means["coverage"],
            "coverage_sd": sd["coverage"],
            "set_size": means["set_size"],
            "set_size_sd": sd["set_size"],
            **{k: means[k] for k in ("honest_coverage", "honest_set_size", "everywhere")},
            "expected": means["expected"],
            "published_coverage": coverage,
            "published_set_size": set_size,
            **{k: means[k] for k in ("assumed", "flagged", "caught")},
            "told": run.told,
            **{k: means[k] for k in ("liar_oddity", "honest_oddity", "first_bin", "last_bin")},
            "seeds": len(found),
        }
    return list(rows.values())


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header, numbers to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def coverage_error(row: Row) -> float:
    """Coverage minus that of the honest clients alone."""
    return float(row["coverage"] - row["honest_coverage"])


def setting_text(row: Row) -> str:
    """A row's setting in words."""
    parts = [row["dataset"], "" if row["model"] == "final" else row["model"], row["split"]]
    if row["ratio"]:
        parts += [row["attack"], f"{row['ratio']:.0%}"]
    if row["variant"] and row["variant"] not in row["attack"]:
        parts.append(row["variant"])
    if row["number"] == "unknown" and row["ratio"]:
        parts.append("number estimated")
    return " ".join(dict.fromkeys(part for part in parts if part))


def table_cells(contents: Mapping[str, Sequence[Row]]) -> list[Cell]:
    """Every setting once, in the order of the tables."""
    found: dict[tuple[Any, ...], Cell] = {}
    for name in CELLS:
        groups: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in contents.get(name, ()):
            parts = ("dataset", "model", "split", "ratio", "attack", "told")
            key = (*(row[part] for part in parts), row["variant"] == "aps")
            groups.setdefault(key, {})[row["method"]] = row
        for key, rows in groups.items():
            if CONSENSUS in rows:
                found.setdefault(key, (name, rows))
    return list(found.values())


def ranking(found: Sequence[Cell]) -> Sequence[tuple[str, ...]]:
    """Each method over all cells that have it: mean and worst distance from the honest clients,
    where, and how often it is more than APART off."""
    lines = []
    for name in dict.fromkeys(name for _, rows in found for name in rows):
        own = [rows[name] for _, rows in found if name in rows]
        errors = np.array([coverage_error(row) for row in own])
        worst, off = int(np.abs(errors).argmax()), int((np.abs(errors) > APART).sum())
        numbers = f"{np.abs(errors).mean():.4f}", f"{errors[worst]:+.3f}", setting_text(own[worst])
        lines.append((METHOD_STYLES[name][2], *numbers, f"{off} of {len(own)}"))
    return lines


def losses_to_baselines(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row a cell in which the best rival is nearer to the honest clients than ours by more than
    AHEAD: by how much, and everybody's error and set size."""
    leads = []
    for table, rows in found:
        far = {name: abs(coverage_error(row)) for name, row in rows.items()}
        ahead = ((far[CONSENSUS] - far[rival], rival) for rival in BASELINES if rival in rows)
        lead, best = max(ahead, default=(0.0, ""))
        if lead > AHEAD:
            row = {
                "table": table,
                "setting": setting_text(rows[CONSENSUS]),
                "ahead": best,
                "by": lead,
            }
            for name in (FCP, ROB_FCP, ROB_FCP_RELEASED, CONSENSUS):
                if name in rows:
                    row[f"{name} error"] = coverage_error(rows[name])
                    row[f"{name} set size"] = rows[name]["set_size"]
            leads.append(row)
    return sorted(leads, key=lambda row: -row["by"])


PUBLISHED_SECONDS = {  # of the quantile at 40% malicious on an RTX A6000, as the paper states them
    "mnist": 0.5284,
    "cifar10": 0.5169,
    "tinyimagenet": 0.5563,
    "sleep": 0.2227,
    "pathmnist": 0.3032,
}
BOUND_WORLDS = (  # the paper's figure is the first
    ("tinyimagenet", "gaussian"),
    ("tinyimagenet", "coverage"),
    ("pathmnist", "coverage"),
    ("sleep", "coverage"),
)
BOUND_RATIOS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)


def bound_rows(seeds: int) -> list[dict[str, Any]]:
    """Published and proved intervals beside the measured coverage, for growing shares of liars."""
    rows = []
    for dataset, attack in BOUND_WORLDS:
        trials = [
            runner.make_trial(runner.PaperScenario(dataset, "iid"), seed) for seed in range(seeds)
        ]
        for ratio in BOUND_RATIOS:
            found: list[dict[str, float]] = []
            for seed, trial in enumerate(trials):
                m = round(ratio * trial.federation.n_clients)
                benign = trial.benign(m)
                reports = trial.attacked(attack, m, np.random.default_rng(seed))
                liars = int(reports.sample_sizes[~benign].sum())
                least = int(reports.sample_sizes[benign].min())
                given = theorems.TheoremSetting(int(benign.sum()), m, least, liars, n_bins=100)
                trusted = get_defense(ROB_FCP, m).assess(reports).benign_mask
                edge, _ = runner.consensus_threshold(m, reports, Consensus().find_outliers(reports))
                intervals = {
                    "theorem_1": theorems.theorem_1(given),
                    "dkw": theorems.theorem_1(given, theorems.dkw_radius),
                    "code": theorems.released_code_bound(given),
                }
                text = theorems.table_bin(reports, runner.LEVEL, trusted)
                row = {"text_coverage": trial.measure(text, benign)[0]}
                for name, (lower, upper) in intervals.items():
                    row |= {f"{name}_lower": lower, f"{name}_upper": upper}
                proved = certify_threshold(reports, edge, m, 0.95)
                row["ours_coverage"] = trial.measure(edge, benign)[0]
                row |= {"certificate_lower": proved.lower, "certificate_upper": proved.upper}
                found.append(row)
            means = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
            rows.append(
                {"dataset": dataset, "attack": attack, "ratio": ratio, **means, "seeds": seeds}
            )
    return rows


def runtime_rows(repeats: int) -> list[dict[str, Any]]:
    """Median seconds from the reports to the threshold, 100 clients, 40 coverage attackers.

    Every repeat has a federation of its own, since a defence may remember one it has seen.
    """
    rows = []
    for dataset in DATASETS.values():
        trial = runner.make_trial(runner.PaperScenario(dataset, "beta0.5", "final", 0.5), 0)
        row: dict[str, Any] = {"dataset": dataset, "published": PUBLISHED_SECONDS[dataset]}
        for name in (ROB_FCP, ROB_FCP_RELEASED, CONSENSUS):
            rule = get_defense(name, 40)
            times = []
            for _ in range(repeats):
                federation = trial.attacked("coverage", 40, np.random.default_rng(0))
                started = perf_counter()
                theorems.table_bin(federation, runner.LEVEL, rule.assess(federation).benign_mask)
                times.append(perf_counter() - started)
            row[name] = float(np.median(times))
        rows.append(row)
    return rows
