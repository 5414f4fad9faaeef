"""Budgets, noise from OpenDP, accounting, and private reports on the wire."""

import json
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from scipy.stats import chisquare

import robfcp
from robfcp import Privacy, Report, ReportError, RobfcpError
from robfcp.binning import Binning
from robfcp.federation._federation import Federation
from robfcp.privacy import _budget
from robfcp.privacy._budget import Accountant, logistic_binning, recommend_binning
from robfcp.privacy._noise import add_noise, noise_bound

dp = pytest.importorskip("opendp.prelude")
UNIFORM_10 = Binning.uniform(10)
SCORES = np.random.default_rng(0).random(200)
HIDING = Privacy(1, neighbors="add-remove")


def private(client, privacy, **more):
    return Report.from_scores(
        client, SCORES, UNIFORM_10, score=robfcp.LAC(), privacy=privacy, **more
    )


def test_substituting_a_sample_moves_the_counts_by_the_stated_sensitivity():
    rng = np.random.default_rng(1)
    l1, l2 = Privacy(1).sensitivity
    for _ in range(50):
        scores = rng.random(20)
        moved = UNIFORM_10.counts(scores) - UNIFORM_10.counts([rng.random(), *scores[1:]])
        assert np.abs(moved).sum() <= l1
        assert np.linalg.norm(moved) <= l2 + 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (4, 1e-3)])
def test_gaussian_scales_are_the_least_that_opendp_accepts(epsilon, delta):
    privacy = Privacy(epsilon, delta, mechanism="gaussian")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)

    def spent(scale):
        measurement = dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=scale))
        return measurement.map(privacy.sensitivity[1]).epsilon(delta)

    assert spent(privacy.scale) <= epsilon * (1 + 1e-9)
    assert spent(privacy.scale * 0.999) > epsilon


def test_zcdp_conversion_is_the_best_order_of_proposition_7():
    order = np.linspace(1.001, 400, 200_000)
    for rho, delta in ((0.1, 1e-6), (1.0, 1e-2)):
        tail = np.log(1 / delta) + order * np.log1p(-1 / order) - np.log(order - 1)
        bound = order * rho + tail / (order - 1)
        assert _budget.zcdp_epsilon(rho, delta) == pytest.approx(bound.min(), rel=1e-6)
    assert _budget.zcdp_epsilon(_budget.zcdp_rho(1.0, 1e-6), 1e-6) == pytest.approx(1, rel=1e-6)
    assert (_budget.zcdp_epsilon(0.0, 1e-6), _budget.zcdp_epsilon(0.1, 0.0)) == (0, np.inf)


@pytest.mark.parametrize(
    "privacy", [Privacy(1), Privacy(4), Privacy(2, 1e-5, mechanism="gaussian")], ids=str
)
def test_what_leaves_a_client_has_the_stated_noise(privacy):
    n = 6000
    noise, second_draw = (add_noise(np.full(size, 7), privacy) - 7 for size in (n, 40))
    reach = int(3 * np.sqrt(privacy.noise.variance))
    mass = privacy.noise.mass(reach)
    observed = np.bincount(
        np.clip(noise, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3
    )
    beyond = (1 - mass.sum()) / 2
    expected = n * np.concatenate([[beyond], mass, [beyond]])
    assert (
        chisquare(observed, expected).pvalue > 1e-7
    )  # drawn afresh: fails once in ten million runs
    assert (second_draw != noise[:40]).any()


def test_without_opendp_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp", None)
    with pytest.raises(RobfcpError, match=r"^[^\n]*pip install 'robfcp\[privacy\]'$"):
        private("a", Privacy(1))


def test_counts_are_refused_where_noise_makes_them_once_in_ten_thousand_million_reports():
    privacy, counts = Privacy(1), [20] * 10
    slack, max_noise = (noise_bound(((privacy.noise, n),), c) for n, c in ((10, 1e-10), (1, 1e-11)))
    for excess in (0, 1):
        extreme = [-max_noise - excess, max_noise + excess, *[25] * 8]
        for reported, n in (
            (counts, 200 - slack - excess),
            (counts, 200 + slack + excess),
            (extreme, 200),
        ):
            message = "noise cannot make of|beyond what the stated noise"
            with pytest.raises(ReportError, match=message) if excess else nullcontext():
                Report("a", reported, UNIFORM_10, n_samples=n, privacy=privacy)


def test_hidden_sizes_are_registered_or_estimated_and_then_need_the_same_noise():
    reports = [*(private(client, HIDING) for client in "abc"), private("d", Privacy(4))]
    estimated = Federation.from_reports(reports)
    assert (estimated.sizes_known, list(estimated)) == (False, reports[:3])
    (rejected,) = estimated.rejected_reports
    assert (rejected.client, "other noise than most reports" in rejected.reason) == ("d", True)
    registered = Federation.from_reports(reports, registered_sizes=dict.fromkeys("abcd", 200))
    assert (
        registered.sizes_known,
        registered.rejected_reports,
        registered.sample_sizes.tolist(),
    ) == (
        True,
        (),
        [200] * 4,
    )


def test_recommended_binnings_grow_as_noise_shrinks():
    settings = ((0.01, 500), (1, 50), (1, 500), (1, 5000))
    assert [recommend_binning(epsilon, n, 20).n_bins for epsilon, n in settings] == [8, 8, 34, 160]
    assert recommend_binning(1, 500, 20) == logistic_binning(34)
    scores = np.random.default_rng(0).exponential(3, 1000)
    binning = recommend_binning(Privacy(1), 500, 20, prior=scores)
    fractions = np.searchsorted(np.sort(scores), binning.edges[1:-1]) / 1000
    assert 0.4 < (fractions > 0.9).mean() < 0.6
    assert recommend_binning(1, 500, 20, prior=scores / scores.max()).edges[-1] == 1


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"epsilon": 1}, 2),
        ({"epsilon": 1, "neighbors": "add-remove"}, 1),
        ({"epsilon": 0.5, "max_samples_per_patient": 3}, 12),
        ({"epsilon": 0.5, "max_samples_per_patient": 3, "neighbors": "add-remove"}, 6),
        ({"epsilon": 1, "n_rounds": 4}, 8),
        ({"epsilon": 1, "delta": 1e-6, "n_rounds": 5}, 10),
        ({"epsilon": 1, "delta": 1e-6, "n_rounds": 100}, None),  # more rounds take Gaussian noise
    ],
)
def test_noise_is_the_least_that_spends_the_budget_exactly(settings, scale):
    privacy = Privacy(**settings)
    assert privacy.mechanism == ("gaussian" if scale is None else "laplace")
    if scale is not None:
        assert privacy.scale == scale
        assert privacy.pure_epsilon * privacy.n_rounds == pytest.approx(privacy.epsilon)
        assert privacy.rho == pytest.approx((privacy.epsilon / privacy.n_rounds) ** 2 / 2)
    accountant = Accountant()
    for _ in range(privacy.n_rounds):
        assert accountant.budget_exceeded_by(privacy) is None
        accountant = accountant.spend(privacy)
    assert accountant.budget_exceeded_by(privacy) == privacy
    assert accountant.epsilon(privacy.delta) == pytest.approx(privacy.epsilon, rel=1e-5)
    report = private("a", privacy)
    assert Report.from_json(report.to_json()) == report
    assert ("n_samples" in json.loads(report.to_json())) is not privacy.protects_sample_size
    assert privacy.protects_sample_size or report.n_samples == 200


@pytest.mark.parametrize("epsilon", [1e-4, 1e6])
@pytest.mark.parametrize("delta", [0, 1e-300, 0.5])
def test_extreme_budgets_have_a_scale(epsilon, delta):
    privacy = Privacy(epsilon, delta)
    assert 0 < privacy.scale <= 2.1 / epsilon
    assert privacy.noise.variance >= 0
    assert Accountant().budget_exceeded_by(privacy) is None


BINNING_OPTIONS = {"privacy": 1, "n_samples": 500, "n_clients": 20}
PAIRS = np.repeat(np.arange(100), 2)
REPORT_OPTIONS = {"client": "a", "scores": SCORES, "privacy": Privacy(1), "patient_ids": PAIRS}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        *(
            (Privacy, {"epsilon": invalid}, "epsilon is")
            for invalid in (0, -1.0, np.nan, "1", 1e-300, 1e300)
        ),
        (Privacy, {"epsilon": 1, "delta": 1}, "delta is 1"),
        (Privacy, {"epsilon": 1, "mechanism": "gaussian"}, "delta is 0"),
        (Privacy, {"epsilon": 1, "mechanism": "uniform"}, "mechanism is 'uniform'"),
        (Privacy, {"epsilon": 1, "neighbors": "next door"}, "neighbors is"),
        (Privacy, {"epsilon": 1, "n_rounds": 0}, "n_rounds is 0"),
        (Privacy, {"epsilon": 1, "max_samples_per_patient": 1.5}, "max_samples_per_patient is 1.5"),
        (Privacy, {"epsilon": 1, "scale": 1.9}, "too little"),
        (Privacy, {"epsilon": 1, "scale": -1}, "scale is -1"),
        (Privacy, {"epsilon": 1e-12}, "give a number from 1e-09"),
        (logistic_binning, {"bins": 4}, "8 to 10000 bins"),
        (recommend_binning, BINNING_OPTIONS | {"n_samples": 0}, "integers from 1"),
        (recommend_binning, BINNING_OPTIONS | {"prior": [1.0, 2.0]}, "finite scores"),
        (
            recommend_binning,
            BINNING_OPTIONS | {"prior": np.ones(99), "confidence_level": 1},
            "between",
        ),
        (
            Report.from_scores,
            REPORT_OPTIONS,
            "somebody has 2 samples but max_samples_per_patient is 1",
        ),
        (Report.from_scores, REPORT_OPTIONS | {"privacy": None}, "only privacy protects them"),
        (Report.from_scores, REPORT_OPTIONS | {"patient_ids": PAIRS[1:]}, "one name a score"),
    ],
)
def test_what_cannot_be_private_is_refused(make, options, message):
    private("a", Privacy(1, max_samples_per_patient=2), patient_ids=PAIRS)  # as many as stated
    with pytest.raises(RobfcpError, match=message):
        make(**options)
