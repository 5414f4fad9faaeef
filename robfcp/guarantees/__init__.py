"""Guarantees: what is proved about a threshold, whatever at most m clients do.

May import `_util`, `errors`, `grid`, `scores`, `privacy`, `reports` and `federation`; `defence` and
the rooms after it build on it. Every rule is written once, against `CountBounds`, which answers
alike for exact and for private reports.
"""

from robfcp._moved import old_names
from robfcp.guarantees.alike import homogeneous_threshold
from robfcp.guarantees.assumptions import Assumption, outside_of
from robfcp.guarantees.bounds import CountBounds, ExactCounts
from robfcp.guarantees.budgets import check_budget
from robfcp.guarantees.certificate import (
    PRUNING_SHARE,
    Certificate,
    GuaranteeKind,
    certify,
)
from robfcp.guarantees.coverage import coverage_interval
from robfcp.guarantees.envelope import envelope
from robfcp.guarantees.marginal import (
    liars_forcing_full_sets,
    liars_no_rule_survives,
    marginal_threshold,
    tolerance,
    tolerance_at,
    tolerance_statement,
    tolerances,
)
from robfcp.guarantees.modes import guaranteed
from robfcp.guarantees.noisy import NoisyCounts, bounds_of
from robfcp.guarantees.pac import pac_threshold
from robfcp.guarantees.pruning import (
    ClientIntervals,
    HeterogeneityEstimate,
    estimate_heterogeneity,
    prune,
)
from robfcp.guarantees.ranks import (
    Exchangeability,
    FcpThreshold,
    conformal_rank,
    exact_level,
    fcp_index,
)

__all__ = [
    "PRUNING_SHARE",
    "Assumption",
    "Certificate",
    "ClientIntervals",
    "CountBounds",
    "ExactCounts",
    "Exchangeability",
    "FcpThreshold",
    "GuaranteeKind",
    "HeterogeneityEstimate",
    "NoisyCounts",
    "bounds_of",
    "certify",
    "check_budget",
    "conformal_rank",
    "coverage_interval",
    "envelope",
    "estimate_heterogeneity",
    "exact_level",
    "fcp_index",
    "guaranteed",
    "homogeneous_threshold",
    "liars_forcing_full_sets",
    "liars_no_rule_survives",
    "marginal_threshold",
    "outside_of",
    "pac_threshold",
    "prune",
    "tolerance",
    "tolerance_at",
    "tolerance_statement",
    "tolerances",
]

__getattr__ = old_names(__name__)
