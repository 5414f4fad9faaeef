"""Loaders of public data sets in their official formats, from a given directory.

`load` reads a data set by name as a `Dataset` or, with its real sites, as a `SiteTable`. May import
`errors` and the shared private modules.
"""

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

# What libraries raise about damaged or foreign files.
_FORMAT_ERRORS = (zlib.error, struct.error, csv.Error, zipfile.BadZipFile)
_CONTENT_ERRORS = (ValueError, KeyError, IndexError, EOFError, ArithmeticError)
_LOADERS = {**images.LOADERS, **healthcare.LOADERS}


def dataset_names(*, sites: bool = False) -> tuple[str, ...]:
    """Return the data sets that load as training and test samples, or those that load by site."""
    loaders = healthcare.SITE_LOADERS if sites else _LOADERS
    return tuple(loaders)


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    partitioned: bool = False,
    verify: bool = True,
) -> Any:
    """Load a data set from its official files.

    Parameters
    ----------
    name : str
        The data set.
    data_dir : path, optional
        Where its files are; $ROBFCP_DATA if None.
    partitioned : bool
        Whether the samples are returned by the sites they come from.
    verify : bool
        Whether checksums and numbers of samples are compared with the official ones.

    Returns
    -------
    Dataset or SiteTable

    Raises
    ------
    RobfcpError
        If a file is missing, damaged or another one; it says where the official one is.
    """
    loaders: Any = healthcare.SITE_LOADERS if partitioned else _LOADERS
    if name not in loaders:
        raise RobfcpError(f"{name}: no such data set; choose one of {', '.join(loaders)}")
    source, loader = loaders[name]
    directory = data_directory(data_dir)
    try:
        return loader(directory, verify)
    except RobfcpError:
        raise
    except OSError as error:
        path = name if error.filename is None else error.filename
        raise RobfcpError(
            f"{path}: cannot be read ({os_error_reason(error)}); check it, or get it again from "
            f"{source.home}"
        ) from error
    except (*_CONTENT_ERRORS, *_FORMAT_ERRORS) as error:
        raise source.error(f"a file is damaged or not the official one ({error})") from error
