"""Times, peak memory and growth of a piece of work."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Row:
    """One stage at one size, next to its floor and to what a user would take instead.

    seconds, floor and instead are least times of the same run; peak is bytes beyond the input.
    """

    stage: str
    clients: int
    samples: int
    seconds: float
    peak: int
    floor: float | None = None
    instead: float | None = None


def least(*works: Callable[[], Any], repeats: int = 3, patience: float = 20.0) -> list[float]:
    """The least seconds of each work, taken in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in works]
    began = time.perf_counter()
    for _ in range(repeats):
        for work, spent in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            spent.append(time.perf_counter() - start)
        if time.perf_counter() - began > patience:
            break
    return [min(spent) for spent in times]


def peak(work: Callable[[], Any]) -> int:
    """Bytes allocated at most while the work is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def once(work: Callable[[], Any]) -> tuple[float, int]:
    """Seconds and peak bytes of a single run, for what takes long."""
    start = time.perf_counter()
    memory = peak(work)
    return time.perf_counter() - start, memory


def exponent(sizes: list[int], seconds: list[float], least_size: int) -> float | None:
    """The slope of log seconds over log size from a size on; None from fewer than two points."""
    pairs = zip(sizes, seconds, strict=True)
    points = [(size, spent) for size, spent in pairs if size >= least_size]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points, dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])
