"""The benchmark's page and plot, wholly from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import QUIET, Row, markdown

# The first word of a stage -> what its lower bound is.
LOWER_BOUNDS = {
    "scores": "one copy of the array",
    "sets": "one copy of the array",
    "sketch": "one copy of the scores",
    "report": "the pooled report",
    "validate": "decoding the JSON",
    "exact distances": "matrix product + partition",
    "quantile": "one pass over the counts",
    "certify": "one pass over the counts",
}
# The first word of a stage -> the alternative.
ALTERNATIVES = {
    "scores": "MAPIE's scores (which it does not check)",
    "sketch": "a KLL sketch",
}
TEXT = """# Speed and scale

Written by `make benchmark` from one run of {minutes:.0f} minutes on {date}; do not edit. Medians,
quartiles in brackets. Ratios are within the run, stages and lower bounds in turns, because absolute
times are the machine's: {cores} cores, numpy {numpy}. Clients hold 50 samples on the default
binning of about 1000 bins unless the table says otherwise; 30% of them are malicious. The machine's
load was {load_before:g} before the run and {load_after:g} after it: {disturbed}.

![Time over clients](images/speed.png)

## Against lower bounds and alternatives

A lower bound is what no implementation can avoid; an *alternative* is what one would take without
this library. Below 1x of a lower bound: more cores than it uses. MAPIE is measured on a tenth of
the rows and scaled up. Scores and sets are of 20,000 x 1000 float32.

{ratios}

## Server

Times after intake. *calibrate* is the default: defense, threshold, and certificates for every
number of malicious clients. The page is of a round in which 2% are malicious.

{times}

## A whole round at the server

From a file of reports to the calibration with its certificate (default defense, estimated number
of malicious clients), in a process of its own; peak is that process's.

{rounds}
"""


def page(result: dict[str, Any]) -> str:
    """Return docs/speed.md."""
    rows = [Row(**row) for row in result["rows"]]
    compared = [row for row in rows if row.lower_bound is not None or row.alternative is not None]
    uncompared = [row for row in rows if row not in compared]
    was_busy = result["load_before"] > QUIET or result["load_after"] > result["cores"] + QUIET
    fields = {
        **result,
        "minutes": result["seconds"] / 60,
        "disturbed": "**other work disturbed this run**" if was_busy else "nothing else ran",
        "ratios": markdown(
            [
                "stage",
                "clients",
                "samples",
                "time per client",
                "lower bound",
                "alternative",
                "peak",
            ],
            [_ratio_line(row) for row in compared],
        ),
        "times": markdown(
            ["stage", "clients", "time", "peak"], [_time_line(row) for row in uncompared]
        ),
        "rounds": markdown(ROUND_HEAD, [_round_line(round) for round in result["rounds"]]),
    }
    return TEXT.format(**fields)


def _ratio_line(row: Row) -> list[str]:
    """Return a stage beside its lower bound and its alternative."""
    kind = row.stage.split(",")[0]
    bound_text = ""
    if row.lower_bound is not None:
        low, high = row.spread or (row.seconds, row.seconds)
        quartiles = f"{low / row.lower_bound:.2g} to {high / row.lower_bound:.2g}"
        bound_text = f"{row.seconds / row.lower_bound:.2g}x ({quartiles}) {LOWER_BOUNDS[kind]}"
    alternative_text = ""
    if row.alternative is not None:
        alternative_text = f"{row.alternative / row.seconds:.3g}x as fast as {ALTERNATIVES[kind]}"
    return [
        row.stage,
        f"{row.n_clients:,}",
        f"{row.n_samples:,}",
        f"{row.seconds / row.n_clients * 1e6:,.3g} us",
        bound_text,
        alternative_text,
        _mib(row.peak),
    ]


def _time_line(row: Row) -> list[str]:
    """Return a stage that is compared with nothing."""
    return [row.stage, f"{row.n_clients:,}", f"{row.seconds:.3g} s", _mib(row.peak)]


ROUND_HEAD = [
    "clients",
    "",
    "intake per client",
    "calibration per client",
    "whole round",
    "peak",
    "flagged",
]


def _round_line(round: dict[str, Any]) -> list[str]:
    """Return one whole round."""
    n_clients = round["n_clients"]
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
        f"{round['n_flagged']:,}",
    ]


def _mib(n_bytes: int) -> str:
    """Return bytes as text in MiB."""
    return f"{n_bytes / 2**20:.3g} MiB"


def plot(rows: list[Row], path: Path) -> None:
    """Draw seconds over clients, both logarithmic, a line a stage."""
    from robfcp.figures import new_axes, save

    (axes,) = new_axes(1, 4.5)
    for stage in dict.fromkeys(row.stage for row in rows if row.n_clients > 1):
        points = sorted((row.n_clients, row.seconds) for row in rows if row.stage == stage)
        if len(points) > 1:
            n_clients = [point[0] for point in points]
            seconds = [point[1] for point in points]
            axes.loglog(n_clients, seconds, marker="o", label=stage)
    axes.set(xlabel="clients", ylabel="seconds")
    axes.legend(fontsize="small")
    save(axes, path)
