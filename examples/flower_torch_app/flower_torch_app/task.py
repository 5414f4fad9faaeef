"""The digits of scikit-learn, split over the nodes, and a small network."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def load_split(partition: int, n_partitions: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return one node's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_digits(return_X_y=True)
    image_tensor = torch.tensor(images / 16, dtype=torch.float32)
    label_tensor = torch.tensor(labels)
    order = np.random.default_rng(0).permutation(len(labels))
    node_rows = order[partition::n_partitions]
    n_rows = len(node_rows)
    train, calibration, test = np.split(node_rows, [n_rows // 2, n_rows * 4 // 5])
    rows_of_split = {"train": train, "calibration": calibration, "test": test}
    return {
        split: (image_tensor[rows], label_tensor[rows]) for split, rows in rows_of_split.items()
    }


def make_model() -> nn.Module:
    """Build one hidden layer with the same initial weights at all nodes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def fit(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float, epochs: int
) -> None:
    """Train the model by some epochs of stochastic gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(32):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def predict(model: nn.Module, images: torch.Tensor) -> np.ndarray:
    """Return the class probabilities of the model, in double precision."""
    return model(images).double().softmax(dim=1).numpy()
