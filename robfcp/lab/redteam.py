"""Every attack against every defence: what each costs in coverage and set size, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.defence import Consensus, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.figures import new_axes, plot_heatmap
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import ATTACKS, Adaptive, Attack, named_attack
from robfcp.lab.rivals import FEDCP_QQ, RULES, limits_of
from robfcp.lab.simulation import Row, averaged, pool_of, verdicts
from robfcp.lab.worlds import Setting, World, apply_attack, make_world

DEFENCES = ("none", FEDCP_QQ, "rob-fcp", "rob-fcp-released", Consensus.name)
SHARES = (0.1, 0.2, 0.4)


def redteam(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    defences: Sequence[str] = DEFENCES,
    shares: Sequence[float] = SHARES,
    n_clients: int = 20,
    trials: int = 50,
    seeds: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> tuple[Row, ...]:
    """A cell for every attack, share and defence; runs of one seed and share have the same clients.

    The adaptive attacks are sought against each defence by itself, in `trials` free steps. What
    else is asked for is a `Setting`, as in `simulate`.
    """
    for name in attacks:
        named_attack(name)
    if not attacks or not defences or not shares or seeds < 1:
        raise RobfcpError("redteam: give at least one attack, defence, share and seed")
    rows: list[Row] = []
    for share, seed in product(shares, range(seeds)):
        given = Setting(share=share, n_clients=n_clients, **setting)
        world = make_world(probabilities, labels, given, np.random.default_rng([rng, seed]))
        for number, attack in enumerate(attacks):
            rule = named_attack(attack)
            faced: list[tuple[Attack, Sequence[str]]] = [(rule, defences)]
            if isinstance(rule, Adaptive):  # who knows what it faces: one for each defence
                known = (_knowing(rule, one, world, given, trials) for one in defences)
                faced = [(own, [one]) for own, one in zip(known, defences, strict=True)]
            for own, some in faced:
                sent = apply_attack(own, world, np.random.default_rng([rng, seed, number]))
                for row in verdicts(world, sent, some, given, attack=attack, seed=seed):
                    rows.append(row)
                    progress()
    cells = averaged(rows, "attack", "share", "defence")
    return tuple(sorted(cells, key=lambda cell: attacks.index(cell.attack)))


def worst(cells: Sequence[Row]) -> dict[str, Row]:
    """Each defence's cell with the greatest error of coverage, either way; of equals, the one whose
    sets grow or shrink most."""

    def harm(cell: Row) -> tuple[float, float]:
        return round(abs(cell.error), 9), abs(cell.set_size - cell.honest_set_size)

    defences = dict.fromkeys(cell.defence for cell in cells)
    return {one: max((c for c in cells if c.defence == one), key=harm) for one in defences}


def search(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    defences: Sequence[str] = (Consensus.name,),
    shares: Sequence[float] = SHARES,
    n_clients: int = 20,
    trials: int = 400,
    seeds: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> list[dict[str, Any]]:
    """A record a defence and world (share and seed), the worst first: what a liar who knows the
    rule and all honest reports finds in `trials` steps to lower coverage with, beyond what the same
    reports do to FCP, undefended."""
    found = []
    for share, seed, defence in product(shares, range(seeds), defences):
        given = Setting(share=share, n_clients=n_clients, **setting)
        world = make_world(probabilities, labels, given, np.random.default_rng([rng, seed]))
        known = replace(_knowing(Adaptive(), defence, world, given, trials), beyond=True)
        seen = known.search(world.federation, world.malicious, np.random.default_rng([rng, seed]))
        sides = (defence, "none")
        own, plain = verdicts(world, seen.federation, sides, given, attack=seen.family, seed=seed)
        record = {"defence": defence, "share": share, "seed": seed, "error": own.error}
        record |= {"undefended": plain.error, "harm": own.error - min(plain.error, 0.0)}
        found.append(record | {"honest_left_out": own.flagged - own.caught, "lies": seen.family})
        progress()
    return sorted(found, key=lambda record: record["harm"])


FIELD: dict[str, tuple[str, str | None]] = {  # outputs, and the column of natural sites
    "stroke": ("stroke", "site"),
    "sleepers": ("sleep", "site"),
    **{name: (name, None) for name in ("tinyimagenet", "mnist", "cifar10", "pathmnist", "sleep")},
    "countries": ("stroke", "country"),
    "heart": ("heart", "site"),
}
FIELD_ATTACKS = ("coverage", "efficiency", "truncation")
STEPS = {"one liar": 0.0, "10%": 0.1, "20%": 0.2, "40%": 0.4}
NOBODY = "nobody lies"
HONEST = ("coverage", "worst_class_coverage", "worst_site_coverage", "growth")  # shown of it
METHODS = ("none", "rob-fcp", "rob-fcp-released", *RULES, Consensus.name)


def field(
    data: Sequence[str] = tuple(FIELD),
    *,
    workers: int = 1,
    progress: Callable[[], None] = lambda: None,
    **told: Any,
) -> list[dict[str, Any]]:
    """A record a federation, step (`STEPS`, and nobody), attack and method of `METHODS`.

    Artificial sites are `n_clients` of Dirichlet(beta), natural ones as they are; `attacks`,
    `seeds` and `rng` as in `redteam`. Defences find out themselves how many lie; our promises are
    told.
    """
    unknown = [name for name in data if name not in FIELD]
    if unknown:
        raise RobfcpError(f"{unknown[0]}: is not in the field; choose from {', '.join(FIELD)}")
    found: list[dict[str, Any]] = []
    with pool_of(min(workers, len(data))) as pool:
        for part in pool.map(partial(_field_of, **told), data):
            found += part
            progress()
    return found


def _field_of(
    name: str,
    attacks: Sequence[str] = FIELD_ATTACKS,
    n_clients: int = 20,
    beta: float = 0.5,
    seeds: int = 1,
    rng: int = 0,
) -> list[dict[str, Any]]:
    dataset, column = FIELD[name]
    given = outputs.load(dataset, None if column is None else outputs.NATURAL)
    same: dict[str, Any] = {"n_clients": n_clients, "beta": beta}
    if column is not None:
        sites = given.column(column)
        same, n_clients = {"sites": sites, "min_size": 50}, len(partitions.by_site(sites, 50))
    same |= {"defences": METHODS, "seeds": seeds, "rng": rng, "liars": "estimate"}
    steps: dict[int, str] = {}  # the first name of each number of liars
    for step, part in STEPS.items():
        steps.setdefault(max(1, round(part * n_clients)), step)
    found = []
    for liars, step in {0: NOBODY, **steps}.items():
        same |= {"attacks": attacks if liars else attacks[:1], "shares": (liars / n_clients,)}
        cells = redteam(given.probabilities, given.labels, **same)
        for cell in cells:
            attack = cell.attack if liars else ""
            found.append({"data": name, "step": step, **_record(cell), "attack": attack})
    return found


def standings(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a method, means over the federations: what nobody's lies cost, and for each number
    of liars the least error of coverage and the largest growth of sets under any attack."""
    lines = []
    for method in dict.fromkeys(one["defence"] for one in found):
        line: dict[str, Any] = {"method": method}
        for step in (NOBODY, *STEPS):
            own = [one for one in found if (one["defence"], one["step"]) == (method, step)]
            groups = [[x for x in own if x["data"] == d] for d in {x["data"]: 0 for x in own}]
            if step == NOBODY:
                line |= {name: float(np.mean([one[name] for one in own])) for name in HONEST}
            elif groups:
                lost = [min(one["error"] for one in group) for group in groups]
                grown = [max(one["growth"] for one in group) for group in groups]
                line[step] = float(np.mean(lost)), float(np.mean(grown))
        lines.append(line)
    return lines


def plot_standings(lines: Sequence[dict[str, Any]]) -> NDArray[Any]:
    """Two heat maps, method by number of liars: coverage lost at worst, and growth of the sets."""
    steps = [step for step in STEPS if step in lines[0]]
    values = np.array([[line[step] for step in steps] for line in lines]) - (0, 1)
    return _two_maps(values, [line["method"] for line in lines], steps, ", at worst")


def _two_maps(
    values: NDArray[Any], rows: Sequence[str], columns: Sequence[str], worst: str = ""
) -> NDArray[Any]:
    """Heat maps of (R, C, 2) errors of coverage and growth of sets."""
    axes = new_axes(2, 1.4 + 0.3 * len(rows))
    for place, title in enumerate(("coverage - honest", "set size / honest - 1")):
        plot_heatmap(values[..., place], rows, columns, title=title + worst, ax=axes[place])
    return axes


def records(cells: Sequence[Row]) -> list[dict[str, Any]]:
    """The cells as plain dictionaries, each defence's worst marked."""
    marked = worst(cells)
    return [{**_record(cell), "worst": marked[cell.defence] is cell} for cell in cells]


def _record(cell: Row) -> dict[str, Any]:
    return {**asdict(cell), "error": cell.error, "growth": cell.growth}


def plot_redteam(cells: Sequence[Row]) -> NDArray[Any]:
    """Two heat maps, attack and share by defence: coverage error and growth of the sets."""
    from matplotlib.patches import Rectangle

    lines = list(dict.fromkeys((cell.attack, cell.share) for cell in cells))
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    values = np.full((len(lines), len(defences), 2), np.nan)
    for cell in cells:
        place = lines.index((cell.attack, cell.share)), defences.index(cell.defence)
        values[place] = cell.error, cell.growth - 1
    axes = _two_maps(values, [f"{attack} {share:.0%}" for attack, share in lines], defences)
    for (column, place), row in np.ndenumerate(np.nanargmax(np.abs(values), axis=0)):
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="crimson")
        axes[place].add_patch(box).set_linewidth(2)
    return axes


def _knowing(
    attack: Adaptive, defence: str, world: World, setting: Setting, trials: int
) -> Adaptive:
    """The attack by somebody who knows the defence and what it is told."""
    against: Any = None
    if defence in RULES:  # of several thresholds it aims at the middle one

        def against(federation: Federation) -> int | None:
            scores, liars = world.scores, len(world.malicious)
            limits = limits_of(defence, federation, setting.coverage, scores, liars)
            edge = int(np.searchsorted(federation.grid.upper, np.median(limits)))
            return edge if edge < federation.grid.n_bins else None

    else:
        told = len(world.malicious) if setting.liars == "known" else None
        against = named_defence(defence, told, exactly=setting.exactly)
    return replace(attack, against=against, coverage=setting.coverage, trials=trials)
