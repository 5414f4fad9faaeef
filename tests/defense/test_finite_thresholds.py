"""Default reports give a finite threshold wherever exact counts do."""

import numpy as np
import pytest
from effort import cases

import robfcp
from robfcp.experiments import outputs
from robfcp.experiments.coarsening import as_default_reports

DATASETS = ("cifar10", "mnist", "pathmnist", "sleep", "heart", "stroke")
ATTACKS = ("none", "zeros", "ones", "gaussian", "half zeros", "copies")
BINNING = robfcp.Binning.default()
LAC = robfcp.LAC()


def random_round(rng):
    """Exact reports by class of a random federation, and what was drawn."""
    name = str(rng.choice(DATASETS))
    shipped = outputs.load(name)
    n_classes = shipped.probabilities.shape[1]
    n_clients = int(rng.choice([4, 8, 20]))
    n_samples = int(rng.choice([12, 30, 60, 100, 300]))
    attack = str(rng.choice(ATTACKS))
    n_malicious = 0 if attack == "none" else max(1, int(0.3 * n_clients))
    concentration = float(rng.choice([0.3, 1.0, 100.0]))

    reports = []
    copied = None
    for k in range(n_clients):
        mix = rng.dirichlet(np.full(n_classes, concentration))
        weights = (
            mix[shipped.labels] / np.bincount(shipped.labels, minlength=n_classes)[shipped.labels]
        )
        rows = rng.choice(len(shipped.labels), n_samples, p=weights / weights.sum())
        labels = shipped.labels[rows]
        scores = LAC(shipped.probabilities[rows], labels)
        if k < n_malicious:
            if attack == "zeros":
                scores = np.zeros(n_samples)
            if attack == "ones":
                scores = np.ones(n_samples)
            if attack == "gaussian":
                scores = np.clip(scores + rng.normal(0, 0.5, n_samples), 0, 1)
            if attack == "half zeros":
                scores = np.where(rng.random(n_samples) < 0.5, 0, scores)
            if attack == "copies":
                copied = copied or (scores, labels)
                scores, labels = copied
        reports.append(
            robfcp.Report.from_scores(
                f"s{k:02d}", scores, BINNING, score=LAC, labels=labels, classes=n_classes
            )
        )
    text = f"{name}, K = {n_clients}, n = {n_samples}, {attack}, Dirichlet({concentration})"
    return robfcp.Federation.from_reports(reports), text


@pytest.mark.effort
def test_no_threshold_is_infinite_where_that_of_exact_counts_is_finite():
    """`make test-finite` takes a thousand rounds."""
    rng = np.random.default_rng(2026)
    for _ in range(cases(25)):
        exact, text = random_round(rng)
        default = as_default_reports(exact)
        level = float(rng.choice([0.8, 0.9, 0.95]))
        defense = str(rng.choice(["consensus", "none", "rob-fcp"]))
        thresholds = [
            robfcp.calibrate(federation, coverage=level, defense=defense).threshold
            for federation in (exact, default)
        ]
        assert np.isfinite(thresholds[1]) or not np.isfinite(thresholds[0]), (text, level, defense)
