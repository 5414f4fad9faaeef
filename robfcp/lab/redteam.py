"""Every attack against every defence: what each costs in coverage and set size, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import exact_level
from robfcp.defence import Consensus, named_defence
from robfcp.errors import RobfcpError
from robfcp.figures import new_axes, plot_heatmap
from robfcp.lab.attacks import ATTACKS, Adaptive, Attack, named_attack
from robfcp.lab.rivals import FEDCP_QQ, fedcp_qq_index
from robfcp.lab.simulation import Row, verdicts
from robfcp.lab.worlds import Setting, World, apply_attack, make_world

DEFENCES = ("none", FEDCP_QQ, "rob-fcp", "rob-fcp-released", Consensus.name)
SHARES = (0.1, 0.2, 0.4)
MEANS = (
    *("coverage", "honest_coverage", "set_size", "honest_set_size", "flagged", "caught"),
    *("worst_class_coverage", "honest_worst_class_coverage"),
)


@dataclass(frozen=True)
class Cell:
    """One attack by one share of the clients against one defence: means over the runs."""

    attack: str
    share: float
    defence: str
    coverage: float
    honest_coverage: float
    set_size: float
    honest_set_size: float
    flagged: float
    caught: float
    runs: int
    by: str | None
    worst_class_coverage: float
    honest_worst_class_coverage: float

    @property
    def error(self) -> float:
        """Coverage minus that of the honest clients alone."""
        return self.coverage - self.honest_coverage

    @property
    def growth(self) -> float:
        """Set size over that of the honest clients alone."""
        return self.set_size / self.honest_set_size if self.honest_set_size else float("nan")


class Stopped(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; `cells` are those that had at least one run."""

    def __init__(self, cells: tuple[Cell, ...]) -> None:
        super().__init__("redteam was stopped; its cells so far are kept")
        self.cells = cells


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
) -> tuple[Cell, ...]:
    """A cell for every attack, share and defence; runs of one seed and share have the same clients.

    The adaptive attacks are sought against each defence by itself, in `trials` free steps. What
    else is asked for is a `Setting`, as in `simulate`. Ctrl-C raises `Stopped` with the cells there
    are.
    """
    for name in attacks:
        named_attack(name)
    if not attacks or not defences or not shares or seeds < 1:
        raise RobfcpError("redteam: give at least one attack, defence, share and seed")
    rows: list[Row] = []
    try:
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
    except KeyboardInterrupt:
        raise Stopped(_cells(rows, attacks, shares, defences)) from None
    return _cells(rows, attacks, shares, defences)


def worst(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Each defence's cell with the greatest error of coverage, either way; of equals, the one whose
    sets grow or shrink most."""

    def harm(cell: Cell) -> tuple[float, float]:
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
    trials: int = 150,
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


def records(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as plain dictionaries, each defence's worst marked."""
    marked = worst(cells)
    return [
        {
            **asdict(cell),
            "error": cell.error,
            "growth": cell.growth,
            "worst": marked[cell.defence] is cell,
        }
        for cell in cells
    ]


def plot_redteam(cells: Sequence[Cell]) -> NDArray[Any]:
    """Two heat maps, attack and share by defence: coverage error and growth of the sets."""
    from matplotlib.patches import Rectangle

    lines = list(dict.fromkeys((cell.attack, cell.share) for cell in cells))
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    errors = np.full((len(lines), len(defences)), np.nan)
    growth = errors.copy()
    for cell in cells:
        place = lines.index((cell.attack, cell.share)), defences.index(cell.defence)
        errors[place], growth[place] = cell.error, cell.growth - 1
    names = [f"{attack} {share:.0%}" for attack, share in lines]
    axes = new_axes(2, 1.4 + 0.3 * len(lines))
    plot_heatmap(errors, names, defences, title="coverage - honest", ax=axes[0])
    plot_heatmap(growth, names, defences, title="set size / honest - 1", ax=axes[1])
    for axis, values in zip(axes, (errors, growth), strict=True):
        for column in range(len(defences)):
            corner = column - 0.5, int(np.nanargmax(np.abs(values[:, column]))) - 0.5
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="crimson", linewidth=2))
    return axes


def _knowing(
    attack: Adaptive, defence: str, world: World, setting: Setting, trials: int
) -> Adaptive:
    """The attack by somebody who knows the defence and what it is told."""
    against: Any = partial(fedcp_qq_index, level=exact_level(setting.coverage))
    if defence != FEDCP_QQ:
        told = len(world.malicious) if setting.liars == "known" else None
        against = named_defence(defence, told, exactly=setting.exactly)
    return replace(attack, against=against, coverage=setting.coverage, trials=trials)


def _cells(
    rows: Sequence[Row], attacks: Sequence[str], shares: Sequence[float], defences: Sequence[str]
) -> tuple[Cell, ...]:
    """Means over the runs, in the order asked for."""
    cells = []
    for attack, share, defence in product(attacks, shares, defences):
        wanted = (attack, share, defence)
        group = [row for row in rows if (row.attack, row.share, row.defence) == wanted]
        if group:
            means: Any = {
                name: float(np.mean([getattr(row, name) for row in group])) for name in MEANS
            }
            cells.append(Cell(*wanted, runs=len(group), by=group[0].by, **means))
    return tuple(cells)
