"""Exact neighbour means on an accelerator: `python benchmarks/gpu.py [-o gpu.json] [--million]`.

Prints times, the share of the device's measured matrix-product and copy rates, and whether the
trusted set equals the CPU's. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robfcp.defence import trust_lowest
from robfcp.defence.distances import neighbour_means
from robfcp.defence.rob_fcp import nearest_means

BINS, SAMPLES, BENIGN = 100, 50, 0.6


def sketches(n_clients: int, attack: str = "none") -> NDArray[np.float64]:
    """(K, 100) histograms of 50 Beta(0.6, 2) scores, 40% of the clients malicious."""
    rng = np.random.default_rng(n_clients)
    vectors = np.empty((n_clients, BINS))
    liars = n_clients - int(BENIGN * n_clients)
    for start in range(0, n_clients, 10_000):
        stop = min(start + 10_000, n_clients)
        scores = rng.beta(0.6, 2, (stop - start, SAMPLES))
        lying = scores[: max(0, liars - start)]
        if attack == "gaussian":
            lying[:] = np.clip(lying + rng.normal(0, 0.1, lying.shape), 0, 1)
        elif attack != "none":
            lying[:] = {"coverage": 0.0, "efficiency": 1.0}[attack]
        cells = np.minimum((scores * BINS).astype(np.intp), BINS - 1)
        cells += BINS * np.arange(stop - start)[:, None]
        counts = np.bincount(cells.ravel(), minlength=BINS * (stop - start))
        vectors[start:stop] = counts.reshape(-1, BINS) / SAMPLES
    return vectors


def seconds(work: Callable[[], Any], device: str, repeats: int = 3) -> float:
    """The least wall time, with the device idle before and after."""
    import torch

    times = []
    for _ in range(repeats):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def limits(device: str, size: int) -> dict[str, float]:
    """Measured float64 matrix-product rate (TFLOP/s) and copy rate (TB/s, read and written)."""
    import torch

    a = torch.randn(size, size, dtype=torch.float64, device=device)
    b = torch.empty_like(a)
    product = seconds(lambda: torch.mm(a, a, out=b), device, 5)
    copy = seconds(lambda: b.copy_(a), device, 5)
    return {
        "gemm_tflops": round(2 * size**3 / product / 1e12, 3),
        "copy_tbs": round(2 * a.numel() * 8 / copy / 1e12, 3),
    }


def agreement(device: str, n_clients: int) -> dict[str, bool]:
    """Whether the trusted sets of device and CPU are equal, under every plain attack."""
    ids = tuple(f"{k:06d}" for k in range(n_clients))
    n_benign = int(BENIGN * n_clients)
    same = {}
    for attack in ("none", "coverage", "efficiency", "gaussian"):
        vectors = sketches(n_clients, attack)
        ours = nearest_means(vectors, n_benign, "l2", device=device).means
        exact = neighbour_means(vectors, "l2", 1, n_benign - 1)
        trusted = (trust_lowest(number, ids, n_benign) for number in (ours, exact))
        same[attack] = bool(np.array_equal(*trusted))
    return same


def timed(device: str, n_clients: int, repeats: int, rates: dict[str, float]) -> dict[str, Any]:
    """Time from the vectors on the host to the means on the host, and the shares of the limits."""
    vectors = sketches(n_clients, "gaussian")
    n_benign = int(BENIGN * n_clients)
    spent = seconds(lambda: nearest_means(vectors, n_benign, "l2", device=device), device, repeats)
    product = 2 * n_clients**2 * (BINS + 2) / 1e12 / rates["gemm_tflops"]
    passes = n_clients**2 * 8 * 2 / 1e12 / rates["copy_tbs"]
    return {
        "clients": n_clients,
        "seconds": round(spent, 4),
        "share_of_gemm_limit": round(product / spent, 4),
        "copies_of_the_distances": round(spent / passes, 2),
    }


def sorting(device: str, n_clients: int, rows: int = 2048) -> dict[str, float]:
    """Seconds for all rows of a full float32 sort and of our selection, from a block of rows."""
    import torch

    block = torch.rand(rows, n_clients, dtype=torch.float32, device=device)
    kth = int(BENIGN * n_clients)
    times = {
        "sort": seconds(lambda: block.sort(dim=1), device),
        "kthvalue": seconds(lambda: block.kthvalue(kth, dim=1), device),
    }
    return {name: round(spent * n_clients / rows, 3) for name, spent in times.items()}


def main() -> None:
    """Run everything, print it, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--small", action="store_true", help="a rehearsal without an accelerator")
    arguments = parser.parse_args()
    import torch

    device, scale = arguments.device, 50 if arguments.small else 1
    result: dict[str, Any] = {"device": "cpu"}
    if device.startswith("cuda"):
        result["device"] = torch.cuda.get_device_name()

    def add(name: str, value: Any) -> None:
        result[name] = value
        print(name, json.dumps(value), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    add("limits", limits(device, 8192 // (8 if arguments.small else 1)))
    add("timed 10^4", timed(device, 10_000 // scale, 3, result["limits"]))
    add("timed 10^5", timed(device, 100_000 // scale, 3, result["limits"]))
    add("selection 10^5", sorting(device, 100_000 // scale, 2048 // scale))
    add("same trusted set as the CPU", agreement(device, 10_000 // scale))
    if arguments.million:
        add("timed 10^6", timed(device, 1_000_000 // scale**2, 1, result["limits"]))


if __name__ == "__main__":
    main()
