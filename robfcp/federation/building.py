"""Tables that grow as reports come in, holding only the bins in use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.counts import Counts, Entries, Ragged, SparseCounts, narrowed, table

Indices = NDArray[np.intp]


class CountsBuilder:
    """Collects rows block by block, in the smallest whole numbers."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._lengths: list[NDArray[np.int64]] = []
        self._chunks: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._whole: SparseCounts | None = None

    def add(self, rows: Ragged) -> int:
        """Keep some rows; the number of the first."""
        first = self.n_rows
        self.n_rows += len(rows.lengths)
        self._lengths.append(rows.lengths)
        self._chunks.append((narrowed(rows.cells), narrowed(rows.values)))
        return first

    def content(self, row: int) -> bytes:
        """All that stands in a row: the same for two rows only if they are."""
        whole = self._sealed(0)
        here = slice(whole.starts[row], whole.starts[row + 1])
        return whole.bins[here].tobytes() + whole.values[here].tobytes()

    def entries(self, chosen: Indices) -> Entries:
        """The chosen rows in the given order."""
        return self._sealed(0).rows(chosen).entries()

    def build(self, chosen: Indices, n_bins: int) -> Counts:
        """The chosen rows, all on grids of `n_bins`, in the given order; empties the builder."""
        rows = self._sealed(n_bins)
        self._whole = None
        if not np.array_equal(chosen, np.arange(rows.n_rows)):
            rows = rows.rows(chosen)
        return table(*rows.entries(), n_bins)

    def _sealed(self, n_bins: int) -> SparseCounts:
        """All rows in one piece; nothing can be added any more."""
        if self._whole is None:
            nothing = np.zeros(0, dtype=np.uint8)
            lengths = np.concatenate([nothing.astype(np.int64), *self._lengths])
            starts = np.concatenate([[0], np.cumsum(lengths)])
            bins, values = (
                np.concatenate([nothing, *(chunk[side] for chunk in self._chunks)])
                for side in (0, 1)
            )
            self._lengths, self._chunks = [], []
            self._whole = SparseCounts(starts, bins, values, n_bins)
        return SparseCounts(self._whole.starts, self._whole.bins, self._whole.values, n_bins)


class PartBuilder:
    """Collects what only some of the reports have, with the rows of these."""

    def __init__(self) -> None:
        self._builder = CountsBuilder()
        self._rows: list[Indices] = []

    def add(self, part: Ragged, first: int) -> None:
        """Keep what rows of a block have, whose first row has this number."""
        if len(part.rows):
            self._rows.append(part.rows + first)
            self._builder.add(part)

    @property
    def rows(self) -> Indices:
        """Which reports have it, rising."""
        if len(self._rows) != 1:  # asked once a report: joined once for all of them
            self._rows = [np.concatenate([np.zeros(0, dtype=np.intp), *self._rows])]
        return self._rows[0]

    def content(self, row: int) -> bytes | None:
        """All that a report has of it; None where it has nothing."""
        rows = self.rows
        place = int(np.searchsorted(rows, row))
        held = place < len(rows) and rows[place] == row
        return self._builder.content(place) if held else None

    def entries(self) -> Entries:
        """What all that have something have."""
        return self._builder.entries(np.arange(self._builder.n_rows))

    def build(self, chosen: Indices, width: int) -> Counts:
        """What the chosen reports have, which all have something; empties the builder."""
        return self._builder.build(np.searchsorted(self.rows, chosen), width)
