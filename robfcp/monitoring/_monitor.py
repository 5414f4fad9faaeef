"""Watching one site: fresh labelled samples in, alarms that may be looked at at any time out."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from robfcp._files import file_lock, read_bounded, write_atomically
from robfcp._probabilities import encode_labels, reorder_columns
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._validation import (
    MAX_SAMPLES,
    are_client_names,
    as_array,
    check_client_name,
    check_fraction,
    check_integer,
    check_text,
)
from robfcp.binning import Binning
from robfcp.calibration._calibration import Calibration
from robfcp.errors import ReportError, RobfcpError
from robfcp.evaluation import get_level, per_client_delta, require_conditional_floor, thresholds_of
from robfcp.federation import Federation
from robfcp.local._threshold import (
    UNSEEN_CLIENT,
    LocalCalibration,
    LocalThreshold,
    local_coverage_bound,
)
from robfcp.reports import Report, _wire, signing
from robfcp.scores import Score

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_POINTS = 400
MIN_ROWS_FOR_DIGESTS = 30  # fewer may come twice by chance, and must be named
MAX_ROW_DIGESTS = 1024  # digests of rows that have no names: the smallest, a random sample of all

FloatArray = NDArray[np.float64]
OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAMPLES)]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class EValueReport(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="e-report"
):
    """How strong a site's alarms are and of which calibration; nothing of its data.

    `calibration` is the SHA-256 of the calibration watched, `step` the number of the reporting
    date. The logarithms are of e-values, against "coverage is at least the floor" and against
    "fresh scores are like those reported", where that is kept.
    """

    client: str
    calibration: Digest
    floor: OpenFraction
    n_samples: Count
    log_coverage: float
    round: str | None = None
    step: Count = 0
    log_drift: float | None = None
    schema: Literal[1] = 1

    KIND: ClassVar[str] = "e-report"

    def __post_init__(self) -> None:
        check_client_name(self.client)
        check_text(self.client, "round", self.round)
        most = -self.n_samples * math.log1p(-self.floor)  # every sample missed, all put on it
        for name, top in (("log_coverage", min(1e15, most * (1 + 1e-9))), ("log_drift", 1e15)):
            value = getattr(self, name)
            if value is not None and not -1e15 <= value <= top:
                words = f"{name} is {value!r}, which {self.n_samples} samples cannot earn"
                raise ReportError(self.client, name, words, "make it again with robfcp monitor")

    def to_json(self) -> bytes:
        """The e-report as one JSON object."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str, source: str = "e-report") -> EValueReport:
        """An e-report from JSON, or one line naming client, field and remedy."""
        return _wire.decode_message(EValueReport, data, source, "make it with robfcp monitor")

    def save(self, path: FilePath, key: Ed25519PrivateKey | None = None) -> None:
        """Write it, signed where a key is given, whole or not at all."""
        write_atomically(path, self.to_json() if key is None else signing.sign(self, key))

    @staticmethod
    def load(
        path: FilePath, keys: Mapping[str, str] | None = None, round: str | None = None
    ) -> EValueReport:
        """The e-report in a file; with keys only a signed one of this round."""
        data, source = read_bounded(path, 16_384), os.fspath(path)
        if keys is None:
            return EValueReport.from_json(signing.unwrap(data), source)
        return signing.verify(data, EValueReport, keys, str(round), source)


class MonitorPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The alarms' strengths after n samples, natural logarithms."""

    n: PositiveCount
    coverage: float
    change: float
    drift: float | None = None


class ExchangeabilityState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All scores so far, the own report's first (only bins in use); ln A of each bet against
    "fresh scores are like those reported", and the cells of p-values."""

    report: Digest
    reported: PositiveCount
    bins: list[Annotated[int, Meta(ge=0, le=2**24)]]
    counts: list[PositiveCount]
    started: list[float]
    cells: list[Count]

    @staticmethod
    def from_report(report: Report, calibration: Calibration) -> ExchangeabilityState:
        """The site's own report, with which fresh scores are compared."""
        summary, words = calibration.summary, ""
        if report.privacy is not None:
            words = "privacy: the report holds noise; keep an exact one at the site and pass that"
        elif Federation.from_reports([report]).is_coarsened.any():
            words = "drift cannot be told by cells of five; pass one made with --fine, kept there"
        made = {"grid": report.grid.digest, "score": report.score, "model": report.model}
        for name, asked in zip(made, (summary.grid, calibration.score, summary.model), strict=True):
            if not words and made[name] != asked:
                words = f"{name}: not the calibration's; make it with its --terms or --{name}"
        if words:
            raise RobfcpError(f"{report.client}: {words}")
        (bins,) = np.nonzero(report.counts)
        counts, digest = report.counts[bins].tolist(), sha256_of(report.to_json())
        return ExchangeabilityState(
            digest, report.n_samples, bins.tolist(), counts, [], [0] * N_CELLS
        )

    def extended(
        self, state: MonitorState, scores: FloatArray, grid: Binning
    ) -> tuple[ExchangeabilityState, FloatArray]:
        """The bag after these scores, and the alarm's strength after each."""
        bag = np.zeros(grid.n_bins, dtype=np.int64)
        bag[self.bins] = self.counts
        cells = np.array(self.cells, dtype=np.int64)
        p = conformal_p_values(
            bag, grid.bin_indices(scores), philox_uniforms(state.seed, state.n, len(scores))
        )
        before = _stored_logs(self.started, N_EXCHANGE_BETS)
        started = log_mixture_wealth(before, state.n, log_p_value_bets(p, cells))
        (bins,) = np.nonzero(bag)
        last, counts = started[-1].tolist(), bag[bins].tolist()
        after = ExchangeabilityState(
            self.report, self.reported, bins.tolist(), counts, last, cells.tolist()
        )
        return after, log_wealth(started, state.n)


class MonitorState(SealedFile, frozen=True):
    """Where a monitor stands: what is watched, what was seen, and what was counted already.

    Attributes
    ----------
    n
        Samples counted.
    misses
        How many of them the sets left out.
    floor, source
        The coverage that is promised, and by what.
    delta
        The chance of a false alarm, ever, however often one looks.
    alarms
        Each alarm that has rung, and after which sample it first did.
    curve
        The alarms' strengths over time, at up to 400 of the samples.
    threshold
        The site's own, where that is watched.
    wanted, short_since
        The level asked for, and from which sample on it is known to be missed, with the same chance
        to err, ever. That is said; it rings no alarm.
    repeated
        About how many rows without names were the very same as rows counted before.
    """

    kind = "monitor"
    hint = "pass the state file that robfcp monitor wrote, or start a new one"

    calibration: Digest
    client: str | None
    level: Count
    floor: OpenFraction
    source: str
    wanted: OpenFraction
    delta: OpenFraction
    run_length: Annotated[float, Meta(ge=1)] | None
    seed: Annotated[int, Meta(ge=0, lt=2**62)]
    n: Count = 0
    misses: Count = 0
    started: tuple[float, ...] = ()
    changes: tuple[float, ...] = ()
    alarms: dict[Literal["coverage", "change", "drift"], PositiveCount] = msgspec.field(
        default_factory=dict
    )
    curve: tuple[MonitorPoint, ...] = ()
    batches: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")], ...] = ()
    rows: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")], ...] = ()
    bag: ExchangeabilityState | None = None
    threshold: float | None = None
    short_since: PositiveCount | None = None
    seen: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")], ...] = ()
    repeated: Count = 0

    @property
    def has_alarm(self) -> bool:
        """Whether any alarm has rung."""
        return bool(self.alarms)

    @property
    def log_alarm_threshold(self) -> float:
        """ln of the strength at which an alarm rings: two alarms have half of delta each."""
        return math.log((1 if self.bag is None else 2) / self.delta)

    @property
    def log_e_coverage(self) -> float:
        """ln of the alarm's strength against "coverage is at least the floor"."""
        return self.curve[-1].coverage if self.curve else 0.0

    @property
    def log_shiryaev_roberts(self) -> float | None:
        """ln R_t of Shiryaev and Roberts, for a change at an unknown time."""
        return self.curve[-1].change if self.curve else None

    @property
    def log_e_exchangeability(self) -> float | None:
        """The same against "scores are like those of the own report"; None without one."""
        return self.curve[-1].drift if self.curve else None if self.bag is None else 0.0

    @property
    def line(self) -> str:
        """Where it stands and what to do, in one line."""
        if not self.n:
            return f"no samples yet; watching for coverage below {self.floor:.4f}"
        seen = f"{self.n} samples, {1 - self.misses / self.n:.4f} covered, floor {self.floor:.4f}"
        since = self.short_since
        known = f"missed (shown at {since})" if since else "not shown to be missed"
        seen += f", the wanted {self.wanted:.4f} is {known}"
        seen += f", about {self.repeated} rows came before" if self.repeated else ""
        if not self.alarms:
            log = self.log_e_coverage
            strength = f"{math.exp(log):.3g}" if abs(log) < 50 else f"10^{log / math.log(10):.0f}"
            limit = math.exp(self.log_alarm_threshold)
            return f"no alarm: {seen}; alarm strength {strength}, it rings at {limit:g}"
        rung = ", ".join(f"{name} at sample {step}" for name, step in self.alarms.items())
        return f"alarm ({rung}): {seen}; recalibrate now on fresh samples"

    def find_contradiction(self) -> str:
        """What does not fit together."""
        n, bag, steps = self.n, self.bag, [point.n for point in self.curve]
        bets = [len(self.changes), len(self.started)] == [N_BETS * bool(n), 2 * N_BETS * bool(n)]
        fits = {
            "client is no name": self.client is None or bool(are_client_names([self.client])[0]),
            "more misses than samples": self.misses <= n,
            "started or changes do not fit the samples": bets,
            "an alarm rang at no sample": max(self.alarms.values(), default=0) <= n,
            "the curve does not rise to n": steps == sorted(set(steps)) and [0, *steps][-1] == n,
        }
        if bag is not None:
            rising = bag.bins == sorted(set(bag.bins)) and len(bag.bins) == len(bag.counts)
            bets = (len(bag.started), len(bag.cells)) == (N_EXCHANGE_BETS if n else 0, N_CELLS)
            whole = sum(bag.counts) - bag.reported == sum(bag.cells) == n
            fits["the bag does not hold the report and the samples"] = rising and bets and whole
        return next((words for words, good in fits.items() if not good), "")

    def with_seen_rows(self, rows: NDArray[Any]) -> MonitorState:
        """The state that knows these rows by their contents, and about how many it knew before.

        A row that comes in one batch over and over names no sample: then nothing is said.
        """
        keys = {sha256_of(row.tobytes())[:16] for row in rows}
        last = self.seen[-1] if len(self.seen) == MAX_ROW_DIGESTS else "g"  # above every digest
        among = [key for key in keys if key <= last]
        known = len(keys) * len({*among} & {*self.seen}) // max(1, len(among))
        again = known if known > 20 * (len(rows) - len(keys)) else 0
        kept = tuple(sorted({*self.seen, *keys})[:MAX_ROW_DIGESTS])
        return msgspec.structs.replace(self, seen=kept, repeated=self.repeated + again)

    def updated(self, scores: FloatArray, limits: FloatArray, grid: Binning | None) -> MonitorState:
        """The state after these samples, with every alarm that rang at any of them.

        `limits` is one threshold for all samples, or one for each.
        """
        missed = scores > limits
        n = self.n + np.arange(1, len(scores) + 1)
        factors = log_bet_factors(self.floor, missed)
        both = np.hstack([factors, log_bet_factors(self.wanted, missed)])
        started = log_mixture_wealth(_stored_logs(self.started, 2 * N_BETS), self.n, both)
        changes = log_shiryaev_roberts(_stored_logs(self.changes, N_BETS), factors)
        coverage, change = log_wealth(started[:, :N_BETS], self.n), log_mean(changes)
        short = log_wealth(started[:, N_BETS:], self.n) >= -math.log(self.delta)
        since = int(n[np.argmax(short)]) if short.any() else None
        bag, drift = self.bag, None
        if bag is not None and grid is not None:
            bag, drift = bag.extended(self, scores, grid)
        over = {"coverage": coverage >= self.log_alarm_threshold}
        if self.run_length is not None:
            over["change"] = change >= np.log(self.run_length)
        if drift is not None:
            over["drift"] = drift >= self.log_alarm_threshold
        alarms = self.alarms | {
            name: int(n[np.argmax(rings)])
            for name, rings in over.items()
            if rings.any() and name not in self.alarms
        }
        rung = [step - self.n - 1 for step in alarms.values() if step > self.n]
        shown = np.linspace(0, len(n) - 1, min(len(n), 100)).round()
        table = np.column_stack([n, coverage, change] + ([] if drift is None else [drift]))
        places = np.unique([*shown, *rung]).astype(np.intp)
        points = [MonitorPoint(int(step), *logs) for step, *logs in table[places].tolist()]
        curve, kept = [*self.curve, *points], set(alarms.values())
        while len(curve) > MAX_POINTS + len(kept):  # every second goes, never the last nor the kept
            odd = len(curve) % 2 ^ 1
            curve = [p for k, p in enumerate(curve) if k % 2 == odd or p.n in kept]
        return msgspec.structs.replace(
            self,
            n=int(n[-1]),
            misses=self.misses + int(missed.sum()),
            started=tuple(started[-1].tolist()),
            changes=tuple(changes[-1].tolist()),
            alarms=alarms,
            curve=tuple(curve),
            bag=bag,
            short_since=self.short_since or since,
        )


def _stored_logs(values: Sequence[float], n_bets: int) -> FloatArray:
    """(J,) stored logarithms; before the first sample all are those of 0, minus infinity."""
    return np.array(values or [-np.inf] * n_bets, dtype=np.float64)


class Monitor:
    """An alarm for one site that may be looked at after every sample.

    Its strength against "coverage here is at least the floor" is at most 1 in the mean while that
    is true, at any stopping time, so it ever reaches 1/delta with a chance of at most delta. With
    the site's own report there is a second alarm, against "fresh scores are like those reported",
    which can see a drift before coverage falls.

    Parameters
    ----------
    calibration
        What is watched; or what a letter gave at the site, whose own threshold is watched then.
    reference_report
        The site's own report of the round, without noise; needed for the second alarm only.
    client
        The site's name, for the reports it sends; that of the report if None.
    level
        Which level of the calibration, counted from 0.
    min_coverage
        The coverage this very calibration must hold. If None what the site's own samples prove
        (those of its report, or of its own threshold), without any the certificate's lower end.
    delta
        The chance of a false alarm, ever; two alarms share it. 0.05 if None.
    average_run_length
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
    >>> calibration = robfcp.calibrate(federation, defense="none")
    >>> monitor = robfcp.Monitor(calibration, min_coverage=0.9)
    >>> probabilities, labels = np.tile([0.9, 0.1], (100, 1)), np.repeat([0, 1], [95, 5])
    >>> monitor.update(probabilities, labels).has_alarm
    False
    >>> monitor.update(probabilities, 1 - labels).alarms
    {'coverage': 103}
    >>> monitor.update(probabilities, labels).n
    200
    """

    def __init__(
        self,
        calibration: Calibration | LocalCalibration,
        *,
        reference_report: Report | None = None,
        client: str | None = None,
        level: int = 0,
        min_coverage: float | None = None,
        delta: float | None = None,
        average_run_length: float | None = None,
        seed: int | None = None,
        path: FilePath | None = None,
    ) -> None:
        chosen = check_fraction("delta", 0.05 if delta is None else delta, "give 0.05, say")
        if average_run_length is not None and not 1 <= average_run_length < math.inf:
            raise RobfcpError(
                f"run_length: {average_run_length!r} is no number from 1; give 10000, say"
            )
        own: LocalThreshold | None = None
        if isinstance(calibration, LocalCalibration):
            if client is None and reference_report is None and calibration.client != UNSEEN_CLIENT:
                client = calibration.client
            get_level(calibration.calibration, level)
            own, calibration = calibration.levels[level], calibration.calibration
        self._limits = thresholds_of(calibration, level, own)
        proved, source = min_coverage, None
        if min_coverage is None and own is None and reference_report is not None:
            each, together = per_client_delta(calibration)
            proved = local_coverage_bound(reference_report, float(self._limits.min()), 1 - each)
            source = f"what the site's own {reference_report.n_samples} samples prove, {together}"
            if not proved:
                raise RobfcpError("floor: the site's own report proves nothing; state a floor")
        promise = require_conditional_floor(calibration, level, proved, own)
        client = (
            reference_report.client if client is None and reference_report is not None else client
        )
        if client is not None:
            check_client_name(client)
        self._calibration, self._path = calibration, path
        self._grid = None if reference_report is None else reference_report.grid
        self.state = MonitorState(
            calibration=calibration.fingerprint,
            client=client,
            level=level,
            floor=promise.value,
            source=source or promise.source,
            wanted=float(calibration.levels[level].coverage),
            delta=chosen,
            run_length=None if average_run_length is None else float(average_run_length),
            seed=secrets.randbits(61)
            if seed is None
            else check_integer("seed", seed, "give one from 0"),
            bag=None
            if reference_report is None
            else ExchangeabilityState.from_report(reference_report, calibration),
            threshold=None if own is None else own.threshold,
        )
        self._resume(client=client, delta=delta, run_length=average_run_length, floor=min_coverage)

    def update(
        self,
        predictions: ArrayLike,
        targets: ArrayLike,
        *,
        ids: ArrayLike | None = None,
        batch: str | None = None,
        score: Score | None = None,
    ) -> MonitorState:
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
        MonitorState
            As it was where all of it was counted before.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defense="none")
        >>> monitor = robfcp.Monitor(calibration)
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n
        1
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n
        1
        """
        rule = self._calibration.resolve_score(score)
        predictions = reorder_columns(predictions, self._calibration.classes)
        targets = encode_labels(targets, self._calibration.classes)
        key = None  # where the rows are named
        if batch is not None:
            key = sha256_of(b"name\n" + batch.encode())[:32]
        elif ids is None:
            if targets.ndim != 1 or len(targets) < MIN_ROWS_FOR_DIGESTS:
                raise RobfcpError(
                    f"samples: fewer than {MIN_ROWS_FOR_DIGESTS} may look like others by chance; "
                    "name them (--id, ids=) or their batch, so that nothing is counted twice"
                )
            parts = (predictions, targets)
            kinds = [f"{part.dtype.str}{part.shape}".encode() + part.tobytes() for part in parts]
            key = sha256_of(b"contents\n" + b"".join(kinds))[:32]
        with nullcontext() if self._path is None else file_lock(f"{os.fspath(self._path)}.lock"):
            self._resume()
            state = self.state
            if key in state.batches:
                return state
            rng = np.random.default_rng([state.seed, state.n])
            scores = np.asarray(rule(predictions, targets, rng), dtype=np.float64)
            by_class = self._limits.ndim == 2
            limits = self._limits[targets.astype(np.intp), 0] if by_class else self._limits
            rows: list[str] = []
            if ids is not None:
                names = as_array("ids", ids)
                if names.shape != scores.shape:
                    raise RobfcpError(f"ids: need one name a sample ({len(scores)})")
                keys = [sha256_of(f"row\n{name}".encode())[:16] for name in names.tolist()]
                first = {own: place for place, own in reversed(list(enumerate(keys)))}
                fresh = sorted(first[own] for own in first.keys() - set(state.rows))
                rows, scores = [keys[place] for place in fresh], scores[fresh]
                limits = limits[fresh] if by_class else limits
            else:
                state = state.with_seen_rows(np.column_stack([predictions, targets]))
            if len(scores):
                self.state = msgspec.structs.replace(
                    state.updated(scores, limits, self._grid),
                    batches=state.batches if key is None else (*state.batches, key),
                    rows=(*state.rows, *rows),
                )
            if self._path is not None:
                self.state.save(self._path)
        return self.state

    def e_value_report(self, round: str | None = None, step: int = 0) -> EValueReport:
        """What this site tells the server: how strong its alarms are, and of which calibration.

        Parameters
        ----------
        round
            The name of the round; needed to sign it.
        step
            The number of the reporting date all sites agreed on.

        Returns
        -------
        EValueReport
            To be sent as it is, or signed.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defense="none")
        >>> robfcp.Monitor(calibration, client="site-3").e_value_report("spring").log_coverage
        0.0
        """
        state = self.state
        if state.client is None:
            raise RobfcpError("client: the monitor has no name; state it (--client, client=)")
        known = (state.client, state.calibration, state.floor, state.n, state.log_e_coverage)
        return EValueReport(*known, round, step, state.log_e_exchangeability)

    def _resume(self, **stated: object) -> None:
        """Go on from the file, where there is one; refused where it watches something else."""
        path, mine = self._path, self.state
        if path is None or not Path(path).exists():
            return
        found = MonitorState.load(path)
        if found.client is None and mine.client is not None:  # one without a name may get it later
            found = msgspec.structs.replace(found, client=mine.client)
        anew = "begin another file or folder"

        def refuse(so: object, words: str) -> None:
            if so:
                raise RobfcpError(f"{path}: {words}")

        other = (found.calibration, found.level) != (mine.calibration, mine.level)
        refuse(other, f"watches another calibration; {anew}")
        own = "watches another threshold; for a site's own pass the samples it rests on (--local)"
        refuse(found.threshold != mine.threshold, f"{own}, or {anew}")
        for name, value in stated.items():
            was = getattr(found, name)
            differs = value is not None and was != value
            refuse(differs, f"was begun with {name} {was}, not {value}; keep that or {anew}")
        first, second = (state.bag and state.bag.report for state in (found, mine))
        refuse(first != second, "was begun with another report; pass the same --own")
        beyond = found.bag and self._grid and found.bag.bins[-1] >= self._grid.n_bins
        refuse(beyond, f"holds scores outside the grid; {anew}")
        self.state = found


BET_FRACTIONS = 0.5 ** np.arange(1, 8)  # q = a + (1 - a) / 2, / 4, ..., / 128
N_BETS = len(BET_FRACTIONS)


def log_bet_factors(min_coverage: float, is_missed: NDArray[np.bool_]) -> FloatArray:
    """(T, J) ln(q/a) for a miss and ln((1-q)/(1-a)) for a hit, a = 1 - floor."""
    a = 1 - min_coverage
    q = a + min_coverage * BET_FRACTIONS
    miss, hit = np.log(q / a), np.log1p(-BET_FRACTIONS)  # (1 - q) / (1 - a) = 1 - SPREAD
    return np.where(is_missed[:, None], miss, hit)


def log_mixture_wealth(before: FloatArray, n: int, factors: FloatArray) -> FloatArray:
    """(T, J) ln A_t of each bet after n samples, A_t = (A_{t-1} + 1 / (t (t + 1))) x factor_t."""
    step = n + np.arange(1, len(factors) + 1)
    return _accumulated(before, factors, -np.log(step) - np.log1p(step))


def log_shiryaev_roberts(before: FloatArray, factors: FloatArray) -> FloatArray:
    """(T, J) ln R_t of each bet, R_t = (1 + R_{t-1}) x factor_t."""
    return _accumulated(before, factors, np.zeros(len(factors)))


def log_wealth(started: FloatArray, n: int) -> FloatArray:
    """(T,) ln W_t, W_t = the mean of the A_t + 1 / (t + 1), after n samples."""
    step = n + np.arange(1, len(started) + 1)
    return np.asarray(np.logaddexp(log_mean(started), -np.log1p(step)))


def log_mean(logs: FloatArray) -> FloatArray:
    """(T,) ln of the mean of the exponentials of each row."""
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(logs - safe[..., None]).mean(axis=-1)))


def _accumulated(before: FloatArray, factors: FloatArray, weights: FloatArray) -> FloatArray:
    """(T, J) ln X_t, X_t = (X_{t-1} + e^weight_t) x e^factor_t, from (J,) ln X_0 = `before`.

    With S_t the sum of the factors, X_t = e^{S_t} (X_0 + the sum over s <= t of e^{weight_s} /
    e^{S_{s-1}}).
    """
    sums = np.cumsum(factors, axis=0)
    earlier = np.concatenate([np.zeros((1, factors.shape[1])), sums[:-1]])
    inside = np.concatenate([before[None, :], weights[:, None] - earlier])
    return np.asarray(sums + np.logaddexp.accumulate(inside, axis=0)[1:])


POWERS = np.array([0.7, 0.85])  # e p^(e-1): scores have risen; the same on 1 - p: fallen
N_CELLS = 10  # of the histogram that learns any other change
N_EXCHANGE_BETS = 2 * len(POWERS) + 1
_BLOCK = 256


def philox_uniforms(seed: int, start: int, n: int) -> FloatArray:
    """(n,) draws number start, start + 1, ... of a stream: the same however it is cut up."""
    stream = np.random.Philox(key=seed)
    stream.advance(start // 4)  # four draws a step
    raw = np.asarray(stream.random_raw(start % 4 + n))[start % 4 :]
    return np.asarray(((raw >> np.uint64(12)) + 0.5) * 2.0**-52)


def conformal_p_values(bag: NDArray[np.int64], bins: NDArray[np.intp], u: FloatArray) -> FloatArray:
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


def log_p_value_bets(p: FloatArray, cells: NDArray[np.int64]) -> FloatArray:
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
