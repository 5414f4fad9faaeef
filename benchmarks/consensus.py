"""What consensus holds: `python benchmarks/consensus.py [PART ...] [--report FILE] [--docs]`.

Parts: gross, few, gaussian, stealth, turned, upward, nobody, groups, natural, sensitivity. Clients
draw with replacement, by class, from one half of a set of shipped outputs, tests from the other;
natural sites are halved. All methods get exact counts; `default reports` is the default defense on
default reports of the same samples. Numbers were chosen on TUNED with small seeds; tables are of
HELD OUT sets, of heart disease and of the stroke trial, with seeds from 10,000 on. Everything is
seeded.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import consensus_cells as cells
import numpy as np
from consensus_cells import Cell
from consensus_worlds import OutputsName, World, federation_of
from measure import into_page, markdown
from numpy.typing import NDArray

from robfcp import Federation
from robfcp.defense import Consensus, Defense, RobFCP, RobFCPReleased
from robfcp.defense.consensus import Tuning
from robfcp.experiments.coarsening import as_default_reports
from robfcp.guarantees import fcp_bin_index

LEVEL = Fraction(9, 10)
TUNED = (
    ("cifar10", "beta0.5", "final"),
    ("mnist", "iid", "final"),
    ("pathmnist", "beta0.5", "final"),
    ("sleep", "iid", "final"),
)
HELD_OUT = (
    ("cifar10", "iid", "final"),
    ("mnist", "beta0.5", "early"),
    ("pathmnist", "iid", "final"),
    ("sleep", "beta0.5", "final"),
    ("tinyimagenet", "beta0.5", "final"),
)
PAGE = Path(__file__).parents[1] / "docs" / "defence.md"

# Part -> the rows that stand on the page; docs/defence holds all of them.
ROWS_ON_PAGE = {
    "gross": r"class: gross, all",
    "few": r", all",
    "gaussian": r"all",
    "stealth": r"all",
    "turned": r"^. (hub|squeeze|class-c[a-z]*|size-inflation) .[0-9]",
    "upward": r"keep-30, 40",
    "groups": r"all",
    "nobody": r"class: nobody, all",
    "natural": r"(sleep|stroke).*nobody \(",
    "sensitivity": r"as it is|x 2",
}

# Given the reports and the true number m: the threshold's bin and the mask of excluded clients.
Method = Callable[[Federation, int], tuple[int | None, NDArray[np.bool_]]]


class Outcome(NamedTuple):
    """What a method gives in one run."""

    error: float  # coverage minus that of the benign clients alone
    detected: float  # fraction of the malicious clients that are excluded
    accused: float  # 1 where a benign client is excluded
    harm: float  # coverage lost beyond what FCP loses


def run_methods(world: World, methods: Sequence[str], by_class: bool = True) -> dict[str, Outcome]:
    """Return what each method gives in one run."""
    federation = world.federation(by_class)
    benign_scores = [world.honest[k] for k in world.benign]
    benign_labels = [world.labels[k] for k in world.benign]
    benign_federation = federation_of(benign_scores, benign_labels, 1)
    benign_coverage = world.coverage(fcp_bin_index(benign_federation, LEVEL))
    malicious_mask = np.zeros(federation.n_clients, dtype=bool)
    malicious_mask[world.bad] = True

    outcomes: dict[str, Outcome] = {}
    for name in methods:
        bin_index, excluded_mask = METHODS[name](federation, len(world.bad))
        error = world.coverage(bin_index) - benign_coverage
        detected = 0.0
        if malicious_mask.any():
            detected = float(excluded_mask[malicious_mask].mean())
        accused = float(excluded_mask[~malicious_mask].any())
        harm = 0.0
        if "none" in outcomes:
            harm = min(0.0, error - min(0.0, outcomes["none"].error))
        outcomes[name] = Outcome(error, detected, accused, harm)
    return outcomes


def run_fcp(federation: Federation, n_malicious: int) -> tuple[int | None, NDArray[np.bool_]]:
    """Return FCP's threshold; it excludes nobody."""
    return fcp_bin_index(federation, LEVEL), np.zeros(federation.n_clients, bool)


def run_consensus(
    federation: Federation, n_malicious: int, *, exactly: bool = False, tuning: Tuning | None = None
) -> tuple[int | None, NDArray[np.bool_]]:
    """Return the threshold and the exclusions of the default defense, given m or not."""
    n_given = _max_minority(federation, n_malicious) if exactly else None
    defense = Consensus(exactly=n_given, tuning=tuning or Tuning())
    assessment = defense.assess(federation)
    return assessment.threshold_rule(federation).bin_index(LEVEL), ~assessment.benign_mask


def run_on_default_reports(
    federation: Federation, n_malicious: int
) -> tuple[int | None, NDArray[np.bool_]]:
    """Return what the default defense gives on the default reports of the same samples.

    They hold class totals where the exact reports are by class.
    """
    return run_consensus(as_default_reports(federation), n_malicious)


def run_rob_fcp(
    make_defense: Callable[[int], Defense], federation: Federation, n_malicious: int
) -> tuple[int | None, NDArray[np.bool_]]:
    """Return the threshold and the exclusions of a variant of Rob-FCP, given m."""
    defense = make_defense(_max_minority(federation, n_malicious))
    benign_mask = defense.assess(federation).benign_mask
    return fcp_bin_index(federation, LEVEL, benign_mask), ~benign_mask


def _max_minority(federation: Federation, n_malicious: int) -> int:
    """Return the number of malicious clients, at most what leaves a benign majority."""
    return min(n_malicious, (federation.n_clients - 1) // 2)


# The constants that follow from no theorem.
CHOSEN_CONSTANTS = (
    "fdr_level",
    "log_heterogeneity_sd",
    "max_relative_weight",
    "prior_strength",
    "min_mass_ratio",
    "crossing_margin",
    "plausible_misfit_ratio",
    "upper_clip",
)


def _varied_methods() -> dict[str, Method]:
    """Return Consensus with half and twice of every chosen constant."""
    methods: dict[str, Method] = {}
    for name, factor in product(CHOSEN_CONSTANTS, (0.5, 2.0)):
        value = factor * getattr(Tuning(), name)
        tuning = replace(Tuning(), **{name: value})
        methods[f"{name} x {factor:g}"] = partial(run_consensus, tuning=tuning)
    return methods


VARIED_METHODS = _varied_methods()
METHODS: dict[str, Method] = {
    "none": run_fcp,
    "rob-fcp": partial(run_rob_fcp, RobFCP),
    "rob-fcp-released": partial(run_rob_fcp, RobFCPReleased),
    "consensus": run_consensus,
    "default reports": run_on_default_reports,
    "exactly": partial(run_consensus, exactly=True),
    **VARIED_METHODS,
}


class Part(NamedTuple):
    """What makes a part's cells, of how many seeds and which outputs."""

    make_cells: Callable[..., Iterator[Cell]]
    n_seeds: int
    names: Sequence[OutputsName]


PARTS = {
    "gross": Part(cells.gross, 4, HELD_OUT[:4]),
    "few": Part(cells.few, 12, HELD_OUT[:4]),
    "gaussian": Part(cells.gaussian, 6, HELD_OUT),
    "stealth": Part(cells.stealth, 5, HELD_OUT[:4]),
    "turned": Part(cells.turned, 4, HELD_OUT[:4]),
    "upward": Part(cells.upward, 4, HELD_OUT[:4]),
    "nobody": Part(cells.nobody, 10, HELD_OUT[:4]),
    "groups": Part(cells.groups, 8, HELD_OUT[:4]),
    "natural": Part(cells.by_nature, 200, ()),
    "sensitivity": Part(partial(cells.sensitivity, varied=tuple(VARIED_METHODS)), 2, TUNED),
}

# Row -> method -> summary of its runs.
PartResults = dict[str, dict[str, dict[str, float]]]


def run_cell(cell: Cell) -> dict[str, Outcome]:
    """Return what each method of a cell gives."""
    return run_methods(cell.make_world(), cell.methods, cell.by_class)


def measure_part(part: str, first_seed: int, fraction: float, processes: int) -> PartResults:
    """Return one part's table: of each row and method mean and extremes of the error, and rates."""
    make_cells, n_seeds, names = PARTS[part]
    n_run = max(1, round(fraction * n_seeds))
    all_cells = list(make_cells(range(first_seed, first_seed + n_run), names))
    outcomes_of: dict[str, dict[str, list[Outcome]]] = {}
    with ProcessPoolExecutor(processes) as pool:
        results = pool.map(run_cell, all_cells, chunksize=4)
        for cell, outcomes in zip(all_cells, results, strict=True):
            for row in cell.rows:
                row_outcomes = outcomes_of.setdefault(row, {})
                for method, outcome in outcomes.items():
                    row_outcomes.setdefault(method, []).append(outcome)

    summaries: PartResults = {}
    for row, methods in sorted(outcomes_of.items()):
        summaries[row] = {method: _summary(outcomes) for method, outcomes in methods.items()}
    return summaries


def _summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the number of runs, the error's mean size and extremes, the rates, the worst harm."""
    errors = np.sort([outcome.error for outcome in outcomes])
    return {
        "runs": len(outcomes),
        "error": float(np.abs(errors).mean()),
        "low": float(errors[0]),
        "high": float(errors[-1]),
        "found": float(np.mean([outcome.detected for outcome in outcomes])),
        "accused": float(np.mean([outcome.accused for outcome in outcomes])),
        "harm": min(outcome.harm for outcome in outcomes),
    }


def part_table(part: str, results: PartResults) -> str:
    """Return the table of one part in Markdown."""
    if part == "sensitivity":
        return _sensitivity_table(results)
    lines = []
    for row, methods in results.items():
        cells = [_summary_text(summary) for summary in methods.values()]
        lines.append([f"{row} ({methods['none']['runs']})", *cells])
    first_row = next(iter(results.values()))
    return markdown(["case (runs)", *first_row], lines)


def _summary_text(summary: Mapping[str, float]) -> str:
    """Return a cell: mean error, its extremes, malicious clients found, benign ones accused."""
    errors = f"{summary['error']:.4f} [{summary['low']:+.3f}, {summary['high']:+.3f}]"
    return f"{errors} {summary['found']:.0%}/{summary['accused']:.0%}"


def _sensitivity_table(results: PartResults) -> str:
    """Return a line a constant, halved and doubled."""
    error_rows = ["gross", "gaussian", "stealth", "upward"]
    lines = []
    for method in next(iter(results.values())):
        errors = [f"{results[row][method]['error']:.4f}" for row in error_rows]
        worst = min(methods[method]["low"] for methods in results.values())
        found = results["one all wrong"][method]["found"]
        accused = results["nobody"][method]["accused"]
        name = "as it is" if method == "consensus" else method
        lines.append([name, *errors, f"{worst:+.3f}", f"{found:.0%}", f"{accused:.1%}"])
    return markdown(["constant", *error_rows, "worst run", "one wrong", "false alarms"], lines)


def write_docs(part: str, table: str) -> None:
    """Write some rows of a part's table into the page, and all of them as CSV beside it."""
    head = table.splitlines()[:2]
    lines = table.splitlines()[2:]
    page_lines = [line for line in lines if re.search(ROWS_ON_PAGE.get(part, ""), line)]
    into_page(PAGE, part, "\n".join([*head, *page_lines]))
    path = PAGE.parent / "defence" / f"{part}.csv"
    with path.open("w", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        for line in lines:
            writer.writerow([cell.strip() for cell in line.strip("|").split("|")])


def main() -> None:
    """Run the parts asked for and write what they give."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--share", type=float, default=1.0, help="of the runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path, help="keep the numbers here, as JSON; read them too")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/defence.md")
    arguments = parser.parse_args()
    results: dict[str, PartResults] = {}
    if arguments.report and arguments.report.exists():
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
    for part in arguments.parts:
        results[part] = measure_part(part, arguments.first, arguments.share, arguments.processes)
        if arguments.report:
            arguments.report.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for part, part_results in results.items():
        table = part_table(part, part_results)
        print(f"## {part}\n\n{table}\n", flush=True)
        if arguments.docs:
            write_docs(part, table)


if __name__ == "__main__":
    main()
