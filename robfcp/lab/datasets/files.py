"""Finding, checking and fetching the files of a data set."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from robfcp.errors import RobfcpError

VARIABLE = "ROBFCP_DATA"


@dataclass(frozen=True)
class Remote:
    """One downloadable file; archives are unpacked where they land."""

    url: str
    md5: str | None = None
    unpack: bool = False

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.split("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Source:
    """A data set's home page, its folder in the data directory, and its files if public."""

    name: str
    home: str
    folder: str
    remotes: tuple[Remote, ...] = ()
    present: str = ""  # a path inside the folder that shows the set is already unpacked


def data_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """The directory given, or $ROBFCP_DATA; refused when neither names a directory."""
    chosen = path if path is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise RobfcpError(f"data: no directory given; pass --data-dir or set {VARIABLE}")
    directory = Path(chosen)
    if not directory.is_dir():
        raise RobfcpError(f"data: {directory} is not a directory; create it or name another")
    return directory


def locate(directory: Path, source: Source, alternatives: tuple[str, ...]) -> Path:
    """The first of the file's names found in the set's folder or in the data directory itself."""
    folders = (directory / source.folder, directory)
    for folder in folders:
        for name in alternatives:
            if (folder / name).exists():
                return folder / name
    raise RobfcpError(
        f"{source.name}: {' or '.join(alternatives)} is missing from {folders[0]} and {directory}; "
        f"get it from {source.home}" + (" or run with --download" if source.remotes else "")
    )


def check_md5(path: Path, expected: str, source: Source) -> None:
    """Refuse a file whose MD5 is not the official one."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise RobfcpError(
            f"{source.name}: {path} has MD5 {digest.hexdigest()}, not the official {expected}; "
            "fetch it again, or pass --no-verify to use it as it is"
        )


def download(source: Source, directory: Path) -> None:
    """Fetch the set's missing files into its folder, check them and unpack archives."""
    if not source.remotes:
        raise RobfcpError(
            f"{source.name}: cannot be downloaded from here; get it, or ask for access, at "
            f"{source.home}"
        )
    folder = directory / source.folder
    if source.present and (folder / source.present).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for remote in source.remotes:
        target = folder / remote.file_name
        if not target.exists():
            _fetch(remote, target, source)
        if remote.unpack:
            _unpack(target, folder)


def _fetch(remote: Remote, target: Path, source: Source) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream, urlopen(remote.url, timeout=60) as reply:
            shutil.copyfileobj(reply, stream, 1 << 20)
        if remote.md5 is not None:
            check_md5(temporary, remote.md5, source)
        os.replace(temporary, target)
    except (URLError, TimeoutError, ConnectionError) as error:
        raise RobfcpError(
            f"{source.name}: {remote.url} cannot be fetched; check the network, or get the file "
            f"elsewhere and put it at {target}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unpack(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)  # zipfile itself refuses to leave the folder
        return
    with tarfile.open(archive) as content:
        if not hasattr(tarfile, "data_filter"):
            raise RobfcpError(f"{archive}: this Python cannot unpack safely; unpack it by hand")
        content.extractall(folder, filter="data")
