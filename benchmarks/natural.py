"""Natural federations: `python benchmarks/natural.py` prints tables of docs/natural.md.

It writes their CSV files and the figure beside the page, and needs nothing but the package: the
outputs ship with it. About a quarter of an hour on two cores, most of it the letters of 118
hospitals. `--keep` takes the CSV files as they are.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
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

# Column of the table of sites -> color and label of its curve.
CURVES = {
    "dealt": (GREY, "dealt at random"),
    "pooled": (BLUE, "one threshold"),
    "by class": (ORANGE, "one a class"),
    "letter": (GREEN, "own letter"),
}

# Column of a table on the page -> how a row is shown in it.
RULE_FORMATS = {
    "rule": "{rule}",
    "all samples": "{overall:.3f}",
    "worst site": "{worst:.3f} ({worst_site})",
    "tenth part below": "{tenth:.3f}",
    "best": "{best:.3f}",
    f"sites below {LOW_COVERAGE}": "{low:.0%}",
    "worst class": "{worst_class:.3f}",
    "set size": "{set_size:.2f}",
}


def measured(seeds: int) -> dict[str, Rows]:
    """Return a row a site, a row a federation and rule, a row a federation and fault."""
    sites: list[dict[str, Any]] = []
    rules: list[dict[str, Any]] = []
    for federation in FEDERATIONS:
        site_rows, rule_rows = natural_partitions.client_table(federation, seeds)
        sites.extend(site_rows)
        rules.extend(rule_rows)
        print(f"{federation.title}: {len(site_rows)} sites", flush=True)
    detection = natural_partitions.detection_table(seeds, seeds)
    return {"sites": sites, "rules": rules, "found": detection}


def tables(rules: Rows, detection: Rows) -> Iterator[str]:
    """Yield the page's tables, in its order."""
    titled_rules = [{**row, "rule": TITLES[row["rule"]]} for row in rules]
    yield table(titled_rules, RULE_FORMATS)

    formats = {"sites": "{honest}"}
    for name in DEFENSES_COMPARED:
        formats[f"{name}: accused, error"] = f"{{{name}_false_alarms:.1f}}, {{{name}_error:+.3f}}"
    yield table([row for row in detection if not row["liars"]], formats)

    formats = {"fault": "`{attack}`", "lie": "{liars}", "undefended: error": "{none_error:+.3f}"}
    for name in DEFENSES_COMPARED:
        formats[f"{name}: error"] = f"{{{name}_error:+.3f}}"
        formats[f"{name}: found, accused"] = f"{{{name}_found:.1f}}, {{{name}_false_alarms:.1f}}"
    yield table([row for row in detection if row["liars"]], formats)


def table(rows: Rows, formats: dict[str, str]) -> str:
    """Return a table with a column a format, the federation first."""
    all_formats = {"federation": "{federation}", **formats}
    lines = []
    for row in rows:
        lines.append([text.format(**row) for text in all_formats.values()])
    return markdown(list(all_formats), lines)


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
    """Draw every site's coverage, sorted, by each rule; and with samples dealt out at random."""
    axes = new_axes(len(FEDERATIONS), 3.4)
    for ax, federation in zip(axes, FEDERATIONS, strict=True):
        sites = [row for row in rows if row["federation"] == federation.title]
        x = np.arange(len(sites)) / len(sites)
        line = "o-" if len(sites) < 10 else "-"
        for column, (color, label) in CURVES.items():
            coverages = np.sort([row[column] for row in sites])
            ax.plot(x, coverages, line, color=color, label=label)
        ax.axhline(0.9, color="black", linewidth=0.6, linestyle=":")
        ax.set(title=federation.title, xlabel="share of sites, sorted", ylim=(0.55, 1.01))
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
        contents = {name: read_csv(folder / f"{name}.csv") for name in ("sites", "rules", "found")}
    else:
        contents = measured(arguments.seeds)
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in contents.items():
            write_atomically(folder / f"{name}.csv", to_csv(rows))
        draw(contents["sites"], folder / "coverage.png")
    print("\n\n".join(tables(contents["rules"], contents["found"])))


if __name__ == "__main__":
    main()
