"""The digits of scikit-learn, split over the nodes, and a softmax regression in numpy."""

from functools import cache

import numpy as np
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits

CLASSES, FEATURES = 10, 64


@cache
def load_split(partition: int, partitions: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """One node's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[partition::partitions]
    train, calibration, test = np.split(order, [len(order) // 2, len(order) * 4 // 5])
    return {
        name: (images[rows] / 16, labels[rows])
        for name, rows in (("train", train), ("calibration", calibration), ("test", test))
    }


def initial_arrays() -> ArrayRecord:
    """A model that knows nothing."""
    return ArrayRecord([np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)])


def predict(arrays: ArrayRecord, images: np.ndarray) -> np.ndarray:
    """The model's class probabilities."""
    weights, bias = arrays.to_numpy_ndarrays()
    logits = images @ weights + bias
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def fit(
    arrays: ArrayRecord, images: np.ndarray, labels: np.ndarray, rate: float, epochs: int
) -> ArrayRecord:
    """The model after some steps down the cross-entropy's gradient."""
    for _ in range(epochs):
        weights, bias = arrays.to_numpy_ndarrays()
        error = (predict(arrays, images) - np.eye(CLASSES)[labels]) / len(labels)
        arrays = ArrayRecord([weights - rate * images.T @ error, bias - rate * error.sum(axis=0)])
    return arrays


def lie(kind: str, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a lying node reports instead of its scores."""
    if kind == "coverage":  # everything looks easy: the threshold falls, sets miss the truth
        return np.zeros_like(scores)
    if kind == "efficiency":  # everything looks hard: the threshold rises, sets hold all labels
        return np.ones_like(scores)
    return rng.random(len(scores))
