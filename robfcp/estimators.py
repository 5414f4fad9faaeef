"""The scikit-learn shaped front: an estimator, its sites' calibration data, prediction sets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import Rng, as_array, reject_missing
from robfcp.binning import Binning
from robfcp.calibration import Calibration, calibrate
from robfcp.defense import Consensus, Defense
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, RejectedReport, default_client_names
from robfcp.guarantees import Guarantee
from robfcp.reports import Report, StratumKind
from robfcp.scores import Score, get_score

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "the scikit-learn front needs scikit-learn; install it with: pip install 'robfcp[sklearn]'"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FederatedConformalClassifier", "FederatedConformalRegressor"]


KINDS = ("default", "pandas", "polars")
ClientData = tuple[Any, Any]
ClientDataByName = Iterable[ClientData] | Mapping[str, ClientData]


def _split_clients(X: Any, y: Any, groups: ArrayLike | None) -> dict[str, ClientData]:
    """Each site's samples and targets by the site's name."""
    if y is not None:
        if groups is None:
            return {default_client_names(1, 1)[0]: (X, y)}
        site, target = as_array("groups", groups), as_array("y", y)
        if site.shape != (len(target),):
            raise RobfcpError(f"groups: shape {site.shape} is not ({len(target)},); give each site")
        reject_missing("groups", site)
        names = site.astype(str)
        held = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
        samples = X if hasattr(X, "shape") else as_array("X", X)
        samples = getattr(samples, "iloc", samples)
        return {name: (samples[rows], target[rows]) for name, rows in held.items()}
    if groups is not None:
        raise RobfcpError("groups: go with X and y; pass conformalize(X, y, groups=...)")
    if isinstance(X, Mapping):
        named = {str(name): part for name, part in X.items()}
    elif hasattr(X, "shape") or not isinstance(X, Iterable):
        raise RobfcpError("y: is missing; pass conformalize(X, y, groups=...) or pairs of both")
    else:
        parts = list(X)
        named = dict(
            zip(default_client_names(len(parts), len(str(len(parts)))), parts, strict=True)
        )
    if not named:
        raise RobfcpError("sites: there are none; pass [(X_1, y_1), ...]")
    for name, part in named.items():
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise RobfcpError(f"sites: {name} is no pair (X, y); pass its samples and targets")
    return named


class _FederatedConformal:
    """What the classifier and the regressor share.

    `score` is a parameter, as everywhere here, and scikit-learn's method `score(X, y)`: setting it
    sets the parameter; getting it gives the method.
    """

    _default_score = ""

    def __init__(
        self,
        estimator: Any,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        score: str | Score | None = None,
        binning: Binning | None = None,
        defense: str | Defense = Consensus.name,
        guarantee: Guarantee | None = None,
        by: StratumKind | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.score = score
        self.binning = binning
        self.defense = defense
        self.guarantee = guarantee
        self.by = by
        self.random_state = random_state

    @property
    def score(self) -> Any:
        """scikit-learn's method: mean accuracy of `predict`, or R2; see `metrics` for coverage."""
        return super().score  # type: ignore[misc]

    @score.setter
    def score(self, value: str | Score | None) -> None:
        self.__dict__["score"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, those of the estimator as estimator__name.

        Parameters
        ----------
        deep
            Whether to list the estimator's too.

        Returns
        -------
        dict
            What `set_params` and `clone` take.
        """
        found: dict[str, Any] = super().get_params(deep)  # type: ignore[misc]
        return {**found, "score": self.__dict__.get("score")}

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> Self:
        """Fit a copy of the wrapped estimator; not needed when it is fitted already.

        Parameters
        ----------
        X
            Training samples.
        y
            Their targets.
        **fit_params
            What the estimator's `fit` takes besides, sample_weight for instance.

        Returns
        -------
        self
            With `estimator_`. An earlier calibration is forgotten.
        """
        fitted = [clone(one).fit(X, y, **fit_params) for one in self._estimators]
        self.estimator_ = fitted if len(fitted) > 1 else fitted[0]
        self.__dict__.pop("calibration_", None)
        return self

    def conformalize(
        self,
        X: ClientDataByName | ArrayLike,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Calibrate on every site's held-out data.

        Parameters
        ----------
        X
            [(X_1, y_1), ...] or {name: (X, y)}; or the samples of all sites, with `y` and
            `groups`. Sites without names are called client-0, client-1, ...
        y
            The targets, where `X` are samples.
        groups
            Each sample's site, where `X` are samples; one site if None.

        Returns
        -------
        self
            With `calibration_`, a `Calibration`. A site whose data cannot be used is named in a
            warning and in `calibration_.faulty`; the others go on without it.

        Raises
        ------
        RobfcpError
            Where no site's data can be used.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> from sklearn.linear_model import LinearRegression
        >>> rng = np.random.default_rng(0)
        >>> x = rng.random((400, 1))
        >>> y = x[:, 0] + rng.normal(0, 0.1, 400)
        >>> site = np.array(["a", "b", "c", "training"] * 100)
        >>> own = site != "training"
        >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(x[~own], y[~own])
        >>> model.conformalize(x[own], y[own], groups=site[own]).calibration_.benign_clients
        ('a', 'b', 'c')
        """
        self._check_fitted()
        named = _split_clients(X, y, groups)
        usual = "cqr" if len(self._estimators) > 1 else self._default_score
        score = vars(self)["score"] or usual
        score = get_score(score) if isinstance(score, str) else score
        streams = self._generator(0).spawn(len(named))
        reports: list[Report] = []
        faults: list[RejectedReport] = []
        reason: Exception | None = None
        for (name, site), rng in zip(named.items(), streams, strict=True):
            try:
                reports.append(self._report(name, site, score, rng))
            except Exception as error:  # whatever one site's data does to the estimator
                reason, text = error, str(error).removeprefix(f"{name}: ")
                if not isinstance(error, RobfcpError):  # its own words are not passed on
                    text = f"the estimator does not take its samples ({type(error).__name__}); "
                    text += "check missing values and the number of columns"
                faults.append(RejectedReport(name, "data", f"{name}: {text}"))
        if not reports:
            raise RobfcpError(faults[0].reason) from reason
        for fault in faults:
            warnings.warn(f"left out: {fault.reason}", UserWarning, stacklevel=2)
        self.calibration_: Calibration = calibrate(
            Federation.from_reports(reports, rejected=faults),
            self.confidence_level,
            by=self.by,
            defense=self.defense,
            guarantee=self.guarantee,
        )
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The wrapped estimator's point predictions.

        Parameters
        ----------
        X
            Samples.

        Returns
        -------
        (n,) array
            As without conformal prediction.
        """
        check_is_fitted(self)
        return np.asarray(self._model.predict(X))

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what sets and intervals come as.

        Parameters
        ----------
        transform
            "pandas" or "polars" for frames with a column a class (or low and high), "default" for
            arrays, None to leave it as it is. scikit-learn's own `transform_output` counts where
            nothing was chosen.

        Returns
        -------
        self
            With the choice; `clone` keeps it.
        """
        if transform is not None:
            if transform not in KINDS:
                raise RobfcpError(f"transform: {transform!r} is unknown; use {', '.join(KINDS)}")
            self._sklearn_output_config = {"transform": transform}
        return self

    def __sklearn_is_fitted__(self) -> bool:
        if hasattr(self, "estimator_"):
            return True
        try:
            for one in self._estimators:
                check_is_fitted(one)
        except (NotFittedError, TypeError):
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        inner = getattr(self.estimator, "__sklearn_tags__", None)
        if inner is not None:
            tags.input_tags = inner().input_tags
        return tags

    @property
    def n_features_in_(self) -> int:
        """How many features the estimator was fitted on."""
        return int(self._model.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """The names of the features, where the estimator was fitted on a frame."""
        return np.asarray(self._model.feature_names_in_)

    @property
    def _estimators(self) -> Sequence[Any]:
        """The estimator given, or the two of a pair."""
        return self.estimator if isinstance(self.estimator, (tuple, list)) else [self.estimator]

    @property
    def _model(self) -> Any:
        """The estimator that predicts: the one fitted here, or the one given."""
        return getattr(self, "estimator_", self.estimator)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted; call fit, or pass a fitted estimator, "
                "and then conformalize"
            )

    def _calibrated(self) -> Calibration:
        """The calibration, or what to do to get one."""
        self._check_fitted()
        if not hasattr(self, "calibration_"):
            raise NotFittedError(
                f"this {type(self).__name__} is fitted but not calibrated; call conformalize with "
                "the sites' held-out data first"
            )
        return self.calibration_

    def _generator(self, use: int) -> np.random.Generator:
        """A generator from `random_state`, another one for each use."""
        state = self.random_state
        if state is None or isinstance(state, np.random.Generator):
            return np.random.default_rng(state)
        if isinstance(state, np.random.RandomState):
            state = int(state.randint(2**31))
        return np.random.default_rng([state, use])

    def _framed(self, values: NDArray[Any], names: Sequence[str], X: Any) -> Any:
        """The values as `set_output` chose; a column a name, or a name and a level."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform")
        kind = kind or get_config()["transform_output"]
        if kind == "default":
            return values
        columns = list(names)
        if values.ndim == 3:
            levels = [float(level.coverage) for level in self.calibration_.levels]
            columns = [f"{name} at {level:g}" for name in names for level in levels]
            values = values.reshape(len(values), -1)
        library = import_module(kind)
        if kind == "polars":
            return library.DataFrame(values, schema=columns)
        return library.DataFrame(values, columns=columns, index=getattr(X, "index", None))

    def _report(
        self, name: str, site: ClientData, score: Score, rng: np.random.Generator
    ) -> Report:
        X, y = site
        scores = score(self._model.predict(X), y, rng)
        return Report.from_scores(name, scores, self.binning, score=score)


class FederatedConformalClassifier(_FederatedConformal, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Prediction sets for a fitted classifier, calibrated on sites some of which may lie.

    Parameters
    ----------
    estimator
        A classifier with `predict_proba`, fitted or to be fitted by `fit`.
    confidence_level
        One level, or several.
    score
        A classification score or its name ("lac", "aps", "raps", "saps", "ordinal-aps"); LAC if
        None.
    binning
        The bins all sites share; the score's own if None.
    defense
        "consensus", "rob-fcp", "rob-fcp-released", "none", or a defence of your own.
    guarantee
        What the threshold is to hold whatever some sites do, as in `robfcp.calibrate`.
    by
        "class" for a threshold a class, as in `robfcp.calibrate`; None for one threshold.
    random_state
        A seed, for randomised scores; None draws anew every time.

    Attributes
    ----------
    estimator_
        The fitted copy of the estimator, once `fit` was called.
    calibration_
        The `Calibration`, once `conformalize` was called.
    classes_
        The classes the columns of a prediction set stand for.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=600)
    >>> x = rng.normal(4 * y, 1)[:, None]
    >>> sites = [(x[k::6], y[k::6]) for k in range(5)]
    >>> model = robfcp.FederatedConformalClassifier(LogisticRegression()).fit(x[5::6], y[5::6])
    >>> model.conformalize(sites).predict_set([[0.0], [4.0]])
    array([[ True, False],
           [False,  True]])
    """

    _default_score = "lac"

    def predict_set(
        self, X: ArrayLike, rng: Rng = None, *, non_empty: bool = False
    ) -> NDArray[np.bool_]:
        """(n, C) membership of each of `classes_`; (n, C, L) for several levels.

        Parameters
        ----------
        X
            Samples.
        rng
            A seed or generator, for randomised scores; made from `random_state` if None.
        non_empty
            Leave no set empty, as in `Calibration.predict_set`.

        Returns
        -------
        (n, C) or (n, C, L) array of bool
            L is the number of confidence levels. A frame where `set_output` asks for one.
        """
        calibration, drawn = self._calibrated(), self._generator(1) if rng is None else rng
        sets = calibration.predict_set(self._model.predict_proba(X), drawn, non_empty=non_empty)
        return self._framed(sets, [str(name) for name in self.classes_], X)

    @available_if(lambda self: hasattr(self._model, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The wrapped estimator's class probabilities.

        Parameters
        ----------
        X
            Samples.

        Returns
        -------
        (n, C) array
            As without conformal prediction.
        """
        check_is_fitted(self)
        return np.asarray(self._model.predict_proba(X))

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes the columns of a prediction set stand for."""
        return np.asarray(self._model.classes_)

    def _report(
        self, name: str, site: ClientData, score: Score, rng: np.random.Generator
    ) -> Report:
        X, y = site
        columns, names = self._columns(y), tuple(str(label) for label in self.classes_)
        scores = score(self._model.predict_proba(X), columns, rng)
        return Report.from_scores(
            name, scores, self.binning, score=score, labels=columns, classes=names
        )

    def _columns(self, y: ArrayLike) -> NDArray[np.intp]:
        """The column of each label."""
        labels = as_array("labels", y).ravel()
        reject_missing("labels", labels)
        known = {label: column for column, label in enumerate(self.classes_.tolist())}
        strange = [label for label in labels.tolist() if label not in known]
        if strange:
            raise RobfcpError(f"labels: {strange[0]!s:.40} was not seen in training; drop those")
        return np.array([known[label] for label in labels.tolist()], dtype=np.intp)


class _Quantiles:
    """A model of the lower and one of the upper quantile, as one that predicts both."""

    def __init__(self, low: Any, high: Any) -> None:
        self._models = low, high
        self.n_features_in_ = getattr(low, "n_features_in_", None)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n, 2) of them."""
        return np.column_stack([one.predict(X) for one in self._models])


class FederatedConformalRegressor(_FederatedConformal, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Prediction intervals for a fitted regressor, calibrated on sites some of which may lie.

    Parameters
    ----------
    estimator
        A regressor, fitted or to be fitted by `fit`; for the CQR score a pair of them, one of the
        lower and one of the upper quantile, or one whose `predict` returns both as (n, 2).
    score
        A regression score or its name ("absolute-residual", "cqr"); if None CQR of a pair, else
        AbsoluteResidual.
    confidence_level, binning, defense, guarantee, by
        As `FederatedConformalClassifier` takes them.
    random_state
        A seed, for scores of your own that draw random numbers.

    Attributes
    ----------
    estimator_
        The fitted copy of the estimator, once `fit` was called.
    calibration_
        The `Calibration`, once `conformalize` was called.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from sklearn.linear_model import LinearRegression
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((600, 1))
    >>> y = x[:, 0] + rng.normal(0, 0.1, 600)
    >>> sites = [(x[k::6], y[k::6]) for k in range(5)]
    >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(x[5::6], y[5::6])
    >>> model.conformalize(sites).predict_interval([[0.5]]).round(1)
    array([[0.3, 0.7]])
    """

    _default_score = "absolute-residual"

    @property
    def _model(self) -> Any:
        found = super()._model
        return _Quantiles(*found) if isinstance(found, (tuple, list)) else found

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> Self:
        return super().fit(X, y if y is None else column_or_1d(y, warn=True), **fit_params)

    def predict_interval(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n, 2) lower and upper ends; (n, 2, L) for several levels.

        Parameters
        ----------
        X
            Samples.

        Returns
        -------
        (n, 2) or (n, 2, L) array
            L is the number of confidence levels. A frame where `set_output` asks for one.
        """
        ends = self._calibrated().predict_interval(self._model.predict(X))
        return self._framed(ends, ["low", "high"], X)
