"""MNIST from the official idx files, compressed or not."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Remote, Source, check_md5, locate
from robfcp.lab.datasets.table import Dataset, Split

_MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
SOURCE = Source(
    name="mnist",
    home="http://yann.lecun.com/exdb/mnist/",
    folder="mnist",
    remotes=tuple(
        Remote(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}", md5)
        for name, md5 in _MD5.items()
    ),
)


def load(directory: Path, verify: bool) -> Dataset:
    """60000 training and 10000 test images of digits, 28 x 28, one channel."""
    splits = []
    for prefix in ("train", "t10k"):
        images = _read(directory, f"{prefix}-images-idx3-ubyte", verify)
        labels = _read(directory, f"{prefix}-labels-idx1-ubyte", verify)
        splits.append(Split(images[..., None], labels.astype(np.int64)))
    return Dataset("mnist", splits[0], splits[1], tuple(str(digit) for digit in range(10)))


def _read(directory: Path, stem: str, verify: bool) -> NDArray[np.uint8]:
    compressed = f"{stem}.gz"
    path = locate(directory, SOURCE, (compressed, stem, stem.replace("-idx", ".idx")))
    if verify and path.name == compressed:
        check_md5(path, _MD5[compressed], SOURCE)
    return read_idx(path)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes: magic 0 0 8 d, d big-endian sizes, the data."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        content = stream.read()
    if content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise RobfcpError(f"{path}: not an idx file of unsigned bytes; fetch it again")
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if data.size != int(np.prod(shape)):
        raise RobfcpError(f"{path}: {data.size} bytes do not fill {shape}; fetch it again")
    return data.reshape(shape)
