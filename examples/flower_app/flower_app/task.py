"""The digits of scikit-learn, split over the nodes, and a softmax regression in numpy."""

from functools import cache

import numpy as np
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits

CLASSES = 10
FEATURES = 64


@cache
def load_split(partition: int, n_partitions: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return one node's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    node_rows = order[partition::n_partitions]
    n_rows = len(node_rows)
    train, calibration, test = np.split(node_rows, [n_rows // 2, n_rows * 4 // 5])
    rows_of_split = {"train": train, "calibration": calibration, "test": test}
    return {split: (images[rows] / 16, labels[rows]) for split, rows in rows_of_split.items()}


def initial_arrays() -> ArrayRecord:
    """Return an untrained model."""
    return ArrayRecord([np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)])


def predict(arrays: ArrayRecord, images: np.ndarray) -> np.ndarray:
    """Return the class probabilities of the model."""
    weights, bias = arrays.to_numpy_ndarrays()
    logits = images @ weights + bias
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def fit(
    arrays: ArrayRecord, images: np.ndarray, labels: np.ndarray, rate: float, epochs: int
) -> ArrayRecord:
    """Return the model after some steps down the gradient of the cross-entropy."""
    for _ in range(epochs):
        weights, bias = arrays.to_numpy_ndarrays()
        error = (predict(arrays, images) - np.eye(CLASSES)[labels]) / len(labels)
        weights = weights - rate * images.T @ error
        bias = bias - rate * error.sum(axis=0)
        arrays = ArrayRecord([weights, bias])
    return arrays


def attacked_scores(attack: str, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what a malicious node reports instead of its scores."""
    if attack == "coverage":  # the smallest scores: the threshold falls, sets miss the truth
        return np.zeros_like(scores)
    if attack == "efficiency":  # the largest scores: the threshold rises, sets hold all labels
        return np.ones_like(scores)
    return rng.random(len(scores))
