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
from robfcp.experiments.paper import figures, tables
from robfcp.experiments.paper.configs import DETECTORS, EXPERIMENTS
from robfcp.experiments.paper.runner import CONSENSUS, FCP, ROB_FCP, ROB_FCP_RELEASED, run_cases
from robfcp.figures import save

Rows = Sequence[Mapping[str, Any]]
EXTRAS: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
    "bounds": ("Bounds against measured coverage", tables.bound_rows),
    "runtime": (
        "Seconds from the reports to the threshold, the CPU here and an RTX A6000 as published",
        tables.runtime_rows,
    ),
}
TITLES = {name: title for name, (title, _) in (EXPERIMENTS | EXTRAS).items()}
METHOD_LABELS = {
    FCP: "FCP",
    FEDCP_QQ: "FedCP-QQ",
    ROB_FCP: "text",
    ROB_FCP_RELEASED: "code",
    CONSENSUS: "ours",
}
BY = {  # what the page shows a line of
    "main": ("dataset", "attack"),
    "known": ("ratio",),
    "unknown": ("ratio",),
    "benign": ("dataset",),
    "beta-sweep": ("split",),
    "mimic": ("ratio",),
    "evading": ("dataset",),
}
VARIED = ("granularity", "distances", "characterisations")  # of Rob-FCP, and nobody else
BOUNDS = ("dataset", "attack", "ratio", "theorem_1_lower", "theorem_1_upper", "ours_coverage",
          "certificate_lower", "certificate_upper")  # fmt: skip
INTRO = """# The paper's tables: its text, its released code and ours side by side

Written by `robfcp lab reproduce all -o out/paper --page docs/results.md` from outputs that ship
with the package: no network, no GPU. Target coverage 0.9; means over {seeds} seeds or more, each a
new split of the test samples over the clients, halved into calibration and test, with new
attackers.

*Text* is Rob-FCP as printed, *code* as its authors released it, *FCP* undefended, *FedCP-QQ* a
quantile of quantiles (Humbert et al. 2023), *ours* the default defence; where Rob-FCP is told the
number of liars, so is ours (`Consensus(exactly=m)`). In the tables below `mean(worst)` is how far
coverage is from that of the honest clients alone. Every cell, with standard deviations, set sizes
and what the paper published for it, is in the CSV file of its table.

## Over all cells

{standings}

In {leads} of {total} cells a rival is nearer than ours by more than {ahead} of coverage:
[rivals.csv]({folder}/rivals.csv).
"""
MANUAL_SECTION = (
    "\n## Where the paper contradicts itself, or its code\n"  # from here on it is kept by hand
)


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    seeds: int = 10,
    workers: int | None = None,
    resume: bool = True,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """Run the named experiments; each leaves NAME.csv and some NAME.png in the directory."""
    unknown = [name for name in names if name not in TITLES]
    if unknown:
        raise RobfcpError(f"{unknown[0]}: no such experiment; choose from {', '.join(TITLES)}, all")
    if seeds < 2:
        raise RobfcpError(f"seeds: {seeds} gives no spread; use at least 2")
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "runs"
    if not resume:
        for path in store.glob("*.json"):
            path.unlink()
    chosen = {name: list(EXPERIMENTS[name][1]()) for name in names if name in EXPERIMENTS}
    everything = [(case.world, case.run) for cases in chosen.values() for case in cases]
    results = run_cases(
        everything, seeds=seeds, store=store, workers=workers, start=start, advance=advance
    )
    found = {}
    for name in names:
        extra = name in EXTRAS
        rows = EXTRAS[name][1](seeds) if extra else tables.make_rows(chosen[name], results)
        found[name] = rows
        write_atomically(directory / f"{name}.csv", tables.to_csv(rows))
        if name in figures.SWEEPS:
            save(figures.plot_sweep(name, TITLES[name], rows), directory / f"{name}.png")
        elif name == "bounds":
            save(figures.plot_bounds(rows), directory / f"{name}.png")
    return found


def write_page(directory: Path, page: Path) -> None:
    """Write the page from the CSV files in `directory`; they and their figures go beside it."""
    there = {path.stem: path for path in directory.glob("*.csv")}
    contents = {name: _read(there[name]) for name in TITLES if name in there}
    if not contents:
        raise RobfcpError(f"{directory}: holds no results; run `robfcp lab reproduce all` first")
    folder = page.parent / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    for name, suffix in product(contents, (".png", ".csv")):
        source = directory / f"{name}{suffix}"
        if source.is_file():
            write_atomically(folder / source.name, source.read_bytes())
    found = tables.table_cells(contents)
    leads, standings = tables.losses_to_baselines(found), tables.ranking(found)
    write_atomically(folder / "rivals.csv", tables.to_csv(leads) if leads else "")
    rows = [row for rows in contents.values() for row in rows]
    text = INTRO.format(
        seeds=min((row["seeds"] for row in rows if "seeds" in row), default=0),
        folder=page.stem,
        standings=markdown(["method", "mean", "worst", "in", "over 0.02 in"], standings),
        leads=len(leads),
        total=len(found),
        ahead=tables.AHEAD,
    )
    for name, rows in contents.items():
        links = f"[{name}.csv]({page.stem}/{name}.csv)"
        if (folder / f"{name}.png").is_file():
            links += f", [figure]({page.stem}/{name}.png)"
        text += f"\n## {TITLES[name]}\n\n{links}\n\n{_section(name, rows)}\n"
    kept = (
        page.read_text(encoding="utf-8").partition(MANUAL_SECTION)
        if page.is_file()
        else ("", "", "")
    )
    write_atomically(page, text + "".join(kept[1:]))


def _read(path: Path) -> list[dict[str, Any]]:
    """The rows `to_csv` wrote."""
    with path.open(encoding="utf-8", newline="") as stream:
        return [{k: _value(k, v) for k, v in row.items()} for row in csv.DictReader(stream)]


def _value(name: str, text: str) -> Any:
    if name in ("dataset", "model", "split", "attack", "variant", "method"):
        return text
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    first, *rest = ("| " + " | ".join(line) + " |" for line in (head, *lines))
    return "\n".join([first, "|" + "---|" * len(head), *rest])


def _section(name: str, rows: Rows) -> str:
    """An experiment's table, condensed: its CSV file holds all of it."""
    if name == "counting":
        return _counting(rows)
    if name == "bounds":
        rows = [{k: row[k] for k in BOUNDS} for row in rows if row["ratio"] in (0.1, 0.4)]
    if name in VARIED:
        rows = [row for row in rows if row["method"] in (ROB_FCP, ROB_FCP_RELEASED)]
    if "method" in rows[0]:
        return _condensed(rows, BY.get(name, ("variant",)))
    return markdown(list(rows[0]), ([_plain(v) for v in row.values()] for row in rows))


def _condensed(rows: Rows, by: Sequence[str]) -> str:
    """A line a group, a column a method: mean and worst distance from the honest clients."""
    names = [name for name in METHOD_LABELS if any(row["method"] == name for row in rows)]
    lines = []
    for group in dict.fromkeys(tuple(row[key] for key in by) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in by) == group]
        cells = [_plain(value) for value in group]
        for name in names:
            errors = [tables.coverage_error(row) for row in own if row["method"] == name]
            mean = sum(map(abs, errors)) / max(1, len(errors))
            cells.append(f"{mean:.3f}({max(errors, key=abs):+.3f})" if errors else "")
        lines.append(cells)
    return markdown([*by, *(METHOD_LABELS[name] for name in names)], lines)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _counting(rows: Rows) -> str:
    """Mean estimates over data sets and splits, for each attack and true share."""
    ratios = sorted({row["ratio"] for row in rows})[::2]
    lines = []
    for attack in dict.fromkeys(row["variant"] for row in rows):
        cells = []
        for ratio in ratios:
            own = [row for row in rows if (row["variant"], row["ratio"]) == (attack, ratio)]
            means = [
                np.mean([row["assumed"] for row in own if row["method"] == name])
                for name in DETECTORS
            ]
            cells.append("/".join(f"{mean:.1f}" for mean in means) if own else "")
        lines.append([attack, *cells])
    table = markdown(["attack", *(f"{ratio:.0%}" for ratio in ratios)], lines)
    return f"Of 100 clients so many were counted, text/code/ours, for the true share:\n\n{table}"
