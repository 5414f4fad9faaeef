"""Where a monitor stands, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from robfcp.calibration.monitoring.state import Point, State


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
