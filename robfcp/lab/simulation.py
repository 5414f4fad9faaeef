"""The test range: honest, attacked and defended federations side by side on model outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import whole
from robfcp.calibration import Level, calibrate
from robfcp.defence import DEFAULT, Defence, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import exact_level
from robfcp.lab import quantile_of_quantiles
from robfcp.lab.attacks import Attack, named_attack
from robfcp.lab.worlds import Thresholds, World, apply_attack, make_world
from robfcp.scores import ClassificationScore

Told = Literal["known", "estimate"]
ByClass = Literal["class"]


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
    by: ByClass | None = None
    worst_class_coverage: float = np.nan
    honest_worst_class_coverage: float = np.nan

    @property
    def error(self) -> float:
        """Coverage minus that of the honest sites alone."""
        return self.coverage - self.honest_coverage


def simulate(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    attack: str | Attack = "coverage",
    share: float = 0.4,
    n_clients: int = 100,
    defences: Sequence[str | Defence] = ("none", "rob-fcp", DEFAULT),
    beta: float | None = None,
    sites: ArrayLike | None = None,
    min_size: int = 20,
    confidence_level: float = 0.9,
    score: ClassificationScore | None = None,
    grid: Grid | None = None,
    malicious: Told = "known",
    exactly: bool = False,
    by: ByClass | None = None,
    seeds: int = 3,
    rng: int = 0,
    progress: Callable[[], None] = lambda: None,
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
    share
        The share of the clients that attacks.
    n_clients
        How many clients there are; with `sites` as many as there are sites.
    defences
        Names of defences, "fedcp-qq" (a quantile of the sites' quantiles), or your own.
    beta
        How unlike clients are, smaller is less alike; iid if None.
    sites
        (n,) the name of each sample's own site, instead of an artificial split.
    min_size
        Natural sites with fewer samples take no part.
    confidence_level
        The coverage asked for.
    score
        The score; LAC if None.
    grid
        The bins; the score's own if None.
    malicious
        "known" tells defences the number of attackers, "estimate" does not.
    exactly
        Whether a defence of ours that is told the number leaves out so many whatever they look
        like, instead of at most so many.
    by
        "class" for one threshold a class; one for all if None.
    seeds
        The number of runs.
    rng
        The seed of all randomness.
    progress
        Called after every row, for a progress bar.

    Returns
    -------
    tuple of Row
        Seed by seed, the defences in the order given.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> rng = np.random.default_rng(0)
    >>> probabilities = rng.dirichlet([0.3] * 4, 2000)
    >>> labels = (probabilities.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    >>> rows = robfcp.simulate(probabilities, labels, n_clients=20, seeds=1)
    >>> for row in rows:
    ...     print(row.defence, row.n_malicious, row.caught, f"{row.error:+.2f}")
    none 8 0 -0.07
    rob-fcp 8 8 +0.00
    consensus 8 8 +0.00
    """
    rows = []
    whole("seeds", seeds, "give the number of runs", 1)
    whole("rng", rng, "give a seed")
    rule = named_attack(attack) if isinstance(attack, str) else attack
    for seed in range(seeds):
        generator = np.random.default_rng([rng, seed])
        world = make_world(
            probabilities,
            labels,
            n_clients=n_clients,
            share=share,
            beta=beta,
            sites=sites,
            min_size=min_size,
            score=score,
            grid=grid,
            rng=generator,
        )
        attacked = apply_attack(rule, world, generator)
        rows += verdicts(
            world,
            attacked,
            defences,
            attack=attack if isinstance(attack, str) else attack.name,
            share=share,
            seed=seed,
            confidence_level=confidence_level,
            malicious=malicious,
            exactly=exactly,
            by=by,
            progress=progress,
        )
    return tuple(rows)


def verdicts(
    world: World,
    attacked: Federation,
    defences: Sequence[str | Defence],
    *,
    attack: str,
    share: float,
    seed: int,
    confidence_level: float,
    malicious: Told,
    exactly: bool,
    progress: Callable[[], None],
    by: ByClass | None = None,
) -> list[Row]:
    """One row a defence: what it makes of the attacked federation, beside the honest clients."""
    if by not in (None, "class"):
        raise RobfcpError(f"by: {by!r} is unknown here; use 'class', or nothing for one threshold")
    honest = world.measured(
        thresholds_of(
            calibrate(
                world.federation.subset(world.benign),
                confidence_level,
                by=by,
                defence="none",
            ).levels[0]
        )
    )
    present = sum(client in world.liars for client in attacked.ids)
    rows = []
    for defence in defences:
        if defence == quantile_of_quantiles.NAME:
            made = _Made(quantile_of_quantiles.NAME, _qq(attacked, confidence_level, by), 0, ())
        else:
            told = present if malicious == "known" else None
            rule = (
                named_defence(defence, told, exactly=exactly)
                if isinstance(defence, str)
                else defence
            )
            calibration = calibrate(attacked, confidence_level, by=by, defence=rule)
            made = _Made(
                calibration.settings.defence,
                thresholds_of(calibration.levels[0]),
                calibration.liars,
                calibration.flagged,
            )
        found = world.measured(made.thresholds)
        rows.append(
            Row(
                attack=attack,
                defence=made.name,
                share=share,
                n_clients=world.federation.n_clients,
                n_malicious=len(world.malicious),
                seed=seed,
                coverage=found.coverage,
                set_size=found.set_size,
                threshold=float(np.max(made.thresholds)),
                honest_coverage=honest.coverage,
                honest_set_size=honest.set_size,
                assumed=made.assumed,
                flagged=len(made.flagged),
                caught=len(world.liars.intersection(made.flagged)),
                by=by,
                worst_class_coverage=found.worst_class_coverage,
                honest_worst_class_coverage=honest.worst_class_coverage,
            )
        )
        progress()
    return rows


class _Made(NamedTuple):
    """What a method made of the reports: thresholds, the liars it assumed, whom it left out."""

    name: str
    thresholds: Thresholds
    assumed: int
    flagged: tuple[str, ...]


def _qq(federation: Federation, confidence_level: float, by: ByClass | None) -> Thresholds:
    """FedCP-QQ's threshold, or its (C,) thresholds by class."""

    def threshold(reports: Federation) -> float:
        index = quantile_of_quantiles.fedcp_qq_index(reports, exact_level(confidence_level))
        return reports.threshold_at(index)

    if by is None or federation.strata is None:
        return threshold(federation)
    return np.array([threshold(federation.stratum(c)) for c in range(federation.strata.n_strata)])


def thresholds_of(level: Level) -> Thresholds:
    """The one threshold, or (C,) those of the classes where each has its own."""
    if not level.strata:
        return float(level.threshold)
    return np.array([one.threshold for one in level.strata])


_MEANS = ("coverage", "set_size", "worst_class_coverage", "error", "flagged", "caught")


def summarise(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Means over the seeds, one record a defence, with the honest clients first."""
    if rows:
        yield {
            "defence": "honest sites alone",
            "coverage": float(np.mean([row.honest_coverage for row in rows])),
            "set_size": float(np.mean([row.honest_set_size for row in rows])),
            "worst_class_coverage": float(
                np.mean([row.honest_worst_class_coverage for row in rows])
            ),
            "error": 0.0,
            "flagged": 0.0,
            "caught": 0.0,
        }
    for defence in dict.fromkeys(row.defence for row in rows):
        group = [row for row in rows if row.defence == defence]
        yield {
            "defence": defence,
            **{name: float(np.mean([getattr(row, name) for row in group])) for name in _MEANS},
        }


def records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries, for JSON or a data frame."""
    return [{**asdict(row), "error": row.error} for row in rows]
