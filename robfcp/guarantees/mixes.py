"""Thresholds for a stated label mix, under label shift: rule T, and for every mix in a list.

theta_pi(t) = sum_c pi_c F_c(t) is the coverage of a population with label mix pi. A mix is
accepted at an edge when the worst miss share that m' liars among those kept leave possible is
small enough for its effective size; no factor for the number of classes enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import sum_of_largest
from robfcp.errors import RobfcpError
from robfcp.guarantees.budgets import check_budget, check_delta, check_sigma
from robfcp.guarantees.envelope import envelope
from robfcp.guarantees.label_shift import PRUNING_SHARE, ClassCounts, Walk, walk_down

Vector = NDArray[np.float64]
Mix = Mapping[str, float] | str | Sequence[float] | NDArray[np.float64]


def read_mixes(mix: Mix | Sequence[Mix], names: tuple[str, ...]) -> Vector:
    """(R, C) label mixes: by name, "uniform", "any" (every class by itself), or a list of them."""
    if isinstance(mix, str):
        if mix == "uniform":
            return np.full((1, len(names)), 1 / len(names))
        if mix == "any":
            return np.eye(len(names))
        raise RobfcpError(f"mix: {mix!r} is unknown; use 'uniform', 'any' or {{class: share}}")
    if isinstance(mix, Mapping):
        return _of_mapping(mix, names)[None, :]
    if isinstance(mix, Sequence) and any(isinstance(one, (str, Mapping)) for one in mix):
        return np.concatenate([read_mixes(one, names) for one in mix])  # type: ignore[arg-type]
    return _checked(np.atleast_2d(_shares(mix)), len(names))


def _of_mapping(mix: Mapping[str, float], names: tuple[str, ...]) -> Vector:
    unknown = sorted(set(map(str, mix)) - set(names))
    if unknown:
        raise RobfcpError(f"mix: {unknown[0]!r:.60} is none of the classes; check the names")
    shares = dict(zip(map(str, mix), _shares(list(mix.values())), strict=True))
    return _checked(np.array([[shares.get(name, 0.0) for name in names]]), len(names))[0]


def _shares(values: object) -> Vector:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise RobfcpError("mix: shares are numbers, one a class; give {class: share}") from None


def _checked(mixes: Vector, n_classes: int) -> Vector:
    if mixes.ndim != 2 or mixes.shape[1] != n_classes or not mixes.size:
        raise RobfcpError(f"mix: need a share for each of the {n_classes} classes")
    if not (mixes >= 0).all() or not np.allclose(mixes.sum(axis=1), 1, atol=1e-6):
        raise RobfcpError("mix: shares are not negative and add up to 1; check them")
    return mixes / mixes.sum(axis=1, keepdims=True)


def small_enough(share: Vector, effective: Vector, alpha: float, delta: float) -> NDArray[np.bool_]:
    """Whether a miss share u <= alpha has n_eff (alpha - u + u ln(u/alpha)) >= ln(1/delta).

    So small a share has a chance of at most delta where the true one is above alpha.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = alpha - share + np.where(share > 0, share * np.log(share / alpha), 0.0)
    return np.asarray((share <= alpha) & (effective * gain >= np.log(1 / delta)))


def accepted(
    below: NDArray[np.int64],
    sizes: NDArray[np.int64],
    left: int,
    mixes: Vector,
    alpha: float,
    delta: float,
) -> NDArray[np.bool_]:
    """(R,) whether each mix is accepted at one edge, from the (K, C) counts of those kept.

    It is where U1 or U2 is small enough for n_eff = min_c Nmin_c / pi_c: U1 pools classes inside a
    client before the m' worst are taken, U2 takes each class's own envelope.
    """
    miss = (sizes - below).astype(np.float64)
    total = sizes.sum(axis=0).astype(np.float64)
    least = total - sum_of_largest(np.ascontiguousarray(sizes.T), left)
    used = mixes > 0
    possible = ~(used & (least <= 0)[None, :]).any(axis=1)
    share = miss.sum(axis=0) / np.maximum(total, 1)
    excess = -(miss - share * sizes)
    worst = np.maximum(excess / np.maximum(total, 1), excess / np.maximum(least, 1))
    together = mixes @ share + sum_of_largest(np.maximum(worst @ mixes.T, 0).T.copy(), left)
    with np.errstate(divide="ignore"):
        effective = np.where(used, least[None, :] / np.where(used, mixes, 1.0), np.inf).min(axis=1)
    found = possible & small_enough(together, effective, alpha, delta)
    hoped = possible & small_enough(mixes @ share, effective, alpha, delta)  # if nobody lied
    if (found == hoped).all():
        return found
    apart = mixes @ _class_envelopes(sizes - below, sizes, left, least)
    return found | (hoped & small_enough(apart, effective, alpha, delta))


def _class_envelopes(
    miss: NDArray[np.int64], sizes: NDArray[np.int64], left: int, least: Vector
) -> Vector:
    """(C,) the largest miss share of each class over removals of at most m' clients."""
    found = np.ones(sizes.shape[1])
    for c in np.flatnonzero(least > 0):
        held = sizes[:, c] > 0
        found[c] = float(envelope(miss[held, c], sizes[held, c], min(left, held.sum() - 1))[1])
    return found


def mix_threshold(
    counts: ClassCounts,
    mixes: Vector,
    alpha: float,
    m: int,
    delta: float,
    sigma: float = 0.0,
) -> Walk:
    """The first edge, from the top down, above which every mix is accepted; rule T.

    With probability >= 1 - delta theta_pi >= 1 - alpha for all mixes at once (and all between
    them), whatever m clients report: sigma is paid from alpha.
    """
    m = check_budget(m, len(counts.ids))
    beta, rest = PRUNING_SHARE * check_delta(delta), (1 - PRUNING_SHARE) * delta
    room = alpha - check_sigma(sigma)
    if room <= 0:
        return Walk(None, (), clients=counts.ids)
    too_few: list[tuple[str, ...]] = []

    def accepts(place: int, kept: NDArray[np.bool_], left: int) -> bool:
        if not too_few:
            too_few.append(_too_few(counts, kept, left, mixes))
        sizes, below = counts.sizes[kept], counts.below[place][kept]
        return bool(accepted(below, sizes, left, mixes, room, rest).all())

    walk = walk_down(counts, m, beta, sigma, accepts)
    if walk.index is None and too_few:
        return replace(walk, too_few=too_few[0])
    return walk


def _too_few(
    counts: ClassCounts, kept: NDArray[np.bool_], left: int, mixes: Vector
) -> tuple[str, ...]:
    """The classes of the mixes that at most m' of those kept hold."""
    holders = (counts.sizes[kept] > 0).sum(axis=0)
    wanted = (mixes > 0).any(axis=0)
    return tuple(counts.names[c] for c in np.flatnonzero(wanted & (holders <= left)))
