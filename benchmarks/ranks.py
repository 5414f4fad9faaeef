"""What the new rank saves, and what is proved for every number of liars: writes docs/ranks.md.

`nice .venv/bin/python benchmarks/ranks.py` takes about a minute; everything but times is seeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import ndtr

import robfcp
from robfcp.federation import Federation
from robfcp.figures import new_axes, plot_lines, save
from robfcp.guarantees import (
    bounds_of,
    coverage_curve,
    curve_budgets,
    fcp_index,
    liars_forcing_full_sets,
    liars_no_rule_survives,
    marginal_threshold,
    most_liars,
    rank_charge,
)
from robfcp.lab import outputs
from robfcp.lab.published_bounds import published_rank

LEVEL = Fraction(9, 10)
CLIENTS, SIZES = (5, 20, 100), (5, 50, 500)
GRID, SCORE = robfcp.Grid.default(), robfcp.LAC()
DOCS = Path(__file__).parents[1] / "docs"
Scores = NDArray[np.float64]
Cells = Iterable[Sequence[object]]


class Pool:
    """Scores of all labels and of the true one, of the outputs of one shipped model."""

    def __init__(self, name: str) -> None:
        shipped = outputs.load(name)
        self.name = name
        self.every: Scores = SCORE.all_labels(shipped.probabilities)
        self.own: Scores = self.every[np.arange(len(self.every)), shipped.labels]

    def draw(
        self, rng: np.random.Generator, clients: int, n: int
    ) -> tuple[Federation, NDArray[np.intp]]:
        """Clients of n samples each, none twice, and at most 5000 fresh samples."""
        order = rng.permutation(len(self.own))[: clients * n + 5000]
        bins = GRID.index(self.own[order[: clients * n]]).reshape(clients, n)
        counts = np.stack([np.bincount(row, minlength=GRID.n_bins) for row in bins])
        return Federation.from_counts(counts, GRID), order[clients * n :]

    def outcome(self, index: int | None, fresh: NDArray[np.intp]) -> tuple[float, float]:
        """Coverage and mean set size of a threshold on fresh samples."""
        threshold = np.inf if index is None else GRID.upper[index]
        covered = float((self.own[fresh] <= threshold).mean())
        return covered, float((self.every[fresh] <= threshold).sum(axis=1).mean())


def side_by_side() -> Cells:
    """Published and new rank while nobody lies."""
    yield ["data", "K", "n", "m", "published: coverage", "set size", "new: coverage", "set size"]
    small, large = Pool("pathmnist"), Pool("sleep")
    for clients in CLIENTS:
        budgets = sorted({0, 1, 5 * clients // 100, 9 * clients // 100})
        for n in SIZES:
            pool = small if clients * n <= 5000 else large
            runs = 300 if clients * n <= 2500 else 60
            found = np.zeros((len(budgets), 2, runs, 3))
            rng = np.random.default_rng([clients, n])
            for run in range(runs):
                federation, fresh = pool.draw(rng, clients, n)
                for row, m in enumerate(budgets):
                    for column, rank in enumerate((published_rank, rank_charge)):
                        index = marginal_threshold(federation, LEVEL, m, rule=rank)
                        found[row, column, run] = (*pool.outcome(index, fresh), index is None)
            for row, m in enumerate(budgets):
                cells = [cell for column in found[row] for cell in _cell(column)]
                yield [pool.name, clients, n, m, *cells]


def _cell(runs: NDArray[np.float64]) -> tuple[str, str]:
    """Mean coverage and set size, and how often every set was full."""
    full = float(runs[:, 2].mean())
    if full == 1:
        return "every set full", f"{runs[0, 1]:.0f}"
    note = f" ({full:.0%} full)" if full else ""
    return f"{runs[:, 0].mean():.3f}{note}", f"{runs[:, 1].mean():.2f}"


def apart() -> Cells:
    """Exact coverage of the n_k-mixture at rank ceil(0.9 N) + 1, normal scores."""
    yield ["K", "n", "alike", "shifted evenly over 3 sd", "a third 4 sd away", "must lie in"]
    for clients in CLIENTS:
        for n in SIZES:
            total = clients * n
            rank = ceil(LEVEL * total) + 1
            cells = []
            for shift in (
                np.zeros(clients),
                np.linspace(0, 3, clients),
                np.where(np.arange(clients) < clients / 3, 4.0, 0.0),
            ):
                rng = np.random.default_rng([clients, n, 1])
                runs = max(100, min(4000, 16_000_000 // total))
                covered = []
                for _ in range(runs):
                    scores = (rng.standard_normal((clients, n)) + shift[:, None]).ravel()
                    limit = np.partition(scores, rank - 1)[rank - 1] if rank <= total else np.inf
                    covered.append(ndtr(limit - shift).mean())
                error = np.std(covered) / np.sqrt(runs)
                cells.append(f"{np.mean(covered):.4f} ± {error:.4f}")
            yield [clients, n, *cells, f"{(rank - 1) / total:.5f}-{min(1, rank / total):.5f}"]


def forcing() -> Cells:
    """The least number of liars that makes every set full under a rule told that number."""
    yield ["K", "n", "published rank", "new rank", "no rule survives"]
    for clients in CLIENTS:
        for n in (*SIZES, 5000):
            sizes = np.full(clients, n)
            yield [
                clients,
                n,
                _or_dash(_published_forcing(clients, n)),
                _or_dash(liars_forcing_full_sets(sizes, LEVEL)),
                _or_dash(liars_no_rule_survives(sizes, LEVEL)),
            ]


def _published_forcing(clients: int, n: int) -> int | None:
    for liars in range(clients):
        counts = np.zeros((clients, 2), dtype=np.int64)
        counts[:liars, 1], counts[liars:, 0] = n, n
        reports = Federation.from_counts(counts)
        if marginal_threshold(reports, LEVEL, liars, rule=published_rank) != 0:
            return liars
    return None


def _or_dash(number: int | None) -> object:
    return "-" if number is None else number


def survived() -> Cells:
    """m* of FCP's threshold at either rank, pathmnist, nobody lies, median of 20."""
    yield ["K", "n", "published rank", "new rank"]
    pool = Pool("pathmnist")
    for clients, n in ((20, 50), (100, 50)):
        rng = np.random.default_rng([clients, n, 2])
        found = []
        for _ in range(20):
            federation, _ = pool.draw(rng, clients, n)
            for rank in (published_rank, rank_charge):
                index = fcp_index(federation, LEVEL, None, rank)
                edge = np.array([GRID.n_bins - 1 if index is None else index])
                found.append(max(0, int(most_liars(bounds_of(federation), edge, LEVEL)[0])))
        yield [clients, n, *np.median(np.reshape(found, (20, 2)), axis=0).astype(int)]


def curves(figure: Path) -> Cells:
    """What is proved for every number of liars about the default threshold."""
    yield ["at most so many lie", "nobody lies", "20 of 100 report zeros, undefended", "defended"]
    pool = Pool("pathmnist")
    honest, fresh = pool.draw(np.random.default_rng(7), 100, 50)
    counts = honest.counts.copy()
    counts[:20] = 0
    counts[:20, 0] = 50
    attacked = Federation.from_counts(counts, GRID)
    found: dict[str, dict[int, Any]] = {}
    axes = new_axes(3)
    for ax, (name, reports, defence) in zip(
        axes,
        (
            ("nobody lies", honest, "consensus"),
            ("20 report zeros, undefended", attacked, "none"),
            ("20 report zeros, defended", attacked, "consensus"),
        ),
        strict=True,
    ):
        calibration = robfcp.calibrate(reports, defence=defence)
        level = calibration.levels[0]
        found[name] = {point.m: point for point in level.curve}
        measured = float((pool.own[fresh] <= level.threshold).mean())
        m = [point.m for point in level.curve]
        ends = ([point.lower for point in level.curve], [point.upper for point in level.curve])
        plot_lines(
            m,
            {"at least": ends[0], "at most": ends[1], "measured": [measured] * len(m)},
            {"at least": ends},
            level=0.9,
            xlabel="clients that may lie, m",
            ylabel="honest coverage" if ax is axes[0] else "",
            title=f"{name[0].upper()}{name[1:]}",
            ax=ax,
        )
        ax.set_ylim(0.78, 1.01)
    save(axes, figure)
    shared = set.intersection(*(set(points) for points in found.values()))
    for m in sorted(shared):
        points = [points[m] for points in found.values()]
        yield [m, *(_span(point.lower, point.upper) for point in points)]


def _span(lower: float, upper: float) -> str:
    """Lower ends rounded down, upper ends up."""
    return f"{np.floor(1000 * lower) / 1000:.3f}-{np.ceil(1000 * upper) / 1000:.3f}"


def times() -> Cells:
    """Least of fifteen runs at K = 1000 on 1000 bins, as shares of the pairwise l2 distances."""
    yield ["sizes", "marginal threshold, published", "new", "coverage curve", "curve points"]
    rng = np.random.default_rng(0)
    for name, sizes in (("equal", np.full(1000, 500)), ("unequal", rng.integers(50, 2000, 1000))):
        counts = rng.multinomial(sizes, rng.dirichlet(np.ones(1000), 1000))
        federation = Federation.from_counts(counts)
        vectors = federation.counts / federation.sizes[:, None]
        index = fcp_index(federation, LEVEL)
        budgets = curve_budgets(1000)
        works: tuple[Callable[[], object], ...] = (
            lambda v=vectors: cdist(v, v),
            lambda f=federation: marginal_threshold(f, LEVEL, 50, rule=published_rank),
            lambda f=federation: marginal_threshold(f, LEVEL, 50),
            lambda f=federation, i=index, b=budgets: coverage_curve(f, i, b),
        )
        distances, *spent = _least(works)
        yield [name, *(f"{one / distances:.3f}" for one in spent), len(budgets)]


def _least(works: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each, taken in turns."""
    found = [np.inf] * len(works)
    for _ in range(15):
        for place, work in enumerate(works):
            start = time.perf_counter()
            work()
            found[place] = min(found[place], time.perf_counter() - start)
    return found


def table(cells: Cells) -> str:
    """In Markdown."""
    header, *rows = [[str(cell) for cell in row] for row in cells]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PAGE = """# Ranks and curves, measured

Written by `python benchmarks/ranks.py`; do not edit. Level 0.9 throughout. "Published" is the rank
ceil(0.9 (N + K)); "new" is ceil(0.9 N) + 1, the default. The proofs
are in [theory](theory.md).

## The two ranks while nobody lies

`Marginal(m)`. LAC scores of shipped model outputs, clients drawn at random without
repetition: pathmnist where it is large enough, else sleep. Coverage and set size on fresh samples,
means of 300 runs (60 from 5000 samples on).

{side}

At n = 50 the published rank costs some 0.017 of coverage and a tenth of a label, whatever m is. It
has no finite threshold below nine samples a client; the new one needs ten samples in all.

## Clients that differ

The new rank, m = 0, nobody lies. The coverage of the mixture with weights n_k is computed exactly
from the clients' normal distributions; means of up to 4000 runs with their standard errors. The
last column is what the swap lemma allows, whatever the clients are.

{apart}

## How many liars make every set full

The least number of liars that can push the threshold to the top against a rule told exactly that
number, when the honest clients are as easy as can be; 0 says that it is infinite anyway. The last
column is the limit of every rule.

{forcing}

## Tolerance of the undefended threshold

m\\* of FCP's own threshold on pathmnist while nobody lies, median of 20 runs. The new rank leaves
no slack, so it holds against nobody. The published rank's surplus is worth many liars.

{survived}

## What is proved for every number of liars

Pathmnist, 100 clients of 50 samples, `robfcp.calibrate` as it is, 95% confidence. Each column holds
for all its rows at once: either more than m clients lie, or the honest clients' coverage is in the
interval.

![Proved coverage against the number of clients that may lie](images/ranks.png)

{curves}

## Time

1000 clients on 1000 bins, m = 50: least times of fifteen runs, divided by the time of the pairwise
l2 distances that Rob-FCP needs for the same round.

{times}
"""


def main() -> None:
    """Write the page and its figure."""
    figure = DOCS / "images" / "ranks.png"
    parts = {
        "side": side_by_side(),
        "apart": apart(),
        "forcing": forcing(),
        "survived": survived(),
        "curves": curves(figure),
        "times": times(),
    }
    filled = {}
    for name, cells in parts.items():
        start = time.perf_counter()
        filled[name] = table(cells)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    (DOCS / "ranks.md").write_text(PAGE.format(**filled), encoding="utf-8")


if __name__ == "__main__":
    main()
