"""A calibration's evidence: in memory, or in the file beside it until it is first asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.files import read_limited
from robfcp.calibration.checks import check_together
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.evidence_file import decode_evidence, encode_evidence
from robfcp.calibration.levels import Level
from robfcp.calibration.sealed import digest_of
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation

MAX_EVIDENCE_BYTES = 2**32
FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class EvidenceFile:
    """Where the evidence of a calibration that was read from a file should lie."""

    path: FilePath | None
    digest: str


class Evidenced:
    """What knows the reports and verdicts it rests on, or where they lie."""

    levels: tuple[Level, ...]
    notes: tuple[str, ...]
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
        levels = [[str(level.confidence_level), repr(level.threshold)] for level in self.levels]
        return digest_of(json.dumps([self.evidence_digest, levels]).encode())

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, after those of the defence that name sites and so stay with the evidence."""
        finding = self.evidence.finding
        named = () if finding is None else finding.notes
        return (*(note for note in named if note not in self.notes), *self.notes)

    @property
    def federation(self) -> Federation:
        """The validated reports."""
        return self.evidence.federation

    @property
    def maliciousness(self) -> NDArray[np.float64]:
        """(K,) the number the defence ranks clients by."""
        return self.evidence.maliciousness

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
