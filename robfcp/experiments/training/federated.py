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
from robfcp.errors import RobfcpError
from robfcp.experiments import partitions
from robfcp.experiments.datasets import Dataset
from robfcp.experiments.training import local
from robfcp.experiments.training.local import TrainingSettings

EVALUATE = 5  # rounds from one look at the test samples to the next


def train(
    dataset: Dataset,
    settings: TrainingSettings,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    stop_after: int | None = None,
    on_round: Callable[[int], None] = lambda done: None,
) -> tuple[NDArray[np.float32], list[tuple[int, float]]]:
    """Train on the training split; logits (n, classes) of the test split, and its accuracy after
    those rounds where it was looked at, the last one among them.

    The clients of a round and their batches depend on (seed, round) alone, so a run resumed from
    its checkpoint goes on as if it had not stopped. `stop_after` ends the run after that many of
    the rounds the learning rate is laid out for.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    torch.backends.cudnn.benchmark = chosen.type == "cuda"
    pool = local.Pool(dataset.train, chosen, settings.augment)
    model = local.build(settings.model, pool.shape, len(dataset.classes), settings.seed).to(chosen)
    rng = np.random.default_rng([settings.seed, 0])
    if settings.beta is None:
        shares = partitions.partition_iid(len(dataset.train), settings.clients, rng)
    else:
        shares = partitions.partition_dirichlet(
            dataset.train.y, settings.clients, settings.beta, rng
        )
    state, first = local.flatten(model), 0
    if checkpoint is not None and checkpoint.exists():
        state, first = load_checkpoint(checkpoint, settings)
        state = state.to(chosen)
    history: dict[int, float] = {}
    last = settings.rounds if stop_after is None else min(stop_after, settings.rounds)
    for done in range(min(first, last), last + 1):
        if done > first:
            state = run_round(model, pool, state, shares, settings, done - 1)
            on_round(done)
        if done == last or (done > first and done % EVALUATE == 0):
            logits = predict(model, state, pool, dataset.test.x)
            history[done] = float((logits.argmax(1) == dataset.test.y).mean())
            if checkpoint is not None and done > first:
                save_checkpoint(checkpoint, state, settings, done)
    return logits, list(history.items())


def run_round(
    model: nn.Module,
    pool: local.Pool,
    state: Tensor,
    shares: list[NDArray[np.intp]],
    settings: TrainingSettings,
    number: int,
) -> Tensor:
    """The global state after one more round of FedAvg: sum_k n_k w_k / sum_k n_k.

    The rate falls by a cosine to `final_rate` of it over the rounds.
    """
    rng = np.random.default_rng([settings.seed, 1, number])
    per_round = max(1, round(settings.fraction * settings.clients))
    taking_part = rng.choice(settings.clients, per_round, replace=False)
    batches = [
        local.draw_batches(shares[k], settings.local_epochs, settings.batch, settings.mirror, rng)
        for k in taking_part
    ]
    cosine = (1 + np.cos(np.pi * number / max(1, settings.rounds - 1))) / 2
    factor = settings.final_rate + (1 - settings.final_rate) * cosine
    rate = float(settings.learning_rate * factor)
    states = torch.stack(
        [local.train_client(model, pool, state, own, rate, settings) for own in batches]
    )
    sizes = torch.as_tensor([len(shares[k]) for k in taking_part], device=states.device)
    weights = sizes.to(states.dtype)
    return (weights / weights.sum()) @ states


@torch.no_grad()
def predict(
    model: nn.Module, state: Tensor, pool: local.Pool, x: NDArray[np.generic], batch: int = 1000
) -> NDArray[np.float32]:
    """Logits (n, classes) of the network with that state, in single precision."""
    local.unflatten(model, state)
    model.eval()
    device = pool.y.device
    parts = [
        model(pool.scaled(torch.tensor(x[at : at + batch], device=device)))
        for at in range(0, len(x), batch)
    ]
    model.train()
    return torch.cat(parts).float().cpu().numpy()


def save_checkpoint(path: Path, state: Tensor, settings: TrainingSettings, round_: int) -> None:
    """Write the state after `round_` rounds."""
    from safetensors.torch import save as to_bytes

    metadata = {"settings": json.dumps(asdict(settings)), "round": str(round_)}
    write_atomically(path, to_bytes({"state": state.contiguous().cpu()}, metadata))


def load_checkpoint(path: Path, settings: TrainingSettings) -> tuple[Tensor, int]:
    """The state and the rounds done; refused if the settings (rounds apart) are others."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as content:
            metadata = content.metadata() or {}
            state: Tensor = content.get_tensor("state")
        saved = json.loads(metadata["settings"])
        done = int(metadata["round"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RobfcpError(
            f"{path}: is damaged or no checkpoint of this program; delete it to start again"
        ) from error
    wanted = asdict(settings)
    different = [key for key in wanted if saved.get(key) != wanted[key]]
    if different:
        key = different[0]
        raise RobfcpError(
            f"{path}: was made with {key}={saved.get(key)}, not {wanted[key]}; delete it to start "
            "again or restore the setting"
        )
    return state, done
