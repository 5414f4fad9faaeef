"""Fuzz: break files, rounds and requests, and exit with 1 if anything escapes or costs too much.

python tests/fuzz/run.py TARGET ... [--cases N | --seconds T] [--seed S]

TARGET: files (valid ones, broken where it hurts, then read and used as people do), or rounds and
requests on loopback, flower or nvflare. Printed: outcomes, the slowest case, memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # tests, where pytest looks as well
from fuzz.cases import MEBIBYTE, Target, interrupt_hanging_cases, peak_memory_bytes, run_case
from fuzz.files import HostileFiles
from fuzz.integrations import DRIVERS, HostileIntegration

TARGETS = ("files", *DRIVERS)
MAX_PROCESS_BYTES = 6 * 2**30  # then allocations fail, before the machine swaps
MAX_LISTED_ESCAPES = 10


def main() -> int:
    """Fuzz the targets that the command names, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--cases", type=int, default=30_000, help="for each target")
    parser.add_argument("--seconds", type=float, default=0.0, help="for all targets, not --cases")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    interrupt_hanging_cases()
    os.umask(0o077)  # private keys that others can read are refused
    seconds = options.seconds / len(options.targets)
    n_escapes = 0
    for name in options.targets:
        with tempfile.TemporaryDirectory() as folder:
            target = make_target(name, Path(folder))
            n_escapes += fuzz(name, target, case_indices(options.cases, seconds), options.seed)
    return 1 if n_escapes else 0


def make_target(name: str, folder: Path) -> Target:
    """Set up what is fuzzed, its files in this folder."""
    if name == "files":
        # Only for files: the frameworks' threads reserve address space that they never use.
        resource.setrlimit(resource.RLIMIT_AS, (MAX_PROCESS_BYTES, MAX_PROCESS_BYTES))
        return HostileFiles(folder)
    return HostileIntegration(name, folder)


def case_indices(n_cases: int, seconds: float) -> Iterator[int]:
    """Count the cases up to a number of them, or for so many seconds where that is not 0."""
    if not seconds:
        yield from range(n_cases)
        return

    end = time.monotonic() + seconds
    for index in itertools.count():
        if time.monotonic() >= end:
            return
        yield index


def fuzz(name: str, target: Target, indices: Iterable[int], seed: int) -> int:
    """Run cases, print what came of them, and return how many escaped.

    A case depends on the seed and its index alone, so that it can be run again.
    """
    memory_before = peak_memory_bytes()
    n_cases = 0
    outcomes: Counter[tuple[str, str]] = Counter()  # by kind and first word
    escapes = []
    slowest_seconds = 0.0
    slowest_case = ""
    for index in indices:
        result = run_case(target, index, np.random.default_rng([seed, index]))
        n_cases += 1
        outcomes[result.kind, result.outcome.split(" ")[0]] += 1
        if result.escaped:
            escapes.append(f"{name} {result.kind} {index}, seed {seed}: {result.outcome}")
        if result.seconds > slowest_seconds:
            slowest_seconds = result.seconds
            slowest_case = f"{result.kind} {index}"
    memory_growth = (peak_memory_bytes() - memory_before) / MEBIBYTE

    print_outcomes(outcomes)
    print(
        f"{name}: {n_cases} cases, seed {seed}: {len(escapes)} escapes; "
        f"slowest {slowest_seconds:.2f} s ({slowest_case}); memory grew by {memory_growth:.0f} MiB"
    )
    print(*escapes[:MAX_LISTED_ESCAPES], sep="\n")
    return len(escapes)


def print_outcomes(outcomes: Counter[tuple[str, str]]) -> None:
    """Print a line for every kind: how often each outcome came."""
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, outcome), count in outcomes.items():
        by_kind.setdefault(kind, {})[outcome] = count
    for kind in sorted(by_kind):
        print(f"{kind:24s} {by_kind[kind]}")


if __name__ == "__main__":
    sys.exit(main())
