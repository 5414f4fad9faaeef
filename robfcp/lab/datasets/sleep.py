"""Sleep staging from tables of thirty-second epochs: subject, stage and features (npz, parquet)."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Source
from robfcp.lab.datasets.table import Dataset, SiteTable, Split

STAGES = ("W", "N1", "N2", "N3", "REM")
SOURCE = Source(
    name="sleep",
    home="https://physionet.org/content/sleep-edfx/ (or https://sleepdata.org/datasets/shhs)",
    folder="sleep",
)
Names = dict[str, NDArray[np.str_]]
Table = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[Any], Names]
_COLUMNS = {"subject": "subject", "stage": "y", "y": "y"}
_KEPT = ("night", "age")  # columns of sites, where all tables have them
_IGNORED = {*_KEPT, "epoch", "sex"}  # columns that describe an epoch but are no features


def load(directory: Path, verify: bool) -> Dataset:
    """Half of the subjects (every second, by number) to train on, the others to calibrate and test.

    Every table in `sleep/` is read and joined: an npz with x (n, d), y in 0..4 and subject, or a
    parquet table with the columns subject, stage (or y) and one column per feature. Features are
    standardised by the training subjects' median and interquartile range and clipped to +-8.
    """
    x, y, subject, _ = _joined(directory, verify)
    number = np.searchsorted(np.unique(subject), subject)
    training = number % 2 == 0
    x = _standardise(x, training)
    train = Split(x[training], y[training], number[training].astype(np.int64))
    test = Split(x[~training], y[~training], number[~training].astype(np.int64))
    return Dataset("sleep", train, test, STAGES)


def load_sites(directory: Path, verify: bool) -> SiteTable:
    """All epochs of all subjects, features as they are; columns: site (the subject), and night and
    age where the tables have them."""
    x, y, subject, names = _joined(directory, verify)
    number = np.searchsorted(np.unique(subject), subject)
    site = np.array([f"subject {k + 1:02d}" for k in range(number.max() + 1)])[number]
    return SiteTable("sleep", x, y, STAGES, {"site": site, **names})


def _joined(directory: Path, verify: bool) -> Table:
    """Features, stages, subjects and other columns of every table in the folder."""
    folder = directory / SOURCE.folder
    paths = sorted([*folder.glob("*.npz"), *folder.glob("*.parquet")])
    if not paths:
        raise RobfcpError(
            f"sleep: no table of epochs (*.npz or *.parquet) in {folder}; make one from "
            f"{SOURCE.home}: x or feature columns, y or stage in 0..4, subject"
        )
    tables = [
        _read_parquet(path) if path.suffix == ".parquet" else _read_npz(path) for path in paths
    ]
    widths = {x.shape[1] for x, _, _, _ in tables}
    if len(widths) > 1:
        raise RobfcpError(
            f"sleep: tables in {folder} have {sorted(widths)} features; make them agree"
        )
    x, y, subject = (np.concatenate([table[k] for table in tables]) for k in range(3))
    everywhere = [name for name in _KEPT if all(name in table[3] for table in tables)]
    names = {name: np.concatenate([table[3][name] for table in tables]) for name in everywhere}
    if verify and not np.isfinite(x).all():
        raise RobfcpError(f"sleep: {folder} holds features that are not finite; clean the table")
    return x, y, subject, names


def _standardise(x: NDArray[np.float32], training: NDArray[np.bool_]) -> NDArray[np.float32]:
    low, middle, high = np.percentile(x[training].astype(np.float64), [25, 50, 75], axis=0)
    spread = np.where(high > low, high - low, 1.0)
    scaled: NDArray[np.float32] = np.clip((x - middle) / spread, -8, 8).astype(np.float32)
    return scaled


def _read_npz(path: Path) -> Table:
    try:
        with np.load(path, allow_pickle=False) as content:
            columns = {key: content[key] for key in ("x", "y", "subject")}
            names = {key: content[key].astype(np.str_) for key in _KEPT if key in content.files}
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise RobfcpError(f"sleep: {path} needs x, y and subject ({error}); rebuild it") from error
    x, y = columns["x"].astype(np.float32), columns["y"].astype(np.int64)
    return x, y, columns["subject"], names


def _read_parquet(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise RobfcpError(
            f"sleep: {path} needs pyarrow; install it or save the table as npz"
        ) from error
    table = parquet.read_table(path)
    found = {_COLUMNS[name]: name for name in table.column_names if name in _COLUMNS}
    if set(found) != {"y", "subject"}:
        raise RobfcpError(f"sleep: {path} needs the columns subject and stage; rename them")
    features = [name for name in table.column_names if name not in (*_COLUMNS, *_IGNORED)]
    x = np.column_stack([table[name].to_numpy() for name in features])
    y, subject = (table[found[name]].to_numpy() for name in ("y", "subject"))
    kept = [name for name in _KEPT if name in table.column_names]
    names = {name: table[name].to_numpy().astype(np.str_) for name in kept}
    return x.astype(np.float32), y.astype(np.int64), subject, names
