"""The file of a calibration: what stands in it, and nothing of what follows from it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from robfcp._sealed import SealedFile
from robfcp.certificates import Certificate, CertificatePoint
from robfcp.reports import (
    StratumKind,
    StratumNames,
    WireScore,
    check_stratum_names,
    stratum_labels,
    terms,
)
from robfcp.scores import Risk

CONTRADICTION = "the parts of the file contradict each other"

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class StratumDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The threshold of one class or group; null for an infinite one.

    The fields are keys of the file. `StratumThreshold` says what they mean.
    """

    threshold: float | None
    certificate: Certificate
    certificate_points: tuple[CertificatePoint, ...] = ()
    name: str
    n_clients: int
    n_samples: int


class LevelDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The threshold of one target coverage, which is written as an exact fraction.

    The fields are keys of the file. `CoverageLevel` says what they mean.
    """

    threshold: float | None
    certificate: Certificate
    certificate_points: tuple[CertificatePoint, ...] = ()
    coverage: str
    strata: tuple[StratumDocument, ...] = ()
    vacuous_from: int | None = None


class RoundSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many clients became what, and the context of their reports: all a client may know.

    The fields are keys of the file.

    Attributes
    ----------
    n_clients, n_samples : int
        The valid reports, and the calibration samples in them.
    n_benign, n_flagged : int
        Their clients that the thresholds rest on, and those that the defense excluded; together
        `n_clients`.
    n_rejected, n_missing : int
        The rejected reports, and the registered clients that sent nothing.
    binning : str
        The digest of the binning.
    round, model : str or None
        As the reports name them, if they do.
    """

    n_clients: int
    n_samples: int
    n_benign: int
    n_flagged: int
    n_rejected: int
    n_missing: int
    binning: str
    round: str | None
    model: str | None


class CalibrationDocument(SealedFile, frozen=True, forbid_unknown_fields=True):
    """What stands in the file of a calibration; it names no client.

    The fields are the keys of the file. `Calibration` says what they mean.
    """

    kind: ClassVar[str] = "calibration"
    hint: ClassVar[str] = "pass a file written by robfcp calibrate"
    max_bytes: ClassVar[int] = 2**30
    is_private: ClassVar[bool] = False  # clients predict with it

    levels: tuple[LevelDocument, ...]
    has_multiple_levels: bool
    by: StratumKind | None
    score: WireScore | None
    risk: Risk | None
    classes: StratumNames | None
    defense: str
    is_guaranteed: bool
    certificate_confidence: float
    n_malicious: int
    max_malicious: int | None
    verification: terms.Verification
    summary: RoundSummary
    public_notes: tuple[str, ...] = ()
    record_sha256: Sha256 = ""
    version: str = ""

    def find_contradiction(self) -> str:
        """Return what no calibration of so many clients can say; empty where nothing is wrong.

        A file is untrusted input: later code relies on what is checked here.

        Raises
        ------
        RobfcpError
            Where names of classes are no valid names.
        """
        n_clients = self.summary.n_clients
        if not self.levels or (len(self.levels) > 1 and not self.has_multiple_levels):
            return f"{CONTRADICTION} (several levels, one threshold)"
        if not 0 <= self.n_malicious < n_clients or not 0 < self.certificate_confidence < 1:
            return f"{CONTRADICTION} (n_malicious, or certificate_confidence)"
        if self.max_malicious not in (None, self.n_malicious):
            return f"{CONTRADICTION} (max_malicious is not n_malicious)"

        strata = tuple(stratum.name for stratum in self.levels[0].strata)
        for level in self.levels:
            names = tuple(stratum.name for stratum in level.strata)
            if names != strata or (self.by is None) != (names == ()):
                return f"{CONTRADICTION} (thresholds by class or group)"
            # By class or group a certificate speaks of the clients that keep classes.
            if level.certificate.n_clients > n_clients and not names:
                return f"{CONTRADICTION} (a certificate does not fit)"

        if self.classes is not None:
            check_stratum_names("class", self.classes)
            if self.by == "class" and strata != stratum_labels(self.classes):
                return f"{CONTRADICTION} (a class has no threshold)"
        return ""
