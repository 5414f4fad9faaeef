"""Arrays of whole numbers in one file, mapped if it is large: lengths are checked before anything.

A magic word, the length of a JSON header (eight bytes, the lowest first), the header, then every
column as its bare little-endian numbers, each beginning at a multiple of 64 bytes after the header.
The header states kind and schema, what the file is about, each column's name, type, first byte and
length, and the SHA-256 of what it is about and of all columns. Nothing in it is ever executed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.files import unreadable, write_parts

MAGIC = b"robfcp columns\n\x00"
MAX_HEADER = 2**20
MAPPED = 2**26  # bytes from which on a file is mapped: one that is changed in place could kill us
_ALIGN = 64
_START = len(MAGIC) + 8
Kind = Literal["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]
Column = NDArray[Any]


class WireColumn(msgspec.Struct, forbid_unknown_fields=True):
    """Where a column lies, counted from the end of the header."""

    name: str
    dtype: Kind
    offset: int
    length: int

    @property
    def n_bytes(self) -> int:
        """How many bytes it takes."""
        return self.length * int(self.dtype[1])


class WireTable(msgspec.Struct, forbid_unknown_fields=True):
    """The header of a file of columns."""

    kind: str
    schema: int
    digest: str
    about: msgspec.Raw
    columns: list[WireColumn]


def write_columns(
    path: str | os.PathLike[str],
    kind: str,
    schema: int,
    about: bytes,
    columns: Mapping[str, Column],
) -> None:
    """Write the columns whole or not at all; `about` is JSON."""
    plain = {name: _little(column) for name, column in columns.items()}
    places, offset = [], 0
    for name, column in plain.items():
        places.append(WireColumn(name, column.dtype.str[1:], offset, len(column)))
        offset += _padded(column.nbytes)
    digest = hashlib.sha256(about)
    for part in _parts(plain):
        digest.update(part)
    table = WireTable(kind, schema, digest.hexdigest(), msgspec.Raw(about), places)
    header = msgspec.json.encode(table)
    header += b" " * (_padded(_START + len(header)) - _START - len(header))
    if len(header) > MAX_HEADER:
        raise RobfcpError(f"{path}: the header has {len(header)} bytes, at most {MAX_HEADER}")
    length = len(header).to_bytes(8, "little")
    write_parts(path, _chained(MAGIC + length + header, plain))


def read_columns(
    path: str | os.PathLike[str], kind: str, schema: int
) -> tuple[bytes, dict[str, Column]]:
    """What a file is about and its columns, of a large one mapped; refused where it is broken."""
    data = _content(path)
    if len(data) < _START or data[: len(MAGIC)] != MAGIC:
        raise RobfcpError(f"{path}: is no file of columns; make one with robfcp pack")
    length = int.from_bytes(data[len(MAGIC) : _START], "little")
    if length > MAX_HEADER or _START + length > len(data):
        raise _broken(path, "its header is longer than it may be")
    try:
        table = msgspec.json.decode(data[_START : _START + length], type=WireTable)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _broken(path, "its header cannot be read") from None
    if table.kind != kind:
        raise RobfcpError(f"{path}: is of kind {table.kind!r:.40}, not {kind}; pass another file")
    if table.schema != schema:
        raise RobfcpError(
            f"{path}: schema {table.schema} is unknown to this version (it reads {schema}); "
            "update robfcp"
        )
    body = memoryview(data)[_START + length :]
    if len({one.name for one in table.columns}) < len(table.columns):
        raise _broken(path, "a column comes twice")
    columns = {one.name: _column(path, one, body) for one in table.columns}
    digest = hashlib.sha256(table.about)
    digest.update(body)
    if digest.hexdigest() != table.digest:
        raise _broken(path, "its digest does not fit what it holds")
    return bytes(table.about), columns


def _content(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise RobfcpError(unreadable(path, error)) from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            problem = IsADirectoryError() if stat.S_ISDIR(found.st_mode) else FileNotFoundError()
            raise RobfcpError(unreadable(path, problem))
        if found.st_size >= MAPPED:
            return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(found.st_size)
    except (OSError, ValueError) as error:
        if isinstance(error, RobfcpError):
            raise
        raise RobfcpError(unreadable(path, error)) from error
    finally:
        os.close(handle)


def _column(path: str | os.PathLike[str], one: WireColumn, body: memoryview) -> Column:
    within = 0 <= one.offset <= len(body) and 0 <= one.length <= len(body)
    if not within or one.offset % _ALIGN or one.offset + one.n_bytes > len(body):
        raise _broken(path, f"column {one.name!r:.40} lies outside the file")
    return np.frombuffer(body, np.dtype("<" + one.dtype), one.length, one.offset)


def _broken(path: str | os.PathLike[str], problem: str) -> RobfcpError:
    return RobfcpError(f"{path}: {problem}; make it again with robfcp pack")


def _little(column: Column) -> Column:
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise RobfcpError(f"columns: {column.dtype}, {column.ndim}-d; pass vectors of integers")
    return np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))


def _padded(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN


def _parts(columns: Mapping[str, Column]) -> Iterator[bytes | memoryview]:
    for column in columns.values():
        yield column.view(np.uint8).data if len(column) else b""
        yield bytes(_padded(column.nbytes) - column.nbytes)


def _chained(first: bytes, columns: Mapping[str, Column]) -> Iterator[bytes | memoryview]:
    yield first
    yield from _parts(columns)
