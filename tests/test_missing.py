"""Missing values in what we are given are refused everywhere, by their row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression

import robfcp
from robfcp import RobfcpError, metrics

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 60)
Y = RNG.integers(0, 3, 60)
WORDS = np.array(["mild", "grave", "dead"], dtype=object)


def holed(values: np.ndarray, row: int, hole: object = np.nan) -> np.ndarray:
    found = values.astype(object if hole is None or values.dtype.kind == "O" else float)
    found[row] = hole
    return found


def calibration() -> robfcp.Calibration:
    score = robfcp.LAC()
    reports = [
        robfcp.Report.from_scores(
            f"s{k}", score(P[k::3], Y[k::3]), score=score, labels=Y[k::3], classes=3
        )
        for k in range(3)
    ]
    return robfcp.calibrate(reports, malicious=0)


@pytest.mark.parametrize("score", [robfcp.LAC(), robfcp.APS(), robfcp.RAPS(), robfcp.SAPS()])
def test_scores(score: robfcp.ClassificationScore) -> None:
    with pytest.raises(RobfcpError, match="probabilities: row 7 holds NaN"):
        score(holed(P, 7), Y, 0)
    for hole in (np.nan, None):
        with pytest.raises(RobfcpError, match="labels: row 5 is missing; fill it in"):
            score(P, holed(Y, 5, hole), 0)


def test_reports() -> None:
    scores = RNG.random(60)
    with pytest.raises(RobfcpError, match="a: scores: row 9 is NaN"):
        robfcp.Report.from_scores("a", holed(scores, 9))
    for labels in (holed(Y, 4), holed(Y, 4, None), holed(WORDS[Y], 4), holed(WORDS[Y], 4, None)):
        with pytest.raises(RobfcpError, match="a: labels: row 4 is missing"):
            robfcp.Report.from_scores("a", scores, labels=labels, classes=list(WORDS))


def test_predictions_checks_and_metrics() -> None:
    found = calibration()
    with pytest.raises(RobfcpError, match="row 7 holds NaN"):
        found.predict_set(holed(P, 7))
    with pytest.raises(RobfcpError, match="labels: row 2 is missing"):
        found.check(P, holed(Y, 2), floor=0.8)
    sets = found.predict_set(P)
    with pytest.raises(RobfcpError, match="labels: row 2 is missing"):
        metrics.coverage(sets, holed(Y, 2))
    with pytest.raises(RobfcpError, match="labels: row 3 is missing"):
        metrics.coverage(sets, holed(WORDS[Y], 3, None), classes=list(WORDS))


def test_pandas_own_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(Y, dtype="Int64")
    labels[6] = pandas.NA
    with pytest.raises(RobfcpError, match="labels: row 6 is missing"):
        robfcp.LAC()(P, labels)


def test_estimators_name_the_site_and_the_row_and_leave_the_features_to_the_model() -> None:
    X, site = RNG.normal(size=(240, 4)), np.arange(200) % 4
    y = WORDS[RNG.integers(0, 3, 240)]
    forest = RandomForestClassifier(10, random_state=0)
    model = robfcp.FederatedConformalClassifier(forest).fit(X[:40], y[:40])
    with pytest.warns(UserWarning, match="left out: 2: labels: row 12 is missing"):
        model.conformalize(X[40:], holed(y[40:], 50, None), groups=site)
    assert [fault.client for fault in model.calibration_.faulty] == ["2"]
    with pytest.raises(RobfcpError, match="groups: row 3 is missing"):
        model.conformalize(X[40:], y[40:], groups=holed(site, 3))
    gaps = X.copy()
    gaps[100, 1] = np.nan  # a forest takes gaps in features, and its probabilities are whole
    assert model.conformalize(gaps[40:], y[40:], groups=site).calibration_.faulty == ()
    assert model.predict_set(gaps).shape == (240, 3)


def test_regression() -> None:
    X = RNG.normal(size=(100, 2))
    model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(X[:40], X[:40, 0])
    with pytest.warns(UserWarning, match="left out: 1: targets: row 2 is NaN or infinite"):
        model.conformalize(X[40:], holed(X[40:, 0], 5), groups=np.arange(60) % 2)


def test_the_estimators_defence_is_the_default_of_calibrate() -> None:
    model = robfcp.FederatedConformalRegressor(LinearRegression())
    assert model.get_params()["defence"] == robfcp.defence.DEFAULT
