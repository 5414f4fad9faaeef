"""Blocks of rows, done on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def n_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blocks(length: int, row_bytes: int, block_bytes: int) -> list[slice]:
    """Slices of so many rows as fit into a block."""
    step = max(1, block_bytes // max(1, row_bytes))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def on_all_cores(work: Callable[[slice], None], parts: list[slice]) -> None:
    """Do the work on every part; the first part's error, in their order, is raised."""
    if len(parts) < 2 or n_cores() < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(n_cores()) as pool:
        for _ in pool.map(work, parts):
            pass
