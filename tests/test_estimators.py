"""The scikit-learn front behaves as scikit-learn users expect."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression

import robfcp
from robfcp import metrics


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order] / 16, np.array([f"digit-{label}" for label in y[order]])


@pytest.fixture(scope="module")
def model(digits):
    X, y = digits
    return LogisticRegression(max_iter=500).fit(X[:600], y[:600])


def sites(X, y, n_sites=10):
    return list(zip(np.array_split(X, n_sites), np.array_split(y, n_sites), strict=True))


@pytest.mark.parametrize("score", [None, robfcp.APS(), robfcp.RAPS(randomized=False), "saps"])
def test_classifier_covers_as_asked_on_honest_sites(digits, model, score):
    X, y = digits
    conformal = robfcp.FederatedConformalClassifier(model, 0.9, score=score, random_state=0)
    conformal.conformalize(sites(X[600:1200], y[600:1200]))
    sets = conformal.predict_set(X[1200:])
    column = np.searchsorted(conformal.classes_, y[1200:])
    assert 0.86 <= metrics.coverage(sets, column) <= 0.99
    np.testing.assert_array_equal(conformal.predict(X[:5]), model.predict(X[:5]))


def test_a_lying_site_is_found_by_name(digits, model):
    X, y = digits
    named = {f"ward-{k}": part for k, part in enumerate(sites(X[600:1500], y[600:1500], 9))}
    named["ward-3"] = (named["ward-3"][0], np.roll(named["ward-3"][1], 1))
    conformal = robfcp.FederatedConformalClassifier(model).conformalize(named)
    assert conformal.calibration_.flagged == ("ward-3",)


def test_regressor_intervals_cover_as_asked():
    X, y = load_diabetes(return_X_y=True)
    model = LinearRegression().fit(X[:150], y[:150])
    conformal = robfcp.FederatedConformalRegressor(model, [0.8, 0.9])
    conformal.conformalize(sites(X[150:300], y[150:300], 3))
    ends = conformal.predict_interval(X[300:])
    assert ends.shape == (142, 2, 2)
    assert 0.72 <= metrics.interval_coverage(ends[:, :, 0], y[300:]) <= 0.95
    assert 0.82 <= metrics.interval_coverage(ends[:, :, 1], y[300:]) <= 0.99


def test_estimators_can_be_cloned_and_their_parameters_changed(model):
    conformal = robfcp.FederatedConformalClassifier(model, 0.8, malicious=2, guarantee="marginal")
    copy = clone(conformal)
    assert copy.get_params(deep=False)["malicious"] == 2
    assert copy.set_params(confidence_level=0.95).confidence_level == 0.95
    assert "guarantee='marginal'" in repr(conformal)


def test_fit_trains_the_wrapped_estimator(digits):
    X, y = digits
    conformal = robfcp.FederatedConformalClassifier(LogisticRegression(max_iter=500))
    with pytest.raises(NotFittedError):
        conformal.conformalize(sites(X, y))
    conformal.fit(X[:300], y[:300])
    with pytest.raises(NotFittedError):
        conformal.predict_set(X)
    conformal.conformalize(sites(X[300:600], y[300:600], 3))
    assert conformal.predict_set(X[600:610]).shape == (10, 10)


def test_unseen_labels_and_missing_sites_are_refused(digits, model):
    X, _ = digits
    with pytest.raises(robfcp.RobfcpError, match="not seen in training"):
        robfcp.FederatedConformalClassifier(model).conformalize([(X[:5], ["letter"] * 5)])
    with pytest.raises(robfcp.RobfcpError, match="there are none"):
        robfcp.FederatedConformalClassifier(model).conformalize([])
