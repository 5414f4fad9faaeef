"""Run one case of a fuzzing target and judge what came of it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from robfcp.errors import RobfcpError

MEBIBYTE = 2**20
MAX_CASE_BYTES = 2**30  # by which the memory of the process may grow in one case
HANGING_SECONDS = 30  # after which a case is interrupted


class Target(Protocol):
    """What is fuzzed."""

    case_kinds: list[str]  # of cases, which take turns
    max_seconds: float  # that a case may take
    clock: Callable[[], float]  # by which they are counted

    def run_case(self, kind: str, rng: np.random.Generator) -> None:
        """Break something at random and use it; raise nothing but RobfcpError."""


class CaseResult(NamedTuple):
    """What came of a case."""

    kind: str
    outcome: str  # "read", "refused", or what went wrong, its first word in capitals
    seconds: float

    @property
    def escaped(self) -> bool:
        """Whether this should not have happened."""
        return self.outcome not in ("read", "refused")


class CaseHangs(BaseException):
    """A case was interrupted; no Exception, so that no reader swallows it."""


def run_case(target: Target, index: int, rng: np.random.Generator) -> CaseResult:
    """Run one case, interrupt it if it hangs, and judge what came of it."""
    kind = target.case_kinds[index % len(target.case_kinds)]
    memory_before = peak_memory_bytes()
    start = target.clock()
    signal.setitimer(signal.ITIMER_REAL, HANGING_SECONDS)
    try:
        target.run_case(kind, rng)
        outcome = "read"
    except KeyboardInterrupt:
        raise
    except RobfcpError as error:
        outcome = "refused" if str(error).isprintable() else "UNPRINTABLE"
    except BaseException as error:  # libraries in other languages raise some of their own
        outcome = f"ESCAPE {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

    seconds = target.clock() - start
    n_bytes = peak_memory_bytes() - memory_before
    if seconds > target.max_seconds or n_bytes > MAX_CASE_BYTES:
        outcome = f"COST {seconds:.1f} s, {n_bytes / MEBIBYTE:.0f} MiB"
    return CaseResult(kind, outcome, seconds)


def interrupt_hanging_cases() -> None:
    """Let the timer of `run_case` end a case; without this it ends the process."""
    signal.signal(signal.SIGALRM, _interrupt)


def _interrupt(*_: object) -> None:
    raise CaseHangs


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held so far (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
