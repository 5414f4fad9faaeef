"""The artefact people keep: threshold, whom it rests on and what is proved."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp import __version__
from robfcp.arguments import Rng, array
from robfcp.calibration.checking import Check, check
from robfcp.calibration.checks import check_together
from robfcp.calibration.document import (
    CalibrationFields,
    check_signer,
    decode_calibration,
    encode_calibration,
    sign_sealed,
)
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.levels import Level
from robfcp.calibration.record import decode_evidence, encode_evidence
from robfcp.calibration.sealed import digest_of
from robfcp.calibration.settings import Settings
from robfcp.certificate import Certificate, CurvePoint
from robfcp.errors import RobfcpError
from robfcp.federation import Checked, Fault, Federation
from robfcp.files import is_special, read_limited, write_atomically
from robfcp.guarantees import LabelShift
from robfcp.prediction import (
    in_order,
    iterate_sets,
    numbered_labels,
    predict_intervals,
    predict_sets,
)
from robfcp.report import By, Names
from robfcp.scores import Risk, Score

T = TypeVar("T")
Curves = Mapping[int, Certificate] | Mapping[str, Mapping[int, Certificate]]


class Stating:
    """Thresholds with what is proved of them."""

    levels: tuple[Level, ...]
    settings: Settings
    several: bool

    @property
    def threshold(self) -> float | tuple[float, ...] | NDArray[np.float64]:
        """A label is in the set when its score is at most this; infinite takes every label.

        By class or group an array: (C,), or (L, C) for several levels.
        """
        if self.by is not None:
            rows = np.array([[one.threshold for one in level.strata] for level in self.levels])
            return rows if self.several else rows[0]
        return self._single(tuple(level.threshold for level in self.levels))

    @property
    def by(self) -> By | None:
        """Whether there is a threshold for each class or group."""
        return self.settings.by

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes or groups that have thresholds of their own."""
        return tuple(one.name for one in self.levels[0].strata)

    @property
    def certificate(self) -> Certificate | tuple[Certificate, ...]:
        """What coverage is proved, with which confidence, under which assumptions."""
        return self._single(tuple(level.certificate for level in self.levels))

    @property
    def alike_within_classes(self) -> float:
        """How far honest sites' scores may differ within a class, as declared; 0 if nothing was."""
        promise = self.settings.promise
        return promise.alike if isinstance(promise, LabelShift) else 0.0

    @property
    def statement(self) -> str | tuple[str, ...]:
        """The same in words."""
        return self._single(tuple(level.certificate.statement for level in self.levels))

    @property
    def curve(self) -> Curves | tuple[Curves, ...]:
        """For each number of liars what coverage is proved; one event makes all of them true.

        By class or group, those of each of them by its name, about the sites that hold it; one
        event makes all of these true.

        Examples
        --------
        >>> import robfcp
        >>> reports = robfcp.Federation.from_counts([[90, 10]] * 20)
        >>> curve = robfcp.calibrate(reports, 0.8, defence="none").curve
        >>> print(curve[2].statement[:65])
        with 95% confidence, either more than 2 of the 20 sites lie or co
        """
        return self._single(tuple(self._curves(level) for level in self.levels))

    @property
    def coverage(self) -> float | tuple[float, ...]:
        """The coverage asked for."""
        return self._single(tuple(float(level.coverage) for level in self.levels))

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        return values if self.several else values[0]

    def _curves(self, level: Level) -> Curves:
        if self.by is None:
            return self._curve(level.certificate, level.curve)
        return {one.name: self._curve(one.certificate, one.curve) for one in level.strata}

    def _curve(
        self, stated: Certificate, points: tuple[CurvePoint, ...]
    ) -> Mapping[int, Certificate]:
        sure = self.settings.confidence
        return {point.m: stated.for_liars(point, sure) for point in points}


class Predicting(Stating):
    """Thresholds with what is proved of them, and the sets and intervals they make."""

    score: Score | None
    risk: Risk | None
    classes: Names | None

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
        >>> calibration = robfcp.calibrate(federation, 0.75, defence="none")
        >>> calibration.predict_set([[0.6, 0.4], [0.1, 0.9]])
        array([[ True,  True],
               [False,  True]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]])
        array([[False, False, False, False]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]], non_empty=True)
        array([[ True, False, False, False]])
        """
        rows = in_order(probabilities, self.classes)
        self.check_classes(rows)
        limits = self._limits(groups, rows.shape[:1])
        sets = predict_sets(self.score_of(score), rows, limits, rng, non_empty=non_empty)
        return sets if self.several else sets[:, :, 0]

    def iterate_sets(
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

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, 0.75, defence="none")
        >>> for rows, sets in calibration.iterate_sets([[0.6, 0.4], [0.1, 0.9]]):
        ...     print(rows, sets.sum(axis=1))
        slice(0, 2, None) [2 1]
        """
        table = in_order(probabilities, self.classes)
        self.check_classes(table)
        if self.by == "group":
            raise RobfcpError("iterate_sets: thresholds are by group; use predict_set(groups=...)")
        limits = self._limits(None, ())
        rule = self.score_of(score)
        for rows, sets in iterate_sets(rule, table, limits, rng, non_empty=non_empty):
            yield rows, sets if self.several else sets[:, :, 0]

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
        >>> grid = robfcp.Grid.open_ended([0.0, 0.5, 1.0, 2.0])
        >>> reports = [
        ...     robfcp.Report.from_scores(name, [0.1, 0.4, 0.4, 0.9, 1.5], grid) for name in "ab"
        ... ]
        >>> calibration = robfcp.calibrate(reports, 0.5, defence="none")
        >>> calibration.predict_interval([3.0, 7.0], score=robfcp.AbsoluteResidual())
        array([[2.5, 3.5],
               [6.5, 7.5]])
        """
        rule, values = self.score_of(score), array("predictions", predictions)
        if self.by == "class":
            raise RobfcpError("predict_interval: an interval has no classes; calibrate without by=")
        limits = self._limits(groups, values.shape[:1])
        if self.by is None:
            ends = predict_intervals(rule, values, self._thresholds, non_empty=non_empty)
            return ends if self.several else ends[:, :, 0]
        ends = np.empty((len(values), 2, len(self.levels)))
        for own in np.unique(limits[:, 0], axis=0):
            same = (limits[:, 0] == own).all(axis=1)
            limit = tuple(own.tolist())
            ends[same] = predict_intervals(rule, values[same], limit, non_empty=non_empty)
        return ends if self.several else ends[:, :, 0]

    def predict_multilabel(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """(n, C) whether each label is taken: 1 - p at most lambda; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1].

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> p, y = np.random.default_rng(0).random((2, 50, 3))
        >>> reports = [robfcp.Report.from_multilabel(n, p, y < p) for n in "abc"]
        >>> lambdas = robfcp.calibrate(reports, risk=0.1, defence="none")
        >>> lambdas.predict_multilabel([[0.9, 0.1, 0.5]]).shape
        (1, 3)
        """
        if self.risk is None:
            raise RobfcpError("predict_multilabel: the reports held no losses; use predict_set")
        sets = self.risk.multilabel_sets(probabilities, self._thresholds)
        return sets if self.several else sets[:, :, 0]

    def check_classes(self, probabilities: ArrayLike) -> None:
        """Refuse another number of classes than the calibration was made for.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2], labels=[0, 1], classes=2)
        >>> calibration = robfcp.calibrate([report], 0.5, defence="none")
        >>> calibration.check_classes([[0.2, 0.8]])
        """
        if self.classes is None:
            return
        wanted = self.classes if isinstance(self.classes, int) else len(self.classes)
        shape = np.shape(probabilities)
        if len(shape) == 2 and shape[1] != wanted:
            raise RobfcpError(
                f"probabilities: {shape[1]} columns, but the calibration is for {wanted} classes; "
                "use the model and the column order it was made with"
            )

    def score_of(self, score: Score | None = None) -> Score:
        """The score given, or the one the reports name.

        Parameters
        ----------
        score
            The score, where the reports did not name it.

        Returns
        -------
        Score
            What sets and intervals are made with.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3, score=robfcp.LAC())
        >>> robfcp.calibrate(federation, defence="none").score_of()
        LAC()
        """
        chosen = self.score if score is None else score
        if chosen is None:
            raise RobfcpError("score: the reports did not name their score; pass score=")
        return chosen

    def _limits(self, groups: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """(L,) one threshold a level, (C, L) by class, or (n, 1, L) by each sample's group."""
        if self.by is None:
            if groups is not None:
                raise RobfcpError("groups: the thresholds are not by group; leave them out")
            return np.array(self._thresholds)
        table = np.array([[one.threshold for one in level.strata] for level in self.levels]).T
        if self.by == "class":
            return table
        if groups is None:
            raise RobfcpError("groups: the thresholds are by group; pass each sample's group")
        names = array("groups", groups).astype(str)
        if names.shape != shape:
            raise RobfcpError(f"groups: need one a sample {shape}, not shape {names.shape}")
        place = {name: k for k, name in enumerate(self.strata)}
        unknown = sorted(set(names.tolist()) - set(place))
        if unknown:
            raise RobfcpError(f"groups: {unknown[0]!r:.60} had no report; it has no threshold")
        return table[[place[name] for name in names.tolist()]][:, None, :]

    @property
    def _thresholds(self) -> tuple[float, ...]:
        return tuple(level.threshold for level in self.levels)


MAX_EVIDENCE_BYTES = 2**32


@dataclass(frozen=True)
class EvidenceFile:
    """Where the evidence of a calibration that was read from a file should lie."""

    path: FilePath | None
    digest: str


class Evidenced:
    """What knows the reports and verdicts it rests on, or where they lie."""

    levels: tuple[Level, ...]
    public_remarks: tuple[str, ...]
    summary: Summary
    source: Evidence | EvidenceFile

    @cached_property
    def evidence(self) -> Evidence:
        """The reports and verdicts; read from their file where they are not in memory."""
        if isinstance(self.source, Evidence):
            return self.source
        if self.source.path is None:
            raise RobfcpError(
                "evidence: this calibration came without its evidence; load it from the folder "
                "where its .evidence.json lies, or pass the reports again"
            )
        return self._read_evidence(self.source.path)

    @cached_property
    def evidence_digest(self) -> str:
        """SHA-256 of the evidence file."""
        if isinstance(self.source, EvidenceFile):
            return self.source.digest
        return digest_of(encode_evidence(self.source))

    @cached_property
    def identity(self) -> str:
        """SHA-256 of evidence, levels and thresholds: the same sets, whatever version wrote it."""
        levels = [[str(level.coverage), repr(level.threshold)] for level in self.levels]
        return digest_of(json.dumps([self.evidence_digest, levels]).encode())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else must be said; where the record is at hand, also what names sites."""
        named = self.evidence.remarks if self._at_hand else ()
        return (*(one for one in named if one not in self.public_remarks), *self.public_remarks)

    @property
    def _at_hand(self) -> bool:
        """Whether the record can be looked at."""
        if isinstance(self.source, Evidence):
            return True
        return self.source.path is not None and Path(self.source.path).exists()

    @property
    def verdicts(self) -> dict[str, str]:
        """What became of every site: "trusted", "flagged", "faulty" or "missing"."""
        found = dict.fromkeys(self.trusted, "trusted") | dict.fromkeys(self.flagged, "flagged")
        found |= {fault.client: "faulty" for fault in self.faulty}
        return found | dict.fromkeys(self.missing, "missing")

    @property
    def federation(self) -> Federation:
        """The validated reports."""
        return self.evidence.federation

    @property
    def oddness(self) -> NDArray[np.float64]:
        """(K,) how odd the defence finds each site."""
        return self.evidence.oddness

    @property
    def trusted_mask(self) -> NDArray[np.bool_]:
        """(K,) whom the threshold rests on."""
        return self.evidence.trusted_mask

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each flagged client was left out."""
        return self.evidence.reasons

    @property
    def provenance(self) -> Mapping[str, Any]:
        """An engine's record of the round."""
        return self.evidence.provenance

    @property
    def trusted(self) -> tuple[str, ...]:
        """The clients the threshold rests on."""
        return self.evidence.trusted

    @property
    def flagged(self) -> tuple[str, ...]:
        """The clients whose valid reports the defence left out; `reasons` says why."""
        return self.evidence.flagged

    @property
    def faulty(self) -> tuple[Fault, ...]:
        """The clients whose reports were refused, and why."""
        return self.federation.faulty

    @property
    def missing(self) -> tuple[str, ...]:
        """The registered clients that sent nothing."""
        return self.federation.missing

    def _read_evidence(self, path: FilePath) -> Evidence:
        data = read_limited(path, MAX_EVIDENCE_BYTES)
        name = os.fspath(path)
        if digest_of(data) != self.evidence_digest:
            raise RobfcpError(
                f"{name}: is not the evidence of this calibration (its digest differs); "
                "pass the file that was written with it"
            )
        evidence = decode_evidence(data, name)
        try:
            check_together(self.levels, self.summary, evidence)
        except RobfcpError as error:
            raise RobfcpError(f"{name}: does not fit the calibration ({error})") from None
        return evidence


if TYPE_CHECKING:
    from robfcp.calibration.letters import Letter

MAX_CALIBRATION_BYTES = 2**30
FilePath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Calibration(Predicting, Evidenced):
    """Thresholds, the clients they rest on and what is proved about them.

    `threshold`, `certificate`, `statement`, `curve` and `coverage` are single values where one
    coverage was asked for, and tuples in the order asked where there were several.

    The reports and verdicts are the `evidence`, which stays in memory after `calibrate` and lies
    in a file of its own after `save`; a site needs only the calibration to predict.

    Attributes
    ----------
    levels
        Threshold and certificate for every coverage asked for.
    settings
        What `calibrate` was told.
    score
        The score the reports name, if they do; sets and intervals are made with it.
    risk
        The loss that is controlled in place of coverage, if so.
    classes
        The classes the reports name, or their number; None where they do not.
    liars
        How many may lie: the promise's number, else the defence's, else those left out.
    liars_stated
        Whether that number was stated beforehand.
    checked
        How each part of the reports was checked.
    summary
        How many clients became what: all a site may know.
    source
        The evidence, or where it lies.
    public_remarks
        What else must be said, as far as it names no site.
    several
        Whether several levels were asked for.
    version
        The version of robfcp that made it.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 10, 10]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, 0.8, defence="none")
    >>> round(calibration.threshold, 3)
    0.667
    >>> calibration.predict_set([[0.6, 0.3, 0.1]])
    array([[ True, False, False]])
    """

    levels: tuple[Level, ...]
    settings: Settings
    score: Score | None
    risk: Risk | None
    classes: Names | None
    liars: int
    liars_stated: bool
    checked: Checked
    summary: Summary
    source: Evidence | EvidenceFile
    public_remarks: tuple[str, ...] = ()
    several: bool = False
    version: str = __version__

    def __repr__(self) -> str:
        """A line: what a list of them shows."""
        used = f"{self.summary.n_trusted} of {self.summary.n_clients} sites used"
        return f"Calibration({', '.join(self._limits_in_words)}; {used})"

    def __str__(self) -> str:
        """Threshold, who was left out and why, what is proved, every remark: a line each."""
        return "\n".join(self._sentences)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return "<br>\n".join(html.escape(line) for line in self._sentences)

    @property
    def _limits_in_words(self) -> list[str]:
        return [
            f"threshold {float(one.threshold):.4g} for coverage {float(one.coverage):g}"
            if not one.strata
            else f"{len(one.strata)} thresholds for coverage {float(one.coverage):g}"
            for one in self.levels
        ]

    @property
    def _sentences(self) -> list[str]:
        summary, lines = self.summary, [f"{one}" for one in self._limits_in_words]
        lines.append(f"{summary.n_trusted} of {summary.n_clients} sites used")
        if self._at_hand:
            out = "left out" if self.settings.promise is None else "flagged"
            lines += [f"{out}: {name}: {self.reasons.get(name, '')}" for name in self.flagged]
            lines += [f"refused: {fault.reason}" for fault in self.faulty]
            lines += [f"missing: {name}" for name in self.missing]
        else:
            counts = {"left out": summary.n_flagged, "refused": summary.n_faulty}
            counts["missing"] = summary.n_missing
            lines += [f"{number} {word}" for word, number in counts.items() if number]
        for one in self.levels:
            lines.append(f"proved: {one.certificate.statement}")
        return [*lines, *self.remarks]

    def with_evidence(self, path: FilePath) -> Calibration:
        """The same calibration with the evidence in another place.

        Parameters
        ----------
        path
            Where its evidence file lies; read when first asked for.

        Returns
        -------
        Calibration
            Everything else is unchanged.

        Examples
        --------
        >>> import os
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10]] * 3)
        >>> robfcp.calibrate(federation, defence="none").save("calibration.json")
        >>> os.rename("calibration.evidence.json", "kept.json")
        >>> robfcp.Calibration.load("calibration.json").with_evidence("kept.json").trusted
        ('client-0', 'client-1', 'client-2')
        """
        return replace(self, source=EvidenceFile(path, self.evidence_digest))

    def with_provenance(self, provenance: Mapping[str, Any]) -> Calibration:
        """The same calibration with an engine's record of the round in its evidence.

        Parameters
        ----------
        provenance
            Anything JSON can hold.

        Returns
        -------
        Calibration
            Everything else is unchanged, but the evidence's digest.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> calibration.with_provenance({"engine": "by hand"}).provenance
        {'engine': 'by hand'}
        """
        return replace(self, source=replace(self.evidence, provenance=provenance))

    if TYPE_CHECKING:  # a letter holds a calibration: the room's door adds this one

        def letter(self, client: str) -> Letter:
            """What one site is told: its own verdict, and what the others' reports prove for it."""

    def check(
        self,
        predictions: ArrayLike,
        targets: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        level: int = 0,
        floor: float | None = None,
        confidence: float = 0.95,
        rng: Rng = None,
        score: Score | None = None,
    ) -> Check:
        """Whether fresh labelled samples are covered as promised, with exact intervals.

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
        floor
            What to hold coverage against; the certificate's lower end, or 1 - alpha, if None.
        confidence
            Of the Clopper-Pearson intervals.
        rng
            A seed or generator, for randomised scores.
        score
            The score, where the reports did not name it.

        Returns
        -------
        Check
            Coverage overall, by class and by group; its `line` is the answer.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> found = calibration.check([[0.9, 0.1]] * 100, [0] * 96 + [1] * 4, floor=0.93)
        >>> found.overall.covered, found.verdict, found.enough
        (96, 'cannot tell yet', 295)
        """
        return check(
            self,
            in_order(predictions, self.classes),
            numbered_labels(targets, self.classes),
            groups=groups,
            level=level,
            floor=floor,
            confidence=confidence,
            rng=rng,
            score=score,
        )

    def to_json(self) -> bytes:
        """The calibration without its evidence as one JSON object, sealed by a digest.

        Returns
        -------
        bytes
            What `from_json` reads; it names no client.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> robfcp.Calibration.from_json(calibration.to_json()) == calibration
        True
        """
        return encode_calibration(self._fields())

    @staticmethod
    def from_json(
        data: bytes | str,
        source: str = "calibration",
        evidence: Evidence | FilePath | None = None,
    ) -> Calibration:
        """A calibration from JSON, refused when it was damaged or is of a newer schema.

        Parameters
        ----------
        data
            What `to_json` gave.
        source
            How errors name it.
        evidence
            What it rests on, or the file that holds it; not needed to predict.

        Returns
        -------
        Calibration
            Checked.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> data = calibration.to_json()
        >>> robfcp.Calibration.from_json(data, evidence=calibration.evidence).trusted
        ('client-0', 'client-1', 'client-2')
        """
        fields = decode_calibration(data, source)
        kept = {k: v for k, v in fields._asdict().items() if k != "digest"}
        rest = evidence if isinstance(evidence, Evidence) else EvidenceFile(evidence, fields.digest)
        return Calibration(**kept, source=rest)

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write calibration and evidence, each whole or not at all.

        The evidence goes beside it: `calibration.json` and `calibration.evidence.json`. A
        calibration read without its evidence is written without it.

        Parameters
        ----------
        path
            The file; an old one is replaced.
        key
            The server's private key, as `robfcp.report.load_key` reads it, to sign with.

        Examples
        --------
        >>> import os
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> calibration.save("calibration.json")
        >>> sorted(os.listdir())
        ['calibration.evidence.json', 'calibration.json']
        """
        if isinstance(self.source, Evidence) and not is_special(path):
            write_atomically(evidence_path(path), encode_evidence(self.source))
        data = self.to_json()
        write_atomically(path, data if key is None else sign_sealed(data, key))

    @staticmethod
    def load(path: FilePath, server_key: str | None = None) -> Calibration:
        """Read a saved calibration; its evidence is read when first asked for.

        Parameters
        ----------
        path
            A file that `save` wrote.
        server_key
            The server's public key: a file that it has not signed is refused. Without it whoever
            can write the file can make it say anything; its digest shows accidents only.

        Returns
        -------
        Calibration
            It predicts with or without its evidence.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> calibration.save("calibration.json")
        >>> robfcp.Calibration.load("calibration.json") == calibration
        True
        """
        data = read_limited(path, MAX_CALIBRATION_BYTES)
        if server_key is not None:
            check_signer(data, server_key, os.fspath(path))
        return Calibration.from_json(data, os.fspath(path), evidence_path(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def _fields(self) -> CalibrationFields:
        return CalibrationFields(
            levels=self.levels,
            settings=self.settings,
            score=self.score,
            risk=self.risk,
            classes=self.classes,
            liars=self.liars,
            liars_stated=self.liars_stated,
            checked=self.checked,
            summary=self.summary,
            public_remarks=self.public_remarks,
            several=self.several,
            version=self.version,
            digest=self.evidence_digest,
        )


def evidence_path(path: FilePath) -> Path:
    """Where the evidence of the calibration at `path` lies."""
    return Path(path).with_suffix(".evidence.json")
