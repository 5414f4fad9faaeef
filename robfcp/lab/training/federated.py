"""Federated training: rounds of local training and aggregation, resumable and seeded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robfcp.lab import partitions
from robfcp.lab.datasets import Dataset
from robfcp.lab.training import aggregation, checkpoints
from robfcp.lab.training.local import LocalTrainer, flatten, unflatten
from robfcp.lab.training.models import build
from robfcp.lab.training.pool import Pool, draw_batches
from robfcp.lab.training.settings import TrainingSettings


@dataclass(frozen=True)
class Progress:
    """What is known after a round: logits and accuracy on the test samples when evaluated."""

    round: int
    seconds: float
    accuracy: float | None = None
    logits: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Trained:
    """A trained network's logits (n, classes) on the test samples, and how it got there."""

    settings: TrainingSettings
    state: Tensor
    logits: NDArray[np.float32]
    accuracy: float
    history: tuple[tuple[int, float], ...]  # (round, accuracy) where evaluated
    seconds: float


def train(
    dataset: Dataset,
    settings: TrainingSettings,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    evaluate_every: int = 5,
    stop_after: int | None = None,
    on_round: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train on the data set's training split and return the logits of its test split.

    The clients of a round and their batches depend on (seed, round) alone, so a run resumed from
    its checkpoint goes on as if it had not stopped. `stop_after` ends the run after that many of
    the rounds the learning rate is laid out for.
    """
    chosen = torch.device(device_name(device))
    started = time.perf_counter()
    torch.backends.cudnn.benchmark = chosen.type == "cuda"
    pool = Pool(dataset.train, chosen, settings.augment)
    n_classes = len(dataset.classes)
    model = build(settings.model, pool.shape, n_classes, settings.seed).to(chosen)
    trainer = LocalTrainer(
        model,
        pool,
        slots=min(settings.slots, settings.per_round),
        batch=settings.batch,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    shares = split(dataset, settings)
    state, first = flatten(model), 0
    if checkpoint is not None and checkpoint.exists():
        state, first = checkpoints.load(checkpoint, settings)
        state = state.to(chosen)
    history: list[tuple[int, float]] = []
    logits = np.zeros((0, n_classes), np.float32)
    last = settings.rounds if stop_after is None else min(stop_after, settings.rounds)
    for number in range(first, last):
        state = run_round(trainer, state, shares, settings, number)
        done = number + 1
        progress = Progress(done, time.perf_counter() - started)
        if done % evaluate_every == 0 or done == last:
            logits = predict(model, state, pool, dataset.test.x)
            accuracy = float((logits.argmax(1) == dataset.test.y).mean())
            history.append((done, accuracy))
            progress = Progress(done, time.perf_counter() - started, accuracy, logits)
            if checkpoint is not None:
                checkpoints.save(checkpoint, state, settings, done)
        if on_round is not None:
            on_round(progress)
    if not history:
        logits = predict(model, state, pool, dataset.test.x)
    accuracy = float((logits.argmax(1) == dataset.test.y).mean())
    return Trained(
        settings, state.cpu(), logits, accuracy, tuple(history), time.perf_counter() - started
    )


def device_name(wanted: str) -> str:
    """The device to use: the one named, or a GPU if there is one."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def split(dataset: Dataset, settings: TrainingSettings) -> list[NDArray[np.intp]]:
    """The training samples of each client: iid, or label shares from Dirichlet(beta)."""
    rng = np.random.default_rng([settings.seed, 0])
    if settings.beta is None:
        return partitions.iid(len(dataset.train), settings.clients, rng)
    return partitions.dirichlet(dataset.train.y, settings.clients, settings.beta, rng)


def run_round(
    trainer: LocalTrainer,
    state: Tensor,
    shares: list[NDArray[np.intp]],
    settings: TrainingSettings,
    number: int,
) -> Tensor:
    """The global state after one more round; the first `malicious` clients poison theirs."""
    rng = np.random.default_rng([settings.seed, 1, number])
    taking_part = rng.choice(settings.clients, settings.per_round, replace=False)
    batches = [
        draw_batches(shares[k], settings.local_epochs, settings.batch, settings.mirror, rng)
        for k in taking_part
    ]
    states = trainer.run(state, batches, learning_rate(settings, number))
    liars = torch.as_tensor(taking_part < settings.malicious, device=states.device)
    states = aggregation.poison(states, state, liars, settings.poison_strength)
    sizes = torch.as_tensor([len(shares[k]) for k in taking_part], device=states.device)
    bound = -(-settings.malicious * settings.per_round // settings.clients)
    return aggregation.rule(settings.aggregation)(states, sizes, bound)


def learning_rate(settings: TrainingSettings, number: int) -> float:
    """A cosine from the learning rate down to `final_rate` of it over the rounds."""
    share = number / max(1, settings.rounds - 1)
    factor = settings.final_rate + (1 - settings.final_rate) * (1 + np.cos(np.pi * share)) / 2
    return float(settings.learning_rate * factor)


@torch.no_grad()
def predict(
    model: nn.Module, state: Tensor, pool: Pool, x: NDArray[np.generic], batch: int = 1000
) -> NDArray[np.float32]:
    """Logits (n, classes) of the network with that state, in single precision."""
    unflatten(model, state)
    model.eval()
    device = pool.y.device
    parts = [
        model(pool.scaled(torch.tensor(x[at : at + batch], device=device)))
        for at in range(0, len(x), batch)
    ]
    model.train()
    return torch.cat(parts).float().cpu().numpy()
