"""A sketch with its client's name and the context it was made in: what crosses the wire."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array, floats
from robfcp.errors import RobfcpError
from robfcp.files import MAX_FILE_BYTES, read_limited, write_atomically
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report.by_class import Strata
from robfcp.report.checks import (
    check_client,
    check_counts,
    check_grid,
    check_risk,
    check_score,
    check_set_sizes,
    check_strata,
    check_text,
)
from robfcp.report.private import Exact, check_privacy, disclosure_of
from robfcp.report.sketches import sketch
from robfcp.report.wire import ReportFields, decode_fields, encode_fields
from robfcp.scores import Risk, Score

R = TypeVar("R", bound="Made")


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
        if not isinstance(risk, Risk):
            risk = Risk(risk, resolution=disclosure_of(privacy).resolution)
        kind = risk
        try:
            grid, gains, number = kind.falls(losses, lambdas)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
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
        risk: str = "fnr",
        weights: ArrayLike = (),
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
            "fnr" or "miss-rate"; "top-weighted" where there are weights.
        weights
            (C,) what a missed label counts; all alike if empty.
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
        if risk not in Risk.multilabel:
            known = ", ".join(Risk.multilabel)
            raise RobfcpError(f"risk: {risk!r} is unknown; use {known} or from_losses")
        name = "top-weighted" if np.size(weights) else risk
        kind = Risk(name, resolution=disclosure_of(privacy).resolution)
        grid = Grid.default() if grid is None else grid
        check_grid(client, grid)
        try:
            gains, number = kind.multilabel_falls(probabilities, labels, grid, weights)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
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


_COMPARED = ("client", "context", "privacy", "n_samples", "strata")


@dataclass(frozen=True, eq=False)
class Report(Made):
    """One client's counts on the shared grid, checked on construction.

    With `privacy` the counts hold noise: they may be negative, and n_samples must be stated, unless
    it is protected too; it is then the noisy total, at least 1.

    Parameters
    ----------
    client
        The client's name.
    counts
        (H,) how many calibration scores fall into each bin of the grid.
    grid
        The bins, the same for all clients of a round.
    score
        What the scores are; with it a calibration can predict by itself.
    round
        The name of the round; the server may refuse others.
    model
        The name or digest of the model; the server may refuse others.
    n_samples
        n_k; the sum of the counts unless stated.
    privacy
        What noise the counts hold; none if None.
    risk
        The loss whose falls are counted in place of scores, if so; n_samples must be stated.
    strata
        Counts by class or by another grouping, where the report keeps them.
    set_sizes
        (H,) how many labels of all samples have their score in each bin, so that the mean size of
        the sets is known for every threshold; never with privacy.

    Raises
    ------
    ReportError
        Where something does not fit; it names the client, the field and the remedy.

    Examples
    --------
    >>> import robfcp
    >>> report = robfcp.Report("a", [3, 1], robfcp.Grid.uniform(2), score=robfcp.LAC())
    >>> report.n_samples
    4
    """

    client: str
    counts: NDArray[np.int64]
    grid: Grid
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    n_samples: int = None  # type: ignore[assignment]  # the sum of the counts unless stated
    privacy: Privacy | None = None
    risk: Risk | None = None
    strata: Strata | None = None
    set_sizes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_client(self.client)
        object.__setattr__(self, "client", str(self.client))
        check_grid(self.client, self.grid)
        check_score(self.client, self.score)
        check_privacy(self.client, self.privacy)
        derived = self.counts is None and isinstance(self.strata, Strata)
        if derived:
            object.__setattr__(self, "counts", self.strata.pooled)  # type: ignore[union-attr]
        counts = check_counts(self.client, self.counts, self.grid)
        self.disclosure.check_counts(self.client, counts)
        unit = check_risk(self.client, self.risk)
        object.__setattr__(self, "counts", counts)
        check_strata(self.client, self.strata, self, derived)
        size = self.disclosure.size(
            self.client, counts, self.n_samples, unit=unit, strata=self.strata
        )
        object.__setattr__(self, "n_samples", size)
        object.__setattr__(self, "set_sizes", check_set_sizes(self.client, self.set_sizes, self))
        for field in ("round", "model"):
            check_text(self.client, field, getattr(self, field))
        counts.flags.writeable = False

    def to_json(self) -> bytes:
        """The report as one JSON object.

        Returns
        -------
        bytes
            What `from_json` reads.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9])
        >>> robfcp.Report.from_json(report.to_json()) == report
        True
        """
        return encode_fields(
            ReportFields(**{name: getattr(self, name) for name in ReportFields._fields})
        )

    @staticmethod
    def from_json(data: bytes | str, source: str = "report", grid: Grid | None = None) -> Report:
        """A report from untrusted JSON; `source` names it in errors until its client is known.

        Parameters
        ----------
        data
            JSON from anybody.
        source
            How errors name the report while its client is not known.
        grid
            The round's grid where it is known; a report on another one is refused before that one
            is built.

        Returns
        -------
        Report
            Checked.

        Raises
        ------
        ReportError
            Where it is no valid report; it names the client, the field and the remedy.

        Examples
        --------
        >>> import robfcp
        >>> data = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).to_json()
        >>> robfcp.Report.from_json(data).n_samples
        3
        """
        return Report(**decode_fields(data, source, grid)._asdict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON whole or not at all.

        Parameters
        ----------
        path
            The file; an old one is replaced.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).save("a.json")
        """
        write_atomically(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> Report:
        """Read and validate one report file.

        Parameters
        ----------
        path
            A file that `save` wrote.
        limit
            Files of more bytes are refused.

        Returns
        -------
        Report
            Checked.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).save("a.json")
        >>> robfcp.Report.load("a.json").client
        'a'
        """
        return Report.from_json(read_limited(path, limit), source=os.fspath(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in _COMPARED)
        own, others = (() if one.set_sizes is None else one.set_sizes for one in (self, other))
        same = np.array_equal(own, others) and np.array_equal(self.counts, other.counts)
        return same and all(a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """A line without the counts, which need not be in a log."""
        by = "" if self.strata is None else f", by {self.strata.by}"
        kept = f"{self.n_samples} samples, {self.grid!r}{by}"
        return f"Report({self.client!r}, {kept}{self.disclosure.brief})"

    @property
    def disclosure(self) -> Exact:
        """How the report shows its counts: as they are, or with noise."""
        return disclosure_of(self.privacy)

    @property
    def context(self) -> tuple[Grid, Score | None, str | None, str | None, Risk | None]:
        """What all reports of one round must share."""
        return self.grid, self.score, self.round, self.model, self.risk
