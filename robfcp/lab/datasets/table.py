"""What a loader returns: training and test samples with labels and, where known, groups."""

from __future__ import annotations

from dataclasses import dataclass

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
