"""Reports in a Spark frame: blocks are worked on where Spark keeps them, and only results move."""

from __future__ import annotations

import io
import os
import re
import shutil
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TypeVar

import msgspec
import numpy as np

from robfcp.binning import Binning
from robfcp.errors import RobfcpError, printable
from robfcp.federation import (
    Block,
    CountBlock,
    RejectedReport,
    SparseCounts,
    StoredTable,
    TableChunk,
    narrowed,
)
from robfcp.fleet._arrow import ArrowNamesBuilder, import_pyarrow
from robfcp.fleet._table_header import SHARED, TableHeader, find_schema_mismatch, schema

T = TypeVar("T")

# What Spark and Hadoop write of a file that is no longer there.
_FILE_IS_MISSING = re.compile(r"FILE_NOT_EXIST|FileNotFound|does not exist|PATH_NOT_FOUND")

_ARRAY_CODE = 1  # of MessagePack's extension types: an array as numpy writes it


def read_tables(paths: Iterable[object], url: str) -> Any:
    """Return the tables at some paths, of any file system Spark reads, as a frame.

    Parameters
    ----------
    paths : iterable of object
        Files and folders: s3a://bucket/round, say.
    url : str
        Spark's master: local[2], spark://host:7077, yarn.
    """
    try:
        sql = import_module("pyspark.sql")
    except ImportError:
        raise RobfcpError("--spark: needs pyspark; pip install 'robfcp[spark]'") from None
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise RobfcpError(
            "--spark: needs Java 17 or later; apt-get install openjdk-17-jre-headless, say, or "
            "set JAVA_HOME"
        )
    # A Path makes s3a:/bucket of s3a://bucket.
    urls = [re.sub(r"^(\w{2,}):/(?!/)", r"\1://", str(path)) for path in paths]
    with _spark_errors_in_one_line("--spark"):
        session = sql.SparkSession.builder.master(url).appName("robfcp").getOrCreate()
        return session.read.parquet(*urls)


@contextmanager
def _spark_errors_in_one_line(name: str) -> Iterator[None]:
    """Raise an error of Spark, which fills pages, as one line.

    Parameters
    ----------
    name : str
        What the line is about: an option or a frame.
    """
    try:
        yield
    except RobfcpError:
        raise
    except Exception as error:
        package = type(error).__module__.split(".")[0]
        if package not in ("pyspark", "py4j"):
            raise
        message = str(error)
        if _FILE_IS_MISSING.search(message):
            raise RobfcpError(f"{name}: a file of it is not there; check the path") from None
        lines = [line for line in message.splitlines() if line.strip()]
        reason = printable(lines[0] if lines else "", 200)
        raise RobfcpError(f"{name}: Spark gave up ({reason}); see its log") from None


def is_dataframe(paths: object) -> bool:
    """Return whether something is a Spark frame rather than paths; Spark need not be installed."""
    return hasattr(paths, "mapInArrow")


def read_dataframe(frame: Any) -> Iterator[RejectedReport | SparkTable]:
    """Yield the rows of a frame, by what they share; reject files whose metadata do not state it.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        Rows of tables of reports, as they lie in Parquet files.
    """
    name = SparkTable.name
    with _spark_errors_in_one_line(name):
        types = import_module("pyspark.sql.pandas.types")
        problem = find_schema_mismatch(types.to_arrow_schema(frame.schema))
        if problem:
            raise RobfcpError(f"{name}: {problem}; write it with robfcp collect")
        files = sorted(frame.inputFiles())
        if not files:
            raise RobfcpError(
                f"{name}: its rows lie in no file, whose metadata say what they share; write it to "
                "Parquet with robfcp collect"
            )
        metadata_of_file = {file: _read_metadata(frame, file) for file in files}

    columns = [column for column in schema().names if column in frame.columns]
    reports = frame.select(*columns)
    for metadata in sorted(set(metadata_of_file.values())):
        table_files = [file for file in files if metadata_of_file[file] == metadata]
        first_file = table_files[0]
        try:
            TableHeader.read(metadata, first_file, None)
        except RobfcpError as error:
            for file in table_files:
                reason = str(error).replace(first_file, file)
                yield RejectedReport(f"file:{file}", "file", reason)
            continue

        rows = reports
        if len(table_files) < len(files):
            file_of_row = import_module("pyspark.sql.functions").input_file_name()
            rows = reports.where(file_of_row.isin(table_files))
        yield SparkTable(rows, metadata)


def _read_metadata(frame: Any, file: str) -> bytes:
    """Return what a file's rows share, read by Spark's own Parquet and file systems."""
    jvm = frame.sparkSession._jvm
    settings = frame.sparkSession._jsc.hadoopConfiguration()
    hadoop = jvm.org.apache.parquet.hadoop
    path = jvm.org.apache.hadoop.fs.Path(file)
    input_file = hadoop.util.HadoopInputFile.fromPath(path, settings)
    reader = hadoop.ParquetFileReader.open(input_file)
    try:
        metadata = reader.getFileMetaData().getKeyValueMetaData().get(SHARED.decode())
        return str(metadata or "").encode()
    finally:
        reader.close()


class SparkTable(StoredTable):
    """The rows of a frame that share one header, kept by Spark as blocks of bytes.

    Handing columns to Python costs more than all that is computed of them, so it is done once. A
    block that is lost is made again by Spark; it must then have the same names.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows.
    metadata : bytes
        What they share, as it stands in their files.
    """

    is_out_of_core = True
    name = "frame"
    names_builder = ArrowNamesBuilder

    def __init__(self, frame: Any, metadata: bytes) -> None:
        self._metadata = metadata
        disk = import_module("pyspark").StorageLevel.DISK_ONLY  # executors have little memory
        self._blocks = frame.mapInArrow(_pack_batches, "block binary").persist(disk)
        self.rows, self.positions = [], []
        self._block_ids: list[tuple[int, int]] = []  # of every block its partition and names' code
        weakref.finalize(self, _drop_cached, self._blocks).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: a function that runs at an executor finds its rows there."""
        return {}

    def _iter_results(self, work: Callable[[int, Any], Any]) -> Iterator[Any]:
        """Yield the results of `work` for every partition, in the order of partitions.

        Parameters
        ----------
        work : callable
            Takes a partition's number and an iterable of its blocks, as record batches; returns an
            iterable of results, of plain values and arrays.
        """

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            pa = import_pyarrow()
            partition = int(import_module("pyspark").TaskContext.get().partitionId())
            for result in work(partition, _unpack_batches(batches)):
                yield pa.RecordBatch.from_pydict({"result": [_encode(result)]})

        with _spark_errors_in_one_line(self.name):
            table = self._blocks.mapInArrow(run, "result binary").toArrow()
        for result in table.column("result"):
            yield _decode(result.as_py())

    def iter_chunks(self, binning: Binning | None) -> Iterator[TableChunk]:
        """Yield the rows without their counts, checked where they are.

        Keeps the header and the blocks' identities for `iter_blocks`, which refuses blocks that
        Spark computed again and that differ.

        Parameters
        ----------
        binning : Binning or None
            The round's binning where it is stated: rows on another one are refused.
        """
        shared = self._shared = TableHeader.read(self._metadata, self.name, binning)

        def check(partition: int, batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                chunk = shared.chunk_of(batch)
                block = chunk.block
                # These columns are sent to the server; the counts stay.
                columns = (
                    block.names.to_pylist(),
                    narrowed(block.sizes),
                    [header.min_cell_count for header in block.headers[::3]],
                    narrowed(block.header_index),
                    chunk.has_all_labels,
                    chunk.digests,
                )
                block_id = (partition, _code_of_names(batch))
                yield block_id, chunk.is_valid, columns, list(chunk.invalid_rows)

        no_counts = SparseCounts.empty()
        for block_id, is_valid, columns, invalid_rows in self._iter_results(check):
            self._block_ids.append(tuple(block_id))
            names, sizes, min_cell_counts, header_index, has_all_labels, digests = columns
            tables: Any = (no_counts, no_counts, no_counts, no_counts)
            headers = shared.headers_with(min_cell_counts)
            block = Block(names, sizes, headers, header_index, *tables)
            yield TableChunk(is_valid, block, has_all_labels, digests, invalid_rows)

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """Yield the results of `work` for every block, which runs where the block is."""
        # Only these are sent to the executors, not the table.
        shared = self._shared
        positions = self.positions
        round_strata = self.round_strata
        block_ids = self._block_ids

        def work_on_blocks(partition: int, batches: Iterable[Any]) -> Iterator[Any]:
            # One result for each block, in a tuple; an empty tuple where blocks are not those of
            # `iter_chunks`.
            expected = [
                index
                for index, (block_number, _) in enumerate(block_ids)
                if block_number == partition
            ]
            remaining = iter(expected)
            for batch in batches:
                index = next(remaining, None)
                if index is None or block_ids[index][1] != _code_of_names(batch):
                    yield ()
                    return
                yield (work(shared.count_block(batch, positions[index], round_strata)),)
            if next(remaining, None) is not None:
                yield ()

        for result in self._iter_results(work_on_blocks):
            if not result:
                raise RobfcpError(
                    f"{self.name}: its rows are others every time it is read, or in another order; "
                    "write it to Parquet first"
                )
            yield result[0]


def _pack_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield every record batch as bytes, compressed, in a batch of one row."""
    pa = import_pyarrow()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for batch in batches:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"block": [stream.getvalue().to_pybytes()]})


def _unpack_batches(packed_batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the record batches that `_pack_batches` packed."""
    pa = import_pyarrow()
    for packed_batch in packed_batches:
        for block in packed_batch.column(0):
            yield pa.ipc.open_stream(block.as_buffer()).read_next_batch()


def _drop_cached(blocks: Any) -> None:
    """Let Spark forget its blocks, if it still runs."""
    with suppress(Exception):
        blocks.unpersist()


def _code_of_names(batch: Any) -> int:
    """Return a code of a batch's names in their order, by which it is recognized."""
    names = batch.column("client").to_pylist()
    return zlib.crc32(msgspec.msgpack.encode(names))


def _encode(result: Any) -> bytes:
    """Return plain values and arrays as bytes."""
    data = msgspec.msgpack.encode(result, enc_hook=_encode_array)
    return zlib.compress(data, 1)


def _encode_array(array: Any) -> Any:
    """Return an array as MessagePack's extension type, in the format of numpy's files."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(array), allow_pickle=False)
    return msgspec.msgpack.Ext(_ARRAY_CODE, stream.getvalue())


def _decode(data: bytes) -> Any:
    """Return the plain values and arrays in bytes."""
    return msgspec.msgpack.decode(zlib.decompress(data), ext_hook=_decode_array)


def _decode_array(_code: int, value: memoryview) -> Any:
    """Return the array in MessagePack's extension type."""
    return np.load(io.BytesIO(value), allow_pickle=False)
