"""A site's own file: what it allows, and where its code is, out of any server's reach."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from robfcp._util.decoding import what_is_wrong
from robfcp._util.files import read_limited
from robfcp.engines.site import SITE_WORDS
from robfcp.errors import RobfcpError

CODE_WORDS = ("outputs", "fresh")  # the site's own functions, as module:function


def read_site(path: Path) -> dict[str, Any]:
    """What the file says; empty where there is none, refused where it is not clear."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_limited(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RobfcpError(f"{path}: not a JSON object ({what_is_wrong(error)}); fix it") from None
    for word in found:
        if word not in (*SITE_WORDS, *CODE_WORDS):
            known = ", ".join((*SITE_WORDS, *CODE_WORDS))
            raise RobfcpError(f"{path}: {word!r} is unknown; use {known}")
    return found


def own_code(place: str | None, folder: Path) -> Callable[..., Any] | None:
    """The function that a site names, of an installed module or one in the folder."""
    if place is None:
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
