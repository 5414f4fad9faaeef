"""Guarantees: what is proved about a threshold, whatever at most m clients do.

`MarginalGuarantee`, `PACGuarantee` and `LabelShiftGuarantee` give thresholds; `certify_threshold`
and `certificate_curve` state what is proved about any threshold. May import `federation` and what
lies below it, but never `defense`: no proof depends on which clients a defense excludes.
"""

from robfcp.guarantees._certify import (
    CoverageCurve,
    certificate_curve,
    certificate_of_point,
    certificate_points,
    certified_max_malicious,
    certify_threshold,
    coverage_intervals,
    missing_or_rejected_clients,
    vacuous_from,
)
from robfcp.guarantees._checks import check_max_malicious
from robfcp.guarantees._conformal_rank import (
    FCPThreshold,
    RankRule,
    conformal_rank,
    fcp_bin_index,
    rank_correction,
)
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._heterogeneity import (
    ClientIntervals,
    HeterogeneityEstimate,
    estimate_heterogeneity,
)
from robfcp.guarantees._label_shift_guarantee import LabelShiftGuarantee
from robfcp.guarantees._label_shift_thresholds import MAX_CLIENTS_COMPARED, class_counts
from robfcp.guarantees._local_bounds import (
    TrustedInterval,
    client_thresholds,
    local_lambda_range,
    local_threshold_range,
    unseen_client_threshold,
)
from robfcp.guarantees._marginal_guarantee import MarginalGuarantee
from robfcp.guarantees._marginal_threshold import (
    breakdown_point_of_any_rule,
    marginal_threshold_bin,
)
from robfcp.guarantees._pac_guarantee import PACGuarantee
from robfcp.guarantees._registry import Guarantee, get_guarantee

__all__ = [
    "MAX_CLIENTS_COMPARED",
    "ClientIntervals",
    "CountBounds",
    "CoverageCurve",
    "FCPThreshold",
    "Guarantee",
    "HeterogeneityEstimate",
    "LabelShiftGuarantee",
    "MarginalGuarantee",
    "PACGuarantee",
    "RankRule",
    "TrustedInterval",
    "breakdown_point_of_any_rule",
    "certificate_curve",
    "certificate_of_point",
    "certificate_points",
    "certified_max_malicious",
    "certify_threshold",
    "check_max_malicious",
    "class_counts",
    "client_thresholds",
    "conformal_rank",
    "count_bounds",
    "coverage_intervals",
    "estimate_heterogeneity",
    "fcp_bin_index",
    "get_guarantee",
    "local_lambda_range",
    "local_threshold_range",
    "marginal_threshold_bin",
    "missing_or_rejected_clients",
    "rank_correction",
    "unseen_client_threshold",
    "vacuous_from",
]
