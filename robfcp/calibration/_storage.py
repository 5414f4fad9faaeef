"""The files of a calibration: the calibration itself, and its record beside it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robfcp._files import file_lock, is_special, read_bounded
from robfcp._sealed import FilePath, sha256_of
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.calibration._calibration import Calibration
    from robfcp.calibration._record import Record


def save_calibration(calibration: Calibration, path: FilePath, key: Any) -> None:
    """Write record and calibration as a pair; see `Calibration.save`.

    Parameters
    ----------
    calibration : Calibration
        The calibration; without a record it is written alone.
    path : str or PathLike
        Its file. To a special one, as a pipe, the calibration is written alone.
    key : object
        The server's private key to sign with, or None.
    """
    if calibration.record is None or is_special(path):
        calibration.to_document().save(path, key)
        return

    # A record that was read may be written with other bytes: its digest is computed again.
    record = replace(calibration.record, file_digest="")
    calibration = replace(calibration, record=record)
    record_path = calibration.record_path(path)
    with file_lock(record_path.with_name(".robfcp.lock")):
        # The calibration is renamed last, so that whichever is there has its record.
        record.save(record_path)
        calibration.to_document().save(path, key)
        _remove_other_records(Path(path), record_path)


def _remove_other_records(path: Path, current_record: Path) -> None:
    """Remove the records of calibrations that were saved at `path` before.

    The caller holds the lock of the folder: else a record might go that another process has just
    written. A record that cannot be removed is harmless and stays.

    Parameters
    ----------
    path : Path
        The file of the calibration.
    current_record : Path
        The record that stays, as `Calibration.record_path` names it.
    """
    # The pattern is that of `Calibration.record_path`: the first 12 digits of the digest.
    record_name = re.compile(re.escape(path.stem) + r"\.[0-9a-f]{12}\.record\.json")
    for file in current_record.parent.iterdir():
        is_old_record = file.name != current_record.name and record_name.fullmatch(file.name)
        if is_old_record:
            with suppress(OSError):
                file.unlink()


def load_record(calibration: Calibration, path: FilePath) -> Record:
    """Return the record in a file; refuse one that is not of this calibration.

    Parameters
    ----------
    calibration : Calibration
        A calibration that was loaded, with the digest of its record.
    path : str or PathLike
        The file of the record.

    Raises
    ------
    RobfcpError
        Where there is no file, its digest is another, or it contradicts the calibration.
    """
    # Clients predict without a record, which needs modules of the server.
    from robfcp.calibration._record import Record, RecordDocument

    name = os.fspath(path)
    if not Path(path).exists():
        raise RobfcpError(
            f"{name}: this calibration came without its record; load it from the folder where "
            "its .record.json lies, or pass the reports again"
        )
    data = read_bounded(name, RecordDocument.max_bytes)
    if sha256_of(data) != calibration.loaded_record_sha256:
        raise RobfcpError(
            f"{name}: is not the record of this calibration (its digest differs); "
            "pass the file that was written with it"
        )

    # The digest stands in the calibration's file, which may be forged as well: so what later code
    # relies on is checked, too.
    record = Record.from_json(data, name)
    if record.summary != calibration.summary:
        raise RobfcpError(f"{name}: does not fit the calibration (it sums up to another one)")
    upper_edges = record.federation.binning.upper_edges
    for level in calibration.levels:
        if not np.isinf(level.threshold) and level.threshold not in upper_edges:
            raise RobfcpError(
                f"{name}: does not fit the calibration (a threshold is not an edge of the binning)"
            )
    return record
