"""Reports in Parquet: one schema for everybody, read batch by batch, left where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from robfcp._files import make_folder, open_atomic, read_bounded, read_error
from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import RESERVED_PREFIXES, are_client_names, check_text
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError, printable
from robfcp.federation import (
    POSITION_DTYPE,
    Block,
    CountBlock,
    Federation,
    FilePath,
    GrowingColumn,
    Header,
    RawReport,
    RejectedReport,
    SparseCounts,
    StoredTable,
    TableChunk,
    build_block,
    hash_rows,
    pool_strata,
)
from robfcp.fleet._validation import MAX_ENTRIES_PER_REPORT, validate_block
from robfcp.reports import (
    HeaderReader,
    Report,
    StratumKind,
    StratumNames,
    parse_report,
    to_wire_binning,
    to_wire_score,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
SHARED = b"robfcp"  # the key of what all rows share, in the file's metadata
ROWS = 2**13  # of a row group, and read at a time
VALUES = 2**17  # read at a time, at most
_VALUE_ALLOWANCE, _MAX_VALUES_PER_BYTE = (
    2**18,
    8,
)  # of a file: more would be a trick to fill the memory
MAX_VALUES_IN_MEMORY = 2**28  # of all tables together, beyond which counts stay in the files
_OURS = re.compile(r"\..*|.*\.record\.json")
REPLIES_IN_MEMORY = 256  # replies in memory
NAMES_PER_COMPARISON = 2**20  # names compared at a time
_LIST_COLUMNS = ("classes", "bins", "counts", "set_size_bins", "set_size_counts")
_HINT = "write it with robfcp collect"
_PLAIN = f"^[!-~]([ -~]{{0,{MAX_NAME - 2}}}[!-~])?$"


def import_pyarrow() -> Any:
    """pyarrow with what is used of it, or a line that says how to get it."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own keeps what is freed
    try:
        for module in ("compute", "parquet"):
            import_module(f"pyarrow.{module}")
        return import_module("pyarrow")
    except ImportError:
        raise RobfcpError("Parquet: needs pyarrow; pip install 'robfcp[parquet]'") from None


def schema(shared: bytes | None = None) -> pa.Schema:
    """The columns of reports; `shared` is what stands in the file's metadata.

    A report lists its bins in use with their counts, by class each with its class, class after
    class. `n` is null where privacy hides it, `classes` where a report keeps none, `privacy` where
    counts hold no noise; it is JSON as in a report. The metadata under "robfcp" is a report's JSON
    without all that stands in columns.
    """
    pa = import_pyarrow()
    types = {
        name: pa.list_(pa.int64() if "counts" in name else pa.int32()) for name in _LIST_COLUMNS
    }
    columns = {"client": pa.string(), "n": pa.int64(), **types, "privacy": pa.string()}
    return pa.schema(list(columns.items()), None if shared is None else {SHARED: shared})


class ArrowNames(Sequence[str]):
    """Names in Arrow: a fifth of what Python's own need."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return ArrowNames(self.array[place])
        return self.array[int(place)].as_py()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), ROWS):
            yield from self.array.slice(first, ROWS).to_pylist()

    def take(self, rows: IndexArray) -> ArrowNames:
        """The names at some places."""
        return ArrowNames(self.array.take(import_pyarrow().array(rows)))

    @cached_property
    def _order(self) -> IndexArray | None:
        """The places in the order of the names; None where they are in order."""
        compute, one = import_pyarrow().compute, self.array
        if len(one) < 2 or compute.all(compute.less_equal(one[:-1], one[1:])).as_py():
            return None
        return np.asarray(compute.sort_indices(one)).astype(POSITION_DTYPE)

    def ordered(self, mask: BoolArray) -> tuple[IndexArray | slice, ArrowNames]:
        """The places of the chosen in the order of the names, and these; a slice is everybody."""
        if self._order is None and mask.all():
            return slice(None), self
        rows = np.flatnonzero(mask) if self._order is None else self._order[mask[self._order]]
        return rows, self.take(rows)

    def repeated(self) -> IndexArray:
        """The places of names that come more than once."""
        compute, found, order = import_pyarrow().compute, GrowingColumn(), self._order
        for first in range(0, len(self), NAMES_PER_COMPARISON):
            here = slice(first, first + NAMES_PER_COMPARISON + 1)
            names = self.array[here] if order is None else self.take(order[here]).array
            twice = first + np.flatnonzero(compute.equal(names[:-1], names[1:]))
            for own in (twice, twice + 1):
                found.extend(own if order is None else order[own])
        return np.unique(found.whole())


class ArrowNamesBuilder:
    """Names that come some at a time: lists, or arrays of Arrow."""

    def __init__(self, names: list[str]) -> None:
        self._parts: list[pa.Array] = []
        self.extend(names)

    def extend(self, names: Any) -> None:
        """These come after the others."""
        self._parts.append(import_pyarrow().array(names).cast(import_pyarrow().string()))

    def whole(self) -> ArrowNames:
        """All of them; nothing may come any more."""
        pa, parts, self._parts = import_pyarrow(), self._parts, []
        if sum(part.nbytes for part in parts) >= 2**31:
            parts = [part.cast(pa.large_string()) for part in parts]
        return ArrowNames(pa.concat_arrays(parts))


def _are_clients(names: pa.Array) -> BoolArray:
    """Which can be clients' names; usual ones are told at once."""
    compute = import_pyarrow().compute
    fine = np.array(compute.match_substring_regex(names, _PLAIN).fill_null(False))
    for begin in RESERVED_PREFIXES:
        fine &= ~np.array(compute.starts_with(names, begin).fill_null(False))
    rest = np.flatnonzero(~fine)
    fine[rest] = are_client_names(
        [name or "" for name in names.take(import_pyarrow().array(rest)).to_pylist()]
    )
    return fine


@dataclass(frozen=True, eq=False)
class TableHeader:
    """What all rows of a table share: what it says, and what that means."""

    raw_header: dict[str, Any]
    header: Header

    @staticmethod
    def read(text: bytes | None, name: str, grid: Binning | None) -> TableHeader:
        """From a table's metadata, refused as a report that says so would be."""
        try:
            said = msgspec.json.decode(text or b"")
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            said = None
        if not isinstance(said, dict):
            raise RobfcpError(f"{name}: its metadata do not say what its rows share; {_HINT}")
        one: dict[str, Any] = {"client": name, "n_samples": 1}
        if isinstance(said.get("strata"), dict):
            one["strata"] = {**said["strata"], "steps": [0], "counts": [1]}
        else:
            one["counts"] = {"bins": [0], "counts": [1]}
        data = msgspec.json.encode({**said, **one})
        report = parse_report(data, name, grid)
        header = HeaderReader(grid).read(report)
        check_text(name, "round", header.round)
        check_text(name, "model", header.model)
        is_of_losses = report.risk is not None
        is_of_scores = report.strata is not None or report.set_sizes is not None
        if report.privacy is not None or (is_of_losses and is_of_scores):
            Report.from_json(data, name, grid)  # which says what is wrong
            raise RobfcpError(f"{name}: its metadata say too much; {_HINT}")
        return TableHeader(said, header)

    @property
    def headers(self) -> list[Header]:
        """Of rows without classes and with them."""
        return [self.header._replace(strata=None), self.header]

    def block(self, batch: pa.RecordBatch) -> tuple[BoolArray, Block]:
        """Which rows can be put in columns, and these."""
        pa, n_rows, n_bins = import_pyarrow(), len(batch), self.header.binning.n_bins
        column = {name: batch.column(name) for name in batch.schema.names}
        for name in set(_LIST_COLUMNS) - column.keys():
            column[name] = pa.nulls(n_rows, schema().field(name).type)
        classes, bins, counts, told_bins, told = (
            _as_integers(pa.compute.list_value_length(column[name]).fill_null(0))
            for name in _LIST_COLUMNS
        )
        by_class = np.array(column["classes"].is_valid())
        right = (bins == counts) & (told_bins == told) & (told <= n_bins)
        right &= bins <= n_bins * self.header.n_strata
        right &= ~by_class | ((classes == bins) & (self.header.strata is not None))
        for name in column.keys() & {"client", "n", "privacy"}:
            right &= np.array(column[name].is_valid()) != (name == "privacy")
        if not right.all():
            return right, self.block(batch.filter(pa.array(right)))[1]

        own = np.repeat(by_class, bins)
        split, cells, values, *labels = (
            _as_integers(column[name].flatten()) for name in _LIST_COLUMNS
        )
        if len(split):
            inside = (cells[own] >= 0) & (cells[own] < n_bins) & (split < 2**31)
            cells = cells.copy()
            cells[own] = np.where(inside, split * n_bins + cells[own], -1)
        pooled_lengths = np.where(by_class, 0, bins)
        stratum_lengths = np.where(by_class, bins, 0)
        block = Block(
            names=column.get("client"),
            sizes=_as_integers(column["n"]) if "n" in column else bins,
            headers=self.headers,
            kinds=by_class.astype(np.intp),
            counts=SparseCounts.from_lengths(pooled_lengths, cells[~own], values[~own]),
            strata=SparseCounts.from_lengths(stratum_lengths, cells[own], values[own]),
            told=SparseCounts.from_lengths(told, *labels),
        )
        return right, block

    def piece(self, batch: pa.RecordBatch, needs_digests: bool = True) -> TableChunk:
        """The rows, checked; the JSON of those that have to be read by themselves."""
        right, block = self.block(batch)
        fine = validate_block(block, _are_clients(block.names))
        if not fine.all():
            right[right] = fine
            block = self.block(batch.filter(import_pyarrow().array(right)))[1]
        block = replace(block, counts=block.counts.without_zeros(), told=block.told.without_zeros())
        digests = np.zeros((len(block.sizes), 2), dtype=np.uint64)
        if needs_digests:
            digests = hash_rows([block.counts, block.strata, block.told])
        wrong = np.flatnonzero(~right).tolist()
        others = ((row, self.sent(batch.slice(row, 1))) for row in wrong)  # long ones, perhaps
        return TableChunk(right, block, (block.told.lengths > 0, digests), others)

    def sent(self, row: pa.RecordBatch) -> bytes:
        """One row as the report it should be."""
        n_bins, compute = self.header.binning.n_bins, import_pyarrow().compute
        most = min(n_bins * self.header.n_strata + 1, MAX_ENTRIES_PER_REPORT)
        own = {name: row.column(name) for name in row.schema.names}
        for name in _LIST_COLUMNS:
            if name in own and len(own[name].flatten()) > most:
                own[name] = compute.list_slice(own[name], 0, most)
        found: dict[str, Any] = {name: column[0].as_py() for name, column in own.items()}
        said = {name: value for name, value in self.raw_header.items() if name != "strata"}
        said |= {"client": found["client"], "n_samples": found["n"]}
        bins, counts, classes = found["bins"] or [], found["counts"] or [], found.get("classes")
        if classes is None:
            said["counts"] = {"bins": bins, "counts": counts}
        else:
            cells, end = [], n_bins * self.header.n_strata
            if len(classes) == len(bins):
                for one, place in zip(classes, bins, strict=True):
                    inside = None not in (one, place) and 0 <= place < n_bins and one >= 0
                    cells.append(one * n_bins + place if inside else end)
            steps = [cell - before for cell, before in zip(cells, [0, *cells], strict=False)]
            said["strata"] = {**self.raw_header.get("strata", {}), "steps": steps, "counts": counts}
        if found.get("set_size_bins") is not None or found.get("set_size_counts") is not None:
            told = found.get("set_size_bins") or [], found.get("set_size_counts") or []
            said["set_sizes"] = dict(zip(("bins", "counts"), told, strict=True))
        if found.get("privacy") is not None:
            try:
                said["privacy"] = msgspec.json.decode(found["privacy"])
            except (msgspec.DecodeError, RecursionError):
                said["privacy"] = found["privacy"]
        return msgspec.json.encode({name: one for name, one in said.items() if one is not None})

    def held(
        self,
        batch: pa.RecordBatch,
        places: IndexArray | range,
        common: tuple[StratumKind, StratumNames] | None,
    ) -> CountBlock:
        """The rows that have places, in the order of these, on the round's classes."""
        if isinstance(places, range):
            places = np.arange(places.start, places.stop)
        own = np.argsort(places, kind="stable")
        own = own[np.searchsorted(places[own], 0) :]
        if len(own) < len(places) or (own[1:] < own[:-1]).any():
            batch = batch.take(import_pyarrow().array(own))
        _, block = self.block(batch)
        pooled = pool_strata(block.counts, block.strata, self.header.binning.n_bins)
        tables = pooled, block.strata, block.told
        classes = [one.strata and one.strata[1] for one in self.headers], block.kinds
        rows, n_bins = np.arange(len(own)), self.header.binning.n_bins
        return build_block(places[own], tables, rows, classes, common, n_bins)


def _as_integers(column: pa.Array) -> IntArray:
    """Whole numbers; what is none, or too large, is negative or too large here too."""
    numbers = column.fill_null(-1).to_numpy(zero_copy_only=False)
    if numbers.dtype == np.uint64:
        numbers = np.minimum(numbers, np.uint64(2**63 - 1))
    return numbers.astype(np.int64, copy=False)


def find_schema_mismatch(columns: pa.Schema) -> str:
    """Why a table is none of reports; empty where it is one."""
    for name, wanted in zip(schema().names, schema().types, strict=True):
        if name not in columns.names:
            if name in ("client", "n", "bins", "counts"):
                return f"has no column {name!r}"
            continue
        found, kind = str(columns.field(name).type), r"(large_)?string"
        if name == "n" or name in _LIST_COLUMNS:
            kind = r"u?int\d+" if name == "n" else r"(large_)?list<\w+: u?int\d+( not null)?>"
        if not re.fullmatch(kind, found):
            return f"holds {printable(found, 60)} in {name!r} where {wanted} should be"
    return ""


def _claimed(path: Path, most: int) -> tuple[int, int]:
    """How many numbers, and bytes of them unpacked, the pages of a file's columns announce.

    What the footer says of that binds nobody, and pyarrow ends the process where its parts
    contradict each other: both are read here. A page counts for a number too. Texts that each begin
    as the one before does (encoding 7) would unfold without end.
    """
    values = size = 0
    try:
        with path.open("rb") as stream:
            last = stream.seek(-8, os.SEEK_END)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(last - min(length, 2**16 + last // 8))
            footer = _thrift(stream.read(length), 0)[0]
            chunks = [chunk[3] for group in footer[4] for chunk in group[1]]
            for chunk in (one for one in chunks if one[3][0].decode() in schema().names):
                at = min(chunk[9], chunk.get(11) or chunk[9])
                end = at + chunk[7]
                while at < end and values <= most:
                    stream.seek(at)
                    header, length = _thrift(stream.read(2**14), 0)
                    pages = [(header[k], kind) for k, kind in ((5, 2), (8, 4)) if k in header]
                    told = [header[2], header[3], *(page[1] for page, _ in pages)]
                    if min(told) < 0 or any(page[kind] == 7 for page, kind in pages):
                        raise ValueError
                    size, values = size + told[0], values + 1 + sum(told[2:])
                    at += length + told[1]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise RobfcpError(f"{path}: is cut or no Parquet file that is read; {_HINT}") from None
    return values, size


def _unfolded(texts: pa.RecordBatch) -> int:
    """How many bytes the texts take, one in every row that has it."""
    compute = import_pyarrow().compute
    every = (compute.binary_length(one.dictionary).take(one.indices) for one in texts.columns)
    return sum(compute.sum(lengths).as_py() or 0 for lengths in every)


def _thrift(data: bytes, at: int, kind: int = 12) -> tuple[Any, int]:
    """A value in Thrift's compact protocol and where it ends; a struct is its fields by number."""

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            found, shift, at = found | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128 or shift > 63:
                return found

    if at >= len(data):
        raise IndexError
    if kind in (4, 5, 6):
        value = number()
        return (value >> 1) ^ -(value & 1), at
    if kind == 8:
        value = number()
        return data[at : at + value], at + value
    if kind == 9:
        head, at = data[at], at + 1
        every: list[Any] = []
        for _ in range(number() if head >> 4 == 15 else head >> 4):
            one, at = _thrift(data, at, head & 15)
            every.append(one)
        return every, at
    if kind != 12:
        return None, at + {1: 1, 2: 1, 3: 1, 7: 8}[kind]
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        field = field + (head >> 4) if head >> 4 else number() >> 1
        if head & 15 > 2:  # others are true or false
            found[field], at = _thrift(data, at, head & 15)
    return found, at + 1


@dataclass(eq=False)
class ParquetTable(StoredTable):
    """A Parquet file of reports."""

    path: Path
    packed = ArrowNamesBuilder
    is_out_of_core: bool = False
    rows: list[Any] = field(default_factory=list)
    places: list[Any] = field(default_factory=list)
    common: tuple[StratumKind, StratumNames] | None = None
    shared: TableHeader | None = None

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @contextmanager
    def _opened(self, texts: Sequence[str] = ()) -> Iterator[Any]:
        """The file, or a line that says what is wrong with it; every different text once."""
        pa = import_pyarrow()
        try:
            if not self.path.is_file():
                raise FileNotFoundError(self.path)
            how: Any = {"pre_buffer": False, "buffer_size": 2**18}  # else all of it is held
            with pa.parquet.ParquetFile(self.path, read_dictionary=texts, **how) as file:
                yield file
        except FileNotFoundError as error:
            raise RobfcpError(read_error(self.path, error)) from None
        except (pa.ArrowException, OSError, UnicodeError, KeyError) as error:
            if isinstance(error, PermissionError):
                raise RobfcpError(read_error(self.path, error)) from None
            raise RobfcpError(
                f"{self.path}: is cut or no Parquet file; copy it again, or {_HINT}"
            ) from None

    @cached_property
    def _known(self) -> tuple[tuple[int, ...], int, int, bytes | None]:
        """What tells whether the file is still the same; its rows, values and what they share."""
        with self._opened() as file:
            problem, found = find_schema_mismatch(file.schema_arrow), file.metadata
            if problem:
                raise RobfcpError(f"{self.path}: {problem}; {_HINT}")
            state = os.stat(self.path)
            most = _VALUE_ALLOWANCE + _MAX_VALUES_PER_BYTE * state.st_size
            values, size = _claimed(self.path, most)
            if values > most or size > 4 * most:
                raise RobfcpError(
                    f"{self.path}: {state.st_size} bytes hold {values} numbers in {size} bytes, "
                    f"which no reports do; {_HINT}"
                )
            said = (found.metadata or {}).get(SHARED)
            texts = [name for name in ("client", "privacy") if name in file.schema_arrow.names]
        with self._opened(texts) as file:  # a few bytes can be a long text in every row
            if sum(map(_unfolded, file.iter_batches(ROWS, columns=texts))) > 4 * most:
                raise RobfcpError(f"{self.path}: holds names beyond all reason; {_HINT}")
        return (state.st_ino, state.st_size, state.st_mtime_ns), found.num_rows, values, said

    @property
    def n_values(self) -> int:
        """How many numbers the file holds; none where it cannot be read."""
        try:
            return self._known[2]
        except RobfcpError:
            return 0

    def _check_unchanged(self, state: tuple[int, ...]) -> None:
        now = os.stat(self.path)
        if (now.st_ino, now.st_size, now.st_mtime_ns) != state:
            raise RobfcpError(f"{self.path}: changed while it was read; start again")

    def _batches(self, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The rows, some at a time: the same ones every time."""
        state, n_rows, values, _ = self._known
        with self._opened() as file:
            self._check_unchanged(state)
            most = max(2**12, min(VALUES, state[1] // 8))
            size = max(1, min(ROWS, most * n_rows // max(values, 1)))
            names = [name for name in columns if name in file.schema_arrow.names]
            pool = import_pyarrow().default_memory_pool()
            pool.release_unused()  # what the round needed before, and what this pass did
            yield from file.iter_batches(batch_size=size, columns=names, use_threads=False)
            pool.release_unused()
            self._check_unchanged(state)

    def pieces(self, grid: Binning | None) -> Iterator[TableChunk]:
        """The rows, checked."""
        self.shared = TableHeader.read(self._known[3], self.name, grid)
        for batch in self._batches(schema().names):
            yield self.shared.piece(batch, needs_digests=self.is_out_of_core)

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """What `work` makes of every batch."""
        assert self.shared is not None
        for batch, places in zip(self._batches(_LIST_COLUMNS), self.places, strict=True):
            yield work(self.shared.held(batch, places, self.common))


def list_report_files(folder: Path) -> list[Path]:
    """The reports in a folder: its .json files, and the tables in it and below.

    Hidden files, records of calibrations, and what Spark begins with _ are none.
    """
    found = [file for file in sorted(folder.glob("*.json")) if not _OURS.fullmatch(file.name)]
    for file in sorted(folder.rglob("*.parquet")):
        below = file.relative_to(folder).parts
        if not file.is_dir() and not any(name.startswith((".", "_")) for name in below):
            found.append(file)
    return found


def read_report_files(
    paths: FilePath | Iterable[FilePath],
) -> Iterator[RawReport | RejectedReport | StoredTable]:
    """What stands in the files, one at a time; a table as a whole."""
    files: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        files += list_report_files(path) if path.is_dir() else [path]
    tables = {file: ParquetTable(file) for file in files if file.suffix == ".parquet"}
    stays = sum(file.n_values for file in tables.values()) > MAX_VALUES_IN_MEMORY
    for file in files:
        inside = Path(os.path.realpath(file)).is_relative_to(os.path.realpath(file.parent))
        if file.is_symlink() and not inside:
            reason = f"{file}: is a link out of its folder; name or copy the file itself"
            yield RejectedReport(f"file:{file}", "file", reason)
        elif file in tables:
            tables[file].is_out_of_core = stays
            yield tables[file]
        else:
            try:
                yield RawReport(read_bounded(file), f"file:{file}")
            except RobfcpError as error:
                yield RejectedReport(f"file:{file}", "file", str(error))


def write_table(federation: Federation, path: FilePath) -> None:
    """The valid reports of a round as one file."""
    said: dict[str, Any] = {
        "kind": "report",
        "schema": 1,
        "grid": to_wire_binning(federation.binning),
    }
    said |= {name: getattr(federation, name) for name in ("round", "model", "risk")}
    said |= {"score": to_wire_score(federation.score)}
    if (strata := federation.strata) is not None:
        said["strata"] = {"by": strata.by, "names": strata.names}
    text = msgspec.json.encode({name: value for name, value in said.items() if value is not None})
    rows = (
        _row(msgspec.json.decode(data), federation.binning.n_bins) for data in federation.to_json()
    )
    _write(path, rows, schema(text))


def _row(said: dict[str, Any], n_bins: int) -> dict[str, Any]:
    """A report's JSON as a row."""
    row = {"client": said["client"], "n": said.get("n_samples")}
    if "strata" in said:
        classes, bins = np.divmod(np.cumsum(said["strata"]["steps"]), n_bins)
        row |= {"classes": classes, "bins": bins, "counts": said["strata"]["counts"]}
    for name, begin in (("counts", ""), ("set_sizes", "set_size_")):
        if (held := said.get(name)) is not None:
            held = held if isinstance(held, dict) else {"bins": range(len(held)), "counts": held}
            row |= {f"{begin}{key}": list(held[key]) for key in ("bins", "counts")}
    if "privacy" in said:
        row["privacy"] = msgspec.json.encode(said["privacy"]).decode()
    return row


def write_verdict_table(
    federation: Federation, trusted: BoolArray, flagged: Mapping[str, str], path: FilePath
) -> None:
    """A table (client, verdict, reason) of everybody: trusted, flagged, faulty or missing.

    The flagged stand in the federation's order.
    """
    pa, left = import_pyarrow(), iter(flagged.items())
    rows = chain(
        (
            (one, "trusted", None) if kept else (one, "flagged", next(left)[1])
            for one, kept in zip(federation.clients, trusted, strict=True)
        ),
        ((fault.client, "faulty", fault.reason) for fault in federation.rejected_reports),
        ((one, "missing", None) for one in federation.missing_clients),
    )
    names = ("client", "verdict", "reason")
    columns = pa.schema([(name, pa.string()) for name in names])
    _write(path, (dict(zip(names, row, strict=True)) for row in rows), columns)


def _write(path: FilePath, rows: Iterable[dict[str, Any]], columns: pa.Schema) -> None:
    """Rows as a table, whole or not at all."""
    pa, rest = import_pyarrow(), iter(rows)
    with (
        open_atomic(path) as stream,
        pa.parquet.ParquetWriter(stream, columns, compression="zstd") as writer,
    ):
        while some := list(islice(rest, ROWS)):
            writer.write_table(pa.Table.from_pylist(some, columns))


class ReplyStore:
    """Reports as they came, in tables of a folder: WAITING at most are in memory.

    What a round that died had written is there when the next one begins.
    """

    def __init__(self, folder: FilePath) -> None:
        self._folder, self._waiting, self.round = make_folder(folder), list[Any](), ""
        for path in self._files():
            found = import_pyarrow().parquet.read_schema(path).metadata or {}
            self.round = found.get(SHARED, b"").decode(errors="replace")

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("replies-*.parquet"))

    def add(self, client: str, data: bytes, round: str) -> str:
        """Keep a report; the client's name is its receipt."""
        self._waiting.append({"client": client, "sent": data})
        self.round = round
        if len(self._waiting) >= REPLIES_IN_MEMORY:
            self._flush()
        return client

    def _flush(self) -> None:
        pa, waiting = import_pyarrow(), self._waiting
        if waiting:
            columns = pa.schema({"client": pa.string(), "sent": pa.binary()})
            path = self._folder / f"replies-{len(self._files()):06d}.parquet"
            _write(path, waiting, columns.with_metadata({SHARED: self.round.encode()}))
        self._waiting = []

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self._flush()
        for path in self._files():
            for batch in import_pyarrow().parquet.ParquetFile(path).iter_batches(REPLIES_IN_MEMORY):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def clear(self) -> None:
        """The round is over."""
        for path in self._files():
            path.unlink()
