"""What Consensus achieves: `python benchmarks/consensus.py [SECTION ...] [--report FILE] [--docs]`.

Sections: gross, few-clients, gaussian, stealth, turned, upward, no-attack, groups, natural,
sensitivity. Clients draw with replacement, by class, from one half of a set of shipped outputs,
tests from the other; natural clients are halved. All methods get exact counts; `default reports` is
the default defense on default reports of the same samples. Constants were chosen on TUNED with
small seeds; tables are of HELD OUT sets, of heart disease and of the stroke trial, with seeds from
10,000 on. Everything is seeded.
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
PAGE = Path(__file__).parents[1] / "docs" / "defense.md"

# Part -> the rows that stand on the page; docs/defense holds all of them.
ROWS_ON_PAGE = {
    "gross": r"class: gross, all",
    "few-clients": r", all",
    "gaussian": r"all",
    "stealth": r"all",
    "turned": r"^. (benign-means|two-sided-trimming|class-c[a-z]*|size-inflation) .[0-9]",
    "upward": r"keep-30, 40",
    "groups": r"all",
    "no-attack": r"class: no attack, all",
    "natural": r"(sleep|stroke).*no attack \(",
    "sensitivity": r"unchanged|x 2",
}

# Given the reports and the true number m: the threshold's bin and the mask of excluded clients.
Method = Callable[[Federation, int], tuple[int | None, NDArray[np.bool_]]]


class Outcome(NamedTuple):
    """What a method gives in one run."""

    error: float  # coverage minus that of the benign clients alone
    detected: float  # fraction of the malicious clients that are excluded
    has_false_positive: float  # 1 where a benign client is excluded
    harm: float  # coverage lost beyond what FCP loses


def run_methods(world: World, methods: Sequence[str], by_class: bool = True) -> dict[str, Outcome]:
    """Return what each method gives in one run."""
    federation = world.federation(by_class)
    benign_scores = [world.benign_scores[k] for k in world.benign]
    benign_labels = [world.labels[k] for k in world.benign]
    benign_federation = federation_of(benign_scores, benign_labels, 1)
    benign_coverage = world.coverage(fcp_bin_index(benign_federation, LEVEL))
    malicious_mask = np.zeros(federation.n_clients, dtype=bool)
    malicious_mask[world.malicious] = True

    outcomes: dict[str, Outcome] = {}
    for name in methods:
        bin_index, excluded_mask = METHODS[name](federation, len(world.malicious))
        error = world.coverage(bin_index) - benign_coverage
        detected = 0.0
        if malicious_mask.any():
            detected = float(excluded_mask[malicious_mask].mean())
        has_false_positive = float(excluded_mask[~malicious_mask].any())
        harm = 0.0
        if "none" in outcomes:
            harm = min(0.0, error - min(0.0, outcomes["none"].error))
        outcomes[name] = Outcome(error, detected, has_false_positive, harm)
    return outcomes


def run_fcp(federation: Federation, n_malicious: int) -> tuple[int | None, NDArray[np.bool_]]:
    """Return FCP's threshold; it excludes no client."""
    return fcp_bin_index(federation, LEVEL), np.zeros(federation.n_clients, bool)


def run_consensus(
    federation: Federation,
    n_malicious: int,
    *,
    is_number_given: bool = False,
    tuning: Tuning | None = None,
) -> tuple[int | None, NDArray[np.bool_]]:
    """Return the threshold and the exclusions of the default defense, given m or not."""
    n_given = _max_minority(federation, n_malicious) if is_number_given else None
    defense = Consensus(n_malicious=n_given, tuning=tuning or Tuning())
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
    "number given": partial(run_consensus, is_number_given=True),
    **VARIED_METHODS,
}


class Section(NamedTuple):
    """What makes a section's cells, of how many seeds and which outputs."""

    make_cells: Callable[..., Iterator[Cell]]
    n_seeds: int
    names: Sequence[OutputsName]


SECTIONS = {
    "gross": Section(cells.gross, 4, HELD_OUT[:4]),
    "few-clients": Section(cells.few_clients, 12, HELD_OUT[:4]),
    "gaussian": Section(cells.gaussian, 6, HELD_OUT),
    "stealth": Section(cells.stealth, 5, HELD_OUT[:4]),
    "turned": Section(cells.turned, 4, HELD_OUT[:4]),
    "upward": Section(cells.upward, 4, HELD_OUT[:4]),
    "no-attack": Section(cells.no_attack, 10, HELD_OUT[:4]),
    "groups": Section(cells.groups, 8, HELD_OUT[:4]),
    "natural": Section(cells.by_nature, 200, ()),
    "sensitivity": Section(partial(cells.sensitivity, varied=tuple(VARIED_METHODS)), 2, TUNED),
}

# Row -> method -> summary of its runs.
SectionResults = dict[str, dict[str, dict[str, float]]]


def run_cell(cell: Cell) -> dict[str, Outcome]:
    """Return what each method of a cell gives."""
    return run_methods(cell.make_world(), cell.methods, cell.by_class)


def measure_section(
    section: str, first_seed: int, fraction: float, processes: int
) -> SectionResults:
    """Return a section's table: for each row and method the error (mean, extremes) and rates."""
    make_cells, n_seeds, names = SECTIONS[section]
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

    summaries: SectionResults = {}
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
        "detected": float(np.mean([outcome.detected for outcome in outcomes])),
        "false_positives": float(np.mean([outcome.has_false_positive for outcome in outcomes])),
        "harm": min(outcome.harm for outcome in outcomes),
    }


def section_table(section: str, results: SectionResults) -> str:
    """Return the table of one section in Markdown."""
    if section == "sensitivity":
        return _sensitivity_table(results)
    lines = []
    for row, methods in results.items():
        cells = [_summary_text(summary) for summary in methods.values()]
        lines.append([f"{row} ({methods['none']['runs']})", *cells])
    first_row = next(iter(results.values()))
    return markdown(["case (runs)", *first_row], lines)


def _summary_text(summary: Mapping[str, float]) -> str:
    """Return a cell: mean error, its extremes, rates of detection and of false positives."""
    errors = f"{summary['error']:.4f} [{summary['low']:+.3f}, {summary['high']:+.3f}]"
    return f"{errors} {summary['detected']:.0%}/{summary['false_positives']:.0%}"


def _sensitivity_table(results: SectionResults) -> str:
    """Return a line a constant, halved and doubled."""
    error_rows = ["gross", "gaussian", "stealth", "upward"]
    lines = []
    for method in next(iter(results.values())):
        errors = [f"{results[row][method]['error']:.4f}" for row in error_rows]
        worst = min(methods[method]["low"] for methods in results.values())
        detected = results["one all wrong"][method]["detected"]
        false_positives = results["no attack"][method]["false_positives"]
        name = "unchanged" if method == "consensus" else method
        lines.append([name, *errors, f"{worst:+.3f}", f"{detected:.0%}", f"{false_positives:.1%}"])
    return markdown(["constant", *error_rows, "worst run", "one wrong", "false positives"], lines)


def write_docs(section: str, table: str) -> None:
    """Write some rows of a section's table into the page, and all of them as CSV beside it."""
    head = table.splitlines()[:2]
    lines = table.splitlines()[2:]
    page_lines = [line for line in lines if re.search(ROWS_ON_PAGE.get(section, ""), line)]
    into_page(PAGE, section, "\n".join([*head, *page_lines]))
    path = PAGE.parent / "defense" / f"{section}.csv"
    with path.open("w", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        for line in lines:
            writer.writerow([cell.strip() for cell in line.strip("|").split("|")])


def main() -> None:
    """Run the sections that are named and write what they give."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path, help="keep the numbers here, as JSON; read them too")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/defense.md")
    arguments = parser.parse_args()
    results: dict[str, SectionResults] = {}
    if arguments.report and arguments.report.exists():
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
    for section in arguments.sections:
        results[section] = measure_section(
            section, arguments.first, arguments.fraction, arguments.processes
        )
        if arguments.report:
            arguments.report.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for section, section_results in results.items():
        table = section_table(section, section_results)
        print(f"## {section}\n\n{table}\n", flush=True)
        if arguments.docs:
            write_docs(section, table)


if __name__ == "__main__":
    main()
