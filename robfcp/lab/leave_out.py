"""Models for natural federations: every site is predicted by a model that never saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets import SiteTable

FLOOR = 1e-6  # probability of a class that the training sites lack


@dataclass(frozen=True)
class LeaveOutSettings:
    """Gradient-boosted trees; `folds` groups of whole sites, each predicted by a model of the
    others; at most `per_site` samples a site, drawn at random."""

    folds: int = 10
    iterations: int = 100
    learning_rate: float = 0.06
    leaves: int = 15
    least: int = 40
    per_site: int | None = None
    seed: int = 0


RECIPES: dict[str, dict[str, Any]] = {
    "heart": {"iterations": 60, "learning_rate": 0.1, "leaves": 6, "least": 20},
    "sleep": {"iterations": 120, "per_site": 400},
}


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Logits (n, C) of the samples kept, each from a model without the sample's site."""

    table: SiteTable
    logits: NDArray[np.float64]
    seconds: float
    library: str

    @property
    def accuracy(self) -> float:
        """Share of samples whose most probable class is the label."""
        return float((self.logits.argmax(axis=1) == self.table.y).mean())

    @property
    def commonest(self) -> float:
        """Share of the commonest class: the accuracy of a model that has learnt nothing."""
        return float(np.bincount(self.table.y).max() / len(self.table))


def leave_out_recipe(name: str, **changes: Any) -> LeaveOutSettings:
    """The data set's settings with those changes that are not None."""
    given = {key: value for key, value in changes.items() if value is not None}
    return LeaveOutSettings(**{**RECIPES.get(name, {}), **given})


def leave_sites_out(
    data: SiteTable,
    settings: LeaveOutSettings,
    advance: Callable[[], None] = lambda: None,
) -> LeftOut:
    """Logits log p from `folds` models, no site in both the training and the predicted part.

    With as many folds as sites this is leave-one-site-out.
    """
    try:
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise RobfcpError(
            "leave-sites-out: needs scikit-learn; install the extra sklearn"
        ) from error
    started = perf_counter()
    rng = np.random.default_rng(settings.seed)
    table = data if settings.per_site is None else thinned(data, settings.per_site, rng)
    n_sites = len(np.unique(table.sites))
    if n_sites < 2:
        raise RobfcpError(f"{data.name}: {n_sites} site leaves none to learn from; give two")
    x = table.x.reshape(len(table), -1)
    probabilities = np.full((len(table), len(table.classes)), FLOOR)
    folds = GroupKFold(min(settings.folds, n_sites))
    for learnt, predicted in folds.split(x, table.y, table.sites):
        seen = np.unique(table.y[learnt])
        if len(seen) == 1:
            probabilities[predicted, seen[0]] = 1.0
            advance()
            continue
        model = HistGradientBoostingClassifier(
            max_iter=settings.iterations,
            learning_rate=settings.learning_rate,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=settings.least,
            early_stopping=False,
            random_state=settings.seed,
        ).fit(x[learnt], table.y[learnt])
        probabilities[np.ix_(predicted, seen)] = model.predict_proba(x[predicted])
        advance()
    return LeftOut(
        table=table,
        logits=np.log(np.maximum(probabilities, np.finfo(np.float64).tiny)),
        seconds=perf_counter() - started,
        library=f"scikit-learn {sklearn.__version__}",
    )


def thinned(data: SiteTable, per_site: int, rng: np.random.Generator) -> SiteTable:
    """At most `per_site` samples of every site, drawn at random, in the order of the table."""
    order = rng.permutation(len(data))
    sites, which = np.unique(data.sites, return_inverse=True)
    ranked = order[np.argsort(which[order], kind="stable")]
    sizes = np.bincount(which, minlength=len(sites))
    place = np.arange(len(data)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return data.take(np.sort(ranked[place < per_site]))
