"""Model outputs in the arrays of an npz file, by their names, or in an npy file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.cli._arrays import array_names, read_npy, read_npz
from robfcp.cli._outputs import TARGETS, Expects, FileOutputs, FileReading
from robfcp.cli._probabilities import as_probabilities
from robfcp.errors import RobfcpError
from robfcp.scores import ClassColumns

PREDICTIONS = ("probabilities", "predictions", "logits")
IDS = ("ids", "id", "index", "patientid")


def of_arrays(
    path: Path, aside: Sequence[str], kind: Expects | None, how: FileReading
) -> FileOutputs:
    """The parts of an npz archive by the names of its arrays, or the array of an npy file."""
    if path.suffix.lower() == ".npy":
        there: list[str] = []
        arrays: Mapping[str, NDArray[Any]] = {"probabilities": read_npy(path)}
    else:
        there = array_names(path)
        names = [how.ids, how.label, "classes", *IDS, *TARGETS, *PREDICTIONS, *aside]
        arrays = read_npz(path, [name for name in names if name is not None])
    for name in (*aside, how.ids, how.label):
        if name is not None and name not in arrays:
            raise RobfcpError(f"has no array {name!r}; it has {a_few(there) or 'none with a name'}")
    given = next((arrays[name] for name in PREDICTIONS if name in arrays), None)
    if given is None:
        raise RobfcpError(
            f"has arrays {a_few(sorted(there)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    label = [how.label] if how.label is not None else TARGETS
    targets = next((arrays[name] for name in label if name in arrays), None)
    ids = next((arrays[n] for n in ([how.ids] if how.ids else IDS) if n in arrays), None)
    further = {name: arrays[name] for name in aside}
    length = len(given) if given.ndim else 0
    found = FileOutputs(given, targets, further, ids=ids, rows=range(1, length + 1))
    if kind != "classes" or given.ndim != 2 or given.dtype.kind not in "fiu":
        return found
    named = arrays["classes"].astype(str).tolist() if "classes" in arrays else []
    if named and len(named) != given.shape[1]:
        raise RobfcpError(f"{len(named)} classes are named, but there are {given.shape[1]} columns")
    logits = how.logits or next(name for name in PREDICTIONS if name in arrays) == "logits"
    return _classified_arrays(found, named, replace(how, logits=logits))


def _classified_arrays(found: FileOutputs, named: list[str], how: FileReading) -> FileOutputs:
    """Class probabilities of arrays; the rows are counted from 1."""
    names = named or [str(k) for k in range(found.predictions.shape[1])]
    columns = ClassColumns(tuple(range(len(names))), tuple(named))
    if named and isinstance(how.classes, tuple):
        order = ClassColumns.of_classes(names, how.classes)
        if order is None:
            raise RobfcpError(
                f"the classes {a_few(names)} are not {a_few(how.classes)}; rename them"
            )
        columns = ClassColumns(tuple(order), how.classes)
    p = found.predictions[:, list(columns.order)] if named else found.predictions
    targets = found.targets
    if targets is not None and targets.ndim == 1 and targets.dtype.kind in "US":
        kept = how.classes if isinstance(how.classes, tuple) else columns.names
        number = ClassColumns(columns.order, kept).numbers(targets)
        if not how.lenient and (number < 0).any():
            row = int(np.argmax(number < 0))
            raise RobfcpError(
                f"row {row + 1}: the label {targets[row]!s:.40} is none of the classes "
                f"{a_few(kept or names)}; save their names as an array 'classes'"
            )
        targets = number
    where = [f"row {row}" for row in found.rows]
    p = as_probabilities(p, where, how, lambda row, k: f"row {row + 1}, column {k + 1}")
    return replace(found, predictions=p, targets=targets, names=columns.names)
