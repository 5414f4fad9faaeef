"""One split of one model's outputs among clients, from which any attack and defence is read off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import Attack, Gaussian, NearCoverage, named_attack
from robfcp.lab.outputs import Outputs
from robfcp.lab.worlds import federation_of
from robfcp.scores import APS, LAC, ClassificationScore

CLIENTS = 100
SUBJECTS = 3  # whole nights a client, where clients are made of subjects
LEAST = 20  # samples a client: ten to calibrate with, ten to test on
STAGES = ("wake", "N1", "N2", "N3", "REM")


@dataclass(frozen=True)
class PaperWorld:
    """Which model's outputs are split how: Dirichlet(beta) over labels (0: iid), or by the share
    of a sleep stage in each subject's night, subjects kept whole."""

    dataset: str
    split: str
    stage: str = "final"
    beta: float = 0.0
    attribute: str = ""
    score: str = "lac"
    fine: bool = False  # a grid that holds every k/10000, to merge views of any granularity from


def paper_attack(name: str) -> Attack:
    """The attack by its name, in another strength where one follows: `gaussian:0.02`."""
    kind, _, strength = name.partition(":")
    if not strength:
        return named_attack(kind)
    strengths = {Gaussian.name: Gaussian, NearCoverage.name: NearCoverage}
    return strengths[kind](float(strength))


@dataclass(frozen=True, eq=False)
class Trial:
    """A federation before the attack and what a threshold gives on each client's test half.

    `covered` and `members` (K, H) count test scores of the true label and of all labels at or
    below each edge; `order` is a permutation of the clients whose first ones attack.
    """

    federation: Federation
    scores: list[NDArray[np.float64]]
    labels: list[NDArray[np.intp]]
    covered: NDArray[np.int64]
    members: NDArray[np.int64]
    tested: NDArray[np.int64]
    order: NDArray[np.intp]
    n_classes: int

    def benign(self, n_malicious: int) -> NDArray[np.bool_]:
        """(K,) who does not attack."""
        mask = np.ones(self.federation.n_clients, dtype=bool)
        mask[self.order[:n_malicious]] = False
        return mask

    def measure(self, edge: int | None, benign: NDArray[np.bool_]) -> tuple[float, float]:
        """Coverage and mean set size on the benign clients' test halves; None: every label."""
        if edge is None:
            return 1.0, float(self.n_classes)
        total = self.tested[benign].sum()
        return (
            float(self.covered[benign, edge].sum() / total),
            float(self.members[benign, edge].sum() / total),
        )

    def attacked(self, attack: str, n_malicious: int, rng: np.random.Generator) -> Federation:
        """What the server receives."""
        if attack == "none" or not n_malicious:
            return self.federation
        return self.sketched(self.forged(attack, n_malicious, rng))

    def forged(
        self, attack: str, n_malicious: int, rng: np.random.Generator
    ) -> list[NDArray[np.float64]]:
        """Everybody's scores, the attackers' forged."""
        if attack == "none" or not n_malicious:
            return self.scores
        scores: list[NDArray[np.float64]] = paper_attack(attack)(
            self.scores, self.order[:n_malicious], rng
        )
        return scores

    def sketched(self, scores: list[NDArray[np.float64]], by_class: bool = False) -> Federation:
        """The reports of these scores, by class too if wanted; attackers keep their labels."""
        score = self.federation.score
        assert isinstance(score, ClassificationScore)
        labels = self.labels if by_class else None
        grid = self.federation.grid
        return federation_of(scores, grid, score, labels=labels, n_classes=self.n_classes)


def make_trial(world: PaperWorld, seed: int) -> Trial:
    """The clients of one seed: their calibration scores and the counts of their test halves."""
    rng = np.random.default_rng([seed, *world_key(world)])
    given = _outputs(world.dataset, world.split, world.stage)
    rule: ClassificationScore = LAC() if world.score == "lac" else APS(randomized=True)
    grid = fine_grid() if world.fine else Grid.default()
    every = rule.all_labels(given.probabilities, rng)
    cell = grid.index(every)
    true = every[np.arange(len(every)), given.labels]
    halves = [np.array_split(rng.permutation(part), 2) for part in split(world, given, rng)]
    owner = np.full(len(true), -1)
    for client, (_, test) in enumerate(halves):
        owner[test] = client
    held = owner >= 0
    shape = (len(halves), grid.n_bins)
    truth = cell[np.arange(len(true)), given.labels]
    covered = _counted(owner[held], truth[held], shape)
    n_classes = every.shape[1]
    members = _counted(np.repeat(owner[held], n_classes), cell[held].ravel(), shape)
    scores = [np.asarray(true[calibration], np.float64) for calibration, _ in halves]
    return Trial(
        federation=federation_of(scores, grid, rule),
        scores=scores,
        labels=[given.labels[calibration] for calibration, _ in halves],
        covered=covered.cumsum(axis=1),
        members=members.cumsum(axis=1),
        tested=np.array([len(test) for _, test in halves]),
        order=rng.permutation(len(halves)),
        n_classes=n_classes,
    )


def world_key(world: PaperWorld) -> list[int]:
    """Numbers that differ between worlds, to seed with."""
    from hashlib import sha256

    words = repr(world).replace(type(world).__name__, "World", 1)  # seeds outlive a class's name
    return list(sha256(words.encode()).digest()[:8])


def clients_of(world: PaperWorld) -> int:
    """How many clients its samples are split among."""
    if not world.attribute:
        return CLIENTS
    groups = _outputs(world.dataset, world.split, world.stage).groups
    return CLIENTS if groups is None else -(-len(np.unique(groups)) // SUBJECTS)


@lru_cache(maxsize=4)
def _outputs(dataset: str, split_name: str, stage: str) -> Outputs:
    return outputs.load(dataset, split_name, stage)  # type: ignore[arg-type]


def split(world: PaperWorld, given: Outputs, rng: np.random.Generator) -> list[NDArray[np.intp]]:
    """The samples of each client. Where Dirichlet(beta) leaves clients too few samples to be used
    at all (beta = 0.1), the largest clients give them some."""
    if world.attribute:
        if given.groups is None:
            raise RobfcpError(f"{world.dataset}: has no subjects to split by; use sleep")
        _, subject = np.unique(given.groups, return_inverse=True)
        stage = STAGES.index(world.attribute)
        share = np.bincount(subject, given.labels == stage) / np.bincount(subject)
        client = np.argsort(np.argsort(share, kind="stable"), kind="stable") // SUBJECTS
        owner = client[subject]
        return [np.flatnonzero(owner == number) for number in range(owner.max() + 1)]
    if world.beta == 0:
        return partitions.iid(len(given.labels), CLIENTS, rng)
    try:
        return partitions.dirichlet(
            given.labels, CLIENTS, world.beta, rng, minimum=LEAST, attempts=20
        )
    except RobfcpError:
        parts = partitions.dirichlet(given.labels, CLIENTS, world.beta, rng, minimum=0)
        return _topped_up(parts, rng)


def _topped_up(parts: list[NDArray[np.intp]], rng: np.random.Generator) -> list[NDArray[np.intp]]:
    parts = [rng.permutation(part) for part in parts]
    for poor in range(len(parts)):
        while len(parts[poor]) < LEAST:
            rich = int(np.argmax([len(part) for part in parts]))
            lacking = LEAST - len(parts[poor])
            parts[poor] = np.concatenate([parts[poor], parts[rich][:lacking]])
            parts[rich] = parts[rich][lacking:]
    return parts


@lru_cache(maxsize=1)
def fine_grid() -> Grid:
    """The default grid with every k/10000 among its edges."""
    return Grid(np.union1d(Grid.default().edges, Grid.uniform(10000).edges))


def _counted(
    owner: NDArray[np.intp], cell: NDArray[np.intp], shape: tuple[int, int]
) -> NDArray[np.int64]:
    flat = np.bincount(owner * shape[1] + cell, minlength=shape[0] * shape[1])
    return flat.reshape(shape)
