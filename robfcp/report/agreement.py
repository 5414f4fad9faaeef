"""Who may report: names with sample numbers and public keys, from JSON or TOML."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import date, datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.files import read_limited, what_is_wrong
from robfcp.report.checks import MAX_SAMPLES, check_client


def read_registry(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Each client's entries: `{"site-3": {"samples": 500, "key": "..."}}`; a number is samples."""
    path = Path(path)
    data, toml = read_limited(path), path.suffix == ".toml"
    try:
        table = (
            _toml().loads(data.decode()) if toml else json.loads(data, object_pairs_hook=_distinct)
        )
    except (ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, RobfcpError):
            raise
        kind = "TOML" if toml else "JSON"
        remedy = 'write ["site-1"] and key = "ed25519:..."' if toml else "write {site: samples}"
        raise RobfcpError(f"{path}: not {kind} ({what_is_wrong(error)}); {remedy}") from None
    if not isinstance(table, dict) or not table:
        raise RobfcpError(f"{path}: registers nobody; map site names to samples or keys")
    registry = {}
    for client, entry in table.items():
        check_client(client)
        entry = {"samples": entry} if not isinstance(entry, dict) else entry
        _check_entry(path, client, entry)
        registry[client] = entry
    return registry


def read_sizes(path: str | os.PathLike[str]) -> dict[str, int]:
    """How many samples each registered client has."""
    registry = read_registry(path)
    for client, entry in registry.items():
        if "samples" not in entry:
            raise RobfcpError(f"{path}: {client} has no number of samples; add samples = ...")
    return {client: entry["samples"] for client, entry in registry.items()}


def _check_entry(path: Path, client: str, entry: dict[str, Any]) -> None:
    unknown = set(entry) - {"samples", "key", "not-after"}
    if unknown:
        raise RobfcpError(
            f"{path}: {client}: {min(unknown)!r} is unknown; use samples, key and not-after"
        )
    expired(entry, date.max)
    samples = entry.get("samples", 1)
    if type(samples) is not int or not 0 < samples <= MAX_SAMPLES:
        raise RobfcpError(
            f"{path}: {client}: must map site names to whole numbers of samples, not {samples!r}"
        )
    if not isinstance(entry.get("key", ""), str):
        raise RobfcpError(f"{path}: {client}: key is not text; paste the line robfcp keygen wrote")


def expired(entry: dict[str, Any], today: date | None = None) -> bool:
    """Whether the day after which an entry's key counts no more has passed."""
    last = entry.get("not-after")
    if last is None:
        return False
    if isinstance(last, str):
        try:
            last = date.fromisoformat(last)
        except ValueError:
            last = None
    if isinstance(last, datetime) or not isinstance(last, date):
        raise RobfcpError('not-after: is not a day; write not-after = "2027-12-31"')
    now = datetime.now(timezone.utc).date() if today is None else today
    return now > last


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused where a name comes twice: the last would win unseen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def read_toml(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    """The table in a TOML file, or one line that says why there is none."""
    try:
        table: dict[str, Any] = _toml().loads(data.decode())
    except (ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, RobfcpError):
            raise
        raise RobfcpError(
            f"{os.fspath(path)}: not TOML ({what_is_wrong(error)}); write name = value"
        ) from None
    return table


def _toml() -> Any:
    for name in ("tomllib", "tomli"):  # tomli on Python 3.10
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise RobfcpError("toml: tomli is not installed; pip install 'robfcp[signatures]'")
