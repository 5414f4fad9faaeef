"""Every table and figure of the paper as cases: a world, a run, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from robfcp.defence import Characterisation, Metric
from robfcp.lab.paper.published import DATASETS, Published, table
from robfcp.lab.paper.runs import Run
from robfcp.lab.paper.trials import PaperWorld

ATTACKS = ("coverage", "efficiency", "gaussian")
EARLY = {("mnist", "beta0.5"), ("cifar10", "iid"), ("cifar10", "beta0.5")}


@dataclass(frozen=True)
class Case:
    """One cell: what is run on which clients, and the paper's figure where it has one."""

    world: PaperWorld
    run: Run
    number: str
    variant: str = ""
    published: tuple[float, float] | None = None


def worlds(dataset: str, beta: float, **more: object) -> Iterator[PaperWorld]:
    """The shipped models for a data set: the final one and, where it ships, the early one."""
    split = "iid" if beta == 0 else "beta0.5"
    yield PaperWorld(dataset, split, "final", beta, **more)  # type: ignore[arg-type]
    if (dataset, split) in EARLY:
        yield PaperWorld(dataset, split, "early", beta, **more)  # type: ignore[arg-type]


def _told(number: str, ratio: float) -> float | None:
    return None if number == "unknown" else ratio


def from_table(name: str) -> list[Case]:
    """The cells of a published table, each followed by our defence in the same setting."""
    cases: list[Case] = []
    settings: dict[tuple[object, ...], Published] = {}
    for row in table(name):
        settings.setdefault((row.dataset, row.beta, row.ratio, row.number, row.attack), row)
        for world in worlds(row.dataset, row.beta or 0.0):
            run = Run(row.attack, row.ratio, row.method, _told(row.number, row.ratio))
            cases.append(Case(world, run, row.number, "", (row.coverage, row.set_size)))
    for row in settings.values():
        for world in worlds(row.dataset, row.beta or 0.0):
            told = None if row.attack == "none" else _told(row.number, row.ratio)
            cases.append(Case(world, Run(row.attack, row.ratio, "band", told), row.number))
    return cases


def attributes() -> list[Case]:
    """Clients by the share of a sleep stage in a subject's night."""
    cases = []
    for row in table("shhs-attributes"):
        name = row.table.split(":")[1]
        world = PaperWorld("sleep", "iid", attribute=name)
        figure = (row.coverage, row.set_size)
        cases.append(Case(world, Run("coverage", 0.4, row.method, 0.4), "known", name, figure))
        if row.method == "fcp":
            cases.append(Case(world, Run("coverage", 0.4, "band", 0.4), "known", name))
    return cases


def misstated() -> list[Case]:
    """A quarter of the clients lies, the method is told another share."""
    cases = []
    for row in table("assumed-ratio"):
        name = row.table.split(":")[1]
        world = PaperWorld(row.dataset, "beta0.5", "final", 0.5)
        figure = (row.coverage, row.set_size)
        for method, published in (("rob-fcp", figure), ("band", None)):
            run = Run("coverage", 0.25, method, float(name))
            cases.append(Case(world, run, "misstated", name, published))
    return cases


def granularity() -> list[Case]:
    """The number of uniform bins in Rob-FCP's view; the threshold stays on the fine grid."""
    cases = []
    for row in table("granularity"):
        bins = int(row.table.split(":")[1])
        for dataset in ("tinyimagenet", "pathmnist"):
            world = PaperWorld(dataset, "beta0.5", "final", 0.5, fine=True)
            for attack in ("gaussian", "coverage"):
                same = attack == row.attack and dataset == row.dataset
                figure = (row.coverage, row.set_size) if same else None
                run = Run(attack, 0.4, "rob-fcp", 0.4, bins=bins)
                cases.append(Case(world, run, "known", f"{bins}", figure))
                cases.append(Case(world, Run(attack, 0.4, "band", 0.4), "known", f"{bins}"))
    return cases


def _variants(vary: Callable[[str], Iterator[tuple[str, Run]]]) -> list[Case]:
    cases = []
    for dataset in ("mnist", "tinyimagenet", "pathmnist"):
        for world in worlds(dataset, 0.5):
            for attack in ATTACKS:
                for variant, run in vary(attack):
                    cases.append(Case(world, run, "known", variant))
                cases.append(Case(world, Run(attack, 0.4, "band", 0.4), "known", "default"))
    return cases


def distances() -> list[Case]:
    """Rob-FCP with other distances between histograms."""

    def vary(attack: str) -> Iterator[tuple[str, Run]]:
        for metric in get_args(Metric):
            yield metric, Run(attack, 0.4, "rob-fcp", 0.4, distance=metric)

    return _variants(vary)


def characterisations() -> list[Case]:
    """Rob-FCP with other vectors than histograms."""

    def vary(attack: str) -> Iterator[tuple[str, Run]]:
        for how in get_args(Characterisation):
            yield how, Run(attack, 0.4, "rob-fcp", 0.4, characterisation=how)

    return _variants(vary)


def scores() -> list[Case]:
    """LAC and APS under the three attacks."""
    return [
        Case(world, Run(attack, 0.4, method, 0.4), "known", score)
        for dataset in DATASETS.values()
        for score in ("lac", "aps")
        for world in worlds(dataset, 0.5, score=score)
        for attack in ATTACKS
        for method in ("fcp", "rob-fcp", "band")
    ]


def counting() -> list[Case]:
    """How many liars the paper's likelihood (rob-fcp) and our groups (band) find."""
    return [
        Case(world, Run(attack if ratio else "none", ratio, method, None), "unknown", attack)
        for dataset in DATASETS.values()
        for world in worlds(dataset, 0.5)
        for attack in ATTACKS
        for ratio in (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
        for method in ("rob-fcp", "band")
    ]


EXPERIMENTS: dict[str, tuple[str, Callable[[], list[Case]]]] = {
    "main": ("40% malicious, number known, Dirichlet(0.5)", lambda: from_table("main")),
    "known": ("10-30% malicious, number known", lambda: from_table("known")),
    "unknown": ("10-40% malicious, number estimated", lambda: from_table("unknown")),
    "benign": ("Nobody attacks", lambda: from_table("benign")),
    "beta-sweep": ("Heterogeneity, 40% coverage attackers", lambda: from_table("beta-sweep")),
    "mimic": ("All attackers copy one benign client", lambda: from_table("mimic")),
    "attributes": ("Clients by sleep stage, 40% coverage attackers", attributes),
    "misstated": ("25% coverage attackers, 5-45% assumed", misstated),
    "granularity": ("Bins in Rob-FCP's view, 40% malicious", granularity),
    "distances": ("Distances in Rob-FCP, 40% malicious", distances),
    "characterisations": ("Vectors in Rob-FCP, 40% malicious", characterisations),
    "scores": ("LAC and APS, 40% malicious", scores),
    "counting": ("Estimated against true number of malicious clients", counting),
}
