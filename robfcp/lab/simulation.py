"""The test range: honest, attacked and defended federations side by side on model outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import exact_level, whole
from robfcp.calibration import Level, calibrate
from robfcp.defence import Consensus, Defence, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.figures import GREY, looks, new_axes, style
from robfcp.lab.attacks import Attack, named_attack
from robfcp.lab.rivals import FEDCP_QQ, fedcp_qq_index
from robfcp.lab.worlds import Setting, Thresholds, World, apply_attack, make_world


@dataclass(frozen=True)
class Row:
    """One defence under one attack in one run, beside what the honest sites alone give.

    With by="class" there is a threshold for each class, and `threshold` is their largest. The worst
    class is the least covered of those with test samples, under one threshold or several.
    """

    attack: str
    defence: str
    share: float
    n_clients: int
    n_malicious: int
    seed: int
    coverage: float
    set_size: float
    threshold: float
    honest_coverage: float
    honest_set_size: float
    assumed: int
    flagged: int
    caught: int
    by: Literal["class"] | None
    worst_class_coverage: float
    honest_worst_class_coverage: float

    @property
    def error(self) -> float:
        """Coverage minus that of the honest sites alone."""
        return self.coverage - self.honest_coverage


def simulate(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attack: str | Attack = "coverage",
    defences: Sequence[str | Defence] = ("none", "rob-fcp", Consensus.name),
    seeds: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
    **setting: Any,
) -> tuple[Row, ...]:
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
    defences
        Names of defences, "fedcp-qq" (a quantile of the sites' quantiles), or your own.
    seeds
        The number of runs.
    rng
        The seed of all randomness.
    progress
        Called after every row, for a progress bar.
    setting
        What `Setting` takes: `share`, `n_clients`, `beta`, `coverage` and so on.

    Returns
    -------
    tuple of Row
        Seed by seed, the defences in the order given.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.lab import simulate
    >>> rng = np.random.default_rng(0)
    >>> probabilities = rng.dirichlet([0.3] * 4, 2000)
    >>> labels = (probabilities.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    >>> rows = simulate(probabilities, labels, n_clients=20, seeds=1)
    >>> for row in rows:
    ...     print(row.defence, row.n_malicious, row.caught, f"{row.error:+.2f}")
    none 8 0 -0.07
    rob-fcp 8 8 +0.00
    consensus 8 8 +0.00
    """
    rows = []
    whole("seeds", seeds, "give the number of runs", 1)
    whole("rng", rng, "give a seed")
    given = Setting(**setting)
    rule = named_attack(attack) if isinstance(attack, str) else attack
    title = attack if isinstance(attack, str) else attack.name
    for seed in range(seeds):
        generator = np.random.default_rng([rng, seed])
        world = make_world(probabilities, labels, given, generator)
        attacked = apply_attack(rule, world, generator)
        for row in verdicts(world, attacked, defences, given, attack=title, seed=seed):
            rows.append(row)
            progress()
    return tuple(rows)


def verdicts(
    world: World,
    attacked: Federation,
    defences: Sequence[str | Defence],
    setting: Setting,
    *,
    attack: str,
    seed: int,
) -> Iterator[Row]:
    """One row a defence: what it makes of the attacked federation, beside the honest clients.

    A round that is refused is lost: nothing is left but to give every label.
    """
    alone = calibrate(
        world.federation.subset(world.benign), setting.coverage, by=setting.by, defence="none"
    )
    honest = world.measured(thresholds_of(alone.levels[0]))
    told = None
    if setting.liars == "known":
        told = sum(client in world.liars for client in attacked.ids)
    for defence in defences:
        flagged: tuple[str, ...] = ()
        if defence == FEDCP_QQ:
            parts, level = [attacked], exact_level(setting.coverage)
            if setting.by is not None and attacked.strata is not None:
                parts = [attacked.stratum(c) for c in range(attacked.strata.n_strata)]
            own = [part.threshold_at(fedcp_qq_index(part, level)) for part in parts]
            name, assumed, limits = FEDCP_QQ, 0, np.array(own) if setting.by else own[0]
        else:
            if isinstance(defence, str):
                defence = named_defence(defence, told, exactly=setting.exactly)
            name, assumed, limits = defence.name, 0, np.inf
            with suppress(RobfcpError):
                found = calibrate(attacked, setting.coverage, by=setting.by, defence=defence)
                limits = thresholds_of(found.levels[0])
                name, assumed, flagged = found.defence, found.liars, found.flagged
        measured = world.measured(limits)
        yield Row(
            attack=attack,
            defence=name,
            share=setting.share,
            n_clients=world.federation.n_clients,
            n_malicious=len(world.malicious),
            seed=seed,
            coverage=measured.coverage,
            set_size=measured.set_size,
            threshold=float(np.max(limits)),
            honest_coverage=honest.coverage,
            honest_set_size=honest.set_size,
            assumed=assumed,
            flagged=len(flagged),
            caught=len(world.liars.intersection(flagged)),
            by=setting.by,
            worst_class_coverage=measured.worst_class_coverage,
            honest_worst_class_coverage=honest.worst_class_coverage,
        )


def thresholds_of(level: Level) -> Thresholds:
    """The one threshold, or (C,) those of the classes where each has its own."""
    if not level.parts:
        return float(level.threshold)
    return np.array([one.threshold for one in level.parts])


def summarise(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Means over the seeds, one record a defence, with the honest clients first."""
    measures = ("coverage", "set_size", "worst_class_coverage")
    if rows:
        honest = {name: _mean(rows, f"honest_{name}") for name in measures}
        nobody = {"error": 0.0, "flagged": 0.0, "caught": 0.0}
        yield {"defence": "honest sites alone", **honest, **nobody}
    for defence in dict.fromkeys(row.defence for row in rows):
        group = [row for row in rows if row.defence == defence]
        names = (*measures, "error", "flagged", "caught")
        yield {"defence": defence, **{name: _mean(group, name) for name in names}}


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([getattr(row, name) for row in rows]))


def records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries, for JSON or a data frame."""
    return [{**asdict(row), "error": row.error} for row in rows]


@style()
def plot_comparison(
    rows: Sequence[Row], level: float = 0.9, axes: NDArray[Any] | None = None
) -> NDArray[Any]:
    """(2,) coverage and set size of every defence under every attack, over the runs.

    Marks are means, whiskers the extremes; grey is what the honest clients alone give.
    """
    pair = new_axes(2) if axes is None else axes
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
        for shift, (defence, (colour, marker)) in zip(offsets, looks(defences), strict=True):
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
