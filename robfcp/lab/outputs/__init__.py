"""Class probabilities of models on real test data, shipped with the package.

Where they come from and whom to cite is in `entries()` and in ATTRIBUTION.md beside the files.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from robfcp.errors import RobfcpError
from robfcp.lab.outputs.codec import Outputs, decode, encode, read, write

__all__ = [
    "NATURAL",
    "Outputs",
    "decode",
    "encode",
    "entries",
    "load",
    "names",
    "natural_names",
    "read",
    "write",
]

NATURAL = "leave-sites-out"  # the split of outputs whose sites are the data's own

Stage = Literal["final", "early"]


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """What ships: data set, split, stage, file, checksum and how each model was trained."""
    text = files("robfcp.lab.outputs").joinpath("index.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["outputs"])


def names() -> tuple[str, ...]:
    """The data sets that outputs ship for."""
    return tuple(dict.fromkeys(entry["dataset"] for entry in entries()))


def natural_names() -> tuple[str, ...]:
    """The data sets that outputs with their own sites ship for."""
    return tuple(entry["dataset"] for entry in entries() if entry["split"] == NATURAL)


def load(name: str, split: str | None = None, stage: Stage = "final") -> Outputs:
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
            content = files("robfcp.lab.outputs").joinpath(entry["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise RobfcpError(f"{entry['file']}: is damaged; install the package again")
            return decode(content, entry)
    known = ", ".join(f"{e['dataset']}/{e['split']}/{e['stage']}" for e in entries())
    raise RobfcpError(f"{name}/{split or 'any'}/{stage}: no such outputs; choose one of {known}")
