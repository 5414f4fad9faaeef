"""Tables: ours beside the paper's and the closed form, with the spread over seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from robfcp.outputs import entries
from robfcp.paper.cases import Case
from robfcp.paper.runner import Results


@dataclass(frozen=True)
class TableRow:
    """Means over seeds with standard deviations; `expected` is the closed form where one exists."""

    dataset: str
    model: str  # of the shipped outputs: final or early
    accuracy: float
    split: str  # of the calibration data: iid, beta=... or a sleep stage
    ratio: float
    number: str
    attack: str
    variant: str
    method: str
    coverage: float
    coverage_sd: float
    set_size: float
    set_size_sd: float
    honest_coverage: float
    honest_set_size: float
    expected: float | None
    published_coverage: float | None
    published_set_size: float | None
    assumed: float
    flagged: float
    caught: float
    seeds: int


def make_rows(cases: Sequence[Case], results: Results) -> list[TableRow]:
    """One row a case, in the order of the cases; a case that comes twice is one row."""
    rows = {}
    for case in cases:
        found = results[case.world, case.run]
        expected = [one.expected for one in found if one.expected is not None]
        world = case.world
        split = world.attribute or ("iid" if world.beta == 0 else f"beta={world.beta:g}")
        row = TableRow(
            world.dataset,
            world.stage,
            _accuracy(world.dataset, world.split, world.stage),
            split,
            case.run.ratio,
            case.number,
            case.run.attack,
            case.variant,
            case.run.method,
            *_moments([one.coverage for one in found]),
            *_moments([one.set_size for one in found]),
            float(np.mean([one.honest_coverage for one in found])),
            float(np.mean([one.honest_set_size for one in found])),
            float(np.mean(expected)) if expected else None,
            case.published[0] if case.published else None,
            case.published[1] if case.published else None,
            float(np.mean([one.assumed for one in found])),
            float(np.mean([one.flagged for one in found])),
            float(np.mean([one.caught for one in found])),
            len(found),
        )
        rows[case.world, case.run, case.variant] = row
    return list(rows.values())


def _moments(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _accuracy(dataset: str, split: str, stage: str) -> float:
    for entry in entries():
        if (entry["dataset"], entry["split"], entry["stage"]) == (dataset, split, stage):
            return float(entry["accuracy"])
    raise KeyError((dataset, split, stage))


def to_csv(rows: Sequence[TableRow]) -> str:
    """The rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(TableRow)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                key: f"{value:.6g}" if isinstance(value, float) else value
                for key, value in asdict(row).items()
            }
        )
    return text.getvalue()


def remarks(rows: Sequence[TableRow]) -> list[str]:
    """Where we differ from the published figures, and why, a line each."""
    lines = []
    compared = [row for row in rows if row.published_coverage is not None]
    off_form = [
        row
        for row in compared
        if row.expected is not None and abs((row.published_coverage or 0) - row.expected) > 0.01
    ]
    if off_form:
        worst = max(off_form, key=lambda r: abs((r.published_coverage or 0) - (r.expected or 0)))
        lines.append(
            f"{len(off_form)} published FCP coverages are over 0.01 off the closed form (most: "
            f"{_name(worst)}, published {worst.published_coverage:.3f}, closed form "
            f"{worst.expected:.3f}, ours {worst.coverage:.3f}); the published ones are single runs "
            "or rest on the liars' share of clients where ours counts their share of samples."
        )
    fails = [
        row
        for row in rows
        if row.method == "rob-fcp" and abs(row.coverage - row.honest_coverage) > 0.02
    ]
    for attack in dict.fromkeys(row.attack for row in fails):
        group = [row for row in fails if row.attack == attack]
        worst = max(group, key=lambda r: abs(r.coverage - r.honest_coverage))
        lines.append(
            f"Rob-FCP is more than 0.02 off the honest clients in {len(group)} cells under the "
            f"{attack} attack (most: {_name(worst)}, {worst.coverage:.3f} against "
            f"{worst.honest_coverage:.3f}): {_reason(attack, worst)}."
        )
    ours = [
        row
        for row in rows
        if row.method == "band" and abs(row.coverage - row.honest_coverage) > 0.02
    ]
    if ours:
        worst = max(ours, key=lambda r: abs(r.coverage - r.honest_coverage))
        lines.append(
            f"Band is more than 0.02 off in {len(ours)} cells (most: {_name(worst)}, "
            f"{worst.coverage:.3f} against {worst.honest_coverage:.3f}): with clients this unlike "
            "each other the liars do not stand out, so it leaves them in rather than guess."
        )
    elif any(row.method == "band" for row in rows):
        lines.append("Band is within 0.02 of the honest clients alone in every cell.")
    sized = [
        row
        for row in compared
        if row.method == "fcp" and row.attack == "none" and row.published_set_size
    ]
    if sized:
        lines.append(
            "Benign set sizes differ from the published ones where our models are better or worse: "
            + ", ".join(
                f"{_name(row)} {row.set_size:.2f} against {row.published_set_size:.2f}"
                for row in sized
                if abs(np.log(row.set_size / (row.published_set_size or 1))) > 0.15
            )
            + "."
        )
    return lines


def _name(row: TableRow) -> str:
    stage = "" if row.model == "final" else f" ({row.model} model)"
    share = f" at {row.ratio:.0%}" if row.ratio else ""
    variant = f" {row.variant}" if row.variant else ""
    return f"{row.dataset}{stage} {row.split}{variant}{share}"


def _reason(attack: str, row: TableRow) -> str:
    if attack == "coverage":
        return (
            "honest scores crowd the first of the uniform bins, so liars who report zeros look "
            "ordinary and, being alike, more ordinary than honest clients"
        )
    if attack == "efficiency":
        return (
            "honest scores crowd the last of the uniform bins or honest clients differ more from "
            "each other than identical liars do"
        )
    if attack == "mimic":
        return "copies of one client have no distance from each other, so they are trusted first"
    if attack == "none":
        return "it leaves out clients although nobody attacks"
    return (
        "the noise (standard deviation 0.5; the paper also says variance 0.5) makes liars no "
        "farther from each other than honest clients are"
    )
