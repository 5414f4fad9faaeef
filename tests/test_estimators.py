"""The estimators follow scikit-learn, and name the client whose data are invalid."""

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
Classifier = robfcp.FederatedConformalClassifier
Regressor = robfcp.FederatedConformalRegressor


@pytest.fixture
def conformal():
    client_of_row = np.array([f"ward-{k % 6}" for k in range(600)])
    model = Classifier(LOGISTIC, score="aps", random_state=0)
    return model.fit(X[:600], y[:600]).conformalize(X[600:1200], y[600:1200], groups=client_of_row)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [Classifier(LogisticRegression()), Regressor(Ridge())])
def test_the_checks_of_scikit_learn_pass(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 45
    assert {result["check_name"] for result in results if result["status"] == "failed"} == set()


def test_score_is_a_parameter_and_the_method_of_scikit_learn(conformal):
    accuracy = (conformal.predict(X[1200:]) == y[1200:]).mean()
    assert conformal.score(X[1200:], y[1200:]) == accuracy
    conformal.score = robfcp.RAPS()
    assert conformal.get_params()["score"] == robfcp.RAPS()
    assert callable(conformal.score)


def test_cross_validation_and_searches_run():
    parameters = {"estimator__C": [0.1, 1.0], "score": ["lac", "aps"]}
    search = GridSearchCV(Classifier(LOGISTIC), parameters, cv=2, scoring="neg_log_loss")
    assert search.fit(X[:300], y[:300]).best_score_ > -1
    regressor = Regressor(LinearRegression())
    assert cross_val_score(regressor, X[:300], X[:300, 20] * 2, cv=2).min() > 0.9


def test_pickling_keeps_the_calibration_and_cloning_or_fitting_does_not(conformal):
    loaded = pickle.loads(pickle.dumps(conformal))  # noqa: S301
    assert loaded.calibration_ == conformal.calibration_
    np.testing.assert_array_equal(loaded.predict_set(X[1200:]), conformal.predict_set(X[1200:]))
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
def test_sets_are_data_frames_on_request(conformal, library):
    frames, classes = pytest.importorskip(library), conformal.classes_
    array_sets = conformal.predict_set(X[1200:])
    sets = conformal.set_output(transform=library).predict_set(X[1200:])
    assert isinstance(sets, frames.DataFrame)
    assert list(sets.columns) == list(classes)
    assert metrics.coverage(sets, y[1200:]) == metrics.coverage(
        array_sets, y[1200:], classes=classes
    )
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


@pytest.mark.parametrize("convert", [np.asarray, csr_matrix, pd.DataFrame, np.ndarray.tolist])
def test_groups_are_the_same_as_pairs(convert):
    client_of_row = np.array(["b", "a", "c", "a"] * 150)
    pairs = {
        name: (X[600:1200][client_of_row == name], y[600:1200][client_of_row == name])
        for name in "bac"
    }
    paired = Classifier(FITTED).conformalize(pairs)
    grouped = Classifier(FITTED)
    with sklearn.config_context(assume_finite=True):
        grouped.conformalize(convert(X[600:1200]), y[600:1200], groups=client_of_row)
    assert grouped.calibration_ == paired.calibration_


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_an_invalid_client_is_named_and_the_others_calibrate():
    data_of_clients = {
        f"ward-{k}": (X[600 + k : 1600 : 10], y[600 + k : 1600 : 10]) for k in range(10)
    }
    data_of_clients["ward-3"] = np.full((100, 64), np.nan), data_of_clients["ward-3"][1]
    data_of_clients["ward-4"] = data_of_clients["ward-4"][0], np.array(["letter"] * 100)
    data_of_clients["ward-5"] = data_of_clients["ward-5"][0], data_of_clients["ward-5"][1][:7]
    data_of_clients["ward-6"] = (
        data_of_clients["ward-6"][0],
        np.roll(data_of_clients["ward-6"][1], 1),
    )
    data_of_clients["ward-7"] = (
        data_of_clients["ward-7"][0],
        [None, *data_of_clients["ward-7"][1][1:]],
    )
    with pytest.warns(UserWarning, match=r"left out: ward-[3457]: ") as warnings:
        calibration = Classifier(FITTED).conformalize(data_of_clients).calibration_
    assert len(warnings) == 4
    assert calibration.flagged_clients == ("ward-6",)
    reasons = {rejection.client: rejection.reason for rejection in calibration.rejected_reports}
    assert list(reasons) == ["ward-3", "ward-4", "ward-5", "ward-7"]
    assert "labels: row 0 is missing" in reasons["ward-7"]
    assert "the estimator does not take its samples (ValueError)" in reasons["ward-3"]
    assert reasons["ward-4"].endswith("labels: letter was not seen in training; drop those")
    with pytest.raises(robfcp.RobfcpError, match="ward-4: labels: letter"):
        Classifier(FITTED).conformalize({"ward-4": data_of_clients["ward-4"]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 64)),), "y: is missing"),
        (([(1, 2, 3)],), "client-0 is not a pair"),
        ((np.zeros((4, 64)), ["digit-1"] * 4, ["a"]), "groups: shape"),
        ((np.zeros((2, 64)), ["digit-1"] * 2, [1, np.nan]), "groups: row 1 is missing"),
        (([(1, 2)], None, ["a"]), "groups: go with X and y"),
        (([],), "there are no clients"),
    ],
)
def test_invalid_calibration_data_are_refused(arguments, message):
    with pytest.raises(robfcp.RobfcpError, match=message):
        Classifier(FITTED).conformalize(*arguments[:2], groups=(*arguments, None, None)[2])


def test_randomness_follows_random_state(conformal):
    fresh = X[1200:]
    first = conformal.predict_set(fresh)
    np.testing.assert_array_equal(first, conformal.predict_set(fresh))
    for state in (1, None, np.random.RandomState(0), np.random.default_rng(0)):
        assert (first != conformal.set_params(random_state=state).predict_set(fresh)).any()
    assert conformal.predict_set(fresh, non_empty=True).any(axis=1).all()


def test_labels_that_differ_from_mapies_are_within_one_bin_above_its_quantile():
    """Ranks agree; our threshold is the upper edge of the bin in which MAPIE's quantile lies."""
    calibration_data = (X[600:1200], y[600:1200])
    fresh = X[1200:]
    edges = robfcp.Binning.default().edges
    sorted_scores = np.sort(
        robfcp.LAC()(
            FITTED.predict_proba(calibration_data[0]),
            np.searchsorted(FITTED.classes_, calibration_data[1]),
        )
    )
    scores = robfcp.LAC().score_all_labels(FITTED.predict_proba(fresh))
    for level in (0.8, 0.9, 0.95, 0.99):
        mapie_classifier = SplitConformalClassifier(FITTED, confidence_level=level, prefit=True)
        mapie_sets = mapie_classifier.conformalize(*calibration_data).predict_set(fresh)[1][:, :, 0]
        classifier = Classifier(FITTED, level).conformalize(*calibration_data)
        sets, threshold = classifier.predict_set(fresh), classifier.calibration_.threshold
        quantile = sorted_scores[ceil(level * 601) - 1]
        assert threshold == edges[np.searchsorted(edges, quantile)]
        np.testing.assert_array_equal(
            sets & ~mapie_sets, (scores > quantile) & (scores <= threshold)
        )
        assert not (mapie_sets & ~sets).any()


class QuantilePairRegressor(LinearRegression):
    """A regressor of two quantiles."""

    def predict(self, X):
        return super().predict(X)[:, None] + [-10, 10]


QUANTILE_REGRESSORS = tuple(
    QuantileRegressor(quantile=quantile, alpha=0) for quantile in (0.1, 0.9)
)


@pytest.mark.parametrize(
    ("model", "score"),
    [(LinearRegression(), None), (QuantilePairRegressor(), "cqr"), (QUANTILE_REGRESSORS, None)],
)
def test_prediction_intervals_have_the_target_coverage(model, score):
    X, y = load_diabetes(return_X_y=True)
    conformal = Regressor(model, [0.8, 0.9], score=score).fit(X[:150], y[:150])
    conformal.conformalize(X[150:300], y[150:300], groups=np.arange(150) % 3)
    intervals = conformal.predict_interval(X[300:])
    assert 0.72 <= metrics.interval_coverage(intervals[:, :, 0], y[300:]) <= 0.95
    assert 0.82 <= metrics.interval_coverage(intervals[:, :, 1], y[300:]) <= 0.99
    frame = conformal.set_output(transform="pandas").predict_interval(X[300:])
    assert list(frame.columns)[:2] == ["low at 0.8", "low at 0.9"]
