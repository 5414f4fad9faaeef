"""Reports: what a site sends. Counts on the grid, identity and context, the wire, signatures."""

from robfcp.reports import signing, terms
from robfcp.reports._report import Report
from robfcp.reports._strata import (
    MAX_STRATA,
    OTHER_STRATUM,
    StratifiedCounts,
    StratumKind,
    StratumNames,
    check_stratum_names,
    n_strata,
    stratum_labels,
)
from robfcp.reports._wire import (
    WireBinning,
    WireScore,
    decode_message,
    from_wire_binning,
    from_wire_score,
    to_wire_binning,
    to_wire_score,
)

__all__ = [
    "MAX_STRATA",
    "OTHER_STRATUM",
    "Report",
    "StratifiedCounts",
    "StratumKind",
    "StratumNames",
    "WireBinning",
    "WireScore",
    "check_stratum_names",
    "decode_message",
    "from_wire_binning",
    "from_wire_score",
    "n_strata",
    "signing",
    "stratum_labels",
    "terms",
    "to_wire_binning",
    "to_wire_score",
]
