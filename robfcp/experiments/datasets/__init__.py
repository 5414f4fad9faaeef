"""Loaders of public data sets in their official formats, from a directory the user names."""

from __future__ import annotations

import csv
import os
import struct
import zipfile
import zlib
from typing import Any

from robfcp._files import os_error_reason
from robfcp.errors import RobfcpError
from robfcp.experiments.datasets import healthcare, images
from robfcp.experiments.datasets.files import Dataset, SiteTable, Split, data_directory

__all__ = ["Dataset", "SiteTable", "Split", "dataset_names", "load"]

_FOREIGN = (zlib.error, struct.error, csv.Error, zipfile.BadZipFile)
_WRONG = (ValueError, KeyError, IndexError, EOFError, ArithmeticError, *_FOREIGN)
_LOADERS = {**images.LOADERS, **healthcare.LOADERS}


def dataset_names(*, sites: bool = False) -> tuple[str, ...]:
    """The data sets that can be loaded, split into training and test samples or as sites."""
    return tuple(healthcare.SITE_LOADERS if sites else _LOADERS)


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    partitioned: bool = False,
    verify: bool = True,
) -> Any:
    """The `Dataset`, or the `SiteTable` of its own sites, read from `data_dir` (or $ROBFCP_DATA).

    One clear line for whatever a damaged or foreign file makes a library say.
    """
    loaders: Any = healthcare.SITE_LOADERS if partitioned else _LOADERS
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
            f"{path}: cannot be read ({os_error_reason(error)}); check it, or get it again from "
            f"{home.home}"
        ) from error
    except _WRONG as error:
        raise home.wrong(f"a file is damaged or not the official one ({error})") from error
