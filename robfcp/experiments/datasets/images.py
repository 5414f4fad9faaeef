"""Images in their official formats: MNIST, CIFAR-10, Tiny-ImageNet-200 and PathMNIST."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.experiments.datasets.files import Dataset, Source, Split

MNIST_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
PATH_MD5 = "a8b06965200029087d5bd730944a56c1"
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
PATH_CLASSES = (
    "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle",
    "normal colon mucosa", "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
)  # fmt: skip
RECORD = 1 + 3 * 32 * 32  # bytes of a label and an image of CIFAR-10
PER_CLASS = 500  # training images of a class of Tiny-ImageNet


def load_mnist(source: Source, directory: Path, verify: bool) -> Dataset:
    """60000 training and 10000 test images of digits, 28 x 28, one channel: idx files."""

    def read(stem: str) -> NDArray[np.uint8]:
        packed = f"{stem}.gz"
        path = source.locate(directory, packed, stem, stem.replace("-idx", ".idx"))
        if verify and path.name == packed:
            source.check_md5(path, MNIST_MD5[packed])
        return read_idx(path, source)

    train, test = (
        Split(
            read(f"{prefix}-images-idx3-ubyte")[..., None],
            read(f"{prefix}-labels-idx1-ubyte").astype(np.int64),
        )
        for prefix in ("train", "t10k")
    )
    return Dataset(source.name, train, test, tuple(str(digit) for digit in range(10)))


def read_idx(path: Path, source: Source) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes: magic 0 0 8 d, d big-endian sizes, the data."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        content = stream.read()
    if content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise source.wrong(f"{path} is not an idx file of unsigned bytes")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if data.size != int(np.prod(shape)):
        raise source.wrong(f"{path}: {data.size} bytes do not fill {shape}")
    return data.reshape(shape)


def load_cifar10(source: Source, directory: Path, verify: bool) -> Dataset:
    """50000 training and 10000 test images, 32 x 32, RGB: the binary batches (the Python version
    needs pickle and is not read)."""

    def read(names: Sequence[str]) -> Split:
        parts = []
        for name in names:
            path = source.locate(directory, f"cifar-10-batches-bin/{name}", name)
            content = np.fromfile(path, np.uint8)
            whole = content.size // RECORD * RECORD
            source.check_number(path, content.size, 10000 * RECORD if verify else whole, "bytes")
            parts.append(content.reshape(-1, RECORD))
        records = np.concatenate(parts)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Split(np.ascontiguousarray(images), records[:, 0].astype(np.int64))

    train = read([f"data_batch_{number}.bin" for number in range(1, 6)])
    return Dataset(source.name, train, read(["test_batch.bin"]), CIFAR10_CLASSES)


def load_tinyimagenet(source: Source, directory: Path, verify: bool) -> Dataset:
    """100000 training and 10000 validation images, 64 x 64, RGB; classes in order of their id."""
    root = source.locate(directory, "tiny-imagenet-200/wnids.txt", "wnids.txt").parent

    def lines(name: str) -> list[str]:
        if not (root / name).is_file():
            raise source.wrong(f"{root / name} is missing")
        return (root / name).read_text(encoding="utf-8").splitlines()

    def split(entries: list[tuple[Path, str]]) -> Split:
        images = source.images([path for path, _ in entries])
        x = np.stack(images) if images else np.zeros((0, 64, 64, 3), np.uint8)
        return Split(x, np.array([identities.index(name) for _, name in entries], np.int64))

    identities = sorted(" ".join(lines("wnids.txt")).split())
    words = dict(line.split("\t", 1) for line in lines("words.txt") if line.count("\t") == 1)
    train = [
        (path, identity)
        for identity in identities
        for path in sorted(
            (root / "train" / identity / "images").glob("*.JPEG"),
            key=lambda path: (int(path.stem.rsplit("_", 1)[-1]), path.name),
        )
    ]
    if verify:
        official = PER_CLASS * len(identities)
        source.check_number(root / "train", len(train), official, "images")
    rows = [line.split("\t") for line in lines("val/val_annotations.txt")]
    test = [(root / "val" / "images" / row[0], row[1]) for row in rows]
    classes = tuple(words.get(identity, identity) for identity in identities)
    return Dataset(source.name, split(train), split(test), classes)


def load_pathmnist(source: Source, directory: Path, verify: bool) -> Dataset:
    """Of MedMNIST v2: training and validation images train, test images test."""
    path = source.locate(directory, "pathmnist.npz", "pathmnist/pathmnist.npz")
    if verify:
        source.check_md5(path, PATH_MD5)
    with np.load(path, allow_pickle=False) as content:

        def split(*parts: str) -> Split:
            images = np.concatenate([content[f"{part}_images"] for part in parts])
            labels = np.concatenate([content[f"{part}_labels"].reshape(-1) for part in parts])
            return Split(np.ascontiguousarray(images, np.uint8), labels.astype(np.int64))

        return Dataset(source.name, split("train", "val"), split("test"), PATH_CLASSES)


_LOADERS: dict[Source, Callable[[Source, Path, bool], Dataset]] = {
    Source("mnist", "http://yann.lecun.com/exdb/mnist/", "mnist"): load_mnist,
    Source("cifar10", "https://www.cs.toronto.edu/~kriz/cifar.html", "cifar10"): load_cifar10,
    Source(
        "tinyimagenet", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tinyimagenet"
    ): load_tinyimagenet,
    Source("pathmnist", "https://medmnist.com", "medmnist"): load_pathmnist,
}
LOADERS = {source.name: (source, partial(load, source)) for source, load in _LOADERS.items()}
