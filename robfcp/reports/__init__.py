"""Reports: what a client sends to the server, and how untrusted reports are read.

`Report` holds counts per bin with the client's name and context; `signing` signs and verifies
reports, `terms` holds the registry of clients and the terms of a round. May import `scores`,
`privacy` and what lies below them.
"""

from robfcp.reports import signing, terms
from robfcp.reports._class_totals import ClassTotals, class_size_bounds, round_class_totals
from robfcp.reports._coarsening import (
    DEFAULT_MIN_CELL_COUNT,
    MAX_MIN_CELL_COUNT,
    Cells,
    coarsen_cells,
    counts_in_lowest_bins,
    split_coarsened_cells,
)
from robfcp.reports._report import MIN_SAMPLES_PER_CLASS, Report
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
    single_stratum,
    stratum_labels,
)
from robfcp.reports._wire import (
    REPORT_SCHEMA,
    WireBinning,
    WireClassTotals,
    WireCounts,
    WireReport,
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
    "DEFAULT_MIN_CELL_COUNT",
    "MAX_MIN_CELL_COUNT",
    "MAX_STRATA",
    "MIN_SAMPLES_PER_CLASS",
    "OTHER_STRATUM",
    "REPORT_SCHEMA",
    "BinningDigest",
    "CellCounts",
    "Cells",
    "ClassTotals",
    "Header",
    "HeaderReader",
    "Report",
    "ReportRow",
    "Strata",
    "StratifiedCounts",
    "StratumKind",
    "StratumNames",
    "WireBinning",
    "WireClassTotals",
    "WireCounts",
    "WireReport",
    "WireScore",
    "WireStratifiedCounts",
    "check_stratum_names",
    "class_size_bounds",
    "coarsen_cells",
    "counts_in_lowest_bins",
    "decode_message",
    "from_wire_binning",
    "from_wire_score",
    "n_strata",
    "parse_report",
    "require_expected_binning",
    "round_class_totals",
    "signing",
    "single_stratum",
    "split_coarsened_cells",
    "stratum_labels",
    "terms",
    "to_wire_binning",
    "to_wire_score",
    "validate_report",
]
