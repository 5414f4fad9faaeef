"""Class probabilities of federated models on real test data, shipped with the package."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from robfcp.errors import RobfcpError
from robfcp.lab.outputs.codec import Outputs, decode, encode, read, write

__all__ = ["Outputs", "decode", "encode", "entries", "load", "names", "read", "write"]

Stage = Literal["final", "early"]


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """What ships: data set, split, stage, file, checksum and how each model was trained."""
    text = files("robfcp.lab.outputs").joinpath("index.json").read_text()
    return tuple(json.loads(text)["outputs"])


def names() -> tuple[str, ...]:
    """The data sets that outputs ship for."""
    return tuple(dict.fromkeys(entry["dataset"] for entry in entries()))


def load(name: str, split: str = "iid", stage: Stage = "final") -> Outputs:
    """Probabilities and labels of the calibration and test samples.

    `split` says how the training data was spread over the clients ("iid" or "beta0.5"). Stage
    "early" is the round whose benign set size is nearest to the one the paper published, where
    the final model is much better than the paper's.
    """
    for entry in entries():
        if (entry["dataset"], entry["split"], entry["stage"]) == (name, split, stage):
            content = files("robfcp.lab.outputs").joinpath(entry["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise RobfcpError(f"{entry['file']}: is damaged; install the package again")
            return decode(content, entry)
    known = ", ".join(f"{e['dataset']}/{e['split']}/{e['stage']}" for e in entries())
    raise RobfcpError(f"{name}/{split}/{stage}: no such outputs; choose one of {known}")
