"""Reading untrusted files within a size limit and writing results whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

from robfcp.errors import RobfcpError

MAX_FILE_BYTES = 32 * 2**20
_TEMPORARY = ".robfcp-"
_ABANDONED = 3600  # seconds after which nobody writes a file any more
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


def read_bounded(path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The file's bytes, refused beyond `limit` before they are read; never waits for a pipe."""
    try:
        handle = os.open(path, _READ)
    except (OSError, ValueError) as error:
        raise RobfcpError(read_error(path, error)) from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError if stat.S_ISDIR(found.st_mode) else FileNotFoundError
        if found.st_size > max_bytes:
            words = f"{found.st_size} bytes is larger than the {max_bytes} allowed"
            raise RobfcpError(f"{path}: {words}; this is not such a file")
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(found.st_size)  # none of a special that says it has no size
    except OSError as error:
        raise RobfcpError(read_error(path, error)) from error
    finally:
        os.close(handle)


def read_error(path: str | os.PathLike[str], error: Exception) -> str:
    """What to say of a file the system would not let us read."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return f"{path}: no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a folder; name a file in it"
    reason = os_error_reason(error)
    return f"{path}: cannot be read ({reason}); check the path and your right to read it"


def os_error_reason(error: Exception) -> str:
    """Why the system refused, in plain words."""
    number = getattr(error, "errno", None)
    return _REASONS.get(number or 0) or getattr(error, "strerror", None) or str(error)


@contextmanager
def _explain_write_errors(
    path: str | os.PathLike[str], problem: str = "cannot be written"
) -> Iterator[None]:
    """Says of what the system refuses that another place would do."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, RobfcpError):
            raise
        raise RobfcpError(
            f"{os.fspath(path)}: {problem} ({os_error_reason(error)}); choose another place"
        ) from error


def write_atomically(
    path: str | os.PathLike[str], content: bytes | str, *, private: bool = False
) -> None:
    """Write beside the target, then rename over it, so that no reader sees half a file.

    What is there but no file (a device, a pipe) is written to, never replaced. A private file can
    be read by its owner alone, unless one that is there already is open to others.
    """
    with open_atomic(path, private=private) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomic(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """The same for what is written bit by bit: there at the end, or not at all."""
    with _explain_write_errors(path):
        target = Path(os.path.realpath(path))
        if is_special(target):
            with target.open("wb") as stream:
                yield stream
        else:
            with _replace_atomically(target, 0o600 if private else 0o666) as stream:
                yield stream


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether something is there that is no plain file: a device, a pipe, a folder."""
    target = Path(os.path.realpath(path))
    return target.exists() and not target.is_file()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with its parents where it is not there."""
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
    probe = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    with _explain_write_errors(
        path
    ):  # a probe: network drives and Windows say yes to a question and mean no
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)


@contextmanager
def _replace_atomically(target: Path, mode: int) -> Iterator[IO[bytes]]:
    """Rename a new file over the target, whose mode it keeps; else it has this one, less umask."""
    _remove_stale_temporaries(target.parent)
    temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
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
        for path in folder.glob(f"{_TEMPORARY}*"):
            if re.fullmatch(r"[0-9a-f]{16}", path.name.removeprefix(_TEMPORARY)):
                with suppress(OSError):
                    if path.stat().st_mtime < time.time() - _ABANDONED:
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
    """The open lock file, held by nobody else; the system lets go of it when a process dies."""
    with _explain_write_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o600)
    try:
        try:
            if os.name == "nt":
                windows = import_module("msvcrt")
                windows.locking(handle, windows.LK_LOCK, 1)  # its first byte, which is never read
            else:
                unix = import_module("fcntl")
                unix.flock(handle, unix.LOCK_EX)
        except OSError as error:
            raise RobfcpError(
                f"{os.fspath(path)}: cannot be locked ({os_error_reason(error)}); "
                "keep it on a disk that knows locks"
            ) from None
        yield handle
    finally:
        os.close(handle)


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]{1,60})")
_KIND = re.compile(r"Expected `([^`]{1,60})`, got `([^`]{1,60})`")
_PLACE = re.compile(r"- at `\$?\.?([^`]{1,60})`")
_LINE = re.compile(r"line (\d+),? column (\d+)")
_BYTE = re.compile(r"byte (\d+)")


def decode_error_reason(error: Exception) -> str:
    """One short phrase about an error of a JSON or TOML decoder."""
    if isinstance(error, UnicodeError):
        return "it is no UTF-8 text"
    if isinstance(error, RecursionError):
        return "it nests too deep"
    text = str(error)
    field, kind, place = _FIELD.search(text), _KIND.search(text), _PLACE.search(text)
    where = f" at {place[1]}" if place else ""
    if field:
        return f"{field[2]!r}{where} {'is missing' if field[1][0] == 'm' else 'is not known'}"
    if kind:
        return f"{_named(kind[2])} stands{where} where {_named(kind[1])} should"
    if place:
        return f"{place[1]} is not allowed"
    if "truncated" in text:
        return "it ends too early"
    line, byte = _LINE.search(text), _BYTE.search(text)
    if line:
        return f"see line {line[1]}, column {line[2]}"
    return f"see byte {byte[1]}" if byte else "it cannot be read"


def _named(kinds: str) -> str:
    """`int | null` as people say it."""
    return " or ".join(_WORDS.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))
