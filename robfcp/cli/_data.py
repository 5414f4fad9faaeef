"""Model outputs from npz, npy or CSV files."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

PREDICTIONS = ("probabilities", "predictions")
MAX_ARRAY_BYTES = 2**34
TARGETS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True, eq=False)
class FileOutputs:
    """Predictions of a model with the true targets where the file has them."""

    predictions: NDArray[Any]
    targets: NDArray[Any] | None


def read_outputs(path: Path, *, needs_targets: bool) -> FileOutputs:
    """Predictions and targets of one file.

    npz: arrays `probabilities` (or `predictions`) and `labels` (or `targets`). npy: predictions.
    CSV: a header line; the column `label` (or `target`) is the target, the others predictions in
    the order of the file; one prediction column means regression, two with low/high CQR.
    """
    if not path.is_file():
        raise RobfcpError(f"{path}: no such file; check the path")
    if not path.stat().st_size:
        raise RobfcpError(f"{path}: is empty; write it again")
    readers = {".npz": _npz, ".npy": _npy, ".csv": _csv}
    if path.suffix.lower() not in readers:
        raise RobfcpError(f"{path}: cannot read {path.suffix or 'this'}; use .npz, .npy or .csv")
    try:
        outputs = readers[path.suffix.lower()](path)
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
    """Class probabilities with the true labels."""

    predictions: NDArray[Any]
    labels: NDArray[Any]


def chosen_outputs(name: str) -> Labelled:
    """FileOutputs that ship with the package, by name, or those of a file."""
    from robfcp.lab import outputs

    if name in outputs.names():
        shipped = outputs.load(name)
        return Labelled(shipped.probabilities, shipped.labels)
    if not Path(name).suffix:
        known = ", ".join(outputs.names())
        raise RobfcpError(f"{name}: no outputs of that name ship; use one of {known}, or a file")
    found = read_outputs(Path(name), needs_targets=True)
    assert found.targets is not None
    return Labelled(found.predictions, found.targets)


def _npz(path: Path) -> FileOutputs:
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        predictions = next((_member(archive, names[n]) for n in PREDICTIONS if n in names), None)
        targets = next((_member(archive, names[n]) for n in TARGETS if n in names), None)
    if predictions is None:
        raise RobfcpError(
            f"{path}: has arrays {', '.join(sorted(names)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    return FileOutputs(predictions, targets)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, refused before it is expanded where it is larger than it can be."""
    if info.file_size > MAX_ARRAY_BYTES:
        raise ValueError(f"{info.filename} would have {info.file_size} bytes")
    with archive.open(info) as stream:
        return _array(stream, info.file_size)


def _npy(path: Path) -> FileOutputs:
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


def _csv(path: Path) -> FileOutputs:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        header = [name.strip().lower() for name in next(csv.reader(stream), [])]
        lines = [line for line in stream.read().splitlines() if line.strip()]
    if not header or not lines:
        raise RobfcpError(f"{path}: is empty; write a header line and one line a sample")
    if len(set(header)) < len(header):
        raise RobfcpError(f"{path}: two columns have the same name; rename one")
    table = np.loadtxt(
        lines, delimiter=",", ndmin=2, dtype=np.float64, comments=None, quotechar='"'
    )
    if table.shape[1] != len(header):
        raise RobfcpError(f"{path}: {len(header)} names in the header, {table.shape[1]} columns")
    target = next((header.index(name) for name in TARGETS if name in header), None)
    if target is None:
        return FileOutputs(_squeeze(table), None)
    values = table[:, target]
    predictions = np.delete(table, target, axis=1)
    whole = bool((np.abs(values) < 2**53).all()) and np.array_equal(values, np.round(values))
    if predictions.shape[1] > 1 and whole:
        values = values.astype(np.int64)
    return FileOutputs(_squeeze(predictions), values)


def _squeeze(predictions: NDArray[Any]) -> NDArray[Any]:
    return predictions[:, 0] if predictions.shape[1] == 1 else predictions
