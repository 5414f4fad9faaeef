"""Prediction sets as files, and outputs in the order of a calibration's classes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp._util.files import write_atomically
from robfcp.calibration import Calibration
from robfcp.cli._data import FileOutputs
from robfcp.errors import RobfcpError


def in_order(calibration: Calibration, outputs: FileOutputs) -> FileOutputs:
    """The outputs with columns in the calibration's order of classes, where both name them."""
    wanted = calibration.classes
    if not isinstance(wanted, tuple) or not outputs.names or outputs.names == wanted:
        return outputs
    if set(outputs.names) != set(wanted):
        odd = sorted(set(outputs.names) ^ set(wanted))[0]
        raise RobfcpError(f"columns: {odd!r:.60} is not in both file and calibration; rename it")
    place = [outputs.names.index(name) for name in wanted]
    back = np.argsort(place)
    targets = None if outputs.targets is None else back[outputs.targets]
    return FileOutputs(outputs.predictions[:, place], targets, outputs.columns, wanted)


def sets_as_csv(sets: NDArray[np.bool_], names: tuple[str, ...] = ()) -> str:
    """One line a sample: the number of its labels and the labels, separated by blanks.

    Labels are class names where the calibration knows them, column numbers where it does not.
    """
    shown = names or tuple(map(str, range(sets.shape[1])))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["size", "labels"])
    for row in sets:
        held = [shown[c] for c in np.flatnonzero(row)]
        writer.writerow([len(held), " ".join(held)])
    return buffer.getvalue()


def write_result(path: Path, result: NDArray[np.generic], text: str) -> None:
    """The sets or intervals as .csv or .npy, whole or not at all."""
    if path.suffix == ".csv":
        write_atomically(path, text)
    elif path.suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, result, allow_pickle=False)
        write_atomically(path, buffer.getvalue())
    else:
        raise RobfcpError(f"{path}: cannot write {path.suffix or 'this'}; use .csv or .npy")
