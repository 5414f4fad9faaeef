"""Our sets against MAPIE's on the same probabilities and threshold, and coverage as promised."""

import numpy as np
import pytest
from makers import outputs, reports_of
from mapie.conformity_scores import APSConformityScore, LACConformityScore, RAPSConformityScore

import robfcp

RANKED = [
    robfcp.APS(),
    robfcp.APS(randomized=False),
    robfcp.RAPS(),
    robfcp.RAPS(0.5, 0, randomized=False),
    robfcp.RAPS(1e6, 0),
    robfcp.SAPS(),
    robfcp.SAPS(0.0, randomized=False),
]


def mapies_sets(rule, probabilities, threshold, last):
    """MAPIE's own set construction at a given threshold."""
    rule.set_external_attributes(classes=np.arange(probabilities.shape[1]), random_state=3)
    rule.quantiles_ = np.array([threshold])
    more = {} if last is None else {"include_last_label": last}
    p = probabilities[:, :, None].copy()
    return rule.get_prediction_sets(p, np.zeros(1), np.array([0.1]), cv="prefit", **more)[:, :, 0]


class Fixed(robfcp.APS):
    """APS with the u of another library."""

    def _uniforms(self, n, rng):
        return rng


class Turned(robfcp.APS):
    """It ranks otherwise, and keeps its own formula."""

    def label_scores(self, probabilities, uniforms):
        return 1 - super().label_scores(probabilities, uniforms)


def regularised(penalty, k_reg):
    rule = RAPSConformityScore()
    rule.lambda_star, rule.k_star = np.array([penalty]), np.array([k_reg])
    return rule


@pytest.mark.parametrize("threshold", [0.3, 0.62, 0.9, 0.97, 1.3])
@pytest.mark.parametrize(
    ("ours", "theirs", "last"),
    [
        (robfcp.LAC(), LACConformityScore(), None),
        (robfcp.APS(randomized=False), APSConformityScore(), False),
        (robfcp.RAPS(0.1, 2, randomized=False), regularised(0.1, 2), False),
        (robfcp.RAPS(0.01, 0, randomized=False), regularised(0.01, 0), False),
        (Fixed(), APSConformityScore(), "randomized"),
    ],
    ids=["lac", "aps", "raps", "raps-all", "randomised aps, the same u"],
)
def test_sets_equal_mapies_except_that_its_adaptive_ones_are_never_empty(
    ours, theirs, last, threshold
):
    p, _ = outputs(0, 400, 6)
    if last == "randomized":  # at 1 and above MAPIE leaves labels out
        threshold = min(threshold, 0.99)
    u = 1 - np.random.RandomState(3).uniform(size=(400, 1))[:, 0]
    sets = ours.prediction_sets(p, [threshold], u)[:, :, 0]
    expected = mapies_sets(theirs, p, threshold, last)
    if last is False:
        empty = ~sets.any(axis=1)
        np.testing.assert_array_equal(sets[~empty], expected[~empty])
        sets = ours.prediction_sets(p, [threshold], non_empty=True)[:, :, 0]
    np.testing.assert_array_equal(sets, expected)


@pytest.mark.slow
@pytest.mark.parametrize("score", [*RANKED[:3], robfcp.LAC(), robfcp.SAPS(), robfcp.OrdinalAPS()])
def test_honest_federations_cover_between_the_proved_bounds(score):
    """1 - alpha <= coverage <= 1 - alpha + K/(N + K) + sketching error, by simulation."""
    found = []
    for seed in range(200):
        scores = score(*outputs(seed, 1000, 6), np.random.default_rng([7, seed]))
        reports = reports_of(scores[:500].reshape(10, 50), score=score)
        threshold = robfcp.calibrate(reports, defense="none").threshold
        found.append((scores[500:] <= threshold).mean())
    error = 4 * np.std(found) / np.sqrt(200)
    assert 0.9 - error <= np.mean(found) <= 0.9 + 10 / 510 + 0.01 + error


def test_crossed_quantiles_meet_in_the_middle_when_no_interval_may_be_empty():
    pairs = np.array([[0.0, 1.0], [0.0, 4.0]])
    grid = robfcp.Binning.open_ended([-1.0, -0.8, 0.0, 0.5])
    report = robfcp.Report.from_scores("a", [-0.9] * 60 + [0.4] * 40, grid, score=robfcp.CQR())
    found = robfcp.calibrate([report], [0.5, 0.9], defense="none")
    (bare,) = found.predict_interval(pairs[:1])[:, :, 0]
    assert bare.tolist() == [0.8, pytest.approx(0.2)]
    full = found.predict_interval(pairs, non_empty=True)
    np.testing.assert_allclose(full[:, :, 0], [[0.5, 0.5], [0.8, 3.2]])
    np.testing.assert_allclose(full[:, :, 1], [[-0.5, 1.5], [-0.5, 4.5]])


LIKELY = [
    lambda rng, n, c: rng.dirichlet(np.full(c, 0.05), n),
    lambda rng, n, c: rng.dirichlet(np.full(c, 2.0), n),
    lambda rng, n, c: np.eye(c)[rng.integers(0, c, n)],
    lambda rng, n, c: np.full((n, c), 1 / c),
    lambda rng, n, c: rng.integers(0, 4, (n, c)) * (rng.random((n, c)) < 0.2) + np.eye(c)[0],
]


@pytest.mark.parametrize("score", [*RANKED, Turned(), robfcp.LAC(), robfcp.OrdinalAPS()])
@pytest.mark.parametrize("likely", range(len(LIKELY)))
def test_sets_from_few_ranks_are_those_of_all_scores(score, likely):
    """At any limits, some of them very scores, where rounding could decide."""
    for seed, (n, c, kind) in enumerate([(12, 120, "f4"), (6, 300, "f8"), (9, 3, "f2")]):
        rng = np.random.default_rng([seed, likely])
        p = LIKELY[likely](rng, n, c)
        p = (p / p.sum(axis=1, keepdims=True)).astype(kind)
        table = score.score_all_labels(p, seed)
        some = [0.0, 0.3, 0.9, 0.97, 1.0, 1.3, np.inf, *rng.choice(table.ravel(), 4)]
        for shape in ((1,), (3,), (c, 2), (n, 1, 2)):
            for limits in (np.full(shape, 0.9), rng.choice(some, shape)):
                members = table[:, :, None] <= limits
                found = score.prediction_sets(p, limits, seed)
                np.testing.assert_array_equal(found, members)
                row, level = np.nonzero(~members.any(axis=1))
                members[row, table[row].argmin(axis=1), level] = True
                found = score.prediction_sets(p, limits, seed, non_empty=True)
                np.testing.assert_array_equal(found, members)
