"""The sweeps as curves and the bounds as bands, in the style of all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robfcp.experiments.baselines import FEDCP_QQ
from robfcp.experiments.paper.runner import (
    BY_CLASS,
    CONSENSUS,
    DEFAULT_REPORTS,
    FCP,
    ROB_FCP,
    ROB_FCP_RELEASED,
)
from robfcp.figures import BLUE, GRAY, GREEN, ORANGE, PURPLE, SKY, VERMILION, new_axes, style

Row = Mapping[str, Any]
Rows = Sequence[Row]

# Method -> color, marker and label.
METHOD_STYLES = {
    FCP: (VERMILION, "^", "FCP"),
    FEDCP_QQ: (PURPLE, "v", "FedCP-QQ"),
    ROB_FCP: (ORANGE, "s", "Rob-FCP, as printed"),
    ROB_FCP_RELEASED: (GREEN, "D", "Rob-FCP, as released"),
    BY_CLASS: (GRAY, "X", "Consensus by class"),
    DEFAULT_REPORTS: (SKY, "P", "Consensus on default reports"),
    CONSENSUS: (BLUE, "o", "Consensus"),
}

# Experiments drawn as curves -> what runs along the axis.
SWEEPS = {
    "beta-sweep": "Dirichlet beta",
    "misspecified": "assumed fraction of malicious clients (true: 0.25)",
    "granularity": "bins in Rob-FCP's view",
    "mimic": "fraction of malicious clients",
    "estimated-number": "true number of malicious clients",
}
ESTIMATED_NUMBER = "estimated-number"  # draws estimated numbers, not coverage
MAX_COLUMNS = 5
ESTIMATE_COLUMNS = 3  # a row of panels a data set, a panel an attack
MAX_ESTIMATED = 45  # malicious clients: the largest true number that is estimated


@style()
def plot_sweep(name: str, title: str, rows: Rows) -> Any:
    """Return the figure of a sweep: a panel a data set, a curve a method, the paper's hollow marks.

    Parameters
    ----------
    name : str
        A key of `SWEEPS`.
    title : str
        Of the figure.
    rows : sequence of mapping
        The table of the experiment.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if name == ESTIMATED_NUMBER:  # the paper's figure; the table has the others
        rows = [row for row in rows if row["split"] == "iid" and row["model"] == "final"]
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(_panel_title(name, row), []).append(row)

    n_columns, n_lines = _layout(name, len(panels))
    size = (3.4 * n_columns + 0.6, 2.7 * n_lines + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(n_lines, n_columns, squeeze=False, sharey=True)
    for ax, (panel_title, panel_rows) in zip(axes.ravel(), panels.items(), strict=False):
        _plot_panel(ax, name, panel_rows)
        ax.set_title(panel_title, fontsize=9)
    for ax in axes.ravel()[len(panels) :]:
        ax.set_visible(False)

    figure.supxlabel(SWEEPS[name], fontsize=9)
    figure.supylabel("estimated number" if name == ESTIMATED_NUMBER else "coverage", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _layout(name: str, n_panels: int) -> tuple[int, int]:
    """Return the numbers of columns and of lines of panels, the lines about equally long."""
    if name == ESTIMATED_NUMBER:
        return ESTIMATE_COLUMNS, -(-n_panels // ESTIMATE_COLUMNS)
    min_lines = -(-n_panels // MAX_COLUMNS)
    n_columns = -(-n_panels // min_lines)
    return n_columns, -(-n_panels // n_columns)


def _plot_panel(ax: Any, name: str, rows: Rows) -> None:
    """Draw the curves of one panel, and a line for what a perfect method would give."""
    for method in METHOD_STYLES:
        method_rows = [row for row in rows if row["method"] == method]
        method_rows.sort(key=lambda row: _x_value(name, row))
        if method_rows and name == ESTIMATED_NUMBER:
            _plot_estimates(ax, method, method_rows)
        elif method_rows:
            _plot_coverage(ax, name, method, method_rows)

    if name == "granularity":
        ax.set_xscale("log")
    if name == ESTIMATED_NUMBER:
        ax.plot([0, MAX_ESTIMATED], [0, MAX_ESTIMATED], color=GRAY, linestyle=":", linewidth=1)
    else:
        ax.plot(ax.get_xlim(), [0.9, 0.9], color=GRAY, linestyle=":", linewidth=1)


def _plot_estimates(ax: Any, method: str, rows: Rows) -> None:
    """Draw how many malicious clients a method estimates."""
    color, marker, label = METHOD_STYLES[method]
    x = [_x_value(ESTIMATED_NUMBER, row) for row in rows]
    estimates = [row["assumed_n_malicious"] for row in rows]
    ax.errorbar(x, estimates, color=color, marker=marker, markersize=4, label=label)


def _plot_coverage(ax: Any, name: str, method: str, rows: Rows) -> None:
    """Draw a method's coverage with its standard deviation, and the paper's figures hollow."""
    color, marker, label = METHOD_STYLES[method]
    x = [_x_value(name, row) for row in rows]
    coverage = [row["coverage"] for row in rows]
    deviations = [row["coverage_sd"] for row in rows]
    ax.errorbar(x, coverage, deviations, color=color, marker=marker, markersize=4, label=label)

    published_rows = [row for row in rows if row["published_coverage"] is not None]
    if published_rows:
        ax.plot(
            [_x_value(name, row) for row in published_rows],
            [row["published_coverage"] for row in published_rows],
            color="none",
            markeredgecolor=color,
            marker=marker,
            markersize=6,
            label=f"{label.partition(',')[0]}, published",
        )


def _panel_title(name: str, row: Row) -> str:
    """Return the title of the panel that a row is drawn in."""
    title = row["dataset"]
    if row["model"] != "final":
        title = f"{title} ({row['model']})"
    if name == ESTIMATED_NUMBER:
        title = f"{title} {row['split']} {row['variant']}"
    elif name == "granularity":
        title = f"{title} {row['attack']}"
    elif name == "mimic":
        title = f"{title} {row['split']}"
    return str(title)


def _x_value(name: str, row: Row) -> float:
    """Return where a row is drawn along the axis."""
    if name == "beta-sweep":
        return float(row["split"].removeprefix("beta="))
    if name in ("misspecified", "granularity"):
        return float(row["variant"])
    if name == ESTIMATED_NUMBER:
        return float(row["malicious_fraction"]) * 100
    return float(row["malicious_fraction"])


# Prefix of the columns -> color and label of the band.
BOUND_STYLES = {
    "theorem_1": (ORANGE, "Theorem 1 (all of 0..1)"),
    "dkw": (GRAY, "Theorem 1, DKW variant"),
    "released_code": (GREEN, "formula of the released code"),
    "certificate": (BLUE, "certificate, 95% confidence"),
}


@style()
def plot_bounds(rows: Rows) -> Any:
    """Return the figure of measured coverage inside published and certified intervals.

    A panel is a data set and an attack; intervals are cut to [0, 1].

    Parameters
    ----------
    rows : sequence of mapping
        The table of bounds.
    """
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row["dataset"], row["attack"]), []).append(row)

    axes = new_axes(len(panels), 3.4)
    for ax, (titles, panel_rows) in zip(axes, panels.items(), strict=True):
        x = [row["malicious_fraction"] for row in panel_rows]
        for prefix, (color, label) in BOUND_STYLES.items():
            lower = np.clip([row[f"{prefix}_lower"] for row in panel_rows], 0, 1)
            upper = np.clip([row[f"{prefix}_upper"] for row in panel_rows], 0, 1)
            ax.fill_between(x, lower, upper, color=color, alpha=0.18, linewidth=0, label=label)
        for column, method in (("rob_fcp_coverage", ROB_FCP), ("consensus_coverage", CONSENSUS)):
            color, marker, label = METHOD_STYLES[method]
            coverage = [row[column] for row in panel_rows]
            ax.plot(x, coverage, color=color, marker=marker, label=f"{label}, measured")
        ax.axhline(0.9, color=GRAY, linestyle=":", linewidth=1)
        ax.set(title=" ".join(titles), xlabel="fraction of malicious clients", ylabel="coverage")
    axes[0].legend(fontsize=7)
    return axes[0].figure
