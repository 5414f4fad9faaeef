"""The marginal guarantee: coverage on average over calibration data, whatever m clients do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.guarantees._base import BaseGuarantee, CertifiedBin
from robfcp.guarantees._count_bounds import CountBounds
from robfcp.guarantees._marginal_threshold import marginal_bin
from robfcp.guarantees._tail_bounds import marginal_tail_test


class MarginalGuarantee(BaseGuarantee, frozen=True, tag="marginal"):
    """Coverage on average over calibration data, whatever the malicious clients do.

    Parameters
    ----------
    max_malicious : int, optional
        The largest number of malicious clients.
    max_malicious_samples : int, optional
        The largest number of samples that malicious clients hold together; beside
        `max_malicious`, or in place of it.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> guarantee = robfcp.MarginalGuarantee(max_malicious=2)
    >>> robfcp.calibrate(federation, coverage=0.8, guarantee=guarantee).statement
    'coverage is at least 80%, whatever at most 2 of 20 sites do, on average over calibration data'
    """

    max_malicious: int | None = None
    max_malicious_samples: int | None = None

    def __post_init__(self) -> None:
        if self.max_malicious is None and self.max_malicious_samples is None:
            raise RobfcpError(
                "max_malicious: give how many clients may be malicious (--max-malicious M), or "
                "max_malicious_samples, how many samples they may hold"
            )
        super().__post_init__()

    def _normalize(self, name: str, value: Any) -> Any:
        # One of the two numbers suffices.
        if value is None:
            return None
        return super()._normalize(name, value)

    def _max_malicious(self) -> int | None:
        return self.max_malicious

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> CertifiedBin:
        bin_index = marginal_bin(bounds, level, self.max_malicious, self.max_malicious_samples)
        breakdown_point = None
        if self.max_malicious is not None and self.max_malicious_samples is None:
            federation = bounds.federation
            test = marginal_tail_test(level, federation.n_clients)
            breakdown_point = test.breakdown_point(federation.sample_sizes, self.max_malicious)
        return CertifiedBin(
            bin_index,
            "marginal",
            breakdown_point=breakdown_point,
            max_malicious_samples=self.max_malicious_samples,
        )
