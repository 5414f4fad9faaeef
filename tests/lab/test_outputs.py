"""Shipped outputs are what their index says, small, and keep digits at both ends."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robfcp import LAC
from robfcp.errors import RobfcpError
from robfcp.lab import outputs


@pytest.mark.parametrize("entry", outputs.entries(), ids=lambda entry: entry["file"])
def test_every_shipped_file_is_what_the_index_says(entry: dict[str, Any]) -> None:
    loaded = outputs.load(entry["dataset"], entry["split"], entry["stage"])
    assert loaded.probabilities.shape == (entry["samples"], entry["classes"])
    assert loaded.accuracy == pytest.approx(entry["accuracy"], abs=1e-4)
    assert np.abs(loaded.probabilities.sum(1, dtype=np.float64) - 1).max() < 1e-5
    assert 0 <= loaded.labels.min() <= loaded.labels.max() < entry["classes"]
    scores = LAC()(loaded.probabilities, loaded.labels)
    assert len(np.unique(scores)) > 0.5 * len(scores)


def test_what_ships_is_small_complete_and_keeps_sleepers_apart() -> None:
    folder = files("robfcp.lab.outputs")
    sizes = [len(folder.joinpath(entry["file"]).read_bytes()) for entry in outputs.entries()]
    assert sum(sizes) < 8 * 2**20
    names = ("mnist", "cifar10", "tinyimagenet", "pathmnist", "sleep")
    assert outputs.names() == (*names, "stroke", "heart")
    subjects = np.unique(outputs.load("sleep").groups)
    assert (len(subjects), set(subjects % 2)) == (39, {1})  # trained on the even ones


@pytest.mark.parametrize(("bits", "error"), [(16, 0.02), (8, 0.07)])
def test_small_probabilities_survive_storage_relative_to_their_size(
    tmp_path: Path, bits: int, error: float
) -> None:
    logits, labels = np.random.default_rng(0).normal(size=(500, 10)), [0] * 500
    path = tmp_path / "o"
    logits[:, 0] += 11.0
    exact = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    outputs.write(path, logits, labels, np.arange(500), bits=bits)
    loaded = outputs.read(path)
    others = exact[:, 1:].sum(1)
    assert others.min() < 1e-4
    assert np.allclose(LAC()(loaded.probabilities, labels), others, rtol=error, atol=0)
    assert np.array_equal(loaded.groups, np.arange(500))
    outputs.write(path, np.eye(3), [0, 1, 2], columns={"site": np.array(["b", "a", "b"])})
    assert outputs.read(path).column("site").tolist() == ["b", "a", "b"]


def test_wrong_requests_and_files_are_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(RobfcpError, match="mnist/iid/final"):
        outputs.load("imagenet")
    with pytest.raises(RobfcpError, match="neither 8 nor 16"):
        outputs.write(tmp_path / "o.npz", np.zeros((2, 2)), [0, 1], bits=4)
    columns = {"depth": np.zeros((1, 2)), "labels": [0], "column:site": [3], "names:site": ["a"]}
    for arrays in ({"other": np.zeros(2)}, columns):
        np.savez(tmp_path / "x.npz", **arrays)
        with pytest.raises(RobfcpError, match="not a file of model outputs"):
            outputs.read(tmp_path / "x.npz")
    entry = {**outputs.entries()[0], "sha256": "0" * 64}
    monkeypatch.setattr(outputs, "entries", lambda: (entry,))
    with pytest.raises(RobfcpError, match="is damaged"):
        outputs.load("mnist")
