"""The federation: untrusted reports in, one validated table of counts out, with what was rejected.

`Federation` holds the counts of a round, in memory or in files; a `RejectedReport` says why a
report does not count. May import `reports`, `privacy`, `scores` and what lies below them, and
`fleet` inside functions that read or write tables of reports.
"""

from robfcp.federation._agreement import check_quorum, hash_rows
from robfcp.federation._arguments import default_client_names
from robfcp.federation._federation import Federation
from robfcp.federation._inbox import (
    POSITION_DTYPE,
    Block,
    GrowingColumn,
    RawReport,
    RejectedReport,
    ReportTables,
    RoundStrata,
    StoredTable,
    TableChunk,
    UntrustedReport,
    narrowed,
)
from robfcp.federation._intake import FilePath, rebuild_from_record
from robfcp.federation._strata import CountBlock, StratifiedTable, build_block, pool_strata
from robfcp.federation._tables import CountTable, SparseCounts, SparseTable
from robfcp.reports import BinningDigest, Header

__all__ = [
    "POSITION_DTYPE",
    "BinningDigest",
    "Block",
    "CountBlock",
    "CountTable",
    "Federation",
    "FilePath",
    "GrowingColumn",
    "Header",
    "RawReport",
    "RejectedReport",
    "ReportTables",
    "RoundStrata",
    "SparseCounts",
    "SparseTable",
    "StoredTable",
    "StratifiedTable",
    "TableChunk",
    "UntrustedReport",
    "build_block",
    "check_quorum",
    "default_client_names",
    "hash_rows",
    "narrowed",
    "pool_strata",
    "rebuild_from_record",
]
