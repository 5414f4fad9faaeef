"""Reports: what a site sends. Counts on the grid, identity and context, the wire, signatures.

May import `_util`, `errors`, `grid`, `scores` and `privacy`; `federation` and the rooms after it
build on it. The wire is strict JSON with a schema number; nothing is ever unpickled.
"""

from robfcp.reports.checks import MAX_SAMPLES, are_clients, check_client
from robfcp.reports.disclosure import Exact, disclosure_of
from robfcp.reports.e_report import MAX_E_REPORT_BYTES, EReport, read_e_report, sign_e_report
from robfcp.reports.quick import (
    UNSET,
    QuickCounts,
    QuickReport,
    Shared,
    quick_report,
    read_context,
    read_shared,
    shared_key,
    slim_context,
)
from robfcp.reports.registry import read_registry, read_sizes
from robfcp.reports.report import Report
from robfcp.reports.shapes import WireContext, WireGrid, WireScore
from robfcp.reports.signing import (
    check_named_key,
    generate_key,
    load_key,
    may_be_signed,
    public_text,
    read_keys,
    read_public_key,
    save_signed,
    sign,
    sign_bytes,
    unwrap,
    valid_signature,
    verify,
)
from robfcp.reports.sketches import sketch
from robfcp.reports.strata import MAX_STRATA, OTHER, By, Names, Strata, check_strata_names
from robfcp.reports.terms import Terms, read_terms, sign_terms
from robfcp.reports.wire import (
    check_expected,
    read_grid,
    read_score,
    wire_grid,
    wire_risk,
    wire_score,
)

__all__ = [
    "MAX_E_REPORT_BYTES",
    "MAX_SAMPLES",
    "MAX_STRATA",
    "OTHER",
    "UNSET",
    "By",
    "EReport",
    "Exact",
    "Names",
    "QuickCounts",
    "QuickReport",
    "Report",
    "Shared",
    "Strata",
    "Terms",
    "WireContext",
    "WireGrid",
    "WireScore",
    "are_clients",
    "check_client",
    "check_expected",
    "check_named_key",
    "check_strata_names",
    "disclosure_of",
    "generate_key",
    "load_key",
    "may_be_signed",
    "public_text",
    "quick_report",
    "read_context",
    "read_e_report",
    "read_grid",
    "read_keys",
    "read_public_key",
    "read_registry",
    "read_score",
    "read_shared",
    "read_sizes",
    "read_terms",
    "save_signed",
    "shared_key",
    "sign",
    "sign_bytes",
    "sign_e_report",
    "sign_terms",
    "sketch",
    "slim_context",
    "unwrap",
    "valid_signature",
    "verify",
    "wire_grid",
    "wire_risk",
    "wire_score",
]
