"""Arrays from npz and npy files: within memory for their size, never a pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

MAX_ARRAY_BYTES = 2**34


class UnreadableArray(Exception):
    """What is wrong with an array, in our words."""


def array_names(path: Path) -> list[str]:
    """The names of the arrays in an npz file; none where it is no such file."""
    if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as content:
            return [name.removesuffix(".npy") for name in content.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
        return []


def named_array(path: Path, name: str) -> NDArray[Any]:
    """The array of this name in an npz file."""
    if name in array_names(path):
        return read_npz(path, [name])[name]
    raise RobfcpError(
        f"{path}: holds no {name!r}; save an npz with an array {name!r}, one name a sample"
    )


def read_npz(path: Path, wanted: list[str]) -> Mapping[str, NDArray[Any]]:
    """Those of the wanted arrays that an npz file holds."""
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            return {n: _member(archive, members[n]) for n in wanted if n in members}
    except UnreadableArray as error:
        raise RobfcpError(f"{path}: cannot be read ({error}); write it again") from None
    except PermissionError:
        raise
    except Exception as error:  # zlib, tokenize, zipfile, numpy: each has its own
        secret = isinstance(error, RuntimeError) and "encrypted" in str(error)
        problem = "is encrypted" if secret else "is damaged or no .npz archive"
        raise RobfcpError(f"{path}: {problem}; save it with numpy.savez") from error


def read_npy(path: Path) -> NDArray[Any]:
    """The array in an npy file."""
    try:
        with path.open("rb") as stream:
            return _array(stream, path.stat().st_size)
    except UnreadableArray as error:
        raise RobfcpError(f"{path}: cannot be read ({error}); write it again") from None
    except PermissionError:
        raise
    except Exception as error:  # tokenize, numpy: each has its own
        raise RobfcpError(
            f"{path}: is damaged or no .npy array; save it with numpy.save"
        ) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, refused before it is expanded where it is larger than it can be."""
    if info.file_size > MAX_ARRAY_BYTES:
        raise UnreadableArray(f"an array would have {info.file_size} bytes")
    with archive.open(info) as stream:
        return _array(stream, info.file_size)


def _array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a stream of so many bytes; what its header claims beyond them is refused."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise UnreadableArray(f"npy version {version} is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else _header_2
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise UnreadableArray("it holds Python objects")
    wanted = prod(shape) * dtype.itemsize
    if not 0 <= wanted <= size:
        raise UnreadableArray(f"shape {shape} needs {wanted} bytes but the file has {size}")
    data = stream.read(wanted)
    if len(data) < wanted:
        raise UnreadableArray("it ends too early")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _header_2(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_2_0(stream)
