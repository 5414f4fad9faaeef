"""Tiny-ImageNet-200 from the official tree of JPEG files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Remote, Source, locate
from robfcp.lab.datasets.table import Dataset, Split

SOURCE = Source(
    name="tinyimagenet",
    home="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    folder="tinyimagenet",
    remotes=(
        Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            unpack=True,
        ),
    ),
    present="tiny-imagenet-200/wnids.txt",
)
PER_CLASS = 500


def load(directory: Path, verify: bool) -> Dataset:
    """100000 training and 10000 validation images, 64 x 64, RGB; classes in order of their id."""
    root = locate(directory, SOURCE, ("tiny-imagenet-200/wnids.txt", "wnids.txt")).parent
    identities = sorted(root.joinpath("wnids.txt").read_text(encoding="utf-8").split())
    number = {identity: index for index, identity in enumerate(identities)}
    words = dict(
        line.split("\t", 1) for line in _lines(root / "words.txt") if line.count("\t") == 1
    )
    train = [
        (path, number[identity])
        for identity in identities
        for path in sorted((root / "train" / identity / "images").glob("*.JPEG"), key=_serial)
    ]
    if verify and len(train) != PER_CLASS * len(identities):
        raise RobfcpError(
            f"tinyimagenet: {root / 'train'} holds {len(train)} of the "
            f"{PER_CLASS * len(identities)} official images; unpack the archive again, or pass "
            "--no-verify to train on these"
        )
    rows = [line.split("\t") for line in _lines(root / "val" / "val_annotations.txt")]
    test = [(root / "val" / "images" / row[0], number[row[1]]) for row in rows]
    classes = tuple(words.get(identity, identity) for identity in identities)
    return Dataset("tinyimagenet", _split(train), _split(test), classes)


def _serial(path: Path) -> tuple[int, str]:
    return int(path.stem.rsplit("_", 1)[-1]), path.name


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise RobfcpError(f"tinyimagenet: {path} is missing; get it from {SOURCE.home}")
    return path.read_text(encoding="utf-8").splitlines()


def _split(entries: list[tuple[Path, int]]) -> Split:
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(_decode, (path for path, _ in entries)))
    x = np.stack(images) if images else np.zeros((0, 64, 64, 3), np.uint8)
    return Split(x, np.array([label for _, label in entries], np.int64))


def _decode(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise RobfcpError(f"tinyimagenet: {path} is missing or broken; unpack it again") from error
