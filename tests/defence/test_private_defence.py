"""The defence on private reports: honest noise is no offence, lies and copies still are."""

from __future__ import annotations

import numpy as np
import pytest
from effort import cases
from noises import draw
from scipy.optimize import nnls

import robfcp
from robfcp import Privacy
from robfcp.defence import find_copies
from robfcp.defence.consensus import stand_out
from robfcp.federation import Federation, projected, rising, whole
from robfcp.federation.projection import onto_simplex
from robfcp.privacy import logistic_grid

GRID = logistic_grid(24)
SCORES = np.random.default_rng(0).beta(0.4, 1.5, 200_000)
SHARES = np.bincount(GRID.index(SCORES), minlength=24) / len(SCORES)


def federation(rng, n, privacy, n_clients=40, forge=None):
    """Honest clients (all but the forged first rows) with the given privacy, one a client."""
    counts = rng.multinomial(n, SHARES, size=n_clients)
    if forge is not None:
        counts[: len(forge)] = forge
    marks = [privacy] * n_clients if isinstance(privacy, Privacy) else list(privacy)
    for row, mark in enumerate(marks):
        if mark is not None:
            counts[row] += draw(rng, mark.noise, (24,))
    return Federation.from_counts(counts, GRID, privacy=marks, sizes=np.full(n_clients, n))


MARKS = {
    "heavy": [Privacy(0.2)] * 40,
    "light": [Privacy(4)] * 40,
    "different": [Privacy(0.3), Privacy(1), Privacy(3), Privacy(8)] * 10,
    "half": [Privacy(0.5), None] * 20,
    "gaussian": [Privacy(1, 1e-6, mechanism="gaussian")] * 40,
}


@pytest.mark.effort
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("n", [50, 500])
def test_honest_private_clients_are_not_flagged_for_their_noise(marks, n):
    rng = np.random.default_rng(1)
    runs = [stand_out(federation(rng, n, MARKS[marks])).outstanding.any() for _ in range(cases(4))]
    assert np.mean(runs) <= 0.25


def test_liars_are_found_through_the_noise():
    rng = np.random.default_rng(2)
    for end in (0, -1):
        forge = np.zeros((8, 24), dtype=int)
        forge[:, end] = 500
        sent = federation(rng, 500, Privacy(1), forge=forge)
        assert robfcp.estimate_malicious(sent) == 8
        calibration = robfcp.calibrate(sent)
        assert set(calibration.flagged) == set(sent.ids[:8])
        reached = np.interp(calibration.threshold, np.sort(SCORES), np.linspace(0, 1, SCORES.size))
        assert abs(reached - 0.9) < 0.03


@pytest.mark.parametrize("defence", ["rob-fcp", "none"])
def test_other_defences_take_private_reports(defence):
    rng = np.random.default_rng(3)
    forge = np.zeros((8, 24), dtype=int)
    forge[:, -1] = 500
    sent = federation(rng, 500, Privacy(1), forge=forge)
    calibration = robfcp.calibrate(sent, defence=defence)
    expected = sent.ids[:8] if defence == "rob-fcp" else ()
    assert calibration.flagged == tuple(expected)


def test_copies_of_private_reports_are_found_and_independent_ones_are_not():
    rng = np.random.default_rng(4)
    for _ in range(10):
        assert not find_copies(federation(rng, 500, Privacy(1)))
    sent = federation(rng, 500, Privacy(1))
    counts = sent.counts.copy()
    counts[1] = counts[0]
    counts[2] = counts[0] + rng.integers(-1, 2, 24)
    copied = Federation.from_counts(counts, GRID, privacy=Privacy(1), sizes=sent.sizes)
    (group,) = find_copies(copied)
    assert set(group.clients) == set(sent.ids[:3])
    assert not group.exact
    mixed = federation(rng, 500, [None, None, *[Privacy(1)] * 38])
    counts = mixed.counts.copy()
    counts[1] = counts[0]
    (group,) = find_copies(
        Federation.from_counts(counts, GRID, privacy=mixed.privacy, sizes=mixed.sizes)
    )
    assert set(group.clients) == set(mixed.ids[:2])


def test_projections_are_the_closest_histograms():
    rng = np.random.default_rng(5)
    values = rng.normal(2, 5, (30, 8))
    totals = rng.uniform(5, 30, 30)
    found = onto_simplex(values, totals)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), totals)
    for row, total, projection in zip(values, totals, found, strict=True):
        heavy = 1e5  # the sum as a heavily weighted equation: non-negative least squares
        system = np.vstack([np.eye(8), heavy * np.ones(8)])
        expected = nnls(system, np.append(row, heavy * total))[0]
        np.testing.assert_allclose(projection, expected, atol=1e-5)
    smooth = rising(np.array([1.0, 3.0, 2.0, 4.0]))
    np.testing.assert_allclose(smooth, [1, 2.5, 2.5, 4])


def test_only_private_rows_are_projected():
    rng = np.random.default_rng(6)
    sent = federation(rng, 100, [None, *[Privacy(0.2)] * 39])
    assert sent.counts.min() < 0
    shown = projected(sent)
    assert (shown.counts[0] == sent.counts[0]).all()
    assert shown.counts.min() >= 0
    np.testing.assert_allclose(shown.counts.sum(axis=1), 100)
    assert whole(sent).counts.dtype == np.int64
    plain = sent.subset(np.arange(40) == 0)
    assert projected(plain) is plain is whole(plain)
    # noise moves the shares less after the projection than before
    truth = 100 * SHARES
    assert np.abs(shown.counts - truth).sum() < np.abs(sent.counts - truth).sum()


@pytest.mark.slow
@pytest.mark.parametrize("marks", MARKS)
def test_false_alarms_stay_at_their_level(marks):
    rng = np.random.default_rng(7)
    runs = [stand_out(federation(rng, 200, MARKS[marks])).outstanding.any() for _ in range(100)]
    assert sum(runs) <= 12
