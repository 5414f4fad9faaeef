"""What a file of model outputs holds, and how it is to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from numpy.typing import NDArray

from robfcp.cli.console import option
from robfcp.errors import RobfcpError
from robfcp.reports import StratumNames
from robfcp.scores import ClassificationScore, Risk, Score

Task = Literal["classes", "values", "labels"]  # one of C classes, a number, several labels


@dataclass(frozen=True)
class ReaderOptions:
    """How a file is to be read, as far as it does not say itself.

    Attributes
    ----------
    ids, label, logits, normalize
        As the options say.
    classes : tuple of str or int, optional
        The classes of the calibration that the file is read for.
    guess_task : bool
        Whether the file may turn out to hold numbers in place of classes.
    allow_invalid : bool
        Whether an invalid sample becomes NaN. A private report must not show by failing that a
        sample is invalid.
    """

    ids: Annotated[str | None, option("The column that names samples, if not 'id'.", "--id")] = None
    label: Annotated[str | None, option("The column with the truth, if not 'label' or 'y'.")] = None
    logits: Annotated[bool, option("Take softmax of the columns.", "--logits")] = False
    normalize: Annotated[bool, option("Divide rows by their sums.", "--normalize")] = False
    classes: StratumNames | None = None
    guess_task: bool = False
    allow_invalid: bool = False

    def __post_init__(self) -> None:
        if self.logits and self.normalize:
            raise RobfcpError("--normalize: a softmax sums to 1 already; drop one of them")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names, where they are stated."""
        return self.classes if isinstance(self.classes, tuple) else ()


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """Predictions of a model for n samples, with the true targets where the file has them.

    Attributes
    ----------
    predictions : (n,) or (n, C) ndarray
        Class probabilities, predicted numbers or probabilities of several labels.
    targets : (n,) or (n, C) ndarray, optional
        Class indices, numbers, or which labels are true.
    columns : mapping of str to (n,) ndarray
        Further columns that were asked for.
    names : tuple of str
        The names of the classes, where they have names.
    ids : (n,) ndarray, optional
        The names of the samples.
    rows : sequence of int
        The rows of the samples as a spreadsheet counts them.
    notes : list of str
        What is to be said of how the file was read.
    score : str
        The score of the numbers that the file turned out to hold in place of classes.
    """

    predictions: NDArray[Any]
    targets: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    ids: NDArray[Any] | None = None
    rows: Sequence[int] = ()
    notes: list[str] = field(default_factory=list)
    score: str = ""

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The classes' names, or how many they are where the file does not name them."""
        return self.names or int(self.predictions.shape[1])


def expected_task(score: Score | None, risk: Risk | str | None = None) -> Task:
    """Return what a score or a risk is computed from."""
    if risk is not None:
        return "labels"
    if score is None or isinstance(score, ClassificationScore):
        return "classes"
    return "values"
