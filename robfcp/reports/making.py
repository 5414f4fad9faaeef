"""How reports are made at a site: from scores, from losses, from predictions of several labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array, floats
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports.checks import check_client, check_grid, check_score
from robfcp.reports.disclosure import Exact, check_privacy, disclosure_of
from robfcp.reports.sketches import sketch
from robfcp.reports.strata import Strata
from robfcp.scores import (
    RISKS,
    MultilabelRisk,
    Risk,
    Score,
    gains_of_losses,
    known_risk,
    lambda_grid,
)

R = TypeVar("R", bound="Made")
Gains = tuple[NDArray[np.int64], int]


class Made:
    """What a report can be made from; the report itself checks what comes of it."""

    if TYPE_CHECKING:  # the report's own

        def __init__(self, **fields: Any) -> None: ...

    @classmethod
    def from_scores(
        cls: type[R],
        client: str,
        scores: ArrayLike,
        grid: Grid | None = None,
        *,
        score: Score | None = None,
        labels: ArrayLike | None = None,
        classes: Sequence[str] | int | None = None,
        groups: ArrayLike | None = None,
        label_scores: ArrayLike | None = None,
        least: int = 1,
        bins_per_sample: float | None = None,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patients: ArrayLike | None = None,
    ) -> R:
        """The report of a client's calibration scores, on the score's own grid if none is given.

        Parameters
        ----------
        client
            The client's name.
        scores
            (n,) nonconformity scores of its calibration samples. With `privacy` those outside the
            grid count in its end bins and NaN in the top one: nothing shows by a refusal.
        grid
            The bins all clients share; that of the score, or the default grid, if None.
        score
            What the scores are; with it a calibration can predict by itself.
        labels
            (n,) the true labels, as class numbers or names: the report then keeps counts by class.
        classes
            The classes' names in the order of the columns, or their number; needed with `labels`.
            With `groups` the groups there are; with `privacy` they must be stated, since which
            ones occur is data.
        groups
            (n,) another grouping (scanner, age band, ...) in place of labels.
        label_scores
            (n, C) the scores of all labels, as `score.all_labels` gives them: the report then also
            tells how large sets are at every threshold; not with `privacy`.
        least
            Classes or groups with fewer samples are merged into one more, "(other)"; not with
            `privacy`, since which ones are merged is data.
        bins_per_sample
            Refuses a grid with more bins a sample, which would show single scores nearly as they
            are; noise hides them anyway.
        round
            The name of the round; the server may refuse others.
        model
            The name or digest of the model; the server may refuse others.
        privacy
            Adds noise to the counts (extra: privacy); the grid should then be a coarse one fixed
            before the round, see `robfcp.recommend_grid`.
        patients
            (n,) whose sample each score is; refused if somebody has more than privacy states.

        Returns
        -------
        Report
            Counts only: the scores themselves stay with the client.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9], robfcp.Grid.uniform(4))
        >>> report.counts
        array([2, 0, 0, 1])
        """
        check_client(client)
        check_score(client, score)
        if grid is None:
            grid = Grid.default() if score is None else score.default_grid()
        check_grid(client, grid)
        check_privacy(client, privacy)
        how = disclosure_of(privacy)
        try:
            scores = array("scores", scores)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
        if bins_per_sample is not None:
            how.check_fineness(client, scores, grid, bins_per_sample)
        try:
            values = how.values(scores, grid)
            strata = _strata(
                values,
                grid=grid,
                labels=labels,
                classes=classes,
                groups=groups,
                least=least,
                how=how,
            )
            counts = sketch(values, grid) if strata is None else strata.pooled
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
        how.check_patients(client, len(np.atleast_1d(scores)), patients)
        if label_scores is not None:
            how.check_set_sizes(client)
        size: Any = how.stated(int(counts.sum()))
        shown: Any = None  # the sums of the counts by class, where there are these
        if strata is None:
            shown = how.shown(counts)
        else:
            strata = how.shown_strata(strata)
        return cls(
            client=client,
            counts=shown,
            grid=grid,
            score=score,
            round=round,
            model=model,
            n_samples=size,
            privacy=privacy,
            strata=strata,
            set_sizes=_set_sizes(client, label_scores, int(counts.sum()), grid),
        )

    @classmethod
    def from_losses(
        cls: type[R],
        client: str,
        losses: ArrayLike,
        lambdas: ArrayLike,
        *,
        risk: str | Risk,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patients: ArrayLike | None = None,
    ) -> R:
        """The report of losses that fall as lambda rises: by how much they fall at each lambda.

        Parameters
        ----------
        losses
            (n, L) loss of every sample at every lambda, falling along each row.
        lambdas
            (L,) rising; beyond the last one every label is taken.
        risk
            The loss by name, or a `Risk` that states its bound.
        privacy
            Adds noise; one sample moves the falls by at most twice the bound.
        client, round, model, patients
            As `from_scores` takes them.

        Returns
        -------
        Report
            Whole parts of the bound, so that sums are exact.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> losses = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]])
        >>> robfcp.Report.from_losses("a", losses, [0.1, 0.5, 0.9], risk="fnr").n_samples
        2
        """
        kind = known_risk(risk, disclosure_of(privacy).resolution)
        grid = lambda_grid(lambdas)
        gains, number = _named(client, lambda: gains_of_losses(losses, grid.n_bins - 1, kind))
        context = {"client": client, "grid": grid, "round": round, "model": model}
        return cls(**context, **_shown(client, gains, number, kind, privacy, patients))

    @classmethod
    def from_multilabel(
        cls: type[R],
        client: str,
        probabilities: ArrayLike,
        labels: ArrayLike,
        grid: Grid | None = None,
        *,
        risk: str | MultilabelRisk = "fnr",
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patients: ArrayLike | None = None,
    ) -> R:
        """The report of multi-label predictions: the share of true labels missed, at every lambda.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1]; masks of pixels may have more axes.
        labels
            As many true labels, 0 or 1.
        grid
            The lambdas; fine ones on [0, 1] if none is given.
        risk
            "fnr", "miss-rate", or a `MultilabelRisk` with weights.
        client, round, model, privacy, patients
            As `from_scores` takes them.

        Returns
        -------
        Report
            To be calibrated with `calibrate(reports, risk=0.1)`.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> p, y = np.array([[0.9, 0.2], [0.6, 0.7]]), np.array([[1, 0], [1, 1]])
        >>> robfcp.Report.from_multilabel("a", p, y).risk.name
        'fnr'
        """
        rule = RISKS.get(risk) if isinstance(risk, str) else risk
        if not isinstance(rule, MultilabelRisk):
            raise RobfcpError(f"risk: {risk!r} is unknown; use {', '.join(RISKS)} or from_losses")
        kind = rule.risk(disclosure_of(privacy).resolution)
        grid = Grid.default() if grid is None else grid
        check_grid(client, grid)
        gains, number = _named(client, lambda: rule.gains(probabilities, labels, grid, kind))
        context = {"client": client, "grid": grid, "round": round, "model": model}
        return cls(**context, **_shown(client, gains, number, kind, privacy, patients))


def _set_sizes(
    client: str, label_scores: ArrayLike | None, n_samples: int, grid: Grid
) -> NDArray[np.int64] | None:
    """The scores of all labels as counts on the grid."""
    if label_scores is None:
        return None
    values = floats("label_scores", label_scores)
    if values.ndim != 2 or len(values) != n_samples:
        raise RobfcpError(
            f"{client}: label_scores: need (n, C) scores of {n_samples} samples; "
            "pass score.all_labels(probabilities)"
        )
    try:
        return sketch(values.ravel(), grid)
    except RobfcpError as error:
        raise RobfcpError(f"{client}: label_scores: {error}") from error


def _named(client: str, make: Callable[[], Gains]) -> Gains:
    """What `make` returns; a refusal names the client."""
    try:
        return make()
    except RobfcpError as error:
        raise RobfcpError(f"{client}: {error}") from error


def _shown(
    client: str,
    gains: NDArray[np.int64],
    number: int,
    risk: Risk,
    privacy: Privacy | None,
    patients: ArrayLike | None,
) -> dict[str, Any]:
    """What a report says of summed falls, with noise where it is asked for."""
    how = disclosure_of(privacy)
    how.check_patients(client, number, patients)
    counts = how.shown(gains, risk.resolution)
    return {"counts": counts, "n_samples": number, "privacy": privacy, "risk": risk}


def _strata(
    scores: ArrayLike,
    grid: Grid,
    labels: ArrayLike | None,
    classes: Sequence[str] | int | None,
    groups: ArrayLike | None,
    least: int,
    how: Exact,
) -> Strata | None:
    """Counts by class or by group, where one of them is given."""
    how.check_merging(least)
    if labels is not None and groups is not None:
        raise RobfcpError("groups: a report has one grouping; pass labels or groups")
    if labels is None and groups is None:
        if classes is not None:
            raise RobfcpError("classes: counts by class need the labels; pass labels=")
        return None
    if labels is None:
        how.check_groups(classes)
        found = Strata.of_groups(scores, groups, grid, classes)  # type: ignore[arg-type]
    elif classes is None:
        raise RobfcpError("classes: state their names in order, or their number")
    else:
        found = Strata.of_classes(scores, labels, classes, grid)
    return found if least <= 1 else found.with_thin_ones_merged(least)
