"""What consensus is tried on, cell by cell: (names of rows, world, attack, rules, by class)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robfcp.lab.attacks import Attack
from robfcp.lab.attacks.coordinated import Ghost, Push
from robfcp.lab.attacks.simple import Gaussian, Truncation

NATURAL = (("sleep", "site"), ("stroke", "country"), ("stroke", "site"), ("heart", "site"))
COMPARED = ("none", "rob-fcp", "rob-fcp-released", "consensus")
STEALTH: tuple[tuple[str, Attack | str], ...] = (
    ("truncation at .75", Truncation(0.75)),
    ("truncation at .9", Truncation(0.9)),
    ("stairs", "stairs"),
    ("push", Push()),
    ("ghost at .85", Ghost(0.85)),
    ("ghost at .5", Ghost(0.5)),
    ("mimic", "mimic-low"),
    ("pair mimic", "pair-mimic"),
)


def gross(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """All scores minimal or maximal."""
    for seed in seeds:
        for name in names:
            for clients in (5, 10, 20, 50, 100):
                for beta in (None, 0.5, 0.3, 0.1):
                    rng = np.random.default_rng([seed, clients, int(10 * (beta or 0))])
                    size, sizes = (
                        int(rng.choice([50, 500])),
                        str(rng.choice(["equal", "lognormal"])),
                    )
                    score = str(rng.choice(["lac", "lac", "aps"]))
                    share = float(rng.choice([0.1, 0.2, 0.4]))
                    attack = str(rng.choice(["coverage", "efficiency"]))
                    if clients * size > 25_000:
                        size = 100
                    for classes in (True, False):
                        keys = [
                            "gross, all",
                            f"K = {clients}",
                            f"Dirichlet {beta or 'none'}",
                            f"share {share:g}",
                            sizes,
                        ]
                        what = "by class" if classes else "pooled"
                        yield (
                            [f"{what}: {key}" for key in keys],
                            ("world", name, clients, size, beta, sizes, seed, {"score": score}),
                            (attack, share),
                            rules,
                            classes,
                        )


def few(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """One of a few unequal sites has all its labels wrong."""
    for seed in seeds:
        for name in names:
            for clients in (4, 6, 8, 16):
                for beta in (None, 1.0, 0.3):
                    made = ("world", name, clients, 0, beta, "unequal", seed, {})
                    for attack in (("all-wrong", 0.01), None):
                        what = "one all wrong" if attack else "nobody"
                        yield [f"{what}, K = {clients}", f"{what}, all"], made, attack, rules, True


def gaussian(
    seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED
) -> Iterator[Any]:
    """The paper's third attack."""
    for seed in seeds:
        for name in names:
            for clients, size, beta, sizes in (
                (20, 250, 0.5, "equal"),
                (50, 50, None, "equal"),
                (10, 100, 0.3, "lognormal"),
                (100, 50, 0.5, "lognormal"),
            ):
                for share in (0.1, 0.2, 0.4):
                    made = ("world", name, clients, size, beta, sizes, seed, {})
                    key = f"K = {clients}, n = {size}, Dirichlet {beta or 'none'}, {sizes}"
                    yield (
                        ["gaussian, all", key, f"gaussian, share {share:g}"],
                        made,
                        (Gaussian(0.5), share),
                        rules,
                        True,
                    )


def stealth(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """40% that stay close to honest reports."""
    for seed in seeds:
        for name in names:
            for title, attack in STEALTH:
                for clients, size, beta, sizes, spread in (
                    (100, 50, None, "equal", 0.0),
                    (50, 50, 0.5, "lognormal", 0.0),
                    (20, 250, 0.5, "equal", 0.0),
                    (20, 250, 0.1, "lognormal", 0.0),
                    (20, 200, 1.0, "lognormal", 0.5),
                ):
                    made = ("world", name, clients, size, beta, sizes, seed, {"spread": spread})
                    yield [title, "stealth, all"], made, (attack, 0.4), rules, True


def nobody(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Nobody lies, in one group of clients who differ by labels and by difficulty."""
    for seed in seeds:
        for name in names:
            for clients in (3, 4, 5, 8, 12, 20, 50, 100):
                for beta, spread in ((None, 0.0), (0.3, 0.0), (1.0, 0.5)):
                    rng = np.random.default_rng([seed, clients])
                    size, sizes = (
                        int(rng.choice([50, 250])),
                        str(rng.choice(["equal", "lognormal"])),
                    )
                    made = ("world", name, clients, size, beta, sizes, seed, {"spread": spread})
                    for classes in (True, False):
                        what = "by class" if classes else "pooled"
                        yield (
                            [f"{what}: nobody, K = {clients}", f"{what}: nobody, all"],
                            made,
                            None,
                            rules,
                            classes,
                        )


def groups(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Two honest groups that differ within classes; nobody lies."""
    for seed in seeds:
        for name in names:
            for share, tilt in ((0.3, 1.5), (0.2, 2.5), (0.4, 1.5), (0.3, -1.5), (0.3, -2.5)):
                made = ("world", name, 20, 200, None, "equal", seed, {"group": (share, tilt)})
                kind = "harder" if tilt > 0 else "easier"
                yield (
                    [f"{share:.0%} {kind} (t = {tilt:g})", "two groups, all"],
                    made,
                    None,
                    rules,
                    True,
                )


def by_nature(seeds: range, _: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Sites as they are: nobody, one site all wrong, gross liars, gaussian."""
    for seed in seeds:
        for dataset, column in NATURAL:
            made = ("natural", dataset, column, seed)
            title = f"{dataset} by {column}"
            for what, attack in (
                ("nobody", None),
                ("one all wrong", ("all-wrong", 0.01)),
                ("20% minimal", ("coverage", 0.2)),
                ("20% maximal", ("efficiency", 0.2)),
                ("20% gaussian", (Gaussian(0.5), 0.2)),
            ):
                yield [f"{title}: {what}"], made, attack, rules, True
            yield (
                [f"{title}: nobody, sizes registered"],
                ("registered", *made[1:]),
                None,
                rules,
                True,
            )


def sensitivity(seeds: range, names: Sequence[Any], varied: Sequence[str]) -> Iterator[Any]:
    """Half and twice of every constant."""
    rules = ("none", "consensus", *varied)
    for seed in seeds:
        for name in names:
            for clients, size, beta, sizes in (
                (5, 100, 0.3, "lognormal"),
                (10, 200, 0.1, "equal"),
                (20, 100, 0.5, "lognormal"),
                (50, 50, 0.3, "lognormal"),
            ):
                made = ("world", name, clients, size, beta, sizes, seed, {"spread": 0.3})
                for what, attack in (
                    ("gross", ("coverage", 0.4)),
                    ("gross", ("efficiency", 0.2)),
                    ("gaussian", (Gaussian(0.5), 0.4)),
                    ("stealth", (Truncation(0.75), 0.4)),
                    ("stealth", (Push(), 0.4)),
                    ("stealth", ("mimic-low", 0.4)),
                    ("one all wrong", ("all-wrong", 0.01)),
                    ("nobody", None),
                ):
                    yield [what], made, attack, rules, True
