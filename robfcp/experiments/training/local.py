"""Training at a client: settings, networks, batches and plain SGD."""

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

PADDING = 4  # pixels that a shifted crop may leave the image by
MAX_SCALING_SAMPLES = 10000  # about so many give the mean and deviation of the channels
MIN_CHANNEL_DEVIATION = 1e-3  # of pixels in 0..1: a constant channel has none


@dataclass(frozen=True)
class TrainingSettings:
    """The model, the clients of a round, their local training and the rounds.

    Parameters
    ----------
    model : str
        The network, of `MODELS`.
    rounds : int
        The number of rounds.
    clients : int
        The number of clients.
    fraction : float
        The fraction of the clients that train in a round.
    local_epochs, batch : int
        The epochs of a client in a round, and the samples of a batch.
    learning_rate, final_rate : float
        The learning rate, and the fraction of it that a cosine reaches in the last round.
    momentum, weight_decay : float
        Of SGD.
    beta : float, optional
        The Dirichlet concentration of the labels of the clients; iid if None.
    augment, mirror : bool
        Whether images are shifted by up to 4 pixels, and mirrored.
    seed : int
        The seed of all randomness.
    """

    model: str
    rounds: int
    clients: int = 100
    fraction: float = 0.1
    local_epochs: int = 10
    batch: int = 64
    learning_rate: float = 0.05
    final_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    beta: float | None = None
    augment: bool = False
    mirror: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("rounds", "clients", "local_epochs", "batch"):
            check_integer(field, getattr(self, field), "correct it", 1)
        check_fraction("fraction", self.fraction, "give 0.1, say", allow_one=True)
        if not self.learning_rate > 0:
            raise RobfcpError(f"learning_rate: {self.learning_rate} is not positive; correct it")


_SHIFTED_AND_MIRRORED = {"augment": True, "mirror": True}
RECIPES: dict[str, dict[str, Any]] = {  # settings of each shipped model that are not the defaults
    "mnist": {"model": "cnn", "rounds": 40, "learning_rate": 0.02},
    "pathmnist": {
        "model": "cnn", "rounds": 100, "fraction": 0.2, "batch": 50, "learning_rate": 0.02,
        **_SHIFTED_AND_MIRRORED,
    },
    "sleep": {
        "model": "mlp", "rounds": 60, "fraction": 0.2, "local_epochs": 5, "learning_rate": 0.02
    },
    "cifar10": {
        "model": "resnet18", "rounds": 70, "fraction": 0.2, "local_epochs": 5, "batch": 50,
        **_SHIFTED_AND_MIRRORED,
    },
    "tinyimagenet": {"model": "resnet18", "rounds": 65, "batch": 100, **_SHIFTED_AND_MIRRORED},
}  # fmt: skip


def recipe(dataset: str, **changes: Any) -> TrainingSettings:
    """Return the settings of a data set with those changes that are not None."""
    options = dict(RECIPES[dataset])
    options.update({key: value for key, value in changes.items() if value is not None})
    return TrainingSettings(**options)


class Pool:
    """All training samples on one device; batches are gathered there by index.

    Parameters
    ----------
    split : Split
        The samples; images are standardized channel by channel.
    device : torch.device
        Where they are kept.
    augment : bool
        Whether images are padded, so that batches may be shifted and mirrored.
    """

    def __init__(self, split: Split, device: torch.device, augment: bool) -> None:
        self.has_images = split.x.ndim == 4
        self.augment = augment and self.has_images
        self.shape = tuple(int(size) for size in split.x.shape[1:])
        self.y = torch.as_tensor(split.y, device=device)
        self.x = torch.tensor(split.x, device=device)
        if not self.has_images:
            return

        step = max(1, len(self.x) // MAX_SCALING_SAMPLES)
        channels = self.x.reshape(-1, self.shape[-1])[::step].float() / 255
        self.mean = channels.mean(0)
        self.scale = channels.std(0).clamp_min(MIN_CHANNEL_DEVIATION)
        self.rows = torch.arange(self.shape[0], device=device)
        self.columns = torch.arange(self.shape[1], device=device)
        if self.augment:
            border = round(float(self.x[:, :2].float().mean()))
            padded = F.pad(self.x.permute(0, 3, 1, 2), (PADDING,) * 4, value=border)
            self.x = padded.permute(0, 2, 3, 1).contiguous()

    def batch(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples and labels for draws (b, 4): index, row shift, column shift, mirrored."""
        index = draws[:, 0].long()
        labels = self.y[index]
        if not self.augment:
            return self.scaled(self.x[index]), labels

        row_shift = draws[:, 1:2]
        column_shift = draws[:, 2:3]
        is_mirrored = draws[:, 3:] == 1
        rows = self.rows + row_shift
        columns = torch.where(is_mirrored, self.columns.flip(0), self.columns) + column_shift
        x = self.x[index[:, None, None], rows[:, :, None].long(), columns[:, None, :].long()]
        return self.scaled(x), labels

    def scaled(self, x: Tensor) -> Tensor:
        """Return raw samples as the networks take them: images standardized, channels first."""
        if not self.has_images:
            return x
        standardized = (x / 255 - self.mean) / self.scale
        return standardized.permute(0, 3, 1, 2)


def draw_batches(
    samples: NDArray[np.integer], epochs: int, batch: int, mirror: bool, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Draw the batches of a client, (steps, batch, 4): index, row shift, column shift, mirrored.

    Every epoch permutes the samples anew; its last batch is filled from the permutation's start.
    """
    n_batches = -(-len(samples) // batch)
    epoch_orders = [np.resize(rng.permutation(samples), n_batches * batch) for _ in range(epochs)]
    order = np.concatenate(epoch_orders)
    row_shifts, column_shifts = rng.integers(0, 2 * PADDING + 1, (2, len(order)))
    is_mirrored = np.zeros(len(order), np.int64)
    if mirror:
        is_mirrored = rng.integers(0, 2, len(order))
    draws = np.stack([order, row_shifts, column_shifts, is_mirrored], axis=1)
    return draws.reshape(-1, batch, 4).astype(np.int32)


def train_client(
    model: nn.Module,
    pool: Pool,
    state: Tensor,
    batches: NDArray[np.int32],
    rate: float,
    settings: TrainingSettings,
) -> Tensor:
    """Return the state after SGD from `state` on the batches of a client; on a GPU in bfloat16."""
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


def _state_tensors(model: nn.Module) -> list[Tensor]:
    """Return the parameters, then the running statistics."""
    running_statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return [*model.parameters(), *running_statistics]


def flatten(model: nn.Module) -> Tensor:
    """Return the state of the network as one vector."""
    tensors = _state_tensors(model)
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])


@torch.no_grad()
def unflatten(model: nn.Module, state: Tensor) -> None:
    """Write such a vector into the network."""
    tensors = _state_tensors(model)
    blocks = state.split([tensor.numel() for tensor in tensors])
    for tensor, block in zip(tensors, blocks, strict=True):
        tensor.copy_(block.view_as(tensor))


def cnn(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Build two 5x5 convolutions with pooling and a hidden layer, for images near 28 x 28."""
    height, width, channels = shape
    n_pooled = (height // 4) * (width // 4)  # pixels after both poolings
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * n_pooled, 256),
        nn.ReLU(),
        nn.Linear(256, n_classes),
    )


def mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Build two hidden layers of 256, for tables of features."""
    return nn.Sequential(
        nn.Linear(shape[0], 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, n_classes),
    )


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, the basic block of ResNet-18."""

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
    """Build ResNet-18 with a 3x3 stem; the stem halves images of 64 pixels and more."""
    height, _, channels = shape
    stem_stride = 2 if height >= 64 else 1
    stem = nn.Conv2d(channels, 64, 3, stem_stride, 1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU()]
    for inputs, outputs in pairwise((64, 64, 128, 256, 512)):
        stride = 1 if inputs == outputs else 2
        layers += [_ResidualBlock(inputs, outputs, stride), _ResidualBlock(outputs, outputs, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes)]
    return nn.Sequential(*layers)


MODELS = {"cnn": cnn, "mlp": mlp, "resnet18": resnet18}


def build(name: str, shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Module:
    """Build the named network for samples of `shape` (h, w, c) or (d,), initialized by the seed."""
    if name not in MODELS:
        raise RobfcpError(f"{name}: no such model; choose one of {', '.join(MODELS)}")
    if (name == "mlp") != (len(shape) == 1):
        raise RobfcpError(f"{name}: does not take samples of shape {shape}; choose another model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, n_classes)
