"""The single-label 2-D sets of MedMNIST v2 from their official npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Remote, Source, check_md5, locate
from robfcp.lab.datasets.table import Dataset, Split

_PATH_CLASSES = (
    "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
    "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
)  # fmt: skip
SETS: dict[str, tuple[str, int]] = {  # official MD5 and number of classes
    "pathmnist": ("a8b06965200029087d5bd730944a56c1", 9),
    "dermamnist": ("0744692d530f8e62ec473284d019b0c7", 7),
    "octmnist": ("c68d92d5b585d8d81f7112f81e2d0842", 4),
    "pneumoniamnist": ("28209eda62fecd6e6a2d98b1501bb15f", 2),
    "retinamnist": ("bd4c0672f1bba3e3a89f0e4e876791e4", 5),
    "breastmnist": ("750601b1f35ba3300ea97c75c52ff8f6", 2),
    "bloodmnist": ("7053d0359d879ad8a5505303e11de1dc", 8),
    "tissuemnist": ("ebe78ee8b05294063de985d821c1c34b", 8),
    "organamnist": ("866b832ed4eeba67bfb9edee1d5544e6", 11),
    "organcmnist": ("0afa5834fb105f7705a7d93372119a21", 11),
    "organsmnist": ("e5c39f1af030238290b9557d9503af9d", 11),
}


def source(name: str) -> Source:
    """Where the npz file of one set comes from."""
    return Source(
        name=name,
        home="https://medmnist.com",
        folder="medmnist",
        remotes=(Remote(f"https://zenodo.org/record/6496656/files/{name}.npz", SETS[name][0]),),
    )


def loader(name: str) -> Callable[[Path, bool], Dataset]:
    """The function that loads one set: training and validation images train, test images test."""
    return lambda directory, verify: _load(name, directory, verify)


def _load(name: str, directory: Path, verify: bool) -> Dataset:
    md5, n_classes = SETS[name]
    origin = source(name)
    path = locate(directory, origin, (f"{name}.npz", f"{name}/{name}.npz"))
    if verify:
        check_md5(path, md5, origin)
    try:
        with np.load(path, allow_pickle=False) as content:
            split = {part: _split(content, part) for part in ("train", "val", "test")}
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise RobfcpError(
            f"{name}: {path} is not the official npz ({error}); fetch it again"
        ) from (error)
    train = Split(
        np.concatenate([split["train"].x, split["val"].x]),
        np.concatenate([split["train"].y, split["val"].y]),
    )
    classes = _PATH_CLASSES if name == "pathmnist" else tuple(str(k) for k in range(n_classes))
    return Dataset(name, train, split["test"], classes)


def _split(content: np.lib.npyio.NpzFile, part: str) -> Split:
    images, labels = content[f"{part}_images"], content[f"{part}_labels"]
    images = images if images.ndim == 4 else images[..., None]
    return Split(np.ascontiguousarray(images, np.uint8), labels.reshape(-1).astype(np.int64))
