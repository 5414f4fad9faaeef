"""The artefact people keep: threshold, whom it rests on and what is proved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from robfcp._util.files import is_special, read_limited, write_atomically
from robfcp._version import __version__
from robfcp.calibration.check import Check, check
from robfcp.calibration.document import CalibrationFields, decode_calibration, encode_calibration
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.evidence_file import encode_evidence
from robfcp.calibration.evidenced import Evidenced, EvidenceFile
from robfcp.calibration.levels import Level
from robfcp.calibration.predicting import Predicting
from robfcp.calibration.settings import Settings
from robfcp.calibration.signed import check_signer, sign_sealed
from robfcp.federation import Checked
from robfcp.prediction import in_order, numbered_labels
from robfcp.reports import Names
from robfcp.scores import Risk, Rng, Score

if TYPE_CHECKING:
    from robfcp.calibration.letter import Letter

MAX_CALIBRATION_BYTES = 2**30  # files of version 0.1 hold all reports
FilePath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Calibration(Predicting, Evidenced):
    """Thresholds, the clients they rest on and what is proved about them.

    `threshold`, `tolerance`, `certificate` and `confidence_level` are single values where one
    level was asked for, and tuples in the order asked where there were several.

    The reports and verdicts are the `evidence`, which stays in memory after `calibrate` and lies
    in a file of its own after `save`; a site needs only the calibration to predict.

    Attributes
    ----------
    levels
        Threshold, tolerance and certificate at every confidence level.
    settings
        What `calibrate` was told.
    score
        The score the reports name, if they do; sets and intervals are made with it.
    risk
        The loss that is controlled in place of coverage, if so.
    classes
        The classes the reports name, or their number; None where they do not.
    n_malicious
        How many liars were assumed, stated or estimated.
    checked
        How each part of the reports was checked.
    summary
        How many clients became what: all a site may know.
    source
        The evidence, or where it lies.
    notes
        What was approximated, and how private the reports are.
    several
        Whether several levels were asked for.
    version
        The version of robfcp that made it.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 10, 10]] * 20, score=robfcp.LAC())
    >>> calibration = robfcp.calibrate(federation, confidence_level=0.8, defence="none")
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
    n_malicious: int
    checked: Checked
    summary: Summary
    source: Evidence | EvidenceFile
    notes: tuple[str, ...] = ()
    several: bool = False
    version: str = __version__

    def __repr__(self) -> str:
        """A line: what a notebook shows of it."""
        limits = ", ".join(
            f"threshold {float(one.threshold):.4g} at {float(one.confidence_level):g}"
            if not one.strata
            else f"{len(one.strata)} thresholds at {float(one.confidence_level):g}"
            for one in self.levels
        )
        used = f"{self.summary.n_trusted} of {self.summary.n_clients} sites used"
        return f"Calibration({limits}; {used})"

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
            Which confidence level of the calibration, counted from 0.
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
        >>> calibration = robfcp.calibrate(federation, defence="none", malicious=0)
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
        found = fields.evidence or evidence
        kept = {k: v for k, v in fields._asdict().items() if k not in ("digest", "evidence")}
        rest = found if isinstance(found, Evidence) else EvidenceFile(found, fields.digest)
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
            The server's private key, as `robfcp.reports.load_key` reads it, to sign with.

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
            n_malicious=self.n_malicious,
            checked=self.checked,
            summary=self.summary,
            notes=self.notes,
            several=self.several,
            version=self.version,
            digest=self.evidence_digest,
            evidence=None,
        )


def evidence_path(path: FilePath) -> Path:
    """Where the evidence of the calibration at `path` lies."""
    return Path(path).with_suffix(".evidence.json")
