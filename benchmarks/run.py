"""All benchmarks: `python benchmarks/run.py` writes docs/speed.md, its plot and the history.

`--largest` is the most clients (default a million: some ten minutes on two cores); `--quick` is a
rehearsal that writes nothing but what it prints.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import end_to_end
import numpy as np
import stages
import strata
from measure import Row
from report import page, plot

from robfcp._util.files import write_atomically
from robfcp._util.parallel import n_cores

HERE = Path(__file__).resolve().parent
HISTORY = HERE / "history"


def rows(largest: int) -> Iterable[Row]:
    """Every stage at every size up to the largest."""
    sizes = [k for k in (10, 100, 1000, 10_000, 100_000, 1_000_000) if k <= largest]
    yield from stages.against_plain_code()
    yield from stages.client_side()
    yield from stages.sketching([50, 1000, 100_000])
    yield from strata.reporting_by_class([50, 1000, 10_000, 100_000])
    yield from strata.pruning([k for k in (100, 1000) if k <= largest])
    yield from stages.intake([k for k in sizes if k <= 10_000])
    yield from stages.exact_distances([k for k in (1000, 3000, 10_000, 100_000) if k <= largest])
    yield from stages.server_side(sizes)


def main() -> None:
    """Run, print as it goes, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--note", help="what a reader of the page should know about this run")
    arguments = parser.parse_args()
    largest = 1000 if arguments.quick else arguments.largest
    found: list[Row] = []
    for row in rows(largest):
        found.append(row)
        floor = "" if row.floor is None else f"  {row.seconds / row.floor:8.2f} x floor"
        instead = "" if row.instead is None else f"  {row.instead / row.seconds:8.1f} x instead"
        size = f"K = {row.clients:<9,} n = {row.samples:<9,}"
        print(f"{row.stage:28}{size}{row.seconds:10.4f} s{floor}{instead}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rounds: list[dict[str, Any]] = []
        for n_clients in (k for k in (1000, 10_000, 100_000, 1_000_000) if k <= largest):
            rounds.append(end_to_end.measured(n_clients, Path(folder)))
            print("round", json.dumps(rounds[-1]), flush=True)
    if arguments.quick:
        return
    gpu = HISTORY / "gpu.json"
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": n_cores(),
        "numpy": np.__version__,
        "rows": [asdict(row) for row in found],
        "rounds": rounds,
        "notes": [arguments.note] if arguments.note else [],
        "gpu": json.loads(gpu.read_text(encoding="utf-8")) if gpu.exists() else None,
    }
    HISTORY.mkdir(exist_ok=True)
    write_atomically(HISTORY / f"{result['date']}.json", json.dumps(result, indent=1) + "\n")
    docs = HERE.parent / "docs"
    plot(found, docs / "images" / "speed.png")
    write_atomically(docs / "speed.md", page(result))


if __name__ == "__main__":
    main()
