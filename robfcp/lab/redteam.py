"""Every attack against every defence: what each costs in coverage and set size, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.defence import DEFAULT, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.figures import new_axes, plot_heatmap
from robfcp.guarantees import exact_level
from robfcp.lab import quantile_of_quantiles
from robfcp.lab.attacks import ATTACKS, Adaptive, named_attack
from robfcp.lab.simulation import ByClass, Row, Told, verdicts
from robfcp.lab.worlds import World, apply_attack, make_world
from robfcp.scores import ClassificationScore

DEFENCES = ("none", quantile_of_quantiles.NAME, "rob-fcp", "rob-fcp-released", DEFAULT)
SHARES = (0.1, 0.2, 0.4)


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
    by: ByClass | None = None
    worst_class_coverage: float = np.nan
    honest_worst_class_coverage: float = np.nan

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
    beta: float | None = None,
    sites: ArrayLike | None = None,
    min_size: int = 20,
    confidence_level: float = 0.9,
    score: ClassificationScore | None = None,
    malicious: Told = "known",
    exactly: bool = False,
    by: ByClass | None = None,
    trials: int = 50,
    seeds: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> tuple[Cell, ...]:
    """A cell for every attack, share and defence; runs of one seed and share have the same clients.

    The adaptive attacks are sought against each defence by itself, in `trials` free steps. With
    `sites` the clients are the data's own, as in `simulate`; with by="class" each class has its own
    threshold. Ctrl-C raises `Stopped` with the cells there are.
    """
    for name in attacks:
        named_attack(name)
    if not attacks or not defences or not shares or seeds < 1:
        raise RobfcpError("redteam: give at least one attack, defence, share and seed")
    rows: list[Row] = []
    try:
        for share in shares:
            for seed in range(seeds):
                world = make_world(
                    probabilities,
                    labels,
                    n_clients=n_clients,
                    share=share,
                    beta=beta,
                    score=score,
                    grid=None,
                    sites=sites,
                    min_size=min_size,
                    rng=np.random.default_rng([rng, seed]),
                )
                for number, attack in enumerate(attacks):
                    for attacked, faced in _attacked(
                        world=world,
                        attack=attack,
                        defences=defences,
                        confidence_level=confidence_level,
                        exactly=exactly,
                        trials=trials,
                        seed=[rng, seed, number],
                    ):
                        rows += verdicts(
                            world,
                            attacked,
                            faced,
                            attack=attack,
                            share=share,
                            seed=seed,
                            confidence_level=confidence_level,
                            malicious=malicious,
                            exactly=exactly,
                            by=by,
                            progress=progress,
                        )
    except KeyboardInterrupt:
        raise Stopped(_cells(rows, attacks, shares, defences)) from None
    return _cells(rows, attacks, shares, defences)


def worst(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Each defence's cell with the greatest error of coverage, either way."""
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.defence not in found or abs(cell.error) > abs(found[cell.defence].error):
            found[cell.defence] = cell
    return found


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
            row = int(np.nanargmax(np.abs(values[:, column])))
            frame = {"fill": False, "edgecolor": "crimson", "linewidth": 2}
            axis.add_patch(_rectangle((column - 0.5, row - 0.5), frame))
    return axes


def _rectangle(corner: tuple[float, float], frame: dict[str, Any]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, **frame)


def _attacked(
    world: World,
    attack: str,
    defences: Sequence[str],
    confidence_level: float,
    exactly: bool,
    trials: int,
    seed: list[int],
) -> list[tuple[Federation, Sequence[str]]]:
    """The attacked federations with the defences that face them: adaptive ones have one each."""
    rule = named_attack(attack)
    if not isinstance(rule, Adaptive):
        return [(apply_attack(rule, world, np.random.default_rng(seed)), defences)]
    found: list[tuple[Federation, Sequence[str]]] = []
    level = exact_level(confidence_level)
    for defence in defences:
        against = replace(
            rule,
            against=(
                partial(quantile_of_quantiles.fedcp_qq_index, level=level)
                if defence == quantile_of_quantiles.NAME
                else named_defence(defence, len(world.malicious), exactly=exactly)
            ),
            confidence_level=confidence_level,
            trials=trials,
        )
        found.append((apply_attack(against, world, np.random.default_rng(seed)), [defence]))
    return found


def _cells(
    rows: Sequence[Row], attacks: Sequence[str], shares: Sequence[float], defences: Sequence[str]
) -> tuple[Cell, ...]:
    """Means over the runs, in the order asked for."""
    groups: dict[tuple[str, float, str], list[Row]] = {
        (attack, share, defence): []
        for attack in attacks
        for share in shares
        for defence in defences
    }
    for row in rows:
        groups[row.attack, row.share, row.defence].append(row)

    def mean(group: list[Row], name: str) -> float:
        return float(np.mean([getattr(row, name) for row in group]))

    return tuple(
        Cell(
            attack=attack,
            share=share,
            defence=defence,
            coverage=mean(group, "coverage"),
            honest_coverage=mean(group, "honest_coverage"),
            set_size=mean(group, "set_size"),
            honest_set_size=mean(group, "honest_set_size"),
            flagged=mean(group, "flagged"),
            caught=mean(group, "caught"),
            runs=len(group),
            by=group[0].by,
            worst_class_coverage=mean(group, "worst_class_coverage"),
            honest_worst_class_coverage=mean(group, "honest_worst_class_coverage"),
        )
        for (attack, share, defence), group in groups.items()
        if group
    )
