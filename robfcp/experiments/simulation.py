"""The test range: honest, attacked and defended federations side by side on model outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import check_integer
from robfcp.calibration import CoverageLevel
from robfcp.calibration._calibrate import calibrate
from robfcp.defense import Consensus, Defense, get_defense
from robfcp.errors import RobfcpError
from robfcp.experiments import baselines
from robfcp.experiments.attacks import Attack, get_attack
from robfcp.experiments.scenarios import (
    Scenario,
    ScenarioConfig,
    Thresholds,
    apply_attack,
    make_scenario,
)
from robfcp.federation import Federation
from robfcp.figures import GREY, _method_styles, new_axes, style

MEASURES = ("coverage", "set_size", "worst_class_coverage", "worst_site_coverage")


@dataclass(frozen=True)
class ResultRow:
    """One defence or rival under one attack, beside what the honest sites alone give: one run, or
    the mean of several.

    With by="class" there is a threshold for each class; `threshold` is the largest of all. The
    worst class and site are the least covered of those with test samples.
    """

    attack: str
    defence: str
    share: float
    n_clients: int
    n_malicious: int
    seed: int
    threshold: float
    assumed: float
    flagged: float
    caught: float
    by: Literal["class"] | None
    coverage: float
    set_size: float
    worst_class_coverage: float
    worst_site_coverage: float
    honest_coverage: float
    honest_set_size: float
    honest_worst_class_coverage: float
    honest_worst_site_coverage: float
    runs: int = 1

    @property
    def coverage_error(self) -> float:
        """Coverage minus that of the honest sites alone."""
        return self.coverage - self.honest_coverage

    @property
    def set_size_ratio(self) -> float:
        """Set size over that of the honest sites alone."""
        return self.set_size / self.honest_set_size if self.honest_set_size else float("nan")


_BENIGN = tuple(f"honest_{name}" for name in MEASURES)
AVERAGED = ("threshold", "assumed", "flagged", "caught", *MEASURES, *_BENIGN)


def average_rows(rows: Sequence[ResultRow], *by: str) -> tuple[ResultRow, ...]:
    """The means of the rows that agree in the fields `by`, in the order they first come."""
    groups: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in by), []).append(row)
    found = []
    for own in groups.values():
        means: dict[str, Any] = {name: _mean(own, name) for name in AVERAGED}
        found.append(replace(own[0], runs=len(own), **means))
    return tuple(found)


def simulate(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attack: str | Attack = "coverage",
    defenses: Sequence[str | Defense] = ("none", "rob-fcp", Consensus.name),
    n_runs: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> tuple[ResultRow, ...]:
    """A tidy table: one row a defence and seed, each beside the honest clients' own result.

    The samples are split among the clients (iid, or Dirichlet(beta) over labels, or by the data's
    own `sites`); each keeps a random half for calibration and half for testing; a share of the
    clients attacks. Coverage and set size are those of the benign clients' test halves.

    Parameters
    ----------
    probabilities
        (n, C) a model's class probabilities.
    labels
        (n,) true class numbers.
    attack
        The name of an attack, or an attack of your own.
    defenses
        Names of defences or of rivals (`robfcp.experiments.baselines.BASELINES`), or defences of
            your own.
    n_runs
        The number of runs.
    rng
        The seed of all randomness.
    progress
        Called after every row, for a progress bar.
    setting
        What `ScenarioConfig` takes: `share`, `n_clients`, `beta`, `coverage` and so on.

    Returns
    -------
    tuple of Row
        Seed by seed, the defences in the order given.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.experiments import simulate
    >>> rng = np.random.default_rng(0)
    >>> probabilities = rng.dirichlet([0.3] * 4, 2000)
    >>> labels = (probabilities.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    >>> rows = simulate(probabilities, labels, n_clients=20, n_runs=1)
    >>> for row in rows:
    ...     print(row.defence, row.n_malicious, row.caught, f"{row.coverage_error:+.2f}")
    none 8 0 -0.07
    rob-fcp 8 8 +0.00
    consensus 8 8 +0.00
    """
    rows = []
    check_integer("seeds", n_runs, "give the number of runs", 1)
    check_integer("rng", rng, "give a seed")
    given = ScenarioConfig(**setting)
    rule = get_attack(attack) if isinstance(attack, str) else attack
    if not hasattr(rule, "stage"):
        raise RobfcpError(f"attack: {rule!r:.40} is a bare function; wrap it: ScoreAttack(f)")
    for one in defenses:
        if not isinstance(one, str) and not hasattr(one, "name"):
            raise RobfcpError(f"defence: {one!r:.40} has no name; give it one, name = 'mine'")
    title = attack if isinstance(attack, str) else attack.name
    for seed in range(n_runs):
        generator = np.random.default_rng([rng, seed])
        world = make_scenario(probabilities, labels, given, generator)
        attacked = apply_attack(rule, world, generator)
        for row in evaluate_defenses(world, attacked, defenses, given, attack=title, seed=seed):
            rows.append(row)
            progress()
    return tuple(rows)


def evaluate_defenses(
    world: Scenario,
    attacked: Federation,
    defences: Sequence[str | Defense],
    setting: ScenarioConfig,
    *,
    attack: str,
    seed: int,
) -> Iterator[ResultRow]:
    """One row a defence: what it makes of the attacked federation, beside the honest clients.

    A round that is refused is lost: nothing is left but to give every label.
    """
    alone = calibrate(
        world.federation.select(world.benign), setting.coverage, by=setting.by, defense="none"
    )
    honest = world.measured(thresholds_of(alone.levels[0])).numbers()
    n_liars = sum(client in world.malicious_clients for client in attacked.clients)
    told = n_liars if setting.liars == "known" else None
    for defence in defences:
        flagged: tuple[str, ...] = ()
        name, assumed = "", 0
        limits: Any = np.inf
        if isinstance(defence, str) and defence in baselines.BASELINES:
            name, places = (
                defence,
                [world.federation.clients.index(one) for one in attacked.clients],
            )
            scores = [world.scores[k] for k in places]
            limits = baselines.baseline_thresholds(
                defence, attacked, setting.coverage, scores, n_liars
            )
            if np.ndim(limits) == 2:
                everybody = np.full((world.federation.n_clients, limits.shape[1]), np.inf)
                everybody[places] = limits
                limits = everybody
        else:
            if isinstance(defence, str):
                defence = get_defense(defence, told, exclude_exactly=setting.exactly)
            name = defence.name
            with suppress(RobfcpError):
                found = calibrate(attacked, setting.coverage, by=setting.by, defense=defence)
                limits = thresholds_of(found.levels[0])
                name, assumed, flagged = found.defense, found.n_malicious, found.flagged_clients
        measured: Any = world.measured(limits).numbers()
        beside: Any = {f"honest_{name}": value for name, value in honest.items()}
        yield ResultRow(
            attack=attack,
            defence=name,
            share=setting.share,
            n_clients=world.federation.n_clients,
            n_malicious=len(world.malicious),
            seed=seed,
            threshold=float(np.max(limits)),
            assumed=assumed,
            flagged=len(flagged),
            caught=len(world.malicious_clients.intersection(flagged)),
            by=setting.by,
            **measured,
            **beside,
        )


def thresholds_of(level: CoverageLevel) -> Thresholds:
    """The one threshold, or (C,) those of the classes where each has its own."""
    if not level.strata:
        return float(level.threshold)
    return np.array([one.threshold for one in level.strata])


def summarize(rows: Sequence[ResultRow]) -> Iterator[dict[str, Any]]:
    """Means over the seeds, one record a defence, with the honest clients first."""
    if rows:
        honest = {name: _mean(rows, f"honest_{name}") for name in MEASURES}
        nobody = {"error": 0.0, "flagged": 0.0, "caught": 0.0}
        yield {"defence": "honest sites alone", **honest, **nobody}
    for row in average_rows(rows, "defence"):
        measured = {name: getattr(row, name) for name in MEASURES}
        counted = {"flagged": row.flagged, "caught": row.caught}
        yield {"defence": row.defence, **measured, "error": row.coverage_error, **counted}


def worker_pool(workers: int | None) -> Executor:
    """A thread of this process for one worker, else so many processes, or one a core."""
    if workers == 1:
        return ThreadPoolExecutor(1)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _mean(rows: Sequence[ResultRow], name: str) -> float:
    return float(np.mean([getattr(row, name) for row in rows]))


def to_records(rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries, for JSON or a data frame."""
    return [{**asdict(row), "error": row.coverage_error} for row in rows]


@style()
def plot_comparison(rows: Sequence[ResultRow], level: float = 0.9) -> NDArray[Any]:
    """(2,) coverage and set size of every defence under every attack, over the runs.

    Marks are means, whiskers the extremes; grey is what the honest clients alone give.
    """
    pair = new_axes(2)
    attacks = list(dict.fromkeys(row.attack for row in rows))
    defences = list(dict.fromkeys(row.defence for row in rows))
    offsets = np.linspace(-0.2, 0.2, len(defences)) if len(defences) > 1 else np.zeros(1)
    for ax, field, title in zip(
        pair, ("coverage", "set_size"), ("Coverage", "Set size"), strict=True
    ):
        for place, attack in enumerate(attacks):
            honest = [getattr(r, f"honest_{field}") for r in rows if r.attack == attack]
            ax.plot(
                [place - 0.36, place + 0.36], [np.mean(honest)] * 2, color=GREY, linewidth=5,
                alpha=0.35, solid_capstyle="butt", label=None if place else "honest sites alone",
            )  # fmt: skip
        for shift, (defence, (colour, marker)) in zip(
            offsets, _method_styles(defences), strict=True
        ):
            found = [
                np.array([getattr(r, field) for r in rows if (r.attack, r.defence) == (a, defence)])
                for a in attacks
            ]
            mean = np.array([values.mean() if values.size else np.nan for values in found])
            low = mean - [values.min(initial=np.inf) for values in found]
            high = [values.max(initial=-np.inf) for values in found] - mean
            ax.errorbar(
                np.arange(len(attacks)) + shift, mean, [low, high], color=colour, marker=marker,
                linestyle="none", capsize=3, label="undefended" if defence == "none" else defence,
            )  # fmt: skip
        ax.set_xticks(range(len(attacks)), attacks)
        ax.set_xlim(-0.6, len(attacks) - 0.4)
        ax.set_title(title)
        ax.grid(axis="x", visible=False)
    pair[0].axhline(level, color=GREY, linestyle=":", linewidth=1, label=f"wanted {level:g}")
    pair[0].legend()
    return pair
