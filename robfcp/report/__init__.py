"""Reports: what a site sends. Counts on the grid, identity and context, the wire, signatures."""

from robfcp.report import agreement, signing, wire
from robfcp.report.by_class import (
    MAX_STRATA,
    OTHER,
    By,
    Names,
    Strata,
    check_strata_names,
    listed,
    number_of,
)
from robfcp.report.report import Report

__all__ = [
    "MAX_STRATA",
    "OTHER",
    "By",
    "Names",
    "Report",
    "Strata",
    "agreement",
    "check_strata_names",
    "listed",
    "number_of",
    "signing",
    "wire",
]
