"""One step of a monitor: a state and fresh scores in, the next state out."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.monitoring import betting, exchange
from robfcp.calibration.monitoring.state import Exchange, Point, State, logs_of, thinned
from robfcp.calibration.sealed import digest_of
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.reports import Report

LEAST_ROWS = 30  # fewer may come twice by chance, and must be named
_INSIDE = 100  # points of the curve within one batch
Vector = NDArray[np.float64]


def bag_of(report: Report, calibration: Calibration) -> Exchange:
    """The site's own report as the bag fresh scores are compared with."""
    report.disclosure.check_exact(report.client)
    if report.grid.digest != calibration.summary.grid:
        raise RobfcpError(f"{report.client}: grid: not the calibration's; pass its own report")
    for name, expected in (("score", calibration.score), ("model", calibration.summary.model)):
        if getattr(report, name) != expected:
            raise RobfcpError(
                f"{report.client}: {name}: the report has {getattr(report, name)}, the calibration "
                f"{expected}; pass the report of that round"
            )
    (bins,) = np.nonzero(report.counts)
    return Exchange(
        report=digest_of(report.to_json()),
        reported=report.n_samples,
        bins=bins.tolist(),
        counts=report.counts[bins].tolist(),
        started=[],
        cells=[0] * exchange.N_CELLS,
    )


def advanced(state: State, scores: Vector, limits: Vector, grid: Grid | None) -> State:
    """The state after these samples, with every alarm that rang at any of them.

    `limits` is one threshold for all samples, or one for each.
    """
    missed = scores > limits
    n = state.n + np.arange(1, len(scores) + 1)
    factors = betting.log_factors(state.floor, missed)
    started = betting.log_started(logs_of(state.started, betting.N_BETS), state.n, factors)
    coverage = betting.log_wealth(started, state.n)
    changes = betting.log_changes(logs_of(state.changes, betting.N_BETS), factors)
    change = betting.log_mean(changes)
    bag, wealth = (None, None) if grid is None else _exchanged(state, scores, grid)
    limit = -np.log(state.delta)
    alarms = dict(state.alarms)
    _ring(alarms, "coverage", coverage >= limit, n)
    if state.run_length is not None:
        _ring(alarms, "change", change >= np.log(state.run_length), n)
    if wealth is not None:
        _ring(alarms, "exchangeability", wealth >= limit, n)
    shown = np.linspace(0, len(n) - 1, min(len(n), _INSIDE)).round().astype(np.intp)
    rung = [step - state.n - 1 for step in alarms.values() if step > state.n]
    shown = np.unique(np.append(shown, np.array(rung, dtype=np.intp)))
    points = [Point(int(n[t]), float(coverage[t]), float(change[t]), _at(wealth, t)) for t in shown]
    return msgspec.structs.replace(
        state,
        n=int(n[-1]),
        misses=state.misses + int(missed.sum()),
        started=started[-1].tolist(),
        changes=changes[-1].tolist(),
        alarms=alarms,
        curve=thinned([*state.curve, *points], set(alarms.values())),
        exchange=bag,
    )


def batch_key(
    predictions: NDArray[np.generic],
    targets: NDArray[np.generic],
    ids: ArrayLike | None,
    batch: str | None,
) -> str | None:
    """The digest of the batch's name or contents; None where its rows are named instead."""
    if batch is not None:
        return digest_of(b"name\n" + batch.encode())[:32]
    if ids is not None:
        return None
    if targets.ndim != 1 or len(targets) < LEAST_ROWS:
        raise RobfcpError(
            f"samples: fewer than {LEAST_ROWS} may look like others by chance; name them (ids) or "
            "their batch, so that nothing is counted twice"
        )
    content = hashlib.sha256(b"contents\n")
    for part in (predictions, targets):
        content.update(f"{part.dtype.str}{part.shape}".encode())
        content.update(np.ascontiguousarray(part).tobytes())
    return content.hexdigest()[:32]


def new_rows(ids: ArrayLike, n: int, known: list[str]) -> tuple[NDArray[np.intp], list[str]]:
    """Which rows were not counted before, nor earlier in this batch, and their digests."""
    names = array("ids", ids)
    if names.shape != (n,):
        raise RobfcpError(f"ids: need one name a sample ({n})")
    seen, rows, places = set(known), [], []
    for place, name in enumerate(names.tolist()):
        key = digest_of(f"row\n{name}".encode())[:16]
        if key not in seen:
            seen.add(key)
            rows.append(key)
            places.append(place)
    return np.array(places, dtype=np.intp), rows


def _exchanged(state: State, scores: Vector, grid: Grid) -> tuple[Exchange, Vector]:
    """The bag after these scores, and the wealth after each."""
    old = state.exchange
    assert old is not None
    bag = np.zeros(grid.n_bins, dtype=np.int64)
    bag[old.bins] = old.counts
    cells = np.array(old.cells, dtype=np.int64)
    p = exchange.p_values(
        bag, grid.index(scores), exchange.uniforms(state.seed, state.n, len(scores))
    )
    before = logs_of(old.started, exchange.N_BETS)
    started = betting.log_started(before, state.n, exchange.log_bets(p, cells))
    (bins,) = np.nonzero(bag)
    after = msgspec.structs.replace(
        old,
        bins=bins.tolist(),
        counts=bag[bins].tolist(),
        started=started[-1].tolist(),
        cells=cells.tolist(),
    )
    return after, betting.log_wealth(started, state.n)


def _ring(alarms: dict[str, int], name: str, over: NDArray[np.bool_], n: NDArray[np.int64]) -> None:
    """Note the first sample at which an alarm rang, unless it has before."""
    if name not in alarms and over.any():
        alarms[name] = int(n[np.argmax(over)])


def _at(values: Vector | None, place: np.intp) -> float | None:
    return None if values is None else float(values[place])
