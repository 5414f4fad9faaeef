"""Reports: what a client sends to the server, and how untrusted reports are read.

`Report` holds counts per bin with the client's name and context; `signing` signs and verifies
reports, `terms` holds the registry of clients and the terms of a round. May import `scores`,
`privacy` and what lies below them.
"""

from robfcp.reports import signing, terms
from robfcp.reports._report import Report
from robfcp.reports._row import (
    BinningDigest,
    CellCounts,
    Header,
    HeaderReader,
    ReportRow,
    validate_report,
)
from robfcp.reports._strata import (
    MAX_STRATA,
    OTHER_STRATUM,
    Strata,
    StratifiedCounts,
    StratumKind,
    StratumNames,
    check_stratum_names,
    n_strata,
    stratum_labels,
)
from robfcp.reports._wire import (
    WireBinning,
    WireCounts,
    WireScore,
    WireStratifiedCounts,
    decode_message,
    from_wire_binning,
    from_wire_score,
    parse_report,
    require_expected_binning,
    to_wire_binning,
    to_wire_score,
)

__all__ = [
    "MAX_STRATA",
    "OTHER_STRATUM",
    "BinningDigest",
    "CellCounts",
    "Header",
    "HeaderReader",
    "Report",
    "ReportRow",
    "Strata",
    "StratifiedCounts",
    "StratumKind",
    "StratumNames",
    "WireBinning",
    "WireCounts",
    "WireScore",
    "WireStratifiedCounts",
    "check_stratum_names",
    "decode_message",
    "from_wire_binning",
    "from_wire_score",
    "n_strata",
    "parse_report",
    "require_expected_binning",
    "signing",
    "stratum_labels",
    "terms",
    "to_wire_binning",
    "to_wire_score",
    "validate_report",
]
