"""Prediction sets against MAPIE's of the same probabilities and threshold, and coverage."""

import numpy as np
import pytest
from makers import outputs, reports_of
from mapie.conformity_scores import APSConformityScore, LACConformityScore, RAPSConformityScore

import robfcp

RANK_SCORES = [
    robfcp.APS(),
    robfcp.APS(randomized=False),
    robfcp.RAPS(),
    robfcp.RAPS(0.5, 0, randomized=False),
    robfcp.RAPS(1e6, 0),
    robfcp.SAPS(),
    robfcp.SAPS(0.0, randomized=False),
]


def mapies_sets(mapie_score, probabilities, threshold, include_last_label):
    """Return the prediction sets of MAPIE at a given threshold."""
    mapie_score.set_external_attributes(classes=np.arange(probabilities.shape[1]), random_state=3)
    mapie_score.quantiles_ = np.array([threshold])
    options = {} if include_last_label is None else {"include_last_label": include_last_label}
    sorted_input = probabilities[:, :, None].copy()
    return mapie_score.get_prediction_sets(
        sorted_input, np.zeros(1), np.array([0.1]), cv="prefit", **options
    )[:, :, 0]


class GivenUniforms(robfcp.APS):
    """APS with the uniforms of another library."""

    def _uniforms(self, n, rng):
        return rng


class CustomScore(robfcp.APS):
    """A score with another order of labels."""

    def label_scores(self, probabilities, uniforms):
        return 1 - super().label_scores(probabilities, uniforms)


def raps_of_mapie(penalty, k_reg):
    mapie_score = RAPSConformityScore()
    mapie_score.lambda_star, mapie_score.k_star = np.array([penalty]), np.array([k_reg])
    return mapie_score


@pytest.mark.parametrize("threshold", [0.3, 0.62, 0.9, 0.97, 1.3])
@pytest.mark.parametrize(
    ("score", "mapie_score", "include_last_label"),
    [
        (robfcp.LAC(), LACConformityScore(), None),
        (robfcp.APS(randomized=False), APSConformityScore(), False),
        (robfcp.RAPS(0.1, 2, randomized=False), raps_of_mapie(0.1, 2), False),
        (robfcp.RAPS(0.01, 0, randomized=False), raps_of_mapie(0.01, 0), False),
        (GivenUniforms(), APSConformityScore(), "randomized"),
    ],
    ids=["lac", "aps", "raps", "raps-all", "randomized aps, the same uniforms"],
)
def test_sets_equal_mapies_except_that_its_adaptive_ones_are_never_empty(
    score, mapie_score, include_last_label, threshold
):
    p, _ = outputs(0, 400, 6)
    if include_last_label == "randomized":  # at 1 and above MAPIE excludes labels
        threshold = min(threshold, 0.99)
    u = 1 - np.random.RandomState(3).uniform(size=(400, 1))[:, 0]
    sets = score.prediction_sets(p, [threshold], u)[:, :, 0]
    expected = mapies_sets(mapie_score, p, threshold, include_last_label)
    if include_last_label is False:
        empty = ~sets.any(axis=1)
        np.testing.assert_array_equal(sets[~empty], expected[~empty])
        sets = score.prediction_sets(p, [threshold], non_empty=True)[:, :, 0]
    np.testing.assert_array_equal(sets, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "score", [*RANK_SCORES[:3], robfcp.LAC(), robfcp.SAPS(), robfcp.OrdinalAPS()]
)
def test_benign_federations_cover_between_the_bounds_of_fcp(score):
    """1 - alpha <= coverage <= 1 - alpha + K/(N + K) + sketching error, by simulation."""
    coverages = []
    for seed in range(200):
        scores = score(*outputs(seed, 1000, 6), np.random.default_rng([7, seed]))
        reports = reports_of(scores[:500].reshape(10, 50), score=score)
        threshold = robfcp.calibrate(reports, defense="none").threshold
        coverages.append((scores[500:] <= threshold).mean())
    error = 4 * np.std(coverages) / np.sqrt(200)
    assert 0.9 - error <= np.mean(coverages) <= 0.9 + 10 / 510 + 0.01 + error


def test_crossed_quantiles_give_their_midpoint_when_no_interval_may_be_empty():
    pairs = np.array([[0.0, 1.0], [0.0, 4.0]])
    binning = robfcp.Binning.open_ended([-1.0, -0.8, 0.0, 0.5])
    report = robfcp.Report.from_scores("a", [-0.9] * 60 + [0.4] * 40, binning, score=robfcp.CQR())
    calibration = robfcp.calibrate([report], coverage=[0.5, 0.9], defense="none")
    (interval,) = calibration.predict_interval(pairs[:1])[:, :, 0]
    assert interval.tolist() == [0.8, pytest.approx(0.2)]
    non_empty_intervals = calibration.predict_interval(pairs, non_empty=True)
    np.testing.assert_allclose(non_empty_intervals[:, :, 0], [[0.5, 0.5], [0.8, 3.2]])
    np.testing.assert_allclose(non_empty_intervals[:, :, 1], [[-0.5, 1.5], [-0.5, 4.5]])


PROBABILITIES = [
    lambda rng, n, c: rng.dirichlet(np.full(c, 0.05), n),
    lambda rng, n, c: rng.dirichlet(np.full(c, 2.0), n),
    lambda rng, n, c: np.eye(c)[rng.integers(0, c, n)],
    lambda rng, n, c: np.full((n, c), 1 / c),
    lambda rng, n, c: rng.integers(0, 4, (n, c)) * (rng.random((n, c)) < 0.2) + np.eye(c)[0],
]


@pytest.mark.parametrize("score", [*RANK_SCORES, CustomScore(), robfcp.LAC(), robfcp.OrdinalAPS()])
@pytest.mark.parametrize("case", range(len(PROBABILITIES)))
def test_sets_from_partial_sorting_are_those_of_all_scores(score, case):
    """At any thresholds, some of them equal to scores, where rounding could decide."""
    for seed, (n, c, kind) in enumerate([(12, 120, "f4"), (6, 300, "f8"), (9, 3, "f2")]):
        rng = np.random.default_rng([seed, case])
        p = PROBABILITIES[case](rng, n, c)
        p = (p / p.sum(axis=1, keepdims=True)).astype(kind)
        table = score.score_all_labels(p, seed)
        candidates = [0.0, 0.3, 0.9, 0.97, 1.0, 1.3, np.inf, *rng.choice(table.ravel(), 4)]
        for shape in ((1,), (3,), (c, 2), (n, 1, 2)):
            for thresholds in (np.full(shape, 0.9), rng.choice(candidates, shape)):
                members = table[:, :, None] <= thresholds
                sets = score.prediction_sets(p, thresholds, seed)
                np.testing.assert_array_equal(sets, members)
                row, level = np.nonzero(~members.any(axis=1))
                members[row, table[row].argmin(axis=1), level] = True
                sets = score.prediction_sets(p, thresholds, seed, non_empty=True)
                np.testing.assert_array_equal(sets, members)
