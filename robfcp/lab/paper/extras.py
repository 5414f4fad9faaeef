"""The two results that are not coverage tables: published bounds, and the time it takes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from robfcp.defence import Band, RobFCP
from robfcp.guarantees import certify
from robfcp.lab.paper.published import DATASETS
from robfcp.lab.paper.runs import edge_of
from robfcp.lab.paper.trials import PaperWorld, make_trial
from robfcp.lab.published_bounds import PublishedSetting, theorem_1

PUBLISHED_SECONDS = {  # of the quantile at 40% malicious on an RTX A6000, as the paper states them
    "mnist": 0.5284,
    "cifar10": 0.5169,
    "tinyimagenet": 0.5563,
    "sleep": 0.2227,
    "pathmnist": 0.3032,
}


BOUND_DATASETS = ("pathmnist", "sleep")
BOUND_RATIOS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
BOUND_COLUMNS = (
    "rob_fcp_coverage",
    "theorem_1_lower",
    "theorem_1_upper",
    "band_coverage",
    "certificate_lower",
    "certificate_upper",
)


def bounds(seeds: int) -> list[dict[str, Any]]:
    """Both intervals beside the measured coverage, for growing shares of coverage attackers."""
    rows = []
    for dataset in BOUND_DATASETS:
        world = PaperWorld(dataset, "iid")
        trials = [make_trial(world, seed) for seed in range(seeds)]
        for ratio in BOUND_RATIOS:
            values = []
            for seed, trial in enumerate(trials):
                m = round(ratio * trial.federation.n_clients)
                benign = trial.benign(m)
                federation = trial.attacked("coverage", m, np.random.default_rng(seed))
                published = theorem_1(
                    PublishedSetting(
                        int(benign.sum()),
                        m,
                        int(federation.sizes[benign].min()),
                        int(federation.sizes[~benign].sum()),
                        bins=100,
                    )
                )
                robust = edge_of(federation, RobFCP()(federation, m).trusted)
                edge = edge_of(federation, Band()(federation, m).trusted)
                certificate = certify(federation, edge, m, 0.95)
                values.append(
                    (
                        trial.measure(robust, benign)[0],
                        published.lower,
                        published.upper,
                        trial.measure(edge, benign)[0],
                        certificate.lower,
                        certificate.upper,
                    )
                )
            means = dict(zip(BOUND_COLUMNS, np.mean(values, axis=0).tolist(), strict=True))
            rows.append({"dataset": dataset, "ratio": ratio, **means, "seeds": seeds})
    return rows


def runtime(repeats: int = 5) -> list[dict[str, Any]]:
    """Median seconds from the reports to the threshold, 100 clients, 40 coverage attackers.

    Every repeat has a federation of its own, since a defence may remember one it has seen.
    """
    rows = []
    for dataset in DATASETS.values():
        trial = make_trial(PaperWorld(dataset, "beta0.5", "final", 0.5), 0)
        row: dict[str, Any] = {"dataset": dataset, "published": PUBLISHED_SECONDS[dataset]}
        for name, rule in (("rob-fcp", RobFCP()), ("band", Band())):
            times = []
            for _ in range(repeats):
                federation = trial.attacked("coverage", 40, np.random.default_rng(0))
                started = perf_counter()
                edge_of(federation, rule(federation, 40).trusted)
                times.append(perf_counter() - started)
            row[name] = float(np.median(times))
        rows.append(row)
    return rows
