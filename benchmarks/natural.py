"""Natural partitions: `python benchmarks/natural.py` prints tables of docs/natural-partitions.md.

It writes their CSV files and the figure beside the page, and needs nothing but the package: the
outputs ship with it. Everything is run on default reports and on exact counts (the column
`reports`). About three minutes on one core. `--keep` takes the CSV files as they are.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from measure import markdown

from robfcp._files import write_atomically
from robfcp.experiments import natural_partitions
from robfcp.experiments.natural_partitions import (
    DEFENSES_COMPARED,
    FEDERATIONS,
    LOW_COVERAGE,
    REPORT_KINDS,
    TITLES,
)
from robfcp.experiments.paper.result_rows import to_csv
from robfcp.figures import BLUE, GRAY, GREEN, ORANGE, new_axes, save

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "natural-partitions"
Rows = Sequence[dict[str, Any]]

# Column of the table of sites -> color and label of its curve.
CURVES = {
    "dealt": (GRAY, "dealt at random"),
    "pooled": (BLUE, "one threshold"),
    "class-conditional": (ORANGE, "one per class"),
    "local-clipped": (GREEN, "feedback"),
}

# Column of the table of methods on the page -> how a row is shown in it.
METHOD_FORMATS = {
    "all samples": "{overall:.3f}",
    "worst site": "{worst:.3f}",
    f"sites below {LOW_COVERAGE}": "{low:.0%}",
    "worst class": "{worst_class:.3f}",
    "set size": "{set_size:.2f}",
}


def measured(n_runs: int) -> dict[str, Rows]:
    """Return rows of sites, methods and attacks of each federation, with reports of each kind."""
    all_client_rows: list[dict[str, Any]] = []
    method_rows: list[dict[str, Any]] = []
    for federation, kind in product(FEDERATIONS, REPORT_KINDS):
        client_rows, summary_rows = natural_partitions.client_table(federation, n_runs, kind)
        all_client_rows.extend(client_rows)
        method_rows.extend(summary_rows)
        print(f"{federation.title}, {kind} reports: {len(client_rows)} sites", flush=True)
    detection = natural_partitions.detection_table(n_runs, n_runs)
    return {"sites": all_client_rows, "methods": method_rows, "detection": detection}


def tables(method_rows: Rows, detection: Rows) -> Iterator[str]:
    """Yield the page's tables, in its order; exact counts are in parentheses or come last."""
    yield methods_table(method_rows)
    yield benign_table([row for row in detection if not row["n_malicious"]])
    for kind in REPORT_KINDS:
        yield detection_table(
            [row for row in detection if row["n_malicious"] and row["reports"] == kind]
        )


def methods_table(rows: Rows) -> str:
    """Return a line a federation and method."""
    lines = []
    for default, exact in _pairs(rows, ("federation", "method")):
        cells = [default["federation"], TITLES[default["method"]]]
        for text in METHOD_FORMATS.values():
            cells.append(f"{text.format(**default)} ({text.format(**exact)})")
        lines.append(cells)
    return markdown(["federation", "method", *METHOD_FORMATS], lines)


def benign_table(rows: Rows) -> str:
    """Return a line a federation without malicious sites: false positives, and the error."""
    lines = []
    for default, exact in _pairs(rows, ("federation",)):
        cells = [default["federation"], default["n_benign"]]
        for name in DEFENSES_COMPARED:
            text = f"{{{name}_n_false_positives:.1f}}, {{{name}_error:+.3f}}"
            cells.append(f"{text.format(**default)} ({text.format(**exact)})")
        lines.append(cells)
    columns = [f"{name}: false positives, error" for name in DEFENSES_COMPARED]
    return markdown(["federation", "sites", *columns], lines)


def detection_table(rows: Rows) -> str:
    """Return a line an attack and a column a federation: errors, and malicious sites detected."""
    error_texts = [f"{{{name}_error:+.3f}}" for name in ("none", *DEFENSES_COMPARED)]
    text = " / ".join(error_texts) + f"; {{{DEFENSES_COMPARED[-1]}_n_detected:.1f}}"
    heads: dict[str, str] = {}
    cells_of_fault: dict[str, list[str]] = {}
    for row in rows:
        heads[row["federation"]] = f"{row['federation']}, {row['n_malicious']} malicious"
        attack = f"`{row['attack']}`"
        cells_of_fault.setdefault(attack, [attack]).append(text.format(**row))
    return markdown(["attack", *heads.values()], cells_of_fault.values())


def _pairs(rows: Rows, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the rows of default reports, each with that of exact counts in the same columns."""
    exact_rows = {}
    for row in rows:
        if row["reports"] == "exact":
            exact_rows[tuple(row[column] for column in columns)] = row
    for row in rows:
        if row["reports"] == "default":
            yield row, exact_rows[tuple(row[column] for column in columns)]


def read_csv(path: Path) -> Rows:
    """Return the rows as they were written."""
    with path.open(encoding="utf-8") as stream:
        return [_parse_row(row) for row in csv.DictReader(stream)]


def _parse_row(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with its values parsed."""
    return {name: _parse_value(text) for name, text in row.items()}


def _parse_value(text: str) -> int | float | str:
    """Return a cell as a number where it is one."""
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def draw(rows: Rows, path: Path) -> None:
    """Draw the sorted coverage of all sites on default reports, for each method; and dealt."""
    default_rows = [row for row in rows if row["reports"] == "default"]
    axes = new_axes(len(FEDERATIONS), 3.4)
    for ax, federation in zip(axes, FEDERATIONS, strict=True):
        federation_rows = [row for row in default_rows if row["federation"] == federation.title]
        x = np.arange(len(federation_rows)) / len(federation_rows)
        line = "o-" if len(federation_rows) < 10 else "-"
        for column, (color, label) in CURVES.items():
            coverages = np.sort([row[column] for row in federation_rows])
            ax.plot(x, coverages, line, color=color, label=label)
        ax.axhline(0.9, color="black", linewidth=0.6, linestyle=":")
        ax.set(title=federation.title, xlabel="fraction of sites, sorted", ylim=(0.55, 1.01))
    axes[0].set_ylabel("coverage")
    axes[0].legend(fontsize=7.5)
    save(axes, path)


def main() -> None:
    """Measure or read, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-runs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.output
    if arguments.keep:
        contents = {
            name: read_csv(folder / f"{name}.csv") for name in ("sites", "methods", "detection")
        }
    else:
        contents = measured(arguments.n_runs)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in contents.items():
            write_atomically(folder / f"{name}.csv", to_csv(rows))
        draw(contents["sites"], folder / "coverage.png")
    print("\n\n".join(tables(contents["methods"], contents["detection"])))


if __name__ == "__main__":
    main()
