"""Writes every table and figure to a directory, and pages from the files in it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from robfcp._files import write_atomically
from robfcp.errors import RobfcpError
from robfcp.experiments.baselines import FEDCP_QQ
from robfcp.experiments.paper import figures, result_rows
from robfcp.experiments.paper.paper_tables import DETECTORS, EXPERIMENTS, ExperimentCase
from robfcp.experiments.paper.runner import (
    CONSENSUS,
    DEFAULT_REPORTS,
    FCP,
    ROB_FCP,
    ROB_FCP_RELEASED,
    run_cases,
)
from robfcp.figures import save

Rows = Sequence[Mapping[str, Any]]

# Tables that are no runs of methods: name -> title, and what makes the rows of so many seeds.
EXTRAS: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
    "bounds": ("Bounds against measured coverage", result_rows.bound_rows),
    "runtime": (
        "Seconds from the reports to the threshold, the CPU here and an RTX A6000 as published",
        result_rows.runtime_rows,
    ),
}
TITLES = {name: title for name, (title, _) in (EXPERIMENTS | EXTRAS).items()}
METHOD_LABELS = {
    FCP: "FCP",
    FEDCP_QQ: "FedCP-QQ",
    ROB_FCP: "as printed",
    ROB_FCP_RELEASED: "as released",
    CONSENSUS: "Consensus",
    DEFAULT_REPORTS: "default reports",
}

# The columns by which a table on the page has its lines; others have a line a variant.
LINE_COLUMNS = {
    "main": ("dataset", "attack"),
    "known": ("malicious_fraction",),
    "unknown": ("malicious_fraction",),
    "benign": ("dataset",),
    "beta-sweep": ("split",),
    "mimic": ("malicious_fraction",),
    "evasion": ("dataset",),
}

# Experiments that vary Rob-FCP and no other method.
ROB_FCP_EXPERIMENTS = ("granularity", "metrics", "characterizations")

# The columns and the fractions of malicious clients of the bounds that the page shows.
BOUND_COLUMNS = (
    "dataset",
    "attack",
    "malicious_fraction",
    "theorem_1_lower",
    "theorem_1_upper",
    "consensus_coverage",
    "certificate_lower",
    "certificate_upper",
)
BOUND_FRACTIONS = (0.1, 0.4)
TEXT_COLUMNS = ("dataset", "model", "split", "attack", "variant", "method")

INTRO = """# The paper's tables: Rob-FCP as printed, as released, and Consensus side by side

Written by `robfcp experiments reproduce all -o out/paper --page docs/results.md` from outputs that
ship with the package: no network, no GPU. Target coverage 0.9; means over {seeds} runs or more,
each a new split of the test samples over the clients, halved into calibration and test, with new
malicious clients.

*As printed* and *as released* are Rob-FCP as its paper describes it and as its authors released it,
*FCP* is without a defense, *FedCP-QQ* a quantile of quantiles (Humbert et al. 2023), *Consensus*
the default defense; where Rob-FCP is given the number of malicious clients, so is Consensus
(`Consensus(n_malicious=m)`). All of these are given exact counts of the scores, without labels.
*Default reports* is Consensus on what `robfcp report` writes of the same samples: cells of at least
five samples, and class totals to the nearest five.

In the tables below `mean(worst)` is how far coverage is from that of the exact counts of the benign
clients alone. Every cell, with standard deviations, set sizes and what the paper published for it,
is in the CSV file of its table.

## Over all cells

{ranking}

In {losses} of {total} cells a baseline is nearer than Consensus by more than {min_lead} of
coverage: [losses-to-baselines.csv]({folder}/losses-to-baselines.csv).
"""

# From here on the page is kept by hand.
MANUAL_SECTION = "\n## Where the paper contradicts itself, or its code\n"


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    n_runs: int = 10,
    workers: int | None = None,
    resume: bool = True,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """Run experiments and return their tables; each leaves NAME.csv and some NAME.png.

    Parameters
    ----------
    names : sequence of str
        Keys of `TITLES`.
    directory : Path
        For tables, figures and, in `runs`, the runs.
    n_runs : int
        The number of seeds.
    workers : int or None
        The number of processes; None for one a core.
    resume : bool
        Whether runs that are in the directory are not done again.
    start, advance : callable
        For a progress bar: called with the number of tasks, and after each of them.
    """
    unknown = [name for name in names if name not in TITLES]
    if unknown:
        raise RobfcpError(f"{unknown[0]}: no such experiment; choose from {', '.join(TITLES)}, all")
    if n_runs < 2:
        raise RobfcpError(f"n_runs: {n_runs} gives no spread; use at least 2")
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "runs"
    if not resume:
        for path in store.glob("*.json"):
            path.unlink()

    cases: dict[str, list[ExperimentCase]] = {}
    for name in names:
        if name in EXPERIMENTS:
            _, make_cases = EXPERIMENTS[name]
            cases[name] = list(make_cases())
    all_runs = [(case.scenario, case.run) for table in cases.values() for case in table]
    results = run_cases(
        all_runs, seeds=n_runs, store=store, workers=workers, start=start, advance=advance
    )

    contents = {}
    for name in names:
        if name in EXTRAS:
            _, make_rows = EXTRAS[name]
            rows = make_rows(n_runs)
        else:
            rows = result_rows.make_rows(cases[name], results)
        contents[name] = rows
        write_atomically(directory / f"{name}.csv", result_rows.to_csv(rows))
        if name in figures.SWEEPS:
            save(figures.plot_sweep(name, TITLES[name], rows), directory / f"{name}.png")
        elif name == "bounds":
            save(figures.plot_bounds(rows), directory / f"{name}.png")
    return contents


def write_page(directory: Path, page: Path) -> None:
    """Write the page from the CSV files in a directory; they and their figures go beside it.

    Parameters
    ----------
    directory : Path
        What `reproduce` wrote to.
    page : Path
        Of the Markdown file; its manual section is kept.
    """
    paths = {path.stem: path for path in directory.glob("*.csv")}
    contents = {name: _read(paths[name]) for name in TITLES if name in paths}
    if not contents:
        raise RobfcpError(
            f"{directory}: holds no results; run `robfcp experiments reproduce all` first"
        )
    folder = page.parent / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    for name, suffix in product(contents, (".png", ".csv")):
        source = directory / f"{name}{suffix}"
        if source.is_file():
            write_atomically(folder / source.name, source.read_bytes())
    losses = result_rows.losses_to_baselines(result_rows.table_cells(contents))
    write_atomically(
        folder / "losses-to-baselines.csv", result_rows.to_csv(losses) if losses else ""
    )

    text = _introduction(contents, folder)
    for name, rows in contents.items():
        links = f"[{name}.csv]({folder.name}/{name}.csv)"
        if (folder / f"{name}.png").is_file():
            links += f", [figure]({folder.name}/{name}.png)"
        text += f"\n## {TITLES[name]}\n\n{links}\n\n{_section(name, rows)}\n"
    write_atomically(page, text + _manual_text(page))


def _introduction(contents: Mapping[str, Rows], folder: Path) -> str:
    """Return the page's text up to the experiments."""
    cells = result_rows.table_cells(contents)
    all_rows = [row for rows in contents.values() for row in rows]
    return INTRO.format(
        seeds=min((row["n_runs"] for row in all_rows if "n_runs" in row), default=0),
        folder=folder.name,
        ranking=markdown(
            ["method", "mean", "worst", "in", "over 0.02 in"], result_rows.ranking(cells)
        ),
        losses=len(result_rows.losses_to_baselines(cells)),
        total=len(cells),
        min_lead=result_rows.MIN_LEAD,
    )


def _manual_text(page: Path) -> str:
    """Return the manual section of the page and what follows; empty where there is none."""
    if not page.is_file():
        return ""
    _, title, text = page.read_text(encoding="utf-8").partition(MANUAL_SECTION)
    return title + text


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows that `to_csv` wrote."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [_parse_row(row) for row in csv.DictReader(stream)]


def _parse_row(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with its values parsed."""
    return {name: _parse_value(name, text) for name, text in row.items()}


def _parse_value(name: str, text: str) -> Any:
    """Return a cell as text in columns of text; else as a number, None where it is empty."""
    if name in TEXT_COLUMNS:
        return text
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    return text or None


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    separator = "|" + "---|" * len(head)
    return "\n".join([_markdown_line(head), separator, *map(_markdown_line, lines)])


def _markdown_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _section(name: str, rows: Rows) -> str:
    """Return an experiment's table, condensed: its CSV file holds all of it."""
    if name == "estimated-number":
        return _estimates_table(rows)
    if name == "bounds":
        rows = [_bound_columns(row) for row in rows if row["malicious_fraction"] in BOUND_FRACTIONS]
    if name in ROB_FCP_EXPERIMENTS:
        rows = [row for row in rows if row["method"] in (ROB_FCP, ROB_FCP_RELEASED)]
    if "method" in rows[0]:
        return _errors_table(rows, LINE_COLUMNS.get(name, ("variant",)))
    lines = [list(map(_format_value, row.values())) for row in rows]
    return markdown(list(rows[0]), lines)


def _bound_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a row of bounds."""
    return {column: row[column] for column in BOUND_COLUMNS}


def _errors_table(rows: Rows, by: Sequence[str]) -> str:
    """Return a line a group and a column a method: mean and worst distance from benign clients."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    occurring = {row["method"] for row in rows}
    methods = [method for method in METHOD_LABELS if method in occurring]

    lines = []
    for key, group in groups.items():
        cells = [_format_value(value) for value in key]
        cells += [_errors_text(group, method) for method in methods]
        lines.append(cells)
    return markdown([*by, *(METHOD_LABELS[method] for method in methods)], lines)


def _errors_text(rows: Rows, method: str) -> str:
    """Return a method's mean absolute error and its worst error; empty where it has no rows."""
    errors = [result_rows.coverage_error(row) for row in rows if row["method"] == method]
    if not errors:
        return ""
    mean = sum(abs(error) for error in errors) / len(errors)
    worst = max(errors, key=abs)
    return f"{mean:.3f}({worst:+.3f})"


def _format_value(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _estimates_table(rows: Rows) -> str:
    """Return mean estimates over data sets and splits, for each attack and true fraction."""
    fractions = sorted({row["malicious_fraction"] for row in rows})[::2]
    lines = []
    for attack in dict.fromkeys(row["variant"] for row in rows):
        attack_rows = [row for row in rows if row["variant"] == attack]
        cells = [_estimates_text(attack_rows, fraction) for fraction in fractions]
        lines.append([attack, *cells])
    table = markdown(["attack", *(f"{fraction:.0%}" for fraction in fractions)], lines)
    return (
        "Estimated number of malicious clients of 100 (as printed/as released/Consensus), "
        f"by their true fraction:\n\n{table}"
    )


def _estimates_text(rows: Rows, fraction: float) -> str:
    """Return the mean estimate of each detector at one true fraction; empty without rows."""
    fraction_rows = [row for row in rows if row["malicious_fraction"] == fraction]
    if not fraction_rows:
        return ""
    texts = []
    for method in DETECTORS:
        estimates = [row["assumed_n_malicious"] for row in fraction_rows if row["method"] == method]
        texts.append(f"{np.mean(estimates):.1f}")
    return "/".join(texts)
