"""Parts of all loaders: data sets, their official files, and reading tables and images."""

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

from robfcp._typing import IntArray
from robfcp.errors import RobfcpError

VARIABLE = "ROBFCP_DATA"  # of the environment: the directory of all data sets
MISSING = frozenset({"", "?", "nan", "na"})  # how tables write that a value is missing
FLAGS = {"Y": 1.0, "N": 0.0, "C": np.nan}  # C: could not be assessed


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Attributes
    ----------
    x : ndarray
        Images, uint8 (n, h, w, c), or features, float32 (n, d).
    y : ndarray of int, shape (n,)
        The labels.
    groups : ndarray of int, shape (n,), optional
        The group of each sample, such as the subject of an epoch of sleep.
    """

    x: NDArray[Any]
    y: IntArray
    groups: IntArray | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise RobfcpError(
                f"data: {len(self.x)} samples but {len(self.y)} labels; the files do not belong "
                "together, fetch them again"
            )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.integer]) -> Split:
        """Return the samples at `index`."""
        groups = None if self.groups is None else self.groups[index]
        return Split(self.x[index], self.y[index], groups)


@dataclass(frozen=True)
class Dataset:
    """A data set: samples to train on, samples to calibrate and test on, and the class names."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            check_label_range(self.name, split.y, len(self.classes))


@dataclass(frozen=True)
class SiteTable:
    """Samples of real sites.

    Attributes
    ----------
    name : str
        The data set.
    x : ndarray, shape (n, ...)
        The samples.
    y : ndarray of int, shape (n,)
        The labels.
    classes : tuple of str
        The class names.
    columns : mapping of str to ndarray of str, shape (n,)
        Names for each sample; the column `site` says where it comes from.
    features : tuple of str
        The names of the features, if they have some.
    """

    name: str
    x: NDArray[Any]
    y: IntArray
    classes: tuple[str, ...]
    columns: Mapping[str, NDArray[np.str_]]
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        samples = Split(self.x, self.y)
        check_label_range(self.name, samples.y, len(self.classes))
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
        """The site of each sample, (n,)."""
        return self.columns["site"]

    def take(self, index: NDArray[Any]) -> SiteTable:
        """Return the samples at `index`, or those that a mask selects."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, x=self.x[index], y=self.y[index], columns=columns)


@dataclass(frozen=True)
class Source:
    """Where the official files of a data set are, and how to read them.

    Parameters
    ----------
    name : str
        The data set.
    home : str
        The address of its home page.
    folder : str
        Its folder in the data directory.
    """

    name: str
    home: str
    folder: str

    def error(self, problem: str) -> RobfcpError:
        """Return the error about a file of the data set; it says where the official one is."""
        return RobfcpError(f"{self.name}: {problem}; get it again from {self.home}")

    def check_count(
        self, path: Path, count: int, official_count: int, noun: str, verify: bool = True
    ) -> None:
        """Refuse a file that does not hold the official number of items, if it is verified."""
        if verify and count != official_count:
            raise self.error(
                f"{path} holds {count} {noun}, not the official {official_count} "
                "(--no-verify takes them)"
            )

    def locate(self, directory: Path, *alternatives: str) -> Path:
        """Return the path of a file by the first of its names that exists.

        It is sought in the folder of the data set, then in the data directory itself.
        """
        folder = directory / self.folder
        candidates = [folder / name for name in alternatives]
        candidates += [directory / name for name in alternatives]
        for path in candidates:
            if path.exists():
                return path
        raise RobfcpError(
            f"{self.name}: {' or '.join(alternatives)} is missing from {folder} and "
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
        """Return the needed columns of a CSV file with a header line, cells without blanks."""
        with path.open(newline="", encoding="latin-1") as stream:
            reader = csv.reader(stream)
            header_row = next(reader, [])
            rows = [row for row in reader if row]

        byte_order_mark = "ï»¿"  # of UTF-8, read as Latin-1
        header = [name.strip().removeprefix(byte_order_mark).strip('"') for name in header_row]
        for name in needed:
            if name not in header:
                raise self.error(f"{path} has no column {name}")
        if not rows:
            raise self.error(f"{path} holds no rows")
        for line, row in enumerate(rows, 2):
            if len(row) != len(header):
                raise self.error(f"{path} line {line} has {len(row)} of {len(header)} values")

        columns = {}
        for name in needed:
            column_index = header.index(name)
            columns[name] = [row[column_index].strip() for row in rows]
        return columns

    def parse_numbers(self, values: Sequence[str], field: str) -> NDArray[np.float32]:
        """Return the values as float32, (n,); NaN where one is missing."""
        parsed = np.full(len(values), np.nan, np.float32)
        for k, value in enumerate(values):
            if value.lower() in MISSING:
                continue
            try:
                parsed[k] = float(value)
            except ValueError:
                raise self.error(f"{field} holds {value!r:.40}, which is no number") from None
        return parsed

    def parse_flags(self, values: Sequence[str], field: str) -> NDArray[np.float32]:
        """Return 1 for Y, 0 for N, NaN where missing or "C" (could not be assessed), (n,)."""
        for value in values:
            if value.upper() not in FLAGS and value.lower() not in MISSING:
                raise self.error(f"{field} holds {value!r}, not Y or N")
        return np.array([FLAGS.get(value.upper(), np.nan) for value in values], np.float32)

    def read_images(self, paths: Sequence[Path]) -> list[NDArray[np.uint8]]:
        """Return the images as RGB arrays, (h, w, 3) each."""
        from PIL import Image

        def read_image(path: Path) -> NDArray[np.uint8]:
            try:
                with Image.open(path) as image:
                    return np.asarray(image.convert("RGB"))
            except OSError as error:
                raise self.error(f"{path} is missing or broken") from error

        with ThreadPoolExecutor() as pool:
            return list(pool.map(read_image, paths))


def check_label_range(name: str, labels: IntArray, n_classes: int) -> None:
    """Refuse labels outside 0..n_classes - 1."""
    if not len(labels):
        return
    if not 0 <= labels.min() <= labels.max() < n_classes:
        raise RobfcpError(
            f"{name}: labels {labels.min()}..{labels.max()} do not fit "
            f"{n_classes} classes; the label file is not the official one"
        )


def data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the given directory, or $ROBFCP_DATA; refuse if neither names a directory."""
    if path is None:
        path = os.environ.get(VARIABLE)
    if not path:
        raise RobfcpError(f"data: no directory given; pass --data-dir or set {VARIABLE}")
    directory = Path(path)
    if not directory.is_dir():
        raise RobfcpError(f"data: {directory} is not a directory; create it or name another")
    return directory
