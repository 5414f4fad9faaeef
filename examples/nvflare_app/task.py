"""The digits of scikit-learn, split over the sites, and a softmax regression in numpy."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

CLASSES, FEATURES = 10, 64
KEY = "numpy_key"  # under which NVFlare's numpy persistor keeps the one array


PUBLIC = 200  # images that no site holds


@cache
def load_rows() -> tuple[np.ndarray, np.ndarray]:
    """All images, with a column of ones for the bias, and their labels, in one random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return np.column_stack([images / 16, np.ones(len(labels))])[order], labels[order]


@cache
def load_split(site: str, sites: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """One site's images and labels: 50% to train, 30% to calibrate, 20% to test."""
    images, labels = load_rows()
    number = int(site.rpartition("-")[2]) - 1
    rows = np.arange(PUBLIC, len(labels))[number % sites :: sites]
    parts = np.split(rows, [len(rows) // 2, len(rows) * 4 // 5])
    names = ("train", "calibration", "test")
    return {name: (images[part], labels[part]) for name, part in zip(names, parts, strict=True)}


def predict(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The model's class probabilities."""
    logits = images @ weights
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def fit(weights: np.ndarray, images: np.ndarray, labels: np.ndarray, steps: int) -> np.ndarray:
    """The model after some steps down the cross-entropy's gradient."""
    for _ in range(steps):
        error = (predict(weights, images) - np.eye(CLASSES)[labels]) / len(labels)
        weights = weights - 0.5 * images.T @ error
    return weights


@cache
def common_model() -> np.ndarray:
    """A model that everybody has already, trained on the public images."""
    images, labels = load_rows()
    first = np.zeros((FEATURES + 1, CLASSES))
    return fit(first, images[:PUBLIC], labels[:PUBLIC], 100)
