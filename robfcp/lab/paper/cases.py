"""Every table and figure of the paper as cases: a world, a run, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from robfcp.defence.rob_fcp import Characterisation, Metric
from robfcp.lab.paper.methods import COMPARED, DETECTORS, EVERY, RELEASED, TEXT
from robfcp.lab.paper.published import DATASETS, table
from robfcp.lab.paper.runs import Run
from robfcp.lab.paper.trials import PaperWorld

ATTACKS = ("coverage", "efficiency", "gaussian")
EARLY = {("mnist", "beta0.5"), ("cifar10", "iid"), ("cifar10", "beta0.5")}
WAKE = "wake"  # what the paper's appendix splits its sleep data by where others are Dirichlet(0.5)
Figure = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """One cell: what is run on which clients, and the paper's figure where it has one."""

    world: PaperWorld
    run: Run
    number: str
    variant: str = ""
    published: Figure | None = None


def worlds(dataset: str, beta: float, **more: object) -> Iterator[PaperWorld]:
    """The shipped models for a data set: the final one and, where it ships, the early one.

    Sleep at beta 0.5 is split by the share of wake, as the paper did, and by Dirichlet(0.5) too.
    """
    split = "iid" if beta == 0 else "beta0.5"
    if dataset == "sleep" and beta > 0:
        yield PaperWorld(dataset, split, "final", attribute=WAKE, **more)  # type: ignore[arg-type]
    yield PaperWorld(dataset, split, "final", beta, **more)  # type: ignore[arg-type]
    if (dataset, split) in EARLY:
        yield PaperWorld(dataset, split, "early", beta, **more)  # type: ignore[arg-type]


def compared(
    world: PaperWorld,
    attack: str,
    ratio: float,
    told: float | None,
    number: str,
    variant: str = "",
    published: Mapping[str, Figure] | None = None,
    methods: Sequence[str] = COMPARED,
) -> Iterator[Case]:
    """All methods in one setting, each with the figure published for it."""
    figures = published or {}
    for method in methods:
        yield Case(world, Run(attack, ratio, method, told), number, variant, figures.get(method))


def from_table(name: str, methods: Sequence[str] = COMPARED) -> list[Case]:
    """The settings of a published table, all methods in each; liars' number as the table has it."""
    settings: dict[tuple[str, float, float, str, str], dict[str, Figure]] = {}
    for row in table(name):
        key = (row.dataset, row.beta or 0.0, row.ratio, row.number, row.attack)
        settings.setdefault(key, {})[row.method] = (row.coverage, row.set_size)
    cases: list[Case] = []
    for (dataset, beta, ratio, number, attack), figures in settings.items():
        told = None if "unknown" in number or attack == "none" else ratio
        for place, world in enumerate(worlds(dataset, beta)):
            second = dataset == "sleep" and place > 0
            shown = {} if second else figures
            cases += compared(world, attack, ratio, told, number, published=shown, methods=methods)
    return cases


def attributes() -> list[Case]:
    """Clients by the share of a sleep stage in a subject's night."""
    figures: dict[str, dict[str, Figure]] = {}
    for row in table("shhs-attributes"):
        stage = row.table.split(":")[1]
        figures.setdefault(stage, {})[row.method] = (row.coverage, row.set_size)
    cases: list[Case] = []
    for stage, found in figures.items():
        world = PaperWorld("sleep", "iid", attribute=stage)
        cases += compared(
            world,
            attack="coverage",
            ratio=0.4,
            told=0.4,
            number="known",
            variant=stage,
            published=found,
        )
    return cases


def misstated() -> list[Case]:
    """A quarter of the clients lies, the method is told another share."""
    cases: list[Case] = []
    for row in table("assumed-ratio"):
        name = row.table.split(":")[1]
        world = PaperWorld(row.dataset, "beta0.5", "final", 0.5)
        figure = {TEXT: (row.coverage, row.set_size)}
        cases += compared(
            world,
            attack="coverage",
            ratio=0.25,
            told=float(name),
            number="misstated",
            variant=name,
            published=figure,
        )
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
                figure = {TEXT: (row.coverage, row.set_size)} if same else {}
                for case in compared(
                    world,
                    attack=attack,
                    ratio=0.4,
                    told=0.4,
                    number="known",
                    variant=f"{bins}",
                    published=figure,
                ):
                    viewed = case.run.method in (TEXT, RELEASED)
                    run = replace(case.run, bins=bins) if viewed else case.run
                    cases.append(replace(case, run=run))
    return cases


def _variants(vary: Callable[[Run], Iterator[tuple[str, Run]]]) -> list[Case]:
    """Variants of the paper's text beside everybody else, iid and at Dirichlet(0.5)."""
    cases = []
    for dataset in ("mnist", "tinyimagenet", "pathmnist"):
        for world in (*worlds(dataset, 0.0), *worlds(dataset, 0.5)):
            for attack in ATTACKS:
                for variant, text in vary(Run(attack, 0.4, TEXT, 0.4)):
                    for case in compared(world, attack, 0.4, 0.4, "known", variant):
                        run = text if case.run.method == TEXT else case.run
                        cases.append(replace(case, run=run))
    return cases


def distances() -> list[Case]:
    """Rob-FCP's text with other distances between histograms."""
    return _variants(lambda run: ((m, replace(run, distance=m)) for m in get_args(Metric)))


def characterisations() -> list[Case]:
    """Rob-FCP's text with other vectors than histograms."""
    return _variants(
        lambda run: (
            (how, replace(run, characterisation=how)) for how in get_args(Characterisation)
        )
    )


def scores() -> list[Case]:
    """LAC and APS under the three attacks, iid and at Dirichlet(0.5)."""
    return [
        case
        for dataset in DATASETS.values()
        for score in ("lac", "aps")
        for beta in (0.0, 0.5)
        for world in worlds(dataset, beta, score=score)
        for attack in ATTACKS
        for case in compared(world, attack, 0.4, 0.4, "known", score, methods=COMPARED)
    ]


def evading() -> list[Case]:
    """Liars just above the minimum, where the released code's last bin does not hold them."""
    return [
        case
        for dataset in DATASETS.values()
        for beta in (0.0, 0.5)
        for world in worlds(dataset, beta)
        for step in ("0.0005", "0.001", "0.01")
        for case in compared(world, f"near-coverage:{step}", 0.4, 0.4, "known", step)
    ]


def noises() -> list[Case]:
    """The gaussian attack as the paper's script, its text and its other text have it."""
    return [
        case
        for dataset in ("tinyimagenet", "pathmnist", "mnist")
        for beta in (0.0, 0.5)
        for world in worlds(dataset, beta)
        for name, deviation in (("0.02", 0.02), ("0.5", 0.5), ("variance 0.5", 0.5**0.5))
        for case in compared(world, f"gaussian:{deviation:.6g}", 0.4, 0.4, "known", name)
    ]


def counting() -> list[Case]:
    """How many liars each method finds: iid, and at Dirichlet(0.5)."""
    ratios = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
    return [
        Case(world, Run(attack if ratio else "none", ratio, method, None), "unknown", attack)
        for dataset in DATASETS.values()
        for beta in (0.0, 0.5)
        for world in worlds(dataset, beta)
        for attack in ATTACKS
        for ratio in (ratios if beta == 0 else ratios[::2])
        for method in DETECTORS
    ]


EXPERIMENTS: dict[str, tuple[str, Callable[[], list[Case]]]] = {
    "main": ("40% malicious, number known, Dirichlet(0.5)", lambda: from_table("main", EVERY)),
    "known": ("10-30% malicious, number known", lambda: from_table("known", COMPARED)),
    "unknown": ("10-40% malicious, number estimated", lambda: from_table("unknown")),
    "benign": ("Nobody attacks, number estimated", lambda: from_table("benign")),
    "beta-sweep": (
        "Heterogeneity, 40% coverage attackers",
        lambda: from_table("beta-sweep", COMPARED),
    ),
    "mimic": ("All attackers copy one benign client", lambda: from_table("mimic")),
    "evading": ("40% send a little more than the minimum (not in the paper)", evading),
    "noises": ("Three readings of the gaussian attack, 40% malicious", noises),
    "attributes": ("Clients by sleep stage, 40% coverage attackers", attributes),
    "misstated": ("25% coverage attackers, 5-45% assumed", misstated),
    "granularity": ("Bins in Rob-FCP's view, 40% malicious", granularity),
    "distances": ("Distances in Rob-FCP, 40% malicious", distances),
    "characterisations": ("Vectors in Rob-FCP, 40% malicious", characterisations),
    "scores": ("LAC and APS, 40% malicious", scores),
    "counting": ("Estimated against true number of malicious clients", counting),
}
