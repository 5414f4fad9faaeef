"""Prediction intervals for regressors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from robfcp.estimators.base import FederatedConformal, ScoreAndParameter


class FederatedConformalRegressor(ScoreAndParameter, RegressorMixin, FederatedConformal):  # type: ignore[misc]
    """Prediction intervals for a fitted regressor, calibrated on sites some of which may lie.

    For the CQR score the estimator's `predict` must return (n, 2) lower and upper quantiles.

    Parameters
    ----------
    estimator
        A regressor, fitted or to be fitted by `fit`.
    score
        A regression score or its name ("absolute-residual", "cqr"); AbsoluteResidual if None.
    confidence_level, grid, defence, malicious, exclude, guarantee, heterogeneity, by
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

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> FederatedConformalRegressor:
        """Fit a copy of the wrapped estimator, on one target a sample.

        Parameters
        ----------
        X
            Training samples.
        y
            (n,) their targets.
        **fit_params
            What the estimator's `fit` takes besides; routed by request where metadata routing
            is on.

        Returns
        -------
        self
            With `estimator_`. An earlier calibration is forgotten.

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
        super().fit(X, y if y is None else column_or_1d(y, warn=True), **fit_params)
        return self

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
        ends = self._calibrated().predict_interval(self._model.predict(X))
        framed: NDArray[np.float64] = self._framed(ends, ["low", "high"], X)
        return framed
