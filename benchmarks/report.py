"""The benchmark's page and plot, wholly from one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import QUIET, Row, exponent

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
    "sets": "MAPIE's sets",
    "sketch, beside KLL": "a KLL sketch",
    "sketch, beside t-digest": "a t-digest",
    "calibrate": "the paper's pseudo-code in loops",
    "count": "a numerical optimisation per z",
}


def page(result: dict[str, Any]) -> str:
    """docs/speed.md."""
    rows = [Row(**row) for row in result["rows"]]
    parts = [
        "# Speed and scale",
        "Written by `make benchmark` (`python benchmarks/run.py`) from one run of "
        f"{result['seconds'] / 60:.0f} minutes on {result['date']}; do not edit. Medians with "
        "quartiles in brackets. Ratios are within the run, stages and floors in turns, because "
        f"absolute times are the machine's: {result['cores']} cores, numpy {result['numpy']}. "
        "Sites hold 50 samples on the default grid of about 1000 bins unless the table says "
        "otherwise; 30% of them lie.",
        _disturbance(result),
        "![Time over sites](images/speed.png)",
        "## Against floors and alternatives",
        "A floor is what no implementation can avoid; *instead* is what one would take without "
        "this library. Below 1x of a floor: more cores than the floor uses. Plain loops (20 of "
        "1000 sites), optimisations (3 of 49) and MAPIE (a tenth of the rows) are measured on that "
        "part and scaled up. Scores and sets are of 20,000 x 1000 float32.",
        *_ratios(rows),
        "## Server",
        "Times after intake. *calibrate* is the default: defence, threshold, "
        "certificate and its curve for other numbers of liars. The page is of a round in which "
        "2% lie.",
        *_times_of(rows),
        "## Growth",
        "Exponent of time over the number of sites, from a thousand sites on.",
        *_growth(rows),
        "## A whole round at the server",
        "From a file of reports to the calibration with its certificate (default "
        "defence, estimated number of liars), in a process of its own; peak is that process's.",
        *_rounds(result["rounds"]),
    ]
    return "\n\n".join(parts) + "\n"


def _disturbance(result: dict[str, Any]) -> str:
    before, after, cores = result["load_before"], result["load_after"], result["cores"]
    words = f"The machine's load was {before:g} before the run and {after:g} after it"
    if before > QUIET or after > cores + QUIET:
        return f"{words}: **other work disturbed this run.**"
    return f"{words}: nothing else ran."


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    rule = ["---"] * len(head)
    return ["\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])]


def _ratios(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.floor is None and row.instead is None:
            continue
        kind = row.stage.split(",")[0]
        floor = instead = ""
        if row.floor is not None:
            floor = f"{_ratio(row, row.floor)} {FLOORS[kind]}"
        if row.instead is not None:
            name = INSTEAD.get(row.stage) or INSTEAD[kind]
            instead = f"{_times(row.instead / row.seconds)} as fast as {name}"
        size = [f"{row.clients:,}", f"{row.samples:,}", _each(row)]
        lines.append([row.stage, *size, floor, instead, _bytes(row.peak)])
    return _table(["stage", "sites", "samples", "time a site", "floor", "instead", "peak"], lines)


def _times_of(rows: list[Row]) -> list[str]:
    lines = [
        [row.stage, f"{row.clients:,}", _duration(row), _bytes(row.peak)]
        for row in rows
        if row.floor is None and row.instead is None
    ]
    return _table(["stage", "sites", "time", "peak"], lines)


def _growth(rows: list[Row]) -> list[str]:
    lines = []
    for stage in dict.fromkeys(row.stage for row in rows):
        here = [row for row in rows if row.stage == stage and row.clients >= 1000]
        slope = exponent([row.clients for row in here], [row.seconds for row in here], 1000)
        if slope is not None:
            span = f"{here[0].clients:,} to {here[-1].clients:,}"
            lines.append([stage, span, f"{slope:.2f}", _bytes(here[-1].peak)])
    return _table(["stage", "sites", "exponent", "peak at the most"], lines)


def _rounds(rounds: list[dict[str, Any]]) -> list[str]:
    lines = [
        [
            f"{one['clients']:,}",
            "ten classes" if one["by_class"] else "pooled",
            f"{one['intake_seconds'] / one['clients'] * 1e6:.1f} us",
            f"{one['calibrate_seconds'] / one['clients'] * 1e6:.1f} us",
            f"{one['intake_seconds'] + one['calibrate_seconds']:.1f} s",
            f"{one['peak_mib']:,} MiB",
            f"{one['flagged']:,}",
        ]
        for one in rounds
    ]
    head = ["sites", "", "intake a site", "calibration a site"]
    return _table([*head, "whole round", "peak", "flagged"], lines)


def _ratio(row: Row, floor: float) -> str:
    middle = _times(row.seconds / floor)
    if row.spread is None:
        return middle
    low, high = (_times(end / floor)[:-1] for end in row.spread)
    return f"{middle} ({low} to {high})"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 20 else f"{ratio:.2g}x" if ratio < 1 else f"{ratio:.1f}x"


def _each(row: Row) -> str:
    return f"{row.seconds / row.clients * 1e6:,.3g} us"


def _duration(row: Row) -> str:
    if row.spread is None:
        return f"{row.seconds:.3g} s"
    low, high = row.spread
    return f"{row.seconds:.3g} s ({low:.3g} to {high:.3g})"


def _bytes(number: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number //= 1024
    return f"{number:.0f} GiB"


def plot(rows: list[Row], path: Path) -> None:
    """Seconds over sites, both logarithmic, a line a stage."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for stage in dict.fromkeys(row.stage for row in rows if row.clients > 1):
        here = sorted((row.clients, row.seconds) for row in rows if row.stage == stage)
        if len(here) > 1:
            axes.loglog(*zip(*here, strict=True), marker="o", label=stage)
    axes.set(xlabel="sites", ylabel="seconds")
    axes.legend(fontsize="small", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
