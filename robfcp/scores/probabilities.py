"""Checks on class probabilities and labels, shared by every classification score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array as numbers
from robfcp._util.numbers import floats, refuse_missing
from robfcp.errors import RobfcpError
from robfcp.scores.columns import label_columns

Probabilities = NDArray[np.floating]
BLOCK_BYTES = 2**20  # rows are handled in blocks that stay in the cache


def check_probabilities(probabilities: ArrayLike) -> Probabilities:
    """The (n, C) array itself, refused when a row cannot be a probability vector."""
    array = numbers("probabilities", probabilities)
    if array.ndim != 2 or array.shape[1] < 2:
        raise RobfcpError(
            f"probabilities: shape {array.shape} is not (samples, classes >= 2); reshape them"
        )
    if array.dtype.kind == "O":
        array = floats("probabilities", array)
    if array.dtype.kind != "f":
        raise RobfcpError(
            f"probabilities: dtype {array.dtype} is not floating point; pass class probabilities"
        )
    return array


def from_logits(logits: ArrayLike) -> NDArray[np.float64]:
    """Class probabilities of logits: their softmax, in float64 so that scores keep their digits.

    Parameters
    ----------
    logits
        (n, C) numbers of any float type, numpy's or a tensor's; (n,) or (n, 1) are the logits of
        class 1 of a model with two classes.

    Returns
    -------
    (n, C) array
        Rows that sum to 1.

    Raises
    ------
    RobfcpError
        Where a row holds NaN or positive infinity, or nothing but negative infinity.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.from_logits([[0.0, 0.0], [1000.0, 0.0]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    >>> robfcp.from_logits([0.0])
    array([[0.5, 0.5]])
    """
    values = floats("logits", logits)
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        values = np.stack([np.zeros(len(values)), values.reshape(len(values))], axis=1)
    if values.ndim != 2 or not values.shape[1]:
        raise RobfcpError(f"logits: shape {values.shape} is not (samples, classes); reshape them")
    top = values.max(axis=1, keepdims=True)
    wrong = ~np.isfinite(top[:, 0])  # NaN comes to the top too
    if wrong.any():
        raise RobfcpError(
            f"logits: row {int(np.argmax(wrong))} holds NaN or infinity; check the model's output"
        )
    powers = np.exp(values - top)
    return powers / powers.sum(axis=1, keepdims=True)


def row_blocks(array: NDArray[np.generic]) -> Iterator[slice]:
    """Slices of rows that each hold about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // max(1, array.shape[1] * array.itemsize))
    for start in range(0, len(array), step):
        yield slice(start, min(start + step, len(array)))


def check_rows(block: Probabilities, first: int, total: NDArray[np.floating] | None = None) -> None:
    """Refuse negative, NaN or unnormalised rows; the sum may be off by the dtype's rounding.

    `total` are the rows' sums where they are known already.
    """
    lowest = block.min() if block.size else 0.0
    if not lowest >= 0:  # NaN fails this too
        row = first + int(np.argmax(~(block >= 0).all(axis=1)))
        if np.isnan(block[row - first]).any():
            problem = "holds NaN; check the model's output"
        else:
            problem = "holds a negative value; are these logits? robfcp.from_logits takes them"
        raise RobfcpError(f"probabilities: row {row} {problem}")
    if total is None:
        with np.errstate(over="ignore"):
            total = np.einsum("ij->i", block, dtype=accumulator(block), casting="same_kind")
    wrong = ~(np.abs(total - 1) <= sum_tolerance(block.shape[1]))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise RobfcpError(
            f"probabilities: row {first + row} sums to {total[row]:.6g}, not 1; "
            "normalise the rows, or take logits through robfcp.from_logits"
        )


def accumulator(block: Probabilities) -> type[np.floating]:
    """What rows are summed in: float32 where they are, to the digits they have, else float64."""
    return np.float32 if block.dtype == np.float32 else np.float64


def sum_tolerance(n_classes: int) -> float:
    """How far a row of bfloat16 or float16 probabilities can be from 1: an ulp each, at most 1%."""
    # Entry j rounds by at most 2^-9 p_j (sum <= 2^-9), or by 2^-25 where a float16 is subnormal.
    return min(0.01, 2**-8 + n_classes * 2**-25)


def check_labels(
    labels: ArrayLike, n_samples: int, n_classes: int, names: Sequence[str] = ()
) -> NDArray[np.intp]:
    """Labels as (n,) class numbers, looked up where the columns have names."""
    array = numbers("labels", labels)
    if array.ndim != 1 or len(array) != n_samples:
        raise RobfcpError(
            f"labels: shape {array.shape} does not fit {n_samples} samples; give one per row"
        )
    refuse_missing("labels", array)
    if names and array.dtype.kind in "USOiu":
        return label_columns(array, names)
    if array.dtype.kind in "USO":
        raise RobfcpError(
            "labels: are text; name the classes (a frame's columns, classes=) or encode them as "
            "column numbers"
        )
    if array.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {array.dtype} is not integer; encode classes as 0..C-1")
    if array.size and (array.min() < 0 or array.max() >= n_classes):
        raise RobfcpError(
            f"labels: {array.min()}..{array.max()} leaves 0..{n_classes - 1}; "
            "encode classes as column numbers"
        )
    return array.astype(np.intp, copy=False)
