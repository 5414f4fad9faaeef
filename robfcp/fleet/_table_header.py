"""The columns of tables of reports, and what all rows of a table share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import check_text
from robfcp.binning import Binning
from robfcp.errors import RobfcpError, printable
from robfcp.federation import (
    Block,
    CountBlock,
    Header,
    RoundStrata,
    SparseCounts,
    TableChunk,
    build_block,
    hash_rows,
    pool_strata,
)
from robfcp.fleet._arrow import are_arrow_client_names, import_pyarrow
from robfcp.fleet._validation import MAX_ENTRIES_PER_REPORT, validate_block
from robfcp.reports import (
    MAX_MIN_CELL_COUNT,
    HeaderReader,
    Report,
    StratumNames,
    check_stratum_names,
    n_strata,
    parse_report,
)

if TYPE_CHECKING:
    import pyarrow as pa

SHARED = b"robfcp"  # the key of what all rows share, in a file's metadata
HINT = "write it with robfcp collect"
CLASS_TOTALS = "class_totals"
LIST_COLUMNS = ("classes", "bins", "counts", "all_label_bins", "all_label_counts", CLASS_TOTALS)
MIN_CELL_COUNT = "min_cell_count"
_REQUIRED_COLUMNS = ("client", "n_samples", MIN_CELL_COUNT, "bins", "counts")
_MAX_CLASS = 2**31  # a class beyond it could leave 64 bits times the bins
_MAX_INT64 = 2**63 - 1

# Types that a column may have in files of others, in Arrow's words.
_TEXT_TYPE = r"(large_)?string"
_INTEGER_TYPE = r"u?int\d+"
_LIST_TYPE = r"(large_)?list<\w+: u?int\d+( not null)?>"


def schema(shared: bytes | None = None) -> pa.Schema:
    """Return the columns of reports; `shared` is what stands in the file's metadata.

    A report lists its bins in use with their counts, by class each with its class, class after
    class. `n` is null where privacy hides it, `classes` where a report keeps none, `privacy` where
    counts hold no noise; it is JSON as in a report. `min_cell_count` is stated in every row,
    `class_totals` of all classes in order, or null where a report states none. The metadata under
    "robfcp" is a report's JSON without all that stands in columns.
    """
    pa = import_pyarrow()
    columns = [("client", pa.string()), ("n_samples", pa.int64()), (MIN_CELL_COUNT, pa.int32())]
    for name in LIST_COLUMNS:
        is_count = "counts" in name or name == CLASS_TOTALS
        columns.append((name, pa.list_(pa.int64() if is_count else pa.int32())))
    columns.append(("privacy", pa.string()))
    return pa.schema(columns, None if shared is None else {SHARED: shared})


def find_schema_mismatch(columns: pa.Schema) -> str:
    """Return why a table is none of reports; empty where it is one."""
    expected = schema()
    for name, expected_type in zip(expected.names, expected.types, strict=True):
        if name not in columns.names:
            if name in _REQUIRED_COLUMNS:
                return f"has no column {name!r}"
            continue
        pattern = _TEXT_TYPE
        if name in ("n_samples", MIN_CELL_COUNT):
            pattern = _INTEGER_TYPE
        elif name in LIST_COLUMNS:
            pattern = _LIST_TYPE
        type_ = str(columns.field(name).type)
        if not re.fullmatch(pattern, type_):
            return f"holds {printable(type_, 60)} in {name!r} where {expected_type} should be"
    return ""


@dataclass(frozen=True, eq=False)
class TableHeader:
    """What all rows of a table share.

    Attributes
    ----------
    raw_header : dict
        As it stands in the metadata.
    header : Header
        What it means; with the strata that rows may have.
    """

    raw_header: dict[str, Any]
    header: Header

    @staticmethod
    def read(metadata: bytes | None, name: str, binning: Binning | None) -> TableHeader:
        """Return what a table's metadata state; refuse them as a report that states it would be.

        Parameters
        ----------
        metadata : bytes or None
            A report's JSON without all that stands in columns.
        name : str
            How errors name the table.
        binning : Binning or None
            The round's binning where it is known.
        """
        try:
            declared = msgspec.json.decode(metadata or b"")
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            declared = None
        if not isinstance(declared, dict):
            raise RobfcpError(f"{name}: its metadata do not say what its rows share; {HINT}")

        # The metadata with one sample are a report.
        sample: dict[str, Any] = {"client": name, "n_samples": 1, MIN_CELL_COUNT: 1}
        if isinstance(declared.get("strata"), dict):
            sample["strata"] = {**declared["strata"], "cell_steps": [0], "counts": [1]}
        else:
            sample["counts"] = {"bins": [0], "counts": [1]}
        # A report has totals or counts by class, and the rows of a table may have either.
        classes = declared.get(CLASS_TOTALS)
        without_totals = {key: value for key, value in declared.items() if key != CLASS_TOTALS}
        data = msgspec.json.encode({**without_totals, **sample})
        report = parse_report(data, name, binning)
        header = HeaderReader(binning).read(report)
        if classes is not None:
            header = header._replace(class_names=_read_class_names(classes, name))
        check_text(name, "round", header.round)
        check_text(name, "model", header.model)

        is_of_scores = report.strata is not None or report.all_label_counts is not None
        is_contradictory = report.risk is not None and is_of_scores
        if report.privacy is not None or is_contradictory:
            Report.from_json(data, name, binning)  # which finds the words
            raise RobfcpError(f"{name}: its metadata say too much; {HINT}")
        return TableHeader(declared, header)

    def headers_with(self, min_cell_counts: Iterable[int]) -> list[Header]:
        """Return the headers of rows without strata and class totals, with strata, with totals.

        Parameters
        ----------
        min_cell_counts : iterable of int
            The different ones, in any order: these three headers for each of them.
        """
        headers = []
        for min_cell_count in min_cell_counts:
            declared = self.header._replace(min_cell_count=min_cell_count)
            headers += [
                declared._replace(strata=None, class_names=None),
                declared._replace(class_names=None),
                declared._replace(strata=None),
            ]
        return headers

    def chunk_of(self, batch: pa.RecordBatch, needs_digests: bool = True) -> TableChunk:
        """Return the rows of a batch, checked.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            All columns of some rows.
        needs_digests : bool
            Whether the counts stay where they are, so that digests have to tell of them.
        """
        is_valid, block = self._read_block(batch)
        are_valid_reports = validate_block(block, are_arrow_client_names(block.names))
        if not are_valid_reports.all():
            is_valid[is_valid] = are_valid_reports
            _, block = self._read_block(batch.filter(import_pyarrow().array(is_valid)))
        block = replace(
            block,
            counts=block.counts.without_zeros(),
            all_label_counts=block.all_label_counts.without_zeros(),
            class_totals=block.class_totals.without_zeros(),
        )

        digests = np.zeros((len(block.sizes), 2), dtype=np.uint64)
        if needs_digests:
            digests = hash_rows(block.tables)
        has_all_labels = block.all_label_counts.lengths > 0
        other_rows = self._iter_json(batch, np.flatnonzero(~is_valid))
        return TableChunk(is_valid, block, has_all_labels, digests, other_rows)

    def _iter_json(self, batch: pa.RecordBatch, rows: IndexArray) -> Iterator[tuple[int, bytes]]:
        """Yield some rows, each as the JSON of the report it should be; they may be long."""
        for row in rows.tolist():
            yield row, self._row_as_json(batch.slice(row, 1))

    def _read_block(self, batch: pa.RecordBatch) -> tuple[BoolArray, Block]:
        """Return which rows can be put in columns, and these rows."""
        pa = import_pyarrow()
        n_bins = self.header.binning.n_bins
        columns = {name: batch.column(name) for name in batch.schema.names}
        for name in set(LIST_COLUMNS) - columns.keys():
            columns[name] = pa.nulls(len(batch), schema().field(name).type)

        # Lists of the same length, no longer than there are cells.
        lengths = {}
        for name in LIST_COLUMNS:
            lengths[name] = _as_integers(pa.compute.list_value_length(columns[name]).fill_null(0))
        has_strata = np.array(columns["classes"].is_valid())
        is_in_columns = lengths["bins"] == lengths["counts"]
        is_in_columns &= lengths["all_label_bins"] == lengths["all_label_counts"]
        is_in_columns &= lengths["all_label_counts"] <= n_bins
        is_in_columns &= lengths["bins"] <= n_bins * self.header.n_strata
        may_have_strata = self.header.strata is not None
        are_classes_listed = (lengths["classes"] == lengths["bins"]) & may_have_strata
        is_in_columns &= ~has_strata | are_classes_listed
        has_totals = np.array(columns[CLASS_TOTALS].is_valid())
        n_classes = 0
        if self.header.class_names is not None:
            n_classes = n_strata(self.header.class_names)
        are_totals_listed = (lengths[CLASS_TOTALS] == n_classes) & (n_classes > 0) & ~has_strata
        is_in_columns &= ~has_totals | are_totals_listed

        # Noise is not checked in columns.
        for name in columns.keys() & {"client", "n_samples", MIN_CELL_COUNT, "privacy"}:
            is_stated = np.array(columns[name].is_valid())
            is_in_columns &= ~is_stated if name == "privacy" else is_stated
        min_cell_count_of_row = np.ones(len(batch), dtype=np.int64)
        if MIN_CELL_COUNT in columns:
            min_cell_count_of_row = _as_integers(columns[MIN_CELL_COUNT])
        is_possible = (min_cell_count_of_row >= 1) & (min_cell_count_of_row <= MAX_MIN_CELL_COUNT)
        is_in_columns &= is_possible
        if not is_in_columns.all():
            _, block = self._read_block(batch.filter(pa.array(is_in_columns)))
            return is_in_columns, block

        values = {name: _as_integers(columns[name].flatten()) for name in LIST_COLUMNS}
        is_of_strata = np.repeat(has_strata, lengths["bins"])
        cells = self._cells_of(values["classes"], values["bins"], is_of_strata)
        counts = values["counts"]

        # The three headers of a minimum cell count stand together.
        min_cell_counts, index = np.unique(min_cell_count_of_row, return_inverse=True)
        block = Block(
            names=columns.get("client"),
            sizes=_as_integers(columns["n_samples"]) if "n_samples" in columns else lengths["bins"],
            headers=self.headers_with(min_cell_counts.tolist()),
            header_index=3 * index.reshape(-1) + has_strata + 2 * has_totals,
            counts=SparseCounts.from_lengths(
                np.where(has_strata, 0, lengths["bins"]),
                cells[~is_of_strata],
                counts[~is_of_strata],
            ),
            strata=SparseCounts.from_lengths(
                np.where(has_strata, lengths["bins"], 0),
                cells[is_of_strata],
                counts[is_of_strata],
            ),
            all_label_counts=SparseCounts.from_lengths(
                lengths["all_label_counts"], values["all_label_bins"], values["all_label_counts"]
            ),
            class_totals=SparseCounts.from_lengths(
                lengths[CLASS_TOTALS],
                np.tile(np.arange(n_classes), np.count_nonzero(has_totals)),
                values[CLASS_TOTALS],
            ),
        )
        return is_in_columns, block

    def _cells_of(self, classes: IntArray, bins: IntArray, is_of_strata: BoolArray) -> IntArray:
        """Return bins, or cells c H + h where there are strata; -1 where bin or class is none.

        Parameters
        ----------
        classes : (V,) ndarray of int
            c, of the entries with strata alone.
        bins : (U,) ndarray of int
            h, of all entries.
        is_of_strata : (U,) ndarray of bool
            Which entries have strata.
        """
        if not len(classes):
            return bins
        n_bins = self.header.binning.n_bins
        strata_bins = bins[is_of_strata]
        is_inside = (strata_bins >= 0) & (strata_bins < n_bins) & (classes < _MAX_CLASS)
        cells = bins.copy()
        cells[is_of_strata] = np.where(is_inside, classes * n_bins + strata_bins, -1)
        return cells

    def _row_as_json(self, row: pa.RecordBatch) -> bytes:
        """Return one row as the report it should be."""
        n_bins = self.header.binning.n_bins
        max_entries = min(n_bins * self.header.n_strata + 1, MAX_ENTRIES_PER_REPORT)
        compute = import_pyarrow().compute
        values: dict[str, Any] = {}
        for name in row.schema.names:
            column = row.column(name)
            if name in LIST_COLUMNS and len(column.flatten()) > max_entries:
                column = compute.list_slice(column, 0, max_entries)
            values[name] = column[0].as_py()

        in_columns = ("strata", CLASS_TOTALS)
        report = {name: value for name, value in self.raw_header.items() if name not in in_columns}
        report |= {"client": values["client"], "n_samples": values["n_samples"]}
        report[MIN_CELL_COUNT] = values[MIN_CELL_COUNT]
        bins = values["bins"] or []
        counts = values["counts"] or []
        classes = values.get("classes")
        if classes is None:
            report["counts"] = {"bins": bins, "counts": counts}
        else:
            steps = self._steps_of(classes, bins)
            strata = self.raw_header.get("strata", {})
            report["strata"] = {**strata, "cell_steps": steps, "counts": counts}

        totals = values.get(CLASS_TOTALS)
        if totals is not None:
            report[CLASS_TOTALS] = {**self.raw_header.get(CLASS_TOTALS, {}), "totals": totals}
        label_bins = values.get("all_label_bins")
        label_counts = values.get("all_label_counts")
        if label_bins is not None or label_counts is not None:
            report["all_label_counts"] = {"bins": label_bins or [], "counts": label_counts or []}
        privacy = values.get("privacy")
        if privacy is not None:
            try:
                report["privacy"] = msgspec.json.decode(privacy)
            except (msgspec.DecodeError, RecursionError):
                report["privacy"] = privacy
        declared = {name: value for name, value in report.items() if value is not None}
        return msgspec.json.encode(declared)

    def _steps_of(self, classes: list[int | None], bins: list[int | None]) -> list[int]:
        """Return how far each cell is from the one before, as a report lists cells.

        A class or bin that is none becomes a cell beyond the last one, which is refused.
        """
        n_bins = self.header.binning.n_bins
        n_cells = n_bins * self.header.n_strata
        if len(classes) != len(bins):
            return []
        steps = []
        previous = 0
        for stratum, bin_index in zip(classes, bins, strict=True):
            cell = n_cells
            if stratum is not None and bin_index is not None:
                is_inside = 0 <= bin_index < n_bins and stratum >= 0
                cell = stratum * n_bins + bin_index if is_inside else n_cells
            steps.append(cell - previous)
            previous = cell
        return steps

    def count_block(
        self,
        batch: pa.RecordBatch,
        positions: IndexArray | range,
        round_strata: RoundStrata,
    ) -> CountBlock:
        """Return the counts of the rows that count in the federation, in its order.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            The columns of lists of some rows.
        positions : ndarray of int, or range
            The position of each row in the federation; -1 where it is left out.
        round_strata : RoundStrata
            The strata and the classes of the round.
        """
        if isinstance(positions, range):
            positions = np.arange(positions.start, positions.stop)
        order = np.argsort(positions, kind="stable")
        order = order[np.searchsorted(positions[order], 0) :]
        is_unchanged = len(order) == len(positions) and bool((order[1:] >= order[:-1]).all())
        if not is_unchanged:
            batch = batch.take(import_pyarrow().array(order))

        _, block = self._read_block(batch)
        n_bins = self.header.binning.n_bins
        pooled = pool_strata(block.counts, block.strata, n_bins)
        return build_block(
            positions[order],
            block.tables._replace(counts=pooled),
            np.arange(len(order)),
            block.headers,
            block.header_index,
            round_strata,
            n_bins,
        )


def _read_class_names(declared: Any, name: str) -> StratumNames:
    """Return the classes of class totals that a table's metadata state; refuse what are none.

    Parameters
    ----------
    declared : object
        What stands under "class_totals".
    name : str
        How errors name the table.
    """
    if not isinstance(declared, dict) or set(declared) != {"names"}:
        raise RobfcpError(f"{name}: its metadata do not name the classes of totals; {HINT}")
    try:
        return check_stratum_names("class", declared["names"])
    except RobfcpError as error:
        raise RobfcpError(f"{name}: {error}") from None


def _as_integers(column: pa.Array) -> IntArray:
    """Return whole numbers as int64; what is none becomes -1, what is too large stays so."""
    integers = column.fill_null(-1).to_numpy(zero_copy_only=False)
    if integers.dtype == np.uint64:
        integers = np.minimum(integers, np.uint64(_MAX_INT64))
    return integers.astype(np.int64, copy=False)
