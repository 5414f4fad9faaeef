"""Class probabilities of models on real test data, shipped with the package, in small files.

Where they come from and whom to cite is in `entries()` and in ATTRIBUTION.md beside the files. A
file holds logits below the row's largest, as float16 or in steps, labels, and columns of names
(site, country, group): each sample's place among the distinct names.
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
from robfcp.errors import RobfcpError

__all__ = ["NATURAL", "Outputs", "entries", "load", "names", "read", "write"]

NATURAL = "leave-sites-out"  # the split of outputs whose sites are the data's own
STEP = 1 / 16  # of a logit, in the 8-bit form
MAX_BYTES = 256 * 2**20
_CODES, _NAMES = "column:", "names:"


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """What ships: data set, split, stage, file, checksum and how each model was trained."""
    text = files("robfcp.experiments.outputs").joinpath("index.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["outputs"])


def names() -> tuple[str, ...]:
    """The data sets that outputs ship for."""
    return tuple(dict.fromkeys(entry["dataset"] for entry in entries()))


@lru_cache(maxsize=4)
def load(name: str, split: str | None = None, stage: str = "final") -> Outputs:
    """Probabilities and labels of the calibration and test samples.

    `split` says how the training data was spread over the clients ("iid" or "beta0.5"), or that
    every site was predicted by a model that never saw it ("leave-sites-out", with the column
    `site`); without it the first that ships. Stage
    "early" is the round whose benign set size is nearest to the one the paper published, where
    the final model is much better than the paper's.
    """
    for entry in entries():
        fits = split is None or entry["split"] == split
        if fits and (entry["dataset"], entry["stage"]) == (name, stage):
            content = files("robfcp.experiments.outputs").joinpath(entry["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise RobfcpError(f"{entry['file']}: is damaged; install the package again")
            return decode(content, entry)
    known = ", ".join(f"{e['dataset']}/{e['split']}/{e['stage']}" for e in entries())
    raise RobfcpError(f"{name}/{split or 'any'}/{stage}: no such outputs; choose one of {known}")


@dataclass(frozen=True, eq=False)
class Outputs:
    """Probabilities float32 (n, C) and labels (n,), with each sample's group where there is one,
    and columns of names (n,), such as site and country, where the sites are the data's own.

    A probability is known to about 1% of itself (3% in the 8-bit form) however small it is, so
    scores near 0 keep their order.
    """

    probabilities: NDArray[np.float32]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    def column(self, name: str) -> NDArray[np.str_]:
        """(n,) the names in a column; refused where the outputs have none of this name."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise RobfcpError(f"outputs: have no column {name!r}; the columns are: {known}")
        return self.columns[name]

    @property
    def accuracy(self) -> float:
        """Share of samples whose most probable class is the label."""
        return float((self.probabilities.argmax(1) == self.labels).mean())


def write(
    path: str | os.PathLike[str],
    logits: ArrayLike,
    labels: ArrayLike,
    groups: ArrayLike | None = None,
    bits: int = 16,
    columns: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Save model outputs; read() gives the probabilities back.

    An npz of `depth` = (row's largest logit - logit), float16 or uint8 in steps of 1/16 up to 15.9,
    with labels, groups and columns of names.
    """
    values = np.asarray(logits, np.float64)
    depth = values.max(axis=1, keepdims=True) - values
    if bits == 8:
        stored = np.minimum(np.rint(depth / STEP), 255).astype(np.uint8)
    elif bits == 16:
        stored = np.minimum(depth, np.finfo(np.float16).max).astype(np.float16)
    else:
        raise RobfcpError(f"bits: {bits} is neither 8 nor 16")
    arrays: dict[str, NDArray[Any]] = {"depth": stored, "labels": _smallest(labels)}
    if groups is not None:
        arrays["groups"] = _smallest(groups)
    for name, column in (columns or {}).items():
        words, place = np.unique(np.asarray(column, np.str_), return_inverse=True)
        arrays[_CODES + name], arrays[_NAMES + name] = _smallest(place), words
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read(path: str | os.PathLike[str]) -> Outputs:
    """The outputs in a file that write() made."""
    return decode(read_bounded(Path(path), MAX_BYTES))


def decode(content: bytes, provenance: Mapping[str, Any] | None = None) -> Outputs:
    """Softmax of the stored logits, with labels, groups and columns."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            depth, labels = arrays["depth"], arrays["labels"].astype(np.int64)
            groups = arrays["groups"].astype(np.int64) if "groups" in arrays.files else None
            columns = {
                key.removeprefix(_CODES): arrays[key.replace(_CODES, _NAMES, 1)][arrays[key]]
                for key in arrays.files
                if key.startswith(_CODES)
            }
    except (KeyError, IndexError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RobfcpError(f"outputs: not a file of outputs ({error}); write it again") from (error)
    scale = STEP if depth.dtype == np.uint8 else 1.0
    weights = np.exp(-scale * depth.astype(np.float64))
    probabilities = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return Outputs(probabilities, labels, groups, provenance or {}, columns)


def _smallest(values: ArrayLike) -> NDArray[np.integer[Any]]:
    array = np.asarray(values)
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))
