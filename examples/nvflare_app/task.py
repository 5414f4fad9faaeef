"""The digits of scikit-learn, split over the clients, and a softmax regression in numpy."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

CLASSES = 10
FEATURES = 64
KEY = "numpy_key"  # of the array in the models of NVFlare's numpy persistor
N_PUBLIC = 200  # images that no client has


@cache
def load_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return all images, with a column of ones for the bias, and labels, in one random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features = np.column_stack([images / 16, np.ones(len(labels))])
    return features[order], labels[order]


@cache
def load_split(name: str, n_clients: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return one client's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_rows()
    client_index = int(name.rpartition("-")[2]) - 1
    client_rows = np.arange(N_PUBLIC, len(labels))[client_index % n_clients :: n_clients]
    n_rows = len(client_rows)
    train, calibration, test = np.split(client_rows, [n_rows // 2, n_rows * 4 // 5])
    rows_of_split = {"train": train, "calibration": calibration, "test": test}
    return {split: (images[rows], labels[rows]) for split, rows in rows_of_split.items()}


def predict(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the class probabilities of the model."""
    logits = images @ weights
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def fit(weights: np.ndarray, images: np.ndarray, labels: np.ndarray, n_steps: int) -> np.ndarray:
    """Return the model after some steps down the gradient of the cross-entropy."""
    for _ in range(n_steps):
        error = (predict(weights, images) - np.eye(CLASSES)[labels]) / len(labels)
        weights = weights - 0.5 * images.T @ error
    return weights


@cache
def common_model() -> np.ndarray:
    """Return the model that all clients have already, trained on the public images."""
    images, labels = load_rows()
    initial_weights = np.zeros((FEATURES + 1, CLASSES))
    return fit(initial_weights, images[:N_PUBLIC], labels[:N_PUBLIC], 100)
