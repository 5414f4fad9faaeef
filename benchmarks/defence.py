"""What the defences hold: `python benchmarks/defence.py [--quick] [SECTION ...]`.

Prints, as Markdown: told (number known, excluding exactly that many or only those who stand out),
nobody (false alarms), counting, adaptive (the attacker who knows everything), indistinguishable
and tried (what each part of the defence is for). Everything is seeded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import worlds
from numpy.typing import NDArray
from worlds import Setting, all_real, all_simulated, simulated

from robfcp.defence import Band, Defence, NoDefence, RobFCP, estimate_malicious, stand_out
from robfcp.defence.band import spacings, views
from robfcp.federation import Federation
from robfcp.guarantees import fcp_index, marginal_threshold, pac_threshold
from robfcp.lab.attacks import (
    Adaptive,
    Attack,
    Coverage,
    Decoy,
    Displacement,
    Efficiency,
    Gaussian,
    Mimic,
    MimicLow,
    Truncation,
)
from robfcp.lab.worlds import World, apply_attack

LEVEL = Fraction(9, 10)
PAPER: tuple[Attack, ...] = (Coverage(), Efficiency(), Gaussian())
Mask = NDArray[np.bool_]


def main() -> None:
    """Run the sections asked for, all without any."""
    sections: dict[str, Callable[[bool], None]] = {
        "told": told,
        "nobody": nobody,
        "counting": counting,
        "adaptive": adaptive,
        "indistinguishable": indistinguishable,
        "tried": tried,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--quick", action="store_true", help="fewer runs and settings")
    parser.add_argument("--shift", type=int, default=0, help="add this to every seed")
    arguments = parser.parse_args()
    worlds.SHIFT = arguments.shift
    if unknown := set(arguments.sections) - set(sections):
        parser.error(f"no such section: {', '.join(unknown)}; choose from {', '.join(sections)}")
    for name in arguments.sections or sections:
        start = time.perf_counter()
        print(f"\n## {name}\n", flush=True)
        sections[name](arguments.quick)
        print(f"\n({name}: {time.perf_counter() - start:.0f} s)", flush=True)


def told(quick: bool) -> None:
    """40% attack: |coverage - honest coverage| of every defence, number told and estimated."""
    seeds = 3 if quick else 10
    settings = all_simulated() + (all_real()[:3] if quick else all_real())
    columns = ("none", "rob-fcp", "exactly", "outstanding", "estimated")
    table = []
    for setting in settings:
        for attack in PAPER:
            runs = [_judged(setting.draw(0.4, seed), attack, seed) for seed in range(seeds)]
            table.append((setting, attack, np.mean(runs, axis=0)))
    print_table(
        ("setting", "attack", *columns),
        ((s.name, a.name, *(f"{value:.4f}" for value in row)) for s, a, row in table),
    )
    print()
    groups: dict[str, Callable[[Setting, Attack], bool]] = {
        "K = 100": lambda s, a: s.clients == 100,
        "K <= 20": lambda s, a: s.clients <= 20,
        "simulated K = 100, without gaussian at n = 50": lambda s, a: (
            s.clients == 100 and not s.real and not (a.name == "gaussian" and s.size == 50)
        ),
        "coverage and efficiency, all": lambda s, a: a.name != "gaussian",
        "gaussian, n < 100": lambda s, a: a.name == "gaussian" and s.size < 100,
        "gaussian, n >= 100": lambda s, a: a.name == "gaussian" and s.size >= 100,
    }
    lines = []
    for name, chosen in groups.items():
        rows = np.array([row for s, a, row in table if chosen(s, a)])
        means = [
            f"{mean:.4f} / {most:.4f}" for mean, most in zip(rows.mean(0), rows.max(0), strict=True)
        ]
        lines.append((name, len(rows), *means))
    print_table(("mean / worst cell", "cells", *columns), lines)


def _judged(world: World, attack: Attack, seed: int) -> list[float]:
    attacked = apply_attack(attack, world, np.random.default_rng(seed))
    honest = world.coverage(fcp(world.federation, world.benign))
    number = len(world.malicious)
    finding = stand_out(attacked)
    masks = [
        NoDefence()(attacked, number).trusted,
        RobFCP()(attacked, number).trusted,
        Band("exactly").judge(attacked, finding, number).trusted,
        Band().judge(attacked, finding, number).trusted,
        ~finding.outstanding,
    ]
    return [abs(world.coverage(fcp(attacked, mask)) - honest) for mask in masks]


def nobody(quick: bool) -> None:
    """Nobody attacks: how often anybody is excluded, and what being told 40% costs."""
    usual, diverse, real = all_simulated(), all_simulated((0.1,)), all_real()
    runs = (20, 10, 5) if quick else (200, 50, 20)
    chosen = [(setting, runs[0]) for setting in usual] + [(setting, runs[1]) for setting in diverse]
    chosen += [(setting, runs[2]) for setting in real[:: 9 if quick else 1]]
    print_table(
        ("setting", "runs", "says > 0", "told 40%", "told 40%, exactly"),
        (_left_alone(setting, number) for setting, number in chosen),
    )


def _left_alone(setting: Setting, runs: int) -> tuple[object, ...]:
    alarms, costs, forced = [], [], []
    for seed in range(runs):
        world = setting.draw(0.0, 1000 + seed)
        finding = stand_out(world.federation)
        alarms.append(finding.outstanding.any())
        honest = world.coverage(fcp(world.federation, world.benign))
        number = int(0.4 * setting.clients)
        for rule, found in ((Band(), costs), (Band("exactly"), forced)):
            mask = rule.judge(world.federation, finding, number).trusted
            found.append(abs(world.coverage(fcp(world.federation, mask)) - honest))
    means = f"{np.mean(costs):.4f}", f"{np.mean(forced):.4f}"
    return setting.name, runs, f"{np.mean(alarms):.1%}", *means


def counting(quick: bool) -> None:
    """Exact hits and mean absolute error over 5, 10, 20 and 40% attackers."""
    attacks: tuple[Attack, ...] = (*PAPER, Mimic(), Decoy())
    methods: dict[str, Callable[[Federation], int]] = {
        "groups": estimate_malicious,
        "upward": lambda federation: estimate_malicious(federation, "groups-upward"),
    }
    for covariance in ("diagonal", "ridge", "pseudo-inverse", "identity"):
        methods[covariance] = lambda federation, covariance=covariance: estimate_malicious(
            federation, "likelihood", covariance=covariance
        )
    settings = [setting for setting in all_simulated() if setting.clients == 100]
    print("Exact hits / mean absolute error, K = 100, accurate and weak, iid and Dir(0.5).\n")
    print_table(
        ("size", "attack", *methods),
        (
            (f"n = {size}", attack.name, *_counted(attack, chosen, methods, 2 if quick else 5))
            for size in (50, 500)
            for chosen in [[setting for setting in settings if setting.size == size]]
            for attack in attacks
        ),
    )


def _counted(
    attack: Attack,
    settings: Sequence[Setting],
    methods: dict[str, Callable[[Federation], int]],
    seeds: int,
) -> list[str]:
    off: dict[str, list[int]] = {name: [] for name in methods}
    for setting in settings:
        for share in (0.05, 0.1, 0.2, 0.4):
            for seed in range(seeds):
                world = setting.draw(share, 2000 + seed)
                attacked = apply_attack(attack, world, np.random.default_rng(seed))
                for name, method in methods.items():
                    if seed == 0 or name not in ("ridge", "pseudo-inverse"):
                        off[name].append(method(attacked) - len(world.malicious))
    return [
        f"{np.mean(np.array(errors) == 0):.0%} / {np.mean(np.abs(errors)):.1f}"
        for errors in off.values()
    ]


def adaptive(quick: bool) -> None:
    """The least coverage of the honest clients an attacker who knows everything gets."""
    settings = [s for s in all_simulated((None, 0.5, 0.1)) if s.clients == 100 or s.size == 500]
    seeds, trials = (1, 10) if quick else (2, 30)
    print(
        "Honest coverage at the worst reports found; the target is 0.9. Last: coverage under band"
    )
    print("minus that without defence on the very same reports, the least over the runs.\n")
    print_table(
        ("setting", "share", "none", "rob-fcp", "band", "marginal", "PAC", "band - none"),
        (
            _worst(setting, share, seeds, trials)
            for setting in settings[:: 3 if quick else 1]
            for share in (0.1, 0.2, 0.4)
        ),
    )


def _worst(setting: Setting, share: float, seeds: int, trials: int) -> tuple[object, ...]:
    number = round(share * setting.clients)
    rules: dict[str, Callable[[Federation], int | None] | Defence] = {
        "none": NoDefence(),
        "rob-fcp": RobFCP(),
        "band": Band(),
        "marginal": lambda federation: marginal_threshold(federation, LEVEL, number),
        "pac": lambda federation: pac_threshold(federation, LEVEL, number, 0.05),
    }
    worst: dict[str, list[float]] = {name: [] for name in rules}
    same = []
    for seed in range(seeds):
        world = setting.draw(share, 3000 + seed)
        for name, rule in rules.items():
            attacker = Adaptive(rule, trials=0 if name in ("marginal", "pac") else trials)
            found = attacker.search(world.federation, world.malicious, seed)
            worst[name].append(found.coverage)
            if name == "band":
                undefended = fcp(found.federation, np.ones(setting.clients, dtype=bool))
                same.append(found.coverage - honest_share(world, undefended))
    means = [f"{np.mean(values):.3f}" for values in worst.values()]
    return setting.name, f"{share:.0%}", *means, f"{np.min(same):+.3f}"


def indistinguishable(quick: bool) -> None:
    """Two worlds with the same reports: nothing the server sees tells which one lies."""
    easy, hard = 0.02, 0.3
    rng = np.random.default_rng(0)
    scores = [rng.beta(1, 1 / easy, 500) for _ in range(80)]
    scores += [rng.beta(1, 1 / hard, 500) for _ in range(20)]
    from robfcp import LAC, Grid
    from robfcp.lab.worlds import federation_of

    federation = federation_of(scores, Grid.default(), LAC())
    finding = stand_out(federation)
    low, high = np.arange(100) < 80, np.arange(100) >= 80
    stories = {
        "20 lie upwards (the last)": low,
        "40 copy the easy half (40 of the first)": (np.arange(100) < 40) | high,
    }
    lines = []
    for name, benign in stories.items():
        pool = np.sort(np.concatenate([scores[k] for k in np.flatnonzero(benign)]))
        cells = [
            np.searchsorted(pool, fcp(federation, mask), "right") / len(pool)
            for mask in (np.ones(100, dtype=bool), ~finding.outstanding)
        ]
        lines.append((name, *(f"{value:.3f}" for value in cells)))
    print(f"One set of reports, {int(finding.outstanding.sum())} clients stand out.\n")
    print_table(("what happened", "coverage without defence", "coverage under band"), lines)


def tried(quick: bool) -> None:
    """What each part is for: the mean and worst error with it taken away."""
    variants: dict[str, tuple[object, str, object] | None] = {
        "as it is": None,
        "credit for accomplices": (views, "accomplices", lambda n_clients: 1),
        "core not refined": (views, "REFINEMENTS", 0),
        "no far tails": (views, "FAR_WEIGHT", 0.0),
        "6 quantile bins": (views, "LEVELS", np.array([0.002, 0.25, 0.5, 0.75, 0.998])),
        "20 equal bins": (views, "LEVELS", np.arange(1, 20) / 20),
        "groups may be diverse": (spacings, "DIVERSITY", np.inf),
        "groups may spread": (spacings, "LEEWAY", np.inf),
        "neither": (spacings, "CLEAR", -np.inf),
    }
    attacks: tuple[Attack, ...] = (*PAPER, Truncation(), MimicLow(), Displacement(0.1))
    settings = [s for s in all_simulated((None, 0.5)) if s.clients == 100]
    settings += [simulated(0.95, 0.1, 20, 500)]
    seeds = 2 if quick else 5
    for exclude in ("exactly", "outstanding"):
        lines = []
        for name, change in variants.items():
            cells = []
            for attack in attacks:
                errors = []
                for setting in settings:
                    for seed in range(seeds):
                        world = setting.draw(0.4, 4000 + seed)
                        attacked = apply_attack(attack, world, np.random.default_rng(seed))
                        if name == "neither":
                            with patch.object(spacings, "LEEWAY", np.inf):
                                mask = _changed(change, attacked, exclude, len(world.malicious))
                        else:
                            mask = _changed(change, attacked, exclude, len(world.malicious))
                        honest = world.coverage(fcp(world.federation, world.benign))
                        errors.append(abs(world.coverage(fcp(attacked, mask)) - honest))
                cells.append(f"{np.mean(errors):.3f} / {np.max(errors):.3f}")
            lines.append((name, *cells))
        print(f"exclude={exclude!r}, 40% attack, number told: mean / worst run\n")
        print_table(("variant", *(attack.name for attack in attacks)), lines)
        print()


def _changed(
    change: tuple[object, str, object] | None, attacked: Federation, exclude: str, number: int
) -> Mask:
    rule = Band(exclude)  # type: ignore[arg-type]
    if change is None:
        return rule(attacked, number).trusted
    with patch.object(*change):  # type: ignore[call-overload]
        mask: Mask = rule(attacked, number).trusted
    return mask


def fcp(federation: Federation, trusted: Mask) -> float:
    """FCP's threshold on the trusted clients."""
    index = fcp_index(federation, LEVEL, trusted)
    return np.inf if index is None else float(federation.grid.upper[index])


def honest_share(world: World, threshold: float) -> float:
    """Share of the honest clients' reported scores at or below the threshold."""
    pool = world.federation.pooled(world.benign)
    below = world.federation.grid.upper <= threshold
    return float(pool[below].sum() / pool.sum()) if np.isfinite(threshold) else 1.0


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table."""
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


if __name__ == "__main__":
    main()
