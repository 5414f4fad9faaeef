"""Monitoring of one client: alarms from fresh labeled samples, valid at any time."""

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
from robfcp.monitoring._e_value_report import EValueReport
from robfcp.monitoring._state import ExchangeabilityState, MonitorState, advance
from robfcp.reports import Report
from robfcp.scores import Score

DEFAULT_DELTA = 0.05
MIN_ROWS_FOR_DIGESTS = 30  # fewer may come twice by chance, and must be named
SEED_BITS = 61  # of a random seed; `MonitorState.seed` allows for 62
_START_ANEW = "begin another file or folder"


class Monitor:
    """An alarm for one client that may be inspected after every sample.

    Its e-value against "coverage is at least the floor" has a mean of at most 1 while that is
    true, at any stopping time, so it ever reaches 1/delta with probability at most delta. With the
    report of the client there is a second alarm, against "fresh scores are like those reported",
    which can detect a drift before coverage falls.

    Parameters
    ----------
    calibration : Calibration or LocalCalibration
        The calibration to monitor; of a local one the client's threshold is monitored.
    reference_report : Report, optional
        The report of the client in the round, without noise; for the second alarm only.
    client : str, optional
        The name of the client, for the reports that it sends; that of the report if None.
    level : int
        The index of the level of the calibration.
    min_coverage : float, optional
        The coverage that this calibration must hold. If None it is what the samples of the client
        certify (those of its report, or of its threshold), or else the certificate's lower bound.
    delta : float, optional
        The probability that a false alarm is ever raised, for both alarms together. 0.05 if None.
    average_run_length : float, optional
        Also raise an alarm when R_t of Shiryaev and Roberts reaches this number: a false alarm
        then comes after at least so many samples in the mean. No such alarm if None.
    seed : int, optional
        The seed of the draws that break ties among scores; a random one if None.
    path : path, optional
        The state file. One that exists is continued, with its settings; every update is written to
        it before `update` returns.

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
    >>> monitor.update(probabilities, 1 - labels).alarm_steps
    {'coverage': 103}
    >>> monitor.update(probabilities, labels).n_samples
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
        checked_delta = DEFAULT_DELTA
        if delta is not None:
            checked_delta = check_fraction("delta", delta, "give 0.05, say")
        if average_run_length is not None and not 1 <= average_run_length < math.inf:
            raise RobfcpError(
                f"average_run_length: {average_run_length!r} is no number from 1; give 10000, say"
            )

        # Monitor a level of the calibration, or the threshold of the client for it.
        client = _name_of_client(client, calibration, reference_report)
        local_threshold: LocalThreshold | None = None
        if isinstance(calibration, LocalCalibration):
            get_level(calibration.calibration, level)
            local_threshold = calibration.levels[level]
            calibration = calibration.calibration
        self._calibration = calibration
        self._thresholds = thresholds_of(calibration, level, local_threshold)  # (1,), or (C, 1)

        # The coverage to hold, and what certifies it; an empty source is that of the floor.
        source = ""
        min_coverage_used = min_coverage
        if min_coverage is None and local_threshold is None and reference_report is not None:
            min_coverage_used, source = self._floor_of_report(reference_report)
        lower_bound = require_conditional_floor(
            calibration, level, min_coverage_used, local_threshold
        )
        if client is not None:
            check_client_name(client)

        if seed is None:
            seed = secrets.randbits(SEED_BITS)
        else:
            seed = check_integer("seed", seed, "give one from 0")
        average_run_length = None if average_run_length is None else float(average_run_length)
        exchangeability: ExchangeabilityState | None = None
        if reference_report is not None:
            exchangeability = ExchangeabilityState.from_report(reference_report, calibration)
        self.state = MonitorState(
            calibration=calibration.fingerprint,
            client=client,
            level=level,
            min_coverage=lower_bound.value,
            source=source or lower_bound.source,
            target_coverage=float(calibration.levels[level].coverage),
            delta=checked_delta,
            average_run_length=average_run_length,
            seed=seed,
            exchangeability=exchangeability,
            threshold=None if local_threshold is None else local_threshold.threshold,
        )

        # A file that exists replaces this state, if it fits it and what the caller stated.
        self._binning = None if reference_report is None else reference_report.binning
        self._path = path
        self._resume(
            client=client,
            delta=delta,
            average_run_length=average_run_length,
            min_coverage=min_coverage,
        )

    def _floor_of_report(self, report: Report) -> tuple[float, str]:
        """Return the coverage that a report certifies at the lowest threshold, and the source.

        The lowest threshold is that of the class with the smallest: coverage at all others is no
        less.

        Parameters
        ----------
        report : Report
            The client's report in the round; one with noise is refused by `local_coverage_bound`.
        """
        delta, confidence_text = per_client_delta(self._calibration)
        min_threshold = float(self._thresholds.min())
        min_coverage = local_coverage_bound(report, min_threshold, 1 - delta)
        if not min_coverage:
            raise RobfcpError(
                "min_coverage: the reference report certifies nothing; give min_coverage "
                "(--min-coverage)"
            )
        source = f"what the site's own {report.n_samples} samples prove, {confidence_text}"
        return min_coverage, source

    def update(
        self,
        predictions: ArrayLike,
        targets: ArrayLike,
        *,
        ids: ArrayLike | None = None,
        batch: str | None = None,
        score: Score | None = None,
    ) -> MonitorState:
        """Count fresh samples in their order, each once, and return the state.

        Parameters
        ----------
        predictions : array_like, shape (n, C)
            Class probabilities, or what a regression score takes.
        targets : array_like, shape (n,)
            The true labels or values.
        ids : array_like, shape (n,), optional
            The names of the samples; those that were counted before are skipped.
        batch : str, optional
            The name of the batch, which is counted once. Without ids and name its contents
            identify it, which needs 30 samples, as fewer may be equal by chance.
        score : Score, optional
            The score, if the reports did not name it.

        Returns
        -------
        MonitorState
            Unchanged if all samples were counted before.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defense="none")
        >>> monitor = robfcp.Monitor(calibration)
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n_samples
        1
        >>> monitor.update([[0.9, 0.1]], [0], ids=["patient-7"]).n_samples
        1
        """
        # The digest is of the arrays as they are here: changing this changes what counts as seen.
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
        """Count the samples of a batch, of named ones those that were not counted before.

        Replaces `self.state`; leaves it as it is where no sample is new. The caller has the lock of
        the file, and saves.

        Parameters
        ----------
        score : Score
            The score of the calibration.
        predictions : ndarray, shape (n, C)
            As `update` takes them, with columns in the order of the classes.
        targets : ndarray, shape (n,)
            The true labels as column numbers, or the true values.
        ids : array_like, shape (n,), or None
            The names of the samples; None counts all of them.
        batch_digest : str or None
            As `_batch_digest` returns it; not in the state so far.
        """
        state = self.state
        # Seeded by the samples so far, so that a monitor that resumes draws what it would have.
        rng = np.random.default_rng([state.seed, state.n_samples])
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
        """Return the threshold of each sample, (n,): of its class if classes have thresholds.

        Parameters
        ----------
        targets : ndarray, shape (n,)
            Column numbers of the true classes where thresholds are by class.
        scores : ndarray, shape (n,)
            For the number of samples.
        """
        if self._thresholds.ndim == 2:
            return self._thresholds[targets.astype(np.intp), 0]
        return np.full(len(scores), self._thresholds[0])

    def e_value_report(self, round: str | None = None, step: int = 0) -> EValueReport:
        """Return the report of this client's e-values to the server.

        Parameters
        ----------
        round : str, optional
            The name of the round; needed to sign the report.
        step : int
            The number of the reporting date that all clients agreed on.

        Returns
        -------
        EValueReport
            To be sent as it is, or signed.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defense="none")
        >>> robfcp.Monitor(calibration, client="site-3").e_value_report("spring").log_e_coverage
        0.0
        """
        state = self.state
        if state.client is None:
            raise RobfcpError("client: the monitor has no name; state it (--client, client=)")
        return EValueReport(
            client=state.client,
            calibration=state.calibration,
            min_coverage=state.min_coverage,
            n_samples=state.n_samples,
            log_e_coverage=state.log_e_coverage,
            round=round,
            step=step,
            log_e_exchangeability=state.log_e_exchangeability,
        )

    def _resume(self, **requested: object) -> None:
        """Continue from the file, if there is one; refuse it if it monitors something else.

        Replaces `self.state` by what is saved.

        Parameters
        ----------
        **requested
            What the caller stated, by the names of the fields of `MonitorState`; None for what it
            did not.
        """
        if self._path is None or not Path(self._path).exists():
            return
        saved = MonitorState.load(self._path)
        if saved.client is None and self.state.client is not None:
            # A state without a name may get one later.
            saved = msgspec.structs.replace(saved, client=self.state.client)

        problem = _difference(saved, self.state, requested) or self._problem_of_bins(saved)
        if problem:
            raise RobfcpError(f"{self._path}: {problem}")
        self.state = saved

    def _problem_of_bins(self, saved: MonitorState) -> str:
        """Return why a saved state does not fit this binning; empty if it does.

        The bins of a saved state rise, so that the last is the largest.
        """
        if self._binning is None or saved.exchangeability is None:
            return ""
        if saved.exchangeability.bins[-1] >= self._binning.n_bins:
            return f"holds scores outside the binning; {_START_ANEW}"
        return ""


def _name_of_client(
    client: str | None,
    calibration: Calibration | LocalCalibration,
    reference_report: Report | None,
) -> str | None:
    """Return the given name, else that of the report, else that of the local calibration.

    None if there is none of them. A local calibration of a client that was in no round has no name.
    """
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
    """Return the digest of a batch's name, else of its contents; None if its samples have names.

    State files store these digests: a batch is skipped if its digest was stored before.

    Parameters
    ----------
    predictions : ndarray, shape (n, C)
        What the score takes.
    targets : ndarray, shape (n,)
        The true labels or values; another shape is refused where contents are digested.
    batch : str or None
        The name of the batch.
    is_named : bool
        Whether its samples have names, by which each is counted once.

    Returns
    -------
    str or None
        The first 128 bits of a SHA-256, in 32 digits.
    """
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
    """Return the rows whose names were not counted before, each once, and the names' digests.

    Parameters
    ----------
    ids : array_like, shape (n,)
        The names, which are compared as text.
    scores : ndarray, shape (n,)
        The scores, for their shape.
    state : MonitorState
        For the names counted so far.

    Returns
    -------
    rows : list of int
        Rising positions of the samples to count.
    row_ids : list of str
        The digest of each, the first 64 bits of a SHA-256 in 16 digits, as state files store them.
    """
    names = as_array("ids", ids)
    if names.shape != scores.shape:
        raise RobfcpError(f"ids: need one name a sample ({len(scores)})")

    counted_digests = set(state.row_ids)
    rows: list[int] = []
    row_ids: list[str] = []
    for row, name in enumerate(names.tolist()):
        digest = sha256_of(f"row\n{name}".encode())[:16]
        if digest not in counted_digests:
            counted_digests.add(digest)
            rows.append(row)
            row_ids.append(digest)
    return rows, row_ids


def _difference(saved: MonitorState, current: MonitorState, requested: dict[str, object]) -> str:
    """Return why a monitor cannot continue from a saved state; empty if it can.

    Parameters
    ----------
    saved : MonitorState
        The state in the file.
    current : MonitorState
        The state of the monitor before.
    requested : dict of str to object
        What the caller stated, by the names of the fields of `MonitorState`, which messages name;
        None for what it did not.
    """
    if saved.calibration != current.calibration or saved.level != current.level:
        return f"watches another calibration; {_START_ANEW}"
    if saved.threshold != current.threshold:
        return (
            "monitors another threshold; for a local one pass the samples it was computed from "
            "(--local-data), "
            f"or {_START_ANEW}"
        )
    for name, value in requested.items():
        saved_value = getattr(saved, name)
        if value is not None and saved_value != value:
            return f"was begun with {name} {saved_value}, not {value}; keep that or {_START_ANEW}"
    if _digest_of_reference(saved) != _digest_of_reference(current):
        return "was begun with another report; pass the same --reference-report"
    return ""


def _digest_of_reference(state: MonitorState) -> str | None:
    """Return the digest of the client's report; None if scores are not compared with one."""
    if state.exchangeability is None:
        return None
    return state.exchangeability.report_sha256
