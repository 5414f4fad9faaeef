"""`robfcp certify`: each site's own coverage, and what reports by class tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from robfcp.calibration import Calibration, covered_at_sites, own_thresholds, site_coverage
from robfcp.cli._common import Printer
from robfcp.federation import Federation
from robfcp.guarantees import MOST_COMPARED, least_shift

SHOWN_SITES = 10


def by_site(
    federation: Federation, limits: list[float], calibration: Calibration | None
) -> list[dict[str, Any]]:
    """Each site's own reported scores under the thresholds; worst first.

    The worst ones also under the threshold that their letters come to, where these hold one.
    """
    if calibration is None:
        covered = site_coverage(federation, limits)
    else:
        covered = covered_at_sites(calibration)
    order = np.argsort(covered[:, 0], kind="stable").tolist()
    own = {}
    if calibration is not None:
        own = own_thresholds(calibration, {federation.ids[k] for k in order[:SHOWN_SITES]})
    return [
        {
            "client": federation.ids[k],
            "samples": int(federation.sizes[k]),
            "coverage": covered[k].tolist(),
            "own": own[federation.ids[k]]._asdict() if federation.ids[k] in own else None,
        }
        for k in order
    ]


def show_sites(printer: Printer, sites: list[dict[str, Any]]) -> None:
    """The worst sites; with what their own letters do for them, where there are any."""
    shown = sites[:SHOWN_SITES]
    more = f", the {len(shown)} lowest of {len(sites)}" if len(shown) < len(sites) else ""
    own = any(one["own"] for one in shown)
    columns = ["site", "samples", "covered"] + ["own threshold", "covers"] * own
    rows = [
        (
            one["client"],
            one["samples"],
            ", ".join(f"{c:.3f}" for c in one["coverage"]),
            *(_own_cells(one["own"]) if own else ()),
        )
        for one in shown
    ]
    printer.table(f"coverage each site reports of its own samples{more}", columns, rows)
    if own:
        printer.line(
            "own threshold: what the site's letter comes to (robfcp localise), up to one bin: the "
            "others' reports for its label mix, clipped by its own samples."
        )


def _own_cells(own: dict[str, float] | None) -> tuple[object, object]:
    return ("-", "-") if own is None else (own["threshold"], f"{own['covered']:.3f}")


def within_classes(
    printer: Printer, federation: Federation, m: int, confidence: float
) -> dict[str, Any] | None:
    """What reports by class tell: who is alike within classes, and which classes liars can own."""
    strata = federation.strata
    if strata is None or strata.by != "class":
        return None
    holders = (strata.sizes > 0).sum(axis=0)
    thin = [strata.labels[c] for c in np.flatnonzero((holders > 0) & (holders <= 2 * m))]
    if thin:
        named = ", ".join(thin[:SHOWN_SITES]) + (", ..." if len(thin) > SHOWN_SITES else "")
        printer.line(f"Against {m} liars hardly protected, held by at most {2 * m} sites: {named}.")
    shift = None
    if federation.exact_strata is not None and m < len(strata.rows) <= MOST_COMPARED:
        shift = least_shift(federation, m, confidence)
        printer.line(
            f"Label shift: the smallest at which none of them would be dropped is {shift:.3f} "
            "(a diagnostic, liars included; it is not used by itself)."
        )
    return {"hardly_protected": thin, "least_shift": shift}
