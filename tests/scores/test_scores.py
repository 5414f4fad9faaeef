"""Scores against their formulas, MAPIE, and hostile input."""

from functools import partial

import numpy as np
import pytest

from robfcp.errors import RobfcpError
from robfcp.scores import APS, CQR, LAC, RAPS, SAPS, AbsoluteResidual, OrdinalAPS
from robfcp.scores._base import get_score

CLASSIFICATION = [LAC(), APS(), RAPS(), SAPS(), OrdinalAPS(), APS(False), OrdinalAPS(False)]
CLASSIFICATION += [RAPS(0.2, 1, randomized=False), SAPS(0.3, randomized=False)]
RANDOMIZED = (APS, RAPS, SAPS, OrdinalAPS)


def draw(n=200, c=7, seed=0, concentration=0.4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(c, concentration), n), rng.integers(0, c, n)


def by_hand(score, p, y, u):
    """The score of one label by the definition, in plain Python."""
    if isinstance(score, LAC):
        return sum(q for j, q in enumerate(p) if j != y)
    if isinstance(score, OrdinalAPS):
        return in_the_range(p, y, u)
    rank = 1 + sum(q > p[y] for q in p)
    if isinstance(score, SAPS):
        return u * max(p) if rank == 1 else max(p) + (rank - 2 + u) * score.weight
    above = sum(q for q in p if q > p[y]) + u * p[y]
    if isinstance(score, APS):
        return above
    return above + score.penalty * max(0, rank - score.k_reg)


def in_the_range(p, y, u):
    """Grow a range from the likeliest class, a class at a time, until it holds the label."""
    included = [int(np.argmax(p))]
    while y not in included:
        low, high = min(included) - 1, max(included) + 1
        down = low >= 0 and (high == len(p) or p[low] >= p[high])
        included.append(low if down else high)
    return sum(p[j] for j in included[:-1]) + u * p[y]


@pytest.mark.parametrize("score", CLASSIFICATION, ids=repr)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_every_label_gets_the_score_of_the_definition(score, dtype):
    p, y = draw()
    p[0] = [0.3, 0.3, 0.2, 0.2, 0, 0, 0]  # ties share a rank
    p[1] = [0, 0.25, 0.5, 0.25, 0, 0, 0]  # and the range grows downwards first
    p = p.astype(dtype)
    u = np.random.default_rng(5).random(len(p))
    if not getattr(score, "randomized", False):
        u[:] = 1
    scores = score.score_all_labels(p, rng=5)
    expected = [
        [by_hand(score, row.astype(float), j, v) for j in range(7)]
        for row, v in zip(p, u, strict=True)
    ]
    tolerance = 2e-3 if dtype == np.float16 else 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(scores, expected, atol=tolerance)
    np.testing.assert_allclose(score(p, y, rng=5), scores[np.arange(len(y)), y], atol=1e-12)


def test_lac_keeps_its_digits_near_zero():
    tiny = np.array([[1 - 3e-17, 1e-17, 2e-17]])
    scores = LAC()(tiny, [0])[0], LAC().score_all_labels(tiny)[0, 0]
    assert scores == pytest.approx((3e-17, 3e-17), rel=1e-12, abs=0)


def test_scores_of_probabilities_stay_in_the_unit_interval():
    p, _ = draw(5000, concentration=0.02)
    for score in (LAC(), APS(), APS(False), OrdinalAPS(), OrdinalAPS(False)):
        scores = score.score_all_labels(p.astype(np.float32), rng=0)
        assert 0 <= scores.min() <= scores.max() <= 1


def test_blocks_do_not_change_the_scores(monkeypatch):
    p, _ = draw(150)
    expected = {score: score.score_all_labels(p, rng=1) for score in CLASSIFICATION}
    monkeypatch.setattr("robfcp._probabilities.BLOCK_BYTES", 1)
    for score in CLASSIFICATION:
        np.testing.assert_array_equal(score.score_all_labels(p, rng=1), expected[score])


def test_regression_scores_are_distances():
    rng = np.random.default_rng(0)
    y, f = rng.normal(size=(2, 500))
    residual = AbsoluteResidual()(f, y)
    np.testing.assert_array_equal(residual, np.abs(y - f))
    band = np.stack([f - 1, f + 0.5], axis=1)
    cqr = CQR()(band, y)
    np.testing.assert_allclose(cqr, np.maximum(f - 1 - y, y - f - 0.5), atol=1e-12)
    assert AbsoluteResidual()([1e308], [-1e308]) == CQR()([[1e308, 1.1e308]], [-1e308]) == [np.inf]


@pytest.mark.parametrize("score", [APS(randomized=False), RAPS(randomized=False)], ids=repr)
def test_half_precision_gives_the_sets_of_single(score):
    """Among negative zeros numpy sorts halves wrongly on some machines."""
    rng = np.random.default_rng(0)
    p = np.zeros((40, 1000), dtype=np.float16)
    for row, n_labels in enumerate(rng.integers(1, 6, 40)):
        p[row, rng.choice(1000, n_labels, replace=False)] = 1 / n_labels
    for threshold in (0.0, 0.5, 0.9, 1 - 1e-16):
        sets = [
            np.concatenate(
                [rows for _, rows in score.iter_prediction_sets(q, [threshold], non_empty=True)]
            )
            for q in (p, p.astype(np.float32))
        ]
        np.testing.assert_array_equal(*sets)


TWO_ROWS = [[0.5, 0.5]] * 2
RAGGED = [[0.5], [0.2, 0.3]]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (LAC(), ([[0.5, 0.6]], [0]), "row 0 sums to 1.1"),
        (LAC(), (RAGGED, [0, 0]), "probabilities: rows differ"),
        (LAC(), ([[0.5, 0.5], [1.5, -0.5]], [0, 0]), "row 1 holds a negative value; are these lo"),
        (LAC(), ([[np.nan, 1.0]], [0]), "row 0 holds NaN; check"),
        (LAC(), ([[np.inf, 0.0]], [0]), "sums to inf"),
        *((LAC(), (invalid, [0]), "shape") for invalid in ([0.5, 0.5], [[1.0]])),
        *((LAC(), (invalid, [0]), "floating") for invalid in ([[1, 0]], [["a", "b"]])),
        *(
            (LAC(), (TWO_ROWS, labels), "labels")
            for labels in ([0, 2], [-1, 0], [0.0, 1.0], [0], [[0, 1]], ["a", "b"], [[0], [1, 2]])
        ),
        *((kind(), (TWO_ROWS, [0, 1]), "rng") for kind in RANDOMIZED),
        *((APS(), (TWO_ROWS, [0, 1], rng), "rng") for rng in (-1, "seed")),
        *((kind, {"randomized": "yes"}, "True or False") for kind in RANDOMIZED),
        *((SAPS, (weight,), "saps: weight") for weight in (-1, "1", [0.1, 0.2], np.nan)),
        *(
            (score, (values, [0.0, 0.0]), "predict")
            for score in (AbsoluteResidual(), CQR())
            for values in ([np.nan, 1.0], [[1.0]], [np.inf, 1.0])
        ),
        (AbsoluteResidual(), ([1.0, 2.0], [1.0]), "targets"),
        *((CQR(), ([[1.0, 2.0]], invalid), "targets") for invalid in ([1.0, 2.0], ["a"])),
        (AbsoluteResidual(), ([1 + 1j], [1.0]), "predictions"),
        *((RAPS, (penalty,), "penalty") for penalty in ("a", 1e308)),
        (RAPS, (0.1, 1.5), "k_reg"),
        (get_score, ("nope",), "nope"),
        (partial(get_score, "raps"), {"x": 1}, "raps"),
        (partial(get_score, "raps"), {"penalty": -1.0}, "penalty"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_a_reason(make, arguments, message):
    with pytest.raises(RobfcpError, match=message):
        make(**arguments) if isinstance(arguments, dict) else make(*arguments)
