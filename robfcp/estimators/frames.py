"""What `set_output` asks for: results as frames with names, in place of bare arrays."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from numpy.typing import NDArray
from sklearn import get_config

from robfcp.errors import RobfcpError

KINDS = ("default", "pandas", "polars")


def check_kind(kind: str | None) -> str | None:
    """A kind of output there is."""
    if kind is not None and kind not in KINDS:
        raise RobfcpError(f"transform: {kind!r} is unknown; use {', '.join(KINDS)}")
    return kind


def as_frame(
    values: NDArray[Any], names: Sequence[str], levels: Sequence[float], kind: str | None, X: Any
) -> Any:
    """The (n, C) or (n, C, L) values as asked for; a column a name, or a name and a level."""
    chosen = kind or get_config()["transform_output"]
    if chosen == "default":
        return values
    columns = list(names)
    if values.ndim == 3:
        columns = [f"{name} at {level:g}" for name in names for level in levels]
        values = values.reshape(len(values), -1)
    try:
        library = import_module(chosen)
    except ImportError:
        raise RobfcpError(f"transform: {chosen} is not installed; install it") from None
    if chosen == "polars":
        return library.DataFrame(values, schema=columns)
    return library.DataFrame(values, columns=columns, index=getattr(X, "index", None))
