"""Reports in a Spark frame: passes run where the rows are, Spark schedules, retries and moves."""

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
_GONE = re.compile(r"FILE_NOT_EXIST|FileNotFound|does not exist|PATH_NOT_FOUND")


def read_tables(paths: Iterable[object], url: str) -> Any:
    """The tables at some paths, of any file system Spark knows, as a frame of a cluster's session.

    Parameters
    ----------
    paths
        Files and folders: s3a://bucket/round, say.
    url
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
    # a Path makes s3a:/bucket of s3a://bucket
    wanted = [re.sub(r"^(\w{2,}):/(?!/)", r"\1://", str(path)) for path in paths]
    with _asking("--spark"):
        session = sql.SparkSession.builder.master(url).appName("robfcp").getOrCreate()
        return session.read.parquet(*wanted)


@contextmanager
def _asking(name: str) -> Iterator[None]:
    """Says in a line what Spark refuses in pages."""
    try:
        yield
    except RobfcpError:
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        if _GONE.search(str(error)):
            raise RobfcpError(f"{name}: a file of it is not there; check the path") from None
        line = next((one for one in str(error).splitlines() if one.strip()), "")
        raise RobfcpError(f"{name}: Spark gave up ({printable(line, 200)}); see its log") from None


def read_dataframe(frame: Any) -> Iterator[RejectedReport | SparkTable]:
    """The rows of a frame, and the files behind it that say nothing of what their rows share."""
    name = "frame"
    with _asking(name):
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
        texts = {file: _metadata(frame, file) for file in files}
    kept = frame.select(*(one for one in schema().names if one in frame.columns))
    for text in sorted(set(texts.values())):
        own = [file for file in files if texts[file] == text]
        try:
            TableHeader.read(text, own[0], None)
        except RobfcpError as error:
            for file in own:
                reason = str(error).replace(own[0], file)
                yield RejectedReport(f"file:{file}", "file", reason)
            continue
        source = import_module("pyspark.sql.functions").input_file_name()
        yield SparkTable(kept if len(own) == len(files) else kept.where(source.isin(own)), text)


def _metadata(frame: Any, file: str) -> bytes:
    """What a file's rows share, read by Spark's own Parquet through its own file systems."""
    jvm, settings = frame.sparkSession._jvm, frame.sparkSession._jsc.hadoopConfiguration()
    hadoop, path = jvm.org.apache.parquet.hadoop, jvm.org.apache.hadoop.fs.Path(file)
    place = hadoop.util.HadoopInputFile.fromPath(path, settings)
    reader = hadoop.ParquetFileReader.open(place)
    try:
        said = reader.getFileMetaData().getKeyValueMetaData().get(SHARED.decode())
        return str(said or "").encode()
    finally:
        reader.close()


class SparkTable(StoredTable):
    """The rows of a frame that share one thing, kept by Spark as blocks of bytes.

    Handing columns to Python costs more than all that is computed of them, so it is done once. A
    block that is lost is made again by Spark; it must be of the same names.
    """

    is_out_of_core = True
    name = "frame"
    packed = ArrowNamesBuilder

    def __init__(self, frame: Any, text: bytes) -> None:
        self._text = text
        disk = import_module("pyspark").StorageLevel.DISK_ONLY  # executors' memory is little
        self._blocks = frame.mapInArrow(_packed, "block binary").persist(disk)
        self.rows, self.places = [], []
        self._seen: list[tuple[int, int]] = []  # of every block its partition, and its names' sum
        weakref.finalize(self, _drop_cached, self._blocks).atexit = False

    def __getstate__(self) -> dict[str, Any]:
        return {}  # what runs elsewhere finds its rows there

    def _passed(self, work: Callable[[int, Any], Any]) -> Iterator[Any]:
        """What `work` makes of every partition's number and blocks, in the order of these."""

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            pa, part = import_pyarrow(), import_module("pyspark").TaskContext.get().partitionId()
            held = (one.as_buffer() for batch in batches for one in batch.column(0))
            for found in work(int(part), (pa.ipc.open_stream(b).read_next_batch() for b in held)):
                yield pa.RecordBatch.from_pydict({"found": [_encoded(found)]})

        with _asking(self.name):
            table = self._blocks.mapInArrow(run, "found binary").toArrow()
        for found in table.column("found"):
            yield _decoded(found.as_py())

    def pieces(self, grid: Binning | None) -> Iterator[TableChunk]:
        """The rows, checked where they are: little is told of each."""
        shared = self._shared = TableHeader.read(self._text, self.name, grid)

        def check(part: int, batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                piece = shared.piece(batch)
                names, block = piece.block.names.to_pylist(), piece.block
                own = names, narrowed(block.sizes), narrowed(block.kinds)
                yield (part, _named(batch)), piece.right, own, piece.told, list(piece.others)

        nothing = SparseCounts.empty()
        for seen, right, (names, sizes, kinds), told, others in self._passed(check):
            self._seen.append(tuple(seen))
            counts: Any = nothing, nothing, nothing
            block = Block(names, sizes, shared.headers, kinds, *counts)
            yield TableChunk(right, block, told, others)

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """What `work` makes of every block where it is, in the order of partitions."""
        shared, places, common, seen = self._shared, self.places, self.common, self._seen

        def held(part: int, batches: Iterable[Any]) -> Iterator[Any]:
            wanted = iter([k for k, (own, _) in enumerate(seen) if own == part])
            for batch in batches:
                k = next(wanted, None)
                if k is None or seen[k][1] != _named(batch):
                    yield ()
                    return
                yield (work(shared.held(batch, places[k], common)),)
            if next(wanted, None) is not None:
                yield ()

        for found in self._passed(held):
            if not found:
                raise RobfcpError(
                    f"{self.name}: its rows are others every time it is read, or in another order; "
                    "write it to Parquet first"
                )
            yield found[0]


def _packed(batches: Iterable[Any]) -> Iterator[Any]:
    """Every batch as bytes, compressed."""
    pa = import_pyarrow()
    for batch in batches:
        stream, how = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(stream, batch.schema, options=how) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"block": [stream.getvalue().to_pybytes()]})


def _drop_cached(blocks: Any) -> None:
    """Spark needs its blocks no more, if it is there at all."""
    with suppress(Exception):
        blocks.unpersist()


def _named(batch: Any) -> int:
    """A number that other names, or the same in another order, do not have."""
    return zlib.crc32(msgspec.msgpack.encode(batch.column("client").to_pylist()))


def _encoded(found: Any) -> bytes:
    """What a pass found, in bytes; arrays as numpy writes them."""

    def hook(value: Any) -> Any:
        stream = io.BytesIO()
        np.save(stream, np.asarray(value), allow_pickle=False)
        return msgspec.msgpack.Ext(1, stream.getvalue())

    return zlib.compress(msgspec.msgpack.encode(found, enc_hook=hook), 1)


def _decoded(data: bytes) -> Any:
    def hook(code: int, value: memoryview) -> Any:
        return np.load(io.BytesIO(value), allow_pickle=False)

    return msgspec.msgpack.decode(zlib.decompress(data), ext_hook=hook)
