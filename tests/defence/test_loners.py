"""A single liar among few sites is found; honest federations are left alone."""

import numpy as np
import pytest
from effort import cases

import robfcp


def federation(n_clients, n, seed, liar=None):
    rng = np.random.default_rng([seed, n_clients])
    accuracy = rng.beta(19, 1, n_clients)
    reports = []
    for k in range(n_clients):
        easy = rng.random(n) < accuracy[k]
        scores = np.where(easy, rng.beta(0.3, 6, n), rng.beta(3, 1.2, n))
        if k == 0 and liar is not None:
            scores = np.full(n, liar)
        reports.append(robfcp.Report.from_scores(f"site-{k:02d}", scores))
    return robfcp.calibrate(reports)


@pytest.mark.effort
@pytest.mark.parametrize("n_clients", [5, 9, 20])
@pytest.mark.parametrize("liar", [0.0, 1.0])
def test_one_gross_liar_is_found_in_most_federations(n_clients, liar):
    runs = [federation(n_clients, 100, seed, liar).flagged for seed in range(cases(5))]
    assert np.mean(["site-00" in flagged for flagged in runs]) >= 0.6
    assert sum(len(flagged) > 1 for flagged in runs) <= cases(5) / 20


@pytest.mark.effort
def test_honest_federations_are_left_alone():
    seeds = range(cases(8))
    runs = [federation(n_clients, 100, seed).flagged for n_clients in (5, 20) for seed in seeds]
    assert np.mean([bool(flagged) for flagged in runs]) <= 0.05
