"""The estimators do everything scikit-learn's own do, and name the site that is wrong."""

import pickle
from math import ceil

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from mapie.classification import SplitConformalClassifier
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
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
@pytest.mark.parametrize(
    "estimator",
    [Classifier(LogisticRegression()), Regressor(Ridge())],
    ids=lambda estimator: type(estimator).__name__,
)
def test_scikit_learns_own_checks_pass(estimator):
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 45
    assert {one["check_name"] for one in found if one["status"] == "failed"} == set()


def test_score_is_a_parameter_and_scikit_learns_method(conformal):
    assert conformal.get_params()["score"] == "aps"
    assert "score='aps'" in repr(conformal)
    right = (conformal.predict(X[1200:]) == y[1200:]).mean()
    assert conformal.score(X[1200:], y[1200:]) == right
    assert conformal.set_params(score="lac").get_params()["score"] == "lac"
    conformal.score = robfcp.RAPS()
    assert conformal.get_params()["score"] == robfcp.RAPS()
    assert callable(conformal.score)


def test_cross_validation_and_searches_run():
    model = Classifier(LOGISTIC)
    assert cross_val_score(model, X[:600], y[:600], cv=2).min() > 0.8
    assert cross_val_score(model, X[:600], y[:600], cv=2, scoring="neg_log_loss").min() > -1
    grid = {"estimator__C": [0.1, 1.0], "score": ["lac", "aps"]}
    assert GridSearchCV(model, grid, cv=2).fit(X[:300], y[:300]).best_score_ > 0.8
    line = Regressor(LinearRegression())
    assert cross_val_score(line, X[:300], X[:300, 20] * 2, cv=2).min() > 0.9


def test_saved_estimators_come_back_whole(conformal, tmp_path):
    joblib.dump(conformal, tmp_path / "model.joblib")
    for again in (pickle.loads(pickle.dumps(conformal)), joblib.load(tmp_path / "model.joblib")):  # noqa: S301
        assert again.calibration_ == conformal.calibration_
        assert again.get_params()["score"] == "aps"
        assert again.score(X[:50], y[:50]) == conformal.score(X[:50], y[:50])
        np.testing.assert_array_equal(again.predict_set(X[1200:]), conformal.predict_set(X[1200:]))


def test_clones_keep_parameters_and_output_but_no_calibration(conformal):
    copy = clone(conformal.set_output(transform="pandas").set_params(confidence_level=0.8))
    assert (copy.get_params()["score"], copy.confidence_level) == ("aps", 0.8)
    assert copy.defence == robfcp.Consensus.name
    with pytest.raises(NotFittedError, match="call fit, or pass a fitted estimator"):
        copy.conformalize([(X, y)])
    with pytest.raises(NotFittedError, match="call fit, or pass a fitted estimator"):
        copy.predict_set(X)
    assert clone(copy)._sklearn_output_config == {"transform": "pandas"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_sets_come_as_frames_when_asked(conformal, library):
    frames = pytest.importorskip(library)
    bare = conformal.predict_set(X[1200:])
    sets = conformal.set_output(transform=library).predict_set(X[1200:])
    assert isinstance(sets, frames.DataFrame)
    assert list(sets.columns) == list(conformal.classes_)
    np.testing.assert_array_equal(np.asarray(sets), bare)
    assert metrics.coverage(sets, y[1200:]) == metrics.coverage(
        bare, y[1200:], classes=conformal.classes_
    )
    assert conformal.set_output().predict_set(X[:2]).shape == (2, 10)
    assert isinstance(conformal.set_output(transform="default").predict_set(X[:2]), np.ndarray)
    with pytest.raises(robfcp.RobfcpError, match="use default, pandas, polars"):
        conformal.set_output(transform="excel")


def test_frames_keep_the_rows_names_and_one_column_a_level():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=["a", "b"])
    frame.index = [f"patient {k}" for k in range(300)]
    y = (frame["a"] > 0).map({True: "ill", False: "well"})
    model = Classifier(LOGISTIC, [0.8, 0.9]).fit(frame[:100], y[:100])
    model.conformalize(frame[100:], y[100:], groups=np.arange(200) % 4)
    with sklearn.config_context(transform_output="pandas"):
        sets = model.predict_set(frame[:5])
    assert list(sets.index) == list(frame.index[:5])
    assert list(sets.columns) == ["ill at 0.8", "ill at 0.9", "well at 0.8", "well at 0.9"]
    assert list(model.feature_names_in_) == ["a", "b"]
    assert model.n_features_in_ == 2
    line = Regressor(LinearRegression()).fit(frame[:100], frame["a"][:100])
    line.conformalize(frame[100:], frame["a"][100:])
    ends = line.set_output(transform="pandas").predict_interval(frame[:5])
    assert list(ends.columns) == ["low", "high"]


def test_metadata_reaches_the_estimator():
    weight = np.zeros(600)
    weight[y[:600] == "digit-3"] = 1
    weight[y[:600] == "digit-4"] = 1
    direct = Classifier(LOGISTIC).fit(X[:600], y[:600], sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        asks = clone(LOGISTIC).set_fit_request(sample_weight=True)
        routed = Classifier(asks)
        routed.fit(X[:600], y[:600], sample_weight=weight)
        np.testing.assert_allclose(routed.predict_proba(X[:9]), direct.predict_proba(X[:9]))
        params = {"sample_weight": weight}
        assert cross_val_score(routed, X[:600], y[:600], cv=2, params=params).max() < 0.5


def test_fit_leaves_the_given_estimator_alone_and_forgets_the_calibration(conformal):
    assert not hasattr(conformal.estimator, "classes_")
    assert conformal.fit(X[:300], y[:300]).score(X[300:400], y[300:400]) > 0.7
    with pytest.raises(NotFittedError, match="fitted but not calibrated; call conformalize"):
        conformal.predict_set(X)


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
    sites = {f"ward-{k}": (X[600 + k : 1600 : 10], y[600 + k : 1600 : 10]) for k in range(10)}
    sites["ward-3"] = np.full((100, 64), np.nan), sites["ward-3"][1]
    sites["ward-4"] = sites["ward-4"][0], np.array(["letter"] * 100)
    sites["ward-5"] = sites["ward-5"][0], sites["ward-5"][1][:7]
    conformal = Classifier(FITTED)
    with pytest.warns(UserWarning, match=r"left out: ward-[345]: ") as said:
        conformal.conformalize(sites)
    assert len(said) == 3
    reasons = {fault.client: fault.reason for fault in conformal.calibration_.faulty}
    assert list(reasons) == ["ward-3", "ward-4", "ward-5"]
    assert reasons["ward-3"] == (
        "ward-3: the estimator does not take its samples (ValueError); check missing values and "
        "the number of columns"
    )
    assert reasons["ward-4"].endswith("labels: letter was not seen in training; drop those samples")
    assert conformal.calibration_.federation.n_clients == 7
    with pytest.raises(robfcp.RobfcpError, match="ward-4: labels: letter"):
        conformal.conformalize({"ward-4": sites["ward-4"]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 64)),), "y: is missing"),
        (([(1, 2, 3)],), "client-0 is no pair"),
        ((np.zeros((4, 64)), ["digit-1"] * 4, ["a"]), "groups: shape"),
        (([(1, 2)], None, ["a"]), "groups: go with X and y"),
        (([],), "there are none"),
    ],
)
def test_sites_given_in_no_known_way_are_refused(arguments, message):
    model = Classifier(FITTED)
    X, y, groups = (*arguments, None, None)[:3]
    with pytest.raises(robfcp.RobfcpError, match=message):
        model.conformalize(X, y, groups=groups)


def test_randomness_follows_random_state(conformal):
    fresh = X[1200:]
    first = conformal.predict_set(fresh)
    np.testing.assert_array_equal(first, conformal.predict_set(fresh))
    np.testing.assert_array_equal(conformal.predict_set(fresh, 7), conformal.predict_set(fresh, 7))
    assert (first != conformal.set_params(random_state=1).predict_set(fresh)).any()
    assert (first != conformal.set_params(random_state=None).predict_set(fresh)).any()
    for state in (np.random.RandomState(0), np.random.default_rng(0)):
        assert conformal.set_params(random_state=state).predict_set(fresh).shape == first.shape
    assert conformal.predict_set(fresh, non_empty=True).any(axis=1).all()


def test_quantile_regressors_go_through_cqr():
    class Pair(LinearRegression):
        def predict(self, X):
            centre = super().predict(X)
            return np.stack([centre - 0.1, centre + 0.1], axis=1)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 1))
    y = x[:, 0] + rng.normal(size=900)
    model = Regressor(Pair(), score="cqr").fit(x[:300], y[:300])
    ends = model.conformalize(x[300:600], y[300:600]).predict_interval(x[600:])
    assert 0.84 < metrics.interval_coverage(ends, y[600:]) < 0.96


def test_cells_that_differ_from_mapies_lie_within_one_bin_above_its_quantile():
    """Ranks agree; our threshold is the upper edge of the bin in which MAPIE's quantile lies."""
    X, y = make_classification(4000, 20, n_informative=10, n_classes=5, random_state=0)
    model = LogisticRegression(max_iter=1000).fit(X[:2000], y[:2000])
    held, fresh = (X[2000:3000], y[2000:3000]), model.predict_proba(X[3000:])
    exact = np.sort(robfcp.LAC()(model.predict_proba(held[0]), held[1]))
    differing = {}
    for level in (0.8, 0.9, 0.95, 0.99):
        theirs = SplitConformalClassifier(model, confidence_level=level, prefit=True)
        cells = theirs.conformalize(*held).predict_set(X[3000:])[1][:, :, 0]
        ours = Classifier(model, level).conformalize(*held)
        sets, edge = ours.predict_set(X[3000:]), ours.calibration_.threshold
        quantile = exact[ceil(level * 1001) - 1]
        edges = robfcp.Grid.default().edges
        assert edge == edges[np.searchsorted(edges, quantile)]
        scores = robfcp.LAC().all_labels(fresh)
        np.testing.assert_array_equal(sets & ~cells, (scores > quantile) & (scores <= edge))
        assert not (cells & ~sets).any()
        differing[level] = int((sets != cells).sum())
    assert differing[0.99] == 11


def sites(X, y, n_sites=10):
    return list(zip(np.array_split(X, n_sites), np.array_split(y, n_sites), strict=True))


@pytest.mark.parametrize("score", [None, robfcp.APS(), robfcp.RAPS(randomized=False), "saps"])
def test_classifier_covers_as_asked_on_honest_sites(score):
    conformal = Classifier(FITTED, 0.9, score=score, random_state=0)
    sets = conformal.conformalize(sites(X[600:1200], y[600:1200])).predict_set(X[1200:])
    assert 0.86 <= metrics.coverage(sets, y[1200:], classes=conformal.classes_) <= 0.99
    np.testing.assert_array_equal(conformal.predict(X[:5]), FITTED.predict(X[:5]))


def test_a_lying_site_is_found_by_name():
    named = {f"ward-{k}": part for k, part in enumerate(sites(X[600:1500], y[600:1500], 9))}
    named["ward-3"] = (named["ward-3"][0], np.roll(named["ward-3"][1], 1))
    conformal = Classifier(FITTED).conformalize(named)
    assert conformal.calibration_.flagged == ("ward-3",)


def test_regressor_intervals_cover_as_asked():
    X, y = load_diabetes(return_X_y=True)
    line = LinearRegression().fit(X[:150], y[:150])
    conformal = Regressor(line, [0.8, 0.9])
    ends = conformal.conformalize(sites(X[150:300], y[150:300], 3)).predict_interval(X[300:])
    assert ends.shape == (142, 2, 2)
    assert 0.72 <= metrics.interval_coverage(ends[:, :, 0], y[300:]) <= 0.95
    assert 0.82 <= metrics.interval_coverage(ends[:, :, 1], y[300:]) <= 0.99


def test_missing_labels_are_named_by_site_and_row_and_features_left_to_the_model():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(240, 4)), np.arange(200) % 4
    y = np.array(["mild", "grave", "dead"], dtype=object)[rng.integers(0, 3, 240)]
    holed, gaps = y[40:].copy(), X.copy()
    holed[50] = None
    gaps[100, 1] = np.nan  # a forest takes gaps in features, and its probabilities are whole
    forest = RandomForestClassifier(10, random_state=0)
    conformal = Classifier(forest).fit(X[:40], y[:40])
    with pytest.warns(UserWarning, match="left out: 2: labels: row 12 is missing"):
        conformal.conformalize(X[40:], holed, groups=site)
    with pytest.raises(robfcp.RobfcpError, match="groups: row 3 is missing"):
        conformal.conformalize(X[40:], y[40:], groups=np.where(np.arange(200) == 3, np.nan, site))
    assert conformal.conformalize(gaps[40:], y[40:], groups=site).calibration_.faulty == ()
    assert conformal.predict_set(gaps).shape == (240, 3)
    target = X[40:, 0].copy()
    target[5] = np.nan
    line = Regressor(LinearRegression()).fit(X[:40], X[:40, 0])
    with pytest.warns(UserWarning, match="left out: 1: targets: row 1 is NaN or infinite"):
        line.conformalize(X[40:], target, groups=site)
