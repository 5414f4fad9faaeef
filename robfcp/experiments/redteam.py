"""Every attack against every defence: what each costs in coverage and set size, and the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.defense import Consensus, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import ATTACKS, AdaptiveAttack, Attack, get_attack
from robfcp.experiments.baselines import BASELINES, FEDCP_QQ, baseline_thresholds
from robfcp.experiments.scenarios import Scenario, ScenarioConfig, apply_attack, make_scenario
from robfcp.experiments.simulation import ResultRow, average_rows, evaluate_defenses, worker_pool
from robfcp.federation import Federation
from robfcp.figures import new_axes, plot_heatmap

DEFENSES = ("none", FEDCP_QQ, "rob-fcp", "rob-fcp-released", Consensus.name)
MALICIOUS_FRACTIONS = (0.1, 0.2, 0.4)


def redteam(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    defenses: Sequence[str] = DEFENSES,
    malicious_fractions: Sequence[float] = MALICIOUS_FRACTIONS,
    n_clients: int = 20,
    trials: int = 50,
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> tuple[ResultRow, ...]:
    """A cell for every attack, share and defence; runs of one seed and share have the same clients.

    The adaptive attacks are sought against each defence by itself, in `trials` free steps. What
    else is asked for is a `ScenarioConfig`, as in `simulate`.
    """
    for name in attacks:
        get_attack(name)
    if not attacks or not defenses or not malicious_fractions or n_runs < 1:
        raise RobfcpError("redteam: give at least one attack, defence, share and seed")
    rows: list[ResultRow] = []
    for share, seed in product(malicious_fractions, range(n_runs)):
        given = ScenarioConfig(share=share, n_clients=n_clients, **setting)
        world = make_scenario(probabilities, labels, given, np.random.default_rng([rng, seed]))
        for number, attack in enumerate(attacks):
            rule = get_attack(attack)
            faced: list[tuple[Attack, Sequence[str]]] = [(rule, defenses)]
            if isinstance(rule, AdaptiveAttack):  # who knows what it faces: one for each defence
                known = (_informed_attack(rule, one, world, given, trials) for one in defenses)
                faced = [(own, [one]) for own, one in zip(known, defenses, strict=True)]
            for own, some in faced:
                sent = apply_attack(own, world, np.random.default_rng([rng, seed, number]))
                for row in evaluate_defenses(world, sent, some, given, attack=attack, seed=seed):
                    rows.append(row)
                    progress()
    cells = average_rows(rows, "attack", "share", "defence")
    return tuple(sorted(cells, key=lambda cell: attacks.index(cell.attack)))


def worst_cells(cells: Sequence[ResultRow]) -> dict[str, ResultRow]:
    """Each defence's cell with the greatest error of coverage, either way; of equals, the one whose
    sets grow or shrink most."""

    def harm(cell: ResultRow) -> tuple[float, float]:
        return round(abs(cell.coverage_error), 9), abs(cell.set_size - cell.honest_set_size)

    defences = dict.fromkeys(cell.defence for cell in cells)
    return {one: max((c for c in cells if c.defence == one), key=harm) for one in defences}


def search_attacks(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    defenses: Sequence[str] = (Consensus.name,),
    malicious_fractions: Sequence[float] = MALICIOUS_FRACTIONS,
    n_clients: int = 20,
    trials: int = 400,
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> list[dict[str, Any]]:
    """A record a defence and world (share and seed), the worst first: what a liar who knows the
    rule and all honest reports finds in `trials` steps to lower coverage with, beyond what the same
    reports do to FCP, undefended."""
    found = []
    for share, seed, defence in product(malicious_fractions, range(n_runs), defenses):
        given = ScenarioConfig(share=share, n_clients=n_clients, **setting)
        world = make_scenario(probabilities, labels, given, np.random.default_rng([rng, seed]))
        known = replace(
            _informed_attack(AdaptiveAttack(), defence, world, given, trials), beyond=True
        )
        seen = known.search(world.federation, world.malicious, np.random.default_rng([rng, seed]))
        sides = (defence, "none")
        own, plain = evaluate_defenses(
            world, seen.federation, sides, given, attack=seen.family, seed=seed
        )
        record = {"defence": defence, "share": share, "seed": seed, "error": own.coverage_error}
        record |= {
            "undefended": plain.coverage_error,
            "harm": own.coverage_error - min(plain.coverage_error, 0.0),
        }
        found.append(record | {"honest_left_out": own.flagged - own.caught, "lies": seen.family})
        progress()
    return sorted(found, key=lambda record: record["harm"])


COMPARED_DATASETS: dict[str, tuple[str, str | None]] = {  # outputs, and the column of natural sites
    "stroke": ("stroke", "site"),
    "sleepers": ("sleep", "site"),
    **{name: (name, None) for name in ("tinyimagenet", "mnist", "cifar10", "pathmnist", "sleep")},
    "countries": ("stroke", "country"),
    "heart": ("heart", "site"),
}
COMPARED_ATTACKS = ("coverage", "efficiency", "truncation")
STEPS = {"one liar": 0.0, "10%": 0.1, "20%": 0.2, "40%": 0.4}
NO_ATTACK = "nobody lies"
BENIGN_MEASURES = (
    "coverage",
    "worst_class_coverage",
    "worst_site_coverage",
    "growth",
)  # shown of it
METHODS = ("none", "rob-fcp", "rob-fcp-released", *BASELINES, Consensus.name)


def full_comparison(
    data: Sequence[str] = tuple(COMPARED_DATASETS),
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
    unknown = [name for name in data if name not in COMPARED_DATASETS]
    if unknown:
        raise RobfcpError(
            f"{unknown[0]}: is not in the field; choose from {', '.join(COMPARED_DATASETS)}"
        )
    found: list[dict[str, Any]] = []
    with worker_pool(min(workers, len(data))) as pool:
        for part in pool.map(partial(_field_of, **told), data):
            found += part
            progress()
    return found


def _field_of(
    name: str,
    attacks: Sequence[str] = COMPARED_ATTACKS,
    n_clients: int = 20,
    beta: float = 0.5,
    seeds: int = 1,
    rng: int = 0,
) -> list[dict[str, Any]]:
    dataset, column = COMPARED_DATASETS[name]
    given = outputs.load(dataset, None if column is None else outputs.NATURAL)
    same: dict[str, Any] = {"n_clients": n_clients, "beta": beta}
    if column is not None:
        sites = given.column(column)
        same, n_clients = (
            {"sites": sites, "min_size": 50},
            len(partitions.partition_by_site(sites, 50)),
        )
    same |= {"defenses": METHODS, "n_runs": seeds, "rng": rng, "liars": "estimate"}
    steps: dict[int, str] = {}  # the first name of each number of liars
    for step, part in STEPS.items():
        steps.setdefault(max(1, round(part * n_clients)), step)
    found = []
    for liars, step in {0: NO_ATTACK, **steps}.items():
        same["attacks"] = attacks if liars else attacks[:1]
        same["malicious_fractions"] = (liars / n_clients,)
        cells = redteam(given.probabilities, given.labels, **same)
        for cell in cells:
            attack = cell.attack if liars else ""
            found.append({"data": name, "step": step, **_record(cell), "attack": attack})
    return found


def ranking(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a method, means over the federations: what nobody's lies cost, and for each number
    of liars the least error of coverage and the largest growth of sets under any attack."""
    lines = []
    for method in dict.fromkeys(one["defence"] for one in found):
        line: dict[str, Any] = {"method": method}
        for step in (NO_ATTACK, *STEPS):
            own = [one for one in found if (one["defence"], one["step"]) == (method, step)]
            groups = [[x for x in own if x["data"] == d] for d in {x["data"]: 0 for x in own}]
            if step == NO_ATTACK:
                line |= {
                    name: float(np.mean([one[name] for one in own])) for name in BENIGN_MEASURES
                }
            elif groups:
                lost = [min(one["error"] for one in group) for group in groups]
                grown = [max(one["growth"] for one in group) for group in groups]
                line[step] = float(np.mean(lost)), float(np.mean(grown))
        lines.append(line)
    return lines


def plot_ranking(lines: Sequence[dict[str, Any]]) -> NDArray[Any]:
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


def to_records(cells: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """The cells as plain dictionaries, each defence's worst marked."""
    marked = worst_cells(cells)
    return [{**_record(cell), "worst": marked[cell.defence] is cell} for cell in cells]


def _record(cell: ResultRow) -> dict[str, Any]:
    return {**asdict(cell), "error": cell.coverage_error, "growth": cell.set_size_ratio}


def plot_redteam(cells: Sequence[ResultRow]) -> NDArray[Any]:
    """Two heat maps, attack and share by defence: coverage error and growth of the sets."""
    from matplotlib.patches import Rectangle

    lines = list(dict.fromkeys((cell.attack, cell.share) for cell in cells))
    defences = list(dict.fromkeys(cell.defence for cell in cells))
    values = np.full((len(lines), len(defences), 2), np.nan)
    for cell in cells:
        place = lines.index((cell.attack, cell.share)), defences.index(cell.defence)
        values[place] = cell.coverage_error, cell.set_size_ratio - 1
    axes = _two_maps(values, [f"{attack} {share:.0%}" for attack, share in lines], defences)
    for (column, place), row in np.ndenumerate(np.nanargmax(np.abs(values), axis=0)):
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="crimson")
        axes[place].add_patch(box).set_linewidth(2)
    return axes


def _informed_attack(
    attack: AdaptiveAttack, defence: str, world: Scenario, setting: ScenarioConfig, trials: int
) -> AdaptiveAttack:
    """The attack by somebody who knows the defence and what it is told."""
    against: Any = None
    if defence in BASELINES:  # of several thresholds it aims at the middle one

        def against(federation: Federation) -> int | None:
            scores, liars = world.scores, len(world.malicious)
            limits = baseline_thresholds(defence, federation, setting.coverage, scores, liars)
            edge = int(np.searchsorted(federation.binning.upper_edges, np.median(limits)))
            return edge if edge < federation.binning.n_bins else None

    else:
        told = len(world.malicious) if setting.liars == "known" else None
        against = get_defense(defence, told, exclude_exactly=setting.exactly)
    return replace(attack, defense_rule=against, coverage=setting.coverage, trials=trials)
