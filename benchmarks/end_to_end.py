"""A whole round at the server: a file of reports, one a line, to a calibration with certificate.

`python benchmarks/end_to_end.py FILE` prints seconds and peak memory of this process as JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import robfcp


def write_reports(path: Path, n_clients: int, n_samples: int = 50, liars: float = 0.3) -> None:
    """Reports of Beta(0.4, 2) scores as JSON lines; the first share of the clients sends zeros."""
    grid = robfcp.Grid.default()
    rng = np.random.default_rng(n_clients)
    model = robfcp.Report.from_scores("NAME", np.zeros(n_samples), grid, score=robfcp.LAC())
    head, tail = model.to_json().split(b'{"bins":[0],"counts":[%d]}' % n_samples)
    width = len(str(n_clients))
    with path.open("wb") as stream:
        for k in range(n_clients):
            lies = k < liars * n_clients
            scores = np.zeros(n_samples) if lies else rng.beta(0.4, 2, n_samples)
            bins, counts = np.unique(grid.index(scores), return_counts=True)
            body = json.dumps({"bins": bins.tolist(), "counts": counts.tolist()}).encode()
            stream.write(head.replace(b"NAME", b"%0*d" % (width, k)) + body + tail + b"\n")


def serve(path: Path) -> dict[str, Any]:
    """Calibrate from the file and say how long it took and how much memory."""
    start = time.perf_counter()
    with path.open("rb") as stream:
        federation = robfcp.Federation.from_reports(stream)
    taken_in = time.perf_counter()
    calibration = robfcp.calibrate(federation)
    done = time.perf_counter()
    certificate = calibration.certificate
    assert isinstance(certificate, robfcp.Certificate)
    return {
        "clients": federation.n_clients,
        "samples": int(federation.sizes[0]),
        "intake_seconds": round(taken_in - start, 2),
        "calibrate_seconds": round(done - taken_in, 2),
        "seconds": round(done - start, 2),
        "peak_mib": _peak_mib(),
        "table": type(federation.table).__name__,
        "flagged": len(calibration.flagged),
        "threshold": calibration.threshold,
        "tolerance": calibration.tolerance,
        "certificate": [certificate.lower, certificate.upper],
    }


def _peak_mib() -> int:
    """The most memory this process has held; what its parent held is none of its business."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines())
    return int(fields["VmHWM"].split()[0]) // 1024


def measured(n_clients: int, folder: Path) -> dict[str, Any]:
    """The same in a process of its own, whose memory is that of the round alone."""
    path = folder / f"reports-{n_clients}.jsonl"
    write_reports(path, n_clients)
    try:
        answer = subprocess.run(
            [sys.executable, __file__, str(path)], check=True, capture_output=True, text=True
        )
    finally:
        path.unlink()
    return dict(json.loads(answer.stdout))


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]))))
