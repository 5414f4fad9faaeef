"""One figure for every table, in the style of all figures."""

from __future__ import annotations  # noqa: I001

from collections.abc import Sequence
from typing import Any

import numpy as np

from robfcp.figures import style
from robfcp.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, new_axes, plot_heatmap
from robfcp.lab.paper.compare import PaperCell
from robfcp.lab.paper.methods import BY_CLASS, FCP, OURS, QQ, RELEASED, TEXT
from robfcp.lab.paper.rows import TableRow

LOOKS = {
    FCP: (VERMILION, "^", "FCP"),
    QQ: (PURPLE, "v", "FedCP-QQ"),
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


def draw(name: str, title: str, rows: Sequence[TableRow]) -> Any:
    """The experiment's figure: curves for sweeps, else error bars in every setting."""
    with style():
        if name in SWEEPS:
            return _sweep(name, title, rows)
        return _cells(title, rows, ("coverage", "set_size") if name == "main" else ("coverage",))


def _cells(title: str, rows: Sequence[TableRow], quantities: Sequence[str]) -> Any:
    """Every setting's mean and spread, a dot a method; a column an attack, a line a quantity."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attacks = list(dict.fromkeys(row.attack for row in rows))
    height = max(2.6, 0.3 * len({_setting(row) for row in rows}) + 1.4)
    figure = Figure(figsize=(5.2 * len(attacks), height * len(quantities)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.asarray(figure.subplots(len(quantities), len(attacks), squeeze=False))
    for line, quantity in zip(axes, quantities, strict=True):
        for ax, attack in zip(line, attacks, strict=True):
            _panel_of(ax, [row for row in rows if row.attack == attack], rows, quantity)
            ax.set_title(attack if attack != "none" else "no attack")
            if ax is not line[0]:
                ax.set_yticklabels([])
    figure.suptitle(title, fontsize=11)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _panel_of(ax: Any, chosen: Sequence[TableRow], rows: Sequence[TableRow], quantity: str) -> None:
    """One attack's settings down the axis, the methods side by side in each."""
    names = list(dict.fromkeys(_setting(row) for row in rows))
    methods = [method for method in LOOKS if any(row.method == method for row in rows)]
    for number, method in enumerate(methods):
        own = [row for row in chosen if row.method == method]
        if not own:
            continue
        colour, marker, label = LOOKS[method]
        shift = 0.7 * ((number + 0.5) / len(methods) - 0.5)
        place = [names.index(_setting(row)) + shift for row in own]
        ax.errorbar(
            [getattr(row, quantity) for row in own],
            place,
            xerr=[getattr(row, f"{quantity}_sd") for row in own],
            color=colour,
            marker=marker,
            markersize=4,
            linestyle="none",
            label=label,
        )
        figures = [getattr(row, f"published_{quantity}") for row in own]
        stated = [(x, y) for x, y in zip(figures, place, strict=True) if x is not None]
        if stated:
            _mark_published(ax, stated, marker, colour, label)
    if quantity == "coverage":
        ax.axvline(0.9, color=GREY, linestyle=":", linewidth=1)
    else:
        ax.set_xscale("log")
    ax.set_yticks(range(len(names)), names, fontsize=7)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(quantity.replace("_", " "))


def _setting(row: TableRow) -> str:
    parts = [row.dataset, "" if row.model == "final" else row.model, row.split, row.variant]
    parts.append(f"{row.ratio:.0%}" if row.ratio else "")
    return " ".join(part for part in dict.fromkeys(parts) if part)


def _sweep(name: str, title: str, rows: Sequence[TableRow]) -> Any:
    if name == "counting":  # the paper's figure; the table has the others
        rows = [row for row in rows if (row.split, row.model) == ("iid", "final")]
    panels = list(dict.fromkeys(_panel(name, row) for row in rows))
    columns = 3 if name == "counting" else -(-len(panels) // -(-len(panels) // 5))
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, 2.7 * lines + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = np.asarray(figure.subplots(lines, columns, squeeze=False, sharey=True)).ravel()
    for ax, panel in zip(grid, panels, strict=False):
        for method, (colour, marker, label) in LOOKS.items():
            chosen = [r for r in rows if _panel(name, r) == panel and r.method == method]
            if not chosen:
                continue
            chosen.sort(key=lambda row: _x(name, row))
            x = [_x(name, row) for row in chosen]
            y = [row.assumed if name == "counting" else row.coverage for row in chosen]
            error = [0.0 if name == "counting" else row.coverage_sd for row in chosen]
            ax.errorbar(x, y, error, color=colour, marker=marker, markersize=4, label=label)
            stated = [
                (a, row.published_coverage)
                for a, row in zip(x, chosen, strict=True)
                if row.published_coverage is not None
            ]
            if stated and name != "counting":
                _mark_published(ax, stated, marker, colour, label)
        if name == "granularity":
            ax.set_xscale("log")
        if name == "counting":
            ax.plot([0, 45], [0, 45], color=GREY, linestyle=":", linewidth=1)
        else:
            ax.axhline(0.9, color=GREY, linestyle=":", linewidth=1)
        ax.set_title(panel, fontsize=9)
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel(SWEEPS[name], fontsize=9)
    figure.supylabel("estimated number" if name == "counting" else "coverage", fontsize=9)
    figure.suptitle(title, fontsize=11)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _panel(name: str, row: TableRow) -> str:
    stage = "" if row.model == "final" else f" ({row.model})"
    extra = {
        "counting": f"{row.split} {row.variant}",
        "granularity": row.attack,
        "mimic": row.split,
    }.get(name, "")
    return f"{row.dataset}{stage} {extra}".strip()


def _x(name: str, row: TableRow) -> float:
    if name == "beta-sweep":
        return float(row.split.removeprefix("beta="))
    if name in ("misstated", "granularity"):
        return float(row.variant)
    return row.ratio * 100 if name == "counting" else row.ratio


def draw_bounds(rows: Sequence[dict[str, Any]]) -> Any:
    """Measured coverage inside the published intervals, cut to [0, 1], and our certificate's."""
    with style():
        worlds = list(dict.fromkeys((row["dataset"], row["attack"]) for row in rows))
        axes = new_axes(len(worlds), 3.4)
        for ax, world in zip(axes, worlds, strict=True):
            chosen = [row for row in rows if (row["dataset"], row["attack"]) == world]
            x = [row["ratio"] for row in chosen]
            for name, colour, label in (
                ("theorem_1", ORANGE, "Theorem 1 (all of 0..1)"),
                ("code", GREEN, "formula of the released code"),
                ("certificate", BLUE, "our certificate, 95%"),
            ):
                ends = [
                    np.clip([row[f"{name}_{end}"] for row in chosen], 0, 1)
                    for end in ("lower", "upper")
                ]
                ax.fill_between(x, *ends, color=colour, alpha=0.18, linewidth=0, label=label)
            for end in ("lower", "upper"):
                y = np.clip([row[f"dkw_{end}"] for row in chosen], 0, 1)
                once = "Theorem 1, DKW variant" if end == "lower" else None
                ax.plot(x, y, color=GREY, linestyle="--", linewidth=1, label=once)
            for key, method in (("text", TEXT), ("ours", OURS)):
                colour, marker, label = LOOKS[method]
                y = [row[f"{key}_coverage"] for row in chosen]
                ax.plot(x, y, color=colour, marker=marker, label=f"{label}, measured")
            ax.axhline(0.9, color=GREY, linestyle=":", linewidth=1)
            ax.set(title=" ".join(world), xlabel="share of attackers", ylabel="coverage")
        axes[0].legend(fontsize=7)
        return axes[0].figure


def draw_runtime(rows: Sequence[dict[str, Any]]) -> Any:
    """Seconds from reports to threshold, ours beside the paper's."""
    with style():
        ax = new_axes(1, 3.0)[0]
        y = np.arange(len(rows))
        columns = [("published", GREY, "published (RTX A6000)")]
        columns += [(name, LOOKS[name][0], LOOKS[name][2]) for name in (TEXT, RELEASED, OURS)]
        for place, (key, colour, label) in enumerate(columns):
            shift = 0.8 * ((place + 0.5) / len(columns) - 0.5)
            ax.barh(y + shift, [row[key] for row in rows], 0.18, color=colour, label=label)
        ax.set_yticks(y, [row["dataset"] for row in rows])
        ax.set_xscale("log")
        ax.set(xlabel="seconds", title="From 100 reports to a threshold")
        ax.legend(fontsize=7.5)
        return ax.figure


def draw_theorem(rows: Sequence[dict[str, Any]]) -> Any:
    """Samples a client from which Theorem 1's lower end exceeds 0 and its upper end is below 1."""
    with style():
        ax = new_axes(1, 0.3 * len(rows) + 1.2)[0]
        y = np.arange(len(rows))
        low = [row["n_b: lower end above 0"] for row in rows]
        high = [row["n_b: upper end below 1"] for row in rows]
        ax.plot(low, y, color=ORANGE, marker="s", linestyle="none", label="lower end above 0")
        ax.plot(high, y, color=VERMILION, marker="^", linestyle="none", label="upper end below 1")
        ax.axvspan(50, 25_000, color=GREY, alpha=0.12, linewidth=0, label="50 to 25,000")
        ax.set_yticks(y, [f"K={row['K']} K_m={row['K_m']} H={row['H']}" for row in rows])
        ax.set_xscale("log")
        ax.set(xlabel="samples a client from which Theorem 1 says it", title="Theorem 1")
        ax.legend(fontsize=7.5)
        return ax.figure


def draw_overview(cells: Sequence[PaperCell]) -> Any:
    """|coverage - honest| of ours against each rival's, a dot a cell: below the line ours wins."""
    rivals = (FCP, TEXT, RELEASED)
    with style():
        axes = new_axes(len(rivals), 3.6)
        for ax, rival in zip(axes, rivals, strict=True):
            colour, marker, label = LOOKS[rival]
            own = [cell for cell in cells if rival in cell.rows]
            x = [abs(cell.error(rival)) for cell in own]
            y = [abs(cell.error(OURS)) for cell in own]
            top = max(0.05, *x, *y) * 1.05 if own else 1.0
            ax.plot([0, top], [0, top], color=GREY, linestyle=":", linewidth=1)
            ax.plot(x, y, color=colour, marker=marker, markersize=3.5, alpha=0.6, linestyle="none")
            ax.set(xlim=(-0.005, top), ylim=(-0.005, top), title=label)
            ax.set(xlabel="its distance from the honest coverage", ylabel=f"ours ({OURS})")
        return axes[0].figure


def draw_natural(rows: Sequence[dict[str, Any]]) -> Any:
    """A heat map a natural federation: error of coverage under each fault and defence."""
    methods = [key.removesuffix("_error") for key in rows[0] if key.endswith("_error")]
    names = list(dict.fromkeys(row["federation"] for row in rows))
    faults = list(dict.fromkeys(row["attack"] for row in rows))
    axes = new_axes(len(names), 1.4 + 0.3 * len(faults))
    for ax, name in zip(axes, names, strict=True):
        found = {row["attack"]: row for row in rows if row["federation"] == name}
        errors = np.array([[found[a][f"{m}_error"] for m in methods] for a in faults])
        plot_heatmap(errors, faults, methods, title=name, ax=ax)
    return axes[0].figure


def _mark_published(
    ax: Any, points: Sequence[tuple[float, float]], marker: str, colour: str, label: str
) -> None:
    """The paper's figures as hollow marks beside ours."""
    ax.plot(
        *zip(*points, strict=True),
        marker=marker,
        markersize=6,
        color="none",
        markeredgecolor=colour,
        linestyle="none",
        label=f"{label.partition(',')[0]}, published",
    )
