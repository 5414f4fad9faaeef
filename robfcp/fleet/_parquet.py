"""Reports in files: JSON, and tables in Parquet that are read batch by batch where they are.

Clients send JSON. A table is the server's own storage and is named explicitly: pyarrow trusts what
a Parquet file says of itself, so that none is taken from a folder that clients may write to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from robfcp._files import read_bounded, read_error
from robfcp._typing import BoolArray
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import (
    CountBlock,
    Federation,
    FilePath,
    RawReport,
    RejectedReport,
    RoundStrata,
    StoredTable,
    TableChunk,
)
from robfcp.fleet._arrow import ArrowNamesBuilder, import_pyarrow, write_rows
from robfcp.fleet._table_header import (
    HINT,
    LIST_COLUMNS,
    SHARED,
    TableHeader,
    find_schema_mismatch,
    schema,
)
from robfcp.reports import REPORT_SCHEMA, to_wire_binning, to_wire_score

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

ROWS = 2**13  # read at a time
VALUES = 2**17  # read at a time, at most
_MIN_VALUES = 2**12  # read at a time from however small a file
_BYTES_PER_VALUE = 8  # of a file, for each value that is read at a time
MAX_VALUES_IN_MEMORY = 2**28  # of all tables together, beyond which counts stay in the files

# More numbers would be a trick to fill the memory: reports are not packed that well.
_VALUE_ALLOWANCE = 2**18  # of any file
_MAX_VALUES_PER_BYTE = 8  # besides
_MAX_BYTES_PER_VALUE = 4  # unpacked

# pyarrow would hold a whole file in buffers otherwise.
_READ_OPTIONS: Any = {"pre_buffer": False, "buffer_size": 2**18}

# Why a table in a folder of reports is not read.
UNNAMED_TABLE = "is a table in a folder of reports; name it if it is the server's own"

_NO_REPORT = re.compile(r"\..*|.*\.record\.json")  # hidden files and records of calibrations


class FileFacts(NamedTuple):
    """What is known of a file that looks like a table of reports.

    Attributes
    ----------
    state : tuple of int
        Number, size and time of the file: another state is another file.
    n_rows : int
        Its rows.
    n_values : int
        The numbers that its metadata announce.
    metadata : bytes or None
        What its rows share.
    """

    state: tuple[int, ...]
    n_rows: int
    n_values: int
    metadata: bytes | None


class ColumnTotals(NamedTuple):
    """What the metadata of a file announce of the columns that are read.

    Attributes
    ----------
    n_values : int
        The numbers in them.
    n_bytes : int
        Their bytes, unpacked.
    """

    n_values: int
    n_bytes: int


_NO_STRATA = RoundStrata(None, None)  # until the reports have voted


@dataclass(eq=False)
class ParquetTable(StoredTable):
    """A Parquet file of reports."""

    path: Path
    names_builder = ArrowNamesBuilder
    is_out_of_core: bool = False
    rows: list[Any] = field(default_factory=list)
    positions: list[Any] = field(default_factory=list)
    round_strata: RoundStrata = _NO_STRATA
    shared: TableHeader | None = None

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @contextmanager
    def _open(self, text_columns: Sequence[str] = ()) -> Iterator[Any]:
        """Open the file; refuse it in a line that says what is wrong with it.

        Parameters
        ----------
        text_columns : sequence of str
            Columns that are read as dictionaries: every different text once.
        """
        pa = import_pyarrow()
        try:
            if not self.path.is_file():
                raise FileNotFoundError(self.path)
            with pa.parquet.ParquetFile(
                self.path, read_dictionary=text_columns, **_READ_OPTIONS
            ) as file:
                yield file
        except (FileNotFoundError, PermissionError) as error:
            raise RobfcpError(read_error(self.path, error)) from None
        except (pa.ArrowException, OSError, UnicodeError, KeyError):
            raise RobfcpError(
                f"{self.path}: is cut or no Parquet file; copy it again, or {HINT}"
            ) from None

    @cached_property
    def _facts(self) -> FileFacts:
        """What is known of the file; refused where it is no table of reports, or unfolds to more.

        A few bytes can be a long list, or a long text in every row.
        """
        with self._open() as file:
            columns = file.schema_arrow
            problem = find_schema_mismatch(columns)
            if problem:
                raise RobfcpError(f"{self.path}: {problem}; {HINT}")
            n_rows = file.metadata.num_rows
            metadata = (file.metadata.metadata or {}).get(SHARED)
            status = os.stat(self.path)
            max_values = _VALUE_ALLOWANCE + _MAX_VALUES_PER_BYTE * status.st_size
            totals = _sum_column_chunks(file.metadata, schema().names)
        max_bytes = _MAX_BYTES_PER_VALUE * max_values
        if totals.n_values > max_values or totals.n_bytes > max_bytes:
            raise RobfcpError(
                f"{self.path}: {status.st_size} bytes hold {totals.n_values} numbers in "
                f"{totals.n_bytes} bytes, which no reports do; {HINT}"
            )

        texts = [name for name in ("client", "privacy") if name in columns.names]
        with self._open(texts) as file:
            batches = file.iter_batches(ROWS, columns=texts)
            if sum(map(_bytes_of_texts, batches)) > max_bytes:
                raise RobfcpError(f"{self.path}: holds names beyond all reason; {HINT}")
        return FileFacts(_state_of(status), n_rows, totals.n_values, metadata)

    @property
    def n_values(self) -> int:
        """How many numbers the file holds; none where it cannot be read."""
        try:
            return self._facts.n_values
        except RobfcpError:
            return 0

    def _check_unchanged(self) -> None:
        """Refuse a file that is another one by now."""
        if _state_of(os.stat(self.path)) != self._facts.state:
            raise RobfcpError(f"{self.path}: changed while it was read; start again")

    def _iter_batches(self, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, some at a time: the same ones every time."""
        facts = self._facts
        with self._open() as file:
            self._check_unchanged()
            file_size = facts.state[1]
            max_values = max(_MIN_VALUES, min(VALUES, file_size // _BYTES_PER_VALUE))
            n_fitting = max_values * facts.n_rows // max(facts.n_values, 1)
            n_rows = max(1, min(ROWS, n_fitting))
            present = [name for name in columns if name in file.schema_arrow.names]

            # Memory that the round needed before, and that this pass needs, is given back.
            pool = import_pyarrow().default_memory_pool()
            pool.release_unused()
            yield from file.iter_batches(batch_size=n_rows, columns=present, use_threads=False)
            pool.release_unused()
            self._check_unchanged()

    def iter_chunks(self, binning: Binning | None) -> Iterator[TableChunk]:
        """Yield the rows, checked.

        Parameters
        ----------
        binning : Binning or None
            The round's binning where it is known: rows on another one are refused.
        """
        self.shared = TableHeader.read(self._facts.metadata, self.name, binning)
        for batch in self._iter_batches(schema().names):
            yield self.shared.chunk_of(batch, needs_digests=self.is_out_of_core)

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """Yield what `work` makes of the counts of every batch."""
        assert self.shared is not None
        batches = self._iter_batches(LIST_COLUMNS)
        for batch, positions in zip(batches, self.positions, strict=True):
            yield work(self.shared.count_block(batch, positions, self.round_strata))


def _state_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells one state of a file from another."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _sum_column_chunks(metadata: pa.FileMetaData, columns: Collection[str]) -> ColumnTotals:
    """Return what the metadata of a file announce of some columns."""
    n_values = 0
    n_bytes = 0
    for group_index in range(metadata.num_row_groups):
        row_group = metadata.row_group(group_index)
        for column_index in range(row_group.num_columns):
            chunk = row_group.column(column_index)
            name = chunk.path_in_schema.split(".")[0]  # of a list its entries are further parts
            if name in columns:
                n_values += chunk.num_values
                n_bytes += chunk.total_uncompressed_size
    return ColumnTotals(n_values, n_bytes)


def _bytes_of_texts(texts: pa.RecordBatch) -> int:
    """Return how many bytes the texts of dictionaries take, one in every row that has it."""
    compute = import_pyarrow().compute
    n_bytes = 0
    for column in texts.columns:
        lengths = compute.binary_length(column.dictionary).take(column.indices)
        n_bytes += compute.sum(lengths).as_py() or 0
    return n_bytes


def list_report_files(folder: Path) -> list[Path]:
    """Return the reports in a folder.

    Of a folder that is a table, because its name ends with .parquet, they are the tables in it and
    below, as Spark writes them. Of any other folder they are its .json files. Hidden files, records
    of calibrations, and what Spark begins with _ are none.

    Parameters
    ----------
    folder : Path
        A folder that clients write to, or a table.
    """
    if folder.suffix == ".parquet":
        return _tables_below(folder)
    return [path for path in sorted(folder.glob("*.json")) if not _NO_REPORT.fullmatch(path.name)]


def list_unnamed_tables(folder: Path) -> list[Path]:
    """Return the tables in a folder that is no table itself; they are not read.

    Parameters
    ----------
    folder : Path
        A folder that clients write to, or a table.
    """
    if folder.suffix == ".parquet":
        return []
    return _tables_below(folder)


def _tables_below(folder: Path) -> list[Path]:
    """Return the tables in a folder and below it, without those that are hidden."""
    tables = []
    for path in sorted(folder.rglob("*.parquet")):
        names = path.relative_to(folder).parts
        is_hidden = any(name.startswith((".", "_")) for name in names)
        if not path.is_dir() and not is_hidden:
            tables.append(path)
    return tables


def read_report_files(
    paths: FilePath | Iterable[FilePath],
) -> Iterator[RawReport | RejectedReport | StoredTable]:
    """Yield what stands in files, one at a time; a table as a whole.

    Parameters
    ----------
    paths : path, or iterable of paths
        Files and folders.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        files.extend(list_report_files(path))
        for table in list_unnamed_tables(path):
            yield RejectedReport(f"file:{table}", "file", f"{table}: {UNNAMED_TABLE}")

    tables = {path: ParquetTable(path) for path in files if path.suffix == ".parquet"}
    n_values = sum(table.n_values for table in tables.values())
    is_out_of_core = n_values > MAX_VALUES_IN_MEMORY
    for path in files:
        if _is_link_out_of_folder(path):
            reason = f"{path}: is a link out of its folder; name or copy the file itself"
            yield RejectedReport(f"file:{path}", "file", reason)
        elif path in tables:
            tables[path].is_out_of_core = is_out_of_core
            yield tables[path]
        else:
            yield _read_file(path)


def _is_link_out_of_folder(path: Path) -> bool:
    """Whether a path is a link to somewhere that is not in its folder."""
    if not path.is_symlink():
        return False
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent))


def _read_file(path: Path) -> RawReport | RejectedReport:
    """Return a file's bytes, or why they cannot be read."""
    try:
        return RawReport(read_bounded(path), f"file:{path}")
    except RobfcpError as error:
        return RejectedReport(f"file:{path}", "file", str(error))


def write_table(federation: Federation, path: FilePath) -> None:
    """Write the valid reports of a round as one table."""
    strata = federation.strata
    totals = federation.class_totals
    shared: dict[str, Any] = {
        "kind": "report",
        "schema": REPORT_SCHEMA,
        "binning": to_wire_binning(federation.binning),
        "round": federation.round,
        "model": federation.model,
        "risk": federation.risk,
        "score": to_wire_score(federation.score),
        "strata": None if strata is None else {"by": strata.by, "names": strata.names},
        "class_totals": None if totals is None else {"names": totals.names},
    }
    declared = {name: value for name, value in shared.items() if value is not None}
    rows = (
        _row_of_report(msgspec.json.decode(data), federation.binning.n_bins)
        for data in federation.to_json()
    )
    write_rows(path, rows, schema(msgspec.json.encode(declared)))


def _row_of_report(report: dict[str, Any], n_bins: int) -> dict[str, Any]:
    """Return a decoded report as a row of a table."""
    row = {
        "client": report["client"],
        "n_samples": report.get("n_samples"),
        "min_cell_count": report["min_cell_count"],
    }
    strata = report.get("strata")
    if strata is not None:
        classes, bins = np.divmod(np.cumsum(strata["cell_steps"]), n_bins)
        row |= {"classes": classes, "bins": bins, "counts": strata["counts"]}
    if "counts" in report:
        row["bins"], row["counts"] = _listed_counts(report["counts"])
    if "class_totals" in report:
        row["class_totals"] = report["class_totals"]["totals"]
    if "all_label_counts" in report:
        row["all_label_bins"], row["all_label_counts"] = _listed_counts(report["all_label_counts"])
    if "privacy" in report:
        row["privacy"] = msgspec.json.encode(report["privacy"]).decode()
    return row


def _listed_counts(counts: Any) -> tuple[list[int], list[int]]:
    """Return bins and counts of what a report states of either form."""
    if isinstance(counts, dict):
        return counts["bins"], counts["counts"]
    return list(range(len(counts))), counts


def write_verdict_table(
    federation: Federation, benign_mask: BoolArray, flagged: Mapping[str, str], path: FilePath
) -> None:
    """Write a table (client, verdict, reason) of everybody: trusted, flagged, faulty or missing.

    Parameters
    ----------
    federation : Federation
        The round.
    benign_mask : (K,) ndarray of bool
        Which clients are trusted.
    flagged : mapping
        The reason for each of the others, in the federation's order.
    path : path
        Where.
    """
    pa = import_pyarrow()
    names = ("client", "verdict", "reason")
    columns = pa.schema([(name, pa.string()) for name in names])
    verdicts = _iter_verdicts(federation, benign_mask, flagged)
    write_rows(path, (dict(zip(names, verdict, strict=True)) for verdict in verdicts), columns)


def _iter_verdicts(
    federation: Federation, benign_mask: BoolArray, flagged: Mapping[str, str]
) -> Iterator[tuple[str, str, str | None]]:
    """Yield client, verdict and reason of everybody."""
    reasons = iter(flagged.values())
    for client, is_benign in zip(federation.clients, benign_mask, strict=True):
        if is_benign:
            yield client, "benign", None
        else:
            yield client, "flagged", next(reasons)
    for rejected in federation.rejected_reports:
        yield rejected.client, "rejected", rejected.reason
    for client in federation.missing_clients:
        yield client, "missing", None
