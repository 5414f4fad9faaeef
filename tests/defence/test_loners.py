"""A single liar among few sites is found; honest federations are left alone."""

import numpy as np
import pytest
from effort import cases

import robfcp
from robfcp.defence.band.loners import few_p_values


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


@pytest.mark.effort
def test_p_values_of_student_logarithms_are_uniform_or_larger():
    rng, number = np.random.default_rng(1), cases(250)
    for n in (5, 12, 50):
        values = np.exp(rng.standard_t(8, size=(number, n)))
        found = np.array([few_p_values(row)[0] for row in values])
        for level in (0.01, 0.05, 0.2):
            assert (found <= level).mean() <= level + 4 * np.sqrt(level / number)


def test_few_or_very_many_clients_have_no_loner():
    assert few_p_values(np.array([1.0, 2.0, 1e9]))[0] == 1
    assert few_p_values(np.ones(1001))[0] == 1
    assert few_p_values(np.zeros(10))[0] == 1
