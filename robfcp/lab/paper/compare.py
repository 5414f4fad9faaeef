"""All cells of the tables side by side: how far each method is off, and where a rival is ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robfcp.lab.paper.methods import OURS, RIVALS

CELLS = (  # tables of attacks on clients; the others vary Rob-FCP's own parts
    "main",
    "known",
    "unknown",
    "benign",
    "beta-sweep",
    "mimic",
    "evading",
    "noises",
    "attributes",
    "misstated",
    "scores",
)
AHEAD = 0.005  # of coverage: what counts as ahead
APART = 0.02
Contents = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class PaperCell:
    """One setting of one table with every method's row."""

    experiment: str
    setting: str
    rows: Mapping[str, Row]

    def error(self, method: str) -> float:
        """Coverage minus that of the honest clients alone."""
        row = self.rows[method]
        return float(row["coverage"] - row["honest_coverage"])

    def ahead(self, rival: str, of: str = OURS) -> float:
        """How much nearer to the honest clients the rival is than ours; negative: farther."""
        return abs(self.error(of)) - abs(self.error(rival))


def cells(contents: Contents) -> list[PaperCell]:
    """Every setting once, in the order of the tables."""
    found: dict[tuple[Any, ...], PaperCell] = {}
    for name in CELLS:
        groups: dict[tuple[Any, ...], dict[str, Row]] = {}
        for row in contents.get(name, {}).get("rows", ()):
            groups.setdefault(_key(row), {})[row["method"]] = row
        for key, rows in groups.items():
            if OURS in rows:
                found.setdefault(key, PaperCell(name, setting(next(iter(rows.values()))), rows))
    return list(found.values())


def _key(row: Row) -> tuple[Any, ...]:
    score = row["variant"] if row["variant"] == "aps" else ""
    parts = ("dataset", "model", "split", "ratio", "attack", "told")
    return (*(row[part] for part in parts), score)


def setting(row: Row) -> str:
    """A row's setting in words."""
    parts = [row["dataset"], "" if row["model"] == "final" else row["model"], row["split"]]
    if row["ratio"]:
        parts += [row["attack"], f"{row['ratio']:.0%}"]
    if row["variant"] and row["variant"] not in row["attack"]:
        parts.append(row["variant"])
    if row["number"] == "unknown" and row["ratio"]:
        parts.append("number estimated")
    return " ".join(dict.fromkeys(part for part in parts if part))


@dataclass(frozen=True)
class Standing:
    """A method over all cells: mean and worst distance from the honest clients, and how often
    it is more than APART off."""

    method: str
    mean: float
    worst: float
    where: str
    off: int
    total: int


def standings(found: list[PaperCell]) -> list[Standing]:
    """One for every method that stands in the cells, rivals first."""
    names = dict.fromkeys(name for cell in found for name in cell.rows)
    result = []
    for name in names:
        own = [cell for cell in found if name in cell.rows]
        errors = np.abs([cell.error(name) for cell in own])
        worst = own[int(errors.argmax())]
        result.append(
            Standing(
                name,
                float(errors.mean()),
                worst.error(name),
                worst.setting,
                int((errors > APART).sum()),
                len(own),
            )
        )
    return result


def beaten(found: list[PaperCell], ours: str = OURS) -> Iterator[tuple[float, str, PaperCell]]:
    """(lead, rival, cell) where the best rival is nearer than ours by more than AHEAD."""
    leads = []
    for place, cell in enumerate(found):
        rivals = [name for name in RIVALS if name in cell.rows]
        if ours not in cell.rows or not rivals:
            continue
        lead, best = max((cell.ahead(rival, ours), rival) for rival in rivals)
        if lead > AHEAD:
            leads.append((-lead, place, best, cell))
    for lead, _, best, cell in sorted(leads, key=lambda one: one[:2]):
        yield -lead, best, cell
