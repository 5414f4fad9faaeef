"""Reading untrusted files within a size limit and writing results whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from robfcp.errors import RobfcpError

MAX_FILE_BYTES = 32 * 2**20


def read_limited(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
    """The file's bytes, refused beyond `limit` before they are read."""
    path = Path(path)
    try:
        if not path.is_file():
            raise RobfcpError(f"{path}: no such file; check the path")
        size = path.stat().st_size
        if size > limit:
            raise RobfcpError(
                f"{path}: {size} bytes is larger than the {limit} allowed; this is not such a file"
            )
        return path.read_bytes()
    except OSError as error:
        raise RobfcpError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write beside the target, then rename over it, so that no reader sees half a file."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RobfcpError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
