"""What Flower's messages cost over the core: `python benchmarks/flower.py` (extra: flower).

Clients of 100 samples and ten classes in this process, the best of five rounds. What a deployment
adds (starting processes, polling) is not in it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from robfcp import LAC, Consensus, Report, calibrate
from robfcp.integrations import run_calibration_round
from robfcp.integrations.flower import FlowerTransport, InProcessGrid, make_client_app

SAMPLES, CLASSES, REPEATS = 100, 10, 5
BUDGET = 5.0  # seconds for 100 clients


def best(work: Callable[[], object]) -> float:
    """The shortest of several runs, in seconds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    """Print a line for every number of clients; fail where 100 clients take too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", type=int, default=[10, 100, 1000])
    print("clients   core s  flower s  overhead ms a client")
    for n_clients in parser.parse_args().clients:
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.full(CLASSES, 0.4), (n_clients, SAMPLES))
        labels = (p.cumsum(axis=2) > rng.random((n_clients, SAMPLES, 1))).argmax(axis=2)
        data = {f"site-{k:05d}": (p[k], labels[k]) for k in range(n_clients)}
        options = {"defense": Consensus(at_most=n_clients // 5)}
        score = LAC()

        def core(data=data, options=options, score=score) -> float:
            reports = [Report.from_scores(c, score(*d), score=score) for c, d in data.items()]
            return calibrate(reports, **options).threshold

        def flower(data=data, options=options) -> float:
            pairs = list(data.values())
            app = make_client_app(lambda part, arrays, node: pairs[node.node_id - 1])
            network = InProcessGrid(app, [{}] * len(data), names=list(data))
            return run_calibration_round(
                FlowerTransport(network), evaluate=False, **options
            ).threshold

        assert core() == flower()
        plain, engine = best(core), best(flower)
        overhead = 1000 * (engine - plain) / n_clients
        print(f"{n_clients:7d} {plain:8.3f} {engine:9.3f} {overhead:10.3f}")
        if n_clients == 100:
            assert engine < BUDGET, f"100 clients took {engine:.1f} s"


if __name__ == "__main__":
    main()
