"""The networks: a small CNN, ResNet-18 with a stem for small images, and an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robfcp.errors import RobfcpError


class BatchNorm(nn.Module):
    """Batch normalisation whose only state is the running mean and variance (so it stacks)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x normalised by its batch when training, by the running statistics otherwise."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1
        )


class CNN(nn.Module):
    """Two 5x5 convolutions with pooling and one hidden layer, for images near 28 x 28."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        height, width, channels = shape
        self.first = nn.Conv2d(channels, 32, 5, padding=2)
        self.second = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * (height // 4) * (width // 4), 256)
        self.head = nn.Linear(256, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, channels, height, width)."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        logits: Tensor = self.head(F.relu(self.hidden(x.flatten(1))))
        return logits


class MLP(nn.Module):
    """Two hidden layers of 256, for tables of features."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(shape[0], 256)
        self.second = nn.Linear(256, 256)
        self.head = nn.Linear(256, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes) of features (n, d)."""
        logits: Tensor = self.head(F.relu(self.second(F.relu(self.first(x)))))
        return logits


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = BatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = BatchNorm(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet18(nn.Module):
    """ResNet-18 with a 3x3 stem; the stem halves images of 64 pixels and more."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        stride = 2 if shape[0] >= 64 else 1
        self.stem = nn.Conv2d(shape[2], 64, 3, stride, 1, bias=False)
        self.norm = BatchNorm(64)
        widths = [64, 64, 128, 256, 512]
        blocks: list[nn.Module] = []
        for stage in range(4):
            blocks.append(_Block(widths[stage], widths[stage + 1], 1 if stage == 0 else 2))
            blocks.append(_Block(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, channels, height, width)."""
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


MODELS: dict[str, type[CNN] | type[MLP] | type[ResNet18]] = {
    "cnn": CNN,
    "mlp": MLP,
    "resnet18": ResNet18,
}


def build(name: str, shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Module:
    """The named network for samples of `shape` (h, w, c) or (d,), initialised from the seed."""
    if name not in MODELS:
        raise RobfcpError(f"{name}: no such model; choose one of {', '.join(MODELS)}")
    if (name == "mlp") != (len(shape) == 1):
        raise RobfcpError(f"{name}: does not take samples of shape {shape}; choose another model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, n_classes)
