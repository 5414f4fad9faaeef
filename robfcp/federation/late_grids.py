"""Grids that are not kept while it is open which one the round has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robfcp.grid import Grid, named

KEPT_BINS = 10_000


@dataclass(frozen=True, eq=False)
class LateGrid:
    """A large grid by its name: a line of a report can name a million edges."""

    name: str
    parameters: Mapping[str, Any]
    digest: str
    n_bins: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Grid, LateGrid)) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"


AnyGrid = Grid | LateGrid


def kept(grid: Grid) -> AnyGrid:
    """The grid itself, or its name where it is large and has one that makes it again."""
    if grid.n_bins <= KEPT_BINS or not grid.parameters:
        return grid
    return LateGrid(grid.name, grid.parameters, grid.digest, grid.n_bins)


def built(grid: AnyGrid) -> Grid:
    """The grid with its edges."""
    return grid if isinstance(grid, Grid) else named(grid.name, grid.parameters)
