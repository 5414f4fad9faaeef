"""The tables of docs/certificates.md: `python benchmarks/certificates.py widths|price`.

Scores are LAC of a simulated ten-class model with 85% accuracy; clients are alike or have
Dirichlet(0.5) class shares. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from measure import markdown
from numpy.typing import NDArray

from robfcp import LAC, Grid
from robfcp.federation import Federation
from robfcp.guarantees import Pac, certify, fcp_index
from robfcp.guarantees.promises import marginal_threshold
from robfcp.lab.published import PublishedSetting, theorem_1

CLIENTS, CLASSES, LEVEL = 100, 10, Fraction(9, 10)
BUDGETS, SIZES = (5, 9, 20, 40), (50, 500, 5000)
GRID, SCORE = Grid.default(), LAC()


def labels(rng: np.random.Generator, n: int, mix: str) -> NDArray[np.intp]:
    """(K, n) labels: uniform, or by Dirichlet(0.5) shares of the classes."""
    if mix == "alike":
        return rng.integers(0, CLASSES, (CLIENTS, n))
    shares = rng.dirichlet(np.full(CLASSES, 0.5), CLIENTS)
    return np.stack([rng.choice(CLASSES, n, p=row) for row in shares])


def outputs(rng: np.random.Generator, truth: NDArray[np.intp]) -> NDArray[np.float64]:
    """Class probabilities of the simulated model; the last classes are harder."""
    logits = 2.2 * rng.standard_normal((truth.size, CLASSES))
    logits[np.arange(truth.size), truth] += 8 - 0.4 * truth
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def draw(rng: np.random.Generator, n: int, mix: str) -> tuple[Federation, NDArray[np.float64]]:
    """A federation of n samples a client, and (n, C) label scores of 100 fresh ones a client."""
    every = labels(rng, n + 100, mix)
    calibration, test = every[:, :n], every[:, n:]
    counts = np.zeros((CLIENTS, GRID.n_bins), dtype=np.int64)
    for k, own in enumerate(calibration):
        scores = SCORE(outputs(rng, own), own)
        counts[k] = np.bincount(GRID.index(scores), minlength=GRID.n_bins)
    flat = test.ravel()
    scores = SCORE.all_labels(outputs(rng, flat))
    own = scores[np.arange(flat.size), flat]
    return Federation.from_counts(counts, GRID), np.column_stack([own, scores])


def attacked(federation: Federation, liars: int) -> Federation:
    """The first `liars` clients report nothing but the smallest scores."""
    counts = federation.counts.copy()
    counts[:liars] = 0
    counts[:liars, 0] = federation.sizes[:liars]
    return Federation.from_counts(counts, GRID)


def widths() -> Iterable[Sequence[str]]:
    """What is proved at 95% about undefended FCP's threshold, ours beside the paper's."""
    yield ["n_k", "m", "nobody lies", "m lie", "clients differ", "the paper's"]
    for n in SIZES:
        rng = np.random.default_rng(n)
        alike, _ = draw(rng, n, "alike")
        apart, _ = draw(rng, n, "dirichlet")
        for m in BUDGETS:
            row = [str(n), str(m)]
            for federation in (alike, attacked(alike, m), apart):
                index = fcp_index(federation, LEVEL)
                found = certify(federation, index, m, 0.95)
                row.append(f"{found.lower:.3f}-{found.upper:.3f}")
            paper = theorem_1(PublishedSetting(CLIENTS - m, m, n, m * n, 10, 0.9, 0.05))
            row.append(f"{paper.lower:.3g} to {paper.upper:.3g}")
            yield row


def price() -> Iterable[Sequence[str]]:
    """Coverage and mean set size of each guaranteed threshold while nobody lies."""
    kinds = ["undefended FCP", "marginal", "pac", "pac of sites alike"]
    yield ["clients", "n_k", "m", *kinds]
    for mix, sigma in (("alike", 0.01), ("dirichlet", 0.3)):
        for n in SIZES:
            federation, test = draw(np.random.default_rng([n, 1]), n, mix)
            plain = fcp_index(federation, LEVEL)
            for m in BUDGETS:
                found = [plain, marginal_threshold(federation, LEVEL, m)]
                found += [Pac(m, s).threshold(federation, LEVEL, 0.95)[0] for s in (None, sigma)]
                yield [mix, str(n), str(m), *(_outcome(index, test) for index in found)]


def _outcome(index: int | None, test: NDArray[np.float64]) -> str:
    threshold = np.inf if index is None else GRID.upper[index]
    sets = test <= threshold
    return f"{sets[:, 0].mean():.3f} / {sets[:, 1:].sum(axis=1).mean():.2f}"


TABLES = {"widths": widths, "price": price}


def main() -> None:
    """Print the table asked for in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=list(TABLES))
    build = TABLES[parser.parse_args().table]
    header, *rows = build()
    print(f"{build.__doc__}\n\n{markdown(header, rows)}")


if __name__ == "__main__":
    main()
