"""The scikit-learn shaped front: an estimator, its sites' calibration data, prediction sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "the scikit-learn front needs scikit-learn; install it with: pip install 'robfcp[sklearn]'"
    ) from error

from robfcp.calibration import Calibration, Guarantee, calibrate
from robfcp.defence import DEFAULT, Defence, Exclude
from robfcp.errors import RobfcpError
from robfcp.federation import numbered
from robfcp.grid import Grid
from robfcp.reports import By, Report
from robfcp.scores import LAC, AbsoluteResidual, Rng, Score

Site = tuple[ArrayLike, ArrayLike]


class _FederatedConformal(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    def __init__(
        self,
        estimator: Any,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        score: Score | None = None,
        grid: Grid | None = None,
        defence: str | Defence = DEFAULT,
        malicious: int | str = "estimate",
        exclude: Exclude = "outstanding",
        guarantee: Guarantee | None = None,
        heterogeneity: float | None = None,
        by: By | None = None,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.confidence_level = confidence_level
        self.score = score
        self.grid = grid
        self.defence = defence
        self.malicious = malicious
        self.exclude = exclude
        self.guarantee = guarantee
        self.heterogeneity = heterogeneity
        self.by = by
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> _FederatedConformal:
        """Fit the wrapped estimator; not needed when it is fitted already.

        Parameters
        ----------
        X
            Training samples.
        y
            Their targets.

        Returns
        -------
        self
            With the estimator fitted.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> from sklearn.linear_model import LinearRegression
        >>> x = np.arange(8.0)[:, None]
        >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(x, 2 * x[:, 0])
        >>> model.predict([[10.0]]).round(6)
        array([20.])
        """
        self.estimator.fit(X, y)
        return self

    def conformalize(self, sites: Iterable[Site] | Mapping[str, Site]) -> _FederatedConformal:
        """Calibrate on every site's held-out data [(X_1, y_1), ...] or {name: (X, y)}.

        Parameters
        ----------
        sites
            Every site's samples and targets, which the estimator was not trained on; called
            client-0, client-1, ... where they come without names.

        Returns
        -------
        self
            With `calibration_`, a `Calibration`.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> from sklearn.linear_model import LinearRegression
        >>> rng = np.random.default_rng(0)
        >>> x = rng.random((400, 1))
        >>> y = x[:, 0] + rng.normal(0, 0.1, 400)
        >>> sites = {name: (x[k::4], y[k::4]) for k, name in enumerate("abc")}
        >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(x[3::4], y[3::4])
        >>> model.conformalize(sites).calibration_.trusted
        ('a', 'b', 'c')
        """
        check_is_fitted(self.estimator)
        if isinstance(sites, Mapping):
            named = dict(sites)
        else:
            parts = list(sites)
            named = dict(zip(numbered(len(parts), len(str(len(parts)))), parts, strict=True))
        if not named:
            raise RobfcpError("sites: there are none; pass [(X_1, y_1), ...]")
        score = self._score()
        rng = np.random.default_rng(self.random_state)
        reports = [
            Report.from_scores(
                name, self._scores(score, X, y, rng), self.grid, score=score, **self._strata(y)
            )
            for name, (X, y) in named.items()
        ]
        self.calibration_: Calibration = calibrate(
            reports,
            confidence_level=self.confidence_level,
            defence=self.defence,
            malicious=cast(Any, self.malicious),
            exclude=self.exclude,
            guarantee=self.guarantee,
            heterogeneity=self.heterogeneity,
            by=self.by,
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

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> from sklearn.linear_model import LinearRegression
        >>> x = np.arange(8.0)[:, None]
        >>> model = robfcp.FederatedConformalRegressor(LinearRegression()).fit(x, 2 * x[:, 0])
        >>> model.predict([[10.0]]).round(6)
        array([20.])
        """
        return np.asarray(self.estimator.predict(X))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibration_")

    def _strata(self, y: ArrayLike) -> dict[str, Any]:
        return {}

    def _score(self) -> Score:
        raise TypeError("use FederatedConformalClassifier or FederatedConformalRegressor")

    def _scores(
        self, score: Score, X: ArrayLike, y: ArrayLike, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        return score(self.estimator.predict(X), y, rng)


class FederatedConformalClassifier(ClassifierMixin, _FederatedConformal):  # type: ignore[misc]
    """Prediction sets for a fitted classifier, calibrated on sites some of which may lie.

    Parameters
    ----------
    estimator
        A classifier with `predict_proba`, fitted or to be fitted by `fit`.
    confidence_level
        One level, or several.
    score
        A classification score; LAC if None.
    grid
        The bins all sites share; the score's own if None.
    defence
        "band", "rob-fcp", "rob-fcp-released", "none", or a defence of your own.
    malicious
        How many sites may lie, or "estimate".
    exclude
        "outstanding" leaves out only sites that stand out, "exactly" as many as may lie.
    guarantee
        None, "marginal", "pac" or "pac-homogeneous", as in `robfcp.calibrate`.
    heterogeneity
        A stated bound on how far honest sites differ, as in `robfcp.calibrate`.
    by
        "class" for a threshold a class, as in `robfcp.calibrate`; None for one threshold.
    random_state
        A seed, for randomised scores.

    Attributes
    ----------
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

    def predict_set(self, X: ArrayLike, rng: Rng = None) -> NDArray[np.bool_]:
        """(n, C) membership of each of `classes_`; (n, C, L) for several levels.

        Parameters
        ----------
        X
            Samples.
        rng
            A seed or generator, for randomised scores; made from `random_state` if None.

        Returns
        -------
        (n, C) or (n, C, L) array of bool
            L is the number of confidence levels.

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
        check_is_fitted(self)
        if rng is None and self.random_state is not None:
            rng = np.random.default_rng([self.random_state, 1])
        return self.calibration_.predict_set(self.estimator.predict_proba(X), rng)

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes the columns of a prediction set stand for."""
        return np.asarray(self.estimator.classes_)

    def _score(self) -> Score:
        return LAC() if self.score is None else self.score

    def _scores(
        self, score: Score, X: ArrayLike, y: ArrayLike, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        return score(self.estimator.predict_proba(X), self._columns(y), rng)

    def _columns(self, y: ArrayLike) -> NDArray[np.intp]:
        label = np.asarray(y)
        column = np.searchsorted(self.classes_, label)
        column = np.minimum(column, len(self.classes_) - 1)
        if not np.array_equal(self.classes_[column], label):
            raise RobfcpError("labels: some were not seen in training; drop those samples")
        return column

    def _strata(self, y: ArrayLike) -> dict[str, Any]:
        names = tuple(str(name) for name in self.classes_)
        return {"labels": self._columns(y), "classes": names}


class FederatedConformalRegressor(RegressorMixin, _FederatedConformal):  # type: ignore[misc]
    """Prediction intervals for a fitted regressor, calibrated on sites some of which may lie.

    For the CQR score the estimator's `predict` must return (n, 2) lower and upper quantiles.

    Parameters
    ----------
    estimator
        A regressor, fitted or to be fitted by `fit`.
    confidence_level
        One level, or several.
    score
        A regression score; AbsoluteResidual if None.
    grid
        The bins all sites share; the score's own if None.
    defence
        "band", "rob-fcp", "rob-fcp-released", "none", or a defence of your own.
    malicious
        How many sites may lie, or "estimate".
    exclude
        "outstanding" leaves out only sites that stand out, "exactly" as many as may lie.
    guarantee
        None, "marginal", "pac" or "pac-homogeneous", as in `robfcp.calibrate`.
    heterogeneity
        A stated bound on how far honest sites differ, as in `robfcp.calibrate`.
    by
        "class" for a threshold a class, as in `robfcp.calibrate`; None for one threshold.
    random_state
        A seed, for randomised scores.

    Attributes
    ----------
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

    def predict_interval(self, X: ArrayLike) -> NDArray[np.float64]:
        """(n, 2) lower and upper ends; (n, 2, L) for several levels.

        Parameters
        ----------
        X
            Samples.

        Returns
        -------
        (n, 2) or (n, 2, L) array
            L is the number of confidence levels.

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
        check_is_fitted(self)
        return self.calibration_.predict_interval(self.estimator.predict(X))

    def _score(self) -> Score:
        return AbsoluteResidual() if self.score is None else self.score
