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
CIFAR10_RECORD_BYTES = 1 + 3 * 32 * 32  # of a label and an image
CIFAR10_RECORDS = 10000  # of a file
TINYIMAGENET_PER_CLASS = 500  # training images of a class


def load_mnist(source: Source, directory: Path, verify: bool) -> Dataset:
    """Load 60000 training and 10000 test images of digits, 28 x 28, one channel, from idx files."""

    def read_array(stem: str) -> NDArray[np.uint8]:
        compressed_name = f"{stem}.gz"
        path = source.locate(directory, compressed_name, stem, stem.replace("-idx", ".idx"))
        if verify and path.name == compressed_name:
            source.check_md5(path, MNIST_MD5[compressed_name])
        return read_idx(path, source)

    def read_split(prefix: str) -> Split:
        images = read_array(f"{prefix}-images-idx3-ubyte")[..., None]
        labels = read_array(f"{prefix}-labels-idx1-ubyte").astype(np.int64)
        return Split(images, labels)

    classes = tuple(str(digit) for digit in range(10))
    return Dataset(source.name, read_split("train"), read_split("t10k"), classes)


def read_idx(path: Path, source: Source) -> NDArray[np.uint8]:
    """Read the array of an idx file of unsigned bytes: magic 0 0 8 d, d big-endian sizes, data."""
    if path.suffix == ".gz":
        with gzip.open(path) as stream:
            content = stream.read()
    else:
        content = path.read_bytes()

    magic = content[:3]
    if magic != b"\x00\x00\x08":
        raise source.error(f"{path} is not an idx file of unsigned bytes")
    n_dimensions = content[3]
    header_size = 4 + 4 * n_dimensions
    if len(content) < header_size:
        raise source.error(f"{path} is not an idx file of unsigned bytes")

    shape = struct.unpack_from(f">{n_dimensions}I", content, 4)
    data = np.frombuffer(content, np.uint8, offset=header_size)
    if data.size != int(np.prod(shape)):
        raise source.error(f"{path}: {data.size} bytes do not fill {shape}")
    return data.reshape(shape)


def load_cifar10(source: Source, directory: Path, verify: bool) -> Dataset:
    """Load 50000 training and 10000 test images, 32 x 32, RGB, from the binary batches.

    The Python version of the files needs pickle and is not read.
    """

    def read_records(name: str) -> NDArray[np.uint8]:
        path = source.locate(directory, f"cifar-10-batches-bin/{name}", name)
        content = np.fromfile(path, np.uint8)
        n_records = CIFAR10_RECORDS if verify else content.size // CIFAR10_RECORD_BYTES
        source.check_count(path, content.size, n_records * CIFAR10_RECORD_BYTES, "bytes")
        return content.reshape(-1, CIFAR10_RECORD_BYTES)

    def read_split(names: Sequence[str]) -> Split:
        records = np.concatenate([read_records(name) for name in names])
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Split(np.ascontiguousarray(images), records[:, 0].astype(np.int64))

    train = read_split([f"data_batch_{k}.bin" for k in range(1, 6)])
    test = read_split(["test_batch.bin"])
    return Dataset(source.name, train, test, CIFAR10_CLASSES)


def load_tinyimagenet(source: Source, directory: Path, verify: bool) -> Dataset:
    """Load 100000 training and 10000 validation images, 64 x 64, RGB.

    Classes are in the order of their WordNet ids.
    """
    root = source.locate(directory, "tiny-imagenet-200/wnids.txt", "wnids.txt").parent

    def read_lines(name: str) -> list[str]:
        path = root / name
        if not path.is_file():
            raise source.error(f"{path} is missing")
        return path.read_text(encoding="utf-8").splitlines()

    def read_split(paths: Sequence[Path], image_ids: Sequence[str]) -> Split:
        images = source.read_images(paths)
        x = np.stack(images) if images else np.zeros((0, 64, 64, 3), np.uint8)
        labels = [class_ids.index(class_id) for class_id in image_ids]
        return Split(x, np.array(labels, np.int64))

    class_ids = sorted(" ".join(read_lines("wnids.txt")).split())
    name_lines = [line for line in read_lines("words.txt") if line.count("\t") == 1]
    class_names = dict(line.split("\t", 1) for line in name_lines)

    train_paths: list[Path] = []
    train_ids: list[str] = []
    for class_id in class_ids:
        image_paths = (root / "train" / class_id / "images").glob("*.JPEG")
        class_paths = sorted(image_paths, key=_image_order)
        train_paths += class_paths
        train_ids += [class_id] * len(class_paths)
    if verify:
        n_official = TINYIMAGENET_PER_CLASS * len(class_ids)
        source.check_count(root / "train", len(train_paths), n_official, "images")

    annotations = [line.split("\t") for line in read_lines("val/val_annotations.txt")]
    test_paths = [root / "val" / "images" / annotation[0] for annotation in annotations]
    test_ids = [annotation[1] for annotation in annotations]

    classes = tuple(class_names.get(class_id, class_id) for class_id in class_ids)
    train = read_split(train_paths, train_ids)
    test = read_split(test_paths, test_ids)
    return Dataset(source.name, train, test, classes)


def _image_order(path: Path) -> tuple[int, str]:
    """Return the key by which images are sorted: the number that ends their name, n01_12.JPEG."""
    return int(path.stem.rsplit("_", 1)[-1]), path.name


def load_pathmnist(source: Source, directory: Path, verify: bool) -> Dataset:
    """Load PathMNIST of MedMNIST v2: training and validation images train, test images test."""
    path = source.locate(directory, "pathmnist.npz", "pathmnist/pathmnist.npz")
    if verify:
        source.check_md5(path, PATH_MD5)
    with np.load(path, allow_pickle=False) as content:

        def read_split(*prefixes: str) -> Split:
            images = np.concatenate([content[f"{prefix}_images"] for prefix in prefixes])
            labels = np.concatenate([content[f"{prefix}_labels"] for prefix in prefixes])
            return Split(
                np.ascontiguousarray(images, np.uint8), labels.reshape(-1).astype(np.int64)
            )

        train = read_split("train", "val")
        test = read_split("test")
    return Dataset(source.name, train, test, PATH_CLASSES)


_LOADERS: dict[Source, Callable[[Source, Path, bool], Dataset]] = {
    Source("mnist", "http://yann.lecun.com/exdb/mnist/", "mnist"): load_mnist,
    Source("cifar10", "https://www.cs.toronto.edu/~kriz/cifar.html", "cifar10"): load_cifar10,
    Source(
        "tinyimagenet", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tinyimagenet"
    ): load_tinyimagenet,
    Source("pathmnist", "https://medmnist.com", "medmnist"): load_pathmnist,
}
LOADERS = {source.name: (source, partial(load, source)) for source, load in _LOADERS.items()}
