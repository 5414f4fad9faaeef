"""Model outputs from npz, npy or CSV files."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.lab.outputs import Outputs

PREDICTIONS = ("probabilities", "predictions")
MULTILABEL = ("label_", "label:")  # one column a label, 0 or 1
MAX_ARRAY_BYTES = 2**34
TARGETS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True, eq=False)
class FileOutputs:
    """Predictions of a model with the true targets where the file has them."""

    predictions: NDArray[Any]
    targets: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of the prediction columns, where the file names them

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The classes' names, or their number where the file does not name them."""
        return self.names or int(self.predictions.shape[1])


def read_outputs(
    path: Path, *, needs_targets: bool, columns: Sequence[str | None] = ()
) -> FileOutputs:
    """Predictions and targets of one file.

    npz: arrays `probabilities` (or `predictions`) and `labels` (or `targets`). npy: predictions.
    CSV: a header line; the column `label` (or `target`) is the target, the others predictions in
    the order of the file; one prediction column means regression, two with low/high CQR.
    `columns` are arrays or columns that are neither: a group, a sample's name. None is left out.
    """
    wanted = [name for name in columns if name is not None]
    if not path.is_file():
        raise RobfcpError(f"{path}: no such file; check the path")
    if not path.stat().st_size:
        raise RobfcpError(f"{path}: is empty; write it again")
    readers = {".npz": _npz, ".npy": _npy, ".csv": _csv}
    if path.suffix.lower() not in readers:
        raise RobfcpError(f"{path}: cannot read {path.suffix or 'this'}; use .npz, .npy or .csv")
    try:
        outputs = readers[path.suffix.lower()](path, wanted)
    except RobfcpError:
        raise
    except Exception as error:  # zlib, tokenize, zipfile, csv, numpy: each has its own
        remedy = "write it again"
        if path.suffix.lower() == ".csv":
            remedy = "use commas between columns, points in numbers, labels as column numbers"
        raise RobfcpError(f"{path}: cannot be read ({error}); {remedy}") from error
    if needs_targets and outputs.targets is None:
        raise RobfcpError(f"{path}: holds no labels; add an array or column called 'label'")
    return outputs


@dataclass(frozen=True, eq=False)
class Labelled:
    """Class probabilities with the true labels and, where they are natural, each sample's site."""

    predictions: NDArray[Any]
    labels: NDArray[Any]
    sites: NDArray[Any] | None = None


def chosen_outputs(name: str, site_column: str | None = None) -> Labelled:
    """Outputs that ship with the package, by name, or those of a file; with their own sites where
    a column of them is named."""
    from robfcp.lab import outputs

    if name in outputs.names():
        if site_column is None:
            return _labelled(outputs.load(name), None)
        if name not in outputs.natural_names():
            known = ", ".join(outputs.natural_names())
            raise RobfcpError(f"--sites: {name} has no sites of its own; use one of {known}")
        return _labelled(outputs.load(name, outputs.NATURAL), site_column)
    if not Path(name).suffix:
        known = ", ".join(outputs.names())
        raise RobfcpError(f"{name}: no outputs of that name ship; use one of {known}, or a file")
    if "depth" in _arrays(Path(name)):
        return _labelled(outputs.read(name), site_column)
    found = read_outputs(Path(name), needs_targets=True)
    assert found.targets is not None
    sites = None if site_column is None else named_array(Path(name), site_column)
    return Labelled(found.predictions, found.targets, sites)


def _labelled(found: Outputs, site_column: str | None) -> Labelled:
    sites = None if site_column is None else found.column(site_column)
    return Labelled(found.probabilities, found.labels, sites)


def _arrays(path: Path) -> list[str]:
    """The names of the arrays in an npz file; none where it is no such file."""
    if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as content:
        return [name.removesuffix(".npy") for name in content.namelist()]


def named_array(path: Path, name: str) -> NDArray[Any]:
    """The array of this name in an npz file."""
    if name in _arrays(path):
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name]
    raise RobfcpError(
        f"{path}: holds no {name!r}; save an npz with an array {name!r}, one name a sample"
    )


def _npz(path: Path, columns: Sequence[str]) -> FileOutputs:
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        predictions = next((_member(archive, names[n]) for n in PREDICTIONS if n in names), None)
        targets = next((_member(archive, names[n]) for n in TARGETS if n in names), None)
        _check_columns(path, columns, names)
        further = {name: _member(archive, names[name]) for name in columns}
    if predictions is None:
        raise RobfcpError(
            f"{path}: has arrays {', '.join(sorted(names)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    return FileOutputs(predictions, targets, further)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, refused before it is expanded where it is larger than it can be."""
    if info.file_size > MAX_ARRAY_BYTES:
        raise ValueError(f"{info.filename} would have {info.file_size} bytes")
    with archive.open(info) as stream:
        return _array(stream, info.file_size)


def _npy(path: Path, columns: Sequence[str]) -> FileOutputs:
    _check_columns(path, columns, ())
    with path.open("rb") as stream:
        return FileOutputs(_array(stream, path.stat().st_size), None)


def _array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a stream of so many bytes; what its header claims beyond them is refused."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version} is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else _header_2
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    wanted = prod(shape) * dtype.itemsize
    if not 0 <= wanted <= size:
        raise ValueError(f"shape {shape} needs {wanted} bytes but the file has {size}")
    data = stream.read(wanted)
    if len(data) < wanted:
        raise ValueError("it ends too early")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _header_2(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_2_0(stream)


def _csv(path: Path, columns: Sequence[str]) -> FileOutputs:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        shown = [name.strip() for name in next(csv.reader(stream), [])]
        lines = [line for line in stream.read().splitlines() if line.strip()]
    header = [name.lower() for name in shown]
    if not header or not lines:
        raise RobfcpError(f"{path}: is empty; write a header line and one line a sample")
    if len(set(header)) < len(header):
        raise RobfcpError(f"{path}: two columns have the same name; rename one")
    further: dict[str, NDArray[Any]] = {}
    if columns:
        aside = {name.lower() for name in columns}
        shown = [name for name in shown if name.lower() not in aside]
        rows, header, further = _set_apart(path, header, lines, columns)
        table = np.array(rows, dtype=np.float64).reshape(len(lines), -1)
    else:
        table = np.loadtxt(
            lines, delimiter=",", ndmin=2, dtype=np.float64, comments=None, quotechar='"'
        )
    if table.shape[1] != len(header):
        raise RobfcpError(f"{path}: {len(header)} names in the header, {table.shape[1]} columns")
    several = [place for place, name in enumerate(header) if name.startswith(MULTILABEL)]
    if several:
        truth = table[:, several].astype(np.int64)
        return FileOutputs(np.delete(table, several, axis=1), truth)
    target = next((header.index(name) for name in TARGETS if name in header), None)
    names = tuple(name for place, name in enumerate(shown) if place != target)
    if target is None:
        return FileOutputs(_squeeze(table), None, further, names)
    values = table[:, target]
    predictions = np.delete(table, target, axis=1)
    whole = bool((np.abs(values) < 2**53).all()) and np.array_equal(values, np.round(values))
    if predictions.shape[1] > 1 and whole:
        values = values.astype(np.int64)
    return FileOutputs(_squeeze(predictions), values, further, names)


def _set_apart(
    path: Path, header: list[str], lines: list[str], columns: Sequence[str]
) -> tuple[list[list[str]], list[str], dict[str, NDArray[Any]]]:
    """The rows and header without the named columns, and these as text."""
    _check_columns(path, columns, header)
    rows = list(csv.reader(lines))
    if any(len(row) != len(header) for row in rows):
        raise RobfcpError(f"{path}: a line has not the {len(header)} columns of the header")
    places = {name: header.index(name.lower()) for name in columns}
    further = {name: np.array([row[k].strip() for row in rows]) for name, k in places.items()}
    kept = [k for k in range(len(header)) if k not in places.values()]
    return [[row[k] for k in kept] for row in rows], [header[k] for k in kept], further


def _check_columns(path: Path, columns: Sequence[str], there: Any) -> None:
    for name in columns:
        if name not in there and name.lower() not in there:
            raise RobfcpError(f"{path}: has no column {name!r}; name one of its own")


def _squeeze(predictions: NDArray[Any]) -> NDArray[Any]:
    return predictions[:, 0] if predictions.shape[1] == 1 else predictions
