"""A site's counts with its name and the context they were made in: what crosses the wire."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import MAX_FILE_BYTES, read_bounded, write_atomically
from robfcp._probabilities import ClassColumns
from robfcp._typing import IntArray
from robfcp._validation import (
    Rng,
    abbreviate,
    as_array,
    as_float_array,
    as_generator,
    check_client_name,
    check_text,
    set_fields,
)
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError, RobfcpWarning
from robfcp.privacy import Privacy, add_noise
from robfcp.reports import _checks, _noising, _wire
from robfcp.reports._checks import REBUILD_HINT, CountSummary, StratumSummary
from robfcp.reports._class_totals import ClassTotals
from robfcp.reports._coarsening import DEFAULT_MIN_CELL_COUNT, coarsen, coarsen_counts
from robfcp.reports._row import CellCounts, HeaderReader, ReportRow, validate_report
from robfcp.reports._strata import (
    StratifiedCounts,
    StratumKind,
    n_strata,
)
from robfcp.reports.signing import sign
from robfcp.scores import LAC, ClassificationScore, Risk, Score, get_score, scores_with_nan

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FilePath = str | os.PathLike[str]
_DEFAULT_SCORE = LAC()
MIN_SAMPLES_PER_CLASS = 25  # below that coarsened counts by class are rough
_NOT_STATED: Any = None  # of an argument that follows from the others, or must not be left out


class Report(msgspec.Struct, frozen=True, eq=False):
    """One client's counts on the shared binning, checked on construction.

    With `privacy` the counts hold noise: they may be negative, and n_samples must be stated, unless
    it is protected too; it is then the noisy total, at least 1.

    Parameters
    ----------
    client : str
        The client's name.
    counts : ndarray of int, shape (H,)
        How many calibration scores fall into each bin of the binning.
    binning : Binning
        The bins, the same for all clients of a round.
    score : Score, optional
        What the scores are; with it a calibration can predict by itself.
    round : str, optional
        The name of the round; the server may refuse others.
    model : str, optional
        The name or digest of the model; the server may refuse others.
    n_samples : int
        n_k; the sum of the counts unless stated.
    privacy : Privacy, optional
        What noise the counts hold; none if None.
    risk : Risk, optional
        The loss whose falls are counted in place of scores, if so; n_samples must be stated.
    strata : StratifiedCounts, optional
        Counts by class or by another grouping, where the report keeps them.
    all_label_counts : ndarray of int, shape (H,), optional
        How many labels of all samples have their score in each bin, so that the mean size of
        the sets is known for every threshold; never with privacy.
    min_cell_count : int
        The minimum cell count: at least so many samples are in every cell but the last bin's. The
        counts were coarsened for it, and the server computes with the bounds that follow. 1: exact
        counts, or counts with noise.
    class_totals : ClassTotals, optional
        The samples of each class to the nearest multiple of the minimum cell count, beside counts
        of all classes together.
    schema : {2}
        The version of the file.

    Raises
    ------
    ReportError
        Where something does not fit; it names the client, the field and the remedy.

    Examples
    --------
    >>> import robfcp
    >>> report = robfcp.Report("a", [3, 1], robfcp.Binning.uniform(2), score=robfcp.LAC())
    >>> report.n_samples
    4
    """

    client: str
    counts: IntArray = _NOT_STATED  # the sums of the strata
    binning: Binning = _NOT_STATED  # which is refused
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    n_samples: int = _NOT_STATED  # the sum of the counts
    privacy: Privacy | None = None
    risk: Risk | None = None
    strata: StratifiedCounts | None = None
    all_label_counts: IntArray | None = None
    min_cell_count: int = 1
    class_totals: ClassTotals | None = None
    schema: Literal[2] = 2

    KIND: ClassVar[str] = "report"

    def __post_init__(self) -> None:
        check_client_name(self.client)
        client = str(self.client)
        _check_context(client, self.binning, self.score, self.privacy)
        check_text(client, "round", self.round)
        check_text(client, "model", self.model)
        if self.risk is not None and not isinstance(self.risk, Risk):
            problem = f"{self.risk!r} is not a risk"
            raise ReportError(client, "risk", problem, 'pass Risk("fnr"), say')

        min_cell_count = _checks.check_min_cell_count(client, self.min_cell_count, self.privacy)
        counts, summary = self._checked_counts()
        n_samples = self._checked_size(summary)
        self._check_cells(counts, min_cell_count)
        self._check_class_totals(n_samples, min_cell_count)
        set_fields(
            self,
            client=client,
            counts=counts,
            n_samples=n_samples,
            all_label_counts=self._checked_all_label_counts(n_samples, min_cell_count),
            min_cell_count=min_cell_count,
        )

    def _checked_counts(self) -> tuple[IntArray, CountSummary]:
        """Return the counts, read-only, and their summary; refuse what they must not be."""
        declared: Any = self.counts
        are_derived = declared is None and isinstance(self.strata, StratifiedCounts)
        if are_derived:
            assert self.strata is not None
            declared = self.strata.pooled_counts
        vector = _checks.as_count_vector(self.client, "counts", declared, self.binning.n_bins)
        summary = _checks.summarize_array(vector)
        _checks.check_limits(self.client, "counts", summary)
        if self.privacy is None:
            if summary.smallest < 0:
                _checks.reject_negative_count(self.client, int(vector.argmin()))
            _checks.check_not_empty(self.client, summary)

        counts = vector.astype(np.int64, copy=False)
        counts.flags.writeable = False
        if self.strata is not None:
            self._check_strata(self.strata)
            if not are_derived and not np.array_equal(self.strata.pooled_counts, counts):
                problem = f"counts by {self.strata.by} do not add up to the counts of all"
                raise ReportError(self.client, "strata", problem, REBUILD_HINT)
        return counts, summary

    def _check_strata(self, strata: StratifiedCounts) -> None:
        """Refuse counts by class that cannot belong to the report."""
        if not isinstance(strata, StratifiedCounts):
            problem = "counts by class go with scores, not with losses"
            raise ReportError(self.client, "strata", problem, REBUILD_HINT)
        _checks.check_strata_go_with_scores(self.client, self.risk)
        if strata.n_bins != self.binning.n_bins:
            problem = f"counts by {strata.by} are for {strata.n_bins} bins, not the binning's"
            raise ReportError(self.client, "strata", problem, REBUILD_HINT)
        if self.privacy is None:
            _checks.check_positive_strata(self.client, _summarize_strata(strata))

    def _checked_size(self, counts: CountSummary) -> int:
        """Return n_k; refuse counts that do not add up to it, or noise cannot make of it."""
        counts_per_sample = self.counts_per_sample
        if self.privacy is None:
            return _checks.check_sample_size(
                self.client, self.n_samples, counts.total, counts_per_sample
            )
        strata = None if self.strata is None else _summarize_strata(self.strata)
        return _checks.check_noisy_size(
            self.client, self.privacy, self.n_samples, counts_per_sample, counts, strata
        )

    def _check_cells(self, counts: IntArray, min_cell_count: int) -> None:
        """Refuse cells that break the stated minimum cell count."""
        if min_cell_count == 1:
            return
        cells = np.flatnonzero(counts)
        cell_counts = counts[cells]
        if self.strata is not None:
            cells = self.strata.cells
            cell_counts = self.strata.counts
        min_count = min_cell_count * self.counts_per_sample
        _checks.check_coarsened_cells(
            self.client, cells.tolist(), cell_counts.tolist(), self.binning.n_bins, min_count
        )

    def _check_class_totals(self, n_samples: int, min_cell_count: int) -> None:
        """Refuse class totals that cannot be those of the report."""
        if self.class_totals is None:
            return
        if not isinstance(self.class_totals, ClassTotals) or self.strata is not None:
            problem = "class totals go with counts of all classes together"
            raise ReportError(self.client, "class_totals", problem, REBUILD_HINT)
        totals = self.class_totals.totals.tolist()
        _checks.check_class_totals(
            self.client, totals, n_samples, min_cell_count, self.privacy, self.risk
        )

    def _checked_all_label_counts(self, n_samples: int, min_cell_count: int) -> IntArray | None:
        """Return the scores of all labels as counts; refuse what they must not be."""
        if self.all_label_counts is None:
            return None
        _checks.check_all_labels_allowed(self.client, self.privacy, self.risk)
        n_bins = self.binning.n_bins
        vector = _checks.as_count_vector(
            self.client, "all_label_counts", self.all_label_counts, n_bins
        )
        summary = _checks.summarize_array(vector)
        _checks.check_all_label_counts(self.client, summary, n_samples)
        if min_cell_count > 1:
            bins = np.flatnonzero(vector)
            _checks.check_coarsened_cells(
                self.client, bins.tolist(), vector[bins].tolist(), n_bins, min_cell_count
            )
        return vector.astype(np.int64, copy=False)

    @property
    def counts_per_sample(self) -> int:
        """How many counts one sample has: 1, or the resolution of a loss."""
        return 1 if self.risk is None else self.risk.resolution

    @staticmethod
    def from_predictions(
        client: str,
        probabilities: ArrayLike,
        labels: ArrayLike,
        *,
        score: Score | str = _DEFAULT_SCORE,
        classes: Sequence[str] | int | None = None,
        groups: ArrayLike | None = None,
        stratify_by_class: bool | None = None,
        include_all_labels: bool = False,
        binning: Binning | None = None,
        min_class_count: int = 1,
        min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patient_ids: ArrayLike | None = None,
        rng: Rng = None,
    ) -> Report:
        """The report of a client's predictions and their true labels.

        It holds the counts of all scores together, and the samples of each class. No cell holds
        fewer than `min_cell_count` samples, the last bin apart, and the samples of each class are
        rounded to multiples of it, so that no count is that of a single sample. Scores are moved up
        for that, never down: guarantees hold. What a reader can infer is in docs/security.md.

        Parameters
        ----------
        client : str
            The client's name.
        probabilities : array_like, shape (n, C)
            Class probabilities, an array or a frame whose columns are the classes; what the
            score takes, where it is one for numbers.
        labels : array_like, shape (n,)
            Class numbers, or names of `classes` or of the frame's columns.
        score : Score or str
            How strange a label is, or its name: LAC if not agreed otherwise.
        classes : Sequence[str] or int, optional
            The classes' names in the order of the columns, or their number; with `groups` the
            groups there are.
        groups : array_like, shape (n,), optional
            Another grouping (scanner, age band, ...) in place of the classes.
        stratify_by_class : bool, optional
            Whether counts are kept by class, for thresholds by class; coarsened ones need about 25
            samples of each class. If None they are where they are exact and without noise, and
            else class totals are stated, but for private reports. If False the report says nothing
            about labels.
        include_all_labels : bool
            Whether to tell how large sets are at every threshold; not with `privacy`.
        min_cell_count : int
            The minimum cell count: so many samples are in every cell of the report, at least. 1
            means exact counts: a reader sees scores of single samples. Private reports hold noise
            instead.
        privacy : Privacy, optional
            Adds noise to the counts (extra: privacy).
        rng : int, Generator or None
            A seed or generator, for randomized scores.
        binning, min_class_count, round, model, patient_ids : optional
            As `from_scores` takes them.

        Returns
        -------
        Report
            Counts only: predictions and labels stay with the client.

        Examples
        --------
        >>> import robfcp
        >>> p, y = [[0.75, 0.25], [0.5, 0.5], [0.2, 0.8]], [0, 1, 1]
        >>> report = robfcp.Report.from_predictions("a", p, y)
        >>> report.strata is None, report.class_totals
        (True, None)
        >>> robfcp.Report.from_predictions("a", p, y, min_cell_count=1).strata.stratum_sizes
        array([1, 2])
        """
        check_client_name(client)
        if isinstance(score, str):
            score = get_score(score)
        _check_context(client, Binning.default(), score, privacy)
        strata_options: dict[str, Any] = {}
        if groups is not None:
            strata_options = {"groups": groups, "classes": classes}
        with _errors_begin_with(client):
            if isinstance(score, ClassificationScore):
                stated_classes = classes if groups is None else None
                probabilities, labels, known_classes = _encode_table(
                    probabilities, labels, stated_classes, privacy
                )
                tells_labels = stratify_by_class
                if tells_labels is None:
                    tells_labels = groups is None and privacy is None
                if tells_labels:
                    strata_options |= {
                        "labels": labels,
                        "classes": known_classes,
                        "stratify_by_class": stratify_by_class,
                    }
            elif stratify_by_class or include_all_labels:
                raise RobfcpError(
                    f"stratify_by_class, include_all_labels: {score.name} has no classes; leave "
                    "them out"
                )

            generator = as_generator(rng)
            generator_for_all_labels = deepcopy(generator)  # every label has the true one's draw
            if privacy is None:
                scores = score(probabilities, labels, generator)
            else:
                scores = scores_with_nan(score, probabilities, labels, generator)
            all_label_scores = None
            if include_all_labels and isinstance(score, ClassificationScore):
                all_label_scores = score.score_all_labels(probabilities, generator_for_all_labels)
        return Report.from_scores(
            client,
            scores,
            binning,
            score=score,
            all_label_scores=all_label_scores,
            min_class_count=min_class_count,
            min_cell_count=min_cell_count,
            round=round,
            model=model,
            privacy=privacy,
            patient_ids=patient_ids,
            **strata_options,
        )

    @staticmethod
    def from_scores(
        client: str,
        scores: ArrayLike,
        binning: Binning | None = None,
        *,
        score: Score | None = None,
        labels: ArrayLike | None = None,
        classes: Sequence[str] | int | None = None,
        groups: ArrayLike | None = None,
        stratify_by_class: bool | None = None,
        all_label_scores: ArrayLike | None = None,
        min_class_count: int = 1,
        min_cell_count: int = 1,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patient_ids: ArrayLike | None = None,
    ) -> Report:
        """The report of a client's calibration scores, on the score's own binning if none is given.

        Parameters
        ----------
        client : str
            The client's name.
        scores : array_like, shape (n,)
            Nonconformity scores of its calibration samples. With `privacy` those outside the
            binning count in its end bins and NaN in the top one: nothing shows by a refusal.
        binning : Binning, optional
            The bins all clients share; that of the score, or the default binning, if None.
        score : Score, optional
            What the scores are; with it a calibration can predict by itself.
        labels : array_like, shape (n,), optional
            The true labels, as class numbers or names: the report then keeps counts by class,
            or class totals.
        classes : Sequence[str] or int, optional
            The classes' names in the order of the columns, or their number; needed with `labels`.
            With `groups` the groups there are; with `privacy` they must be stated, since which
            ones occur is data.
        groups : array_like, shape (n,), optional
            Another grouping (scanner, age band, ...) in place of labels.
        stratify_by_class : bool, optional
            Whether counts are kept by class, of `labels`. If None they are where they are exact, or
            private; else the report states class totals. If False labels are not used.
        all_label_scores : array_like, shape (n, C), optional
            The scores of all labels, as `score.score_all_labels` gives them: the report then
            also tells how large sets are at every threshold; not with `privacy`.
        min_class_count : int
            Classes or groups with fewer samples are merged into one more, "(other)", where counts
            are kept by them; not with `privacy`, since which ones are merged is data.
        min_cell_count : int
            The minimum cell count, 1 for exact counts: so many samples are in every cell but the
            last bin's, moved up for it. Without effect where noise is added.
        round : str, optional
            The name of the round; the server may refuse others.
        model : str, optional
            The name or digest of the model; the server may refuse others.
        privacy : Privacy, optional
            Adds noise to the counts (extra: privacy); the binning should then be a coarse one fixed
            before the round, see `robfcp.recommend_binning`.
        patient_ids : array_like, shape (n,), optional
            Whose sample each score is; refused if somebody has more than privacy states.

        Returns
        -------
        Report
            Counts only: the scores themselves stay with the client.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9], robfcp.Binning.uniform(4))
        >>> report.counts
        array([2, 0, 0, 1])
        """
        check_client_name(client)
        if binning is None:
            binning = score.default_binning() if isinstance(score, Score) else Binning.default()
        _check_context(client, binning, score, privacy)
        if all_label_scores is not None:
            _checks.check_all_labels_allowed(client, privacy, None)
        with _errors_begin_with(client):
            values = as_array("scores", scores)
            if values.ndim != 1:
                raise RobfcpError(f"scores: shape {values.shape} is not (n,); pass one a sample")
            n_samples = len(values)
            if privacy is not None:
                values = _noising.clip_to_binning(values, binning)

            # Noise needs no coarsening.
            if privacy is not None:
                min_cell_count = 1
            _checks.check_min_cell_count(client, min_cell_count, None)
            if stratify_by_class is False:
                labels = None
                classes = None if groups is None else classes
            strata = _count_by_stratum(
                values, labels, groups, classes, binning, privacy, stratify_by_class
            )

            # Counts by class or group make the counts of all.
            counts: Any = None
            class_totals = None
            if strata is None:
                counts = coarsen_counts(binning.counts(values), min_cell_count)
                counts = add_noise(counts, privacy)
            elif _keeps_strata(strata, stratify_by_class, min_cell_count, privacy):
                if min_cell_count > 1 and stratify_by_class:
                    _warn_of_small_classes(client, n_samples, strata.n_strata)
                strata = _prepare_strata(strata, min_class_count, min_cell_count, privacy)
            else:
                counts = coarsen_counts(strata.pooled_counts, min_cell_count)
                class_totals = ClassTotals.of(strata.stratum_sizes, strata.names, min_cell_count)
                strata = None
            _noising.check_patient_ids(privacy, n_samples, patient_ids)
            set_sizes = None
            if all_label_scores is not None:
                set_sizes = _count_all_labels(all_label_scores, n_samples, binning, min_cell_count)

        # Noise on the counts does not hide how many samples there are, unless it is to.
        stated_size = _NOT_STATED
        if privacy is not None and not privacy.protects_sample_size:
            stated_size = n_samples
        return Report(
            client,
            counts,
            binning,
            score,
            round,
            model,
            n_samples=stated_size,
            privacy=privacy,
            strata=strata,
            all_label_counts=set_sizes,
            min_cell_count=min_cell_count,
            class_totals=class_totals,
        )

    @staticmethod
    def from_losses(
        client: str,
        losses: ArrayLike,
        lambdas: ArrayLike,
        *,
        risk: str | Risk,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patient_ids: ArrayLike | None = None,
    ) -> Report:
        """The report of losses that fall as lambda rises: by how much they fall at each lambda.

        Parameters
        ----------
        losses : array_like, shape (n, L)
            Loss of every sample at every lambda, falling along each row.
        lambdas : array_like, shape (L,)
            Rising; beyond the last one every label is taken.
        risk : str or Risk
            The loss by name, or a `Risk` that states its bound.
        privacy : Privacy, optional
            Adds noise; one sample moves the falls by at most twice the bound.
        client, round, model, patient_ids
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
            risk = _get_risk(risk, privacy)
        with _errors_begin_with(client):
            if privacy is not None:
                losses = _noising.clip_losses(losses, risk.upper_bound)
            binning, loss_drops, n_samples = risk.count_loss_drops(losses, lambdas)
            _noising.check_patient_ids(privacy, n_samples, patient_ids)
        counts = add_noise(loss_drops, privacy, risk.resolution)
        return Report(client, counts, binning, None, round, model, n_samples, privacy, risk)

    @staticmethod
    def from_multilabel(
        client: str,
        probabilities: ArrayLike,
        labels: ArrayLike,
        binning: Binning | None = None,
        *,
        risk: str = "fnr",
        weights: ArrayLike = (),
        min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patient_ids: ArrayLike | None = None,
    ) -> Report:
        """The report of multi-label predictions: the share of true labels missed, at every lambda.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            One probability a label, each in [0, 1]; masks of pixels may have more axes.
        labels : array_like
            As many true labels, 0 or 1.
        binning : Binning, optional
            The lambdas; fine ones on [0, 1] if none is given.
        risk : str
            "fnr" or "miss-rate"; "top-weighted" where there are weights.
        weights : array_like, shape (C,)
            What a missed label counts; all alike if empty.
        min_cell_count : int
            The minimum cell count: falls are moved up until those of so many samples' worth are
            together. 1: every loss falls at its own lambda. Without effect where noise is added.
        client, round, model, privacy, patient_ids
            As `from_scores` takes them.

        Returns
        -------
        Report
            To be calibrated with `calibrate(reports, risk_level=0.1)`.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> p, y = np.array([[0.9, 0.2], [0.6, 0.7]]), np.array([[1, 0], [1, 1]])
        >>> robfcp.Report.from_multilabel("a", p, y).risk.name
        'fnr'
        """
        if risk not in Risk.multilabel:
            known_names = ", ".join(Risk.multilabel)
            raise RobfcpError(f"risk: {risk!r} is unknown; use {known_names} or from_losses")
        loss = _get_risk("top-weighted" if np.size(weights) else risk, privacy)
        if binning is None:
            binning = Binning.default()
        _check_context(client, binning, None, privacy)
        with _errors_begin_with(client):
            if privacy is not None:
                probabilities, labels = _noising.clip_multilabel(probabilities, labels)
            loss_drops, n_samples = loss.count_multilabel_loss_drops(
                probabilities, labels, binning, weights
            )
            _noising.check_patient_ids(privacy, n_samples, patient_ids)
        if privacy is not None:
            min_cell_count = 1
        _checks.check_min_cell_count(client, min_cell_count, None)
        if min_cell_count > 1:
            loss_drops = coarsen_counts(loss_drops, min_cell_count * loss.resolution)
        counts = add_noise(loss_drops, privacy, loss.resolution)
        return Report(
            client,
            counts,
            binning,
            None,
            round,
            model,
            n_samples,
            privacy,
            loss,
            min_cell_count=min_cell_count,
        )

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
        # The order of the keys is that of the files that others have kept.
        fields: dict[str, Any] = {
            "kind": self.KIND,
            "schema": self.schema,
            "client": self.client,
            "counts": None,
            "binning": _wire.to_wire_binning(self.binning),
            "score": _wire.to_wire_score(self.score),
            "round": self.round,
            "model": self.model,
            "n_samples": self.n_samples,
            "privacy": self.privacy,
            "risk": self.risk,
            "strata": None,
            "all_label_counts": None,
            "min_cell_count": self.min_cell_count,
            "class_totals": None,
        }
        if self.strata is None:
            fields["counts"] = _wire.to_wire_counts(self.counts)
        else:
            fields["strata"] = _wire.to_wire_strata(self.strata)
        if self.class_totals is not None:
            fields["class_totals"] = _wire.to_wire_class_totals(self.class_totals)
        if self.privacy is not None and self.privacy.protects_sample_size:
            fields["n_samples"] = None
        if self.all_label_counts is not None:
            fields["all_label_counts"] = _wire.to_wire_counts(self.all_label_counts)
        declared = {name: value for name, value in fields.items() if value is not None}
        return msgspec.json.encode(declared)

    @staticmethod
    def from_json(
        data: bytes | str, source: str = "report", binning: Binning | None = None
    ) -> Report:
        """A report from untrusted JSON; `source` names it in errors until its client is known.

        Parameters
        ----------
        data : bytes or str
            JSON from anybody.
        source : str
            How errors name the report while its client is not known.
        binning : Binning, optional
            The round's binning where it is known; a report on another one is refused before that
            one is built.

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
        row = validate_report(_wire.parse_report(data, source, binning), HeaderReader(binning))
        return _report_of_row(row, row.header.binning.binning() if binning is None else binning)

    def save(self, path: FilePath, key: Ed25519PrivateKey | None = None) -> None:
        """Write the JSON whole or not at all.

        Parameters
        ----------
        path : path
            The file; an old one is replaced.
        key : Ed25519PrivateKey, optional
            Signs the report, which must name its round.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).save("a.json")
        """
        write_atomically(path, self.to_json() if key is None else sign(self, key))

    @staticmethod
    def load(path: FilePath, max_bytes: int = MAX_FILE_BYTES) -> Report:
        """Read and validate one report file.

        Parameters
        ----------
        path : path
            A file that `save` wrote.
        max_bytes : int
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
        return Report.from_json(read_bounded(path, max_bytes), source=os.fspath(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self.to_json() == other.to_json()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """A line without the counts, which need not be in a log."""
        by = "" if self.strata is None else f", by {self.strata.by}"
        noise = "" if self.privacy is None else f", {self.privacy!r}"
        return f"Report({self.client!r}, {self.n_samples} samples, {self.binning!r}{by}{noise})"


def _report_of_row(row: ReportRow, binning: Binning) -> Report:
    """Return the report whose row it is, on the binning that its header names."""
    header = row.header
    n_bins = binning.n_bins
    strata = None
    if row.strata is not None and header.strata is not None:
        cells = np.array(row.strata.cells, dtype=np.int64)
        counts = np.array(row.strata.counts, dtype=np.int64)
        strata = StratifiedCounts(*header.strata, cells, counts, n_bins)
    class_totals = None
    if row.class_totals is not None and header.class_names is not None:
        totals = _dense(row.class_totals, n_strata(header.class_names))
        class_totals = ClassTotals(header.class_names, totals)
    return Report(
        row.client,
        _dense(row.counts, n_bins),
        binning,
        header.score,
        header.round,
        header.model,
        n_samples=_NOT_STATED if header.protects_sample_size else row.n_samples,
        privacy=header.privacy,
        risk=header.risk,
        strata=strata,
        all_label_counts=_dense(row.all_label_counts, n_bins),
        min_cell_count=header.min_cell_count,
        class_totals=class_totals,
    )


def _dense(counts: CellCounts | None, n_bins: int) -> Any:
    """Return the counts of all bins; None without any."""
    if counts is None:
        return None
    vector = np.zeros(n_bins, dtype=np.int64)
    vector[np.asarray(counts.cells, dtype=np.intp)] = counts.counts
    return vector


def _summarize_strata(strata: StratifiedCounts) -> StratumSummary:
    """Return what the rules need to know of counts by class."""
    return StratumSummary(strata.by, strata.n_strata, _checks.summarize_array(strata.counts))


def _check_context(client: str, binning: object, score: object, privacy: object) -> None:
    """Refuse what is no binning, no score or no privacy."""
    if not isinstance(binning, Binning):
        problem = f"{type(binning).__name__} is not a binning"
        raise ReportError(client, "binning", problem, "pass Binning.default(), say")
    if score is not None and (isinstance(score, type) or not isinstance(score, Score)):
        raise ReportError(client, "score", f"{score!r} is not a score", "pass LAC(), say")
    if privacy is not None and not isinstance(privacy, Privacy):
        problem = "privacy is not stated as such"
        raise ReportError(client, "privacy", problem, "pass Privacy(epsilon=1)")


@contextmanager
def _errors_begin_with(name: str) -> Iterator[None]:
    """Put the client's or the field's name before the errors raised inside."""
    try:
        yield
    except ReportError:
        raise
    except RobfcpError as error:
        raise RobfcpError(f"{name}: {error}") from error


def _encode_table(
    probabilities: ArrayLike,
    labels: ArrayLike,
    classes: Sequence[str] | int | None,
    privacy: Privacy | None,
) -> tuple[ArrayLike, ArrayLike, Any]:
    """Return a table with its columns in the order of the classes, and labels as class numbers.

    Parameters
    ----------
    probabilities : array-like
        (n, C) an array, or a frame whose columns are the classes.
    labels : array-like
        (n,) class numbers or names.
    classes : sequence of str or int, optional
        The names in the order of the columns, or their number.
    privacy : Privacy or None
        With it no label is refused.

    Returns
    -------
    table : array-like
        (n, C) probabilities.
    labels : array-like
        (n,) class numbers; -1 where a private report has another label.
    classes : sequence of str or int
        The classes' names, or their number.
    """
    table = as_array("probabilities", probabilities)
    column_names = ClassColumns.names_of(probabilities)
    if classes is None and column_names:
        columns = ClassColumns.classes_of_names(column_names, labels)
        table = table[:, list(columns.order)]
    elif classes is None:
        return table, labels, table.shape[-1]
    elif isinstance(classes, int):
        return table, labels, classes
    else:
        columns = ClassColumns(tuple(range(len(classes))), tuple(classes))
        is_text = as_array("labels", labels).dtype.kind in "USO"
        if not is_text:
            return table, labels, classes

    indices = columns.label_indices(labels)
    if privacy is None and (indices < 0).any():
        row = int(np.argmax(indices < 0))
        label = as_array("labels", labels)[row]
        names = abbreviate(list(columns.names or column_names))
        raise RobfcpError(
            f"labels: {label!s:.40} of sample {row} is none of "
            f"the classes {names}; rename the class or the label"
        )
    return table, indices, columns.names or len(columns.order)


def _warn_of_small_classes(client: str, n_samples: int, n_classes: int) -> None:
    """Warn where coarsened counts by class say little about a client's classes."""
    if n_samples >= MIN_SAMPLES_PER_CLASS * n_classes:
        return
    warnings.warn(
        f"{client}: {n_samples} samples of {n_classes} classes are fewer than "
        f"{MIN_SAMPLES_PER_CLASS} of each: coarsened counts by class are rough; leave out "
        "stratify_by_class unless thresholds by class are needed",
        RobfcpWarning,
        stacklevel=3,
    )


def _count_by_stratum(
    scores: NDArray[Any],
    labels: ArrayLike | None,
    groups: ArrayLike | None,
    classes: Sequence[str] | int | None,
    binning: Binning,
    privacy: Privacy | None,
    stratify_by_class: bool | None,
) -> StratifiedCounts | None:
    """Return exact counts by class or group; None without labels and groups."""
    if labels is not None and groups is not None:
        raise RobfcpError("groups: a report has one grouping; pass labels or groups")
    if labels is not None and classes is None:
        raise RobfcpError("classes: state their names in order, or their number")
    if groups is not None and privacy is not None and classes is None:
        raise RobfcpError("groups: which ones occur is data; state them all in classes=")

    by: StratumKind = "class"
    stratum_of_sample = labels
    if groups is not None:
        by = "group"
        stratum_of_sample = groups
    if stratum_of_sample is None:
        if classes is not None or stratify_by_class:
            raise RobfcpError("classes: counts by class need the labels; pass labels=")
        return None
    is_private = privacy is not None
    return StratifiedCounts.of(by, scores, stratum_of_sample, classes, binning, is_private)


def _keeps_strata(
    strata: StratifiedCounts,
    stratify_by_class: bool | None,
    min_cell_count: int,
    privacy: Privacy | None,
) -> bool:
    """Whether a report keeps counts by class or group, rather than class totals."""
    if strata.by == "group" or stratify_by_class:
        return True
    return min_cell_count == 1 or privacy is not None


def _prepare_strata(
    strata: StratifiedCounts, min_class_count: int, min_cell_count: int, privacy: Privacy | None
) -> StratifiedCounts:
    """Return exact counts by class or group as they are sent: merged, coarsened or with noise.

    Parameters
    ----------
    strata : StratifiedCounts
        The exact counts.
    min_class_count : int
        Strata of fewer samples are merged into one. More than 1 is refused with privacy.
    min_cell_count : int
        The minimum cell count; 1 with privacy, as noise hides single samples by itself.
    privacy : Privacy or None
        The noise.
    """
    if privacy is not None and min_class_count > 1:
        raise RobfcpError(
            "min_class_count: which classes are merged tells what noise should hide; "
            "merge them beforehand, for all sites alike"
        )
    if min_class_count > 1:
        strata = strata.merge_small_strata(min_class_count)
    strata = coarsen(strata, min_cell_count)
    if privacy is None:
        return strata
    return _noising.add_noise_to_strata(strata, privacy)


def _count_all_labels(
    all_label_scores: ArrayLike, n_samples: int, binning: Binning, min_cell_count: int
) -> IntArray:
    """Return (H,) counts of the scores of all labels, in cells of at least so many of them."""
    scores = as_float_array("all_label_scores", all_label_scores)
    if scores.ndim != 2 or len(scores) != n_samples:
        raise RobfcpError(
            f"all_label_scores: need (n, C) scores of {n_samples} samples; "
            "pass score.score_all_labels(probabilities)"
        )
    with _errors_begin_with("all_label_scores"):
        counts = binning.counts(scores.ravel())
    return coarsen_counts(counts, min_cell_count)


def _get_risk(name: str, privacy: Privacy | None) -> Risk:
    """Return the risk of a name, in fewer parts where noise is added to them."""
    if privacy is None:
        return Risk(name)
    return Risk(name, resolution=_noising.NOISY_RESOLUTION)
