"""Federated training: rounds of local training and FedAvg, resumable and seeded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robfcp._files import write_atomically
from robfcp._typing import IndexArray
from robfcp.errors import RobfcpError
from robfcp.experiments import partitions
from robfcp.experiments.datasets import Dataset
from robfcp.experiments.training import local
from robfcp.experiments.training.local import TrainingSettings

EVALUATION_INTERVAL = 5  # rounds from an evaluation on the test samples to the next


def train(
    dataset: Dataset,
    settings: TrainingSettings,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    stop_after: int | None = None,
    on_round: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.float32], list[tuple[int, float]]]:
    """Train a model by FedAvg on the training split and predict the test split.

    The clients of a round and their batches depend on (seed, round) alone, so a run resumed from
    its checkpoint goes on as if it had not stopped.

    Parameters
    ----------
    dataset : Dataset
        The samples.
    settings : TrainingSettings
        The model, the clients and the rounds.
    device : str
        "auto", or the name of a device of PyTorch.
    checkpoint : path, optional
        Where the state is saved after evaluations, and read from if the file exists.
    stop_after : int, optional
        End the run after so many of the rounds that the learning rate is scheduled over.
    on_round : callable
        Called after every round with the number of rounds done.

    Returns
    -------
    logits : ndarray of float32, shape (n, C)
        The logits of the test samples.
    history : list of (int, float)
        The accuracy on them after the rounds where it was evaluated, the last round among them.
    """
    torch_device = _resolve_device(device)
    torch.backends.cudnn.benchmark = torch_device.type == "cuda"
    pool = local.Pool(dataset.train, torch_device, settings.augment)
    model = local.build(settings.model, pool.shape, len(dataset.classes), settings.seed)
    model = model.to(torch_device)
    client_samples = _split_training_samples(dataset, settings)

    state = local.flatten(model)
    first_round = 0
    if checkpoint is not None and checkpoint.exists():
        state, first_round = load_checkpoint(checkpoint, settings)
        state = state.to(torch_device)
    last_round = settings.rounds
    if stop_after is not None:
        last_round = min(stop_after, settings.rounds)

    # The first pass trains nothing: it evaluates a run that has no round left.
    history: dict[int, float] = {}
    for n_done in range(min(first_round, last_round), last_round + 1):
        has_trained = n_done > first_round
        if has_trained:
            state = run_round(model, pool, state, client_samples, settings, n_done - 1)
            on_round(n_done)

        is_interval_over = has_trained and n_done % EVALUATION_INTERVAL == 0
        if n_done == last_round or is_interval_over:
            logits = predict(model, state, pool, dataset.test.x)
            history[n_done] = float((logits.argmax(1) == dataset.test.y).mean())
            if checkpoint is not None and has_trained:
                save_checkpoint(checkpoint, state, settings, n_done)
    return logits, list(history.items())


def _resolve_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _split_training_samples(dataset: Dataset, settings: TrainingSettings) -> list[IndexArray]:
    """Return the indices of the training samples of each client."""
    rng = np.random.default_rng([settings.seed, 0])
    if settings.beta is None:
        return partitions.partition_iid(len(dataset.train), settings.clients, rng)
    return partitions.partition_dirichlet(dataset.train.y, settings.clients, settings.beta, rng)


def run_round(
    model: nn.Module,
    pool: local.Pool,
    state: Tensor,
    client_samples: list[IndexArray],
    settings: TrainingSettings,
    round_index: int,
) -> Tensor:
    """Return the global state after one more round of FedAvg: sum_k n_k w_k / sum_k n_k.

    The sums are over the clients of the round, w_k is the state of client k after local training.
    The learning rate falls by a cosine to `final_rate` of it over the rounds.
    """
    rng = np.random.default_rng([settings.seed, 1, round_index])
    n_participants = max(1, round(settings.fraction * settings.clients))
    participants = rng.choice(settings.clients, n_participants, replace=False)
    samples = [client_samples[k] for k in participants]
    batches = [
        local.draw_batches(
            client_indices, settings.local_epochs, settings.batch, settings.mirror, rng
        )
        for client_indices in samples
    ]

    cosine = (1 + np.cos(np.pi * round_index / max(1, settings.rounds - 1))) / 2
    factor = settings.final_rate + (1 - settings.final_rate) * cosine
    rate = float(settings.learning_rate * factor)
    client_states = [
        local.train_client(model, pool, state, client_batches, rate, settings)
        for client_batches in batches
    ]

    states = torch.stack(client_states)
    sizes = torch.as_tensor([len(indices) for indices in samples], device=states.device)
    weights = sizes.to(states.dtype)
    return (weights / weights.sum()) @ states


@torch.no_grad()
def predict(
    model: nn.Module, state: Tensor, pool: local.Pool, x: NDArray[np.generic], batch: int = 1000
) -> NDArray[np.float32]:
    """Return the logits (n, C) of the network with that state, in single precision."""
    local.unflatten(model, state)
    model.eval()
    device = pool.y.device
    logits = []
    for start in range(0, len(x), batch):
        samples = torch.tensor(x[start : start + batch], device=device)
        logits.append(model(pool.scaled(samples)))
    model.train()
    return torch.cat(logits).float().cpu().numpy()


def save_checkpoint(path: Path, state: Tensor, settings: TrainingSettings, n_done: int) -> None:
    """Write the state after `n_done` rounds."""
    from safetensors.torch import save as to_bytes

    metadata = {"settings": json.dumps(asdict(settings)), "round": str(n_done)}
    tensors = {"state": state.contiguous().cpu()}
    write_atomically(path, to_bytes(tensors, metadata))


def load_checkpoint(path: Path, settings: TrainingSettings) -> tuple[Tensor, int]:
    """Return the state and the number of rounds done; refuse a file of other settings."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as content:
            metadata = content.metadata() or {}
            state: Tensor = content.get_tensor("state")
        saved_settings = json.loads(metadata["settings"])
        n_done = int(metadata["round"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RobfcpError(
            f"{path}: is damaged or no checkpoint of this program; delete it to start again"
        ) from error

    for key, value in asdict(settings).items():
        saved_value = saved_settings.get(key)
        if saved_value != value:
            raise RobfcpError(
                f"{path}: was made with {key}={saved_value}, not {value}; delete it to start "
                "again or restore the setting"
            )
    return state, n_done
