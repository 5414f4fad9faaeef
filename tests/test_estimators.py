"""The estimators do everything scikit-learn's own do, and name the site that is wrong."""

import pickle
from math import ceil

import numpy as np
import pandas as pd
import pytest
import sklearn
from mapie.classification import SplitConformalClassifier
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import robfcp
from robfcp import metrics

X, y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(y))
X, y = X[ORDER] / 16, np.array([f"digit-{label}" for label in y[ORDER]])
LOGISTIC = LogisticRegression(max_iter=300)
FITTED = LogisticRegression(max_iter=300).fit(X[:600], y[:600])
Classifier, Regressor = robfcp.FederatedConformalClassifier, robfcp.FederatedConformalRegressor


@pytest.fixture
def conformal():
    site = np.array([f"ward-{k % 6}" for k in range(600)])
    model = Classifier(LOGISTIC, score="aps", random_state=0)
    return model.fit(X[:600], y[:600]).conformalize(X[600:1200], y[600:1200], groups=site)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [Classifier(LogisticRegression()), Regressor(Ridge())])
def test_scikit_learns_own_checks_pass(estimator):
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 45
    assert {one["check_name"] for one in found if one["status"] == "failed"} == set()


def test_score_is_a_parameter_and_scikit_learns_method(conformal):
    right = (conformal.predict(X[1200:]) == y[1200:]).mean()
    assert conformal.score(X[1200:], y[1200:]) == right
    conformal.score = robfcp.RAPS()
    assert conformal.get_params()["score"] == robfcp.RAPS()
    assert callable(conformal.score)


def test_cross_validation_and_searches_run():
    grid = {"estimator__C": [0.1, 1.0], "score": ["lac", "aps"]}
    search = GridSearchCV(Classifier(LOGISTIC), grid, cv=2, scoring="neg_log_loss")
    assert search.fit(X[:300], y[:300]).best_score_ > -1
    line = Regressor(LinearRegression())
    assert cross_val_score(line, X[:300], X[:300, 20] * 2, cv=2).min() > 0.9


def test_what_is_saved_comes_back_whole_and_a_clone_or_a_new_fit_without_its_calibration(conformal):
    again = pickle.loads(pickle.dumps(conformal))  # noqa: S301
    assert again.calibration_ == conformal.calibration_
    np.testing.assert_array_equal(again.predict_set(X[1200:]), conformal.predict_set(X[1200:]))
    copy = clone(clone(conformal.set_output(transform="pandas").set_params(confidence_level=0.8)))
    assert (copy.get_params()["score"], copy.confidence_level) == ("aps", 0.8)
    assert copy._sklearn_output_config == {"transform": "pandas"}
    for call in (lambda: copy.conformalize([(X, y)]), lambda: copy.predict_set(X)):
        with pytest.raises(NotFittedError, match="call fit, or pass a fitted estimator"):
            call()
    assert not hasattr(conformal.estimator, "classes_")
    assert conformal.fit(X[:300], y[:300]).score(X[300:400], y[300:400]) > 0.7
    with pytest.raises(NotFittedError, match="fitted but not calibrated; call conformalize"):
        conformal.predict_set(X)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_sets_come_as_frames_when_asked(conformal, library):
    frames, classes = pytest.importorskip(library), conformal.classes_
    bare = conformal.predict_set(X[1200:])
    sets = conformal.set_output(transform=library).predict_set(X[1200:])
    assert isinstance(sets, frames.DataFrame)
    assert list(sets.columns) == list(classes)
    assert metrics.coverage(sets, y[1200:]) == metrics.coverage(bare, y[1200:], classes=classes)
    with pytest.raises(robfcp.RobfcpError, match="use default, pandas, polars"):
        conformal.set_output(transform="excel")
    frame = pd.DataFrame(X, [f"patient {k}" for k in range(len(X))], [f"x{k}" for k in range(64)])
    model = Classifier(LOGISTIC, [0.8, 0.9]).fit(frame[:300], y[:300] < "digit-5")
    model.conformalize(frame[300:], y[300:] < "digit-5")
    with sklearn.config_context(transform_output="pandas"):
        sets = model.predict_set(frame[:5])
    assert list(sets.index) == list(frame.index[:5])
    assert list(sets.columns)[1:3] == ["False at 0.9", "True at 0.8"]
    assert list(model.feature_names_in_) == list(frame.columns)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, pd.DataFrame, np.ndarray.tolist])
def test_groups_are_the_pairs_they_stand_for(kind):
    site = np.array(["b", "a", "c", "a"] * 150)
    pairs = {name: (X[600:1200][site == name], y[600:1200][site == name]) for name in "bac"}
    paired = Classifier(FITTED).conformalize(pairs)
    grouped = Classifier(FITTED)
    with sklearn.config_context(assume_finite=True):
        grouped.conformalize(kind(X[600:1200]), y[600:1200], groups=site)
    assert grouped.calibration_ == paired.calibration_


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_one_bad_site_is_named_and_the_rest_go_on():
    parts = {f"ward-{k}": (X[600 + k : 1600 : 10], y[600 + k : 1600 : 10]) for k in range(10)}
    parts["ward-3"] = np.full((100, 64), np.nan), parts["ward-3"][1]
    parts["ward-4"] = parts["ward-4"][0], np.array(["letter"] * 100)
    parts["ward-5"] = parts["ward-5"][0], parts["ward-5"][1][:7]
    parts["ward-6"] = parts["ward-6"][0], np.roll(parts["ward-6"][1], 1)
    parts["ward-7"] = parts["ward-7"][0], [None, *parts["ward-7"][1][1:]]
    with pytest.warns(UserWarning, match=r"left out: ward-[3457]: ") as said:
        found = Classifier(FITTED).conformalize(parts).calibration_
    assert len(said) == 4
    assert found.flagged_clients == ("ward-6",)
    reasons = {fault.client: fault.reason for fault in found.rejected_reports}
    assert list(reasons) == ["ward-3", "ward-4", "ward-5", "ward-7"]
    assert "labels: row 0 is missing" in reasons["ward-7"]
    assert "the estimator does not take its samples (ValueError)" in reasons["ward-3"]
    assert reasons["ward-4"].endswith("labels: letter was not seen in training; drop those")
    with pytest.raises(robfcp.RobfcpError, match="ward-4: labels: letter"):
        Classifier(FITTED).conformalize({"ward-4": parts["ward-4"]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 64)),), "y: is missing"),
        (([(1, 2, 3)],), "client-0 is no pair"),
        ((np.zeros((4, 64)), ["digit-1"] * 4, ["a"]), "groups: shape"),
        ((np.zeros((2, 64)), ["digit-1"] * 2, [1, np.nan]), "groups: row 1 is missing"),
        (([(1, 2)], None, ["a"]), "groups: go with X and y"),
        (([],), "there are none"),
    ],
)
def test_sites_given_in_no_known_way_are_refused(arguments, message):
    with pytest.raises(robfcp.RobfcpError, match=message):
        Classifier(FITTED).conformalize(*arguments[:2], groups=(*arguments, None, None)[2])


def test_randomness_follows_random_state(conformal):
    fresh = X[1200:]
    first = conformal.predict_set(fresh)
    np.testing.assert_array_equal(first, conformal.predict_set(fresh))
    for state in (1, None, np.random.RandomState(0), np.random.default_rng(0)):
        assert (first != conformal.set_params(random_state=state).predict_set(fresh)).any()
    assert conformal.predict_set(fresh, non_empty=True).any(axis=1).all()


def test_cells_that_differ_from_mapies_lie_within_one_bin_above_its_quantile():
    """Ranks agree; our threshold is the upper edge of the bin in which MAPIE's quantile lies."""
    held, fresh, edges = (X[600:1200], y[600:1200]), X[1200:], robfcp.Binning.default().edges
    exact = np.sort(
        robfcp.LAC()(FITTED.predict_proba(held[0]), np.searchsorted(FITTED.classes_, held[1]))
    )
    scores = robfcp.LAC().score_all_labels(FITTED.predict_proba(fresh))
    for level in (0.8, 0.9, 0.95, 0.99):
        theirs = SplitConformalClassifier(FITTED, confidence_level=level, prefit=True)
        cells = theirs.conformalize(*held).predict_set(fresh)[1][:, :, 0]
        ours = Classifier(FITTED, level).conformalize(*held)
        sets, edge = ours.predict_set(fresh), ours.calibration_.threshold
        quantile = exact[ceil(level * 601) - 1]
        assert edge == edges[np.searchsorted(edges, quantile)]
        np.testing.assert_array_equal(sets & ~cells, (scores > quantile) & (scores <= edge))
        assert not (cells & ~sets).any()


class Pair(LinearRegression):
    """A regressor of two quantiles."""

    def predict(self, X):
        return super().predict(X)[:, None] + [-10, 10]


TWO = tuple(QuantileRegressor(quantile=share, alpha=0) for share in (0.1, 0.9))


@pytest.mark.parametrize(
    ("model", "score"), [(LinearRegression(), None), (Pair(), "cqr"), (TWO, None)]
)
def test_regressor_intervals_cover_as_asked(model, score):
    X, y = load_diabetes(return_X_y=True)
    conformal = Regressor(model, [0.8, 0.9], score=score).fit(X[:150], y[:150])
    conformal.conformalize(X[150:300], y[150:300], groups=np.arange(150) % 3)
    ends = conformal.predict_interval(X[300:])
    assert 0.72 <= metrics.interval_coverage(ends[:, :, 0], y[300:]) <= 0.95
    assert 0.82 <= metrics.interval_coverage(ends[:, :, 1], y[300:]) <= 0.99
    frame = conformal.set_output(transform="pandas").predict_interval(X[300:])
    assert list(frame.columns)[:2] == ["low at 0.8", "low at 0.9"]
