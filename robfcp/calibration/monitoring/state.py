"""All that a monitor remembers: one small JSON file, written whole, that counts nothing twice."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from robfcp._util.files import read_limited, reason_of, write_atomically
from robfcp._util.locks import lock
from robfcp.calibration.monitoring import betting, exchange
from robfcp.calibration.sealed import decode_body, seal, unseal
from robfcp.errors import RobfcpError
from robfcp.reports import MAX_SAMPLES, check_client

KIND = "monitor"
SCHEMA = 1
MAX_POINTS = 400
MAX_STATE_BYTES = 2**28
ALARMS = frozenset({"coverage", "change", "exchangeability"})
_REMEDY = "pass the state file that robfcp monitor wrote, or start a new one"
_HEX = frozenset("0123456789abcdef")


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One point of the wealth curve: after n samples, natural logarithms."""

    n: int
    coverage: float
    change: float
    exchangeability: float | None = None


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bag of scores (only bins in use), ln A of each bet and the cells of p-values."""

    report: str
    reported: int
    bins: list[int]
    counts: list[int]
    started: list[float]
    cells: list[int]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is watched, what was seen, when each alarm rang first, and what was counted already."""

    calibration: str
    client: str | None
    level: int
    floor: float
    source: str
    delta: float
    run_length: float | None
    seed: int
    n: int = 0
    misses: int = 0
    started: list[float] = []
    changes: list[float] = []
    alarms: dict[str, int] = {}
    curve: list[Point] = []
    batches: list[str] = []
    rows: list[str] = []
    exchange: Exchange | None = None
    threshold: float | None = None  # the site's own, where that is watched


def encode_state(state: State) -> bytes:
    """The state as sealed JSON."""
    return seal(KIND, SCHEMA, state)


def decode_state(data: bytes | str, source: str = "monitor") -> State:
    """The state in a file, or one line that says what is wrong with it."""
    _, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
    state = decode_body(raw, State, KIND, source, _REMEDY)
    problem = _problem(state)
    if problem:
        raise RobfcpError(f"{source}: {problem}; {_REMEDY}")
    return state


def load_state(path: str | os.PathLike[str]) -> State:
    """The state in a file."""
    return decode_state(read_limited(path, MAX_STATE_BYTES), os.fspath(path))


def save_state(state: State, path: str | os.PathLike[str]) -> None:
    """Write the state whole or not at all, and never more than can be read back."""
    data = encode_state(state)
    if len(data) > MAX_STATE_BYTES:
        raise RobfcpError(f"{path}: remembers too many samples; name batches or start a new file")
    write_atomically(path, data)


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Nobody else feeds this state meanwhile; a killed process holds nothing."""
    place = Path(path)
    beside = place.with_name(place.name + ".lock")
    try:
        stream = beside.open("ab")
    except OSError as error:
        raise RobfcpError(
            f"{path}: cannot be written ({reason_of(error)}); choose another place"
        ) from None
    with stream:
        with suppress(OSError):  # a file system without locks
            lock(stream.fileno())
        yield


def thinned(curve: list[Point], kept: Collection[int] = ()) -> list[Point]:
    """About MAX_POINTS points at most: every second is dropped, never the last nor the samples
    kept, at which an alarm rang."""
    while len(curve) > MAX_POINTS + len(kept):
        odd = len(curve) % 2 ^ 1
        curve = [p for k, p in enumerate(curve) if k % 2 == odd or p.n in kept]
    return curve


def _problem(state: State) -> str:
    """What is wrong with a state beyond its types; empty where nothing is."""
    numbers = (state.floor, state.delta)
    if not all(0 < number < 1 for number in numbers):
        return "floor or delta is not between 0 and 1"
    if state.run_length is not None and not 1 <= state.run_length < math.inf:
        return "run_length is no number from 1"
    if not (0 <= state.misses <= state.n <= MAX_SAMPLES and state.level >= 0):
        return "misses, n or level do not fit together"
    if state.threshold is not None and not math.isfinite(state.threshold):
        return "threshold is no finite number"
    if not 0 <= state.seed < 2**62:
        return "seed is no whole number"
    if {len(state.changes), len(state.started)} != {betting.N_BETS if state.n else 0}:
        return "started or changes do not fit the samples"
    if not ALARMS.issuperset(state.alarms):
        return "an alarm is unknown"
    if not all(0 < step <= state.n for step in state.alarms.values()):
        return "an alarm rang at no sample"
    steps = [point.n for point in state.curve]
    if steps != sorted(set(steps)) or [0, *steps][-1] != state.n or (steps and steps[0] < 1):
        return "the curve does not rise to n"
    keys = ((state.batches, 32), (state.rows, 16))
    if any(set(map(len, found)) - {n} or set("".join(found)) - _HEX for found, n in keys):
        return "a batch or row is not named by its digest"
    if state.client is not None:
        try:
            check_client(state.client)
        except RobfcpError:
            return "client is no name"
    return _exchange_problem(state.exchange, state.n)


def _exchange_problem(bag: Exchange | None, n: int) -> str:
    if bag is None:
        return ""
    rising = bag.bins == sorted(set(bag.bins)) and (not bag.bins or bag.bins[0] >= 0)
    if not rising or len(bag.bins) != len(bag.counts) or (bag.bins and bag.bins[-1] > 2**24):
        return "exchange: bins do not rise, or have no counts"
    if min(bag.counts, default=0) < 1 or sum(bag.counts) != bag.reported + n or bag.reported < 1:
        return "exchange: counts do not sum to the report and the samples"
    wanted = exchange.N_BETS if n else 0
    if len(bag.started) != wanted or len(bag.cells) != exchange.N_CELLS:
        return "exchange: started or cells have the wrong length"
    if min(bag.cells) < 0 or sum(bag.cells) != n:
        return "exchange: cells do not sum to the samples"
    return ""


def logs_of(values: list[float], n_bets: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(J,) stored logarithms; before the first sample all are those of 0, minus infinity."""
    return np.array(values or [-np.inf] * n_bets, dtype=np.float64)
