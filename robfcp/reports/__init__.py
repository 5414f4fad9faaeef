"""Reports: what a site sends. Counts on the grid, identity and context, the wire, signatures.

May import `_util`, `errors`, `grid`, `scores` and `privacy`; `federation` and the rooms after it
build on it. The wire is strict JSON with a schema number; nothing is ever unpickled.
"""

from robfcp._moved import old_names
from robfcp.reports.checks import MAX_SAMPLES, check_client
from robfcp.reports.e_report import MAX_E_REPORT_BYTES, EReport, read_e_report, sign_e_report
from robfcp.reports.registry import read_registry, read_sizes
from robfcp.reports.report import Report
from robfcp.reports.signing import (
    generate_key,
    load_key,
    public_text,
    read_keys,
    save_signed,
    sign,
    unwrap,
    verify,
)
from robfcp.reports.sketches import sketch
from robfcp.reports.strata import MAX_STRATA, OTHER, By, Names, Strata, check_strata_names
from robfcp.reports.wire import (
    WireGrid,
    WireScore,
    read_grid,
    read_score,
    wire_grid,
    wire_score,
)

__all__ = [
    "MAX_E_REPORT_BYTES",
    "MAX_SAMPLES",
    "MAX_STRATA",
    "OTHER",
    "By",
    "EReport",
    "Names",
    "Report",
    "Strata",
    "WireGrid",
    "WireScore",
    "check_client",
    "check_strata_names",
    "generate_key",
    "load_key",
    "public_text",
    "read_e_report",
    "read_grid",
    "read_keys",
    "read_registry",
    "read_score",
    "read_sizes",
    "save_signed",
    "sign",
    "sign_e_report",
    "sketch",
    "unwrap",
    "verify",
    "wire_grid",
    "wire_score",
]

__getattr__ = old_names(__name__)
