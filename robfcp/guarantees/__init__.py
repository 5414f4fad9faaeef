"""Guarantees: what is proved about a threshold, whatever at most m clients do."""

from robfcp.guarantees._base import (
    Guarantee,
    LabelShiftGuarantee,
    MarginalGuarantee,
    PACGuarantee,
    get_guarantee,
)
from robfcp.guarantees._certify import (
    CertificateCurve,
    certificate_curve,
    certificate_of_point,
    certificate_points,
    certified_max_malicious,
    certify_threshold,
    clients_not_covered,
)
from robfcp.guarantees._conformal_rank import (
    FCPThreshold,
    RankRule,
    conformal_rank,
    fcp_bin_index,
    rank_correction,
)
from robfcp.guarantees._local_bounds import TrustedInterval
from robfcp.guarantees._worst_case import check_max_malicious

__all__ = [
    "CertificateCurve",
    "FCPThreshold",
    "Guarantee",
    "LabelShiftGuarantee",
    "MarginalGuarantee",
    "PACGuarantee",
    "RankRule",
    "TrustedInterval",
    "certificate_curve",
    "certificate_of_point",
    "certificate_points",
    "certified_max_malicious",
    "certify_threshold",
    "check_max_malicious",
    "clients_not_covered",
    "conformal_rank",
    "fcp_bin_index",
    "get_guarantee",
    "rank_correction",
]
