"""Watching one site: fresh labelled samples in, alarms that may be looked at at any time out."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array, share, whole
from robfcp.calibration.at_site import STRANGER, Localised
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.checking import class_limits, firm_promise, level_of
from robfcp.calibration.local_threshold import LocalThreshold
from robfcp.calibration.sealed import decode_body, digest_of, seal, unseal
from robfcp.errors import RobfcpError
from robfcp.files import lock, read_limited, reason_of, write_atomically
from robfcp.grid import Grid
from robfcp.report import MAX_SAMPLES, EReport, Report, check_client
from robfcp.scores import Score

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
    if {len(state.changes), len(state.started)} != {N_BETS if state.n else 0}:
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
    wanted = N_EXCHANGE_BETS if n else 0
    if len(bag.started) != wanted or len(bag.cells) != N_CELLS:
        return "exchange: started or cells have the wrong length"
    if min(bag.cells) < 0 or sum(bag.cells) != n:
        return "exchange: cells do not sum to the samples"
    return ""


def logs_of(values: list[float], n_bets: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(J,) stored logarithms; before the first sample all are those of 0, minus infinity."""
    return np.array(values or [-np.inf] * n_bets, dtype=np.float64)


@dataclass(frozen=True)
class Reading:
    """Where a monitor stands.

    Attributes
    ----------
    new
        How many samples the last call counted; 0 where it had counted them before.
    n
        Samples counted altogether.
    misses
        How many of them the sets left out.
    floor
        The coverage that is promised.
    delta
        The chance of a false alarm, ever, however often one looks.
    log_coverage
        ln of the wealth against "coverage is at least the floor".
    log_change
        ln R_t of Shiryaev and Roberts, for a change at an unknown time.
    log_exchangeability
        ln of the wealth against "scores are exchangeable with the own report"; None without one.
    alarms
        Each alarm that has rung, and after which sample it first did.
    """

    new: int
    n: int
    misses: int
    floor: float
    delta: float
    log_coverage: float
    log_change: float
    log_exchangeability: float | None
    alarms: Mapping[str, int]

    @property
    def alarm(self) -> bool:
        """Whether any alarm has rung."""
        return bool(self.alarms)

    def __str__(self) -> str:
        return self.line

    @property
    def line(self) -> str:
        """Where it stands and what to do, in one line."""
        if not self.n:
            return f"no samples yet; watching for coverage below {self.floor:.4f}"
        seen = f"{self.n} samples, {1 - self.misses / self.n:.4f} covered, floor {self.floor:.4f}"
        if not self.alarms:
            evidence = f"{_power(self.log_coverage)}, it rings at {1 / self.delta:g}"
            return f"no alarm: {seen}; evidence against the floor {evidence}"
        rung = ", ".join(f"{name} at sample {step}" for name, step in self.alarms.items())
        return f"alarm ({rung}): {seen}; recalibrate now, with --previous to keep the record"


def reading_of(state: State, new: int = 0) -> Reading:
    """Where a monitor with this state stands."""
    last = state.curve[-1] if state.curve else Point(0, 0.0, -math.inf, None)
    start = None if state.exchange is None else 0.0
    return Reading(
        new=new,
        n=state.n,
        misses=state.misses,
        floor=state.floor,
        delta=state.delta,
        log_coverage=last.coverage,
        log_change=last.change,
        log_exchangeability=last.exchangeability if state.n else start,
        alarms=dict(state.alarms),
    )


def _power(log: float) -> str:
    """e^log for people, also where no float holds it."""
    return f"{math.exp(log):.3g}" if abs(log) < 50 else f"10^{log / math.log(10):.0f}"


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
        cells=[0] * N_CELLS,
    )


def advanced(state: State, scores: Vector, limits: Vector, grid: Grid | None) -> State:
    """The state after these samples, with every alarm that rang at any of them.

    `limits` is one threshold for all samples, or one for each.
    """
    missed = scores > limits
    n = state.n + np.arange(1, len(scores) + 1)
    factors = log_factors(state.floor, missed)
    started = log_started(logs_of(state.started, N_BETS), state.n, factors)
    coverage = log_wealth(started, state.n)
    changes = log_changes(logs_of(state.changes, N_BETS), factors)
    change = log_mean(changes)
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
    p = p_values(bag, grid.index(scores), uniforms(state.seed, state.n, len(scores)))
    before = logs_of(old.started, N_EXCHANGE_BETS)
    started = log_started(before, state.n, log_bets(p, cells))
    (bins,) = np.nonzero(bag)
    after = msgspec.structs.replace(
        old,
        bins=bins.tolist(),
        counts=bag[bins].tolist(),
        started=started[-1].tolist(),
        cells=cells.tolist(),
    )
    return after, log_wealth(started, state.n)


def _ring(alarms: dict[str, int], name: str, over: NDArray[np.bool_], n: NDArray[np.int64]) -> None:
    """Note the first sample at which an alarm rang, unless it has before."""
    if name not in alarms and over.any():
        alarms[name] = int(n[np.argmax(over)])


def _at(values: Vector | None, place: np.intp) -> float | None:
    return None if values is None else float(values[place])


DELTA = 0.05


class Monitor:
    """An alarm for one site that may be looked at after every sample.

    Wealth against "coverage here is at least the floor" is at most 1 in the mean while that is
    true, at any stopping time, so it ever reaches 1/delta with a chance of at most delta. With the
    site's own report there is a second wealth, against "fresh scores are exchangeable with it",
    which can see a drift before coverage falls.

    Parameters
    ----------
    calibration
        What is watched; or what a letter gave at the site, whose own threshold is watched then.
    report
        The site's own report of the round, without noise; needed for the second alarm only.
    client
        The site's name, for the reports it sends; that of the report if None.
    level
        Which confidence level of the calibration, counted from 0.
    floor
        The coverage this very calibration must hold; its certificate's lower end if None, at a
        site's own threshold what the site's own samples prove.
    delta
        The chance of a false alarm, ever, of each of the two; 0.05 if None.
    run_length
        Also ring when R_t of Shiryaev and Roberts reaches this number: a false alarm then comes
        after at least so many samples in the mean. No such alarm if None.
    seed
        Of the random numbers that break ties among scores; fresh ones if None.
    path
        The state file. One that exists is gone on with, as it was begun; every update is written
        to it before `update` returns.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, defence="none", malicious=1)
    >>> monitor = robfcp.Monitor(calibration, floor=0.9)
    >>> probabilities, labels = np.tile([0.9, 0.1], (100, 1)), np.repeat([0, 1], [95, 5])
    >>> monitor.update(probabilities, labels).alarm
    False
    >>> monitor.update(probabilities, 1 - labels).alarms
    {'coverage': 103}
    >>> monitor.update(probabilities, labels).new
    0
    """

    def __init__(
        self,
        calibration: Calibration | Localised,
        *,
        report: Report | None = None,
        client: str | None = None,
        level: int = 0,
        floor: float | None = None,
        delta: float | None = None,
        run_length: float | None = None,
        seed: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        chosen = share("delta", DELTA if delta is None else delta, "give 0.05, say")
        if run_length is not None and not 1 <= run_length < math.inf:
            raise RobfcpError(f"run_length: {run_length!r} is no number from 1; give 10000, say")
        own: LocalThreshold | None = None
        if isinstance(calibration, Localised):
            if client is None and report is None and calibration.client != STRANGER:
                client = calibration.client
            level_of(calibration.calibration, level)
            own, calibration = calibration.levels[level], calibration.calibration
        promise = firm_promise(calibration, level, floor, own)
        client = report.client if client is None and report is not None else client
        if client is not None:
            check_client(client)
        self._calibration, self._path = calibration, path
        self._limits = (
            class_limits(calibration, level) if own is None else np.array([own.threshold])
        )
        self._grid = None if report is None else report.grid
        self._state = State(
            calibration=calibration.identity,
            client=client,
            level=level,
            floor=promise.floor,
            source=promise.source,
            delta=chosen,
            run_length=None if run_length is None else float(run_length),
            seed=secrets.randbits(61) if seed is None else whole("seed", seed, "give one from 0"),
            exchange=None if report is None else bag_of(report, calibration),
            threshold=None if own is None else own.threshold,
        )
        if path is not None and Path(path).exists():
            stated = {"client": client, "delta": delta, "run_length": run_length, "floor": floor}
            self._state = self._resumed(load_state(path), path, stated)

    def update(
        self,
        predictions: ArrayLike,
        targets: ArrayLike,
        *,
        ids: ArrayLike | None = None,
        batch: str | None = None,
        score: Score | None = None,
    ) -> Reading:
        """Count fresh samples in their order, once, and say where the monitor stands.

        Parameters
        ----------
        predictions
            (n, C) class probabilities, or what a regression score takes; one sample or many.
        targets
            (n,) true labels or values.
        ids
            (n,) names of the samples; those counted before are passed over.
        batch
            A name of the whole batch, counted once. Without ids and name its contents name it,
            which needs 30 samples: a few may look alike by chance.
        score
            The score, where the reports did not name it.

        Returns
        -------
        Reading
            With `new` = 0 where all of it was counted before.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defence="none", malicious=1)
        >>> monitor = robfcp.Monitor(calibration)
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n
        1
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n
        1
        """
        rule = self._calibration.score_of(score)
        predictions, targets = array("predictions", predictions), array("targets", targets)
        key = batch_key(predictions, targets, ids, batch)
        if self._path is None:
            return self._counted(rule, predictions, targets, ids, key)
        with locked(self._path):
            if Path(self._path).exists():
                self._state = self._resumed(load_state(self._path), self._path, {})
            reading = self._counted(rule, predictions, targets, ids, key)
            save_state(self._state, self._path)
        return reading

    @property
    def reading(self) -> Reading:
        """Where it stands."""
        return reading_of(self._state)

    @property
    def source(self) -> str:
        """Where the floor comes from."""
        return self._state.source

    @property
    def curve(self) -> tuple[Point, ...]:
        """The wealths over time, natural logarithms, at up to 400 of the samples."""
        return tuple(self._state.curve)

    def to_json(self) -> bytes:
        """The state as one JSON object.

        Returns
        -------
        bytes
            What the state file holds.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defence="none", malicious=1)
        >>> robfcp.Monitor(calibration, seed=0).to_json()[:17]
        b'{"kind":"monitor"'
        """
        return encode_state(self._state)

    def e_report(self, round: str | None = None, step: int = 0) -> EReport:
        """What this site tells the server: its wealth, and of which calibration.

        Parameters
        ----------
        round
            The name of the round; needed to sign it.
        step
            The number of the reporting date all sites agreed on.

        Returns
        -------
        EReport
            To be sent as it is, or signed.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defence="none", malicious=1)
        >>> robfcp.Monitor(calibration, client="site-3").e_report("spring").log_wealth
        0.0
        """
        if self._state.client is None:
            raise RobfcpError("client: the monitor has no name; pass client= when it is made")
        found = self.reading
        return EReport(
            client=self._state.client,
            calibration=self._state.calibration,
            floor=found.floor,
            n_samples=found.n,
            log_wealth=found.log_coverage,
            round=round,
            step=step,
            log_change=found.log_change if found.n else None,
            log_exchangeability=found.log_exchangeability,
        )

    def _resumed(
        self, found: State, path: str | os.PathLike[str], stated: Mapping[str, object]
    ) -> State:
        """The state in the file, refused where it watches something else than was stated."""
        mine = self._state
        if found.calibration != mine.calibration or found.level != mine.level:
            raise RobfcpError(f"{path}: watches another calibration; start a new state file")
        if found.threshold != mine.threshold:
            raise RobfcpError(
                f"{path}: watches another threshold than the site's own; pass the samples it was "
                "made from, or start a new state file"
            )
        for name, value in stated.items():
            if value is not None and getattr(found, name) != value:
                raise RobfcpError(
                    f"{path}: was begun with {name} {getattr(found, name)}, not {value}; "
                    "keep that or start a new state file"
                )
        if (found.exchange is None) != (mine.exchange is None) or (
            found.exchange and mine.exchange and found.exchange.report != mine.exchange.report
        ):
            raise RobfcpError(f"{path}: was begun with another report; pass the same --own")
        if found.exchange and self._grid and found.exchange.bins[-1] >= self._grid.n_bins:
            raise RobfcpError(f"{path}: holds scores outside the grid; start a new state file")
        return found

    def _counted(
        self,
        rule: Score,
        predictions: NDArray[np.generic],
        targets: NDArray[np.generic],
        ids: ArrayLike | None,
        key: str | None,
    ) -> Reading:
        """Add what is new to the state, in one step."""
        state = self._state
        if key is not None and key in state.batches:
            return reading_of(self._state)
        rng = np.random.default_rng([state.seed, state.n])
        scores = np.asarray(rule(predictions, targets, rng), dtype=np.float64)
        limits = self._limits
        limits = limits[targets.astype(np.intp), 0] if limits.ndim == 2 else limits
        rows: list[str] = []
        if ids is not None:
            fresh, rows = new_rows(ids, len(scores), state.rows)
            scores = scores[fresh]
            limits = limits[fresh] if len(limits) > 1 else limits
        if not len(scores):
            return reading_of(self._state)
        self._state = msgspec.structs.replace(
            advanced(state, scores, limits, self._grid),
            batches=state.batches if key is None else [*state.batches, key],
            rows=state.rows + rows,
        )
        return reading_of(self._state, len(scores))


SPREAD = 0.5 ** np.arange(1, 8)  # q = a + (1 - a) / 2, / 4, ..., / 128
N_BETS = len(SPREAD)


def log_factors(floor: float, missed: NDArray[np.bool_]) -> Vector:
    """(T, J) ln(q/a) for a miss and ln((1-q)/(1-a)) for a hit, a = 1 - floor."""
    a = 1 - floor
    q = a + floor * SPREAD
    miss, hit = np.log(q / a), np.log1p(-SPREAD)  # (1 - q) / (1 - a) = 1 - SPREAD
    return np.where(missed[:, None], miss, hit)


def log_started(before: Vector, n: int, factors: Vector) -> Vector:
    """(T, J) ln A_t of each bet after n samples, A_t = (A_{t-1} + 1 / (t (t + 1))) x factor_t."""
    step = n + np.arange(1, len(factors) + 1)
    return _accumulated(before, factors, -np.log(step) - np.log1p(step))


def log_changes(before: Vector, factors: Vector) -> Vector:
    """(T, J) ln R_t of each bet, R_t = (1 + R_{t-1}) x factor_t."""
    return _accumulated(before, factors, np.zeros(len(factors)))


def log_wealth(started: Vector, n: int) -> Vector:
    """(T,) ln W_t, W_t = the mean of the A_t + 1 / (t + 1), after n samples."""
    step = n + np.arange(1, len(started) + 1)
    return np.asarray(np.logaddexp(log_mean(started), -np.log1p(step)))


def log_mean(logs: Vector) -> Vector:
    """(T,) ln of the mean of the exponentials of each row."""
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(logs - safe[..., None]).mean(axis=-1)))


def _accumulated(before: Vector, factors: Vector, weights: Vector) -> Vector:
    """(T, J) ln X_t, X_t = (X_{t-1} + e^weight_t) x e^factor_t, from (J,) ln X_0 = `before`.

    With S_t the sum of the factors, X_t = e^{S_t} (X_0 + the sum over s <= t of e^{weight_s} /
    e^{S_{s-1}}).
    """
    sums = np.cumsum(factors, axis=0)
    earlier = np.concatenate([np.zeros((1, factors.shape[1])), sums[:-1]])
    inside = np.concatenate([before[None, :], weights[:, None] - earlier])
    return np.asarray(sums + np.logaddexp.accumulate(inside, axis=0)[1:])


Bins = NDArray[np.intp]

POWERS = np.array([0.7, 0.85])  # e p^(e-1): scores have risen; the same on 1 - p: fallen
N_CELLS = 10  # of the histogram that learns any other change
N_EXCHANGE_BETS = 2 * len(POWERS) + 1
_BLOCK = 256


def uniforms(seed: int, start: int, n: int) -> Vector:
    """(n,) draws number start, start + 1, ... of a stream: the same however it is cut up."""
    stream = np.random.Philox(key=seed)
    stream.advance(start // 4)  # four draws a step
    raw = np.asarray(stream.random_raw(start % 4 + n))[start % 4 :]
    return np.asarray(((raw >> np.uint64(12)) + 0.5) * 2.0**-52)


def p_values(bag: NDArray[np.int64], bins: Bins, u: Vector) -> Vector:
    """(T,) conformal p-values of the bins in their order; every one joins the (H,) bag."""
    p = np.empty(len(bins))
    for start in range(0, len(bins), _BLOCK):
        block = bins[start : start + _BLOCK]
        before = np.tri(len(block), k=-1, dtype=bool)  # who of the block came earlier
        above = np.cumsum(bag[::-1])[::-1] - bag
        larger = above[block] + (before & (block[None, :] > block[:, None])).sum(axis=1)
        same = bag[block] + (before & (block[None, :] == block[:, None])).sum(axis=1)
        total = int(bag.sum()) + np.arange(len(block)) + 1
        p[start : start + _BLOCK] = (larger + u[start : start + _BLOCK] * (same + 1)) / total
        np.add.at(bag, block, 1)
    return np.clip(p, 2.0**-60, 1 - 2.0**-53)


def log_bets(p: Vector, cells: NDArray[np.int64]) -> Vector:
    """(T, J) ln of each bet's factor at every step; the (B,) cells count the p-values seen.

    ln(e) + (e-1) ln p and the same on 1 - p; and ln(B (c + 1/2) / (t + B/2)), c of the t p-values
    so far being in this one's cell.
    """
    rising = np.log(POWERS) + np.multiply.outer(np.log(p), POWERS - 1)
    falling = np.log(POWERS) + np.multiply.outer(np.log1p(-p), POWERS - 1)
    cell = np.minimum((p * N_CELLS).astype(np.intp), N_CELLS - 1)
    own = np.zeros((len(p), N_CELLS), dtype=np.int64)
    own[np.arange(len(p)), cell] = 1
    seen = cells + np.cumsum(own, axis=0) - own
    count = seen[np.arange(len(p)), cell]
    learnt = np.log(N_CELLS * (count + 0.5) / (seen.sum(axis=1) + N_CELLS / 2))
    cells += own.sum(axis=0)
    return np.column_stack([rising, falling, learnt])
