"""The benchmark's page and plot, wholly from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import QUIET, Row, markdown

FLOORS = {
    "scores": "one copy of the array",
    "sets": "one copy of the array",
    "sketch": "one copy of the scores",
    "report": "the pooled report",
    "validate": "decoding the JSON",
    "exact distances": "matrix product + partition",
    "quantile": "one pass over the counts",
    "certify": "one pass over the counts",
}
INSTEAD = {
    "scores": "MAPIE's scores (which it does not check)",
    "sketch": "a KLL sketch",
}
TEXT = """# Speed and scale

Written by `make benchmark` from one run of {minutes:.0f} minutes on {date}; do not edit. Medians,
quartiles in brackets. Ratios are within the run, stages and floors in turns, because absolute times
are the machine's: {cores} cores, numpy {numpy}. Sites hold 50 samples on the default grid of about
1000 bins unless the table says otherwise; 30% of them lie. The machine's load was {load_before:g}
before the run and {load_after:g} after it: {disturbed}.

![Time over sites](images/speed.png)

## Against floors and alternatives

A floor is what no implementation can avoid; *instead* is what one would take without this library.
Below 1x of a floor: more cores than the floor uses. MAPIE is measured on a tenth of the rows and
scaled up. Scores and sets are of 20,000 x 1000 float32.

{ratios}

## Server

Times after intake. *calibrate* is the default: defence, threshold, certificate and its curve for
other numbers of liars. The page is of a round in which 2% lie.

{times}

## A whole round at the server

From a file of reports to the calibration with its certificate (default defence, estimated number of
liars), in a process of its own; peak is that process's.

{rounds}
"""


def page(result: dict[str, Any]) -> str:
    """docs/speed.md."""
    rows = [Row(**row) for row in result["rows"]]
    compared = [row for row in rows if row.floor is not None or row.instead is not None]
    busy = result["load_before"] > QUIET or result["load_after"] > result["cores"] + QUIET
    return TEXT.format(
        **result | {"rounds": markdown(*_rounds(result["rounds"]))},
        minutes=result["seconds"] / 60,
        disturbed="**other work disturbed this run**" if busy else "nothing else ran",
        ratios=markdown(
            ["stage", "sites", "samples", "time a site", "floor", "instead", "peak"],
            map(_ratio, compared),
        ),
        times=markdown(
            ["stage", "sites", "time", "peak"],
            (
                [row.stage, f"{row.clients:,}", f"{row.seconds:.3g} s", _mib(row.peak)]
                for row in rows
                if row not in compared
            ),
        ),
    )


def _ratio(row: Row) -> list[str]:
    kind = row.stage.split(",")[0]
    floor = instead = ""
    if row.floor is not None:
        low, high = row.spread or (row.seconds, row.seconds)
        ends = f"{low / row.floor:.2g} to {high / row.floor:.2g}"
        floor = f"{row.seconds / row.floor:.2g}x ({ends}) {FLOORS[kind]}"
    if row.instead is not None:
        instead = f"{row.instead / row.seconds:.3g}x as fast as {INSTEAD[kind]}"
    each = f"{row.seconds / row.clients * 1e6:,.3g} us"
    return [
        row.stage, f"{row.clients:,}", f"{row.samples:,}", each, floor, instead, _mib(row.peak)
    ]  # fmt: skip


def _rounds(rounds: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    lines = [
        [
            f"{one['clients']:,}",
            ("ten classes" if one["by_class"] else "pooled") + f", {one['from']}",
            f"{one['intake_seconds'] / one['clients'] * 1e6:.1f} us",
            f"{one['calibrate_seconds'] / one['clients'] * 1e6:.1f} us",
            f"{one['intake_seconds'] + one['calibrate_seconds']:.1f} s",
            f"{one['peak_mib']:,} MiB",
            f"{one['flagged']:,}",
        ]
        for one in rounds
    ]
    head = ["sites", "", "intake a site", "calibration a site", "whole round", "peak", "flagged"]
    return head, lines


def _mib(number: int) -> str:
    return f"{number / 2**20:.3g} MiB"


def plot(rows: list[Row], path: Path) -> None:
    """Seconds over sites, both logarithmic, a line a stage."""
    from robfcp.figures import new_axes, save

    (axes,) = new_axes(1, 4.5)
    for stage in dict.fromkeys(row.stage for row in rows if row.clients > 1):
        here = sorted((row.clients, row.seconds) for row in rows if row.stage == stage)
        if len(here) > 1:
            axes.loglog(*zip(*here, strict=True), marker="o", label=stage)
    axes.set(xlabel="sites", ylabel="seconds")
    axes.legend(fontsize="small")
    save(axes, path)
