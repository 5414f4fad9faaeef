"""Federated training learns, resumes exactly, and averages what clients send by their sizes."""

import json

import numpy as np
import pytest
from makers import command_output

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from robfcp.errors import RobfcpError  # noqa: E402
from robfcp.experiments import outputs  # noqa: E402
from robfcp.experiments.datasets import Dataset, Split  # noqa: E402
from robfcp.experiments.training import TrainingSettings, federated, train  # noqa: E402
from robfcp.experiments.training.local import (  # noqa: E402
    Pool,
    build,
    draw_batches,
    flatten,
    unflatten,
)

CPU = torch.device("cpu")
torch.set_num_threads(1)


def blobs():
    """Gaussian clouds in six dimensions: an MLP separates them almost perfectly."""
    rng = np.random.default_rng(0)
    centers, y = 3 * rng.normal(size=(4, 6)), np.arange(1200) % 4
    x = (centers[y] + rng.normal(size=(1200, 6))).astype(np.float32)
    return Dataset("blobs", Split(x[:600], y[:600]), Split(x[600:], y[600:]), tuple("abcd"))


def pictures(n, size):
    rng = np.random.default_rng(1)
    y = np.arange(n) % 3
    x = rng.integers(0, 90, (n, size, size, 3), dtype=np.uint8)
    x[np.arange(n), :, :, y] += 120
    return Dataset("pictures", Split(x, y), Split(x, y), ("r", "g", "b"))


QUICK = {"clients": 10, "fraction": 0.4, "local_epochs": 2, "batch": 16, "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("model", "epochs", "min_accuracy"), [("cnn", 10, 0.9), ("resnet18", 1, 0.0)]
)
def test_networks_take_pictures(model, epochs, min_accuracy):
    settings = {"clients": 2, "fraction": 1.0, "batch": 8, "local_epochs": epochs}
    settings_of_model = TrainingSettings(
        model, 2, **settings, learning_rate=0.01, augment=True, mirror=True
    )
    logits, history = train(pictures(48, 12), settings_of_model, device="cpu")
    assert history[-1][1] > min_accuracy
    assert np.isfinite(logits).all()


def test_epochs_visit_every_sample_and_shifts_and_mirrors_move_pixels_only():
    draws = draw_batches(np.arange(100, 137), 3, 10, True, np.random.default_rng(0))
    for epoch in draws.reshape(3, 40, 4):
        assert sorted(epoch[:37, 0]) == list(range(100, 137))
    samples = pictures(3, 8).train
    pool = Pool(samples, CPU, augment=True)
    x, y = pool.batch(torch.tensor([[0, 4, 4, 0], [1, 4, 4, 1], [2, 5, 3, 0]], dtype=torch.int32))
    raw = pool.scaled(torch.as_tensor(samples.x))
    assert torch.equal(x[0], raw[0])
    assert torch.equal(x[1], raw[1].flip(-1))
    assert torch.equal(x[2][:, :-1, 1:], raw[2][:, 1:, :-1])
    assert y.tolist() == [0, 1, 2]


def test_a_run_resumed_from_its_checkpoint_ends_where_an_unbroken_one_does(tmp_path):
    settings, rounds = TrainingSettings("mlp", 4, **QUICK), []
    unbroken, history = train(blobs(), settings, device="cpu")
    assert history[-1] == (4, (unbroken.argmax(axis=1) == blobs().test.y).mean())
    assert history[-1][1] > 0.95  # what can be separated
    path = tmp_path / "state.safetensors"
    options = {"device": "cpu", "checkpoint": path}
    train(blobs(), settings, **options, stop_after=2)
    resumed, _ = train(blobs(), settings, **options, on_round=rounds.append)
    assert rounds == [3, 4]
    assert np.array_equal(unbroken, resumed)
    other_settings = TrainingSettings("mlp", 4, **{**QUICK, "batch": 8})
    for content, message in (
        (path.read_bytes(), "batch=16, not 8"),
        (b"nonsense", "no checkpoint"),
    ):
        path.write_bytes(content)
        with pytest.raises(RobfcpError, match=message):
            train(blobs(), other_settings, **options)


def test_a_round_is_plain_sgd_at_each_client_averaged_by_size():
    pool = Pool(blobs().train, CPU, augment=False)
    settings = TrainingSettings("mlp", 3, clients=2, fraction=1.0, local_epochs=2)
    model, client_rows = build("mlp", (6,), 4, seed=0), [np.arange(40), np.arange(40, 160)]
    start, rng = flatten(model), np.random.default_rng([0, 1, 0])
    joined = federated.run_round(model, pool, start, client_rows, settings, 0)
    order, expected = rng.choice(2, 2, replace=False), torch.zeros_like(start)
    for batches, k in [(draw_batches(client_rows[k], 2, 64, False, rng), k) for k in order]:
        state, velocity = start, torch.zeros_like(start)
        for step in batches:
            unflatten(model, state)
            index = torch.as_tensor(step[:, 0]).long()
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(pool.x[index]), pool.y[index]).backward()
            gradient = torch.cat([value.grad.reshape(-1) for value in model.parameters()])
            velocity = 0.9 * velocity + gradient + settings.weight_decay * state
            state = state - 0.05 * velocity
        expected += len(client_rows[k]) / 160 * state
    assert torch.allclose(joined, expected, atol=1e-5)


def test_wrong_settings_are_refused_with_the_remedy():
    for call, arguments, message in (
        (TrainingSettings, ("mlp", 4, 9, 0.0), "fraction"),
        (build, ("vit", (8, 8, 3), 2, 0), "no such model"),
        (build, ("mlp", (8, 8, 3), 2, 0), "choose another model"),
    ):
        with pytest.raises(RobfcpError, match=message):
            call(*arguments)


def test_the_command_trains_and_writes_outputs_with_provenance(tmp_path):
    (tmp_path / "sleep").mkdir()
    data, target, subject = blobs(), tmp_path / "out.npz", np.repeat(np.arange(12), 50)
    np.savez(tmp_path / "sleep" / "a.npz", x=data.train.x, y=data.train.y, subject=subject)
    options = ("--data-dir", tmp_path, "--rounds", 2, "--n-clients", 5, "--device", "cpu", "--json")
    record = json.loads(command_output("experiments", "train", "sleep", *options, "-o", target))
    assert record["accuracy"] == pytest.approx(outputs.read_outputs(target).accuracy)
    assert record["settings"]["clients"] == 5
