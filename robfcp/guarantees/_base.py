"""What may be guaranteed whatever some clients do: a threshold, and its certificate.

Guarantees are stored in a calibration's record as they are.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from robfcp._validation import check_integer, set_fields
from robfcp.certificates import TRIVIAL_SETS, Certificate, CertificateKind
from robfcp.federation import Federation
from robfcp.guarantees import _certify
from robfcp.guarantees._checks import check_heterogeneity
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._local_bounds import TrustedInterval


class CertifiedBin(NamedTuple):
    """The bin of a guaranteed threshold, and what the certificate says of it.

    Attributes
    ----------
    bin_index : int or None
        The bin whose upper edge is the threshold; None for an infinite one.
    kind : CertificateKind
        Which theorem proves it.
    confidence : float or None
        The confidence over the calibration data; None for coverage on average.
    breakdown_point : int or None
        The least number of malicious clients that can make every set full, if it is known.
    note : str
        What else must be said.
    exclusions : str
        Whose reports the certificate does not speak of, in words.
    max_malicious_samples : int or None
        The largest number of samples that malicious clients hold together, where it was stated.
    heterogeneity : float or None
        The declared sigma, where clients were pruned by it.
    label_shift : float or None
        The declared sigma within classes, where clients were pruned by it.
    """

    bin_index: int | None
    kind: CertificateKind
    confidence: float | None = None
    breakdown_point: int | None = None
    note: str = ""
    exclusions: str = ""
    max_malicious_samples: int | None = None
    heterogeneity: float | None = None
    label_shift: float | None = None

    def clipped(self, trusted_interval: TrustedInterval) -> CertifiedBin:
        """Return the same for the bin clipped to the interval that trusted samples allow."""
        bin_index = trusted_interval.clip(self.bin_index)
        if trusted_interval.upper is not None:
            # Below an upper end no set can be made full.
            return self._replace(bin_index=bin_index, breakdown_point=None)
        return self._replace(bin_index=bin_index)


class BaseGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every guarantee can do.

    Its fields are public arguments: `max_malicious`, `max_malicious_samples`, `heterogeneity`,
    `label_distribution`. They are stored as they are, so their names and the forms of their values
    are a file format.
    """

    def __post_init__(self) -> None:
        # Plain numbers, whatever library they came from, so that the record can store them.
        arguments = msgspec.structs.asdict(self)
        set_fields(
            self, **{name: self._normalize(name, value) for name, value in arguments.items()}
        )

    def _normalize(self, name: str, value: Any) -> Any:
        """Return a field's value in the form in which it is stored; refuse what it cannot be.

        Parameters
        ----------
        name : str
            The field: "heterogeneity", or one of the numbers "max_malicious" and
            "max_malicious_samples".
        value : object
            Its value as passed or as read from a file.
        """
        if name == "heterogeneity":
            return None if value is None else check_heterogeneity(value)
        counted = "samples" if name == "max_malicious_samples" else "clients"
        return check_integer(name, value, f"give how many {counted} may be malicious")

    def threshold(
        self,
        federation: Federation,
        level: Fraction,
        confidence: float,
        trusted_interval: TrustedInterval | None = None,
    ) -> tuple[int | None, Certificate]:
        """Return the guaranteed threshold, and what is proved of it.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        level : Fraction
            The coverage to guarantee.
        confidence : float
            The confidence over the calibration data, where coverage is not on average.
        trusted_interval : TrustedInterval, optional
            What trusted samples allow.

        Returns
        -------
        tuple
            The bin whose upper edge is the threshold, None for an infinite one; the certificate.
        """
        return self.threshold_from_bounds(
            count_bounds(federation), level, confidence, trusted_interval
        )

    def threshold_from_bounds(
        self,
        bounds: CountBounds,
        level: Fraction,
        confidence: float,
        trusted_interval: TrustedInterval | None = None,
    ) -> tuple[int | None, Certificate]:
        """Return the same as `threshold`, from the bounds on a federation's counts.

        Parameters
        ----------
        bounds : CountBounds
            The counts of one round.
        level : Fraction
            The coverage to guarantee.
        confidence : float
            The confidence over the calibration data, where coverage is not on average.
        trusted_interval : TrustedInterval, optional
            The bins in which the threshold may lie by the server's own trusted samples, and what a
            certificate says of it. The threshold is clipped to it.

        Returns
        -------
        tuple
            The bin whose upper edge is the threshold, None for an infinite one; the certificate.
        """
        certified = self._find_threshold(bounds, level, confidence)
        if trusted_interval is None:
            return certified.bin_index, self._certificate(bounds.federation, level, certified)

        if certified.confidence is None:
            # Coverage on average over calibration data does not survive an upper end.
            trusted_interval = trusted_interval.lower_only()
        certified = certified.clipped(trusted_interval)
        # Made after clipping, as it speaks of the clipped threshold.
        certificate = self._certificate(bounds.federation, level, certified)
        return certified.bin_index, trusted_interval.annotate(certificate)

    def _certificate(
        self, federation: Federation, level: Fraction, certified: CertifiedBin
    ) -> Certificate:
        """Return the certificate of the guaranteed threshold.

        Parameters
        ----------
        federation : Federation
            All valid reports of one round. The certificate speaks of `covered_federation`, to which
            its number of clients refers; missing and rejected clients are counted apart.
        level : Fraction
            The guaranteed coverage.
        certified : CertifiedBin
            The threshold, clipped if there are trusted samples.
        """
        covered = self.covered_federation(federation)
        max_malicious = self._max_malicious()
        assumptions = _certify.list_assumptions(
            covered,
            certified.kind,
            max_malicious,
            max_malicious_samples=certified.max_malicious_samples,
            heterogeneity=certified.heterogeneity,
            label_shift=certified.label_shift,
        )

        # Where only the samples are bounded, all clients but one may be malicious.
        certified_max_malicious = covered.n_clients - 1
        if max_malicious is not None:
            certified_max_malicious = max_malicious

        notes = []
        if certified.bin_index is None or certified.bin_index == covered.binning.n_bins - 1:
            notes.append(TRIVIAL_SETS)
        breakdown_point = certified.breakdown_point
        if breakdown_point and breakdown_point <= certified_max_malicious:
            note = breakdown_note(breakdown_point, certified_max_malicious, covered.n_clients)
            notes.append(note)
        notes += [certified.note, _certify.noise_note(covered)]

        return Certificate(
            kind=certified.kind,
            lower=float(level),
            upper=1.0,
            confidence=certified.confidence,
            max_malicious=certified_max_malicious,
            n_clients=covered.n_clients,
            assumptions=assumptions,
            n_uncovered_clients=len(_certify.missing_or_rejected_clients(federation)),
            exclusions=certified.exclusions,
            breakdown_point=breakdown_point,
            note="; ".join(note for note in notes if note),
            max_malicious_samples=certified.max_malicious_samples,
            **_certify.risk_fields(covered),
        )

    def _max_malicious(self) -> int | None:
        """Return m, the largest number of malicious clients; None if it is not stated."""
        raise NotImplementedError

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> CertifiedBin:
        """Return the first bin at which the guarantee holds.

        Parameters
        ----------
        bounds : CountBounds
            The counts of one round.
        level : Fraction
            The coverage to guarantee.
        confidence : float
            The confidence over the calibration data; not used where coverage is on average.
        """
        raise NotImplementedError

    def covered_federation(self, federation: Federation) -> Federation:
        """Return the clients that the certificate and its curve speak of: all, or some of them.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        """
        return federation

    def notes(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        """Return what must be said of the reports beside the certificate.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        confidence : float
            The confidence of the certificate.
        """
        return ()


def breakdown_note(breakdown_point: int, max_malicious: int, n_clients: int) -> str:
    """Return that so many malicious clients can make every set full, and how to prevent it."""
    return (
        f"guaranteed against {max_malicious} of {n_clients} clients, but without a bound on the "
        f"heterogeneity of benign clients {breakdown_point} or more malicious clients can force "
        "trivial sets; give the heterogeneity (PACGuarantee(heterogeneity=...), "
        "--guarantee pac --heterogeneity) to prevent that"
    )
