"""Writes every table and figure to a directory, and a page from the files in it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.figures import save
from robfcp.files import write_atomically
from robfcp.lab.natural import COMPARED, found_table
from robfcp.lab.paper import extras, figures
from robfcp.lab.paper.cases import EXPERIMENTS
from robfcp.lab.paper.remarks import remarks
from robfcp.lab.paper.rows import TableRow, make_rows, to_csv
from robfcp.lab.paper.runner import run_cases

EXTRAS = {
    "bounds": "Bounds against measured coverage",
    "theorem": "Where Theorem 1 says anything",
    "runtime": "Seconds from the reports to the threshold",
    "natural": "Natural federations: who is found, and who is accused (not in the paper)",
}
NAMES = (*EXPERIMENTS, *EXTRAS)
THEOREM_REMARK = (
    "Computed from the published formula: clients of equal size n_b, no heterogeneity (sigma = "
    "0), no "
    "sketching error, beta = 0.1, all of it in the theorem's favour. An interval says something "
    "only "
    "where its lower end is above 0 or its upper end below 1; at the paper's own H = 100 with "
    "10% of "
    "100 clients lying the first needs 33 million samples a client."
)


def titles() -> dict[str, str]:
    """Every experiment's name and what it shows."""
    return {**{name: title for name, (title, _) in EXPERIMENTS.items()}, **EXTRAS}


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    seeds: int = 10,
    workers: int | None = None,
    resume: bool = True,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[TableRow] | list[dict[str, Any]]]:
    """Run the named experiments; each leaves NAME.csv, NAME.json and NAME.png in the directory."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise RobfcpError(f"{unknown[0]}: no such experiment; choose from {', '.join(NAMES)}, all")
    if seeds < 2:
        raise RobfcpError(f"seeds: {seeds} gives no spread; use at least 2")
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "runs"
    if not resume:
        for path in store.glob("*.json"):
            path.unlink()
    chosen = {name: EXPERIMENTS[name][1]() for name in names if name in EXPERIMENTS}
    everything = [case for cases in chosen.values() for case in cases]
    results = run_cases(
        everything, seeds=seeds, store=store, workers=workers, start=start, advance=advance
    )
    tables: dict[str, list[TableRow] | list[dict[str, Any]]] = {}
    for name, cases in chosen.items():
        rows = make_rows(cases, results)
        tables[name] = rows
        title = EXPERIMENTS[name][0]
        _write(directory, name, to_csv(rows), [asdict(row) for row in rows], remarks(rows))
        save(figures.draw(name, title, rows), directory / f"{name}.png")
    if "bounds" in names:
        tables["bounds"] = found = extras.bounds(seeds)
        _write(directory, "bounds", _plain_csv(found), found, [_bound_remark(found)])
        save(figures.draw_bounds(found), directory / "bounds.png")
    if "theorem" in names:
        tables["theorem"] = found = extras.theorem()
        _write(directory, "theorem", _plain_csv(found), found, [THEOREM_REMARK])
        save(figures.draw_theorem(found), directory / "theorem.png")
    if "runtime" in names:
        tables["runtime"] = found = extras.runtime()
        _write(directory, "runtime", _plain_csv(found), found, [_runtime_remark()])
        save(figures.draw_runtime(found), directory / "runtime.png")
    if "natural" in names:
        tables["natural"] = found = found_table(max(2, seeds // 2), seeds)
        _write(directory, "natural", _plain_csv(found), found, [_natural_remark(found)])
        save(figures.draw_natural(found), directory / "natural.png")
    return tables


def _natural_remark(rows: Sequence[dict[str, Any]]) -> str:
    quiet = [row for row in rows if not row["liars"]]
    accused = "; ".join(
        f"{row['federation']} "
        + ", ".join(f"{row[f'{name}_false_alarms']:.1f}" for name in COMPARED)
        + f" of {row['honest']}"
        for row in quiet
    )
    return (
        "Sites are the data's own, a fifth of them lie, and the defences estimate how many. Honest "
        f"sites accused a run when nobody lies, by {', '.join(COMPARED)}: {accused}. Errors are of "
        "coverage against the honest sites alone; found and false alarms count sites."
    )


def _runtime_remark() -> str:
    load = f" at a load average of {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        "The published seconds were measured on an RTX A6000, ours (median of five) on the CPU of "
        f"the machine that wrote this page, {os.cpu_count()} cores{load}: not the same hardware, "
        "so orders of magnitude only."
    )


def _bound_remark(rows: Sequence[dict[str, Any]]) -> str:
    vacuous = [row for row in rows if row["theorem_1_lower"] <= 0 and row["theorem_1_upper"] >= 1]
    widths = [row["certificate_upper"] - row["certificate_lower"] for row in rows]
    return (
        f"Theorem 1 says nothing (lower end below 0, upper end above 1) in {len(vacuous)} of "
        f"{len(rows)} cells; our certificate's interval is "
        f"{min(widths):.3f} to {max(widths):.3f} wide over the same cells."
    )


def _write(directory: Path, name: str, text: str, rows: list[Any], lines: list[str]) -> None:
    write_atomically(directory / f"{name}.csv", text)
    content = {"experiment": name, "title": titles()[name], "remarks": lines, "rows": rows}
    write_atomically(directory / f"{name}.json", json.dumps(content, indent=1) + "\n")


def _plain_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()
