"""The benchmark's page and plot, wholly from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import QUIET, Row, markdown

# The first word of a stage -> what its floor is.
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
# The first word of a stage -> what a user would take without this library.
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
    """Return docs/speed.md."""
    rows = [Row(**row) for row in result["rows"]]
    compared = [row for row in rows if row.floor is not None or row.instead is not None]
    others = [row for row in rows if row not in compared]
    was_busy = result["load_before"] > QUIET or result["load_after"] > result["cores"] + QUIET
    fields = {
        **result,
        "minutes": result["seconds"] / 60,
        "disturbed": "**other work disturbed this run**" if was_busy else "nothing else ran",
        "ratios": markdown(
            ["stage", "sites", "samples", "time a site", "floor", "instead", "peak"],
            [_ratio_line(row) for row in compared],
        ),
        "times": markdown(["stage", "sites", "time", "peak"], [_time_line(row) for row in others]),
        "rounds": markdown(ROUND_HEAD, [_round_line(round) for round in result["rounds"]]),
    }
    return TEXT.format(**fields)


def _ratio_line(row: Row) -> list[str]:
    """Return a stage beside its floor and what a user would take instead."""
    kind = row.stage.split(",")[0]
    floor = ""
    if row.floor is not None:
        low, high = row.spread or (row.seconds, row.seconds)
        quartiles = f"{low / row.floor:.2g} to {high / row.floor:.2g}"
        floor = f"{row.seconds / row.floor:.2g}x ({quartiles}) {FLOORS[kind]}"
    instead = ""
    if row.instead is not None:
        instead = f"{row.instead / row.seconds:.3g}x as fast as {INSTEAD[kind]}"
    return [
        row.stage,
        f"{row.clients:,}",
        f"{row.samples:,}",
        f"{row.seconds / row.clients * 1e6:,.3g} us",
        floor,
        instead,
        _mib(row.peak),
    ]


def _time_line(row: Row) -> list[str]:
    """Return a stage that is compared with nothing."""
    return [row.stage, f"{row.clients:,}", f"{row.seconds:.3g} s", _mib(row.peak)]


ROUND_HEAD = [
    "sites", "", "intake a site", "calibration a site", "whole round", "peak", "flagged"
]  # fmt: skip


def _round_line(round: dict[str, Any]) -> list[str]:
    """Return one whole round."""
    n_clients = round["clients"]
    kind = "ten classes" if round["by_class"] else "pooled"
    intake = round["intake_seconds"]
    calibration = round["calibrate_seconds"]
    return [
        f"{n_clients:,}",
        f"{kind}, {round['from']}",
        f"{intake / n_clients * 1e6:.1f} us",
        f"{calibration / n_clients * 1e6:.1f} us",
        f"{intake + calibration:.1f} s",
        f"{round['peak_mib']:,} MiB",
        f"{round['flagged']:,}",
    ]


def _mib(n_bytes: int) -> str:
    """Return bytes as text in MiB."""
    return f"{n_bytes / 2**20:.3g} MiB"


def plot(rows: list[Row], path: Path) -> None:
    """Draw seconds over clients, both logarithmic, a line a stage."""
    from robfcp.figures import new_axes, save

    (axes,) = new_axes(1, 4.5)
    for stage in dict.fromkeys(row.stage for row in rows if row.clients > 1):
        points = sorted((row.clients, row.seconds) for row in rows if row.stage == stage)
        if len(points) > 1:
            n_clients = [point[0] for point in points]
            seconds = [point[1] for point in points]
            axes.loglog(n_clients, seconds, marker="o", label=stage)
    axes.set(xlabel="sites", ylabel="seconds")
    axes.legend(fontsize="small")
    save(axes, path)
