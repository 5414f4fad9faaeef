"""Private counts as the closest histograms, for comparing sites."""

import numpy as np
from noises import draw
from scipy.optimize import nnls

from robfcp import Privacy
from robfcp.federation import Federation
from robfcp.federation.federation import onto_simplex
from robfcp.guarantees.engine import rising


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
    shares = np.linspace(2, 0.1, 24) / np.linspace(2, 0.1, 24).sum()
    counts, marks = rng.multinomial(100, shares, 40), [None, *[Privacy(0.2)] * 39]
    counts[1:] += draw(rng, Privacy(0.2).noise, (39, 24))
    sent = Federation.from_counts(counts, privacy=marks, sizes=np.full(40, 100))
    assert sent.counts.min() < 0
    shown = sent.projected()
    assert (shown.counts[0] == sent.counts[0]).all()
    assert shown.counts.min() >= 0
    np.testing.assert_allclose(shown.counts.sum(axis=1), 100)
    assert sent.rounded().counts.dtype == np.int64
    plain = sent.subset(np.arange(40) == 0)
    assert plain.projected() is plain is plain.rounded()
    # noise moves the shares less after the projection than before
    truth = 100 * shares
    assert np.abs(shown.counts - truth).sum() < np.abs(sent.counts - truth).sum()
