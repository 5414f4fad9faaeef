"""Training at a client: what a run is asked to do, the networks, the batches, plain SGD."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from robfcp._validation import check_fraction, check_integer
from robfcp.errors import RobfcpError
from robfcp.experiments.datasets import Split

PADDING = 4  # pixels a shifted crop may leave the image by


@dataclass(frozen=True)
class TrainingSettings:
    """Federated training: who takes part, how long they train, how the server joins them."""

    model: str
    rounds: int
    clients: int = 100
    fraction: float = 0.1
    local_epochs: int = 10
    batch: int = 64
    learning_rate: float = 0.05
    final_rate: float = 0.1  # of the learning rate, reached by a cosine over the rounds
    momentum: float = 0.9
    weight_decay: float = 5e-4
    beta: float | None = None  # Dirichlet concentration of the label shares; None: iid
    augment: bool = False  # shifted by up to 4 pixels
    mirror: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("rounds", "clients", "local_epochs", "batch"):
            check_integer(field, getattr(self, field), "correct it", 1)
        check_fraction("fraction", self.fraction, "give 0.1, say", allow_one=True)
        if not self.learning_rate > 0:
            raise RobfcpError(f"learning_rate: {self.learning_rate} is not positive; correct it")


_MOVED = {"augment": True, "mirror": True}
RECIPES: dict[str, dict[str, Any]] = {  # what each shipped model was trained with, but for defaults
    "mnist": {"model": "cnn", "rounds": 40, "learning_rate": 0.02},
    "pathmnist": {
        "model": "cnn", "rounds": 100, "fraction": 0.2, "batch": 50, "learning_rate": 0.02, **_MOVED
    },
    "sleep": {
        "model": "mlp", "rounds": 60, "fraction": 0.2, "local_epochs": 5, "learning_rate": 0.02
    },
    "cifar10": {
        "model": "resnet18", "rounds": 70, "fraction": 0.2, "local_epochs": 5, "batch": 50, **_MOVED
    },
    "tinyimagenet": {"model": "resnet18", "rounds": 65, "batch": 100, **_MOVED},
}  # fmt: skip


def recipe(dataset: str, **changes: Any) -> TrainingSettings:
    """The data set's settings with those changes that are not None."""
    given = {key: value for key, value in changes.items() if value is not None}
    return TrainingSettings(**{**RECIPES[dataset], **given})


class Pool:
    """All training samples on one device; batches are gathered there by index."""

    def __init__(self, split: Split, device: torch.device, augment: bool) -> None:
        self.images = split.x.ndim == 4
        self.augment = augment and self.images
        self.shape = tuple(int(size) for size in split.x.shape[1:])
        self.y = torch.as_tensor(split.y, device=device)
        self.x = torch.tensor(split.x, device=device)
        if not self.images:
            return
        every = max(1, len(self.x) // 10000)
        channels = self.x.reshape(-1, self.shape[-1])[::every].float() / 255
        self.mean, self.scale = channels.mean(0), channels.std(0).clamp_min(1e-3)
        self.rows, self.columns = (torch.arange(n, device=device) for n in self.shape[:2])
        if self.augment:
            border = round(float(self.x[:, :2].float().mean()))
            padded = F.pad(self.x.permute(0, 3, 1, 2), (PADDING,) * 4, value=border)
            self.x = padded.permute(0, 2, 3, 1).contiguous()

    def batch(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels for draws (b, 4): index, row shift, column shift, mirrored."""
        index = draws[:, 0].long()
        if not self.augment:
            return self.scaled(self.x[index]), self.y[index]
        mirrored = draws[:, 3:] == 1
        columns = torch.where(mirrored, self.columns.flip(0), self.columns) + draws[:, 2:3]
        rows = self.rows + draws[:, 1:2]
        x = self.x[index[:, None, None], rows[:, :, None].long(), columns[:, None, :].long()]
        return self.scaled(x), self.y[index]

    def scaled(self, x: Tensor) -> Tensor:
        """Raw samples as the networks take them: images standardised, channels first."""
        return ((x / 255 - self.mean) / self.scale).permute(0, 3, 1, 2) if self.images else x


def draw_batches(
    own: NDArray[np.integer], epochs: int, batch: int, mirror: bool, rng: np.random.Generator
) -> NDArray[np.int32]:
    """The client's batches (steps, batch, 4): every epoch a permutation of its own, the last
    batch of an epoch filled from the permutation's start."""
    steps = -(-len(own) // batch)
    order = np.concatenate([np.resize(rng.permutation(own), steps * batch) for _ in range(epochs)])
    shifts = rng.integers(0, 2 * PADDING + 1, (2, len(order)))
    flips = rng.integers(0, 2, len(order)) if mirror else np.zeros(len(order), np.int64)
    return np.stack([order, *shifts, flips], axis=1).reshape(-1, batch, 4).astype(np.int32)


def train_client(
    model: nn.Module,
    pool: Pool,
    state: Tensor,
    batches: NDArray[np.int32],
    rate: float,
    settings: TrainingSettings,
) -> Tensor:
    """The state SGD reaches from `state` on a client's batches; on a GPU in bfloat16."""
    unflatten(model, state)
    device = pool.y.device
    optimizer = torch.optim.SGD(
        model.parameters(), rate, settings.momentum, weight_decay=settings.weight_decay
    )
    for draws in torch.as_tensor(batches, device=device):
        x, y = pool.batch(draws)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(x)
        optimizer.zero_grad()
        F.cross_entropy(logits.float(), y).backward()
        optimizer.step()
    return flatten(model)


def _state(model: nn.Module) -> list[Tensor]:
    """Parameters, then running statistics."""
    return [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]


def flatten(model: nn.Module) -> Tensor:
    """The network's state as one vector."""
    return torch.cat([value.detach().reshape(-1).float() for value in _state(model)])


@torch.no_grad()
def unflatten(model: nn.Module, state: Tensor) -> None:
    """Write such a vector back into the network."""
    parts = state.split([value.numel() for value in _state(model)])
    for value, part in zip(_state(model), parts, strict=True):
        value.copy_(part.view_as(value))


def cnn(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Two 5x5 convolutions with pooling and one hidden layer, for images near 28 x 28."""
    height, width, channels = shape
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, n_classes))


def mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Two hidden layers of 256, for tables of features."""
    first, second = nn.Linear(shape[0], 256), nn.Linear(256, 256)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(256, n_classes))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet18(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem; the stem halves images of 64 pixels and more."""
    stem = nn.Conv2d(shape[2], 64, 3, 2 if shape[0] >= 64 else 1, 1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU()]
    for inputs, outputs in pairwise((64, 64, 128, 256, 512)):
        stride = 1 if inputs == outputs else 2
        layers += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
    pool = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, *pool, nn.Linear(512, n_classes))


MODELS = {"cnn": cnn, "mlp": mlp, "resnet18": resnet18}


def build(name: str, shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Module:
    """The named network for samples of `shape` (h, w, c) or (d,), initialised from the seed."""
    if name not in MODELS:
        raise RobfcpError(f"{name}: no such model; choose one of {', '.join(MODELS)}")
    if (name == "mlp") != (len(shape) == 1):
        raise RobfcpError(f"{name}: does not take samples of shape {shape}; choose another model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, n_classes)
