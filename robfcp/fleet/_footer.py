"""What the pages of a Parquet file announce, read without unpacking any.

A few bytes of a hostile file can unfold to more than the memory holds, and pyarrow ends the process
where parts of a file contradict each other. So the footer and the headers of all pages are read
here first. They are values of Thrift's compact protocol; the numbers of their fields are those of
Parquet's definition (parquet.thrift).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

# Types of Thrift's compact protocol.
_TRUE = 1
_FALSE = 2
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LIST = 9
_STRUCT = 12
_BYTES_OF_TYPE = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}  # where they stand in a list
_MAX_SHIFT = 63  # of a number of 64 bits, seven bits a byte

# Numbers of fields.
_ROW_GROUPS = 4  # of the footer
_COLUMN_CHUNKS = 1  # of a row group
_COLUMN_METADATA = 3  # of a column chunk
_COLUMN_PATH = 3  # of a chunk's metadata
_CHUNK_BYTES = 7
_FIRST_DATA_PAGE = 9
_DICTIONARY_PAGE = 11
_UNPACKED_BYTES = 2  # of a page's header
_PACKED_BYTES = 3
_DATA_HEADER = 5
_DATA_HEADER_V2 = 8
_N_VALUES = 1  # of a data page's own header
_ENCODING = {_DATA_HEADER: 2, _DATA_HEADER_V2: 4}

_DELTA_BYTE_ARRAY = 7  # the encoding of texts that each begin as the one before: they never end
_MAX_FOOTER_BYTES = 2**16  # of a small file; of a large one an eighth more
_MAX_PAGE_HEADER_BYTES = 2**14

# What reading a file that is cut or made up can end in.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class PageTotals(NamedTuple):
    """What the pages of a file announce.

    Attributes
    ----------
    n_values : int
        Numbers in all pages. A page counts as one more: empty ones take time too.
    n_bytes : int
        Bytes of all pages, unpacked.
    """

    n_values: int
    n_bytes: int


def sum_pages(path: Path, columns: Collection[str], max_values: int) -> PageTotals:
    """Return what the pages of some columns announce; larger than allowed ones are not summed up.

    Parameters
    ----------
    path : Path
        A Parquet file, perhaps.
    columns : collection of str
        The columns that are read.
    max_values : int
        Beyond so many values no further page is looked at.

    Raises
    ------
    UNREADABLE
        Where it is no such file.
    """
    n_values = 0
    n_bytes = 0
    with path.open("rb") as stream:
        for chunk in _column_chunks(stream, columns):
            # A chunk begins with its dictionary where it has one.
            position = chunk[_FIRST_DATA_PAGE]
            position = min(position, chunk.get(_DICTIONARY_PAGE) or position)
            end = position + chunk[_CHUNK_BYTES]
            while position < end and n_values <= max_values:
                stream.seek(position)
                reader = _ThriftReader(stream.read(_MAX_PAGE_HEADER_BYTES))
                header = reader.read_struct()
                n_values += 1 + _values_of_page(header)
                n_bytes += header[_UNPACKED_BYTES]
                position += reader.position + header[_PACKED_BYTES]
    return PageTotals(n_values, n_bytes)


def _column_chunks(stream: IO[bytes], columns: Collection[str]) -> Iterator[dict[int, Any]]:
    """Yield the metadata of the chunks of some columns, as the footer states them."""
    footer_end = stream.seek(-8, os.SEEK_END)
    stated_length = int.from_bytes(stream.read(4), "little")
    length = min(stated_length, _MAX_FOOTER_BYTES + footer_end // 8)
    stream.seek(footer_end - length)
    footer = _ThriftReader(stream.read(stated_length)).read_struct()
    chunks = [
        chunk[_COLUMN_METADATA]
        for row_group in footer[_ROW_GROUPS]
        for chunk in row_group[_COLUMN_CHUNKS]
    ]
    for chunk in chunks:
        if chunk[_COLUMN_PATH][0].decode() in columns:
            yield chunk


def _values_of_page(header: dict[int, Any]) -> int:
    """Return how many values a page announces; refuse sizes below 0, and texts without end."""
    stated_sizes = [header[_UNPACKED_BYTES], header[_PACKED_BYTES]]
    n_values = 0
    for field, encoding in _ENCODING.items():
        if field not in header:
            continue
        page = header[field]
        if page[encoding] == _DELTA_BYTE_ARRAY:
            raise ValueError
        stated_sizes.append(page[_N_VALUES])
        n_values += page[_N_VALUES]
    if min(stated_sizes) < 0:
        raise ValueError
    return n_values


class _ThriftReader:
    """Reads values of Thrift's compact protocol, one after the other.

    Attributes
    ----------
    position : int
        Where the next value begins.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read_struct(self) -> dict[int, Any]:
        """Return a struct: its fields by their numbers, without those that are true or false."""
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._read_byte()
            if not head:
                return fields
            step = head >> 4
            number = number + step if step else self._read_unsigned() >> 1
            type_ = head & 15
            if type_ > _FALSE:  # the type itself is what a truth value is
                fields[number] = self._read(type_)

    def _read(self, type_: int) -> Any:
        """Return a value of a type; None of one that is of no use."""
        if self.position >= len(self._data):
            raise IndexError
        if type_ in _INTEGERS:
            number = self._read_unsigned()
            return (number >> 1) ^ -(number & 1)  # zigzag: 0, -1, 1, -2, ...
        if type_ == _BINARY:
            return self._read_bytes()
        if type_ == _LIST:
            return self._read_list()
        if type_ == _STRUCT:
            return self.read_struct()
        self.position += _BYTES_OF_TYPE[type_]
        return None

    def _read_byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte

    def _read_unsigned(self) -> int:
        """Return a number whose bytes hold seven bits each, the lowest first."""
        number = 0
        for shift in range(0, _MAX_SHIFT + 1, 7):
            byte = self._read_byte()
            number |= (byte & 127) << shift
            if byte < 128:
                break
        return number

    def _read_bytes(self) -> bytes:
        length = self._read_unsigned()
        first = self.position
        self.position += length
        return self._data[first : self.position]

    def _read_list(self) -> list[Any]:
        head = self._read_byte()
        length = head >> 4
        if length == 15:  # longer ones state their length in a number of its own
            length = self._read_unsigned()
        values = []
        for _ in range(length):
            values.append(self._read(head & 15))
        return values
