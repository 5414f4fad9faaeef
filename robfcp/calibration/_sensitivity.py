"""What is certified for each number of malicious clients, and what a guarantee would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from robfcp.calibration._calibration import Calibration
from robfcp.calibration._levels import CoverageLevel
from robfcp.calibration._strata import StratumFederation, stratum_federations
from robfcp.certificates import Certificate
from robfcp.federation import Federation
from robfcp.guarantees import (
    CountBounds,
    FCPThreshold,
    Guarantee,
    MarginalGuarantee,
    PACGuarantee,
    certificate_curve,
    certificate_of_point,
    check_max_malicious,
    count_bounds,
)


@dataclass(frozen=True)
class SensitivityRow:
    """What holds at one level if at most m clients are malicious.

    Attributes
    ----------
    max_malicious : int
        The largest number of malicious clients.
    certificate : Certificate
        What is certified of the threshold in use.
    marginal : float
        The threshold that would guarantee marginal coverage at the level; infinite where the sets
        would have to hold every label.
    pac : float
        The threshold that would guarantee PAC coverage.
    heterogeneity_guarantee : float or None
        The threshold that would guarantee PAC coverage where benign clients are declared to differ
        by no more than a given heterogeneity; None without such a declaration. Infinite as above.
    """

    max_malicious: int
    certificate: Certificate
    marginal: float
    pac: float
    heterogeneity_guarantee: float | None = None


@dataclass(frozen=True)
class SensitivityTable:
    """What holds at one level, of all clients or of those with samples of one stratum.

    Attributes
    ----------
    name : str
        The class or group, or cluster of them; empty for all clients.
    threshold : float
        The threshold in use.
    n_clients : int
        How many clients have samples of it.
    rows : tuple of SensitivityRow
        A row for each number of malicious clients below `n_clients`: that many could turn
        the threshold into anything. All certificates hold at once.
    vacuous_from : int or None
        The smallest number of malicious clients for which the certificate is vacuous; None if it
        never is.
    """

    name: str
    threshold: float
    n_clients: int
    rows: tuple[SensitivityRow, ...]
    vacuous_from: int | None


def sensitivity(
    calibration: Calibration,
    level: Fraction,
    max_malicious_values: Sequence[int],
    *,
    certificate_confidence: float = 0.95,
    heterogeneity: float | None = None,
) -> tuple[SensitivityTable, ...]:
    """Return what is certified at one level for several numbers of malicious clients.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    level : Fraction
        The coverage. At a level of the calibration its own thresholds are examined, at any other
        FCP's thresholds on the clients that the calibration holds to be benign.
    max_malicious_values : sequence of int
        The numbers of malicious clients, not negative. A stratum has rows, in this order, for those
        below its number of holders.
    certificate_confidence : float, default=0.95
        The probability with which all certificates hold at once.
    heterogeneity : float, optional
        The largest Kolmogorov distance of a benign client's score CDF from a common one, where it
        is declared.

    Returns
    -------
    tuple of SensitivityTable
        One for the whole round, or one for each stratum if the calibration has a threshold for
        each class or group.
    """
    strata = _strata(calibration)

    # Bonferroni: every stratum takes an equal share of the probability to fail.
    stratum_confidence = 1 - (1 - certificate_confidence) / len(strata)

    tables = []
    for stratum in strata:
        federation = stratum.federation()
        bin_index = _threshold_bin(calibration, stratum, federation, level)

        # Against as many clients as hold the stratum nothing can be certified.
        counts = count_bounds(federation)
        possible_values = []
        for max_malicious in max_malicious_values:
            if max_malicious < federation.n_clients:
                possible_values.append(check_max_malicious(max_malicious, federation.n_clients))

        # The curve holds each number once, ascending; the rows are in the order asked.
        curve = certificate_curve(counts, bin_index, possible_values, stratum_confidence)
        points = {point.max_malicious: point for point in curve.points}
        rows = []
        for max_malicious in possible_values:
            certificate = certificate_of_point(
                federation, bin_index, points[max_malicious], stratum_confidence
            )
            rows.append(_row(counts, certificate, level, stratum_confidence, heterogeneity))

        threshold = federation.threshold_at(bin_index)
        n_holders = federation.n_clients
        tables.append(
            SensitivityTable(stratum.name, threshold, n_holders, tuple(rows), curve.vacuous_from)
        )
    return tuple(tables)


def _strata(calibration: Calibration) -> tuple[StratumFederation, ...]:
    """Return the strata that have a threshold each, or the whole round as the only one."""
    if calibration.by is None:
        return (StratumFederation("", (), calibration.federation),)
    return stratum_federations(
        calibration.federation, calibration.by, calibration.require_record().clusters
    )


def _threshold_bin(
    calibration: Calibration, stratum: StratumFederation, federation: Federation, level: Fraction
) -> int | None:
    """Return the bin of the threshold in use; None for an infinite threshold.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    stratum : StratumFederation
        The stratum, or the whole round.
    federation : Federation
        The clients that hold it.
    level : Fraction
        The coverage. Where the calibration has a threshold for it, that one is used, else FCP's.
    """
    for calibrated_level in calibration.levels:
        if calibrated_level.coverage == level:
            return _calibrated_bin(calibrated_level, stratum, federation)

    # A stratum's `rows` are the positions of its clients in the round; a round has none.
    benign_mask = calibration.benign_mask
    if federation.rows is not None:
        benign_mask = benign_mask[federation.rows]
    if not benign_mask.any():
        return None
    return FCPThreshold(federation, benign_mask).bin_index(level)


def _calibrated_bin(
    level: CoverageLevel, stratum: StratumFederation, federation: Federation
) -> int | None:
    """Return the bin of a stratum's calibrated threshold; None for an infinite threshold.

    Parameters
    ----------
    level : CoverageLevel
        The calibrated level, whose thresholds by class or group are matched by name.
    stratum : StratumFederation
        The stratum; a whole round has no members and takes the threshold of the level.
    federation : Federation
        For the binning, of which finite thresholds are upper edges.
    """
    threshold = level.threshold
    for stratum_threshold in level.strata:
        # The members of a cluster share one threshold.
        if stratum_threshold.name in stratum.members:
            threshold = stratum_threshold.threshold
            break

    if not np.isfinite(threshold):
        return None
    return int(federation.binning.bin_index_of_threshold(threshold))


def _row(
    counts: CountBounds,
    certificate: Certificate,
    level: Fraction,
    confidence: float,
    heterogeneity: float | None,
) -> SensitivityRow:
    """Return a certificate beside the thresholds that would be guaranteed against as many clients.

    Parameters
    ----------
    counts : CountBounds
        The counts of the clients that hold a stratum, or of all.
    certificate : Certificate
        What is certified of the threshold in use.
    level : Fraction
        The coverage to guarantee.
    confidence : float
        The confidence of PAC coverage.
    heterogeneity : float or None
        The declared one, if any.
    """

    def guaranteed_threshold(guarantee: Guarantee) -> float:
        """Return the threshold that a guarantee would give on these counts."""
        guaranteed_bin, _ = guarantee.threshold_from_bounds(counts, level, confidence)
        return counts.federation.threshold_at(guaranteed_bin)

    max_malicious = certificate.max_malicious
    marginal = guaranteed_threshold(MarginalGuarantee(max_malicious))
    pac = guaranteed_threshold(PACGuarantee(max_malicious))
    heterogeneity_guarantee = None
    if heterogeneity is not None:
        heterogeneity_guarantee = guaranteed_threshold(PACGuarantee(max_malicious, heterogeneity))
    return SensitivityRow(max_malicious, certificate, marginal, pac, heterogeneity_guarantee)
