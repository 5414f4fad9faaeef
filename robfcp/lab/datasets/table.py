"""What a loader returns: training and test samples, or the samples of sites as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError


@dataclass(frozen=True)
class Split:
    """Samples x (images uint8 (n, h, w, c) or features float32 (n, d)) and labels y (n,)."""

    x: NDArray[np.generic]
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

    def take(self, index: NDArray[np.integer]) -> SiteTable:
        """The samples at `index`."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, x=self.x[index], y=self.y[index], columns=columns)
