"""The calibration that people keep: thresholds, the clients they rest on and what is proved."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp import __version__
from robfcp._files import file_lock, is_special, read_bounded
from robfcp._probabilities import reorder_columns
from robfcp._sealed import FilePath, sha256_of
from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import Rng, as_array
from robfcp.calibration._coverage import StratumCoverage, client_coverage, stratum_coverage
from robfcp.calibration._document import CalibrationDocument, RoundSummary
from robfcp.calibration._levels import CertifiedThreshold, CoverageLevel
from robfcp.calibration._text import summary_lines, target_text, threshold_texts, used_clients_text
from robfcp.certificates import Certificate
from robfcp.errors import RobfcpError
from robfcp.reports import StratumKind, StratumNames, from_wire_score, terms, to_wire_score
from robfcp.scores import ClassificationScore, Risk, Score

if TYPE_CHECKING:
    from robfcp.calibration._record import Record
    from robfcp.evaluation import CoverageEvaluation
    from robfcp.federation import Federation, RejectedReport
    from robfcp.local import ClientFeedback, LocalThreshold

T = TypeVar("T")


class CertificateCurve(dict[int, Certificate]):
    """The certificate for each number of malicious clients."""

    def __missing__(self, max_malicious: object) -> Certificate:
        raise RobfcpError(
            f"curve: {max_malicious!r:.40} is none of the numbers computed, 0 to {max(self)}"
        )


Curves = Mapping[int, Certificate] | Mapping[str, Mapping[int, Certificate]]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Thresholds, the clients they rest on and what is proved about them.

    `threshold`, `certificate`, `statement`, `certificates` and `coverage` are single values where
    one coverage was asked for, and tuples in the order asked where there were several.

    The reports and verdicts are the `record`. It is in memory after `calibrate`; `save` writes it
    to a file of its own, since a client needs only the calibration to predict.

    Attributes
    ----------
    levels : tuple of CoverageLevel
        Threshold and certificate for every coverage asked for.
    has_multiple_levels : bool
        Whether several were asked for.
    by : {"class", "group"} or None
        Whether every class or group has a threshold of its own.
    score : Score or None
        The score that the reports name, if they do; sets and intervals are made with it.
    risk : Risk or None
        The loss that is controlled in place of coverage, if so.
    classes : tuple of str, int or None
        The classes that the reports name, or their number; None where they do not.
    defense : str
        The defense by name; the record has its parameters.
    is_guaranteed : bool
        Whether the thresholds are those of a guarantee, which the record holds.
    certificate_confidence : float
        The confidence of certificates, over the calibration data.
    n_malicious : int
        The number of malicious clients that certificates are for: that of the guarantee, else of
        the defense, else of the excluded clients.
    n_malicious_given : bool
        Whether that number was given beforehand.
    verification : Verification
        How each part of the reports was checked.
    summary : RoundSummary
        How many clients became what: all that a client may know.
    public_notes : tuple of str
        What else must be said, as far as it names no client.
    version : str
        The version of robfcp that made it.
    record : Record or None
        The reports and verdicts, where they are in memory.
    loaded_record_digest : str
        SHA-256 of the record's file, of a calibration that was loaded; empty where it has none.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 10, 10]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, 0.8, defense="none")
    >>> round(calibration.threshold, 3)
    0.667
    >>> calibration.predict_set([[0.6, 0.3, 0.1]])
    array([[ True, False, False]])
    """

    levels: tuple[CoverageLevel, ...]
    has_multiple_levels: bool
    by: StratumKind | None
    score: Score | None
    risk: Risk | None
    classes: StratumNames | None
    defense: str
    is_guaranteed: bool
    certificate_confidence: float
    n_malicious: int
    n_malicious_given: bool
    verification: terms.Verification
    summary: RoundSummary
    public_notes: tuple[str, ...] = ()
    version: str = __version__
    record: Record | None = None
    loaded_record_digest: str = ""

    @property
    def threshold(self) -> float | tuple[float, ...] | FloatArray:
        """A label is in the set when its score is at most this; infinite takes every label.

        By class or group an array: (C,), or (L, C) for several levels.
        """
        if self.by is None:
            return self._single(self._level_thresholds)
        if self.has_multiple_levels:
            return self._stratum_thresholds
        return self._stratum_thresholds[0]

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes or groups that have thresholds of their own."""
        return tuple(stratum.name for stratum in self.levels[0].strata)

    @property
    def certificate(self) -> Certificate | tuple[Certificate, ...]:
        """What coverage is proved, with which confidence, under which assumptions."""
        return self._single(tuple(level.certificate for level in self.levels))

    @property
    def statement(self) -> str | tuple[str, ...]:
        """The certificate in words."""
        return self._single(tuple(level.certificate.statement for level in self.levels))

    @property
    def certificates(self) -> Curves | tuple[Curves, ...]:
        """The certificate for each number of malicious clients; all of them are true at once.

        By class or group, those of each of them by its name, about the clients that hold it; they
        are true for all classes or groups at once.

        Examples
        --------
        >>> import robfcp
        >>> reports = robfcp.Federation.from_counts([[90, 10]] * 20)
        >>> curve = robfcp.calibrate(reports, 0.8, defense="none").certificates
        >>> print(curve[2].statement[:65])
        with 95% confidence, either more than 2 of the 20 sites lie or co
        """
        return self._single(tuple(self._curves_of(level) for level in self.levels))

    def _curves_of(self, level: CoverageLevel) -> Curves:
        """Return the certificates of one level for each number of malicious clients."""
        if self.by is None:
            return self._curve_of(level)
        return {stratum.name: self._curve_of(stratum) for stratum in level.strata}

    def _curve_of(self, threshold: CertifiedThreshold) -> CertificateCurve:
        """Return the certificates of one threshold for each number of malicious clients."""
        curve = CertificateCurve()
        for point in threshold.certificate_points:
            certificate = threshold.certificate
            curve[point.m] = certificate.for_max_malicious(point, self.certificate_confidence)
        return curve

    @property
    def coverage(self) -> float | tuple[float, ...]:
        """The coverage asked for."""
        return self._single(tuple(float(level.coverage) for level in self.levels))

    @property
    def _level_thresholds(self) -> tuple[float, ...]:
        """The threshold of each level; by class or group the largest of them."""
        return tuple(level.threshold for level in self.levels)

    @property
    def _stratum_thresholds(self) -> FloatArray:
        """(L, C) the threshold of each class or group."""
        rows = []
        for level in self.levels:
            rows.append([stratum.threshold for stratum in level.strata])
        return np.array(rows)

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        """Return the only value where one coverage was asked for, else all of them."""
        return values if self.has_multiple_levels else values[0]

    def predict_set(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.bool_]:
        """(n, C) whether each label is in each sample's set; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities; the columns of a frame are found by the classes' names.
        rng
            A seed or generator, for randomised scores.
        score
            The score, where the reports did not name it.
        groups
            (n,) each sample's group, where thresholds are by group.
        non_empty
            Put the label with the least score into sets that would be empty. Coverage can only
            rise, by at most the share of empty sets: the certificate's lower bound holds, its
            upper one no longer.

        Returns
        -------
        (n, C) or (n, C, L) array of bool
            L is the number of levels.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, 0.75, defense="none")
        >>> calibration.predict_set([[0.6, 0.4], [0.1, 0.9]])
        array([[ True,  True],
               [False,  True]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]])
        array([[False, False, False, False]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]], non_empty=True)
        array([[ True, False, False, False]])
        """
        table = reorder_columns(probabilities, self.classes)
        thresholds = self._thresholds_for(groups, table.shape[:1])
        rule = self.classification_score(score)
        sets = rule.prediction_sets(table, thresholds, rng, non_empty=non_empty)
        return sets if self.has_multiple_levels else sets[:, :, 0]

    def iter_prediction_sets(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        non_empty: bool = False,
    ) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """The sets as (rows, members) blocks, for more samples than memory holds.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities, a memory map for instance.
        rng
            A seed or generator, for randomised scores.
        score
            The score, where the reports did not name it.
        non_empty
            Leave no set empty, as in `predict_set`.

        Yields
        ------
        tuple
            A slice of rows and their sets, as `predict_set` gives them.
        """
        table = reorder_columns(probabilities, self.classes)
        if self.by == "group":
            raise RobfcpError("iterate_sets: thresholds are by group; use predict_set(groups=...)")
        rule = self.classification_score(score)
        thresholds = self._thresholds_for(None, ())
        for rows, sets in rule.iter_prediction_sets(table, thresholds, rng, non_empty=non_empty):
            yield rows, sets if self.has_multiple_levels else sets[:, :, 0]

    def predict_interval(
        self,
        predictions: ArrayLike,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.float64]:
        """(n, 2) lower and upper ends; (n, 2, L) for several levels.

        Parameters
        ----------
        predictions
            (n,) point predictions, or (n, 2) predicted quantiles for `CQR`.
        score
            The score, where the reports did not name it.
        groups
            (n,) each sample's group, where the thresholds are by group.
        non_empty
            Where the ends cross (quantiles moved inwards), take their middle for both.

        Returns
        -------
        (n, 2) or (n, 2, L) array
            L is the number of levels.

        Examples
        --------
        >>> import robfcp
        >>> grid = robfcp.Binning.open_ended([0.0, 0.5, 1.0, 2.0])
        >>> reports = [
        ...     robfcp.Report.from_scores(name, [0.1, 0.4, 0.4, 0.9, 1.5], grid) for name in "ab"
        ... ]
        >>> calibration = robfcp.calibrate(reports, 0.5, defense="none")
        >>> calibration.predict_interval([3.0, 7.0], score=robfcp.AbsoluteResidual())
        array([[2.5, 3.5],
               [6.5, 7.5]])
        """
        rule = self.resolve_score(score)
        values = as_array("predictions", predictions)
        if self.by == "class":
            raise RobfcpError("predict_interval: an interval has no classes; calibrate without by=")
        if isinstance(rule, (ClassificationScore, type)) or not hasattr(rule, "interval"):
            raise RobfcpError(
                f"{getattr(rule, 'name', rule)}: is no regression score; use predict_set"
            )

        # (n or 1, L): samples that share a threshold are computed together.
        n_levels = len(self.levels)
        thresholds = self._thresholds_for(groups, values.shape[:1]).reshape(-1, n_levels)
        intervals = np.empty((len(values), 2, n_levels))
        for level, level_thresholds in enumerate(thresholds.T):
            for threshold in np.unique(level_thresholds):
                rows = np.broadcast_to(level_thresholds == threshold, len(values))
                intervals[rows, :, level] = rule.interval(values[rows], threshold)

        if non_empty:
            crossed = intervals[:, :1] > intervals[:, 1:]
            middles = intervals.mean(axis=1, keepdims=True)
            intervals = np.where(crossed, middles, intervals)
        return intervals if self.has_multiple_levels else intervals[:, :, 0]

    def predict_multilabel(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """(n, C) whether each label is taken: 1 - p at most lambda; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1].
        """
        if self.risk is None:
            raise RobfcpError("predict_multilabel: the reports held no losses; use predict_set")
        sets = self.risk.multilabel_sets(probabilities, self._level_thresholds)
        return sets if self.has_multiple_levels else sets[:, :, 0]

    def resolve_score(self, score: Score | None = None) -> Score:
        """Return the score given, or the one that the reports name.

        Parameters
        ----------
        score
            The score, where the reports did not name it.

        Returns
        -------
        Score
            What sets and intervals are made with.
        """
        chosen = self.score if score is None else score
        if chosen is None:
            raise RobfcpError("score: the reports did not name their score; pass score=")
        return chosen

    def classification_score(self, score: Score | None = None) -> ClassificationScore:
        """Return the score as `resolve_score` does; refuse one that is not for classes.

        Parameters
        ----------
        score
            As `resolve_score` takes it.
        """
        rule = self.resolve_score(score)
        if not isinstance(rule, ClassificationScore):
            raise RobfcpError(
                f"{getattr(rule, 'name', rule)}: is no classification score; use predict_interval"
            )
        return rule

    def _thresholds_for(self, groups: ArrayLike | None, shape: tuple[int, ...]) -> FloatArray:
        """Return the thresholds as scores take them.

        Parameters
        ----------
        groups : (n,) array_like or None
            Each sample's group.
        shape : tuple of int
            (n,), the shape that groups must have.

        Returns
        -------
        ndarray of float
            (L,) one threshold a level, (C, L) by class, or (n, 1, L) by each sample's group.
        """
        if self.by is None:
            if groups is not None:
                raise RobfcpError("groups: the thresholds are not by group; leave them out")
            return np.array(self._level_thresholds)
        if self.by == "class":
            return self._stratum_thresholds.T
        if groups is None:
            raise RobfcpError("groups: the thresholds are by group; pass each sample's group")

        names = as_array("groups", groups).astype(str)
        if names.shape != shape:
            raise RobfcpError(f"groups: need one a sample {shape}, not shape {names.shape}")
        column_of_group = {name: column for column, name in enumerate(self.strata)}
        unknown = sorted(set(names.tolist()) - set(column_of_group))
        if unknown:
            raise RobfcpError(f"groups: {unknown[0]!r:.60} had no report; it has no threshold")
        columns = [column_of_group[name] for name in names.tolist()]
        return self._stratum_thresholds.T[columns][:, None, :]

    def with_record(self, record: Record | FilePath | None) -> Calibration:
        """Return the same calibration with another record, or without one.

        Parameters
        ----------
        record : Record, str, PathLike or None
            The record, or its file, which must be that of this calibration.

        Raises
        ------
        RobfcpError
            Where the file does not fit the calibration.

        Examples
        --------
        >>> import os
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10]] * 3)
        >>> robfcp.calibrate(federation, defense="none").save("calibration.json")
        >>> calibration = robfcp.Calibration.load("calibration.json")
        >>> os.rename(calibration.record_path("calibration.json"), "kept.json")
        >>> calibration.with_record("kept.json").benign_clients
        ('client-0', 'client-1', 'client-2')
        """
        if record is None:
            return replace(self, record=None)
        if isinstance(record, (str, os.PathLike)):
            return replace(self, record=self._load_record(record))

        # A record that was read may have been changed since: its digest is computed again.
        return replace(self, record=replace(record, file_digest=""))

    def _load_record(self, path: FilePath) -> Record:
        """Return the record in a file; refuse one that is not of this calibration."""
        from robfcp.calibration._record import Record, RecordDocument

        name = os.fspath(path)
        if not Path(path).exists():
            raise RobfcpError(
                f"{name}: this calibration came without its record; load it from the folder where "
                "its .record.json lies, or pass the reports again"
            )
        data = read_bounded(name, RecordDocument.max_bytes)
        if sha256_of(data) != self.loaded_record_digest:
            raise RobfcpError(
                f"{name}: is not the record of this calibration (its digest differs); "
                "pass the file that was written with it"
            )

        record = Record.from_json(data, name)
        if record.summary != self.summary:
            raise RobfcpError(f"{name}: does not fit the calibration (it sums up to another one)")
        upper_edges = record.federation.binning.upper_edges
        for threshold in self._level_thresholds:
            if not np.isinf(threshold) and threshold not in upper_edges:
                raise RobfcpError(
                    f"{name}: does not fit the calibration (a threshold is not an edge of the grid)"
                )
        return record

    def record_path(self, path: FilePath) -> Path:
        """Return where the record lies if this calibration lies at `path`.

        Parameters
        ----------
        path : str or PathLike
            The calibration's file. The record's name has the first digits of its digest.
        """
        return Path(path).with_suffix(f".{self.record_digest[:12]}.record.json")

    @property
    def record_digest(self) -> str:
        """SHA-256 of the record's file; empty for a calibration that never had one."""
        if self.record is None:
            return self.loaded_record_digest
        return self.record.digest

    @property
    def fingerprint(self) -> str:
        """SHA-256 of record, levels and thresholds: the same sets, whatever version wrote it."""
        levels = [[str(level.coverage), repr(level.threshold)] for level in self.levels]
        return sha256_of(json.dumps([self.record_digest, levels]).encode())

    @property
    def notes(self) -> tuple[str, ...]:
        """What else must be said; with the record also what names clients."""
        if self.record is None:
            return self.public_notes
        private_notes = [note for note in self.record.notes if note not in self.public_notes]
        return (*private_notes, *self.public_notes)

    def require_record(self) -> Record:
        """Return the record.

        Raises
        ------
        RobfcpError
            Where the calibration was loaded without it.
        """
        if self.record is None:
            raise RobfcpError(
                "record: this calibration came without its record; load it with record=True from "
                "the folder where its .record.json lies, or pass the reports again"
            )
        return self.record

    @property
    def federation(self) -> Federation:
        """The validated reports."""
        return self.require_record().federation

    @property
    def maliciousness(self) -> FloatArray:
        """(K,) the maliciousness score that the defense gives each client."""
        return self.require_record().maliciousness

    @property
    def benign_mask(self) -> BoolArray:
        """(K,) the clients that the threshold rests on."""
        return self.require_record().benign_mask

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each flagged client was excluded."""
        return self.require_record().reasons

    @property
    def provenance(self) -> Mapping[str, Any]:
        """An integration's account of the round."""
        return self.require_record().provenance

    @property
    def benign_clients(self) -> tuple[str, ...]:
        """The clients that the threshold rests on."""
        return tuple(self.federation.names_of(self.benign_mask))

    @property
    def flagged_clients(self) -> tuple[str, ...]:
        """The clients whose valid reports the defense excluded; `reasons` says why."""
        return tuple(self.federation.names_of(~self.benign_mask))

    @property
    def rejected_reports(self) -> tuple[RejectedReport, ...]:
        """The clients whose reports were rejected, and why."""
        return self.federation.rejected_reports

    @property
    def missing_clients(self) -> tuple[str, ...]:
        """The registered clients that sent nothing."""
        return self.federation.missing_clients

    @property
    def verdicts(self) -> dict[str, str]:
        """What became of every client: "trusted", "flagged", "faulty" or "missing"."""
        verdicts = dict.fromkeys(self.benign_clients, "trusted")
        verdicts.update(dict.fromkeys(self.flagged_clients, "flagged"))
        verdicts.update({rejected.client: "faulty" for rejected in self.rejected_reports})
        verdicts.update(dict.fromkeys(self.missing_clients, "missing"))
        return verdicts

    def client_coverage(self, levels: Sequence[CoverageLevel] = ()) -> FloatArray:
        """Return (K, L) the share of each client's reported scores that each level covers.

        By class each score is compared with the threshold of its class; a client that keeps no
        classes, and samples that it merged, with the largest.

        Parameters
        ----------
        levels : sequence of CoverageLevel, optional
            Others than the calibration's.
        """
        by_stratum = self.by is not None
        return client_coverage(self.federation, levels or self.levels, by_stratum=by_stratum)

    def class_coverage(self, level: CoverageLevel) -> StratumCoverage:
        """Return how many reported scores of each class or group are covered, client by client.

        Parameters
        ----------
        level : CoverageLevel
            One of the calibration's, or another one.
        """
        return stratum_coverage(self.federation, level)

    def feedback(self, client: str) -> ClientFeedback:
        """Return what one client receives: its own verdict, and its peers' threshold.

        Parameters
        ----------
        client : str
            The name of the client.
        """
        # Feedback stands above calibration in the layers; only this method needs it.
        from robfcp.local import iter_feedback

        for feedback in iter_feedback(self, {client}):
            return feedback
        raise RobfcpError(f"{client}: neither reported nor was registered; check the name")

    def evaluate(
        self,
        predictions: ArrayLike,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        level: int = 0,
        min_coverage: float | None = None,
        interval_confidence: float = 0.95,
        rng: Rng = None,
        score: Score | None = None,
        local_threshold: LocalThreshold | None = None,
    ) -> CoverageEvaluation:
        """Return whether fresh labeled samples are covered; see `robfcp.evaluation.evaluate`.

        Parameters
        ----------
        predictions
            (n, C) class probabilities, or what a regression score takes.
        targets
            (n,) true labels or values.
        groups
            (n,) any further split: the night, the ward, the scanner.
        level
            Which level of the calibration, counted from 0.
        min_coverage
            What coverage is compared with; if None the certificate's lower bound, else the target.
        interval_confidence
            The confidence of the Clopper-Pearson intervals.
        rng
            A seed or generator, for randomized scores.
        score
            The score, where the reports did not name it.
        local_threshold
            A client's own threshold in place of the calibration's.
        """
        # Evaluation stands above calibration in the layers; only this method needs it.
        from robfcp.evaluation import evaluate

        return evaluate(
            self,
            predictions,
            targets,
            groups=groups,
            level=level,
            min_coverage=min_coverage,
            interval_confidence=interval_confidence,
            rng=rng,
            score=score,
            local_threshold=local_threshold,
        )

    def __repr__(self) -> str:
        """Return a line: what a list of calibrations shows."""
        thresholds = ", ".join(threshold_texts(self))
        return f"Calibration({thresholds}; {used_clients_text(self)})"

    def __str__(self) -> str:
        """Return thresholds, excluded clients, certificates and notes, a line each."""
        return "\n".join(summary_lines(self))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return "<br>\n".join(html.escape(line) for line in summary_lines(self))

    def target_text(self, level: CoverageLevel) -> str:
        """Return what was asked for at a level: coverage, or a mean loss in its units.

        Parameters
        ----------
        level : CoverageLevel
            One of the calibration's.
        """
        return target_text(level, self.risk)

    @staticmethod
    def from_document(document: CalibrationDocument) -> Calibration:
        """Return the calibration that stands in a file, without its record.

        Parameters
        ----------
        document : CalibrationDocument
            What stands in the file.
        """
        return Calibration(
            levels=tuple(CoverageLevel.from_document(level) for level in document.levels),
            has_multiple_levels=document.several,
            by=document.by,
            score=from_wire_score(document.score),
            risk=document.risk,
            classes=document.classes,
            defense=document.defence,
            is_guaranteed=document.promised,
            certificate_confidence=document.confidence,
            n_malicious=document.liars,
            n_malicious_given=document.liars_stated,
            verification=document.checked,
            summary=document.summary,
            public_notes=document.public_remarks,
            version=document.version,
            loaded_record_digest=document.recorded,
        )

    def to_document(self) -> CalibrationDocument:
        """Return what stands in the file: everything but the record; it names no client."""
        return CalibrationDocument(
            levels=tuple(level.to_document() for level in self.levels),
            several=self.has_multiple_levels,
            by=self.by,
            score=to_wire_score(self.score),
            risk=self.risk,
            classes=self.classes,
            defence=self.defense,
            promised=self.is_guaranteed,
            confidence=self.certificate_confidence,
            liars=self.n_malicious,
            liars_stated=self.n_malicious_given,
            checked=self.verification,
            summary=self.summary,
            public_remarks=self.public_notes,
            recorded=self.record_digest,
            version=self.version,
        )

    def to_json(self, key: Any = None) -> bytes:
        """Return the file of the calibration: one JSON object, sealed by a digest.

        Parameters
        ----------
        key
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        return self.to_document().to_json(key)

    @classmethod
    def from_json(cls, data: bytes | str, source: str = "") -> Calibration:
        """Return the calibration in a file's contents, without its record.

        Parameters
        ----------
        data : bytes or str
            The contents of the file.
        source : str
            How errors name it.

        Raises
        ------
        RobfcpError
            Where it is no calibration, or its parts contradict each other.
        """
        document = CalibrationDocument.from_json(data, source)
        return cls._from_checked_document(document, source)

    @classmethod
    def _from_checked_document(cls, document: CalibrationDocument, source: str) -> Calibration:
        """Return the calibration; an error names the file."""
        try:
            return cls.from_document(document)
        except RobfcpError as error:
            raise CalibrationDocument.unreadable(source, str(error)) from None

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write record and calibration as a pair, whole or not at all.

        The record goes beside it, named by its digest: `calibration.json` and
        `calibration.1f3a5b7c9d0e.record.json`, which only its owner can read. The calibration is
        renamed last, and records of those it replaces are removed: whenever a process dies, and
        however many save at once, the calibration that is there has its record. A calibration
        that was loaded without its record is written without it.

        Parameters
        ----------
        path : str or PathLike
            The file; an old one is replaced.
        key
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        if self.record is None or is_special(path):
            self.to_document().save(path, key)
            return

        # A record that was read may be written with other bytes: its digest is computed again.
        calibration = replace(self, record=replace(self.record, file_digest=""))
        record_path = calibration.record_path(path)
        with file_lock(record_path.with_name(".robfcp.lock")):
            self.record.save(record_path)
            calibration.to_document().save(path, key)
            _remove_other_records(Path(path), record_path)

    @classmethod
    def load(
        cls,
        path: FilePath,
        server_key: str | None = None,
        *,
        record: bool | FilePath = False,
    ) -> Calibration:
        """Read a saved calibration.

        Parameters
        ----------
        path : str or PathLike
            A file that `save` wrote.
        server_key : str, optional
            The server's public key: a file that it has not signed is refused. Without it whoever
            can write the file can make it say anything; its digest shows accidents only.
        record : bool, str or PathLike, default=False
            Whether the record beside it is read too, or the record's file. Clients predict without
            it; verdicts, feedback and audits need it.

        Returns
        -------
        Calibration
            With its record, where that was asked for.
        """
        document = CalibrationDocument.load(path, server_key)
        calibration = cls._from_checked_document(document, str(path))
        if record is False:
            return calibration
        if record is True:
            return calibration.with_record(calibration.record_path(path))
        return calibration.with_record(record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]


def _remove_other_records(path: Path, kept_record: Path) -> None:
    """Remove the records of calibrations that stood at `path` before."""
    name_of_record = re.compile(re.escape(path.stem) + r"\.[0-9a-f]{12}\.record\.json")
    for other in kept_record.parent.iterdir():
        if other.name != kept_record.name and name_of_record.fullmatch(other.name):
            with suppress(OSError):
                other.unlink()
