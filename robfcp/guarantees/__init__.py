"""Guarantees: what is proved about a threshold, whatever at most m clients do."""

from robfcp.guarantees.budgets import check_budget
from robfcp.guarantees.certificate import (
    assumptions_of,
    certify,
    coverage_curve,
    curve_budgets,
    empty_from,
    foresee,
    outside_of,
)
from robfcp.guarantees.coverage import coverage_interval
from robfcp.guarantees.engine import CountBounds, ExactCounts, envelope
from robfcp.guarantees.label_shift import (
    MOST_COMPARED,
    ClassCounts,
    class_counts,
    least_shift,
    mixes_differ,
    read_mixes,
)
from robfcp.guarantees.marginal import (
    liars_forcing_full_sets,
    liars_no_rule_survives,
    marginal_threshold,
    most_liars,
    robust_step,
)
from robfcp.guarantees.promises import PROMISES, LabelShift, Marginal, Pac, Promise, named_promise
from robfcp.guarantees.pruning import (
    PRUNING_SHARE,
    ClientIntervals,
    HeterogeneityEstimate,
    estimate_heterogeneity,
    least_liars,
    prune,
)
from robfcp.guarantees.rank import (
    Charge,
    FcpThreshold,
    RankRule,
    conformal_rank,
    fcp_index,
    rank_charge,
)
from robfcp.guarantees.site import (
    OwnInterval,
    own_interval,
    own_mixes,
    site_thresholds,
    stranger_threshold,
)
from robfcp.guarantees.tails import NoisyCounts, bounds_of, pac_threshold

__all__ = [
    "MOST_COMPARED",
    "PROMISES",
    "PRUNING_SHARE",
    "Charge",
    "ClassCounts",
    "ClientIntervals",
    "CountBounds",
    "ExactCounts",
    "FcpThreshold",
    "HeterogeneityEstimate",
    "LabelShift",
    "Marginal",
    "NoisyCounts",
    "OwnInterval",
    "Pac",
    "Promise",
    "RankRule",
    "assumptions_of",
    "bounds_of",
    "certify",
    "check_budget",
    "class_counts",
    "conformal_rank",
    "coverage_curve",
    "coverage_interval",
    "curve_budgets",
    "empty_from",
    "envelope",
    "estimate_heterogeneity",
    "fcp_index",
    "foresee",
    "least_liars",
    "least_shift",
    "liars_forcing_full_sets",
    "liars_no_rule_survives",
    "marginal_threshold",
    "mixes_differ",
    "most_liars",
    "named_promise",
    "outside_of",
    "own_interval",
    "own_mixes",
    "pac_threshold",
    "prune",
    "rank_charge",
    "read_mixes",
    "robust_step",
    "site_thresholds",
    "stranger_threshold",
]
