"""Reports as they came, kept in files while a round waits for the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robfcp._files import make_folder
from robfcp.federation import FilePath
from robfcp.fleet._arrow import import_pyarrow, write_rows
from robfcp.fleet._table_header import SHARED

REPLIES_IN_MEMORY = 256


class ReplyStore:
    """Reports as they came, in tables of a folder: `REPLIES_IN_MEMORY` at most are in memory.

    What a round that died had written is there when the next one begins.

    Parameters
    ----------
    folder : path
        Made if it is not there.

    Attributes
    ----------
    round : str
        The round that the reports are of; empty without any.
    """

    def __init__(self, folder: FilePath) -> None:
        self._folder = make_folder(folder)
        self._waiting: list[dict[str, Any]] = []
        self.round = ""
        for path in self._files():
            metadata = import_pyarrow().parquet.read_schema(path).metadata or {}
            self.round = metadata.get(SHARED, b"").decode(errors="replace")

    def _files(self) -> list[Path]:
        """Return the files of the folder, in the order in which they were written."""
        return sorted(self._folder.glob("replies-*.parquet"))

    def add(self, client: str, data: bytes, round: str) -> str:
        """Keep a report; return the client's name, which is its receipt."""
        self._waiting.append({"client": client, "sent": data})
        self.round = round
        if len(self._waiting) >= REPLIES_IN_MEMORY:
            self._write_waiting()
        return client

    def _write_waiting(self) -> None:
        """Write the reports in memory to a file of their own."""
        pa = import_pyarrow()
        if self._waiting:
            columns = pa.schema({"client": pa.string(), "sent": pa.binary()})
            columns = columns.with_metadata({SHARED: self.round.encode()})
            path = self._folder / f"replies-{len(self._files()):06d}.parquet"
            write_rows(path, self._waiting, columns)
        self._waiting = []

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self._write_waiting()
        for path in self._files():
            file = import_pyarrow().parquet.ParquetFile(path)
            for batch in file.iter_batches(REPLIES_IN_MEMORY):
                clients, reports = (column.to_pylist() for column in batch.columns)
                yield from zip(clients, reports, strict=True)

    def clear(self) -> None:
        """Forget all reports: the round is over."""
        for path in self._files():
            path.unlink()
