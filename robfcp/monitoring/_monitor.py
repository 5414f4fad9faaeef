"""Watching one site: fresh labelled samples in, alarms that may be looked at at any time out."""

from __future__ import annotations

import math
import os
import secrets
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import file_lock
from robfcp._probabilities import encode_labels, reorder_columns
from robfcp._sealed import FilePath, sha256_of
from robfcp._typing import FloatArray
from robfcp._validation import as_array, check_client_name, check_fraction, check_integer
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.evaluation import get_level, per_client_delta, require_conditional_floor, thresholds_of
from robfcp.local import UNSEEN_CLIENT, LocalCalibration, LocalThreshold, local_coverage_bound
from robfcp.monitoring._e_report import EValueReport
from robfcp.monitoring._state import ExchangeabilityState, MonitorState, advance
from robfcp.reports import Report
from robfcp.scores import Score

DEFAULT_DELTA = 0.05
MIN_ROWS_FOR_DIGESTS = 30  # fewer may come twice by chance, and must be named
SEED_BITS = 61
_START_ANEW = "begin another file or folder"


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
        delta_used = check_fraction(
            "delta", DEFAULT_DELTA if delta is None else delta, "give 0.05, say"
        )
        if average_run_length is not None and not 1 <= average_run_length < math.inf:
            raise RobfcpError(
                f"run_length: {average_run_length!r} is no number from 1; give 10000, say"
            )

        # What is watched: a level of the calibration, or the site's own threshold for it.
        client = _name_of_client(client, calibration, reference_report)
        local_threshold: LocalThreshold | None = None
        if isinstance(calibration, LocalCalibration):
            get_level(calibration.calibration, level)
            local_threshold = calibration.levels[level]
            calibration = calibration.calibration
        self._calibration = calibration
        self._thresholds = thresholds_of(calibration, level, local_threshold)

        # The coverage to hold, and what proves it.
        source = ""
        floor = min_coverage
        if floor is None and local_threshold is None and reference_report is not None:
            floor, source = self._floor_of_report(reference_report)
        promise = require_conditional_floor(calibration, level, floor, local_threshold)
        if client is not None:
            check_client_name(client)

        if seed is None:
            seed = secrets.randbits(SEED_BITS)
        else:
            seed = check_integer("seed", seed, "give one from 0")
        run_length = None if average_run_length is None else float(average_run_length)
        exchangeability: ExchangeabilityState | None = None
        if reference_report is not None:
            exchangeability = ExchangeabilityState.from_report(reference_report, calibration)
        self.state = MonitorState(
            calibration=calibration.fingerprint,
            client=client,
            level=level,
            floor=promise.value,
            source=source or promise.source,
            wanted=float(calibration.levels[level].coverage),
            delta=delta_used,
            run_length=run_length,
            seed=seed,
            exchangeability=exchangeability,
            threshold=None if local_threshold is None else local_threshold.threshold,
        )

        self._binning = None if reference_report is None else reference_report.grid
        self._path = path
        self._resume(client=client, delta=delta, run_length=average_run_length, floor=min_coverage)

    def _floor_of_report(self, report: Report) -> tuple[float, str]:
        """What a site's report proves of its coverage at the lowest threshold, and by what."""
        delta, together = per_client_delta(self._calibration)
        floor = local_coverage_bound(report, float(self._thresholds.min()), 1 - delta)
        if not floor:
            raise RobfcpError("floor: the site's own report proves nothing; state a floor")
        return floor, f"what the site's own {report.n_samples} samples prove, {together}"

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
        score = self._calibration.resolve_score(score)
        predictions = reorder_columns(predictions, self._calibration.classes)
        targets = encode_labels(targets, self._calibration.classes)
        digest = _batch_digest(predictions, targets, batch, is_named=ids is not None)

        # Another process may have counted samples since the state was read.
        lock: AbstractContextManager[Any] = nullcontext()
        if self._path is not None:
            lock = file_lock(f"{os.fspath(self._path)}.lock")
        with lock:
            self._resume()
            if digest is None or digest not in self.state.batch_digests:
                self._count(score, predictions, targets, ids, digest)
                if self._path is not None:
                    self.state.save(self._path)
        return self.state

    def _count(
        self,
        score: Score,
        predictions: NDArray[Any],
        targets: NDArray[Any],
        ids: ArrayLike | None,
        batch_digest: str | None,
    ) -> None:
        """Count those samples of a batch that were not counted by their names."""
        state = self.state
        rng = np.random.default_rng([state.seed, state.n])
        scores = np.asarray(score(predictions, targets, rng), dtype=np.float64)
        thresholds = self._thresholds_for(targets, scores)

        row_ids: list[str] = []
        if ids is None:
            state = state.with_seen_rows(np.column_stack([predictions, targets]))
        else:
            rows, row_ids = _new_rows(ids, scores, state)
            scores = scores[rows]
            thresholds = thresholds[rows]
        if not len(scores):
            return

        batch_digests = state.batch_digests
        if batch_digest is not None:
            batch_digests = (*batch_digests, batch_digest)
        self.state = msgspec.structs.replace(
            advance(state, scores, thresholds, self._binning),
            batch_digests=batch_digests,
            row_ids=(*state.row_ids, *row_ids),
        )

    def _thresholds_for(self, targets: NDArray[Any], scores: FloatArray) -> FloatArray:
        """(n,) the threshold of each sample: that of its class, where classes have their own."""
        if self._thresholds.ndim == 2:
            return self._thresholds[targets.astype(np.intp), 0]
        return np.full(len(scores), self._thresholds[0])

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
        return EValueReport(
            client=state.client,
            calibration=state.calibration,
            floor=state.floor,
            n_samples=state.n,
            log_coverage=state.log_e_coverage,
            round=round,
            step=step,
            log_drift=state.log_e_exchangeability,
        )

    def _resume(self, **given: object) -> None:
        """Go on from the file, where there is one; refused where it watches something else.

        `given` are fields of the state that the caller stated; None where it did not.
        """
        if self._path is None or not Path(self._path).exists():
            return
        saved = MonitorState.load(self._path)
        if saved.client is None and self.state.client is not None:
            # One that was begun without a name may get it later.
            saved = msgspec.structs.replace(saved, client=self.state.client)

        problem = _difference(saved, self.state, given) or self._problem_of_bins(saved)
        if problem:
            raise RobfcpError(f"{self._path}: {problem}")
        self.state = saved

    def _problem_of_bins(self, saved: MonitorState) -> str:
        """Why a saved state's scores are not those of this binning; empty where they can be."""
        if self._binning is None or saved.exchangeability is None:
            return ""
        if saved.exchangeability.bins[-1] >= self._binning.n_bins:
            return f"holds scores outside the grid; {_START_ANEW}"
        return ""


def _name_of_client(
    client: str | None,
    calibration: Calibration | LocalCalibration,
    reference_report: Report | None,
) -> str | None:
    """The name that is given, else that of the report, else that of the site's own calibration."""
    if client is not None:
        return client
    if reference_report is not None:
        return reference_report.client
    if isinstance(calibration, LocalCalibration) and calibration.client != UNSEEN_CLIENT:
        return calibration.client
    return None


def _batch_digest(
    predictions: NDArray[Any], targets: NDArray[Any], batch: str | None, *, is_named: bool
) -> str | None:
    """What a batch is known by: its name, else its contents; None where its samples have names."""
    if batch is not None:
        return sha256_of(b"name\n" + batch.encode())[:32]
    if is_named:
        return None
    if targets.ndim != 1 or len(targets) < MIN_ROWS_FOR_DIGESTS:
        raise RobfcpError(
            f"samples: fewer than {MIN_ROWS_FOR_DIGESTS} may look like others by chance; "
            "name them (--id, ids=) or their batch, so that nothing is counted twice"
        )
    contents = b"contents\n"
    for values in (predictions, targets):
        contents += f"{values.dtype.str}{values.shape}".encode() + values.tobytes()
    return sha256_of(contents)[:32]


def _new_rows(
    ids: ArrayLike, scores: FloatArray, state: MonitorState
) -> tuple[list[int], list[str]]:
    """The rows whose names were not counted before, each once, and the digests of the names."""
    names = as_array("ids", ids)
    if names.shape != scores.shape:
        raise RobfcpError(f"ids: need one name a sample ({len(scores)})")

    known = set(state.row_ids)
    rows: list[int] = []
    row_ids: list[str] = []
    for row, name in enumerate(names.tolist()):
        digest = sha256_of(f"row\n{name}".encode())[:16]
        if digest not in known:
            known.add(digest)
            rows.append(row)
            row_ids.append(digest)
    return rows, row_ids


def _difference(saved: MonitorState, current: MonitorState, given: dict[str, object]) -> str:
    """Why a monitor cannot go on from a saved state; empty where it can."""
    if saved.calibration != current.calibration or saved.level != current.level:
        return f"watches another calibration; {_START_ANEW}"
    if saved.threshold != current.threshold:
        return (
            "watches another threshold; for a site's own pass the samples it rests on (--local), "
            f"or {_START_ANEW}"
        )
    for name, value in given.items():
        saved_value = getattr(saved, name)
        if value is not None and saved_value != value:
            return f"was begun with {name} {saved_value}, not {value}; keep that or {_START_ANEW}"
    if _digest_of_reference(saved) != _digest_of_reference(current):
        return "was begun with another report; pass the same --own"
    return ""


def _digest_of_reference(state: MonitorState) -> str | None:
    """The digest of the site's own report; None where scores are not compared with one."""
    if state.exchangeability is None:
        return None
    return state.exchangeability.report_sha256
