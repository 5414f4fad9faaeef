"""One process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from robfcp._util.files import reason_of
from robfcp.errors import RobfcpError


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[int]:
    """The open lock file, held by nobody else; the system lets go of it when a process dies."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise RobfcpError(
            f"{os.fspath(path)}: cannot be opened ({reason_of(error)}); choose another place"
        ) from None
    try:
        lock(handle)
        yield handle
    finally:
        os.close(handle)


def lock(handle: int) -> None:
    """Wait until nobody else holds the open file; it is let go when it is closed."""
    if os.name == "nt":
        windows = import_module("msvcrt")
        windows.locking(handle, windows.LK_LOCK, 1)  # by its first byte, which is never read
    else:
        unix = import_module("fcntl")
        unix.flock(handle, unix.LOCK_EX)
