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
    curve: tuple[CertificatePoint, ...] = ()
    name: str
    holders: int
    samples: int


class LevelDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The threshold of one target coverage, which is written as an exact fraction.

    The fields are keys of the file. `CoverageLevel` says what they mean.
    """

    threshold: float | None
    certificate: Certificate
    curve: tuple[CertificatePoint, ...] = ()
    coverage: str
    parts: tuple[StratumDocument, ...] = ()
    empty_from: int | None = None


class RoundSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many clients became what, and the context of their reports: all a client may know.

    The fields are keys of the file.

    Attributes
    ----------
    n_clients, n_samples : int
        The valid reports, and the calibration samples in them.
    n_trusted, n_flagged : int
        Their clients that the thresholds rest on, and those that the defense excluded; together
        `n_clients`.
    n_faulty, n_missing : int
        The rejected reports, and the registered clients that sent nothing.
    grid : str
        The digest of the binning.
    round, model : str or None
        As the reports name them, if they do.
    """

    n_clients: int
    n_samples: int
    n_trusted: int
    n_flagged: int
    n_faulty: int
    n_missing: int
    grid: str
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
    several: bool
    by: StratumKind | None
    score: WireScore | None
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
    recorded: Sha256 = ""
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
        if not self.levels or (len(self.levels) > 1 and not self.several):
            return f"{CONTRADICTION} (several levels, one threshold)"
        if not 0 <= self.liars < n_clients or not 0 < self.confidence < 1:
            return f"{CONTRADICTION} (liars, or the confidence)"

        strata = tuple(stratum.name for stratum in self.levels[0].parts)
        for level in self.levels:
            names = tuple(stratum.name for stratum in level.parts)
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
