"""The results page, made from the files that `reproduce` leaves in a directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robfcp._util.files import write_atomically
from robfcp.errors import RobfcpError
from robfcp.lab.outputs import NATURAL, entries
from robfcp.lab.paper.experiments import NAMES

METHODS = (("fcp", "FCP, undefended"), ("rob-fcp", "Rob-FCP, as published"), ("band", "band, ours"))
KEYS = ("dataset", "model", "split", "ratio", "attack", "variant")
INTRO = """# Results: every table and figure of the paper, ours beside theirs

This page and its figures are written by

    robfcp reproduce all -o out/paper --page docs/results.md

from outputs that ship with the package; it needs no network, no GPU and a few minutes. One
experiment alone: `robfcp reproduce main -o out/paper`. All rows with their spreads are in the CSV
file linked under each table.

**How to read a cell.** `coverage ±sd / set size`, means and standard deviations over {seeds} seeds
(each a new split of the test samples over 100 clients, halved into calibration and test, and new
attackers), then the figure the paper published in brackets. *Closed form* is undefended FCP's
expected coverage, `(0.9 - f)/(1 - f)` against coverage attackers and `min(1, 0.9/(1 - f))`
against efficiency attackers, f being the liars' share of the samples. *Honest alone* is what the
honest clients get without anybody else; a perfect defence equals it. **Bold** cells are more than
0.02 off it.

**The rules.** Target coverage 0.9. All methods take the rank from N + 1, as the paper's tables
did, and the threshold on the fine grid; Rob-FCP looks at 100 uniform bins and leaves out exactly
the number it is told; band is our default defence, told the same number as an upper bound. The
gaussian attack adds noise of standard deviation 0.5, clipped to [0, 1]. SHHS is access-restricted:
Sleep-EDF Expanded (five stages, other subjects than the training ones) stands in for it.

**Early models.** For three models whose final benign sets are much smaller than the published ones,
an earlier round ships too (`early`): of the rounds we kept, the one whose benign set size on this
same test data is nearest to the published figure. They were picked for that likeness, so their
benign sizes confirm nothing; what can be compared is how the attacks and defences act on them.

**Under the tables** stand measurements of the worst cells (who was left out, how malicious liars
and honest clients looked to the method, how many honest scores share the bin the liars report).
They are not tests of a cause.

## The shipped models
"""


def write_page(directory: Path, page: Path) -> None:
    """Write the page from the JSON files in `directory` and put figures and CSV files beside it."""
    contents = {}
    for name in NAMES:
        path = directory / f"{name}.json"
        if path.is_file():
            contents[name] = json.loads(path.read_text())
    if not contents:
        raise RobfcpError(f"{directory}: holds no results; run `robfcp reproduce all` first")
    assets = page.parent / page.stem
    assets.mkdir(parents=True, exist_ok=True)
    parts = [INTRO.format(seeds=_seeds(contents)), _models()]
    for name, content in contents.items():
        for suffix in (".png", ".csv"):
            shutil.copyfile(directory / f"{name}{suffix}", assets / f"{name}{suffix}")
        parts.append(_section(name, content, page.stem))
    write_atomically(page, "\n".join(parts) + "\n")


def _seeds(contents: dict[str, Any]) -> int:
    found = {
        row["seeds"] for content in contents.values() for row in content["rows"] if "seeds" in row
    }
    return min(found) if found else 0


def _models() -> str:
    lines = [
        "| outputs | trained on | rounds | accuracy | benign set size | seconds | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in (entry for entry in entries() if entry["split"] != NATURAL):
        lines.append(
            f"| {entry['dataset']} {entry['split']} {entry['stage']} | {entry['trained_on']} "
            f"| {entry['rounds']} | {entry['accuracy']:.4f} | {entry['benign_set_size']:.3f} "
            f"| {entry['seconds']:.0f} | `{entry['command']}` |"
        )
    lines.append(
        f"\nTrained with FedAvg over 100 clients on one {entries()[0]['device']}, two to four runs "
        "at a time sharing it (the seconds are wall time); local epochs, fraction and batch of "
        "each are in `robfcp.lab.outputs.entries()`. A script called the functions behind the "
        "commands shown. The mnist beta0.5 model was trained twice more and reached accuracy "
        "0.9884 both times; the others were trained once. CIFAR-10, Tiny-ImageNet and sleep used "
        "5 local epochs where the paper used 10."
    )
    return "\n".join(lines)


def _section(name: str, content: dict[str, Any], folder: str) -> str:
    lines = [f"\n## {content['title']}\n", f"`robfcp reproduce {name} -o out/paper`\n"]
    lines += [f"- {remark}" for remark in content["remarks"]]
    lines.append(f"\n![{content['title']}]({folder}/{name}.png)\n")
    rows = content["rows"]
    if name == "counting":
        lines.append(_count_table(rows))
    elif "method" in rows[0]:
        lines.append(_pivot(rows))
    else:
        lines.append(_plain(rows))
    lines.append(f"\n[{name}.csv]({folder}/{name}.csv)")
    return "\n".join(lines)


def _pivot(rows: Sequence[dict[str, Any]]) -> str:
    settings: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        settings.setdefault(tuple(row[key] for key in KEYS), {})[row["method"]] = row
    present = [
        (key, label) for key, label in METHODS if any(key in found for found in settings.values())
    ]
    used = [
        i
        for i, key in enumerate(KEYS)
        if len({str(s[i]) for s in settings}) > 1 or key == "dataset"
    ]
    head = (
        [KEYS[i] for i in used] + ["honest alone", "closed form"] + [label for _, label in present]
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for setting, found in settings.items():
        first = next(iter(found.values()))
        form = next((r["expected"] for r in found.values() if r["expected"] is not None), None)
        cells = [_label(KEYS[i], setting[i]) for i in used]
        cells.append(f"{first['honest_coverage']:.3f} / {first['honest_set_size']:.2f}")
        cells.append("" if form is None else f"{form:.3f}")
        cells += [_cell(found[key]) if key in found else "" for key, _ in present]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _label(key: str, value: Any) -> str:
    return f"{value:.0%}" if key == "ratio" else str(value)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['coverage']:.3f} ±{row['coverage_sd']:.3f} / {row['set_size']:.2f}"
    if abs(row["coverage"] - row["honest_coverage"]) > 0.02:
        text = f"**{text}**"
    if row["published_coverage"] is not None:
        text += f" ({row['published_coverage']:g} / {row['published_set_size']:g})"
    return text


def _count_table(rows: Sequence[dict[str, Any]]) -> str:
    ratios = sorted({row["ratio"] for row in rows})
    lines = [
        "Mean estimate by the paper's likelihood / by ours, for the true number above it.\n",
        "| dataset | model | attack | " + " | ".join(f"{100 * r:.0f}" for r in ratios) + " |",
        "|---|---|---|" + "---|" * len(ratios),
    ]
    table: dict[tuple[str, str, str], dict[tuple[float, str], float]] = {}
    for row in rows:
        key = (row["dataset"], row["model"], row["variant"])
        table.setdefault(key, {})[row["ratio"], row["method"]] = row["assumed"]
    for key, found in table.items():
        cells = [f"{found[r, 'rob-fcp']:.1f} / {found[r, 'band']:.1f}" for r in ratios]
        lines.append("| " + " | ".join([*key, *cells]) + " |")
    return "\n".join(lines)


def _plain(rows: Sequence[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
