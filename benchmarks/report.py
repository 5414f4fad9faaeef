"""The benchmark's page and plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure import Row, exponent

FLOORS = {
    "score and sketch": "one copy of the array",
    "predict sets": "one copy of the array",
    "sketch": "one copy of the scores",
    "validate": "decoding the JSON",
    "exact distances": "matrix product + partition",
    "quantile": "one pass over the counts",
    "certify": "one pass over the counts",
}
INSTEAD = {
    "score and sketch": "MAPIE's scores (which it does not check)",
    "predict sets": "MAPIE's sets",
    "sketch": "t-digest or KLL, the faster",
    "exact distances": "scipy cdist + sort",
    "calibrate": "the paper's pseudo-code in loops",
    "count": "a numerical optimisation per z",
}


def page(result: dict[str, Any]) -> str:
    """docs/speed.md."""
    rows = [Row(**row) for row in result["rows"]]
    parts = [
        "# Speed and scale",
        "Written by `make benchmark` (`python benchmarks/run.py`); do not edit. Ratios of least "
        "times within one run, because absolute times are the machine's: "
        f"{result['cores']} cores, numpy {result['numpy']}. Clients hold 50 samples on the default "
        "grid of about 1000 bins unless the table says otherwise; 30% of them lie.",
        *result["notes"],
        "![Time over clients](images/speed.png)",
        "## Against floors and alternatives",
        "A floor is what no implementation can avoid; *instead* is what one would take without "
        "this library. Below 1x of a floor: more cores than the floor uses. Plain loops (20 of "
        "1000 clients), optimisations (3 of 49) and MAPIE's scores (a tenth of the rows) are "
        "measured on that part and scaled up. Scoring is timed on one batch of "
        "20,000 x 1000 float32.",
        *_ratios(rows),
        "## Growth",
        "Exponent of time over the number of clients. Beyond 20,000 clients "
        "distances to everybody give way to distances to reference clients that are drawn when "
        "the reports are in, from a secret seed that the calibration then keeps.",
        *_growth(rows),
        "## A whole round at the server",
        "From a file of JSON reports to the calibration with tolerance and certificate (default "
        "defence, estimated number of liars), in a process of its own; peak is that process's.",
        *_rounds(result["rounds"]),
    ]
    if result.get("gpu"):
        parts += [
            "## On an accelerator",
            "`python benchmarks/gpu.py --million`: all distances, float64, from vectors on the "
            "host to means on the host; 100 bins, 40% liars.",
            *_gpu(result["gpu"]),
        ]
    return "\n\n".join(parts) + "\n"


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
            floor = f"{_times(row.seconds / row.floor)} {FLOORS[kind]}"
        if row.instead is not None:
            instead = f"{_times(row.instead / row.seconds)} as fast as {INSTEAD[kind]}"
        size = [f"{row.clients:,}", f"{row.samples:,}"]
        lines.append([row.stage, *size, floor, instead, _bytes(row.peak)])
    return _table(["stage", "clients", "samples", "floor", "instead", "peak"], lines)


def _growth(rows: list[Row]) -> list[str]:
    lines = []
    for stage in dict.fromkeys(row.stage for row in rows):
        here = [row for row in rows if row.stage == stage and row.clients > 1]
        if sum(row.clients >= 1000 for row in here) > 1:
            columns = [row.clients for row in here], [row.seconds for row in here]
            slopes = (exponent(*columns, least_size) for least_size in (1000, 100_000))
            span = f"{here[0].clients:,} to {here[-1].clients:,}"
            shown = ["" if slope is None else f"{slope:.2f}" for slope in slopes]
            lines.append([stage, span, *shown, _bytes(here[-1].peak)])
    head = ["stage", "clients", "from a thousand on", "from 100,000 on", "peak at the most"]
    return _table(head, lines)


def _rounds(rounds: list[dict[str, Any]]) -> list[str]:
    lines = [
        [
            f"{one['clients']:,}",
            f"{one['intake_seconds'] / one['clients'] * 1e6:.0f} us",
            f"{one['calibrate_seconds'] / one['clients'] * 1e6:.0f} us",
            f"{one['seconds']:.0f} s",
            f"{one['peak_mib']:,} MiB",
            f"{one['flagged']:,}",
        ]
        for one in rounds
    ]
    head = ["clients", "intake a client", "calibration a client", "whole round", "peak", "flagged"]
    return _table(head, lines)


def _gpu(gpu: dict[str, Any]) -> list[str]:
    lines = [
        [
            f"{one['clients']:,}",
            f"{one['seconds']:.3g} s",
            f"{one['share_of_gemm_limit']:.1%}",
            f"{one['copies_of_the_distances']:.1f}",
        ]
        for name, one in gpu.items()
        if name.startswith("timed")
    ]
    same = all(gpu["same trusted set as the CPU"].values())
    selection, limits = gpu["selection 10^5"], gpu["limits"]
    return [
        *_table(
            ["clients", "time", "share of the GEMM limit", "copies of the distance matrix"], lines
        ),
        f"{gpu['device']}: measured limits {limits['gemm_tflops']:.0f} TFLOP/s (float64 product) "
        f"and {limits['copy_tbs']:.1f} TB/s (copy). The selection alone takes "
        f"{selection['kthvalue']:.2g} s at 100,000 clients, a full sort {selection['sort']:.2g} s. "
        f"The trusted set {'equals' if same else 'DIFFERS FROM'} the CPU's at 10,000 clients "
        "under every plain attack.",
    ]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2f}x"


def _bytes(number: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number //= 1024
    return f"{number:.0f} GiB"


def plot(rows: list[Row], path: Path) -> None:
    """Seconds over clients, both logarithmic, a line a stage."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for stage in dict.fromkeys(row.stage for row in rows if row.clients > 1):
        here = sorted((row.clients, row.seconds) for row in rows if row.stage == stage)
        if len(here) > 1:
            axes.loglog(*zip(*here, strict=True), marker="o", label=stage)
    axes.set(xlabel="clients", ylabel="seconds")
    axes.legend(fontsize="small", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)
