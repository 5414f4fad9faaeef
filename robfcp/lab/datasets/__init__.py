"""Loaders of public data sets in their official formats, from a directory the user names."""

from __future__ import annotations

import csv
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from robfcp.errors import RobfcpError
from robfcp.files import reason_of
from robfcp.lab.datasets import images, people
from robfcp.lab.datasets.files import Dataset, SiteTable, Source, Split, data_directory

__all__ = ["Dataset", "SiteTable", "Split", "load", "load_sites", "names", "site_names"]

_FOREIGN = (zlib.error, struct.error, csv.Error, zipfile.BadZipFile)
_WRONG = (ValueError, KeyError, IndexError, EOFError, ArithmeticError, *_FOREIGN)
_LOADERS: dict[str, tuple[Source, Callable[[Path, bool], Dataset]]] = {
    **images.LOADERS,
    **people.LOADERS,
}
Data = TypeVar("Data", Dataset, SiteTable)


def names() -> tuple[str, ...]:
    """The data sets that can be loaded, split into training and test samples."""
    return tuple(_LOADERS)


def site_names() -> tuple[str, ...]:
    """The data sets whose samples say which site they come from."""
    return tuple(people.SITE_LOADERS)


def load(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> Dataset:
    """The data set read from `data_dir` (or $ROBFCP_DATA)."""
    return _load(_LOADERS, name, data_dir, verify)


def load_sites(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> SiteTable:
    """The samples of the data's own sites, read from `data_dir` (or $ROBFCP_DATA)."""
    return _load(people.SITE_LOADERS, name, data_dir, verify)


def _load(
    loaders: Mapping[str, tuple[Source, Callable[[Path, bool], Data]]],
    name: str,
    data_dir: str | os.PathLike[str] | None,
    verify: bool,
) -> Data:
    """One clear line for whatever a damaged or foreign file makes a library say."""
    if name not in loaders:
        raise RobfcpError(f"{name}: no such data set; choose one of {', '.join(loaders)}")
    home, loader = loaders[name]
    directory = data_directory(data_dir)
    try:
        return loader(directory, verify)
    except RobfcpError:
        raise
    except OSError as error:
        path = name if error.filename is None else error.filename
        raise RobfcpError(
            f"{path}: cannot be read ({reason_of(error)}); check it, or get it again from "
            f"{home.home}"
        ) from error
    except _WRONG as error:
        raise home.wrong(f"a file is damaged or not the official one ({error})") from error
