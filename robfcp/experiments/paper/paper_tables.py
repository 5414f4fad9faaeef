"""Every table and figure of the paper as cases: clients, a run, and what was published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any, get_args

from robfcp.defense import Characterization, Metric
from robfcp.experiments.baselines import FEDCP_QQ
from robfcp.experiments.paper.runner import (
    BY_CLASS,
    CONSENSUS,
    DEFAULT_REPORTS,
    FCP,
    ROB_FCP,
    ROB_FCP_RELEASED,
    PaperScenario,
    Run,
)

BASELINES = (FCP, FEDCP_QQ, ROB_FCP, ROB_FCP_RELEASED)
COMPARED = (*BASELINES, CONSENSUS, DEFAULT_REPORTS)
ALL_METHODS = (*COMPARED, BY_CLASS)
DETECTORS = (ROB_FCP, ROB_FCP_RELEASED, CONSENSUS)  # those that estimate how many are malicious

# The paper's name of a data set -> ours.
DATASETS = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "Tiny-ImageNet": "tinyimagenet",
    "SHHS": "sleep",  # Sleep-EDF Expanded, since SHHS is not public
    "PathMNIST": "pathmnist",
}
ATTACKS = ("coverage", "efficiency", "gaussian")

# Data sets and splits of which the outputs of an early model ship.
EARLY = {("mnist", "beta0.5"), ("cifar10", "iid"), ("cifar10", "beta0.5")}

# The paper's appendix splits its sleep data by this stage where others are Dirichlet(0.5).
WAKE = "wake"
MALICIOUS_FRACTIONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)

Figure = tuple[float, float]  # published coverage and mean set size

# (data set, beta, malicious fraction, number, attack, variant) -> method -> figure.
PublishedKey = tuple[str, float, float, str, str, str]
Published = dict[PublishedKey, dict[str, Figure]]


@cache
def read_published_results() -> dict[str, Published]:
    """Return the 578 published figures (coverage and set size), by table, setting and method.

    A setting is our name of the data set, beta (0 is an iid split), the fraction of malicious
    clients, whether their number is known, unknown or misspecified, the attack, and the variant: a
    sleep stage, an assumed fraction, a number of bins.
    """
    text = files("robfcp.experiments.paper").joinpath("published.csv").read_text(encoding="utf-8")
    tables: dict[str, Published] = {}
    for row in csv.DictReader(text.splitlines()):
        table, _, variant = row["table"].partition(":")
        key = (
            DATASETS[row["dataset"]],
            float(row["dirichlet_beta"] or 0),
            float(row["malicious_ratio"]),
            row["malicious_number"],
            row["attack"],
            variant,
        )
        figures = tables.setdefault(table, {}).setdefault(key, {})
        figures[row["method"]] = float(row["coverage"]), float(row["set_size"])
    return tables


@dataclass(frozen=True)
class ExperimentCase:
    """One cell of a table.

    Attributes
    ----------
    scenario : PaperScenario
        The clients.
    run : Run
        The attack and the method.
    number_given : str
        Whether the number of malicious clients is "known", "unknown" or "misspecified".
    variant : str
        What the table varies, as it names it.
    published : pair of float or None
        The paper's coverage and set size.
    """

    scenario: PaperScenario
    run: Run
    number_given: str
    variant: str = ""
    published: Figure | None = None


def scenarios(dataset: str, beta: float, **options: Any) -> Iterator[PaperScenario]:
    """Yield the clients made of a data set's final model and, where it ships, of the early one.

    Sleep at beta 0.5 is split by the fraction of wake, as the paper did, and by Dirichlet(0.5) too.

    Parameters
    ----------
    dataset : str
        Our name of the data set.
    beta : float
        Of the Dirichlet split; 0 for iid.
    options
        Other fields of `PaperScenario`.
    """
    split = "iid" if beta == 0 else "beta0.5"
    if dataset == "sleep" and beta > 0:
        yield PaperScenario(dataset, split, "final", attribute=WAKE, **options)
    yield PaperScenario(dataset, split, "final", beta, **options)
    if (dataset, split) in EARLY:
        yield PaperScenario(dataset, split, "early", beta, **options)


def both_splits(datasets: Sequence[str], **options: Any) -> Iterator[PaperScenario]:
    """Yield the clients of some data sets, iid and at Dirichlet(0.5); options as in `scenarios`."""
    for dataset, beta in product(datasets, (0.0, 0.5)):
        yield from scenarios(dataset, beta, **options)


def compare_methods(
    scenario: PaperScenario,
    run: Run,
    variant: str = "",
    *,
    number_given: str = "known",
    published: Mapping[str, Figure] | None = None,
    methods: Sequence[str] = COMPARED,
    varied: Sequence[str] = (),
) -> Iterator[ExperimentCase]:
    """Yield a case a method in one setting, with its published figure.

    Parameters
    ----------
    scenario : PaperScenario
        The clients.
    run : Run
        The attack, the fraction of malicious clients and what methods are given of it.
    variant : str
        What the table varies.
    number_given : str
        Whether the number of malicious clients is known.
    published : mapping, optional
        The paper's figures by method.
    methods : sequence of str
        The methods.
    varied : sequence of str
        The methods that take the run's metric, characterization and number of bins; others take
        the usual ones.
    """
    usual_run = Run(run.attack, run.malicious_fraction, run.method, run.fraction_given)
    figures = published or {}
    for method in methods:
        method_run = run if method in varied else usual_run
        yield ExperimentCase(
            scenario, replace(method_run, method=method), number_given, variant, figures.get(method)
        )


def from_table(
    name: str, methods: Sequence[str] = COMPARED, by_stage: bool = False
) -> Iterator[ExperimentCase]:
    """Yield the cases of a published table: all methods in each of its settings.

    Parameters
    ----------
    name : str
        Of the table in `read_published_results`.
    methods : sequence of str
        The methods.
    by_stage : bool
        Whether clients are made by the sleep stage that the setting's variant names.
    """
    for key, figures in read_published_results()[name].items():
        dataset, beta, fraction, number_given, attack, variant = key
        fraction_given: float | None = fraction
        if number_given == "misspecified":
            fraction_given = float(variant)
        elif "unknown" in number_given or attack == "none":
            fraction_given = None
        run = Run(attack, fraction, FCP, fraction_given)

        table_scenarios = list(scenarios(dataset, beta))
        if by_stage:
            table_scenarios = [PaperScenario(dataset, "iid", attribute=variant)]
        for i, scenario in enumerate(table_scenarios):
            # The paper split sleep as the first of its scenarios does.
            is_as_published = dataset != "sleep" or i == 0
            yield from compare_methods(
                scenario,
                run,
                variant,
                number_given=number_given,
                published=figures if is_as_published else {},
                methods=methods,
            )


def granularity() -> Iterator[ExperimentCase]:
    """Yield cases of several numbers of uniform bins in Rob-FCP's vectors.

    The threshold stays on the binning of the reports.
    """
    for key, figures in read_published_results()["granularity"].items():
        published_dataset = key[0]
        published_attack = key[-2]
        variant = key[-1]
        for dataset, attack in product(("tinyimagenet", "pathmnist"), ("gaussian", "coverage")):
            is_published = (dataset, attack) == (published_dataset, published_attack)
            yield from compare_methods(
                PaperScenario(dataset, "beta0.5", "final", 0.5, has_all_granularities=True),
                Run(attack, 0.4, ROB_FCP, 0.4, n_bins=int(variant)),
                variant,
                published=figures if is_published else None,
                varied=(ROB_FCP, ROB_FCP_RELEASED),
            )


def variants(field: str, values: Sequence[str]) -> Iterator[ExperimentCase]:
    """Yield cases of Rob-FCP as printed with several values of one of its parameters.

    Parameters
    ----------
    field : str
        A field of `Run`.
    values : sequence of str
        Its values.
    """
    for scenario in both_splits(("mnist", "tinyimagenet", "pathmnist")):
        for attack, value in product(ATTACKS, values):
            changes: Any = {field: value}
            run = replace(Run(attack, 0.4, ROB_FCP, 0.4), **changes)
            yield from compare_methods(scenario, run, value, varied=(ROB_FCP,))


def scores() -> Iterator[ExperimentCase]:
    """Yield cases of LAC and APS under the three attacks, iid and at Dirichlet(0.5)."""
    for dataset, score in product(DATASETS.values(), ("lac", "aps")):
        for scenario, attack in product(both_splits((dataset,), score=score), ATTACKS):
            yield from compare_methods(scenario, Run(attack, 0.4, FCP, 0.4), score)


def attack_strength_cases(
    datasets: Sequence[str], attack: str, strengths: Mapping[str, str]
) -> Iterator[ExperimentCase]:
    """Yield cases of one attack in several strengths.

    Parameters
    ----------
    datasets : sequence of str
        Our names of the data sets.
    attack : str
        The name of the attack.
    strengths : mapping of str to str
        What the table calls a strength -> the strength.
    """
    for scenario, (name, strength) in product(both_splits(datasets), strengths.items()):
        run = Run(f"{attack}:{strength}", 0.4, FCP, 0.4)
        yield from compare_methods(scenario, run, name)


def estimator_cases() -> Iterator[ExperimentCase]:
    """Yield cases of how many malicious clients each method finds: iid, and at Dirichlet(0.5)."""
    for scenario, attack in product(both_splits(tuple(DATASETS.values())), ATTACKS):
        fractions: Sequence[float] = MALICIOUS_FRACTIONS
        if scenario.split != "iid":
            fractions = fractions[::2]
        for fraction in fractions:
            run = Run(attack if fraction else "none", fraction, FCP, None)
            yield from compare_methods(
                scenario, run, attack, number_given="unknown", methods=DETECTORS
            )


STEPS = {step: step for step in ("0.0005", "0.001", "0.01")}
DEVIATIONS = {"0.02": "0.02", "0.5": "0.5", "variance 0.5": "0.707107"}
NOISY_DATASETS = ("tinyimagenet", "pathmnist", "mnist")

# Name -> title, and what makes the cases.
EXPERIMENTS: dict[str, tuple[str, Callable[[], Iterator[ExperimentCase]]]] = {
    # Table 1 of the paper
    "main": (
        "40% malicious, number known, Dirichlet(0.5)",
        partial(from_table, "main", ALL_METHODS),
    ),
    # Table 9 of the paper
    "known": ("10-30% malicious, number known", partial(from_table, "known")),
    # Table 10 of the paper
    "unknown": ("10-40% malicious, number estimated", partial(from_table, "unknown")),
    # Table 3 of the paper
    "benign": ("All clients benign, number estimated", partial(from_table, "benign")),
    # Table 2 of the paper
    "beta-sweep": ("Heterogeneity, 40% coverage attackers", partial(from_table, "beta-sweep")),
    # Table 7 of the paper
    "mimic": ("All attackers copy one benign client", partial(from_table, "mimic")),
    "evasion": (
        "40% send a little more than the minimum (not in the paper)",
        partial(attack_strength_cases, tuple(DATASETS.values()), "near-coverage", STEPS),
    ),
    "gaussian-noise": (
        "Three readings of the gaussian attack, 40% malicious",
        partial(attack_strength_cases, NOISY_DATASETS, "gaussian", DEVIATIONS),
    ),
    # Table 4 of the paper
    "attributes": (
        "Clients by sleep stage, 40% coverage attackers",
        partial(from_table, "shhs-attributes", by_stage=True),
    ),
    # Table 6 of the paper
    "misspecified": ("25% coverage attackers, assumed 5-45%", partial(from_table, "assumed-ratio")),
    # Table 8 of the paper
    "granularity": ("Bins in Rob-FCP's view, 40% malicious", granularity),
    "metrics": (
        "Distances in Rob-FCP, 40% malicious",
        partial(variants, "metric", get_args(Metric)),
    ),
    "characterizations": (
        "Vectors in Rob-FCP, 40% malicious",
        partial(variants, "characterization", get_args(Characterization)),
    ),
    "scores": ("LAC and APS, 40% malicious", scores),
    "estimated-number": ("Estimated against true number of malicious clients", estimator_cases),
}
