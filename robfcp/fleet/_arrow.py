"""Arrow: loaded where it is needed, names in little memory, rows to a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from robfcp._files import open_atomic
from robfcp._typing import BoolArray, IndexArray
from robfcp._validation import RESERVED_PREFIXES, are_client_names
from robfcp.errors import MAX_NAME, RobfcpError
from robfcp.federation import POSITION_DTYPE, FilePath, GrowingColumn

if TYPE_CHECKING:
    import pyarrow as pa

NAMES_PER_COMPARISON = 2**20  # names compared at a time
_NAMES_PER_LIST = 2**13  # names that are Python's own at a time
_ROWS_PER_GROUP = 2**13  # rows of a Parquet file that are written, and read, at a time
_MAX_STRING_BYTES = 2**31  # of an array of Arrow's type "string"

# A name of printable ASCII without a blank at its ends: nearly all names.
_PLAIN_NAME = f"^[!-~]([ -~]{{0,{MAX_NAME - 2}}}[!-~])?$"


def import_pyarrow() -> Any:
    """Return pyarrow with the modules in use; refuse in a line that says how to get it."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own keeps what is freed
    try:
        import_module("pyarrow.compute")
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ImportError:
        raise RobfcpError("Parquet: needs pyarrow; pip install 'robfcp[fleet]'") from None


class ArrowNames(Sequence[str]):
    """Names in Arrow: a fifth of the memory of Python's own.

    Parameters
    ----------
    array : pyarrow.Array
        Of strings.
    """

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ArrowNames(self.array[index])
        return self.array[int(index)].as_py()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _NAMES_PER_LIST):
            yield from self.array.slice(first, _NAMES_PER_LIST).to_pylist()

    def take(self, rows: IndexArray) -> ArrowNames:
        """Return the names in some rows."""
        return ArrowNames(self.array.take(import_pyarrow().array(rows)))

    @cached_property
    def _sorted_rows(self) -> IndexArray | None:
        """The rows in the order of their names; None where they are in order."""
        compute = import_pyarrow().compute
        names = self.array
        if len(names) < 2:
            return None
        is_in_order = compute.all(compute.less_equal(names[:-1], names[1:])).as_py()
        if is_in_order:
            return None
        return np.asarray(compute.sort_indices(names)).astype(POSITION_DTYPE)

    def ordered(self, mask: BoolArray) -> tuple[IndexArray | slice, ArrowNames]:
        """Return the chosen rows in the order of their names, and these; a slice is all rows."""
        sorted_rows = self._sorted_rows
        if sorted_rows is not None:
            rows = sorted_rows[mask[sorted_rows]]
            return rows, self.take(rows)
        if mask.all():
            return slice(None), self
        rows = np.flatnonzero(mask)
        return rows, self.take(rows)

    def repeated(self) -> IndexArray:
        """Return the rows whose names come more than once."""
        compute = import_pyarrow().compute
        sorted_rows = self._sorted_rows
        repeated = GrowingColumn()
        for first in range(0, len(self), NAMES_PER_COMPARISON):
            compared = slice(first, first + NAMES_PER_COMPARISON + 1)
            if sorted_rows is None:
                names = self.array[compared]
            else:
                names = self.take(sorted_rows[compared]).array
            same_as_next = first + np.flatnonzero(compute.equal(names[:-1], names[1:]))
            for positions in (same_as_next, same_as_next + 1):
                repeated.extend(positions if sorted_rows is None else sorted_rows[positions])
        return np.unique(repeated.concatenated()).astype(np.intp)


class ArrowNamesBuilder:
    """Collects names that come some at a time: lists, or arrays of Arrow.

    Parameters
    ----------
    names : list of str
        The first ones.
    """

    def __init__(self, names: list[str]) -> None:
        self._arrays: list[pa.Array] = []
        self.extend(names)

    def extend(self, names: Any) -> None:
        """Append names."""
        pa = import_pyarrow()
        self._arrays.append(pa.array(names).cast(pa.string()))

    def finish(self) -> ArrowNames:
        """Return all names; nothing may be appended any more."""
        pa = import_pyarrow()
        arrays = self._arrays
        self._arrays = []
        if sum(array.nbytes for array in arrays) >= _MAX_STRING_BYTES:
            arrays = [array.cast(pa.large_string()) for array in arrays]
        return ArrowNames(pa.concat_arrays(arrays))


def are_arrow_client_names(names: pa.Array) -> BoolArray:
    """Return (n,) which names can be clients' names; usual ones are recognized together."""
    pa = import_pyarrow()
    is_plain = pa.compute.match_substring_regex(names, _PLAIN_NAME).fill_null(False)
    are_names = np.array(is_plain)
    for prefix in RESERVED_PREFIXES:
        are_names &= ~np.array(pa.compute.starts_with(names, prefix).fill_null(False))

    unusual = np.flatnonzero(~are_names)
    unusual_names = [name or "" for name in names.take(pa.array(unusual)).to_pylist()]
    are_names[unusual] = are_client_names(unusual_names)
    return are_names


def write_rows(path: FilePath, rows: Iterable[dict[str, Any]], columns: pa.Schema) -> None:
    """Write rows as a Parquet file, whole or not at all.

    Parameters
    ----------
    path : path
        The file; an old one is replaced.
    rows : iterable of dict
        Values by the names of their columns.
    columns : pyarrow.Schema
        Names and types.
    """
    pa = import_pyarrow()
    remaining = iter(rows)
    with (
        open_atomic(path) as stream,
        pa.parquet.ParquetWriter(stream, columns, compression="zstd") as writer,
    ):
        group = list(islice(remaining, _ROWS_PER_GROUP))
        while group:
            writer.write_table(pa.Table.from_pylist(group, columns))
            group = list(islice(remaining, _ROWS_PER_GROUP))
