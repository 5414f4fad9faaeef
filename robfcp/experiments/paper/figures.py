"""The sweeps as curves and the bounds as bands, in the style of all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robfcp.experiments.baselines import FEDCP_QQ
from robfcp.experiments.paper.runner import BY_CLASS, CONSENSUS, FCP, ROB_FCP, ROB_FCP_RELEASED
from robfcp.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, new_axes, style

Rows = Sequence[Mapping[str, Any]]
METHOD_STYLES = {
    FCP: (VERMILION, "^", "FCP"),
    FEDCP_QQ: (PURPLE, "v", "FedCP-QQ"),
    ROB_FCP: (ORANGE, "s", "Rob-FCP, text"),
    ROB_FCP_RELEASED: (GREEN, "D", "Rob-FCP, code"),
    BY_CLASS: (GREY, "X", f"{CONSENSUS} (ours), by class"),
    CONSENSUS: (BLUE, "o", f"{CONSENSUS} (ours)"),
}
SWEEPS = {  # experiments drawn as curves, and what runs along the axis
    "beta-sweep": "Dirichlet beta",
    "misstated": "assumed share of malicious clients (true: 0.25)",
    "granularity": "bins in Rob-FCP's view",
    "mimic": "share of malicious clients",
    "counting": "true number of malicious clients",
}


@style()
def plot_sweep(name: str, title: str, rows: Rows) -> Any:
    """The curves of a sweep: a panel a world, a curve a method, the paper's figures hollow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counting = name == "counting"
    if counting:  # the paper's figure; the table has the others
        rows = [row for row in rows if (row["split"], row["model"]) == ("iid", "final")]
    panels = list(dict.fromkeys(_panel(name, row) for row in rows))
    columns = 3 if counting else -(-len(panels) // -(-len(panels) // 5))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, 2.7 * lines + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for ax, panel in zip(axes.ravel(), panels, strict=False):
        for method, (colour, marker, label) in METHOD_STYLES.items():
            chosen = [r for r in rows if _panel(name, r) == panel and r["method"] == method]
            chosen.sort(key=lambda row: _x_value(name, row))
            x = [_x_value(name, row) for row in chosen]
            y = [row["assumed" if counting else "coverage"] for row in chosen]
            spread = None if counting else [row["coverage_sd"] for row in chosen]
            if not chosen:
                continue
            ax.errorbar(x, y, spread, color=colour, marker=marker, markersize=4, label=label)
            stated = [None if counting else row["published_coverage"] for row in chosen]
            marks = [pair for pair in zip(x, stated, strict=True) if None not in pair]
            if marks:
                hollow = {"color": "none", "markeredgecolor": colour, "marker": marker}
                words = f"{label.partition(',')[0]}, published"
                ax.plot(*zip(*marks, strict=True), **hollow, markersize=6, label=words)
        if name == "granularity":
            ax.set_xscale("log")
        ends = ([0, 45], [0, 45]) if counting else (ax.get_xlim(), [0.9, 0.9])
        ax.plot(*ends, color=GREY, linestyle=":", linewidth=1)
        ax.set_title(panel, fontsize=9)
    for ax in axes.ravel()[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel(SWEEPS[name], fontsize=9)
    figure.supylabel("estimated number" if counting else "coverage", fontsize=9)
    named = axes[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _panel(name: str, row: Mapping[str, Any]) -> str:
    stage = "" if row["model"] == "final" else f" ({row['model']})"
    extra = {
        "counting": f"{row['split']} {row['variant']}",
        "granularity": row["attack"],
        "mimic": row["split"],
    }.get(name, "")
    return f"{row['dataset']}{stage} {extra}".strip()


def _x_value(name: str, row: Mapping[str, Any]) -> float:
    if name == "beta-sweep":
        return float(row["split"].removeprefix("beta="))
    if name in ("misstated", "granularity"):
        return float(row["variant"])
    return float(row["ratio"]) * (100 if name == "counting" else 1)


@style()
def plot_bounds(rows: Rows) -> Any:
    """Measured coverage inside the published intervals, cut to [0, 1], and our certificate's."""
    worlds = list(dict.fromkeys((row["dataset"], row["attack"]) for row in rows))
    axes = new_axes(len(worlds), 3.4)
    for ax, world in zip(axes, worlds, strict=True):
        chosen = [row for row in rows if (row["dataset"], row["attack"]) == world]
        x = [row["ratio"] for row in chosen]
        for name, colour, label in (
            ("theorem_1", ORANGE, "Theorem 1 (all of 0..1)"),
            ("dkw", GREY, "Theorem 1, DKW variant"),
            ("code", GREEN, "formula of the released code"),
            ("certificate", BLUE, "our certificate, 95%"),
        ):
            ends = (
                np.clip([row[f"{name}_{end}"] for row in chosen], 0, 1)
                for end in ("lower", "upper")
            )
            ax.fill_between(x, *ends, color=colour, alpha=0.18, linewidth=0, label=label)
        for key, method in (("text", ROB_FCP), ("ours", CONSENSUS)):
            colour, marker, label = METHOD_STYLES[method]
            y = [row[f"{key}_coverage"] for row in chosen]
            ax.plot(x, y, color=colour, marker=marker, label=f"{label}, measured")
        ax.axhline(0.9, color=GREY, linestyle=":", linewidth=1)
        ax.set(title=" ".join(world), xlabel="share of attackers", ylabel="coverage")
    axes[0].legend(fontsize=7)
    return axes[0].figure
