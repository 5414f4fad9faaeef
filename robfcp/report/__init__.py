"""Reports: what a site sends. Counts on the grid, identity and context, the wire, signatures."""

from robfcp.report import agreement, signing, wire
from robfcp.report.by_class import MAX_STRATA, OTHER, By, Names, Strata, check_strata_names
from robfcp.report.report import Report
from robfcp.report.signing import generate_key, load_key

__all__ = [
    "MAX_STRATA",
    "OTHER",
    "By",
    "Names",
    "Report",
    "Strata",
    "agreement",
    "check_strata_names",
    "generate_key",
    "load_key",
    "signing",
    "wire",
]
