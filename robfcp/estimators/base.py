"""What the classifier and the regressor share: fitting, calibrating, routing, output."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted

from robfcp.calibration import Calibration, Guarantee, calibrate
from robfcp.defence import DEFAULT, Defence, Exclude
from robfcp.errors import RobfcpError
from robfcp.estimators.frames import as_frame, check_kind
from robfcp.estimators.sites import Site, Sites, named_sites
from robfcp.federation import Fault, Federation
from robfcp.grid import Grid
from robfcp.reports import By, Report
from robfcp.scores import Score, chosen_score


class ScoreAndParameter:
    """`score` is a parameter, as everywhere here, and scikit-learn's method `score(X, y)`.

    Setting it sets the parameter; getting it gives the method.
    """

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


class FederatedConformal(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    _default_score = ""

    def __init__(
        self,
        estimator: Any,
        confidence_level: float | Sequence[float] = 0.9,
        *,
        score: str | Score | None = None,
        grid: Grid | None = None,
        defence: str | Defence = DEFAULT,
        malicious: int | str = "estimate",
        exclude: Exclude = "outstanding",
        guarantee: Guarantee | None = None,
        heterogeneity: float | None = None,
        by: By | None = None,
        random_state: Any = None,
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

    def fit(self, X: ArrayLike, y: ArrayLike, **fit_params: Any) -> FederatedConformal:
        """Fit a copy of the wrapped estimator; not needed when it is fitted already.

        Parameters
        ----------
        X
            Training samples.
        y
            Their targets.
        **fit_params
            What the estimator's `fit` takes besides, sample_weight for instance; routed by
            request where scikit-learn's metadata routing is on.

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
        routed = fit_params
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **fit_params).estimator.fit
        self.estimator_ = clone(self.estimator).fit(X, y, **routed)
        self.__dict__.pop("calibration_", None)
        return self

    def conformalize(
        self, X: Sites | ArrayLike, y: ArrayLike | None = None, *, groups: ArrayLike | None = None
    ) -> FederatedConformal:
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
        >>> model.conformalize(x[own], y[own], groups=site[own]).calibration_.trusted
        ('a', 'b', 'c')
        """
        self._check_fitted()
        named = named_sites(X, y, groups)
        score = chosen_score(vars(self)["score"], self._default_score)
        streams = self._generator(0).spawn(len(named))
        reports: list[Report] = []
        faults: list[Fault] = []
        reason: Exception | None = None
        for (name, site), rng in zip(named.items(), streams, strict=True):
            try:
                reports.append(self._report(name, site, score, rng))
            except Exception as error:  # whatever one site's data does to the estimator
                faults.append(_fault(name, error))
                reason = error
        if not reports:
            raise RobfcpError(faults[0].reason) from reason
        for fault in faults:
            warnings.warn(f"left out: {fault.reason}", UserWarning, stacklevel=2)
        self.calibration_: Calibration = calibrate(
            Federation.from_reports(reports, faults=faults),
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
        check_is_fitted(self)
        return np.asarray(self._model.predict(X))

    def set_output(self, *, transform: str | None = None) -> FederatedConformal:
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
        if check_kind(transform) is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def get_metadata_routing(self) -> Any:
        """Where scikit-learn sends what `fit` gets besides X and y: to the estimator.

        Returns
        -------
        MetadataRouter
            Requests are set on the estimator: `set_fit_request(sample_weight=True)`.
        """
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_is_fitted__(self) -> bool:
        if hasattr(self, "estimator_"):
            return True
        try:
            check_is_fitted(self.estimator)
        except (NotFittedError, TypeError):
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
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
        """The values as `set_output` chose."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform")
        levels = [float(level.confidence_level) for level in self.calibration_.levels]
        return as_frame(values, names, levels, kind, X)

    def _report(self, name: str, site: Site, score: Score, rng: np.random.Generator) -> Report:
        X, y = site
        scores = score(self._model.predict(X), y, rng)
        return Report.from_scores(name, scores, self.grid, score=score)


def _fault(name: str, error: Exception) -> Fault:
    """What is wrong with a site's data, in our words; the estimator's own are not passed on."""
    if isinstance(error, RobfcpError):
        text = str(error)
        return Fault(name, "data", text if text.startswith(f"{name}: ") else f"{name}: {text}")
    return Fault(
        name,
        "data",
        f"{name}: the estimator does not take its samples ({type(error).__name__}); check missing "
        "values and the number of columns",
    )
