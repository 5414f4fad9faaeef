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
    def of(times: list[float]) -> Seconds:
        """The median and the quartiles of some times."""
        low, middle, high = np.quantile(times, [0.25, 0.5, 0.75])
        found = Seconds(middle)
        found.low, found.high = float(low), float(high)
        return found

    def times(self, number: float) -> Seconds:
        """The same of work that is so many times as much."""
        return Seconds.of([number * self.low, number * self, number * self.high])


@dataclass(frozen=True)
class Row:
    """One stage at one size, next to its floor and to what a user would take instead.

    Seconds are medians of the same run; `spread` are the quartiles of the first of them, `peak` is
    bytes beyond the input.
    """

    stage: str
    clients: int
    samples: int
    seconds: float
    peak: int
    floor: float | None = None
    instead: float | None = None
    spread: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seconds, Seconds) and self.spread is None:
            object.__setattr__(self, "spread", (self.seconds.low, self.seconds.high))


def in_turns(
    *works: Callable[[], Any], repeats: int = 5, patience: float = 10.0
) -> tuple[Seconds, ...]:
    """The seconds of each work, taken in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in works]
    began = time.perf_counter()
    for _ in range(repeats):
        for work, spent in zip(works, times, strict=True):
            start = time.perf_counter()
            work()
            spent.append(time.perf_counter() - start)
        if time.perf_counter() - began > patience:
            break
    return tuple(map(Seconds.of, times))


def peak(work: Callable[[], Any]) -> int:
    """Bytes allocated at most while the work is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_mib() -> int:
    """The most memory this process has held; what its parent held is none of its business."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def load() -> float:
    """How many processes ran or waited in the last minute."""
    return round(os.getloadavg()[0], 2)


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table as the docs show it."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def into_page(page: Path, part: str, text: str) -> None:
    """Write the text between the marks of one part of a page."""
    start, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
    before, rest = page.read_text(encoding="utf-8").split(start)
    page.write_text(f"{before}{start}\n{text}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")
