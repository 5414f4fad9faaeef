"""All benchmarks: `python benchmarks/run.py` writes docs/speed.md, its plot and the history.

One run on a machine that does nothing else: it is refused where other work waits, unless
`--disturbed` lets the page state it. `--largest` is the most clients (default a million:
some minutes on two cores); `--quick` is a rehearsal that writes nothing but what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import intake
import numpy as np
import server
import stages
from measure import QUIET, Row, load
from report import page, plot

from robfcp._files import write_atomically

FOLDER = Path(__file__).resolve().parent
HISTORY = FOLDER / "history"


def measure_rows(largest: int) -> Iterator[Row]:
    """Yield every stage at every size up to the largest."""

    def up_to_largest(*sizes: int) -> list[int]:
        """Return the sizes that are not too large."""
        return [size for size in sizes if size <= largest]

    yield from stages.client_side()
    yield from stages.sketching([50, 1000, 100_000])
    yield from server.reporting_by_class([50, 1000, 100_000])
    yield from intake.from_json(up_to_largest(100, 1000, 10_000))
    yield from server.calibrating(up_to_largest(100, 1000, 10_000, 100_000))
    yield from server.certifying(up_to_largest(1000, 10_000, 100_000, 1_000_000))
    yield from server.pruning(up_to_largest(100, 1000))
    yield from server.paging(up_to_largest(20, 200, 2000))
    yield from server.exact_distances(up_to_largest(1000, 3000, 10_000))


def measure_rounds(largest: int) -> Iterator[dict[str, Any]]:
    """Yield whole rounds of every size up to the largest."""
    for n_clients in (1000, 100_000, 1_000_000):
        if n_clients <= largest:
            yield from intake.rounds(n_clients)


def row_text(row: Row) -> str:
    """Return a line for the terminal."""
    ratio_text = ""
    if row.lower_bound is not None:
        ratio_text = f"{row.seconds / row.lower_bound:9.2f} x lower bound"
    alternative_text = ""
    if row.alternative is not None:
        alternative_text = f"{row.alternative / row.seconds:9.1f} x alternative"
    size = f"K = {row.n_clients:<9,} n = {row.n_samples:<9,}"
    return f"{row.stage:36}{size}{row.seconds:10.5f} s{ratio_text}{alternative_text}"


def main() -> None:
    """Run, print as it goes, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--disturbed", action="store_true")
    arguments = parser.parse_args()
    largest = 1000 if arguments.quick else arguments.largest
    load_before = load()
    start = time.time()
    if load_before > QUIET and not (arguments.quick or arguments.disturbed):
        sys.exit(
            f"load {load_before}: other work waits; wait until it is below {QUIET}, or --disturbed"
        )

    rows = []
    for row in measure_rows(largest):
        rows.append(row)
        print(row_text(row), flush=True)
    rounds = []
    for round_result in measure_rounds(largest):
        rounds.append(round_result)
        print("round", json.dumps(round_result), flush=True)

    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime(start)),
        "seconds": round(time.time() - start),
        "load_before": load_before,
        "load_after": load(),
        "cores": os.cpu_count(),
        "numpy": np.__version__,
        "rows": [asdict(row) for row in rows],
        "rounds": rounds,
    }
    print(f"{result['seconds']} s; load {load_before} before, {result['load_after']} after")
    if arguments.quick:
        page(result)
        return
    HISTORY.mkdir(exist_ok=True)
    name = time.strftime("%Y-%m-%d-%H%M", time.gmtime(start))
    write_atomically(HISTORY / f"{name}.json", json.dumps(result, indent=1) + "\n")
    docs = FOLDER.parent / "docs"
    plot(rows, docs / "images" / "speed.png")
    write_atomically(docs / "speed.md", page(result))


if __name__ == "__main__":
    main()
