"""The digits of scikit-learn, split over the nodes, and a small network."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def load_split(partition: int, partitions: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """One node's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[partition::partitions]
    train, calibration, test = np.split(order, [len(order) // 2, len(order) * 4 // 5])
    return {
        name: (torch.tensor(images[rows] / 16, dtype=torch.float32), torch.tensor(labels[rows]))
        for name, rows in (("train", train), ("calibration", calibration), ("test", test))
    }


def make_model() -> nn.Module:
    """One hidden layer, the same start everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def fit(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float, epochs: int
) -> None:
    """Some epochs of stochastic gradient descent."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()


@torch.no_grad()
def predict(model: nn.Module, images: torch.Tensor) -> np.ndarray:
    """The model's class probabilities, in double precision."""
    return model(images).double().softmax(dim=1).numpy()
