"""Loaders of public data sets in their official formats, from a directory the user names."""

from __future__ import annotations

import csv
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from robfcp.errors import RobfcpError
from robfcp.files import reason_of
from robfcp.lab.datasets import (
    cifar10,
    flamby,
    heart,
    medmnist,
    mnist,
    ptbxl,
    sleep,
    stroke,
    tinyimagenet,
    wisdm,
)
from robfcp.lab.datasets.files import Source, data_directory, download
from robfcp.lab.datasets.table import Dataset, SiteTable, Split

__all__ = [
    "Dataset",
    "SiteTable",
    "Source",
    "Split",
    "data_directory",
    "download",
    "load",
    "load_sites",
    "names",
    "site_names",
    "source",
]

_FOREIGN = (zlib.error, struct.error, csv.Error, zipfile.BadZipFile, tarfile.TarError)
_LOADERS: dict[str, Callable[[Path, bool], Dataset]] = {
    "mnist": mnist.load,
    "cifar10": cifar10.load,
    "tinyimagenet": tinyimagenet.load,
    "sleep": sleep.load,
    **{name: medmnist.loader(name) for name in medmnist.SETS},
}
_SITE_LOADERS: dict[str, Callable[[Path, bool], SiteTable]] = {
    "stroke": stroke.load,
    "heart": heart.load,
    "sleep": sleep.load_sites,
    "fed-heart": flamby.load_heart,
    "fed-isic2019": flamby.load_isic,
    "wisdm": wisdm.load,
    "ptbxl": ptbxl.load,
}
_SOURCES: dict[str, Source] = {
    "mnist": mnist.SOURCE,
    "cifar10": cifar10.SOURCE,
    "tinyimagenet": tinyimagenet.SOURCE,
    "sleep": sleep.SOURCE,
    **{name: medmnist.source(name) for name in medmnist.SETS},
    "stroke": stroke.SOURCE,
    "heart": heart.SOURCE,
    "fed-heart": flamby.HEART,
    "fed-isic2019": flamby.ISIC,
    "wisdm": wisdm.SOURCE,
    "ptbxl": ptbxl.SOURCE,
}


def names() -> tuple[str, ...]:
    """The data sets that can be loaded, split into training and test samples."""
    return tuple(_LOADERS)


def site_names() -> tuple[str, ...]:
    """The data sets whose samples say which site they come from."""
    return tuple(_SITE_LOADERS)


def source(name: str) -> Source:
    """Where the files of a data set come from and what they are called."""
    return _SOURCES[_known(name, _SOURCES)]


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    verify: bool = True,
    fetch: bool = False,
) -> Dataset:
    """The data set read from `data_dir` (or $ROBFCP_DATA); `fetch` downloads what is missing."""
    loader = _LOADERS[_known(name, _LOADERS)]
    with _official(name):
        return loader(_directory(name, data_dir, fetch), verify)


def load_sites(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    verify: bool = True,
    fetch: bool = False,
) -> SiteTable:
    """The samples of the data's own sites, read from `data_dir` (or $ROBFCP_DATA)."""
    loader = _SITE_LOADERS[_known(name, _SITE_LOADERS)]
    with _official(name):
        return loader(_directory(name, data_dir, fetch), verify)


@contextmanager
def _official(name: str) -> Iterator[None]:
    """One clear line for whatever a damaged or foreign file makes a library say."""
    home = _SOURCES[name].home
    try:
        yield
    except RobfcpError:
        raise
    except OSError as error:
        path = name if error.filename is None else str(error.filename)
        raise RobfcpError(
            f"{path}: cannot be read ({reason_of(error)}); check it, or get it again from {home}"
        ) from error
    except (ValueError, KeyError, IndexError, EOFError, ArithmeticError, *_FOREIGN) as error:
        raise RobfcpError(
            f"{name}: a file is damaged or not the official one; get it again from {home}"
        ) from error


def _directory(name: str, data_dir: str | os.PathLike[str] | None, fetch: bool) -> Path:
    directory = data_directory(data_dir)
    if fetch:
        download(_SOURCES[name], directory)
    return directory


def _known(name: str, choices: Mapping[str, object]) -> str:
    if name not in choices:
        raise RobfcpError(f"{name}: no such data set; choose one of {', '.join(choices)}")
    return name
