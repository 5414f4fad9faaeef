"""The numbers the paper published: 578 coverages and set sizes, one a row."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Published:
    """One published figure with the setting it belongs to; beta 0 is an iid split."""

    table: str
    dataset: str
    beta: float | None
    ratio: float
    number: str  # of malicious clients: known, unknown or misstated
    attack: str
    method: str
    coverage: float
    set_size: float


DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "Tiny-ImageNet": "tinyimagenet",
    "SHHS": "sleep",  # ours: Sleep-EDF Expanded, since SHHS is not public
    "PathMNIST": "pathmnist",
}


@cache
def published() -> tuple[Published, ...]:
    """Every row, with our names of the data sets."""
    text = files("robfcp.lab.paper").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            table=row["table"],
            dataset=DATASETS[row["dataset"]],
            beta=float(row["dirichlet_beta"]) if row["dirichlet_beta"] else None,
            ratio=float(row["malicious_ratio"]),
            number=row["malicious_number"],
            attack=row["attack"],
            method=row["method"],
            coverage=float(row["coverage"]),
            set_size=float(row["set_size"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


def table(name: str) -> tuple[Published, ...]:
    """The rows of one table, or of all tables `name:...`."""
    return tuple(row for row in published() if row.table.split(":")[0] == name)
