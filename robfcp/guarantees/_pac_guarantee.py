"""The PAC guarantee: training-conditional coverage, with confidence over the calibration data."""

from __future__ import annotations

from fractions import Fraction

from robfcp.federation import Federation
from robfcp.guarantees import _label_shift_thresholds
from robfcp.guarantees._base import BaseGuarantee, CertifiedBin
from robfcp.guarantees._checks import PRUNING_DELTA_FRACTION, check_delta
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._heterogeneity import PruningResult, prune_clients
from robfcp.guarantees._tail_bounds import pac_tail_test, pac_threshold

# The p-value of "all clients have one label distribution", up to which a note says otherwise.
MAX_P_VALUE_OF_SHIFT = 1e-3


class PACGuarantee(BaseGuarantee, frozen=True, tag="pac"):
    """Coverage with a confidence over the calibration data, whatever the malicious clients do.

    Parameters
    ----------
    max_malicious : int
        The largest number of malicious clients.
    heterogeneity : float, optional
        The declared heterogeneity: how far the CDF of a benign client's scores may be from a common
        one. Clients that cannot be benign are then dropped first.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> guarantee = robfcp.PACGuarantee(2, heterogeneity=0.05)
    >>> print(robfcp.calibrate(federation, coverage=0.8, guarantee=guarantee).statement)
    coverage is at least 80%, and at every honest site at least 70%, whatever at most 2 of 20 ...
    """

    max_malicious: int
    heterogeneity: float | None = None

    def _max_malicious(self) -> int | None:
        return self.max_malicious

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> CertifiedBin:
        if self.heterogeneity is not None:
            return self._find_threshold_after_pruning(bounds, level, confidence, self.heterogeneity)

        federation = bounds.federation
        delta = check_delta(1 - confidence)
        bin_index = pac_threshold(bounds, level, self.max_malicious, delta)
        breakdown_point = None
        # Losses have a tail test of their own, whose breakdown point is not stated.
        if federation.risk is None:
            test = pac_tail_test(federation.sample_sizes, self.max_malicious, level, delta)
            breakdown_point = test.breakdown_point(federation.sample_sizes, self.max_malicious)
        return CertifiedBin(bin_index, "pac", confidence, breakdown_point)

    def _find_threshold_after_pruning(
        self, bounds: CountBounds, level: Fraction, confidence: float, heterogeneity: float
    ) -> CertifiedBin:
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
        pruning = prune_clients(federation, self.max_malicious, heterogeneity, pruning_delta)
        if not pruning.kept_mask.all():
            bounds = count_bounds(federation.select(pruning.kept_mask))
        bin_index = pac_threshold(bounds, level, pruning.max_malicious_left, delta - pruning_delta)
        return CertifiedBin(
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
                f"{self.max_malicious} liars, so nobody was dropped; state a larger one"
            )
        if pruning.pruned_at:
            return f"{len(pruning.pruned_at)} sites that cannot be honest were dropped first"
        return ""

    def notes(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        strata = federation.noise_free_strata
        if self.heterogeneity is None or strata is None:
            return ()
        p_value = _label_shift_thresholds.label_homogeneity_p_value(strata.stratum_sizes)
        if p_value > MAX_P_VALUE_OF_SHIFT:
            return ()
        note = (
            "the sites are declared alike, but their label mixes differ beyond chance: coverage "
            "may be less than guaranteed; use LabelShiftGuarantee instead"
        )
        return (note,)
