"""What loaders share: where files come from and lie, reading tables and images, what comes out."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

VARIABLE = "ROBFCP_DATA"
MISSING = frozenset({"", "?", "nan", "na"})


@dataclass(frozen=True)
class Split:
    """Samples x (images uint8 (n, h, w, c) or features float32 (n, d)) and labels y (n,)."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None  # e.g. the subject each epoch of sleep belongs to

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise RobfcpError(
                f"data: {len(self.x)} samples but {len(self.y)} labels; the files do not belong "
                "together, fetch them again"
            )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.integer]) -> Split:
        """The samples at `index`."""
        groups = None if self.groups is None else self.groups[index]
        return Split(self.x[index], self.y[index], groups)


@dataclass(frozen=True)
class Dataset:
    """A data set: what to train on, what to calibrate and test on, and the class names."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            if len(split) and not 0 <= split.y.min() <= split.y.max() < len(self.classes):
                raise RobfcpError(
                    f"{self.name}: labels {split.y.min()}..{split.y.max()} do not fit "
                    f"{len(self.classes)} classes; the label file is not the official one"
                )


@dataclass(frozen=True)
class SiteTable:
    """A federation as it is: samples x (n, ...), labels y (n,) and columns of names (n,), of which
    `site` says where each sample comes from."""

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    columns: Mapping[str, NDArray[np.str_]]
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Dataset(self.name, Split(self.x, self.y), Split(self.x[:0], self.y[:0]), self.classes)
        for name, column in self.columns.items():
            if len(column) != len(self.y):
                raise RobfcpError(
                    f"{self.name}: {len(column)} values of {name} but {len(self.y)} labels; the "
                    "files do not belong together, fetch them again"
                )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def sites(self) -> NDArray[np.str_]:
        """(n,) the site of each sample."""
        return self.columns["site"]

    def take(self, index: NDArray[Any]) -> SiteTable:
        """The samples at `index`, or those kept by a mask."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, x=self.x[index], y=self.y[index], columns=columns)


@dataclass(frozen=True)
class Source:
    """A data set's home page and its folder in the data directory."""

    name: str
    home: str
    folder: str

    def wrong(self, what: str) -> RobfcpError:
        """What is wrong with a file of the set, and where the right one is."""
        return RobfcpError(f"{self.name}: {what}; get it again from {self.home}")

    def check_number(
        self, path: Path, found: int, official: int, what: str, verify: bool = True
    ) -> None:
        """Refuse a file that does not hold the official number of something."""
        if verify and found != official:
            raise self.wrong(
                f"{path} holds {found} {what}, not the official {official} (--no-verify takes them)"
            )

    def locate(self, directory: Path, *alternatives: str) -> Path:
        """The first of a file's names found in the set's folder or in the data directory itself."""
        folders = (directory / self.folder, directory)
        for path in (folder / name for folder in folders for name in alternatives):
            if path.exists():
                return path
        raise RobfcpError(
            f"{self.name}: {' or '.join(alternatives)} is missing from {folders[0]} and "
            f"{directory}; get it from {self.home}"
        )

    def check_md5(self, path: Path, expected: str) -> None:
        """Refuse a file whose MD5 is not the official one."""
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        if digest != expected:
            raise RobfcpError(
                f"{self.name}: {path} has MD5 {digest}, not the official {expected}; "
                "fetch it again, or pass --no-verify to use it as it is"
            )

    def read_columns(self, path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
        """The needed columns of a CSV file with a header line, as text without blanks around it."""
        with path.open(newline="", encoding="latin-1") as stream:
            reader = csv.reader(stream)
            header = [name.strip().removeprefix("ï»¿").strip('"') for name in next(reader, [])]
            rows = [row for row in reader if row]
        for name in needed:
            if name not in header:
                raise self.wrong(f"{path} has no column {name}")
        if not rows:
            raise self.wrong(f"{path} holds no rows")
        for line, row in enumerate(rows, 2):
            if len(row) != len(header):
                raise self.wrong(f"{path} line {line} has {len(row)} of {len(header)} values")
        return {name: [row[header.index(name)].strip() for row in rows] for name in needed}

    def numbers(self, values: Sequence[str], field: str) -> NDArray[np.float32]:
        """(n,) the values as float32; NaN where one is missing."""
        found = np.full(len(values), np.nan, np.float32)
        for k, value in enumerate(values):
            if value.lower() not in MISSING:
                try:
                    found[k] = float(value)
                except ValueError:
                    raise self.wrong(f"{field} holds {value!r:.40}, which is no number") from None
        return found

    def flags(self, values: Sequence[str], field: str) -> NDArray[np.float32]:
        """(n,) 1 for Y, 0 for N, NaN where missing or "C" (could not be told)."""
        known = {"Y": 1.0, "N": 0.0, "C": np.nan}
        for value in values:
            if value.upper() not in known and value.lower() not in MISSING:
                raise self.wrong(f"{field} holds {value!r}, not Y or N")
        return np.array([known.get(value.upper(), np.nan) for value in values], np.float32)

    def images(self, paths: Sequence[Path]) -> list[NDArray[np.uint8]]:
        """The pictures as RGB arrays."""
        from PIL import Image

        def read(path: Path) -> NDArray[np.uint8]:
            try:
                with Image.open(path) as image:
                    return np.asarray(image.convert("RGB"))
            except OSError as error:
                raise self.wrong(f"{path} is missing or broken") from error

        with ThreadPoolExecutor() as pool:
            return list(pool.map(read, paths))


def data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """The directory given, or $ROBFCP_DATA; refused when neither names a directory."""
    chosen = path if path is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise RobfcpError(f"data: no directory given; pass --data-dir or set {VARIABLE}")
    directory = Path(chosen)
    if not directory.is_dir():
        raise RobfcpError(f"data: {directory} is not a directory; create it or name another")
    return directory
