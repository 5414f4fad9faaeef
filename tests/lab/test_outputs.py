"""Shipped outputs are what their index says, small, and keep digits at both ends."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from robfcp import LAC
from robfcp.errors import RobfcpError
from robfcp.lab import outputs


@pytest.mark.parametrize("entry", outputs.entries(), ids=lambda entry: entry["file"])
def test_every_shipped_file_is_what_the_index_says(entry: dict[str, object]) -> None:
    loaded = outputs.load(str(entry["dataset"]), str(entry["split"]), entry["stage"])  # type: ignore[arg-type]
    assert loaded.probabilities.shape == (entry["samples"], entry["classes"])
    assert loaded.accuracy == pytest.approx(entry["accuracy"], abs=1e-4)
    assert np.abs(loaded.probabilities.sum(1, dtype=np.float64) - 1).max() < 1e-5
    assert 0 <= loaded.labels.min() <= loaded.labels.max() < int(str(entry["classes"]))
    assert str(entry["command"]).startswith(f"robfcp train {entry['dataset']}")
    scores = LAC()(loaded.probabilities, loaded.labels)
    assert len(np.unique(scores)) > 0.5 * len(scores)


def test_the_shipped_files_stay_small() -> None:
    sizes = {
        entry["file"]: len(files("robfcp.lab.outputs").joinpath(entry["file"]).read_bytes())
        for entry in outputs.entries()
    }
    assert sum(sizes.values()) < 8 * 2**20
    assert sum(size for name, size in sizes.items() if name.startswith("tiny")) < 6 * 2**20


def test_both_splits_of_all_five_data_sets_ship() -> None:
    names = ("mnist", "cifar10", "tinyimagenet", "pathmnist", "sleep")
    assert outputs.names() == (*names, "stroke", "heart")
    for name in names:
        first, second = (outputs.load(name, split) for split in ("iid", "beta0.5"))
        assert np.array_equal(first.labels, second.labels)


def test_sleep_keeps_its_subjects_for_attribute_partitions() -> None:
    sleep = outputs.load("sleep")
    assert sleep.groups is not None
    subjects = np.unique(sleep.groups)
    assert len(subjects) == 39
    assert (subjects % 2 == 1).all()  # the models were trained on the even ones


@pytest.mark.parametrize(("bits", "error"), [(16, 0.02), (8, 0.07)])
def test_small_probabilities_survive_storage_relative_to_their_size(
    tmp_path: Path, bits: int, error: float
) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 10))
    logits[:, 0] += 11.0
    labels = np.zeros(500, int)
    exact = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    path = tmp_path / "outputs.npz"
    outputs.write(path, logits, labels, np.arange(500), bits=bits)
    loaded = outputs.read(path)
    others = exact[:, 1:].sum(1)
    assert others.min() < 1e-4
    assert np.allclose(LAC()(loaded.probabilities, labels), others, rtol=error, atol=0)
    assert loaded.groups is not None
    assert np.array_equal(loaded.groups, np.arange(500))


def test_wrong_requests_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(RobfcpError, match="mnist/iid/final"):
        outputs.load("imagenet")
    with pytest.raises(RobfcpError, match="neither 8 nor 16"):
        outputs.write(tmp_path / "o.npz", np.zeros((2, 2)), [0, 1], bits=4)
    path = tmp_path / "x.npz"
    np.savez(path, other=np.zeros(2))
    with pytest.raises(RobfcpError, match="not a file of model outputs"):
        outputs.read(path)


def test_a_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {**outputs.entries()[0], "sha256": "0" * 64}
    monkeypatch.setattr(outputs, "entries", lambda: (entry,))
    with pytest.raises(RobfcpError, match="is damaged"):
        outputs.load("mnist")
