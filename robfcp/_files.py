"""Reading untrusted files within a size limit and writing results whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

from robfcp._suggestions import suggest_names
from robfcp.errors import RobfcpError

MAX_FILE_BYTES = 32 * 2**20
_TEMPORARY_PREFIX = ".robfcp-"
_MAX_WRITE_SECONDS = 3600  # after which nobody writes a temporary file any more
_BINARY = getattr(os, "O_BINARY", 0)  # of Windows
_REASONS = {
    errno.ENOENT: "there is no such folder",
    errno.ENOTDIR: "a file stands where a folder should",
    errno.EISDIR: "it is a folder",
    errno.EEXIST: "a file stands where a folder should",
    errno.EACCES: "you have no permission",
    errno.EPERM: "you have no permission",
    errno.EROFS: "the disk is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EIO: "the disk does not answer",
}
_READ = os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_OWNER_ONLY = 0o600
_ALL_USERS = 0o666  # less what umask takes off


def read_bounded(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the file's bytes; never wait for a pipe.

    Parameters
    ----------
    path : path
        The file.
    max_bytes : int
        A larger file is refused before it is read.
    """
    try:
        handle = os.open(path, _READ)
    except (OSError, ValueError) as error:
        raise RobfcpError(read_error(path, error)) from error
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError
        if status.st_size > max_bytes:
            problem = f"{status.st_size} bytes is larger than the {max_bytes} allowed"
            raise RobfcpError(f"{path}: {problem}; this is not such a file")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(status.st_size)  # none of a special that says it has no size
    except OSError as error:
        raise RobfcpError(read_error(path, error)) from error
    finally:
        os.close(handle)


def read_error(path: str | os.PathLike[str], error: Exception) -> str:
    """Return what to say of a file that the system does not let us read."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return f"{path}: no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder; name a file in it"
    reason = os_error_reason(error)
    return f"{path}: cannot be read ({reason}); check the path and your right to read it"


def os_error_reason(error: Exception) -> str:
    """Return why the system refused, in plain words."""
    code = getattr(error, "errno", None) or 0
    return _REASONS.get(code) or getattr(error, "strerror", None) or str(error)


@contextmanager
def _explain_write_errors(
    path: str | os.PathLike[str], problem: str = "cannot be written"
) -> Iterator[None]:
    """Turn what the system refuses into an error that advises another place."""
    try:
        yield
    except RobfcpError:
        raise
    except (OSError, ValueError) as error:
        reason = os_error_reason(error)
        raise RobfcpError(
            f"{os.fspath(path)}: {problem} ({reason}); choose another place"
        ) from error


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str, *, private: bool = False
) -> None:
    """Write beside the target, then rename over it, so that no reader sees half a file.

    What is there but no file (a device, a pipe) is written to, never replaced. A private file can
    be read by its owner alone, unless one that is there already is open to others.

    Parameters
    ----------
    path : path
        The target.
    content : bytes or str
        All of the file.
    private : bool, default=False
        Whether its owner alone may read it.
    """
    data = content.encode() if isinstance(content, str) else content
    with open_atomic(path, private=private) as stream:
        stream.write(data)


@contextmanager
def open_atomic(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """Give a stream for what is written bit by bit: there at the end, or not at all.

    Parameters
    ----------
    path, private
        As `write_atomically` takes them.
    """
    with _explain_write_errors(path):
        target = Path(os.path.realpath(path))
        if is_special(target):
            with target.open("wb") as stream:
                yield stream
        else:
            mode = _OWNER_ONLY if private else _ALL_USERS
            with _replace_atomically(target, mode) as stream:
                yield stream


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether something is there that is no plain file: a device, a pipe, a folder."""
    target = Path(os.path.realpath(path))
    return target.exists() and not target.is_file()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder, made with its parents where it is not there."""
    with _explain_write_errors(path, "the folder cannot be made"):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def prepare_output(path: str | os.PathLike[str]) -> None:
    """Make the folder of a file that will be written, or say now that it cannot be."""
    target = Path(path)
    if target.is_dir():
        raise RobfcpError(f"{path}: is a folder; name a file in it")
    make_folder(target.parent)
    if is_special(target):
        return

    # Write a probe: network drives and Windows say yes to a question and mean no.
    probe = _temporary_path(target.parent)
    with _explain_write_errors(path):
        os.close(os.open(probe, _CREATE, _OWNER_ONLY))
        os.unlink(probe)


def _temporary_path(folder: Path) -> Path:
    """Return a path in a folder that no other writer uses."""
    return folder / f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"


@contextmanager
def _replace_atomically(target: Path, mode: int) -> Iterator[IO[bytes]]:
    """Give a new file that is renamed over the target at the end.

    It has the mode of the target; where there is none, the given one, less umask.
    """
    _remove_stale_temporaries(target.parent)
    temporary = _temporary_path(target.parent)
    handle = os.open(temporary, _CREATE | _BINARY, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@cache  # once a process: folders may hold a million files
def _remove_stale_temporaries(folder: Path) -> None:
    """Remove what writers that were killed have left, and leave what may still be written."""
    with suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY_PREFIX}*"):
            token = path.name.removeprefix(_TEMPORARY_PREFIX)
            if not re.fullmatch(r"[0-9a-f]{16}", token):
                continue
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _MAX_WRITE_SECONDS:
                    path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename last; where folders cannot be opened (Windows) the system sees to it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: str | os.PathLike[str]) -> Iterator[int]:
    """Give the open lock file, locked for this process alone.

    The system unlocks it when a process dies.
    """
    with _explain_write_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, _OWNER_ONLY)
    try:
        try:
            _lock(handle)
        except OSError as error:
            raise RobfcpError(
                f"{os.fspath(path)}: cannot be locked ({os_error_reason(error)}); "
                "keep it on a disk that knows locks"
            ) from None
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Wait for the lock on an open file."""
    if os.name == "nt":
        windows = import_module("msvcrt")
        windows.locking(handle, windows.LK_LOCK, 1)  # its first byte, which is never read
    else:
        unix = import_module("fcntl")
        unix.flock(handle, unix.LOCK_EX)


# What msgspec calls types, and what people call them.
_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_KEY_SYNONYMS = {  # other words for keys of files
    "defence": ("defense",),
    "delta": ("dp-delta",),
    "epsilon": ("dp-epsilon",),
    "grid": ("binning",),
    "liars": ("max_malicious",),
    "n": ("n_samples",),
    "neighbours": ("neighbors",),
    "rounds": ("n_rounds",),
    "samples": ("n_samples", "n-samples"),
    "samples_per_patient": ("max_samples_per_patient",),
    "set_sizes": ("all_label_counts",),
    "steps": ("cell_steps",),
}
# The parts of messages of msgspec and tomllib that tell what is wrong, and where.
_WRONG_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]{1,60})")
_WRONG_TYPE = re.compile(r"Expected `([^`]{1,60})`, got `([^`]{1,60})`")
_PATH = re.compile(r"- at `\$?\.?([^`]{1,60})`")
_LINE = re.compile(r"line (\d+),? column (\d+)")
_BYTE = re.compile(r"byte (\d+)")


def decode_error_reason(error: Exception, known_keys: Sequence[str] = ()) -> str:
    """Return one short phrase about an error of a JSON or TOML decoder.

    Parameters
    ----------
    error : Exception
        What the decoder raised.
    known_keys : sequence of str
        The keys that the file may have, one of which an unknown key may have meant.
    """
    if isinstance(error, UnicodeError):
        return "it is no UTF-8 text"
    if isinstance(error, RecursionError):
        return "it nests too deep"

    message = str(error)
    path = _PATH.search(message)
    position = f" at {path[1]}" if path else ""
    wrong_field = _WRONG_FIELD.search(message)
    if wrong_field:
        name = wrong_field[2]
        if wrong_field[1] == "missing required":
            return f"{name!r}{position} is missing"
        reason = f"{name!r}{position} is not known"
        meant_names = suggest_names(name, known_keys, _KEY_SYNONYMS)
        if meant_names:
            reason += f"; did you mean {meant_names[0]!r}?"
        return reason
    wrong_type = _WRONG_TYPE.search(message)
    if wrong_type:
        expected = _name_of_type(wrong_type[1])
        actual = _name_of_type(wrong_type[2])
        return f"{actual} stands{position} where {expected} should"
    if path:
        return f"{path[1]} is not allowed"

    if "truncated" in message:
        return "it ends too early"
    line = _LINE.search(message)
    if line:
        return f"see line {line[1]}, column {line[2]}"
    byte = _BYTE.search(message)
    if byte:
        return f"see byte {byte[1]}"
    return "it cannot be read"


def _name_of_type(type_text: str) -> str:
    """Return `int | null` as people say it."""
    types = [name.strip() for name in type_text.split("|")]
    return " or ".join(_TYPE_NAMES.get(name, name) for name in types)
