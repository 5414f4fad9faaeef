"""CIFAR-10 from the official binary batches (the Python version needs pickle: not read)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Remote, Source, locate
from robfcp.lab.datasets.table import Dataset, Split

SOURCE = Source(
    name="cifar10",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    folder="cifar10",
    remotes=(
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            unpack=True,
        ),
    ),
    present="cifar-10-batches-bin",
)
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
RECORD = 1 + 3 * 32 * 32


def load(directory: Path, verify: bool) -> Dataset:
    """50000 training and 10000 test images, 32 x 32, RGB."""
    parts = [_batch(directory, f"data_batch_{number}.bin", verify) for number in range(1, 6)]
    train = Split(
        np.concatenate([images for images, _ in parts]), np.concatenate([y for _, y in parts])
    )
    return Dataset("cifar10", train, Split(*_batch(directory, "test_batch.bin", verify)), CLASSES)


def _batch(directory: Path, name: str, verify: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    path = locate(directory, SOURCE, (f"cifar-10-batches-bin/{name}", name))
    content = np.fromfile(path, np.uint8)
    if content.size % RECORD or (verify and content.size != 10000 * RECORD):
        raise RobfcpError(
            f"cifar10: {path} holds {content.size} bytes, not the official {10000 * RECORD}; "
            f"fetch it again from {SOURCE.home}"
        )
    records = content.reshape(-1, RECORD)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, 0].astype(np.int64)
