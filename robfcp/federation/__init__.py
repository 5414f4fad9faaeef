"""The federation: untrusted reports in, one validated table of counts out, faults listed."""

from robfcp.federation.counts import Counts, DenseCounts, Stratified, numbered
from robfcp.federation.federation import Federation
from robfcp.federation.intake import Fault, Untrusted, taken_before
from robfcp.federation.parquet import Replies, report_files, write_verdicts
from robfcp.federation.spark import read_tables

__all__ = [
    "Counts",
    "DenseCounts",
    "Fault",
    "Federation",
    "Replies",
    "Stratified",
    "Untrusted",
    "numbered",
    "read_tables",
    "report_files",
    "taken_before",
    "write_verdicts",
]
