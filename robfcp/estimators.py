"""The scikit-learn shaped front: an estimator, its sites' calibration data, prediction sets."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import Rng, as_array, parse_level, reject_missing
from robfcp.binning import Binning
from robfcp.calibration import Calibration, calibrate
from robfcp.defense import Consensus, Defense
from robfcp.errors import RobfcpError, RobfcpWarning
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


OUTPUT_KINDS = ("default", "pandas", "polars")
ClientData = tuple[Any, Any]
ClientDataByName = Iterable[ClientData] | Mapping[str, ClientData]


def _split_clients(X: Any, y: Any, groups: ArrayLike | None) -> dict[str, ClientData]:
    """Return each client's samples and targets by the client's name."""
    if y is not None:
        return _split_samples(X, y, groups)
    if groups is not None:
        raise RobfcpError("groups: go with X and y; pass conformalize(X, y, groups=...)")

    data_by_client = _name_clients(X)
    if not data_by_client:
        raise RobfcpError("X: there are no clients; pass [(X_1, y_1), ...]")
    for name, pair in data_by_client.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RobfcpError(f"X: {name} is not a pair (X, y); pass its samples and targets")
    return data_by_client


def _split_samples(X: Any, y: Any, groups: ArrayLike | None) -> dict[str, ClientData]:
    """Return the samples and targets of each group; of one client if there are no groups."""
    if groups is None:
        (name,) = default_client_names(1, 1)
        return {name: (X, y)}

    clients = as_array("groups", groups)
    targets = as_array("y", y)
    if clients.shape != (len(targets),):
        raise RobfcpError(f"groups: shape {clients.shape} is not ({len(targets)},); give each site")
    reject_missing("groups", clients)

    samples = X if hasattr(X, "shape") else as_array("X", X)
    samples = getattr(samples, "iloc", samples)  # of a frame: rows by position
    names = clients.astype(str)
    data_by_client = {}
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        data_by_client[name] = (samples[rows], targets[rows])
    return data_by_client


def _name_clients(data: Any) -> dict[str, Any]:
    """Return what is given for each client by its name; clients without one are numbered."""
    if isinstance(data, Mapping):
        return {str(name): pair for name, pair in data.items()}
    if hasattr(data, "shape") or not isinstance(data, Iterable):
        raise RobfcpError("y: is missing; pass conformalize(X, y, groups=...) or pairs of both")
    pairs = list(data)
    names = default_client_names(len(pairs), len(str(len(pairs))))
    return dict(zip(names, pairs, strict=True))


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
        self._score_parameter = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, those of the estimator as estimator__name.

        Parameters
        ----------
        deep : bool
            Whether to list the estimator's too.

        Returns
        -------
        dict
            What `set_params` and `clone` take.
        """
        params: dict[str, Any] = super().get_params(deep)  # type: ignore[misc]
        params["score"] = self._score_parameter  # there it is the method
        return params

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> Self:
        """Fit a copy of the wrapped estimator; not needed when it is fitted already.

        Parameters
        ----------
        X : array_like
            Training samples.
        y : array_like
            Their targets.
        **fit_params
            What the estimator's `fit` takes besides, sample_weight for instance.

        Returns
        -------
        self
            With `estimator_`. An earlier calibration is forgotten.
        """
        fitted = [clone(estimator).fit(X, y, **fit_params) for estimator in self._estimators]
        self.estimator_ = fitted if len(fitted) > 1 else fitted[0]
        if hasattr(self, "calibration_"):
            del self.calibration_
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
        X : ClientDataByName or array_like
            [(X_1, y_1), ...] or {name: (X, y)}; or the samples of all sites, with `y` and
            `groups`. Sites without names are called client-0, client-1, ...
        y : array_like, optional
            The targets, where `X` are samples.
        groups : array_like, optional
            Each sample's site, where `X` are samples; one site if None.

        Returns
        -------
        self
            With `calibration_`, a `Calibration`. A site whose data cannot be used is named in a
            warning and in `calibration_.rejected_reports`; the others go on without it.

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
        >>> is_calibration = site != "training"
        >>> training_data = x[~is_calibration], y[~is_calibration]
        >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(*training_data)
        >>> calibration_data = x[is_calibration], y[is_calibration]
        >>> model.conformalize(*calibration_data, groups=site[is_calibration])  # doctest: +ELLIPSIS
        FederatedConformalRegressor(...)
        >>> model.calibration_.benign_clients
        ('a', 'b', 'c')
        """
        self._check_fitted()
        for level in np.ravel(self.confidence_level):
            parse_level(level, "confidence_level")
        data_by_client = _split_clients(X, y, groups)
        score = self._resolve_score()
        generators = self._generator(0).spawn(len(data_by_client))

        reports: list[Report] = []
        rejections: list[RejectedReport] = []
        last_error: Exception | None = None
        for (name, data), rng in zip(data_by_client.items(), generators, strict=True):
            try:
                reports.append(self._report(name, data, score, rng))
            except Exception as error:  # whatever one client's data does to the estimator
                last_error = error
                reason = f"{name}: {_error_text(name, error)}"
                rejections.append(RejectedReport(name, "data", reason))
        if not reports:
            raise RobfcpError(rejections[0].reason) from last_error
        for rejection in rejections:
            warnings.warn(f"left out: {rejection.reason}", RobfcpWarning, stacklevel=2)

        self.calibration_: Calibration = calibrate(
            Federation.from_reports(reports, rejected=rejections),
            coverage=self.confidence_level,
            by=self.by,
            defense=self.defense,
            guarantee=self.guarantee,
        )
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the wrapped estimator's point predictions.

        Parameters
        ----------
        X : array_like
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
        transform : str, optional
            "pandas" or "polars" for frames with a column a class (or low and high), "default" for
            arrays, None to leave it as it is. scikit-learn's own `transform_output` counts where
            nothing was chosen.

        Returns
        -------
        self
            With the choice; `clone` keeps it.
        """
        if transform is not None:
            if transform not in OUTPUT_KINDS:
                containers = ", ".join(OUTPUT_KINDS)
                raise RobfcpError(f"transform: {transform!r} is unknown; use {containers}")
            self._sklearn_output_config = {"transform": transform}
        return self

    def __sklearn_is_fitted__(self) -> bool:
        if hasattr(self, "estimator_"):
            return True
        try:
            for estimator in self._estimators:
                check_is_fitted(estimator)
        except (NotFittedError, TypeError):
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags_of_estimator = getattr(self.estimator, "__sklearn_tags__", None)
        if tags_of_estimator is not None:
            tags.input_tags = tags_of_estimator().input_tags
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
        if isinstance(self.estimator, (tuple, list)):
            return self.estimator
        return [self.estimator]

    @property
    def _model(self) -> Any:
        """The estimator that predicts: the one fitted here, or the one given."""
        return getattr(self, "estimator_", self.estimator)

    def _resolve_score(self) -> Score:
        """Return the score that was given or named, else the one that suits the estimator."""
        score = self._score_parameter
        if not score:
            score = "cqr" if len(self._estimators) > 1 else self._default_score
        return get_score(score) if isinstance(score, str) else score

    def _check_fitted(self) -> None:
        """Refuse an estimator that is not fitted."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted; call fit, or pass a fitted estimator, "
                "and then conformalize"
            )

    def _calibrated(self) -> Calibration:
        """Return the calibration; where there is none, say what to do to get one."""
        self._check_fitted()
        if not hasattr(self, "calibration_"):
            raise NotFittedError(
                f"this {type(self).__name__} is fitted but not calibrated; call conformalize with "
                "the sites' held-out data first"
            )
        return self.calibration_

    def _generator(self, purpose: int) -> np.random.Generator:
        """Return a generator from `random_state`, another one for each purpose."""
        seed = self.random_state
        if seed is None or isinstance(seed, np.random.Generator):
            return np.random.default_rng(seed)
        if isinstance(seed, np.random.RandomState):
            seed = int(seed.randint(2**31))
        return np.random.default_rng([seed, purpose])

    def _as_frame(self, values: NDArray[Any], names: Sequence[str], X: Any) -> Any:
        """Return values as `set_output` chose, with a column a name, or a name and a level."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform")
        kind = kind or get_config()["transform_output"]
        if kind == "default":
            return values

        columns = list(names)
        has_several_levels = values.ndim == 3
        if has_several_levels:
            levels = [float(level.coverage) for level in self.calibration_.levels]
            columns = [f"{name} at {level:g}" for name in names for level in levels]
            values = values.reshape(len(values), -1)

        library = import_module(kind)
        if kind == "polars":
            return library.DataFrame(values, schema=columns)
        return library.DataFrame(values, columns=columns, index=getattr(X, "index", None))

    def _report(
        self, name: str, data: ClientData, score: Score, rng: np.random.Generator
    ) -> Report:
        """Return the report of one client."""
        X, y = data
        scores = score(self._model.predict(X), y, rng)
        return Report.from_scores(name, scores, self.binning, score=score)


def _error_text(client: str, error: Exception) -> str:
    """Return why a client's data cannot be used; the words of another library are not passed on."""
    if isinstance(error, RobfcpError):
        return str(error).removeprefix(f"{client}: ")
    return (
        f"the estimator does not take its samples ({type(error).__name__}); "
        "check missing values and the number of columns"
    )


def _has_probabilities(classifier: FederatedConformalClassifier) -> bool:
    """Return whether the wrapped estimator predicts class probabilities."""
    return hasattr(classifier._model, "predict_proba")


class FederatedConformalClassifier(_FederatedConformal, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Prediction sets for a fitted classifier, calibrated on sites some of which may lie.

    Parameters
    ----------
    estimator : estimator, or sequence of two
        A classifier with `predict_proba`, fitted or to be fitted by `fit`.
    confidence_level : float or sequence of float, default=0.9
        One level, or several.
    score : str or Score, optional
        A classification score or its name ("lac", "aps", "raps", "saps", "ordinal-aps"); LAC if
        None.
    binning : Binning, optional
        The bins all sites share; the score's own if None.
    defense : str or Defense, default="consensus"
        "consensus", "rob-fcp", "rob-fcp-released", "none", or a defense of your own.
    guarantee : Guarantee, optional
        What the threshold is to hold whatever some sites do, as in `robfcp.calibrate`.
    by : str or mapping of str to str, optional
        "class" for a threshold a class, as in `robfcp.calibrate`; None for one threshold.
    random_state : int, Generator or None
        A seed, for randomized scores; None draws anew every time.

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
        """Return (n, C) membership of each of `classes_`; (n, C, L) for several levels.

        Parameters
        ----------
        X : array_like
            Samples.
        rng : int, Generator or None
            A seed or generator, for randomized scores; made from `random_state` if None.
        non_empty : bool
            Leave no set empty, as in `Calibration.predict_set`.

        Returns
        -------
        (n, C) or (n, C, L) array of bool
            L is the number of confidence levels. A frame where `set_output` asks for one.
        """
        calibration = self._calibrated()
        if rng is None:
            rng = self._generator(1)
        probabilities = self._model.predict_proba(X)
        sets = calibration.predict_set(probabilities, rng, non_empty=non_empty)
        return self._as_frame(sets, [str(name) for name in self.classes_], X)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the wrapped estimator's class probabilities.

        Parameters
        ----------
        X : array_like
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
        self, name: str, data: ClientData, score: Score, rng: np.random.Generator
    ) -> Report:
        """Return the report of one client, with the names of the classes."""
        X, y = data
        columns = self._columns(y)
        classes = tuple(str(label) for label in self.classes_)
        scores = score(self._model.predict_proba(X), columns, rng)
        return Report.from_scores(
            name, scores, self.binning, score=score, labels=columns, classes=classes
        )

    def _columns(self, y: ArrayLike) -> NDArray[np.intp]:
        """Return (n,) the column of each label."""
        labels = as_array("labels", y).ravel()
        reject_missing("labels", labels)
        column_of_class = {label: column for column, label in enumerate(self.classes_.tolist())}
        columns = []
        for label in labels.tolist():
            if label not in column_of_class:
                raise RobfcpError(f"labels: {label!s:.40} was not seen in training; drop those")
            columns.append(column_of_class[label])
        return np.array(columns, dtype=np.intp)


class _Quantiles:
    """A model of the lower and one of the upper quantile, as one that predicts both."""

    def __init__(self, low: Any, high: Any) -> None:
        self._models = (low, high)
        self.n_features_in_ = getattr(low, "n_features_in_", None)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n, 2) the lower and the upper quantile of each sample."""
        return np.column_stack([model.predict(X) for model in self._models])


class FederatedConformalRegressor(_FederatedConformal, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Prediction intervals for a fitted regressor, calibrated on sites some of which may lie.

    Parameters
    ----------
    estimator : estimator, or sequence of two
        A regressor, fitted or to be fitted by `fit`; for the CQR score a pair of them, one of the
        lower and one of the upper quantile, or one whose `predict` returns both as (n, 2).
    score : str or Score, optional
        A regression score or its name ("absolute-residual", "cqr"); if None CQR of a pair, else
        AbsoluteResidual.
    confidence_level, binning, defense, guarantee, by
        As `FederatedConformalClassifier` takes them.
    random_state : int, Generator or None
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
        """The estimator that predicts; of a pair both as one."""
        model = super()._model
        if isinstance(model, (tuple, list)):
            return _Quantiles(*model)
        return model

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> Self:
        targets = y if y is None else column_or_1d(y, warn=True)
        return super().fit(X, targets, **fit_params)

    def predict_interval(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n, 2) lower and upper bounds; (n, 2, L) for several levels.

        Parameters
        ----------
        X : array_like
            Samples.

        Returns
        -------
        (n, 2) or (n, 2, L) array
            L is the number of confidence levels. A frame where `set_output` asks for one.
        """
        intervals = self._calibrated().predict_interval(self._model.predict(X))
        return self._as_frame(intervals, ["low", "high"], X)
