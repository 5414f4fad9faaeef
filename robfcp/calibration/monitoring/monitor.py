"""Watching one site: fresh labelled samples in, alarms that may be looked at at any time out."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array, share, whole
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.check import class_limits
from robfcp.calibration.local import STRANGER, Localised
from robfcp.calibration.local_threshold import LocalThreshold
from robfcp.calibration.monitoring.reading import Reading, reading_of
from robfcp.calibration.monitoring.state import (
    Point,
    State,
    encode_state,
    load_state,
    locked,
    save_state,
)
from robfcp.calibration.monitoring.steps import advanced, bag_of, batch_key, new_rows
from robfcp.calibration.promise import firm_promise, level_of
from robfcp.errors import RobfcpError
from robfcp.reports import EReport, Report, check_client
from robfcp.scores import Score

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
