"""Tables: ours beside the paper's and the closed form, with the spread over seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from robfcp.lab.outputs import entries
from robfcp.lab.paper.cases import Case
from robfcp.lab.paper.runner import Results
from robfcp.lab.paper.trials import clients_of


@dataclass(frozen=True)
class TableRow:
    """Means over seeds with standard deviations; `expected` is the closed form where one exists."""

    dataset: str
    model: str  # of the shipped outputs: final or early
    accuracy: float
    split: str  # of the calibration data: iid, beta=... or a sleep stage
    clients: int
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
    everywhere: float  # coverage on all clients' test halves
    expected: float | None
    published_coverage: float | None
    published_set_size: float | None
    assumed: float
    flagged: float
    caught: float
    told: float | None
    liar_oddity: float | None
    honest_oddity: float | None
    first_bin: float
    last_bin: float
    seeds: int


def make_rows(cases: Sequence[Case], results: Results) -> list[TableRow]:
    """One row a case, in the order of the cases; a case that comes twice is one row."""
    rows = {}
    for case in cases:
        found = results[case.world, case.run]
        world = case.world
        split = world.attribute or ("iid" if world.beta == 0 else f"beta={world.beta:g}")
        coverage, coverage_sd = _moments([one.coverage for one in found])
        set_size, set_size_sd = _moments([one.set_size for one in found])
        row = TableRow(
            dataset=world.dataset,
            model=world.stage,
            accuracy=_accuracy(world.dataset, world.split, world.stage),
            split=split,
            clients=clients_of(world),
            ratio=case.run.ratio,
            number=case.number,
            attack=case.run.attack,
            variant=case.variant,
            method=case.run.method,
            coverage=coverage,
            coverage_sd=coverage_sd,
            set_size=set_size,
            set_size_sd=set_size_sd,
            honest_coverage=float(np.mean([one.honest_coverage for one in found])),
            honest_set_size=float(np.mean([one.honest_set_size for one in found])),
            everywhere=float(np.mean([one.everywhere for one in found])),
            expected=_mean([one.expected for one in found]),
            published_coverage=case.published[0] if case.published else None,
            published_set_size=case.published[1] if case.published else None,
            assumed=float(np.mean([one.assumed for one in found])),
            flagged=float(np.mean([one.flagged for one in found])),
            caught=float(np.mean([one.caught for one in found])),
            told=case.run.told,
            liar_oddity=_mean([one.liar_oddity for one in found]),
            honest_oddity=_mean([one.honest_oddity for one in found]),
            first_bin=float(np.mean([one.first_bin for one in found])),
            last_bin=float(np.mean([one.last_bin for one in found])),
            seeds=len(found),
        )
        rows[case.world, case.run, case.variant] = row
    return list(rows.values())


def _moments(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


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
