"""What Flower's messages cost over the core: `python benchmarks/flower.py` (extra: flower).

Clients of 100 samples and ten classes in this process, the best of five rounds. What a deployment
adds (starting processes, polling) is not in it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from robfcp import LAC, Consensus, Report, calibrate
from robfcp.integrations import run_calibration_round
from robfcp.integrations.flower import FlowerTransport, InProcessGrid, make_client_app

SAMPLES = 100
CLASSES = 10
REPEATS = 5
MAX_SECONDS = 5.0  # for 100 clients

# Client -> probabilities and labels.
ClientData = dict[str, tuple[NDArray[np.float64], NDArray[np.intp]]]


def best_seconds(work: Callable[[], object]) -> float:
    """Return the shortest time of several runs."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def make_data(n_clients: int) -> ClientData:
    """Return the outputs and labels of clients."""
    rng = np.random.default_rng(0)
    outputs = rng.dirichlet(np.full(CLASSES, 0.4), (n_clients, SAMPLES))
    uniforms = rng.random((n_clients, SAMPLES, 1))
    labels = (outputs.cumsum(axis=2) > uniforms).argmax(axis=2)
    return {f"site-{k:05d}": (outputs[k], labels[k]) for k in range(n_clients)}


def calibrate_directly(data: ClientData, defense: Consensus) -> float:
    """Return the threshold without any messages."""
    score = LAC()
    reports = []
    for client, (outputs, labels) in data.items():
        reports.append(Report.from_scores(client, score(outputs, labels), score=score))
    return calibrate(reports, defense=defense).threshold


def calibrate_by_flower(data: ClientData, defense: Consensus) -> float:
    """Return the threshold of a round of Flower messages in this process."""
    pairs = list(data.values())
    app = make_client_app(lambda partition, arrays, node: pairs[node.node_id - 1])
    network = InProcessGrid(app, [{}] * len(data), names=list(data))
    calibration = run_calibration_round(FlowerTransport(network), evaluate=False, defense=defense)
    return calibration.threshold


def main() -> None:
    """Print a line for every number of clients; fail where 100 clients take too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", type=int, default=[10, 100, 1000])
    print("clients   core s  flower s  overhead ms a client")
    for n_clients in parser.parse_args().clients:
        data = make_data(n_clients)
        defense = Consensus(max_malicious=n_clients // 5)
        assert calibrate_directly(data, defense) == calibrate_by_flower(data, defense)
        direct_seconds = best_seconds(partial(calibrate_directly, data, defense))
        flower_seconds = best_seconds(partial(calibrate_by_flower, data, defense))
        overhead = 1000 * (flower_seconds - direct_seconds) / n_clients
        print(f"{n_clients:7d} {direct_seconds:8.3f} {flower_seconds:9.3f} {overhead:10.3f}")
        if n_clients == 100:
            assert flower_seconds < MAX_SECONDS, f"100 clients took {flower_seconds:.1f} s"


if __name__ == "__main__":
    main()
