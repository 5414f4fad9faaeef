"""What is asked of a calibration: checked once, so that nothing in it contradicts anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from robfcp._validation import parse_level
from robfcp.calibration._strata import resolve_strata
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import (
    Guarantee,
    LabelShiftGuarantee,
    MarginalGuarantee,
    PACGuarantee,
    TrustedInterval,
)
from robfcp.reports import Report, StratumKind

LevelLike = float | str | Fraction
DEFAULT_COVERAGE = 0.9  # what reports of losses must leave in place, see `_parse_levels`


@dataclass(frozen=True)
class Request:
    """What is asked of a calibration.

    Attributes
    ----------
    levels : tuple of Fraction
        The target coverages, at least one, strictly between 0 and 1 and in the order asked; of
        losses, one minus the risk level over the bound of the loss.
    has_multiple_levels : bool
        Whether they were given as a list, of one or more.
    by : {"class", "group"} or None
        Whether every class or group has a threshold of its own.
    clusters : dict of str to str, optional
        The cluster of each class or group, where some share a threshold.
    guarantee : Guarantee or None
        What the threshold is to guarantee; None for the defense's own threshold.
    trusted_report : Report or None
        The report of the server's trusted samples.
    certificate_confidence : float
        The confidence of certificates, over the calibration data.
    """

    levels: tuple[Fraction, ...]
    has_multiple_levels: bool
    by: StratumKind | None
    clusters: dict[str, str] | None
    guarantee: Guarantee | None
    trusted_report: Report | None
    certificate_confidence: float

    @staticmethod
    def from_arguments(
        federation: Federation,
        coverage: LevelLike | Sequence[LevelLike],
        risk_level: LevelLike | Sequence[LevelLike] | None,
        by: str | Mapping[str, str] | None,
        guarantee: Guarantee | None,
        trusted_report: Report | None,
        certificate_confidence: float,
    ) -> Request:
        """Check the arguments of `calibrate` against the reports and each other.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        coverage, risk_level, by, guarantee, trusted_report
            As `calibrate` takes them.
        certificate_confidence : float
            That of certificates, checked already: between 0 and 1.

        Raises
        ------
        RobfcpError
            Where they do not fit.
        """
        kind: StratumKind | None = None
        # Whether clusters name every class is checked later, in `stratum_federations`.
        clusters = None
        if isinstance(by, Mapping):
            clusters = {str(name): str(cluster) for name, cluster in by.items()}
            kind = resolve_strata(federation, None).by
        elif by is not None:
            kind = resolve_strata(federation, by).by

        _check_types(guarantee, trusted_report)
        if guarantee is not None:
            _check_guarantee(guarantee, federation, kind)
        if trusted_report is not None:
            _check_trusted_report(trusted_report, federation, guarantee, certificate_confidence)

        levels, has_multiple_levels = _parse_levels(federation, coverage, risk_level)
        return Request(
            levels,
            has_multiple_levels,
            kind,
            clusters,
            guarantee,
            trusted_report,
            certificate_confidence,
        )

    def trusted_interval(self, level: Fraction) -> TrustedInterval | None:
        """Return the interval in which the trusted samples hold the threshold, if there are any.

        By class or group each stratum has an interval of its own instead; see
        `robfcp.calibration._thresholds`.

        Parameters
        ----------
        level : Fraction
            The target coverage.
        """
        if self.trusted_report is None:
            return None
        failure_probability = 1 - self.certificate_confidence
        return TrustedInterval.from_counts(self.trusted_report.counts, level, failure_probability)


def _check_guarantee(guarantee: Guarantee, federation: Federation, by: StratumKind | None) -> None:
    """Refuse a guarantee that is not proved for these reports.

    Parameters
    ----------
    guarantee : Guarantee
        The guarantee that is asked for.
    federation : Federation
        The reports of one round.
    by : {"class", "group"} or None
        Whether it is asked for every class or group, clusters of them included.
    """
    if isinstance(guarantee, MarginalGuarantee):
        if guarantee.max_malicious_samples is not None and by is not None:
            raise RobfcpError(
                "guarantee: by class or group give max_malicious, not max_malicious_samples"
            )
        return
    if not isinstance(guarantee, LabelShiftGuarantee):
        return
    if federation.risk is not None:
        raise RobfcpError(
            "guarantee: LabelShiftGuarantee is not proved for losses; use MarginalGuarantee or "
            "PACGuarantee"
        )
    if by is not None:
        raise RobfcpError(
            "guarantee: thresholds by class need no LabelShiftGuarantee; use MarginalGuarantee or "
            "PACGuarantee, or drop by"
        )
    if federation.has_noise:
        raise RobfcpError(
            "guarantee: LabelShiftGuarantee is not proved for private reports; use "
            "MarginalGuarantee or PACGuarantee"
        )


def _check_trusted_report(
    trusted_report: Report, federation: Federation, guarantee: Guarantee | None, confidence: float
) -> None:
    """Refuse trusted samples that cannot be compared with the reports.

    Parameters
    ----------
    trusted_report : Report
        The report of the server's trusted samples.
    federation : Federation
        The reports of one round.
    guarantee : Guarantee or None
        The guarantee that is asked for, if any.
    confidence : float
        That of certificates. The trusted samples may fail with probability 1 - confidence as well,
        so that 2 confidence - 1 may remain, which must be positive.
    """
    if isinstance(guarantee, LabelShiftGuarantee):
        raise RobfcpError(
            "trusted_report: is not proved with LabelShiftGuarantee; use MarginalGuarantee or "
            "PACGuarantee"
        )
    if federation.risk is not None or trusted_report.risk is not None:
        raise RobfcpError("trusted_report: is for scores, not for losses; leave it out")
    if trusted_report.privacy is not None:
        raise RobfcpError("trusted_report: holds noise; keep and pass an exact one")
    if trusted_report.binning.digest != federation.binning.digest:
        raise RobfcpError(
            "trusted_report: is on another binning than the reports; make it with binning="
        )

    both_name_a_score = trusted_report.score is not None and federation.score is not None
    if both_name_a_score and trusted_report.score != federation.score:
        raise RobfcpError("trusted_report: has another score than the reports; use that")
    if trusted_report.client in federation.clients:
        raise RobfcpError("trusted_report: is among the reports; trusted samples are in none")
    if confidence <= 0.5:
        raise RobfcpError(
            "trusted_report: takes as much of the confidence again; state more than 0.5"
        )


def _check_types(guarantee: object, trusted_report: object) -> None:
    """Refuse what is no guarantee and no report."""
    guarantee_types = (MarginalGuarantee, PACGuarantee, LabelShiftGuarantee)
    if guarantee is not None and not isinstance(guarantee, guarantee_types):
        raise RobfcpError(
            f"guarantee: {guarantee!r:.60} is not a guarantee; use for example "
            "robfcp.MarginalGuarantee(max_malicious=1)"
        )
    if trusted_report is not None and not isinstance(trusted_report, Report):
        raise RobfcpError(
            "trusted_report: is not a report; make one of trusted samples with "
            "Report.from_predictions"
        )


def _parse_levels(
    federation: Federation,
    coverage: LevelLike | Sequence[LevelLike],
    risk_level: LevelLike | Sequence[LevelLike] | None,
) -> tuple[tuple[Fraction, ...], bool]:
    """Return the levels, and whether they were given as a list.

    A mean loss of at most r, of losses up to B, is a level of 1 - r / B. Only a coverage other than
    the default shows that one was stated for reports of losses.

    Parameters
    ----------
    federation : Federation
        The reports of one round: of scores, or of losses.
    coverage, risk_level : LevelLike or Sequence[LevelLike]
        As `calibrate` takes them.
    """
    if federation.risk is None and risk_level is not None:
        raise RobfcpError("risk_level: the reports hold no losses; drop it, or use from_losses")
    if federation.risk is not None and risk_level is None:
        raise RobfcpError(
            "risk_level: the reports hold losses; give risk_level, the mean loss you accept"
        )
    if federation.risk is not None and coverage != DEFAULT_COVERAGE:
        raise RobfcpError("coverage: the reports hold losses; give risk_level instead")

    field = "coverage"
    item = "level"
    values: Any = coverage
    parse: Callable[[Any], Fraction] = parse_level
    if federation.risk is not None:
        field = "risk_level"
        item = "mean loss"
        values = risk_level
        parse = federation.risk.coverage_level

    is_sequence = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)
    has_multiple_levels = is_sequence and np.ndim(values) > 0
    if not has_multiple_levels:
        # An array without axes is a number, too.
        scalar: Any = np.asarray(values, dtype=object)[()]
        return (parse(scalar),), False
    if len(values) == 0:
        raise RobfcpError(f"{field}: the list is empty; give at least one {item}")
    return tuple(parse(value) for value in values), True
