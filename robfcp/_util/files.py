"""Reading untrusted files within a size limit and writing results whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from robfcp.errors import RobfcpError

MAX_FILE_BYTES = 32 * 2**20


def read_limited(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
    """The file's bytes, refused beyond `limit` before they are read."""
    path = Path(path)
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is not None and size <= limit:
            return path.read_bytes()
    except (OSError, ValueError) as error:
        raise RobfcpError(f"{path}: cannot be read ({_reason(error)}); check the path") from error
    if size is None:
        raise RobfcpError(f"{path}: no such file; check the path")
    raise RobfcpError(
        f"{path}: {size} bytes is larger than the {limit} allowed; this is not such a file"
    )


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write beside the target, then rename over it, so that no reader sees half a file.

    What is there but no file (a device, a pipe) is written to, never replaced.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = Path(os.path.realpath(path))
        if is_special(target):
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        raise RobfcpError(
            f"{path}: cannot be written ({_reason(error)}); choose another place"
        ) from error


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether something is there that is no plain file: a device, a pipe, a folder."""
    target = Path(os.path.realpath(path))
    return target.exists() and not target.is_file()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made with its parents where it is not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise RobfcpError(f"{path}: cannot be made ({_reason(error)}); choose another") from error
    return Path(path)


def _replace(target: Path, data: bytes) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".robfcp-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


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


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
