"""What is wrong with a row of a packed file, without reading again all that many rows share."""

from __future__ import annotations

from robfcp.errors import ReportError
from robfcp.federation.columns import Columns
from robfcp.federation.faults import Fault, fault_of
from robfcp.grid import Grid
from robfcp.report import Report, WireContext, slim_context

_KEPT = 8  # contexts: each may hold a large grid


class WrongRows:
    """Says what is wrong with rows of a file.

    A row takes some bytes and a context may take millions, so a context is understood once and
    the row is read with what is left of it.

    Parameters
    ----------
    columns
        The file.
    grid
        The round's grid where it is known.
    """

    def __init__(self, columns: Columns, grid: Grid | None) -> None:
        self._columns, self._grid = columns, grid
        self._slim: dict[int, tuple[WireContext, Grid | None]] = {}

    def fault(self, row: int, source: str) -> Fault | None:
        """The fault of a row; None where the row has to be read whole."""
        kind = self._columns.kind(row)
        if not self._columns.contexts[kind].exact:
            return None
        context, grid = self._context(kind)
        try:
            Report.from_json(self._columns.json(row, context), source, grid)
        except ReportError as error:
            return fault_of(error)
        return None

    def _context(self, kind: int) -> tuple[WireContext, Grid | None]:
        if kind not in self._slim:
            if len(self._slim) >= _KEPT:
                self._slim.clear()
            self._slim[kind] = slim_context(self._columns.contexts[kind], self._grid)
        return self._slim[kind]
