"""What may be guaranteed whatever some clients do: a threshold, and its certificate.

Guarantees are stored in a calibration's record as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np

from robfcp._validation import abbreviate, check_integer, set_fields
from robfcp.certificates import TRIVIAL_SETS, Certificate, CertificateKind
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import _certify, _label_shift
from robfcp.guarantees._checks import (
    PRUNING_DELTA_FRACTION,
    check_delta,
    check_heterogeneity,
)
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._heterogeneity import PruningResult, prune_clients
from robfcp.guarantees._label_distributions import LabelDistribution, parse_label_distributions
from robfcp.guarantees._local_bounds import TrustedInterval
from robfcp.guarantees._marginal import marginal_bin
from robfcp.guarantees._tail_bounds import marginal_tail_test, pac_tail_test, pac_threshold

# The p-value of "all clients share one label mix", up to which a note says that they do not.
MAX_P_VALUE_OF_SHIFT = 1e-3

# Classes that a note names.
MAX_NAMED_CLASSES = 5


class _CertifiedBin(NamedTuple):
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

    def clipped(self, trusted_interval: TrustedInterval) -> _CertifiedBin:
        """Return the same for the bin clipped to the interval that trusted samples allow."""
        bin_index = trusted_interval.clip(self.bin_index)
        if trusted_interval.high is not None:
            # Below an upper end no set can be made full.
            return self._replace(bin_index=bin_index, breakdown_point=None)
        return self._replace(bin_index=bin_index)


class _BaseGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every guarantee can do.

    Its fields are public arguments: `liars`, `samples`, `alike`, `mix`. They are stored as they
    are, so their names and the forms of their values are a file format.
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
            The field: "mix", "alike", or one of the numbers "liars" and "samples".
        value : object
            Its value as passed or as read from a file.
        """
        if name == "mix":
            return _normalize_label_distribution(value)
        if name == "alike":
            return None if value is None else check_heterogeneity(value)
        return check_integer(name, value, "state how many may lie")

    def threshold(
        self,
        federation: Federation,
        level: Fraction,
        confidence: float,
        anchor: TrustedInterval | None = None,
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
        anchor : TrustedInterval, optional
            What trusted samples allow.

        Returns
        -------
        tuple
            The bin whose upper edge is the threshold, None for an infinite one; the certificate.
        """
        return self.threshold_from_bounds(count_bounds(federation), level, confidence, anchor)

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
        self, federation: Federation, level: Fraction, certified: _CertifiedBin
    ) -> Certificate:
        """Return the certificate of the guaranteed threshold.

        Parameters
        ----------
        federation : Federation
            All valid reports of one round. The certificate speaks of `covered_federation`, to which
            its number of clients refers; missing and rejected clients are counted apart.
        level : Fraction
            The guaranteed coverage.
        certified : _CertifiedBin
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
            note = _breakdown_note(breakdown_point, certified_max_malicious, covered.n_clients)
            notes.append(note)
        notes += [certified.note, _certify.noise_note(covered)]

        return Certificate(
            kind=certified.kind,
            lower=float(level),
            upper=1.0,
            confidence=certified.confidence,
            m=certified_max_malicious,
            n_clients=covered.n_clients,
            assumptions=assumptions,
            n_outside=len(_certify.missing_or_rejected_clients(federation)),
            outside=certified.exclusions,
            full_sets_from=breakdown_point,
            note="; ".join(note for note in notes if note),
            samples=certified.max_malicious_samples,
            **_certify.risk_fields(covered),
        )

    def _max_malicious(self) -> int | None:
        """Return m, the largest number of malicious clients; None if it is not stated."""
        raise NotImplementedError

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> _CertifiedBin:
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


def _breakdown_note(breakdown_point: int, max_malicious: int, n_clients: int) -> str:
    """Return that so many malicious clients can make every set full, and how to prevent it."""
    return (
        f"guaranteed against {max_malicious} of {n_clients}, but without a bound on how sites "
        f"differ {breakdown_point} or more liars can make every set full; state how alike "
        "sites are (PACGuarantee(alike=...), --promise pac --alike) to prevent that"
    )


class MarginalGuarantee(_BaseGuarantee, frozen=True, tag="marginal"):
    """Coverage on average over calibration data, whatever the malicious clients do.

    Parameters
    ----------
    liars : int, optional
        The largest number of malicious clients.
    samples : int, optional
        The largest number of samples that malicious clients hold together; beside `liars`, or in
        place of it.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> robfcp.calibrate(federation, 0.8, guarantee=robfcp.MarginalGuarantee(liars=2)).statement
    'coverage is at least 80%, whatever at most 2 of 20 sites do, on average over calibration data'
    """

    liars: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.liars is None and self.samples is None:
            raise RobfcpError(
                "liars: state how many sites (--liars M), or how many samples, may lie"
            )
        super().__post_init__()

    def _normalize(self, name: str, value: Any) -> Any:
        # One of the two numbers suffices.
        if value is None:
            return None
        return super()._normalize(name, value)

    def _max_malicious(self) -> int | None:
        return self.liars

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        bin_index = marginal_bin(bounds, level, self.liars, self.samples)
        breakdown_point = None
        if self.liars is not None and self.samples is None:
            federation = bounds.federation
            test = marginal_tail_test(level, federation.n_clients)
            breakdown_point = test.breakdown_point(federation.sample_sizes, self.liars)
        return _CertifiedBin(
            bin_index,
            "marginal",
            breakdown_point=breakdown_point,
            max_malicious_samples=self.samples,
        )


class PACGuarantee(_BaseGuarantee, frozen=True, tag="pac"):
    """Coverage with a confidence over the calibration data, whatever the malicious clients do.

    Parameters
    ----------
    liars : int
        The largest number of malicious clients.
    alike : float, optional
        The declared heterogeneity: how far the CDF of a benign client's scores may be from a common
        one. Clients that cannot be benign are then dropped first.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> guarantee = robfcp.PACGuarantee(2, alike=0.05)
    >>> print(robfcp.calibrate(federation, 0.8, guarantee=guarantee).statement)
    coverage is at least 80%, and at every honest site at least 70%, whatever at most 2 of 20 ...
    """

    liars: int
    alike: float | None = None

    def _max_malicious(self) -> int | None:
        return self.liars

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        if self.alike is not None:
            return self._find_threshold_after_pruning(bounds, level, confidence, self.alike)

        federation = bounds.federation
        delta = check_delta(1 - confidence)
        bin_index = pac_threshold(bounds, level, self.liars, delta)
        breakdown_point = None
        # Losses have a tail test of their own, whose breakdown point is not stated.
        if federation.risk is None:
            test = pac_tail_test(federation.sample_sizes, self.liars, level, delta)
            breakdown_point = test.breakdown_point(federation.sample_sizes, self.liars)
        return _CertifiedBin(bin_index, "pac", confidence, breakdown_point)

    def _find_threshold_after_pruning(
        self, bounds: CountBounds, level: Fraction, confidence: float, heterogeneity: float
    ) -> _CertifiedBin:
        """Return the first bin that covers after clients that cannot be benign were dropped.

        Docs/theory.md, section 7. A fixed part of the probability to fail is for dropping a benign
        client, the remaining one for the threshold. The breakdown point of what is left is not
        known.

        Parameters
        ----------
        bounds : CountBounds
            The counts of all clients.
        level : Fraction
            The coverage to guarantee.
        confidence : float
            The confidence over the calibration data.
        heterogeneity : float
            sigma.
        """
        federation = bounds.federation
        delta = check_delta(1 - confidence)
        pruning_delta = PRUNING_DELTA_FRACTION * delta
        pruning = prune_clients(federation, self.liars, heterogeneity, pruning_delta)
        if not pruning.kept_mask.all():
            bounds = count_bounds(federation.select(pruning.kept_mask))
        bin_index = pac_threshold(bounds, level, pruning.max_malicious_left, delta - pruning_delta)
        return _CertifiedBin(
            bin_index,
            "pac",
            confidence,
            note=self._pruning_note(pruning, heterogeneity),
            heterogeneity=heterogeneity,
        )

    def _pruning_note(self, pruning: PruningResult, heterogeneity: float) -> str:
        """Return whom pruning dropped, or why it dropped nobody; empty if all are compatible."""
        if pruning.is_contradicted:
            return (
                f"the reports contradict sites alike up to {heterogeneity:g} with at most "
                f"{self.liars} liars, so nobody was dropped; state a larger one"
            )
        if pruning.pruned_at:
            return f"{len(pruning.pruned_at)} sites that cannot be honest were dropped first"
        return ""

    def notes(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        strata = federation.noise_free_strata
        if self.alike is None or strata is None:
            return ()
        p_value = _label_shift.label_homogeneity_p_value(strata.stratum_sizes)
        if p_value > MAX_P_VALUE_OF_SHIFT:
            return ()
        note = (
            "the sites are declared alike, but their label mixes differ beyond chance: coverage "
            "may be less than promised; promise LabelShiftGuarantee instead"
        )
        return (note,)


class LabelShiftGuarantee(_BaseGuarantee, frozen=True, tag="label-shift"):
    """As `PACGuarantee`, where benign clients agree within classes and label mixes may differ.

    Parameters
    ----------
    liars : int
        The largest number of malicious clients.
    alike : float, default=0
        The declared heterogeneity within classes.
    mix : dict, str or list, optional
        The label mix that coverage is guaranteed for: {class: share}, "uniform", "any" (whatever
        the shares) or a list of them; the benign clients' own if None.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> scores, labels = np.random.default_rng(0).random((10, 400)), np.arange(400) % 2
    >>> reports = [
    ...     robfcp.Report.from_scores(f"site-{k}", own, labels=labels, classes=2)
    ...     for k, own in enumerate(scores)
    ... ]
    >>> promise = robfcp.LabelShiftGuarantee(liars=1, mix={"0": 0.2, "1": 0.8})
    >>> print(robfcp.calibrate(reports, 0.8, guarantee=promise).statement)
    coverage of the stated label mix is at least 80%, whatever at most 1 of 10 sites do, with ...
    """

    liars: int
    alike: float = 0.0
    mix: LabelDistribution | None = None

    def _max_malicious(self) -> int | None:
        return self.liars

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        counts = _label_shift.class_counts(bounds.federation)
        delta = 1 - confidence
        kind: CertificateKind = "pac"
        if self.mix is None:
            sequence = _label_shift.pac_threshold_after_pruning(
                counts, level, self.liars, delta, self.alike
            )
        else:
            kind = "mix"
            distributions = parse_label_distributions(self.mix, counts.names)
            sequence = _label_shift.label_distribution_threshold(
                counts, distributions, float(1 - level), self.liars, delta, self.alike
            )

        compared = set(counts.clients)
        pooled = [client for client in bounds.federation.clients if client not in compared]
        exclusions = ""
        if pooled:
            clients = "site" if len(pooled) == 1 else "sites"
            exclusions = f"{len(pooled)} {clients} without counts of all classes"
            exclusions += f" ({abbreviate(pooled)})"
        return _CertifiedBin(
            sequence.bin_index,
            kind,
            confidence,
            note=self._sequence_note(sequence),
            exclusions=exclusions,
            label_shift=self.alike,
        )

    def _sequence_note(self, sequence: _label_shift.SequenceResult) -> str:
        """Return whom pruning dropped, and why nothing is certified; empty where nothing is odd."""
        notes = []
        if sequence.pruned_clients:
            notes.append(
                f"{len(sequence.pruned_clients)} sites that cannot be honest were dropped first "
                f"({abbreviate(sequence.pruned_clients)})"
            )
        if sequence.is_contradicted:
            notes.append(
                f"more than {self.liars} sites disagree within classes by more than "
                f"{self.alike:g}, so that they cannot be as declared: nothing is certified; "
                "state a larger alike or more liars"
            )
        rare_classes = sequence.classes_with_too_few_clients
        if rare_classes:
            names = ", ".join(rare_classes[:MAX_NAMED_CLASSES])
            notes.append(f"too few sites hold {names} for a guarantee against {self.liars} liars")
        return "; ".join(notes)

    def covered_federation(self, federation: Federation) -> Federation:
        compared = set(_label_shift.class_counts(federation).clients)
        return federation.select(np.array([name in compared for name in federation.clients]))


Guarantee = MarginalGuarantee | PACGuarantee | LabelShiftGuarantee
GUARANTEES = {
    "marginal": MarginalGuarantee,
    "pac": PACGuarantee,
    "label-shift": LabelShiftGuarantee,
}


def get_guarantee(name: str, **arguments: Any) -> Guarantee:
    """Return the guarantee of a name with its arguments; None leaves an argument out.

    Parameters
    ----------
    name : {"marginal", "pac", "label-shift"}
        The guarantee.
    **arguments
        Its fields.

    Examples
    --------
    >>> from robfcp.guarantees import get_guarantee
    >>> get_guarantee("pac", liars=3, alike=None)
    PACGuarantee(liars=3, alike=None)
    """
    if name not in GUARANTEES:
        raise RobfcpError(f"promise: {name!r:.60} is unknown; use {', '.join(GUARANTEES)}")
    guarantee_class = GUARANTEES[name]
    # Options of the command line that were not given are None.
    arguments = {field: value for field, value in arguments.items() if value is not None}
    fields = guarantee_class.__struct_fields__
    unknown = sorted(set(arguments) - set(fields))
    if unknown:
        raise RobfcpError(f"{unknown[0]}: {name} takes none; it takes {', '.join(fields)}")
    if guarantee_class is not MarginalGuarantee and "liars" not in arguments:
        raise RobfcpError(
            "liars: state how many sites may lie (--liars M), before reports are seen"
        )
    guarantee: Guarantee = guarantee_class(**arguments)
    return guarantee


def _normalize_label_distribution(mix: Any) -> Any:
    """Return a label mix in plain numbers, so that it is the same once written and read.

    Names of classes and fractions are not checked here, as the classes are not known yet:
    `parse_label_distributions` does, and refuses all other forms.

    Parameters
    ----------
    mix : mapping, str, sequence of them, or None
        {class: fraction}, of any types that convert to str and float; "uniform" or "any"; None for
        the benign clients' own mix.

    Returns
    -------
    dict of str to float, str, list of them, or None
        Anything else is returned as it is.
    """
    if isinstance(mix, Mapping):
        try:
            return {str(name): float(fraction) for name, fraction in mix.items()}
        except (TypeError, ValueError):
            raise RobfcpError("mix: shares are numbers; give {class: share}") from None
    if isinstance(mix, Sequence) and not isinstance(mix, str):
        return [_normalize_label_distribution(distribution) for distribution in mix]
    return mix
