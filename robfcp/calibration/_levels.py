"""The thresholds of a calibration, each with its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from robfcp._validation import parse_level
from robfcp.calibration._document import LevelDocument, StratumDocument
from robfcp.certificates import Certificate, CertificatePoint


@dataclass(frozen=True, kw_only=True)
class CertifiedThreshold:
    """A threshold and what is certified of it.

    Attributes
    ----------
    threshold : float
        A label is in the set when its score is at most this; infinite takes every label. Finite
        ones are upper edges of the binning.
    certificate : Certificate
        What is proved for the number of malicious clients that the calibration assumes.
    certificate_points : tuple of CertificatePoint
        Where coverage lies for some numbers of malicious clients, rising; all of it is true at
        once. Empty for a level by class or group, whose strata have points each.
    """

    threshold: float
    certificate: Certificate
    certificate_points: tuple[CertificatePoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StratumThreshold(CertifiedThreshold):
    """The threshold of one class or group; its certificate is about the clients that hold it.

    Attributes
    ----------
    name : str
        The class or group.
    n_clients : int
        How many clients hold samples of it.
    n_samples : int
        How many samples they hold.
    """

    name: str
    n_clients: int
    n_samples: int

    @property
    def protection(self) -> str:
        """How far its holders are too few against m malicious clients; empty where they are not.

        With an infinite threshold it is "trivial". A finite one is "unprotected" where at
        most m clients hold the stratum, since all of them may be malicious, and "weakly protected"
        where at most 2 m do, since benign clients may be no majority. The note of a calibration's
        certificate lists strata by these words.
        """
        max_malicious = self.certificate.max_malicious
        if np.isinf(self.threshold):
            return "trivial"
        if self.n_clients <= max_malicious:
            return "unprotected"
        if max_malicious > 0 and self.n_clients <= 2 * max_malicious:
            return "weakly protected"
        return ""

    @staticmethod
    def from_document(document: StratumDocument) -> StratumThreshold:
        """Return what a file says of the stratum.

        Parameters
        ----------
        document : StratumDocument
            A part of a calibration's file.
        """
        return StratumThreshold(
            threshold=_threshold_from_document(document.threshold),
            certificate=document.certificate,
            certificate_points=document.certificate_points,
            name=document.name,
            n_clients=document.n_clients,
            n_samples=document.n_samples,
        )

    def to_document(self) -> StratumDocument:
        """Return what stands in the file of a calibration."""
        return StratumDocument(
            threshold=_threshold_to_document(self.threshold),
            certificate=self.certificate,
            certificate_points=self.certificate_points,
            name=self.name,
            n_clients=self.n_clients,
            n_samples=self.n_samples,
        )


@dataclass(frozen=True, kw_only=True)
class CoverageLevel(CertifiedThreshold):
    """The threshold of one target coverage.

    Attributes
    ----------
    coverage : Fraction
        The target coverage; of losses, one minus the risk level over the bound of the loss.
    strata : tuple of StratumThreshold
        The threshold of every class or group, where each has its own; `threshold` is then the
        largest of them.
    vacuous_from : int or None
        The number of malicious clients from which on the certificate is vacuous; None if it never
        is, and by class or group.
    """

    coverage: Fraction
    strata: tuple[StratumThreshold, ...] = ()
    vacuous_from: int | None = None

    @property
    def is_trivial(self) -> bool:
        """Whether every prediction set holds all labels: no threshold is finite."""
        if self.strata:
            return all(np.isinf(stratum.threshold) for stratum in self.strata)
        return bool(np.isinf(self.threshold))

    @staticmethod
    def from_document(document: LevelDocument) -> CoverageLevel:
        """Return what a file says of the level.

        Parameters
        ----------
        document : LevelDocument
            A part of a calibration's file.

        Raises
        ------
        RobfcpError
            Where its coverage is no number between 0 and 1.
        """
        return CoverageLevel(
            threshold=_threshold_from_document(document.threshold),
            certificate=document.certificate,
            certificate_points=document.certificate_points,
            coverage=parse_level(document.coverage),
            strata=tuple(StratumThreshold.from_document(stratum) for stratum in document.strata),
            vacuous_from=document.vacuous_from,
        )

    def to_document(self) -> LevelDocument:
        """Return what stands in the file of a calibration."""
        return LevelDocument(
            threshold=_threshold_to_document(self.threshold),
            certificate=self.certificate,
            certificate_points=self.certificate_points,
            coverage=str(self.coverage),
            strata=tuple(stratum.to_document() for stratum in self.strata),
            vacuous_from=self.vacuous_from,
        )


def _threshold_to_document(threshold: float) -> float | None:
    """Return the threshold as JSON can hold it: null for an infinite one."""
    if np.isinf(threshold):
        return None
    return threshold


def _threshold_from_document(threshold: float | None) -> float:
    """Return the threshold that a file holds, where null is infinite."""
    if threshold is None:
        return np.inf
    return threshold
