"""Training samples on the device, and the batches each client draws from its share of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robfcp.lab.datasets import Split

PADDING = 4  # pixels a shifted crop may leave the image by


class Pool:
    """All training samples on one device; batches are gathered there by index."""

    def __init__(self, split: Split, device: torch.device, augment: bool) -> None:
        self.images = split.x.ndim == 4
        self.augment = augment and self.images
        self.shape = tuple(int(size) for size in split.x.shape[1:])
        self.y = torch.as_tensor(split.y, device=device)
        x = torch.tensor(split.x, device=device)
        if not self.images:
            self.x = x
            return
        channels = x.reshape(-1, self.shape[-1])[:: max(1, len(x) // 10000)].float() / 255
        self.mean, self.scale = channels.mean(0), channels.std(0).clamp_min(1e-3)
        self.rows = torch.arange(self.shape[0], device=device)
        self.columns = torch.arange(self.shape[1], device=device)
        if self.augment:
            border = round(float(x[:, :2].float().mean()))
            x = torch.nn.functional.pad(
                x.permute(0, 3, 1, 2), (PADDING,) * 4, value=border
            ).permute(0, 2, 3, 1)
        self.x = x.contiguous()

    def batch(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels for draws (b, 4): index, row shift, column shift, mirrored."""
        index = draws[:, 0].long()
        if not self.augment:
            x = self.x[index]
        else:
            mirrored = draws[:, 3:] == 1
            columns = torch.where(mirrored, self.columns.flip(0), self.columns) + draws[:, 2:3]
            rows = self.rows + draws[:, 1:2]
            x = self.x[index[:, None, None], rows[:, :, None].long(), columns[:, None, :].long()]
        return self.scaled(x), self.y[index]

    def scaled(self, x: Tensor) -> Tensor:
        """Raw samples as the networks take them: images standardised, channels first."""
        if not self.images:
            return x
        return ((x / 255 - self.mean) / self.scale).permute(0, 3, 1, 2)


def draw_batches(
    share: NDArray[np.integer],
    epochs: int,
    batch: int,
    mirror: bool,
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """The client's batches (steps, batch, 4): every epoch a permutation of its share, the last
    batch of an epoch filled from the permutation's start."""
    steps = -(-len(share) // batch)
    order = np.concatenate(
        [np.resize(rng.permutation(share), steps * batch) for _ in range(epochs)]
    )
    shifts = rng.integers(0, 2 * PADDING + 1, (2, len(order)))
    flips = rng.integers(0, 2, len(order)) if mirror else np.zeros(len(order), np.int64)
    return np.stack([order, *shifts, flips], axis=1).reshape(-1, batch, 4).astype(np.int32)
