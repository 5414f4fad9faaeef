"""The federation: untrusted reports in, one validated table of counts out, faults listed."""

from robfcp.federation._agreement import BinningDigest, Header, check_quorum
from robfcp.federation._federation import Federation
from robfcp.federation._intake import RejectedReport, UntrustedReport, rebuild_from_record
from robfcp.federation._tables import CountTable, DenseCounts, StratifiedTable, default_client_names

__all__ = [
    "BinningDigest",
    "CountTable",
    "DenseCounts",
    "Federation",
    "Header",
    "RejectedReport",
    "StratifiedTable",
    "UntrustedReport",
    "check_quorum",
    "default_client_names",
    "rebuild_from_record",
]
