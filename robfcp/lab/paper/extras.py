"""The results that are not coverage tables: published bounds, where they say anything, and time."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from robfcp.defence import named_defence
from robfcp.guarantees import certify
from robfcp.lab.paper.methods import OURS, RELEASED, TEXT
from robfcp.lab.paper.published import DATASETS
from robfcp.lab.paper.runs import by_calibration, edge_of
from robfcp.lab.paper.trials import PaperWorld, make_trial
from robfcp.lab.published_bounds import (
    PublishedSetting,
    released_code_variant,
    theorem_1,
    theorem_1_dkw,
)

PUBLISHED_SECONDS = {  # of the quantile at 40% malicious on an RTX A6000, as the paper states them
    "mnist": 0.5284,
    "cifar10": 0.5169,
    "tinyimagenet": 0.5563,
    "sleep": 0.2227,
    "pathmnist": 0.3032,
}

BOUND_WORLDS = (  # the paper's figure is the first
    ("tinyimagenet", "gaussian"),
    ("tinyimagenet", "coverage"),
    ("pathmnist", "coverage"),
    ("sleep", "coverage"),
)
BOUND_RATIOS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
BOUNDS = (("theorem_1", theorem_1), ("dkw", theorem_1_dkw), ("code", released_code_variant))
BOUND_COLUMNS = (
    "text_coverage",
    *(f"{name}_{end}" for name, _ in BOUNDS for end in ("lower", "upper")),
    "ours_coverage",
    "certificate_lower",
    "certificate_upper",
)


def bounds(seeds: int) -> list[dict[str, Any]]:
    """Published and proved intervals beside the measured coverage, for growing shares of liars."""
    rows = []
    for dataset, attack in BOUND_WORLDS:
        trials = [make_trial(PaperWorld(dataset, "iid"), seed) for seed in range(seeds)]
        for ratio in BOUND_RATIOS:
            values = []
            for seed, trial in enumerate(trials):
                m = round(ratio * trial.federation.n_clients)
                benign = trial.benign(m)
                federation = trial.attacked(attack, m, np.random.default_rng(seed))
                setting = PublishedSetting(
                    int(benign.sum()),
                    m,
                    int(federation.sizes[benign].min()),
                    int(federation.sizes[~benign].sum()),
                    bins=100,
                )
                published = [rule(setting) for _, rule in BOUNDS]
                text = edge_of(federation, named_defence(TEXT, m)(federation).trusted)
                ours = by_calibration(federation, OURS, m).edge
                certificate = certify(federation, ours, m, 0.95)
                values.append(
                    (
                        trial.measure(text, benign)[0],
                        *(end for bound in published for end in (bound.lower, bound.upper)),
                        trial.measure(ours, benign)[0],
                        certificate.lower,
                        certificate.upper,
                    )
                )
            means = dict(zip(BOUND_COLUMNS, np.mean(values, axis=0).tolist(), strict=True))
            rows.append(
                {"dataset": dataset, "attack": attack, "ratio": ratio, **means, "seeds": seeds}
            )
    return rows


THEOREM_SETTINGS = (  # K, K_m, H
    *((6, 1, 2), (10, 1, 2), (10, 3, 2), (20, 5, 2), (100, 10, 2), (100, 40, 2)),
    *((6, 1, 10), (20, 5, 10), (100, 10, 10), (100, 40, 10)),
    *((6, 1, 100), (20, 5, 100), (100, 10, 100), (100, 40, 100)),
)


def theorem() -> list[dict[str, Any]]:
    """From how many samples a client Theorem 1 says anything: equal sizes, sigma and eps 0."""
    return [
        {
            "K": k,
            "K_m": m,
            "H": bins,
            "n_b: lower end above 0": _samples(k, m, bins, lambda b: b[0] > 0),
            "n_b: upper end below 1": _samples(k, m, bins, lambda b: b[1] < 1),
            "n_b: within 0.05 of 0.9": _samples(k, m, bins, _close),
            "at n_b = 80,000": "[{:.3f}, {:.3f}]".format(*_theorem_at(k, m, bins, 80_000)),
        }
        for k, m, bins in THEOREM_SETTINGS
    ]


def _close(interval: tuple[float, float]) -> bool:
    return max(interval[1] - 0.9, 0.9 - interval[0]) <= 0.05


def _theorem_at(k: int, m: int, bins: int, n: int) -> tuple[float, float]:
    bound = theorem_1(PublishedSetting(k - m, m, n, m * n, bins=bins))
    return bound.lower, bound.upper


def _samples(k: int, m: int, bins: int, good: Any) -> int:
    """The least n, to three digits, from which the interval is good; it narrows as n grows."""
    low, high = 1, 10**15
    while low < high:
        middle = (low + high) // 2
        if good(_theorem_at(k, m, bins, middle)):
            high = middle
        else:
            low = middle + 1
    digits = max(0, len(str(low)) - 3)
    return -(-low // 10**digits) * 10**digits


def runtime(repeats: int = 5) -> list[dict[str, Any]]:
    """Median seconds from the reports to the threshold, 100 clients, 40 coverage attackers.

    Every repeat has a federation of its own, since a defence may remember one it has seen.
    """
    rows = []
    for dataset in DATASETS.values():
        trial = make_trial(PaperWorld(dataset, "beta0.5", "final", 0.5), 0)
        row: dict[str, Any] = {"dataset": dataset, "published": PUBLISHED_SECONDS[dataset]}
        for name in (TEXT, RELEASED, OURS):
            rule = named_defence(name, 40)
            times = []
            for _ in range(repeats):
                federation = trial.attacked("coverage", 40, np.random.default_rng(0))
                started = perf_counter()
                edge_of(federation, rule(federation).trusted)
                times.append(perf_counter() - started)
            row[name] = float(np.median(times))
        rows.append(row)
    return rows
