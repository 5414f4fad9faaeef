"""Loaders of public data sets in their official formats, from a directory the user names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from robfcp.errors import RobfcpError
from robfcp.lab.datasets import cifar10, medmnist, mnist, sleep, tinyimagenet
from robfcp.lab.datasets.files import Source, data_directory, download
from robfcp.lab.datasets.table import Dataset, Split

__all__ = ["Dataset", "Source", "Split", "data_directory", "download", "load", "names", "source"]

_LOADERS: dict[str, Callable[[Path, bool], Dataset]] = {
    "mnist": mnist.load,
    "cifar10": cifar10.load,
    "tinyimagenet": tinyimagenet.load,
    "sleep": sleep.load,
    **{name: medmnist.loader(name) for name in medmnist.SETS},
}
_SOURCES: dict[str, Source] = {
    "mnist": mnist.SOURCE,
    "cifar10": cifar10.SOURCE,
    "tinyimagenet": tinyimagenet.SOURCE,
    "sleep": sleep.SOURCE,
    **{name: medmnist.source(name) for name in medmnist.SETS},
}


def names() -> tuple[str, ...]:
    """The data sets that can be loaded."""
    return tuple(_LOADERS)


def source(name: str) -> Source:
    """Where the files of a data set come from and what they are called."""
    return _SOURCES[_known(name)]


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    verify: bool = True,
    fetch: bool = False,
) -> Dataset:
    """The data set read from `data_dir` (or $ROBFCP_DATA); `fetch` downloads what is missing."""
    loader = _LOADERS[_known(name)]
    directory = data_directory(data_dir)
    if fetch:
        download(_SOURCES[name], directory)
    return loader(directory, verify)


def _known(name: str) -> str:
    if name not in _LOADERS:
        raise RobfcpError(f"{name}: no such data set; choose one of {', '.join(_LOADERS)}")
    return name
