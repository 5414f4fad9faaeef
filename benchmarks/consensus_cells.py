"""What consensus is tried on, cell by cell: (names of rows, world, attack, rules, by class)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from robfcp.experiments.attacks import Attack, PairAttack, ScoreAttack
from robfcp.experiments.attacks.coordinated import frame_hardest_clients
from robfcp.experiments.attacks.simple import truncation

NATURAL = (("sleep", "site"), ("stroke", "country"), ("stroke", "site"), ("heart", "site"))
COMPARED = ("none", "rob-fcp", "rob-fcp-released", "consensus")
STEALTH: tuple[tuple[str, Attack | str], ...] = (
    ("truncation at .75", "truncation"),
    ("truncation at .9", ScoreAttack(truncation, 0.9)),
    ("stairs", "stairs"),
    ("push", "push"),
    ("ghost at .85", "ghost"),
    ("ghost at .5", PairAttack(frame_hardest_clients, 0.5)),
    ("mimic", "mimic-low"),
    ("pair mimic", "pair-mimic"),
)
Cells = Iterator[tuple[list[str], tuple[Any, ...], Any, Sequence[str], bool]]


def gross(seeds: range, names: Sequence[Any]) -> Cells:
    """All scores minimal or maximal."""
    for seed, name, clients, beta in product(
        seeds, names, (5, 10, 20, 50, 100), (None, 0.5, 0.3, 0.1)
    ):
        rng = np.random.default_rng([seed, clients, int(10 * (beta or 0))])
        size, sizes = int(rng.choice([50, 500])), str(rng.choice(["equal", "lognormal"]))
        score = str(rng.choice(["lac", "lac", "aps"]))
        share = float(rng.choice([0.1, 0.2, 0.4]))
        attack = str(rng.choice(["coverage", "efficiency"]))
        size = 100 if clients * size > 25_000 else size
        made = ("world", name, clients, size, beta, sizes, seed, {"score": score})
        keys = ["gross, all", f"K = {clients}", f"Dirichlet {beta or 'none'}", f"share {share:g}"]
        for what, classes in (("by class", True), ("pooled", False)):
            rows = [f"{what}: {key}" for key in (*keys, sizes)]
            yield rows, made, (attack, share), COMPARED, classes


def few(seeds: range, names: Sequence[Any]) -> Cells:
    """One of a few unequal sites has all its labels wrong."""
    for seed, name, clients, beta in product(seeds, names, (4, 6, 8, 16), (None, 1.0, 0.3)):
        made = ("world", name, clients, 0, beta, "unequal", seed, {})
        for what, attack in (("one all wrong", ("all-wrong", 0.01)), ("nobody", None)):
            yield [f"{what}, K = {clients}", f"{what}, all"], made, attack, COMPARED, True


def gaussian(seeds: range, names: Sequence[Any]) -> Cells:
    """The paper's third attack."""
    places = (
        (20, 250, 0.5, "equal"),
        (50, 50, None, "equal"),
        (10, 100, 0.3, "lognormal"),
        (100, 50, 0.5, "lognormal"),
    )
    for seed, name, place, share in product(seeds, names, places, (0.1, 0.2, 0.4)):
        clients, size, beta, sizes = place
        key = f"K = {clients}, n = {size}, Dirichlet {beta or 'none'}, {sizes}"
        keys = ["gaussian, all", key, f"gaussian, share {share:g}"]
        yield keys, ("world", name, *place, seed, {}), ("gaussian", share), COMPARED, True


def stealth(seeds: range, names: Sequence[Any]) -> Cells:
    """40% that stay close to honest reports."""
    places = (
        (100, 50, None, "equal", 0.0),
        (50, 50, 0.5, "lognormal", 0.0),
        (20, 250, 0.5, "equal", 0.0),
        (20, 250, 0.1, "lognormal", 0.0),
        (20, 200, 1.0, "lognormal", 0.5),
    )
    for seed, name, (title, attack), (*place, spread) in product(seeds, names, STEALTH, places):
        made = ("world", name, *place, seed, {"spread": spread})
        yield [title, "stealth, all"], made, (attack, 0.4), COMPARED, True


def turned(seeds: range, names: Sequence[Any]) -> Cells:
    """40% that turn a defence against the honest: means of them, a middle, a rare class, sizes."""
    places = ((10, 200, None), (20, 200, 0.5), (50, 50, 0.1), (20, 5000, None))
    attacks = ("hub", "squeeze", "class-claim", "class-capture", "size-inflation")
    for seed, name, attack, (clients, size, beta) in product(seeds, names, attacks, places):
        made = ("world", name, clients, size, beta, "equal", seed, {})
        yield [attack, f"{attack}, n = {size}"], made, (attack, 0.4), COMPARED, True


def upward(seeds: range, names: Sequence[Any]) -> Cells:
    """Scores made larger, so that every label is in every set; also told how many lie."""
    places = ((10, 200, None), (20, 200, 0.5), (50, 50, 0.3))
    attacks = (("keep-30", 0.2), ("keep-30", 0.4), ("lift", 0.4))
    for seed, name, (attack, share), (clients, size, beta) in product(
        seeds, names, attacks, places
    ):
        made = ("world", name, clients, size, beta, "equal", seed, {})
        yield [f"{attack}, {share:.0%}"], made, (attack, share), (*COMPARED, "exactly"), True


def nobody(seeds: range, names: Sequence[Any]) -> Cells:
    """Nobody lies, in one group of clients who differ by labels and by difficulty."""
    kinds = ((None, 0.0), (0.3, 0.0), (1.0, 0.5))
    for seed, name, clients, (beta, spread) in product(
        seeds, names, (3, 4, 5, 8, 12, 20, 50, 100), kinds
    ):
        rng = np.random.default_rng([seed, clients])
        size, sizes = int(rng.choice([50, 250])), str(rng.choice(["equal", "lognormal"]))
        made = ("world", name, clients, size, beta, sizes, seed, {"spread": spread})
        for what, classes in (("by class", True), ("pooled", False)):
            keys = [f"{what}: nobody, K = {clients}", f"{what}: nobody, all"]
            yield keys, made, None, COMPARED, classes


def groups(seeds: range, names: Sequence[Any]) -> Cells:
    """Two honest groups that differ within classes; nobody lies."""
    kinds = ((0.3, 1.5), (0.2, 2.5), (0.4, 1.5), (0.3, -1.5), (0.3, -2.5))
    for seed, name, (share, tilt) in product(seeds, names, kinds):
        made = ("world", name, 20, 200, None, "equal", seed, {"group": (share, tilt)})
        key = f"{share:.0%} {'harder' if tilt > 0 else 'easier'} (t = {tilt:g})"
        yield [key, "two groups, all"], made, None, COMPARED, True


def by_nature(seeds: range, _: Sequence[Any]) -> Cells:
    """Sites as they are: nobody, one site all wrong, gross liars, gaussian."""
    cases = (
        ("nobody", "natural", None),
        ("one all wrong", "natural", ("all-wrong", 0.01)),
        ("20% minimal", "natural", ("coverage", 0.2)),
        ("20% maximal", "natural", ("efficiency", 0.2)),
        ("20% gaussian", "natural", ("gaussian", 0.2)),
        ("nobody, sizes registered", "registered", None),
    )
    for seed, (dataset, column), (what, kind, attack) in product(seeds, NATURAL, cases):
        made = (kind, dataset, column, seed)
        yield [f"{dataset} by {column}: {what}"], made, attack, COMPARED, True


def sensitivity(seeds: range, names: Sequence[Any], varied: Sequence[str]) -> Cells:
    """Half and twice of every constant."""
    places = (
        (5, 100, 0.3, "lognormal"),
        (10, 200, 0.1, "equal"),
        (20, 100, 0.5, "lognormal"),
        (50, 50, 0.3, "lognormal"),
    )
    attacks = (
        ("gross", ("coverage", 0.4)),
        ("gross", ("efficiency", 0.2)),
        ("gaussian", ("gaussian", 0.4)),
        ("stealth", ("truncation", 0.4)),
        ("stealth", ("push", 0.4)),
        ("stealth", ("mimic-low", 0.4)),
        ("upward", ("keep-30", 0.2)),
        ("one all wrong", ("all-wrong", 0.01)),
        ("nobody", None),
    )
    for seed, name, place, (what, attack) in product(seeds, names, places, attacks):
        made = ("world", name, *place, seed, {"spread": 0.3})
        yield [what], made, attack, ("none", "consensus", *varied), True
