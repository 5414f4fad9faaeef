"""Sites' samples in the ways people have them: pairs, a mapping, or one table with a column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robfcp._util.numbers import array, refuse_missing
from robfcp.errors import RobfcpError
from robfcp.federation import numbered

Site = tuple[Any, Any]
Sites = Iterable[Site] | Mapping[str, Site]


def named_sites(X: Any, y: Any, groups: ArrayLike | None) -> dict[str, Site]:
    """Each site's samples and targets by the site's name."""
    if y is None:
        if groups is not None:
            raise RobfcpError("groups: go with X and y; pass conformalize(X, y, groups=...)")
        return _of_pairs(X)
    if groups is None:
        return {numbered(1, 1)[0]: (X, y)}
    site, target = array("groups", groups), array("y", y)
    if site.ndim != 1 or len(site) != len(target):
        raise RobfcpError(
            f"groups: shape {site.shape} does not fit {len(target)} samples; give each one's site"
        )
    refuse_missing("groups", site)
    names = site.astype(str)
    each = list(dict.fromkeys(names.tolist()))
    rows = {name: np.flatnonzero(names == name) for name in each}
    return {name: (take(X, rows[name]), target[rows[name]]) for name in each}


def _of_pairs(sites: Any) -> dict[str, Site]:
    if isinstance(sites, Mapping):
        named = {str(name): part for name, part in sites.items()}
    elif hasattr(sites, "shape") or not isinstance(sites, Iterable):
        raise RobfcpError("y: is missing; pass conformalize(X, y, groups=...) or pairs of both")
    else:
        parts = list(sites)
        named = dict(zip(numbered(len(parts), len(str(len(parts)))), parts, strict=True))
    if not named:
        raise RobfcpError("sites: there are none; pass [(X_1, y_1), ...]")
    for name, part in named.items():
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise RobfcpError(f"sites: {name} is no pair (X, y); pass its samples and targets")
    return named


def take(X: Any, rows: Any) -> Any:
    """These rows of an array, a sparse matrix, a frame or a list."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "shape") else array("X", X)[rows]
