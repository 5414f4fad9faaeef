"""Reports in a Spark frame: passes run where the rows are, Spark schedules, retries and moves."""

from __future__ import annotations

import io
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np

from robfcp.errors import RobfcpError, plain
from robfcp.federation.counts import Indices, Portion, joined
from robfcp.federation.intake import Block, Fault, Piece, Shard
from robfcp.federation.parquet import (
    SHARED,
    Clients,
    Shared,
    arrow,
    joined_names,
    misfit,
    packed,
    schema,
)
from robfcp.grid import Grid

T = TypeVar("T")
CHECKED = "client string, n long, sent binary, part int, kind int, tells boolean, digest int"
PASSED = "found binary"
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
        raise RobfcpError(f"{name}: Spark gave up ({plain(line, 200)}); see its log") from None


def read_frame(frame: Any) -> Iterator[Fault | Frame]:
    """The rows of a frame, and the files behind it that say nothing of what their rows share."""
    name = "frame"
    with _asking(name):
        types = import_module("pyspark.sql.pandas.types")
        problem = misfit(types.to_arrow_schema(frame.schema))
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
            Shared.read(text, own[0], None)
        except RobfcpError as error:
            for file in own:
                reason = str(error).replace(own[0], file)
                yield Fault(f"file:{file}", "file", reason)
            continue
        source = import_module("pyspark.sql.functions").input_file_name()
        yield Frame(kept if len(own) == len(files) else kept.where(source.isin(own)), kept, text)


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


class Frame(Shard):
    """The rows of a frame that share one thing; `whole` are all of its rows."""

    stays, name, packed = True, "frame", staticmethod(packed)

    def __init__(self, frame: Any, whole: Any, text: bytes) -> None:
        self._frame, self._whole, self._text = frame, whole, text
        self.places: list[Indices] = []
        self._names: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}  # what runs elsewhere finds its rows there

    def pieces(self, grid: Grid | None) -> Iterator[Piece]:
        """The rows, checked where they are: little is told of each."""
        shared = self._shared = Shared.read(self._text, self.name, grid)

        def check(batches: Iterable[Any]) -> Iterator[Any]:
            pa, part = arrow(), _part()
            for batch in batches:
                piece, n_rows = shared.piece(batch), len(batch)
                own: list[Any] = [np.full(n_rows, -1, np.int32), np.zeros(n_rows, bool)]
                own.append(np.zeros(n_rows, np.int32))
                told = piece.block.kinds, piece.told[0], piece.told[1].view(np.int32)
                for column, numbers in zip(own, told, strict=True):
                    column[piece.right] = numbers
                others = dict(piece.others)
                sent = pa.array([others.get(row) for row in range(n_rows)], pa.binary())
                columns = [batch.column("client"), batch.column("n"), sent]
                columns += map(pa.array, (np.full(n_rows, part, dtype=np.int32), *own))
                yield pa.RecordBatch.from_arrays(columns, CHECKED.replace(",", "").split()[::2])

        with _asking(self.name):
            found = self._frame.mapInArrow(check, CHECKED).toArrow().combine_chunks()
        parts = np.asarray(found.column("part"))
        ends = np.searchsorted(parts, np.arange(parts.max(initial=-1) + 2))
        nothing = joined([])
        for first, last in pairwise(ends.tolist()):
            rows = found.slice(first, last - first).combine_chunks()
            client, n, sent, _, kind, *told = (one.combine_chunks() for one in rows.columns)
            self._names.append(_named(client, 0))
            kinds = np.asarray(kind)
            right = kinds >= 0
            chosen = arrow().array(right)
            block = Block(
                names=client.filter(chosen),
                sizes=np.asarray(n.filter(chosen)),
                headers=shared.headers,
                kinds=kinds[right],
                known=~right[right],
                counts=nothing,
                strata=nothing,
                told=nothing,
            )
            wrong = [(row, sent[row].as_py()) for row in np.flatnonzero(~right).tolist()]
            tells, digests = (np.asarray(one.filter(chosen)) for one in told)
            yield Piece(right, block, (tells, digests.view(np.uint32)), wrong)

    def joined_names(self, parts: list[Any]) -> tuple[Clients, Indices]:
        """All names, and which of them Spark counts more than once."""
        with _asking(self.name):
            counted = self._whole.groupBy("client").count().where("count > 1").toArrow()
        return joined_names(parts, set(counted.column("client").to_pylist()) - {None})

    def each(self, work: Callable[[Portion], T]) -> Iterator[T]:
        """What `work` makes of every batch where it is, in the order of partitions."""
        shared, places, common, names = self._shared, self.places, self.common, self._names

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            pa, part, first, seen = arrow(), _part(), 0, 0
            wanted = places[part] if part < len(places) else np.zeros(0, dtype=np.intp)
            for batch in batches:
                own = wanted[first : first + len(batch)]
                first, seen = first + len(batch), _named(batch.column("client"), seen)
                if len(own) == len(batch):
                    found = _encoded(work(shared.held(batch, own, common)))
                    yield pa.RecordBatch.from_arrays([pa.array([found], pa.binary())], ["found"])
            if first != len(wanted) or (first and seen != names[part]):
                yield pa.RecordBatch.from_arrays([pa.array([None], pa.binary())], ["found"])

        with _asking(self.name):
            table = self._frame.mapInArrow(run, PASSED).toArrow()
        if table.column("found").null_count:
            raise RobfcpError(
                f"{self.name}: its rows are others every time it is read, or in another order; "
                "write it to Parquet first"
            )
        for found in table.column("found"):
            yield _decoded(found.as_py())


def _part() -> int:
    """The number of the partition this runs for."""
    return int(import_module("pyspark").TaskContext.get().partitionId())


def _named(names: Any, seen: int) -> int:
    """A number that other names, or the same in another order, do not have."""
    return zlib.crc32("".join(f"{name}\0" for name in names.to_pylist()).encode(), seen)


def _encoded(found: Any) -> bytes:
    """What a pass found, in bytes; arrays as numpy writes them."""

    def hook(value: Any) -> Any:
        stream = io.BytesIO()
        np.save(stream, np.asarray(value), allow_pickle=False)
        return msgspec.msgpack.Ext(1, stream.getvalue())

    return msgspec.msgpack.encode(found, enc_hook=hook)


def _decoded(data: bytes) -> Any:
    def hook(code: int, value: memoryview) -> Any:
        return np.load(io.BytesIO(value), allow_pickle=False)

    return msgspec.msgpack.decode(data, ext_hook=hook)
