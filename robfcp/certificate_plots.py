"""The certificate and tolerance figure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from robfcp._files import write_atomically
from robfcp.errors import RobfcpError
from robfcp.what_if import WhatIf

FORMATS = ("png", "svg", "pdf")


def plot_what_if(outcomes: Sequence[WhatIf], path: str | os.PathLike[str]) -> None:
    """Write the proved coverage band and the tolerance curve against the number of liars."""
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise RobfcpError(f"{path}: cannot draw .{suffix}; use .png, .svg or .pdf")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    band, curve = figure.subplots(1, 2, sharex=True)
    for number, outcome in enumerate(outcomes):
        colour = f"C{number}"
        m = [row.m for row in outcome.budgets]
        lower = np.array([row.certificate.lower for row in outcome.budgets])
        upper = np.array([row.certificate.upper for row in outcome.budgets])
        name = f"threshold {outcome.threshold:.4g} for {float(outcome.level):g}"
        band.fill_between(m, lower, upper, color=colour, alpha=0.25, label=name)
        band.plot(m, lower, color=colour)
        curve.plot(range(len(outcome.curve)), outcome.curve, color=colour)
        for axes in (band, curve):
            axes.axhline(float(outcome.level), color=colour, linestyle=":", linewidth=1)
    confidence = outcomes[0].budgets[0].certificate.confidence
    band.set_title(f"Proved coverage, {confidence:.0%} confidence")
    curve.set_title("Level guaranteed on average (tolerance curve)")
    band.set_ylabel("coverage of the benign clients")
    band.legend(loc="lower left", frameon=False)
    for axes in (band, curve):
        axes.set_xlabel("clients that may lie, m")
    buffer = BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150)
    write_atomically(path, buffer.getvalue())
