"""Guarantees: what is proved about a threshold, whatever at most m clients do.

May import `_util`, `errors`, `grid`, `scores`, `privacy`, `reports` and `federation`; `defence` and
the rooms after it build on it. Every rule is written once, against `CountBounds`, which answers
alike for exact and for private reports.
"""

from robfcp.guarantees.alike import homogeneous_threshold
from robfcp.guarantees.assumptions import (
    Assumption,
    curve_assumptions,
    liars_assumption,
    outside_of,
)
from robfcp.guarantees.bounds import CountBounds, ExactCounts
from robfcp.guarantees.budgets import check_budget
from robfcp.guarantees.certificate import (
    Certificate,
    GuaranteeKind,
    certify,
)
from robfcp.guarantees.coverage import coverage_interval
from robfcp.guarantees.curve import (
    CurvePoint,
    coverage_curve,
    curve_budgets,
    empty_from,
    foresee,
)
from robfcp.guarantees.envelope import envelope
from robfcp.guarantees.label_shift import MOST_COMPARED, ClassCounts, class_counts
from robfcp.guarantees.levels import (
    Exchangeability,
    conformal_rank,
    exact_level,
    rank_charge,
)
from robfcp.guarantees.marginal import (
    liars_forcing_full_sets,
    liars_no_rule_survives,
    marginal_threshold,
    robust_step,
    tolerance,
    tolerance_at,
    tolerances,
)
from robfcp.guarantees.mixes import Mix, read_mixes
from robfcp.guarantees.modes import guaranteed
from robfcp.guarantees.noisy import NoisyCounts, bounds_of
from robfcp.guarantees.pac import pac_threshold
from robfcp.guarantees.pruning import (
    PRUNING_SHARE,
    ClientIntervals,
    HeterogeneityEstimate,
    estimate_heterogeneity,
    least_liars,
    prune,
)
from robfcp.guarantees.ranks import FcpThreshold, fcp_index
from robfcp.guarantees.shifted import least_shift, mixes_differ, shifted_mix, shifted_pac
from robfcp.guarantees.site import (
    OwnInterval,
    own_interval,
    own_mixes,
    site_thresholds,
    stranger_threshold,
)
from robfcp.guarantees.words import at_least, at_most, loss_at_most, tolerance_statement

__all__ = [
    "MOST_COMPARED",
    "PRUNING_SHARE",
    "Assumption",
    "Certificate",
    "ClassCounts",
    "ClientIntervals",
    "CountBounds",
    "CurvePoint",
    "ExactCounts",
    "Exchangeability",
    "FcpThreshold",
    "GuaranteeKind",
    "HeterogeneityEstimate",
    "Mix",
    "NoisyCounts",
    "OwnInterval",
    "at_least",
    "at_most",
    "bounds_of",
    "certify",
    "check_budget",
    "class_counts",
    "conformal_rank",
    "coverage_curve",
    "coverage_interval",
    "curve_assumptions",
    "curve_budgets",
    "empty_from",
    "envelope",
    "estimate_heterogeneity",
    "exact_level",
    "fcp_index",
    "foresee",
    "guaranteed",
    "homogeneous_threshold",
    "least_liars",
    "least_shift",
    "liars_assumption",
    "liars_forcing_full_sets",
    "liars_no_rule_survives",
    "loss_at_most",
    "marginal_threshold",
    "mixes_differ",
    "outside_of",
    "own_interval",
    "own_mixes",
    "pac_threshold",
    "prune",
    "rank_charge",
    "read_mixes",
    "robust_step",
    "shifted_mix",
    "shifted_pac",
    "site_thresholds",
    "stranger_threshold",
    "tolerance",
    "tolerance_at",
    "tolerance_statement",
    "tolerances",
]
