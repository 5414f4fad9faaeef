"""Calls that may hang, done one after another until one does, then beside each other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
PATIENCE = 0.25  # seconds without any result after which as many threads again are started


@dataclass(frozen=True)
class Done(Generic[K]):
    """What a call gave, or the exception it ended with."""

    key: K
    value: Any = None
    error: Exception | None = None


class Workers(Generic[K]):
    """Daemon threads that make calls; a call that hangs holds up nobody but itself.

    One thread does all the work while calls return. When none has returned for PATIENCE seconds,
    the number of threads is doubled, so that any number of hanging calls is passed by in a few
    seconds. What still hangs in the end is left behind.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[K, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Done[K]] = queue.SimpleQueue()
        self._threads = 0
        self.open: set[K] = set()

    def submit(self, key: K, call: Callable[[], Any]) -> None:
        """Make the call as soon as a thread is free; one call a key at a time."""
        self.open.add(key)
        self._calls.put((key, call))
        if not self._threads:
            self._start(1)

    def results(self, end: float) -> Iterator[Done[K]]:
        """What the calls give, in the order they end, until all have or the time is `end`."""
        while self.open:
            left = end - monotonic()
            try:
                done = self._results.get(timeout=max(0.0, min(PATIENCE, left)))
            except queue.Empty:
                if left <= 0:
                    return
                self._start(max(0, min(self._threads, len(self.open) - self._threads)))
                continue
            self.open.discard(done.key)
            yield done

    def close(self) -> None:
        """Let the threads end when their calls do."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _start(self, number: int) -> None:
        for _ in range(number):
            threading.Thread(target=self._work, daemon=True, name="robfcp-engine").start()
        self._threads += number

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            key, make = call
            try:
                done = Done(key, make())
            except Exception as error:
                done = Done(key, error=error)
            self._results.put(done)


def bounded(call: Callable[[], Any], seconds: float) -> Done[int]:
    """What the call gives within so many seconds; a TimeoutError where it does not return."""
    workers: Workers[int] = Workers()
    workers.submit(0, call)
    for done in workers.results(monotonic() + seconds):
        workers.close()
        return done
    workers.close()
    return Done(0, error=TimeoutError(f"no answer within {seconds:g} s"))
