"""Federations to try defences on: simulated models, digits and every set of shipped outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from robfcp import LAC, Grid
from robfcp.lab import outputs
from robfcp.lab.worlds import World, federation_of, make_world

CLASSES, TEST = 10, 200
SHIFT = 0  # added to every seed: runs that no constant was chosen on
RELATIVE = np.linspace(0.6, 1.4, CLASSES)  # some classes are harder than others
STRENGTH = {0.95: 4.064, 0.6: 1.801}  # gives these accuracies


@dataclass(frozen=True)
class Setting:
    """A kind of federation; `draw(share, seed)` makes one of it with that share of attackers."""

    name: str
    clients: int
    size: int
    real: bool
    draw: Callable[[float, int], World]


def simulated(accuracy: float, beta: float | None, clients: int, size: int) -> Setting:
    """Clients of `size` samples of a Bayes classifier: x = strength_y e_y + N(0, I)."""
    name = f"{accuracy:.0%} {'iid' if beta is None else f'Dir({beta:g})'} K={clients} n={size}"
    return Setting(name, clients, size, False, partial(_simulate, accuracy, beta, clients, size))


def all_simulated(betas: tuple[float | None, ...] = (None, 0.5)) -> list[Setting]:
    """Accurate and weak models, alike and heterogeneous clients, many and few, small and large."""
    return [
        simulated(accuracy, beta, clients, size)
        for accuracy in STRENGTH
        for beta in betas
        for clients in (100, 20)
        for size in (50, 500)
    ]


def all_real() -> list[Setting]:
    """Digits, and every shipped set with 100 and 20 clients, alike and Dirichlet(0.5)."""
    settings = [_real("digits", *_digits(), 9, None)]
    for entry in outputs.entries():
        if entry["split"] == outputs.NATURAL:
            continue
        shipped = outputs.load(entry["dataset"], entry["split"], entry["stage"])
        name = f"{entry['dataset']}/{entry['split']}" + "/early" * (entry["stage"] == "early")
        beta = None if entry["split"] == "iid" else 0.5
        for clients in (100, 20):
            settings.append(_real(name, shipped.probabilities, shipped.labels, clients, beta))
    return settings


def _simulate(
    accuracy: float, beta: float | None, clients: int, size: int, share: float, seed: int
) -> World:
    rng = np.random.default_rng(
        [seed + SHIFT, clients, size, int(100 * accuracy), int(10 * (beta or 0))]
    )
    shares = np.full((clients, CLASSES), 1 / CLASSES)
    if beta is not None:
        shares = rng.dirichlet(np.full(CLASSES, beta), clients)
    malicious = np.sort(rng.permutation(clients)[: round(share * clients)])
    draw = rng.random((clients, size + TEST, 1))
    labels = np.minimum((draw > np.cumsum(shares, axis=1)[:, None]).sum(axis=2), CLASSES - 1)
    strength = STRENGTH[accuracy]
    logits = strength * rng.standard_normal((clients, size + TEST, CLASSES))
    hot = labels[:, :, None] == np.arange(CLASSES)
    logits += strength**2 * RELATIVE * hot
    odds = np.exp(logits - logits.max(axis=2, keepdims=True))
    every = _other_mass(odds / odds.sum(axis=2, keepdims=True))
    true = (every * hot).sum(axis=2)
    benign = np.setdiff1d(np.arange(clients), malicious)
    scores = list(true[:, :size])
    return World(
        federation=federation_of(scores, Grid.default(), LAC()),
        score=LAC(),
        samples=[],
        scores=scores,
        malicious=malicious,
        tests=list(true[:, size:]),
        test_scores=np.sort(true[benign, size:], axis=None),
        test_sizes=np.sort(every[benign, size:], axis=None),
    )


def _other_mass(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - p, with the digits of the likeliest label's kept: LAC of every label."""
    top = p == p.max(axis=2, keepdims=True)
    rest = np.where(top, 0, p).sum(axis=2, keepdims=True)
    return np.asarray(np.where(top & (p > 0.5), rest, 1 - p))


def _real(
    name: str,
    probabilities: NDArray[np.floating],
    labels: NDArray[np.integer],
    clients: int,
    beta: float | None,
) -> Setting:
    size = len(labels) // clients // 2
    title = f"{name} K={clients} n={size}"

    def draw(share: float, seed: int) -> World:
        return make_world(
            probabilities,
            labels,
            n_clients=clients,
            share=share,
            beta=beta,
            score=None,
            grid=None,
            rng=np.random.default_rng([seed + SHIFT, 7]),
        )

    return Setting(title, clients, size, True, draw)


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Half of scikit-learn's digits predicted by a logistic regression on the other half."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    model = LogisticRegression(max_iter=200, C=0.01).fit(x[train] / 16, y[train])
    return model.predict_proba(x[test] / 16), y[test]
