"""One figure for every table, in the style of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from robfcp.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    new_axes,
    style,
)
from robfcp.lab.paper.runs import BY_CLASS, FCP, OURS, RELEASED, TEXT
from robfcp.lab.paper.tables import PaperCell, error
from robfcp.lab.rivals import FEDCP_QQ

Rows = Sequence[Mapping[str, Any]]
LOOKS = {
    FCP: (VERMILION, "^", "FCP"),
    FEDCP_QQ: (PURPLE, "v", "FedCP-QQ"),
    TEXT: (ORANGE, "s", "Rob-FCP, text"),
    RELEASED: (GREEN, "D", "Rob-FCP, code"),
    BY_CLASS: (GREY, "X", f"{OURS} (ours), by class"),
    OURS: (BLUE, "o", f"{OURS} (ours)"),
}
SWEEPS = {  # experiments drawn as curves, and what runs along the axis
    "beta-sweep": "Dirichlet beta",
    "misstated": "assumed share of malicious clients (true: 0.25)",
    "granularity": "bins in Rob-FCP's view",
    "mimic": "share of malicious clients",
    "counting": "true number of malicious clients",
}


@style()
def draw(name: str, title: str, rows: Rows) -> Any:
    """The experiment's figure: curves for sweeps, else error bars in every setting."""
    if name in SWEEPS:
        return _sweep(name, title, rows)
    return _cells(title, rows, ("coverage", "set_size") if name == "main" else ("coverage",))


def _figure(title: str, lines: int, columns: int, size: tuple[float, float], **more: Any) -> Any:
    """A figure without a window and its axes, with the title above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    return figure, np.asarray(figure.subplots(lines, columns, squeeze=False, **more))


def _legend(figure: Any, ax: Any) -> Any:
    """The figure with one legend for all axes, below."""
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _cells(title: str, rows: Rows, quantities: Sequence[str]) -> Any:
    """Every setting's mean and spread, a dot a method; a column an attack, a line a quantity."""
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    names = list(dict.fromkeys(map(_setting, rows)))
    methods = [method for method in LOOKS if any(row["method"] == method for row in rows)]
    height = max(2.6, 0.3 * len(names) + 1.4) * len(quantities)
    figure, axes = _figure(title, len(quantities), len(attacks), (5.2 * len(attacks), height))
    for line, quantity in zip(axes, quantities, strict=True):
        for ax, attack in zip(line, attacks, strict=True):
            for number, method in enumerate(methods):
                own = [r for r in rows if (r["attack"], r["method"]) == (attack, method)]
                shift = 0.7 * ((number + 0.5) / len(methods) - 0.5)
                place = [names.index(_setting(row)) + shift for row in own]
                value = [row[quantity] for row in own]
                spread = [row[f"{quantity}_sd"] for row in own]
                stated = [row[f"published_{quantity}"] for row in own]
                if own:
                    marks = zip(stated, place, strict=True)
                    _dots(ax, method, value, place, xerr=spread, marks=marks)
            if quantity == "coverage":
                ax.axvline(0.9, color=GREY, linestyle=":", linewidth=1)
            else:
                ax.set_xscale("log")
            labels = names if ax is line[0] else [""] * len(names)
            ax.set_yticks(range(len(names)), labels, fontsize=7)
            ax.set_ylim(len(names) - 0.4, -0.6)
            ax.set_xlabel(quantity.replace("_", " "))
            ax.set_title(attack if attack != "none" else "no attack")
    return _legend(figure, axes[0, 0])


def _setting(row: Mapping[str, Any]) -> str:
    model = "" if row["model"] == "final" else row["model"]
    parts = [row["dataset"], model, row["split"], row["variant"]]
    parts.append(f"{row['ratio']:.0%}" if row["ratio"] else "")
    return " ".join(part for part in dict.fromkeys(parts) if part)


def _sweep(name: str, title: str, rows: Rows) -> Any:
    """A panel a world, a curve a method."""
    counting = name == "counting"
    if counting:  # the paper's figure; the table has the others
        rows = [row for row in rows if (row["split"], row["model"]) == ("iid", "final")]
    panels = list(dict.fromkeys(_panel(name, row) for row in rows))
    columns = 3 if counting else -(-len(panels) // -(-len(panels) // 5))
    lines = -(-len(panels) // columns)
    size = (3.4 * columns + 0.6, 2.7 * lines + 0.5)
    figure, axes = _figure(title, lines, columns, size, sharey=True)
    for ax, panel in zip(axes.ravel(), panels, strict=False):
        for method in LOOKS:
            chosen = [r for r in rows if _panel(name, r) == panel and r["method"] == method]
            chosen.sort(key=lambda row: _x(name, row))
            x = [_x(name, row) for row in chosen]
            y = [row["assumed" if counting else "coverage"] for row in chosen]
            spread = None if counting else [row["coverage_sd"] for row in chosen]
            stated = [None if counting else row["published_coverage"] for row in chosen]
            if chosen:
                marks = zip(x, stated, strict=True)
                _dots(ax, method, x, y, yerr=spread, line="-", marks=marks)
        if name == "granularity":
            ax.set_xscale("log")
        ends = ([0, 45], [0, 45]) if counting else (ax.get_xlim(), [0.9, 0.9])
        ax.plot(*ends, color=GREY, linestyle=":", linewidth=1)
        ax.set_title(panel, fontsize=9)
    for ax in axes.ravel()[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel(SWEEPS[name], fontsize=9)
    figure.supylabel("estimated number" if counting else "coverage", fontsize=9)
    return _legend(figure, axes[0, 0])


def _panel(name: str, row: Mapping[str, Any]) -> str:
    stage = "" if row["model"] == "final" else f" ({row['model']})"
    extra = {
        "counting": f"{row['split']} {row['variant']}",
        "granularity": row["attack"],
        "mimic": row["split"],
    }.get(name, "")
    return f"{row['dataset']}{stage} {extra}".strip()


def _x(name: str, row: Mapping[str, Any]) -> float:
    if name == "beta-sweep":
        return float(row["split"].removeprefix("beta="))
    if name in ("misstated", "granularity"):
        return float(row["variant"])
    return float(row["ratio"]) * (100 if name == "counting" else 1)


def _dots(
    ax: Any,
    method: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    marks: Iterable[tuple[float | None, float | None]],
    line: str = "none",
    **bars: Any,
) -> None:
    """A method's means with error bars, and the paper's figures as hollow marks beside them."""
    colour, marker, label = LOOKS[method]
    look = {"color": colour, "marker": marker}
    ax.errorbar(x, y, **bars, **look, markersize=4, linestyle=line, label=label)
    stated = [pair for pair in marks if None not in pair]
    if stated:
        hollow = {"color": "none", "markeredgecolor": colour, "marker": marker, "markersize": 6}
        words = f"{label.partition(',')[0]}, published"
        ax.plot(*zip(*stated, strict=True), **hollow, linestyle="none", label=words)


@style()
def draw_bounds(rows: Rows) -> Any:
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
        for key, method in (("text", TEXT), ("ours", OURS)):
            colour, marker, label = LOOKS[method]
            y = [row[f"{key}_coverage"] for row in chosen]
            ax.plot(x, y, color=colour, marker=marker, label=f"{label}, measured")
        ax.axhline(0.9, color=GREY, linestyle=":", linewidth=1)
        ax.set(title=" ".join(world), xlabel="share of attackers", ylabel="coverage")
    axes[0].legend(fontsize=7)
    return axes[0].figure


@style()
def draw_overview(cells: Sequence[PaperCell]) -> Any:
    """|coverage - honest| of ours against each rival's, a dot a cell: below the line ours wins."""
    rivals = (FCP, TEXT, RELEASED)
    axes = new_axes(len(rivals), 3.6)
    for ax, rival in zip(axes, rivals, strict=True):
        colour, marker, label = LOOKS[rival]
        own = [cell.rows for cell in cells if rival in cell.rows]
        x, y = ([abs(error(rows[name])) for rows in own] for name in (rival, OURS))
        top = max(0.05, *x, *y) * 1.05 if own else 1.0
        ax.plot([0, top], [0, top], color=GREY, linestyle=":", linewidth=1)
        ax.plot(x, y, color=colour, marker=marker, markersize=3.5, alpha=0.6, linestyle="none")
        ax.set(xlim=(-0.005, top), ylim=(-0.005, top), title=label)
        ax.set(xlabel="its distance from the honest coverage", ylabel=f"ours ({OURS})")
    return axes[0].figure
