"""Every table and figure of the paper as cases: a world, a run, and what was published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any, get_args

from robfcp.defense._rob_fcp import Characterization, Metric
from robfcp.experiments.baselines import FEDCP_QQ
from robfcp.experiments.paper.runner import (
    BY_CLASS,
    CONSENSUS,
    FCP,
    ROB_FCP,
    ROB_FCP_RELEASED,
    PaperScenario,
    Run,
)

BASELINES = (FCP, FEDCP_QQ, ROB_FCP, ROB_FCP_RELEASED)
COMPARED = (*BASELINES, CONSENSUS)
ALL_METHODS = (*COMPARED, BY_CLASS)
DETECTORS = (ROB_FCP, ROB_FCP_RELEASED, CONSENSUS)  # those that say how many lie
DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "Tiny-ImageNet": "tinyimagenet",
    "SHHS": "sleep",  # ours: Sleep-EDF Expanded, since SHHS is not public
    "PathMNIST": "pathmnist",
}
ATTACKS = ("coverage", "efficiency", "gaussian")
EARLY = {("mnist", "beta0.5"), ("cifar10", "iid"), ("cifar10", "beta0.5")}
WAKE = "wake"  # what the paper's appendix splits its sleep data by where others are Dirichlet(0.5)
RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
Figure = tuple[float, float]


Published = dict[tuple[str, float, float, str, str, str], dict[str, Figure]]


@cache
def read_published_results() -> dict[str, Published]:
    """The 578 published figures (coverage and set size): by table, setting and method.

    A setting is our name of the data set, beta (0 is an iid split), the share of malicious clients,
    whether their number is known, unknown or misstated, the attack, and the variant: a sleep stage,
    an assumed share, a number of bins.
    """
    text = files("robfcp.experiments.paper").joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[str, Published] = {}
    for row in csv.DictReader(text.splitlines()):
        table, _, variant = row["table"].partition(":")
        split = DATASETS[row["dataset"]], float(row["dirichlet_beta"] or 0)
        liars = float(row["malicious_ratio"]), row["malicious_number"], row["attack"]
        methods = found.setdefault(table, {}).setdefault((*split, *liars, variant), {})
        methods[row["method"]] = float(row["coverage"]), float(row["set_size"])
    return found


@dataclass(frozen=True)
class ExperimentCase:
    """One cell: what is run on which clients, and the paper's figure where it has one."""

    world: PaperScenario
    run: Run
    number: str
    variant: str = ""
    published: Figure | None = None


def worlds(dataset: str, beta: float, **more: Any) -> Iterator[PaperScenario]:
    """The shipped models for a data set: the final one and, where it ships, the early one.

    Sleep at beta 0.5 is split by the share of wake, as the paper did, and by Dirichlet(0.5) too.
    """
    split = "iid" if beta == 0 else "beta0.5"
    if dataset == "sleep" and beta > 0:
        yield PaperScenario(dataset, split, "final", attribute=WAKE, **more)
    yield PaperScenario(dataset, split, "final", beta, **more)
    if (dataset, split) in EARLY:
        yield PaperScenario(dataset, split, "early", beta, **more)


def both_splits(datasets: Sequence[str], **more: Any) -> Iterator[PaperScenario]:
    """The worlds of some data sets, iid and at Dirichlet(0.5)."""
    for dataset, beta in product(datasets, (0.0, 0.5)):
        yield from worlds(dataset, beta, **more)


def compare_methods(
    world: PaperScenario,
    run: Run,
    variant: str = "",
    *,
    number: str = "known",
    published: Mapping[str, Figure] | None = None,
    methods: Sequence[str] = COMPARED,
    varied: Sequence[str] = (),
) -> Iterator[ExperimentCase]:
    """All methods in one setting, each with its published figure.

    What `run` says of distance, characterisation and bins holds for the `varied` methods only.
    """
    for method in methods:
        own = run if method in varied else Run(run.attack, run.ratio, method, run.told)
        figure = (published or {}).get(method)
        yield ExperimentCase(world, replace(own, method=method), number, variant, figure)


def from_table(
    name: str, methods: Sequence[str] = COMPARED, attribute: bool = False
) -> Iterator[ExperimentCase]:
    """The settings of a published table, all methods in each; the number of liars as it has it."""
    for (dataset, beta, ratio, number, attack, variant), figures in read_published_results()[
        name
    ].items():
        told = None if "unknown" in number or attack == "none" else ratio
        told = float(variant) if number == "misstated" else told
        stage = [PaperScenario(dataset, "iid", attribute=variant)] if attribute else None
        for place, world in enumerate(stage or worlds(dataset, beta)):
            shown = {} if dataset == "sleep" and place > 0 else figures
            run = Run(attack, ratio, FCP, told)
            yield from compare_methods(
                world, run, variant, number=number, published=shown, methods=methods
            )


def granularity() -> Iterator[ExperimentCase]:
    """The number of uniform bins in Rob-FCP's view; the threshold stays on the fine grid."""
    for (*stated, variant), figures in read_published_results()["granularity"].items():
        for dataset, attack in product(("tinyimagenet", "pathmnist"), ("gaussian", "coverage")):
            same = (dataset, attack) == (stated[0], stated[-1])
            yield from compare_methods(
                PaperScenario(dataset, "beta0.5", "final", 0.5, fine=True),
                Run(attack, 0.4, ROB_FCP, 0.4, bins=int(variant)),
                variant,
                published=figures if same else None,
                varied=(ROB_FCP, ROB_FCP_RELEASED),
            )


def variants(field: str, values: Sequence[str]) -> Iterator[ExperimentCase]:
    """Rob-FCP's text with other distances between histograms, or other vectors than histograms."""
    for world in both_splits(("mnist", "tinyimagenet", "pathmnist")):
        for attack, value in product(ATTACKS, values):
            changed: Any = {field: value}
            run = replace(Run(attack, 0.4, ROB_FCP, 0.4), **changed)
            yield from compare_methods(world, run, value, varied=(ROB_FCP,))


def scores() -> Iterator[ExperimentCase]:
    """LAC and APS under the three attacks, iid and at Dirichlet(0.5)."""
    for dataset, score in product(DATASETS.values(), ("lac", "aps")):
        for world, attack in product(both_splits((dataset,), score=score), ATTACKS):
            yield from compare_methods(world, Run(attack, 0.4, FCP, 0.4), score)


def attack_strength_cases(
    datasets: Sequence[str], attack: str, named: Mapping[str, str]
) -> Iterator[ExperimentCase]:
    """One attack in several strengths."""
    for world, (name, value) in product(both_splits(datasets), named.items()):
        yield from compare_methods(world, Run(f"{attack}:{value}", 0.4, FCP, 0.4), name)


def estimator_cases() -> Iterator[ExperimentCase]:
    """How many liars each method finds: iid, and at Dirichlet(0.5)."""
    for world, attack in product(both_splits(tuple(DATASETS.values())), ATTACKS):
        for ratio in RATIOS[:: 1 if world.split == "iid" else 2]:
            run = Run(attack if ratio else "none", ratio, FCP, None)
            yield from compare_methods(world, run, attack, number="unknown", methods=DETECTORS)


STEPS = {step: step for step in ("0.0005", "0.001", "0.01")}
NOISES = {"0.02": "0.02", "0.5": "0.5", "variance 0.5": "0.707107"}
NOISY = ("tinyimagenet", "pathmnist", "mnist")
EXPERIMENTS: dict[str, tuple[str, Callable[[], Iterator[ExperimentCase]]]] = {
    "main": (
        "40% malicious, number known, Dirichlet(0.5)",
        partial(from_table, "main", ALL_METHODS),
    ),
    "known": ("10-30% malicious, number known", partial(from_table, "known")),
    "unknown": ("10-40% malicious, number estimated", partial(from_table, "unknown")),
    "benign": ("Nobody attacks, number estimated", partial(from_table, "benign")),
    "beta-sweep": ("Heterogeneity, 40% coverage attackers", partial(from_table, "beta-sweep")),
    "mimic": ("All attackers copy one benign client", partial(from_table, "mimic")),
    "evading": (
        "40% send a little more than the minimum (not in the paper)",
        partial(attack_strength_cases, tuple(DATASETS.values()), "near-coverage", STEPS),
    ),
    "noises": (
        "Three readings of the gaussian attack, 40% malicious",
        partial(attack_strength_cases, NOISY, "gaussian", NOISES),
    ),
    "attributes": (
        "Clients by sleep stage, 40% coverage attackers",
        partial(from_table, "shhs-attributes", attribute=True),
    ),
    "misstated": ("25% coverage attackers, 5-45% assumed", partial(from_table, "assumed-ratio")),
    "granularity": ("Bins in Rob-FCP's view, 40% malicious", granularity),
    "distances": (
        "Distances in Rob-FCP, 40% malicious",
        partial(variants, "distance", get_args(Metric)),
    ),
    "characterisations": (
        "Vectors in Rob-FCP, 40% malicious",
        partial(variants, "characterisation", get_args(Characterization)),
    ),
    "scores": ("LAC and APS, 40% malicious", scores),
    "counting": ("Estimated against true number of malicious clients", estimator_cases),
}
