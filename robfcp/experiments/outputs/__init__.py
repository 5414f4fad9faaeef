"""Class probabilities of models on real test data, shipped with the package, in small files.

Their sources and citations are in `entries()` and in ATTRIBUTION.md beside the files. A file
holds the depth of each logit below the largest of its row, as float16 or in steps, the labels, and
columns of names (site, country, group) as the distinct names and each sample's index among them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import read_bounded, write_atomically
from robfcp._typing import IntArray
from robfcp.errors import RobfcpError

__all__ = [
    "NATURAL",
    "Outputs",
    "dataset_names",
    "entries",
    "load",
    "read_outputs",
    "write_outputs",
]

NATURAL = "leave-sites-out"  # the split of outputs of real sites
STEP = 1 / 16  # of a logit, in the 8-bit form
MAX_STEPS = 255  # that 8 bits hold
MAX_BYTES = 256 * 2**20  # of a file that is read
_INDEX_PREFIX = "column:"  # of the array of a column's indices
_NAMES_PREFIX = "names:"  # of the array of its distinct names


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """Return what ships: data set, split, stage, file, checksum and training of each model."""
    index = files("robfcp.experiments.outputs").joinpath("index.json")
    return tuple(json.loads(index.read_text(encoding="utf-8"))["outputs"])


def dataset_names() -> tuple[str, ...]:
    """Return the data sets that outputs ship for."""
    return tuple(dict.fromkeys(entry["dataset"] for entry in entries()))


@lru_cache(maxsize=4)
def load(name: str, split: str | None = None, stage: str = "final") -> Outputs:
    """Load the outputs of a model on its calibration and test samples.

    Parameters
    ----------
    name : str
        The data set.
    split : str, optional
        How the training data were split among the clients ("iid" or "beta0.5"), or that every
        site was predicted by a model that never saw it ("leave-sites-out", with the column
        `site`). If None, the first that ships.
    stage : {"final", "early"}
        "early" is the training round whose benign set size is nearest to the published one, where
        the final model is much better than the paper's.
    """
    for entry in entries():
        is_split = split is None or entry["split"] == split
        if is_split and entry["dataset"] == name and entry["stage"] == stage:
            return _load_entry(entry)
    choices = ", ".join(
        f"{entry['dataset']}/{entry['split']}/{entry['stage']}" for entry in entries()
    )
    raise RobfcpError(f"{name}/{split or 'any'}/{stage}: no such outputs; choose one of {choices}")


def _load_entry(entry: Mapping[str, Any]) -> Outputs:
    """Read a file that ships; refuse it if it is damaged."""
    content = files("robfcp.experiments.outputs").joinpath(entry["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise RobfcpError(f"{entry['file']}: is damaged; install the package again")
    return decode(content, entry)


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model on n samples.

    A probability is stored to about 1% of itself (3% in the 8-bit form) however small it is, so
    scores near 0 keep their order.

    Attributes
    ----------
    probabilities : ndarray of float32, shape (n, C)
        The class probabilities.
    labels : ndarray of int, shape (n,)
        The true labels.
    groups : ndarray of int, shape (n,), optional
        The group of each sample.
    provenance : mapping
        The entry of the data set, if it ships.
    columns : mapping of str to ndarray of str, shape (n,)
        Names for each sample, such as its site and country, if the data are of real sites.
    """

    probabilities: NDArray[np.float32]
    labels: IntArray
    groups: IntArray | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    def column(self, name: str) -> NDArray[np.str_]:
        """Return the names in a column, (n,); refuse a name that no column has."""
        if name not in self.columns:
            choices = ", ".join(self.columns) or "none"
            raise RobfcpError(f"outputs: have no column {name!r}; the columns are: {choices}")
        return self.columns[name]

    @property
    def accuracy(self) -> float:
        """The fraction of samples whose most probable class is the label."""
        return float((self.probabilities.argmax(1) == self.labels).mean())


def write_outputs(
    path: str | os.PathLike[str],
    logits: ArrayLike,
    labels: ArrayLike,
    groups: ArrayLike | None = None,
    bits: int = 16,
    columns: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Save model outputs; `read` returns the probabilities.

    The file is an npz of `depth`, the largest logit of the row minus the logit, with labels,
    groups and columns of names.

    Parameters
    ----------
    path : path
        The file.
    logits : array_like, shape (n, C)
        The logits of the classes.
    labels : array_like, shape (n,)
        The true labels.
    groups : array_like, shape (n,), optional
        The group of each sample.
    bits : {16, 8}
        Of a stored depth: float16, or uint8 in steps of 1/16 up to 15.9.
    columns : mapping of str to array_like, shape (n,), optional
        Names for each sample.
    """
    logit_array = np.asarray(logits, np.float64)
    exact_depth = logit_array.max(axis=1, keepdims=True) - logit_array
    if bits == 8:
        depth = np.minimum(np.rint(exact_depth / STEP), MAX_STEPS).astype(np.uint8)
    elif bits == 16:
        depth = np.minimum(exact_depth, np.finfo(np.float16).max).astype(np.float16)
    else:
        raise RobfcpError(f"bits: {bits} is neither 8 nor 16")

    arrays: dict[str, NDArray[Any]] = {"depth": depth, "labels": _as_small_integers(labels)}
    if groups is not None:
        arrays["groups"] = _as_small_integers(groups)
    for name, column in (columns or {}).items():
        distinct_names, name_index = np.unique(np.asarray(column, np.str_), return_inverse=True)
        arrays[_INDEX_PREFIX + name] = _as_small_integers(name_index)
        arrays[_NAMES_PREFIX + name] = distinct_names

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read_outputs(path: str | os.PathLike[str]) -> Outputs:
    """Read the outputs in a file that `write` saved."""
    return decode(read_bounded(Path(path), MAX_BYTES))


def decode(content: bytes, provenance: Mapping[str, Any] | None = None) -> Outputs:
    """Return the outputs in the bytes of a file; probabilities are the softmax of its logits."""
    groups = None
    columns = {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            depth = arrays["depth"]
            labels = arrays["labels"].astype(np.int64)
            if "groups" in arrays.files:
                groups = arrays["groups"].astype(np.int64)
            for key in arrays.files:
                if key.startswith(_INDEX_PREFIX):
                    name = key.removeprefix(_INDEX_PREFIX)
                    columns[name] = arrays[_NAMES_PREFIX + name][arrays[key]]
    except (KeyError, IndexError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RobfcpError(f"outputs: not a file of outputs ({error}); write it again") from error

    scale = STEP if depth.dtype == np.uint8 else 1.0
    weights = np.exp(-scale * depth.astype(np.float64))
    probabilities = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return Outputs(probabilities, labels, groups, provenance or {}, columns)


def _as_small_integers(values: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return the values in the smallest unsigned type that holds the largest of them."""
    array = np.asarray(values)
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))
