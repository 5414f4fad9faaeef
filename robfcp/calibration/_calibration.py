"""The artefact people keep: threshold, whom it rests on and what is proved."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec.structs import force_setattr, replace
from numpy.typing import ArrayLike, NDArray

from robfcp import __version__
from robfcp._files import file_lock, is_special, read_bounded
from robfcp._probabilities import reorder_columns
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._validation import Rng, as_array, parse_level
from robfcp.certificates import Certificate, CertificatePoint, format_loss_upper
from robfcp.errors import RobfcpError
from robfcp.evaluation import evaluate
from robfcp.reports import (
    StratumKind,
    StratumNames,
    _wire,
    check_stratum_names,
    stratum_labels,
    terms,
)
from robfcp.scores import ClassificationScore, Risk, Score

if TYPE_CHECKING:
    from robfcp.calibration._record import Record
    from robfcp.federation import Federation, RejectedReport
    from robfcp.local._feedback import ClientFeedback

    Exact: TypeAlias = Fraction
    Limit: TypeAlias = float
else:  # what stands in a file for a fraction, and for a threshold that may be infinite
    Exact, Limit = str, float | None

T = TypeVar("T")


class CertificateCurve(dict[int, Certificate]):
    """What is proved for each number of liars."""

    def __missing__(self, m: object) -> Certificate:
        raise RobfcpError(f"curve: {m!r:.40} is none of the numbers computed, 0 to {max(self)}")


Curves = Mapping[int, Certificate] | Mapping[str, Mapping[int, Certificate]]


class CertifiedThreshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A threshold and its certificate.

    `curve` says where coverage lies for each number of liars, all of it true at once.
    """

    threshold: Limit
    certificate: Certificate
    curve: tuple[CertificatePoint, ...] = ()

    def __post_init__(self) -> None:
        if self.threshold is None:
            force_setattr(self, "threshold", float("inf"))


class StratumThreshold(CertifiedThreshold, frozen=True, kw_only=True):
    """The threshold of one class or group, about the sites that hold it.

    With an infinite threshold it is "always covered". With at most m of its holders lying it is
    "unprotected" where m or fewer hold it, "hardly protected" where 2m or fewer do.
    """

    name: str
    holders: int
    samples: int

    @property
    def protection(self) -> str:
        """How well the number of its holders protects it; empty where it does."""
        m = self.certificate.m
        if np.isinf(self.threshold):
            return "always covered"
        if self.holders <= m:
            return "unprotected"
        return "hardly protected" if m and self.holders <= 2 * m else ""


class CoverageLevel(CertifiedThreshold, frozen=True, kw_only=True):
    """The threshold for one coverage wanted.

    With `parts` there is one for each class or group, and `threshold` is the largest of them.
    `empty_from` is the number of liars from which on nothing is proved, None where something is.
    """

    coverage: Exact
    parts: tuple[StratumThreshold, ...] = ()
    empty_from: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.coverage, str):
            force_setattr(self, "coverage", parse_level(self.coverage))

    @property
    def is_trivial(self) -> bool:
        """Whether every set is full: no threshold is finite."""
        return all(np.isinf(one.threshold) for one in self.parts or (self,))


class RoundSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many sites became what, and the context they reported in: all a site may know."""

    n_clients: int
    n_samples: int
    n_trusted: int
    n_flagged: int
    n_faulty: int
    n_missing: int
    grid: str
    round: str | None
    model: str | None


class Calibration(SealedFile, frozen=True, eq=False, dict=True, forbid_unknown_fields=True):
    """Thresholds, the sites they rest on and what is proved about them.

    `threshold`, `certificate`, `statement`, `curve` and `coverage` are single values where one
    coverage was asked for, and tuples in the order asked where there were several.

    The reports and verdicts are the `record`, which stays in memory after `calibrate` and lies in a
    file of its own after `save`; a site needs only the calibration to predict.

    Attributes
    ----------
    levels
        Threshold and certificate for every coverage asked for.
    several
        Whether several were asked for.
    by
        Whether there is a threshold for each class or group.
    score
        The score the reports name, if they do; sets and intervals are made with it.
    risk
        The loss that is controlled in place of coverage, if so.
    classes
        The classes the reports name, or their number; None where they do not.
    defence
        The defence by name; the record has its parameters.
    promised
        Whether the thresholds were promised whatever some sites do; the record has the promise.
    confidence
        With which certificates hold, over the calibration data.
    liars
        How many may lie: the promise's number, else the defence's, else those left out.
    liars_stated
        Whether that number was stated beforehand.
    checked
        How each part of the reports was checked.
    summary
        How many sites became what: all a site may know.
    public_remarks
        What else must be said, as far as it names no site.
    recorded
        SHA-256 of the record's file; empty while the record is in memory.
    version
        The version of robfcp that made it.

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

    kind: ClassVar[str] = "calibration"
    hint: ClassVar[str] = "pass a file written by robfcp calibrate"
    max_bytes: ClassVar[int] = 2**30
    is_private: ClassVar[bool] = False  # it names no site, and sites predict with it

    levels: tuple[CoverageLevel, ...]
    several: bool
    by: StratumKind | None
    score: _wire.HeldScore | None
    risk: Risk | None
    classes: StratumNames | None
    defence: str
    promised: bool
    confidence: float
    liars: int
    liars_stated: bool
    checked: terms.Verification
    summary: RoundSummary
    public_remarks: tuple[str, ...] = ()
    recorded: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    version: str = __version__

    def __post_init__(self) -> None:
        if isinstance(self.score, _wire.WireScore):
            force_setattr(self, "score", _wire.from_wire_score(self.score))

    @property
    def threshold(self) -> float | tuple[float, ...] | NDArray[np.float64]:
        """A label is in the set when its score is at most this; infinite takes every label.

        By class or group an array: (C,), or (L, C) for several levels.
        """
        if self.by is not None:
            return self._stratum_thresholds if self.several else self._stratum_thresholds[0]
        return self._single(self._level_thresholds)

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes or groups that have thresholds of their own."""
        return tuple(one.name for one in self.levels[0].parts)

    @property
    def certificate(self) -> Certificate | tuple[Certificate, ...]:
        """What coverage is proved, with which confidence, under which assumptions."""
        return self._single(tuple(level.certificate for level in self.levels))

    @property
    def statement(self) -> str | tuple[str, ...]:
        """The same in words."""
        return self._single(tuple(level.certificate.statement for level in self.levels))

    @property
    def certificates(self) -> Curves | tuple[Curves, ...]:
        """For each number of liars what coverage is proved; one event makes all of them true.

        By class or group, those of each of them by its name, about the sites that hold it; one
        event makes all of these true.

        Examples
        --------
        >>> import robfcp
        >>> reports = robfcp.Federation.from_counts([[90, 10]] * 20)
        >>> curve = robfcp.calibrate(reports, 0.8, defense="none").certificates
        >>> print(curve[2].statement[:65])
        with 95% confidence, either more than 2 of the 20 sites lie or co
        """

        def points(one: CertifiedThreshold) -> dict[int, Certificate]:
            return CertificateCurve(
                {p.m: one.certificate.for_max_malicious(p, self.confidence) for p in one.curve}
            )

        found: tuple[Curves, ...] = tuple(map(points, self.levels))
        if self.by is not None:
            found = tuple({one.name: points(one) for one in level.parts} for level in self.levels)
        return self._single(found)

    @property
    def coverage(self) -> float | tuple[float, ...]:
        """The coverage asked for."""
        return self._single(tuple(float(level.coverage) for level in self.levels))

    @property
    def _level_thresholds(self) -> tuple[float, ...]:
        return tuple(level.threshold for level in self.levels)

    @property
    def _stratum_thresholds(self) -> NDArray[np.float64]:
        return np.array([[one.threshold for one in level.parts] for level in self.levels])

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        return values if self.several else values[0]

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
        rows = reorder_columns(probabilities, self.classes)
        limits = self._thresholds_for(groups, rows.shape[:1])
        sets = self.classification_score(score).prediction_sets(
            rows, limits, rng, non_empty=non_empty
        )
        return sets if self.several else sets[:, :, 0]

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
        rule, limits = self.classification_score(score), self._thresholds_for(None, ())
        for rows, sets in rule.iter_prediction_sets(table, limits, rng, non_empty=non_empty):
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
        >>> grid = robfcp.Binning.open_ended([0.0, 0.5, 1.0, 2.0])
        >>> reports = [
        ...     robfcp.Report.from_scores(name, [0.1, 0.4, 0.4, 0.9, 1.5], grid) for name in "ab"
        ... ]
        >>> calibration = robfcp.calibrate(reports, 0.5, defense="none")
        >>> calibration.predict_interval([3.0, 7.0], score=robfcp.AbsoluteResidual())
        array([[2.5, 3.5],
               [6.5, 7.5]])
        """
        rule, values = self.resolve_score(score), as_array("predictions", predictions)
        if self.by == "class":
            raise RobfcpError("predict_interval: an interval has no classes; calibrate without by=")
        if isinstance(rule, (ClassificationScore, type)) or not hasattr(rule, "interval"):
            raise RobfcpError(
                f"{getattr(rule, 'name', rule)}: is no regression score; use predict_set"
            )
        limits = self._thresholds_for(groups, values.shape[:1]).reshape(-1, len(self.levels))
        ends = np.empty((len(values), 2, len(self.levels)))
        for level, own in enumerate(limits.T):
            for limit in np.unique(own):
                same = np.broadcast_to(own == limit, len(values))
                ends[same, :, level] = rule.interval(values[same], limit)
        if non_empty:
            crossed = ends[:, :1] > ends[:, 1:]
            ends = np.where(crossed, ends.mean(axis=1, keepdims=True), ends)
        return ends if self.several else ends[:, :, 0]

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
        return sets if self.several else sets[:, :, 0]

    def resolve_score(self, score: Score | None = None) -> Score:
        """The score given, or the one the reports name.

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
        """The same, refused where it has no classes.

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

    def _thresholds_for(
        self, groups: ArrayLike | None, shape: tuple[int, ...]
    ) -> NDArray[np.float64]:
        """(L,) one threshold a level, (C, L) by class, or (n, 1, L) by each sample's group."""
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
        place = {name: k for k, name in enumerate(self.strata)}
        unknown = sorted(set(names.tolist()) - set(place))
        if unknown:
            raise RobfcpError(f"groups: {unknown[0]!r:.60} had no report; it has no threshold")
        return self._stratum_thresholds.T[[place[name] for name in names.tolist()]][:, None, :]

    def with_record(self, record: Record | FilePath | None) -> Calibration:
        """The same calibration with its record, or with the place where that lies.

        Parameters
        ----------
        record
            The record, or its file, which is read when first asked for.

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
        found = replace(self)
        lies_there = record is None or isinstance(record, (str, os.PathLike))
        found.__dict__["place" if lies_there else "record"] = record
        return found

    def record_path(self, path: FilePath) -> Path:
        """Where the record lies if this calibration lies at `path`: its name has its digest.

        Parameters
        ----------
        path
            The calibration's file.
        """
        return Path(path).with_suffix(f".{self.record_digest[:12]}.record.json")

    @cached_property
    def record(self) -> Record:
        """The reports and verdicts; read from their file where they are not in memory."""
        if not self._at_hand:
            raise RobfcpError(
                f"{self._held or 'record'}: this calibration came without its record; load it from "
                "the folder where its .record.json lies, or pass the reports again"
            )
        from robfcp.calibration._record import Record

        name = os.fspath(self._held)
        data = read_bounded(name, Record.max_bytes)
        if sha256_of(data) != self.recorded:
            raise RobfcpError(
                f"{name}: is not the record of this calibration (its digest differs); "
                "pass the file that was written with it"
            )
        record = Record.from_json(data, name)
        upper = record.federation.binning.upper_edges
        if record.summary != self.summary:
            raise RobfcpError(f"{name}: does not fit the calibration (it sums up to another one)")
        if not all(np.isinf(limit) or limit in upper for limit in self._level_thresholds):
            raise RobfcpError(
                f"{name}: does not fit the calibration (a threshold is not an edge of the grid)"
            )
        return record

    @property
    def _held(self) -> Any:
        """The file where the record lies, else the record in memory, else None."""
        return self.__dict__.get("place", self.__dict__.get("record"))

    @property
    def _unsaved(self) -> bool:
        """Whether the record is in memory and in no file."""
        return "record" in self.__dict__ and "place" not in self.__dict__

    @cached_property
    def record_digest(self) -> str:
        """SHA-256 of the record's file."""
        return sha256_of(self.record.to_json()) if self._unsaved else self.recorded

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of record, levels and thresholds: the same sets, whatever version wrote it."""
        levels = [[str(level.coverage), repr(level.threshold)] for level in self.levels]
        return sha256_of(json.dumps([self.record_digest, levels]).encode())

    @property
    def notes(self) -> tuple[str, ...]:
        """What else must be said; where the record is at hand, also what names sites."""
        named = self.record.remarks if self._at_hand else ()
        return (*(one for one in named if one not in self.public_remarks), *self.public_remarks)

    @property
    def _at_hand(self) -> bool:
        """Whether the record can be looked at."""
        return "record" in self.__dict__ or (self._held is not None and Path(self._held).exists())

    @property
    def federation(self) -> Federation:
        """The validated reports."""
        return self.record.federation

    @property
    def maliciousness(self) -> NDArray[np.float64]:
        """(K,) how odd the defence finds each site."""
        return self.record.oddness

    @property
    def benign_mask(self) -> NDArray[np.bool_]:
        """(K,) whom the threshold rests on."""
        return self.record.benign_mask

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each flagged site was left out."""
        return self.record.flagged

    @property
    def provenance(self) -> Mapping[str, Any]:
        """An engine's account of the round."""
        return self.record.provenance

    @property
    def benign_clients(self) -> tuple[str, ...]:
        """The sites the threshold rests on."""
        return tuple(self.federation.names_of(self.benign_mask))

    @property
    def flagged_clients(self) -> tuple[str, ...]:
        """The sites whose valid reports the defence left out; `reasons` says why."""
        return tuple(self.federation.names_of(~self.benign_mask))

    @property
    def rejected_reports(self) -> tuple[RejectedReport, ...]:
        """The sites whose reports were refused, and why."""
        return self.federation.rejected_reports

    @property
    def missing_clients(self) -> tuple[str, ...]:
        """The registered sites that sent nothing."""
        return self.federation.missing_clients

    @property
    def verdicts(self) -> dict[str, str]:
        """What became of every site: "trusted", "flagged", "faulty" or "missing"."""
        found = dict.fromkeys(self.benign_clients, "trusted") | dict.fromkeys(
            self.flagged_clients, "flagged"
        )
        found |= {fault.client: "faulty" for fault in self.rejected_reports}
        return found | dict.fromkeys(self.missing_clients, "missing")

    def client_coverage(self, levels: Sequence[CoverageLevel] = ()) -> NDArray[np.float64]:
        """(K, L) the share of each site's own reported scores that is covered.

        By class each score is held against its own class's threshold; a site that did not report by
        class, and what a site merged, against the largest.

        Parameters
        ----------
        levels
            Others than the calibration's.
        """
        federation, strata, levels = self.federation, self.federation.strata, levels or self.levels
        limits = [level.threshold for level in levels]
        edges = federation.binning.bin_index_of_threshold(limits).tolist()
        below = np.stack([federation.cumulative_count(edge) for edge in edges], axis=1)
        shares = np.clip(below / federation.total_counts[:, None], 0, 1)
        found = np.where(np.isinf(limits), 1.0, shares)
        if self.by is not None and strata is not None:
            for place, level in enumerate(levels):
                _, covered, sizes = self.class_coverage(level)
                found[strata.rows, place] = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
        return found

    def class_coverage(
        self, level: CoverageLevel
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """(C,) thresholds of classes or groups, (R, C) counts covered and all counts of R reports.

        The common threshold is that of those without one of their own.

        Parameters
        ----------
        level
            One of the calibration's, or another one.
        """
        strata = self.federation.strata
        if strata is None:
            raise RobfcpError("calibration: its reports keep no classes or groups; report by class")
        own = {one.name: one.threshold for one in level.parts}
        limits = np.array([own.get(name, level.threshold) for name in strata.labels])
        last = (np.arange(strata.n_strata) + 1) * strata.n_bins - 1
        at = last + 1 - strata.n_bins + self.federation.binning.bin_index_of_threshold(limits)
        ends = np.unique(np.concatenate([at, last]))
        below = np.cumsum(strata.table.merge_bins(ends), axis=1)
        through = below[:, np.searchsorted(ends, last)]
        before = np.pad(through[:, :-1], ((0, 0), (1, 0)))
        sizes = np.maximum(through - before, 0)  # what noise left of them
        return limits, np.clip(below[:, np.searchsorted(ends, at)] - before, 0, sizes), sizes

    def feedback(self, client: str) -> ClientFeedback:
        """What one site is told: its own verdict, and what the others' reports prove for it.

        Parameters
        ----------
        client
            The site's name.
        """
        from robfcp.local._feedback import iter_feedback

        for letter in iter_feedback(self, {client}):
            return letter
        raise RobfcpError(f"{client}: neither reported nor was registered; check the name")

    evaluate = evaluate

    def __repr__(self) -> str:
        """A line: what a list of them shows."""
        used = f"{self.summary.n_trusted} of {self.summary.n_clients} sites used"
        return f"Calibration({', '.join(self._threshold_texts)}; {used})"

    def __str__(self) -> str:
        """Threshold, who was left out and why, what is proved, every remark: a line each."""
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return "<br>\n".join(html.escape(line) for line in self._lines)

    def target_text(self, level: CoverageLevel) -> str:
        """What was asked for at a level: coverage, or a mean loss in its units.

        Parameters
        ----------
        level
            One of the calibration's.
        """
        if self.risk is None:
            return f"coverage {float(level.coverage):g}"
        most = format_loss_upper(float(1 - level.coverage) * self.risk.bound, self.risk.bound)
        return f"a mean {self.risk.name} of at most {most}"

    @property
    def _threshold_texts(self) -> list[str]:
        return [
            (f"{len(one.parts)} thresholds" if one.parts else f"threshold {one.threshold:.4g}")
            + f" for {self.target_text(one)}"
            for one in self.levels
        ]

    @property
    def _lines(self) -> list[str]:
        summary, lines = self.summary, self._threshold_texts
        lines.append(f"{summary.n_trusted} of {summary.n_clients} sites used")
        out = "flagged" if self.promised else "left out"
        if self._at_hand:
            from robfcp.diagnosis import diagnose

            found = {} if self.federation.is_out_of_core else diagnose(self, self.flagged_clients)
            for name, reason in self.reasons.items():
                told = found[name].with_defense_reason(reason) if found else reason
                lines.append(f"{out}: {name}: {told}")
            lines += ["robfcp.diagnose also tells who else deserves a look"] if found else []
            lines += [f"refused: {fault.reason}" for fault in self.rejected_reports]
            lines += [f"missing: {name}" for name in self.missing_clients]
        else:
            counts = {out: summary.n_flagged, "refused": summary.n_faulty}
            counts["missing"] = summary.n_missing
            lines += [f"{number} {word}" for word, number in counts.items() if number]
        lines += [f"proved: {one.certificate.statement}" for one in self.levels]
        return [*lines, *self.notes]

    def find_contradiction(self) -> str:
        """What no calibration of so many sites can say, in words; empty where nothing is wrong."""
        n_clients, parts = self.summary.n_clients, self.strata if self.levels else ()
        wrong = "the parts of the file contradict each other"
        if not self.levels or (len(self.levels) > 1 and not self.several):
            return f"{wrong} (several levels, one threshold)"
        if not 0 <= self.liars < n_clients or not 0 < self.confidence < 1:
            return f"{wrong} (liars, or the confidence)"
        for level in self.levels:
            names = tuple(part.name for part in level.parts)
            if names != parts or (self.by is None) != (names == ()):
                return f"{wrong} (thresholds by class or group)"
            if level.certificate.n_clients > n_clients and not names:  # a promise may be of fewer
                return f"{wrong} (a certificate does not fit)"
        if self.classes is not None:
            check_stratum_names("class", self.classes)
            if self.by == "class" and parts != stratum_labels(self.classes):
                return f"{wrong} (a class has no threshold)"
        return ""

    def body(self) -> dict[str, Any]:
        """What the file holds: everything but the record, whose digest it names; no site."""
        said = {"score": _wire.to_wire_score(self.score), "recorded": self.record_digest}
        return {**msgspec.structs.asdict(self), **said}

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write record and calibration as a pair, whole or not at all.

        The record goes beside it, named by its digest: `calibration.json` and
        `calibration.1f3a5b7c9d0e.record.json`, which only its owner can read. The calibration is
        renamed last, and records of those it replaces are removed: whenever a process dies, and
        however many save at once, the calibration that is there has its record. One read without
        its record is written without it.

        Parameters
        ----------
        path
            The file; an old one is replaced.
        key
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        if not self._unsaved or is_special(path):
            super().save(path, key)
            return
        own = self.record_path(path)
        with file_lock(own.with_name(".robfcp.lock")):
            self.record.save(own)
            super().save(path, key)
            name = re.compile(re.escape(Path(path).stem) + r"\.[0-9a-f]{12}\.record\.json")
            for other in own.parent.iterdir():
                if other.name != own.name and name.fullmatch(other.name):
                    with suppress(OSError):
                        other.unlink()

    @classmethod
    def load(cls, path: FilePath, server_key: str | None = None) -> Calibration:
        """Read a saved calibration; its record is read when first asked for.

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
            It predicts with or without its record.
        """
        found = super().load(path, server_key)
        return found.with_record(found.record_path(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return _unpickled, (*msgspec.structs.astuple(self), self._held)


def _unpickled(*parts: Any) -> Calibration:
    """A pickled calibration with its record."""
    *fields, place = parts
    return Calibration(*fields).with_record(place)
