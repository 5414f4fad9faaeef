"""Natural federations: `python benchmarks/natural.py` prints tables of docs/natural.md.

It writes their CSV files and the figure beside the page, and needs nothing but the package: the
outputs ship with it. About a quarter of an hour on two cores, most of it the letters of 118
hospitals. `--keep` takes the CSV files as they are.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
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
    TITLES,
)
from robfcp.experiments.paper.tables import to_csv
from robfcp.figures import BLUE, GREEN, GREY, ORANGE, new_axes, save

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "natural"
Rows = Sequence[dict[str, Any]]
CURVES = (
    ("dealt", GREY, "dealt at random"),
    ("pooled", BLUE, "one threshold"),
    ("by class", ORANGE, "one a class"),
    ("letter", GREEN, "own letter"),
)


def measured(seeds: int) -> dict[str, Rows]:
    """A row a site, a row a federation and rule, a row a federation and fault."""
    found: dict[str, Any] = {"sites": [], "rules": []}
    for one in FEDERATIONS:
        rows, rules = natural_partitions.client_table(one, seeds)
        found["sites"] += rows
        found["rules"] += rules
        print(f"{one.title}: {len(rows)} sites", flush=True)
    return {**found, "found": natural_partitions.detection_table(seeds, seeds)}


def tables(rules: Rows, found: Rows) -> Iterator[str]:
    """The page's tables, in its order."""
    named = [{**row, "rule": TITLES[row["rule"]]} for row in rules]
    shown = {
        "rule": "{rule}", "all samples": "{overall:.3f}",
        "worst site": "{worst:.3f} ({worst_site})", "tenth part below": "{tenth:.3f}",
        "best": "{best:.3f}", f"sites below {LOW_COVERAGE}": "{low:.0%}",
        "worst class": "{worst_class:.3f}", "set size": "{set_size:.2f}",
    }  # fmt: skip
    yield table(named, shown)
    shown = {"sites": "{honest}"}
    for name in DEFENSES_COMPARED:
        shown[f"{name}: accused, error"] = f"{{{name}_false_alarms:.1f}}, {{{name}_error:+.3f}}"
    yield table([row for row in found if not row["liars"]], shown)
    shown = {"fault": "`{attack}`", "lie": "{liars}", "undefended: error": "{none_error:+.3f}"}
    for name in DEFENSES_COMPARED:
        shown[f"{name}: error"] = f"{{{name}_error:+.3f}}"
        shown[f"{name}: found, accused"] = f"{{{name}_found:.1f}}, {{{name}_false_alarms:.1f}}"
    yield table([row for row in found if row["liars"]], shown)


def table(rows: Any, shown: dict[str, str]) -> str:
    """A column a format, the federation first."""
    formats = {"federation": "{federation}", **shown}
    return markdown(list(formats), ([f.format(**row) for f in formats.values()] for row in rows))


def read_csv(path: Path) -> Rows:
    """The rows as they were written."""

    def number(text: str) -> object:
        try:
            return int(text) if text.isdigit() else float(text)
        except ValueError:
            return text

    with path.open(encoding="utf-8") as stream:
        return [{k: number(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def draw(rows: Rows, path: Path) -> None:
    """Every site's coverage, sorted, under each rule; and with the samples dealt out at random."""
    axes = new_axes(len(FEDERATIONS), 3.4)
    for ax, one in zip(axes, FEDERATIONS, strict=True):
        chosen = [row for row in rows if row["federation"] == one.title]
        x = np.arange(len(chosen)) / len(chosen)
        for key, colour, label in CURVES:
            values = np.sort([row[key] for row in chosen])
            ax.plot(x, values, "o-" if len(chosen) < 10 else "-", color=colour, label=label)
        ax.axhline(0.9, color="black", linewidth=0.6, linestyle=":")
        ax.set(title=one.title, xlabel="share of sites, sorted", ylim=(0.55, 1.01))
    axes[0].set_ylabel("coverage")
    axes[0].legend(fontsize=7.5)
    save(axes, path)


def main() -> None:
    """Measure or read, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.output
    if arguments.keep:
        found = {name: read_csv(folder / f"{name}.csv") for name in ("sites", "rules", "found")}
    else:
        found = measured(arguments.seeds)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in found.items():
            write_atomically(folder / f"{name}.csv", to_csv(rows))
        draw(found["sites"], folder / "coverage.png")
    print("\n\n".join(tables(found["rules"], found["found"])))


if __name__ == "__main__":
    main()
