"""Daemon threads for calls that may hang, so that one silent client does not delay the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Iterator
from time import monotonic
from typing import Any, Generic, TypeVar

# Seconds without any result after which as many threads again are started.
THREAD_PATIENCE_SECONDS = 0.25

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class TimeoutWorkers(Generic[Key]):
    """Daemon threads that make calls; a call that hangs delays only itself.

    One thread does all the work while calls return. When none has returned for
    THREAD_PATIENCE_SECONDS, the number of threads is doubled, so that any number of hanging calls
    takes only seconds. A call that still hangs in the end is abandoned.

    Attributes
    ----------
    open : set
        The keys of the calls that have not returned.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Key, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Key, Any]] = queue.SimpleQueue()
        self._n_threads = 0
        self.open: set[Key] = set()

    def submit(self, key: Key, call: Callable[[], Any]) -> None:
        """Make the call as soon as a thread is free; a key has one call at a time."""
        self.open.add(key)
        self._calls.put((key, call))
        if self._n_threads == 0:
            self._start_threads(1)

    def results(self, end: float) -> Iterator[tuple[Key, Any]]:
        """Yield what the calls return or raise, in the order they end.

        Parameters
        ----------
        end : float
            The time, as `monotonic` has it, until which results are waited for.

        Yields
        ------
        tuple
            The key of a call, and what it returned or the exception it raised.
        """
        while self.open:
            seconds_left = end - monotonic()
            timeout = max(0.0, min(THREAD_PATIENCE_SECONDS, seconds_left))
            try:
                key, result = self._results.get(timeout=timeout)
            except queue.Empty:
                if seconds_left <= 0:
                    return
                n_waiting = len(self.open) - self._n_threads
                self._start_threads(max(0, min(self._n_threads, n_waiting)))
                continue
            self.open.discard(key)
            yield key, result

    def close(self) -> None:
        """Let the threads end when their calls do."""
        for _ in range(self._n_threads):
            self._calls.put(None)

    def _start_threads(self, n_threads: int) -> None:
        for _ in range(n_threads):
            thread = threading.Thread(target=self._work, daemon=True, name="robfcp-transport")
            thread.start()
        self._n_threads += n_threads

    def _work(self) -> None:
        """Make one call after the other until `close` ends the queue."""
        while True:
            next_call = self._calls.get()
            if next_call is None:
                return
            key, call = next_call
            try:
                result = call()
            except Exception as error:
                result = error
            self._results.put((key, result))


def call_with_timeout(call: Callable[[], Result], seconds: float) -> Result:
    """Return what the call returns; raise a TimeoutError where it takes longer than `seconds`."""
    workers: TimeoutWorkers[int] = TimeoutWorkers()
    workers.submit(0, call)
    result: Any = TimeoutError(f"no answer within {seconds:g} s")
    for _, returned in workers.results(monotonic() + seconds):
        result = returned
    workers.close()
    if isinstance(result, Exception):
        raise result
    return result
