"""Prediction sets for classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from robfcp._util.numbers import array, refuse_missing
from robfcp.errors import RobfcpError
from robfcp.estimators.base import FederatedConformal, ScoreAndParameter
from robfcp.estimators.sites import Site
from robfcp.reports import Report
from robfcp.scores import Rng, Score


class FederatedConformalClassifier(ScoreAndParameter, ClassifierMixin, FederatedConformal):  # type: ignore[misc]
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
    grid
        The bins all sites share; the score's own if None.
    defence
        "consensus", "band", "rob-fcp", "rob-fcp-released", "none", or a defence of your own.
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
        calibration = self._calibrated()
        sets = calibration.predict_set(
            self._model.predict_proba(X),
            self._generator(1) if rng is None else rng,
            non_empty=non_empty,
        )
        framed: NDArray[np.bool_] = self._framed(sets, [str(name) for name in self.classes_], X)
        return framed

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

    def _report(self, name: str, site: Site, score: Score, rng: np.random.Generator) -> Report:
        X, y = site
        columns = self._columns(y)
        return Report.from_scores(
            name,
            score(self._model.predict_proba(X), columns, rng),
            self.grid,
            score=score,
            labels=columns,
            classes=tuple(str(label) for label in self.classes_),
        )

    def _columns(self, y: ArrayLike) -> NDArray[np.intp]:
        """The column of each label."""
        labels = array("labels", y).ravel()
        refuse_missing("labels", labels)
        each, which = np.unique(labels, return_inverse=True)
        known = {label: column for column, label in enumerate(self.classes_.tolist())}
        strange = [label for label in each.tolist() if label not in known]
        if strange:
            raise RobfcpError(
                f"labels: {strange[0]!s:.40} was not seen in training; drop those samples"
            )
        return np.array([known[label] for label in each.tolist()], dtype=np.intp)[which.ravel()]
