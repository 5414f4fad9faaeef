"""What a file of model outputs holds, and how it is to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from robfcp.report import Names

TARGETS = ("labels", "label", "targets", "target", "y", "y_true", "truth")

Expects = Literal["classes", "values", "labels"]  # one of C classes, a number, several labels


@dataclass(frozen=True)
class FileReading:
    """How a file is to be read, as far as it does not say itself."""

    ids: str | None = None
    label: str | None = None
    classes: Names | None = None
    logits: bool = False
    normalise: bool = False
    lenient: bool = False  # one bad sample must not show by failing: it becomes NaN


@dataclass(frozen=True, eq=False)
class FileOutputs:
    """Predictions of a model with the true targets where the file has them."""

    predictions: NDArray[Any]
    targets: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of the classes, where they have names
    ids: NDArray[Any] | None = None
    rows: Sequence[int] = ()  # as a spreadsheet counts them
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The classes' names, or their number where the file does not name them."""
        return self.names or int(self.predictions.shape[1])

    @property
    def sample_ids(self) -> list[str]:
        """What the samples are called; their rows in the file where they have no names."""
        return [str(name) for name in (self.rows if self.ids is None else self.ids)]
