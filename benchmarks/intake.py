"""Taking reports in, and whole rounds.

Every round runs in a process of its own, whose memory is that of the round alone:
`python benchmarks/intake.py FILE [--by-class]` serves one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from measure import Row, in_turns, peak, peak_mib

import robfcp
from robfcp.federation import Federation

CLASSES, SAMPLES = 10, 50


def lines(n_clients: int, n_classes: int = 0, liars: float = 0.3) -> Iterator[bytes]:
    """Reports of Beta(0.4, 2) scores as JSON; the first share of the clients sends zeros."""
    grid = robfcp.Grid.default()
    rng = np.random.default_rng([n_clients, n_classes])
    more = {"labels": np.zeros(1, dtype=int), "classes": n_classes} if n_classes else {}
    model = robfcp.Report.from_scores("NAME", np.zeros(1), grid, score=robfcp.LAC(), **more)
    text = model.to_json().replace(b'"n_samples":1', b'"n_samples":%d' % SAMPLES)
    head, tail = text.split(
        b'"steps":[0],"counts":[1]' if n_classes else b'"bins":[0],"counts":[1]'
    )
    word = "steps" if n_classes else "bins"
    width = len(str(n_clients))
    for k in range(n_clients):
        scores = np.zeros(SAMPLES) if k < liars * n_clients else rng.beta(0.4, 2, SAMPLES)
        cell = grid.index(scores)
        if n_classes:
            cell = cell + grid.n_bins * rng.integers(0, n_classes, SAMPLES)
        used, counts = np.unique(cell, return_counts=True)
        used = np.diff(used, prepend=0) if n_classes else used
        body = f'"{word}":{used.tolist()},"counts":{counts.tolist()}'.replace(" ", "").encode()
        yield head.replace(b"NAME", b"%0*d" % (width, k)) + body + tail


def from_json(sizes: list[int]) -> Iterator[Row]:
    """Intake of JSON; floor: decoding it."""
    for n_classes in (0, CLASSES):
        stage = "validate, ten classes" if n_classes else "validate"
        for n_clients in sizes:
            data = list(lines(n_clients, n_classes))
            ours, floor = in_turns(
                lambda data=data: Federation.from_reports(iter(data)),
                lambda data=data: [msgspec.json.decode(line) for line in data],
            )
            memory = peak(lambda data=data: Federation.from_reports(iter(data)))
            yield Row(stage, n_clients, SAMPLES, ours, memory, floor)


def serve(path: Path, by_class: bool) -> dict[str, Any]:
    """A whole round from a file of lines; seconds and peak memory of this process."""
    start, began = time.perf_counter(), time.process_time()
    with path.open("rb") as stream:
        federation = Federation.from_reports(stream)
    taken_in, held, busy = time.perf_counter(), peak_mib(), time.process_time() - began
    calibration = (
        robfcp.calibrate(federation, by="class") if by_class else robfcp.calibrate(federation)
    )
    return {
        "clients": federation.n_clients,
        "by_class": by_class,
        "intake_seconds": round(taken_in - start, 2),
        "intake_cpu_seconds": round(busy, 2),
        "calibrate_seconds": round(time.perf_counter() - taken_in, 2),
        "cpu_seconds": round(time.process_time() - began, 2),
        "intake_peak_mib": held,
        "peak_mib": peak_mib(),
        "flagged": len(calibration.flagged),
    }


def rounds(n_clients: int) -> Iterator[dict[str, Any]]:
    """Whole rounds from JSON lines, without classes and with ten."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reports.jsonl"
        for n_classes in (0, CLASSES):
            with path.open("wb") as stream:
                stream.writelines(line + b"\n" for line in lines(n_clients, n_classes))
            command = [sys.executable, __file__, str(path)]
            command += ["--by-class"] if n_classes else []
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            yield dict(json.loads(answer.stdout))


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]), "--by-class" in sys.argv)))
