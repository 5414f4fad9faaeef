"""What default reports cost: `python benchmarks/coarsening.py`, for docs/security.md.

Two tables: coverage and sets while nobody is malicious, and malicious clients found. It needs
nothing but the package: the outputs ship with it. A few minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from measure import markdown
from numpy.typing import NDArray

import robfcp
from robfcp.experiments import outputs
from robfcp.experiments.coarsening import as_default_reports
from robfcp.experiments.scenarios import build_federation
from robfcp.federation import Federation
from robfcp.scores import LAC

DATASETS = ("cifar10", "mnist", "pathmnist", "tinyimagenet", "sleep")
SIZES = (60, 100, 300)  # samples of each client
N_CLIENTS = 20
N_MALICIOUS = 6
COVERAGE = 0.9
BETA = 0.5  # of Dirichlet splits
NOISE_SD = 0.5
COST_SEEDS = range(10)
ATTACK_SEEDS = range(8)

Floats = NDArray[np.float64]
Clients = tuple[list[Floats], list[NDArray[np.intp]]]  # scores and labels of each


@dataclass(frozen=True)
class Data:
    """Scores of all labels of a data set, (n, C), those of the true labels, and these."""

    label_scores: Floats
    true_scores: Floats
    labels: NDArray[np.intp]

    @staticmethod
    def load(name: str) -> Data:
        """Score the shipped outputs of a model that was trained on iid clients."""
        shipped = outputs.load(name, "iid")
        probabilities = np.asarray(shipped.probabilities, dtype=np.float64)
        label_scores = LAC().score_all_labels(probabilities / probabilities.sum(1, keepdims=True))
        labels = np.asarray(shipped.labels)
        return Data(label_scores, label_scores[np.arange(len(labels)), labels], labels)

    def halves(self, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the samples to calibrate with and those to test on."""
        order = rng.permutation(len(self.labels))
        half = len(order) // 2
        return order[:half], order[half:]

    def federation(self, clients: Clients) -> Federation:
        """Return the exact counts of clients by class."""
        scores, labels = clients
        score = LAC()
        n_classes = self.label_scores.shape[1]
        return build_federation(
            scores, score.default_binning(), score, labels=labels, n_classes=n_classes
        )

    def coverage(self, threshold: float, test: NDArray[np.intp]) -> float:
        """Return the fraction of test samples that a threshold covers."""
        return float((self.true_scores[test] <= threshold).mean())

    def mean_set_size(self, threshold: float, test: NDArray[np.intp]) -> float:
        """Return the mean number of labels in the sets of test samples."""
        return float((self.label_scores[test] <= threshold).sum(axis=1).mean())


def cost_rows() -> Iterator[list[str]]:
    """Yield coverage and sets of exact and default reports, without and with a guarantee."""
    datasets = [Data.load(name) for name in DATASETS]
    rules = ({}, {"guarantee": robfcp.MarginalGuarantee(liars=1), "defense": "none"})
    for n_samples in SIZES:
        row = [str(n_samples)]
        for options in rules:
            exact, default = np.array(
                [_cost(data, n_samples, seed, options) for data in datasets for seed in COST_SEEDS]
            ).transpose(1, 2, 0)
            difference = np.abs(default[0] - exact[0]).mean()
            row += [f"{exact[0].mean():.1%}", f"{default[0].mean():.1%}", f"{difference:.3f}"]
            row += [f"{(default[1] / exact[1]).mean():.2f}"]
        yield row


def _cost(data: Data, n_samples: int, seed: int, options: dict) -> list[tuple[float, float]]:
    """Return coverage and mean set size, of exact and of default reports."""
    rng = np.random.default_rng(seed)
    calibration_half, test = data.halves(rng)
    samples = rng.choice(calibration_half, (N_CLIENTS, n_samples))
    exact = data.federation(([*data.true_scores[samples]], [*data.labels[samples]]))
    found = []
    for federation in (exact, as_default_reports(exact)):
        threshold = robfcp.calibrate(federation, COVERAGE, **options).threshold
        found.append((data.coverage(threshold, test), data.mean_set_size(threshold, test)))
    return found


def attack_rows() -> Iterator[list[str]]:
    """Yield malicious clients found, benign ones left out and errors of coverage."""
    datasets = [Data.load(name) for name in DATASETS]
    for attack, change in ATTACKS.items():
        for n_samples in SIZES:
            row = [attack, str(n_samples)]
            for is_iid in (True, False):
                runs = [
                    _attacked(data, n_samples, is_iid, change, seed)
                    for data in datasets
                    for seed in ATTACK_SEEDS
                ]
                means = np.mean(runs, axis=0)
                row += [f"{means[0]:.0%} / {means[1]:.0%}, {means[2]:.3f}", f"{means[3]:.2%}"]
            yield row


def _attacked(
    data: Data, n_samples: int, is_iid: bool, change: Change | None, seed: int
) -> tuple[float, float, float, float]:
    """Return the malicious clients found, exact and default, the error, and the benign left out."""
    rng = np.random.default_rng(seed)
    calibration_half, test = data.halves(rng)
    samples = [
        rng.choice(
            calibration_half, n_samples, p=_probabilities(data, calibration_half, is_iid, rng)
        )
        for _ in range(N_CLIENTS)
    ]
    scores = [data.true_scores[rows] for rows in samples]
    labels = [data.labels[rows] for rows in samples]
    n_malicious = 0 if change is None else N_MALICIOUS
    reference = data.federation((scores[n_malicious:], labels[n_malicious:]))
    expected = robfcp.calibrate(reference, COVERAGE, defense="none").threshold

    class_sizes = np.bincount(np.concatenate(labels))
    rarest = int(np.where(class_sizes > 0, class_sizes, class_sizes.max() + 1).argmin())
    for k in range(n_malicious):
        assert change is not None
        scores[k], labels[k] = change(scores[k], labels[k], rarest, rng)

    exact = data.federation((scores, labels))
    found = []
    for federation in (exact, as_default_reports(exact)):
        calibration = robfcp.calibrate(federation, COVERAGE)
        flagged = set(calibration.flagged_clients)
        malicious = set(federation.clients[:n_malicious])
        found.append(len(flagged & malicious) / max(n_malicious, 1))
    error = data.coverage(calibration.threshold, test) - data.coverage(expected, test)
    n_benign_out = len(flagged - malicious) / (N_CLIENTS - n_malicious)
    return found[0], found[1], abs(error), n_benign_out


def _probabilities(
    data: Data, samples: NDArray[np.intp], is_iid: bool, rng: np.random.Generator
) -> Floats | None:
    """Return with which probability a client draws each sample; uniform, or by Dirichlet shares."""
    if is_iid:
        return None
    n_classes = data.label_scores.shape[1]
    class_sizes = np.bincount(data.labels[samples], minlength=n_classes)
    shares = rng.dirichlet(np.full(n_classes, BETA)) * (class_sizes > 0)
    weights = (shares / np.maximum(class_sizes, 1))[data.labels[samples]]
    return np.asarray(weights / weights.sum())


Change = Callable[
    [Floats, NDArray[np.intp], int, np.random.Generator], tuple[Floats, NDArray[np.intp]]
]


def _add_noise(scores, labels, rarest, rng):
    """Add Gaussian noise to the scores, within [0, 1]."""
    return np.clip(scores + rng.normal(0, NOISE_SD, len(scores)), 0, 1), labels


ATTACKS: dict[str, Change | None] = {
    "all scores 0": lambda scores, labels, rarest, rng: (np.zeros_like(scores), labels),
    "all scores 1": lambda scores, labels, rarest, rng: (np.ones_like(scores), labels),
    "Gaussian noise": _add_noise,
    "all 0, of the rarest class": lambda scores, labels, rarest, rng: (
        np.zeros_like(scores),
        np.full_like(labels, rarest),
    ),
    "nobody malicious": None,
}

if __name__ == "__main__":
    rule = ["exact", "default", "mean difference", "sets, default / exact"]
    print(markdown(["n", *rule, *(f"guaranteed: {name}" for name in rule)], [*cost_rows()]))
    print()
    titles = ["iid", "benign left out", "Dirichlet(.5)", "benign left out"]
    print(markdown(["attack", "n", *titles], [*attack_rows()]))
