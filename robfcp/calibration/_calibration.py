"""The calibration that people keep: thresholds, the clients they rest on and what is proved."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import ArrayLike

from robfcp import __version__
from robfcp._sealed import FilePath, sha256_of
from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import Rng
from robfcp.calibration._coverage import StratumCoverage, client_coverage, stratum_coverage
from robfcp.calibration._document import CalibrationDocument, RoundSummary
from robfcp.calibration._levels import CertifiedThreshold, CoverageLevel
from robfcp.calibration._prediction import Predictor
from robfcp.calibration._storage import load_record, save_calibration
from robfcp.calibration._text import summary_lines, target_text, threshold_texts, used_clients_text
from robfcp.calibration._verdicts import ClientVerdict
from robfcp.certificates import Certificate
from robfcp.errors import RobfcpError
from robfcp.reports import from_wire_score, terms, to_wire_score
from robfcp.scores import Score

if TYPE_CHECKING:
    from robfcp.calibration._record import Record
    from robfcp.evaluation import CoverageEvaluation
    from robfcp.federation import Federation, RejectedReport
    from robfcp.local import ClientFeedback, LocalThreshold


class CertificatesByMaxMalicious(dict[int, Certificate]):
    """The certificate for each number of malicious clients that was computed."""

    def __missing__(self, max_malicious: object) -> Certificate:
        """Refuse a number that was not computed; `dict` calls this where a key is missing."""
        raise RobfcpError(
            f"max_malicious: {max_malicious!r:.40} is not one of the numbers computed, "
            f"0 to {max(self)}"
        )


# By number of malicious clients; by class or group first by the name of the stratum.
Curves = Mapping[int, Certificate] | Mapping[str, Mapping[int, Certificate]]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Predictor):
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
    max_malicious : int or None
        The number of malicious clients that was given before the round; None if none was.
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
    loaded_record_sha256 : str
        SHA-256 of the record's file, of a calibration that was loaded; empty where it has none.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 10, 10]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, coverage=0.8, defense="none")
    >>> round(calibration.threshold, 3)
    0.667
    >>> calibration.predict_set([[0.6, 0.3, 0.1]])
    array([[ True, False, False]])
    """

    defense: str
    is_guaranteed: bool
    certificate_confidence: float
    n_malicious: int
    max_malicious: int | None
    verification: terms.Verification
    summary: RoundSummary
    public_notes: tuple[str, ...] = ()
    version: str = __version__
    record: Record | None = None
    loaded_record_sha256: str = ""

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
        >>> curve = robfcp.calibrate(reports, coverage=0.8, defense="none").certificates
        >>> print(curve[2].statement[:65])
        with 95% confidence, either more than 2 of the 20 sites lie or co
        """
        return self._single(tuple(self._certificates_of_level(level) for level in self.levels))

    def _certificates_of_level(self, level: CoverageLevel) -> Curves:
        """Return the certificates of one level; by class or group, those of each by its name."""
        if self.by is None:
            return self._certificates_of(level)
        return {stratum.name: self._certificates_of(stratum) for stratum in level.strata}

    def _certificates_of(self, threshold: CertifiedThreshold) -> CertificatesByMaxMalicious:
        """Return the certificates of one threshold for each number of malicious clients.

        A point of the curve holds a number of malicious clients and the coverage it allows. All
        else is as in the threshold's own certificate, which is about the same clients.

        Parameters
        ----------
        threshold : CertifiedThreshold
            A level of this calibration, or one of its strata.
        """
        certificate = threshold.certificate
        certificates = CertificatesByMaxMalicious()
        for point in threshold.certificate_points:
            certificates[point.max_malicious] = certificate.for_max_malicious(
                point, self.certificate_confidence
            )
        return certificates

    @property
    def coverage(self) -> float | tuple[float, ...]:
        """The coverage asked for; of losses one minus the risk level over the bound of the loss."""
        return self._single(tuple(float(level.coverage) for level in self.levels))

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
            return replace(self, record=load_record(self, record))

        # A record that was read may have been changed since: its digest is computed again.
        return replace(self, record=replace(record, file_digest=""))

    def record_path(self, path: FilePath) -> Path:
        """Return where the record lies if this calibration lies at `path`.

        Parameters
        ----------
        path : str or PathLike
            The calibration's file. The record's name has the first digits of its digest.
        """
        return Path(path).with_suffix(f".{self.record_sha256[:12]}.record.json")

    @property
    def record_sha256(self) -> str:
        """SHA-256 of the record's file; empty for a calibration that never had one.

        Of a calibration that was loaded without its record it is the digest in its own file.
        """
        if self.record is None:
            return self.loaded_record_sha256
        return self.record.digest

    @property
    def fingerprint(self) -> str:
        """SHA-256 of record, levels and thresholds: the same sets, whatever version wrote it.

        Monitors and alarm histories store it: what goes into it must not change.
        """
        levels = [[str(level.coverage), repr(level.threshold)] for level in self.levels]
        return sha256_of(json.dumps([self.record_sha256, levels]).encode())

    @property
    def notes(self) -> tuple[str, ...]:
        """What else must be said; with the record also what names clients, which comes first."""
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
    def verdicts(self) -> dict[str, ClientVerdict]:
        """What became of every client, by name; of a rejected file where no client is known."""
        # A guarantee holds without the defense: its thresholds are computed from all reports.
        effect_if_flagged: Literal["included", "excluded"] = "excluded"
        if self.is_guaranteed:
            effect_if_flagged = "included"

        verdicts = {}
        reasons = self.reasons
        maliciousness = self.maliciousness.tolist()
        for k, client in enumerate(self.federation.clients):
            if self.benign_mask[k]:
                verdicts[client] = ClientVerdict("benign", "included", "", maliciousness[k])
            else:
                reason = reasons.get(client, "")
                verdicts[client] = ClientVerdict(
                    "flagged", effect_if_flagged, reason, maliciousness[k]
                )
        for rejected in self.rejected_reports:
            verdicts[rejected.client] = ClientVerdict("rejected", "excluded", rejected.reason)
        for client in self.missing_clients:
            verdicts[client] = ClientVerdict("missing", "excluded")
        return verdicts

    def client_coverage(self, levels: Sequence[CoverageLevel] = ()) -> FloatArray:
        """Return (K, L) the share of each client's reported scores that each level covers.

        By class each score is compared with the threshold of its class; a client that keeps no
        classes, and samples that it merged, with the largest. Of coarsened reports these are
        estimates, from the midpoints of the counts.

        Parameters
        ----------
        levels : sequence of CoverageLevel, optional
            The L levels; those of the calibration if there are none.

        Returns
        -------
        ndarray of shape (K, L)
            From 0 to 1, a row for each client of `federation`.
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
        predictions : array_like of shape (n, C)
            Class probabilities, or what a regression score takes.
        targets : array_like of shape (n,)
            True labels or values.
        groups : array_like of shape (n,), optional
            Any further split: the night, the ward, the scanner.
        level : int
            Which level of the calibration, counted from 0.
        min_coverage : float, optional
            What coverage is compared with; if None the certificate's lower bound, else the target.
        interval_confidence : float
            The confidence of the Clopper-Pearson intervals.
        rng : int or Generator, optional
            A seed or generator, for randomized scores.
        score : Score, optional
            The score, where the reports did not name it.
        local_threshold : LocalThreshold, optional
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
            has_multiple_levels=document.has_multiple_levels,
            by=document.by,
            score=from_wire_score(document.score),
            risk=document.risk,
            classes=document.classes,
            defense=document.defense,
            is_guaranteed=document.is_guaranteed,
            certificate_confidence=document.certificate_confidence,
            n_malicious=document.n_malicious,
            max_malicious=document.max_malicious,
            verification=document.verification,
            summary=document.summary,
            public_notes=document.public_notes,
            version=document.version,
            loaded_record_sha256=document.record_sha256,
        )

    def to_document(self) -> CalibrationDocument:
        """Return what stands in the file: everything but the record; it names no client."""
        return CalibrationDocument(
            levels=tuple(level.to_document() for level in self.levels),
            has_multiple_levels=self.has_multiple_levels,
            by=self.by,
            score=to_wire_score(self.score),
            risk=self.risk,
            classes=self.classes,
            defense=self.defense,
            is_guaranteed=self.is_guaranteed,
            certificate_confidence=self.certificate_confidence,
            n_malicious=self.n_malicious,
            max_malicious=self.max_malicious,
            verification=self.verification,
            summary=self.summary,
            public_notes=self.public_notes,
            record_sha256=self.record_sha256,
            version=self.version,
        )

    def to_json(self, key: Any = None) -> bytes:
        """Return the file of the calibration: one JSON object, sealed by a digest.

        Parameters
        ----------
        key : object
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
        """Return the calibration in a document whose seal was checked; an error names the file.

        Parameters
        ----------
        document : CalibrationDocument
            What stands in the file. Its levels or its score may still be invalid.
        source : str
            How errors name the file.
        """
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
        key : object
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        save_calibration(self, path, key)

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
        """Return whether both would be written as the same file, which has the record's digest."""
        return isinstance(other, Calibration) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]
