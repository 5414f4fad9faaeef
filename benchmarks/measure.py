"""Times, peak memory, growth and the machine's load."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

QUIET = 0.5  # processes that wait for a core, on average, up to which a machine is undisturbed


class Seconds(float):
    """A median of several times, with their quartiles."""

    low: float
    high: float

    @staticmethod
    def of(times: Sequence[float]) -> Seconds:
        """Return the median and the quartiles of some times."""
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
        seconds = Seconds(median)
        seconds.low = float(low)
        seconds.high = float(high)
        return seconds

    def times(self, factor: float) -> Seconds:
        """Return the times of so many times as much work."""
        return Seconds.of([factor * self.low, factor * self, factor * self.high])


@dataclass(frozen=True)
class Row:
    """One stage at one size, next to its lower bound and to an alternative.

    Seconds are medians of the same run; `spread` are the quartiles of the first of them, `peak` is
    bytes beyond the input. The fields are those of the history's files.
    """

    stage: str
    n_clients: int
    n_samples: int
    seconds: float
    peak: int
    lower_bound: float | None = None
    alternative: float | None = None
    spread: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seconds, Seconds) and self.spread is None:
            object.__setattr__(self, "spread", (self.seconds.low, self.seconds.high))


def in_turns(
    *works: Callable[[], Any], repeats: int = 5, patience: float = 10.0
) -> tuple[Seconds, ...]:
    """Return the seconds of each work, done in turns so that all see the same machine.

    Parameters
    ----------
    works : callable
        What is timed.
    repeats : int
        Of each work.
    patience : float
        Seconds after which no further turn begins.
    """
    times: list[list[float]] = [[] for _ in works]
    first_start = time.perf_counter()
    for _ in range(repeats):
        for work, work_times in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            work_times.append(time.perf_counter() - start)
        if time.perf_counter() - first_start > patience:
            break
    return tuple(Seconds.of(work_times) for work_times in times)


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that are allocated at a time while the work is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_mib() -> int:
    """Return the most memory that this process had, without that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def load() -> float:
    """Return how many processes ran or waited in the last minute."""
    return round(os.getloadavg()[0], 2)


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as the docs show it."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def into_page(page: Path, section: str, text: str) -> None:
    """Write the text between the marks of one section of a page."""
    start = f"<!-- {section} -->\n"
    end = f"<!-- end of {section} -->"
    head, old_text = page.read_text(encoding="utf-8").split(start)
    tail = old_text.split(end)[1]
    page.write_text(f"{head}{start}\n{text}\n\n{end}{tail}", encoding="utf-8")
