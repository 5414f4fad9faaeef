"""The federation: untrusted reports in, one validated table of counts out, faults listed."""

from robfcp.federation.counts import Counts, DenseCounts, SparseCounts, check_extent, table
from robfcp.federation.faults import Fault, Untrusted, fault_of
from robfcp.federation.federation import Checked, Federation, capped, numbered
from robfcp.federation.majority import reports_needed
from robfcp.federation.projection import comparable, projected, rising, smoothed_below, whole
from robfcp.federation.reading import read_federation, read_signed, verify_all
from robfcp.federation.strata import Stratified

__all__ = [
    "Checked",
    "Counts",
    "DenseCounts",
    "Fault",
    "Federation",
    "SparseCounts",
    "Stratified",
    "Untrusted",
    "capped",
    "check_extent",
    "comparable",
    "fault_of",
    "numbered",
    "projected",
    "read_federation",
    "read_signed",
    "reports_needed",
    "rising",
    "smoothed_below",
    "table",
    "verify_all",
    "whole",
]
