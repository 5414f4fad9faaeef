"""The federation: untrusted reports in, one validated table of counts out, faults listed."""

from robfcp.federation.counts import (
    Counts,
    DenseCounts,
    SparseCounts,
    Stratified,
)
from robfcp.federation.federation import Federation, numbered
from robfcp.federation.intake import Fault, Untrusted, taken_before

__all__ = [
    "Counts",
    "DenseCounts",
    "Fault",
    "Federation",
    "SparseCounts",
    "Stratified",
    "Untrusted",
    "numbered",
    "taken_before",
]
