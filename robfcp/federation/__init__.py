"""The federation: untrusted reports in, one validated table of counts out, faults listed."""

from robfcp.federation._agreement import check_quorum
from robfcp.federation._arguments import default_client_names
from robfcp.federation._blocks import CountBlock, build_block
from robfcp.federation._federation import Federation
from robfcp.federation._intake import (
    MAX_ENTRIES_PER_REPORT,
    POSITION_DTYPE,
    Block,
    FilePath,
    RawReport,
    RejectedReport,
    StoredTable,
    TableChunk,
    UntrustedReport,
    rebuild_from_record,
)
from robfcp.federation._rows import GrowingColumns, SparseCounts, narrowed
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import BinningDigest, Header

__all__ = [
    "MAX_ENTRIES_PER_REPORT",
    "POSITION_DTYPE",
    "BinningDigest",
    "Block",
    "CountBlock",
    "CountTable",
    "Federation",
    "FilePath",
    "GrowingColumns",
    "Header",
    "RawReport",
    "RejectedReport",
    "SparseCounts",
    "SparseTable",
    "StoredTable",
    "StratifiedTable",
    "TableChunk",
    "UntrustedReport",
    "build_block",
    "check_quorum",
    "default_client_names",
    "narrowed",
    "rebuild_from_record",
]
