"""The cells that Consensus is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from consensus_worlds import OutputsName, World, attacked, natural, world

from robfcp.experiments.attacks import Attack, PairAttack, ScoreAttack
from robfcp.experiments.attacks.coordinated import frame_hardest_clients
from robfcp.experiments.attacks.simple import truncation

MAX_TOTAL_SAMPLES = 25_000  # of all clients; larger federations get smaller clients
SMALL_SIZE = 100

NATURAL = (("sleep", "site"), ("stroke", "country"), ("stroke", "site"), ("heart", "site"))
COMPARED = ("none", "rob-fcp", "rob-fcp-released", "consensus", "default reports")
STEALTH: tuple[tuple[str, Attack | str], ...] = (
    ("truncation at .75", "truncation"),
    ("truncation at .9", ScoreAttack(truncation, 0.9)),
    ("graded-truncation", "graded-truncation"),
    ("shift-below-threshold", "shift-below-threshold"),
    ("frame-hardest at .85", "frame-hardest"),
    ("frame-hardest at .5", PairAttack(frame_hardest_clients, 0.5)),
    ("mimic", "mimic-low"),
    ("pair mimic", "pair-mimic"),
)


class Clients(NamedTuple):
    """The parameters of `consensus_worlds.world` that most cells vary."""

    n_clients: int
    size: int
    beta: float | None = None
    sizes: str = "equal"
    spread: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One run: its clients and their attack, the methods, and the rows it counts for.

    Attributes
    ----------
    rows : sequence of str
        The rows of the table that the run is part of.
    source : tuple
        Arguments of `world` after which its options follow, or of `natural`.
    attack : tuple or None
        The attack and the fraction of malicious clients.
    methods : sequence of str
        What is measured.
    by_class : bool
        Whether reports keep counts by class.
    options : dict
        Keyword arguments of `world`; None for natural clients.
    registered : bool
        Whether sample sizes are known before the round.
    """

    rows: Sequence[str]
    source: tuple[Any, ...]
    attack: tuple[Attack | str, float] | None = None
    methods: Sequence[str] = COMPARED
    by_class: bool = True
    options: dict[str, Any] | None = None
    registered: bool = False

    def make_world(self) -> World:
        """Return the run's clients, attacked."""
        seed = self.source[-1]
        if self.options is None:
            clients = natural(*self.source)
            clients.registered = self.registered
        else:
            clients = world(*self.source, **self.options)
        if self.attack is not None:
            attack, fraction = self.attack
            clients = attacked(clients, attack, fraction, seed)
        return clients


def world_source(name: OutputsName, clients: Clients, seed: int) -> tuple[Any, ...]:
    """Return the positional arguments of `world`."""
    return (name, clients.n_clients, clients.size, clients.beta, clients.sizes, seed)


def gross(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells where all scores are minimal or maximal."""
    for seed, name, n_clients, beta in product(
        seeds, names, (5, 10, 20, 50, 100), (None, 0.5, 0.3, 0.1)
    ):
        rng = np.random.default_rng([seed, n_clients, int(10 * (beta or 0))])
        size = int(rng.choice([50, 500]))
        sizes = str(rng.choice(["equal", "lognormal"]))
        score = str(rng.choice(["lac", "lac", "aps"]))
        fraction = float(rng.choice([0.1, 0.2, 0.4]))
        attack = str(rng.choice(["coverage", "efficiency"]))
        if n_clients * size > MAX_TOTAL_SAMPLES:
            size = SMALL_SIZE

        titles = ["gross, all", f"K = {n_clients}", f"Dirichlet {beta or 'none'}"]
        titles += [f"fraction {fraction:g}", sizes]
        source = world_source(name, Clients(n_clients, size, beta, sizes), seed)
        for kind, by_class in (("by class", True), ("pooled", False)):
            yield Cell(
                rows=[f"{kind}: {title}" for title in titles],
                source=source,
                attack=(attack, fraction),
                by_class=by_class,
                options={"score": score},
            )


def few_clients(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells where one of a few unequal clients has all its labels wrong, or none has."""
    for seed, name, n_clients, beta in product(seeds, names, (4, 6, 8, 16), (None, 1.0, 0.3)):
        source = world_source(name, Clients(n_clients, 0, beta, "unequal"), seed)
        cases = (("one all wrong", ("all-wrong", 0.01)), ("no attack", None))
        for title, attack in cases:
            rows = [f"{title}, K = {n_clients}", f"{title}, all"]
            yield Cell(rows, source, attack, options={})


def gaussian(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells of the paper's third attack."""
    federations = (
        Clients(20, 250, 0.5),
        Clients(50, 50, None),
        Clients(10, 100, 0.3, "lognormal"),
        Clients(100, 50, 0.5, "lognormal"),
    )
    for seed, name, clients, fraction in product(seeds, names, federations, (0.1, 0.2, 0.4)):
        size_text = f"K = {clients.n_clients}, n = {clients.size}"
        title = f"{size_text}, Dirichlet {clients.beta or 'none'}, {clients.sizes}"
        rows = ["gaussian, all", title, f"gaussian, fraction {fraction:g}"]
        source = world_source(name, clients, seed)
        yield Cell(rows, source, ("gaussian", fraction), options={})


def stealth(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells where 40% stay close to benign reports."""
    federations = (
        Clients(100, 50, None),
        Clients(50, 50, 0.5, "lognormal"),
        Clients(20, 250, 0.5),
        Clients(20, 250, 0.1, "lognormal"),
        Clients(20, 200, 1.0, "lognormal", 0.5),
    )
    for seed, name, (title, attack), clients in product(seeds, names, STEALTH, federations):
        source = world_source(name, clients, seed)
        options = {"spread": clients.spread}
        yield Cell([title, "stealth, all"], source, (attack, 0.4), options=options)


def turned(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells where 40% turn a defense against benign clients.

    They send means of them, their middle scores, a rare class, or more samples than they have.
    """
    federations = (Clients(10, 200), Clients(20, 200, 0.5), Clients(50, 50, 0.1), Clients(20, 5000))
    attacks = (
        "benign-means",
        "two-sided-trimming",
        "class-claim",
        "class-capture",
        "size-inflation",
    )
    for seed, name, attack, clients in product(seeds, names, attacks, federations):
        rows = [attack, f"{attack}, n = {clients.size}"]
        yield Cell(rows, world_source(name, clients, seed), (attack, 0.4), options={})


def upward(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells with larger scores, so that sets grow; Consensus is also given the number."""
    federations = (Clients(10, 200), Clients(20, 200, 0.5), Clients(50, 50, 0.3))
    attacks = (("keep-30", 0.2), ("keep-30", 0.4), ("lower-truncation", 0.4))
    for seed, name, (attack, fraction), clients in product(seeds, names, attacks, federations):
        yield Cell(
            rows=[f"{attack}, {fraction:.0%}"],
            source=world_source(name, clients, seed),
            attack=(attack, fraction),
            methods=(*COMPARED, "number given"),
            options={},
        )


def no_attack(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells without attack: clients differ by labels and by difficulty."""
    differences = ((None, 0.0), (0.3, 0.0), (1.0, 0.5))
    for seed, name, n_clients, (beta, spread) in product(
        seeds, names, (3, 4, 5, 8, 12, 20, 50, 100), differences
    ):
        rng = np.random.default_rng([seed, n_clients])
        size = int(rng.choice([50, 250]))
        sizes = str(rng.choice(["equal", "lognormal"]))
        source = world_source(name, Clients(n_clients, size, beta, sizes), seed)
        for kind, by_class in (("by class", True), ("pooled", False)):
            rows = [f"{kind}: no attack, K = {n_clients}", f"{kind}: no attack, all"]
            yield Cell(rows, source, by_class=by_class, options={"spread": spread})


def groups(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells without attack: two groups of benign clients that differ within classes."""
    second_groups = ((0.3, 1.5), (0.2, 2.5), (0.4, 1.5), (0.3, -1.5), (0.3, -2.5))
    for seed, name, (fraction, tilt) in product(seeds, names, second_groups):
        source = world_source(name, Clients(20, 200), seed)
        title = f"{fraction:.0%} {'harder' if tilt > 0 else 'easier'} (t = {tilt:g})"
        yield Cell([title, "two groups, all"], source, options={"group": (fraction, tilt)})


def by_nature(seeds: range, names: Sequence[OutputsName]) -> Iterator[Cell]:
    """Yield cells of natural clients: no attack, one all wrong, gross attacks, gaussian."""
    cases: tuple[tuple[str, tuple[str, float] | None, bool], ...] = (
        ("no attack", None, False),
        ("one all wrong", ("all-wrong", 0.01), False),
        ("20% minimal", ("coverage", 0.2), False),
        ("20% maximal", ("efficiency", 0.2), False),
        ("20% gaussian", ("gaussian", 0.2), False),
        ("no attack, sizes registered", None, True),
    )
    for seed, (dataset, column), (title, attack, registered) in product(seeds, NATURAL, cases):
        yield Cell(
            rows=[f"{dataset} by {column}: {title}"],
            source=(dataset, column, seed),
            attack=attack,
            registered=registered,
        )


def sensitivity(
    seeds: range, names: Sequence[OutputsName], varied: Sequence[str]
) -> Iterator[Cell]:
    """Yield cells on which half and twice of every constant are measured."""
    federations = (
        Clients(5, 100, 0.3, "lognormal"),
        Clients(10, 200, 0.1),
        Clients(20, 100, 0.5, "lognormal"),
        Clients(50, 50, 0.3, "lognormal"),
    )
    attacks = (
        ("gross", ("coverage", 0.4)),
        ("gross", ("efficiency", 0.2)),
        ("gaussian", ("gaussian", 0.4)),
        ("stealth", ("truncation", 0.4)),
        ("stealth", ("shift-below-threshold", 0.4)),
        ("stealth", ("mimic-low", 0.4)),
        ("upward", ("keep-30", 0.2)),
        ("one all wrong", ("all-wrong", 0.01)),
        ("no attack", None),
    )
    for seed, name, clients, (title, attack) in product(seeds, names, federations, attacks):
        yield Cell(
            rows=[title],
            source=world_source(name, clients, seed),
            attack=attack,
            methods=("none", "consensus", *varied),
            options={"spread": 0.3},
        )
