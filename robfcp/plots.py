"""Figures in one style: every function draws into the axes given, or new ones, and returns them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import wraps
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import write_atomically
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import marginal_threshold, tolerance
from robfcp.projection import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from robfcp.simulation import Row
    from robfcp.what_if import WhatIf

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's colours, told apart with any kind of colour vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#5B6673"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY)
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DEFENCES = {"none": (VERMILION, "^"), "rob-fcp": (ORANGE, "s"), "band": (BLUE, "o")}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "robfcp",
}
FORMATS = ("png", "svg", "pdf")


@contextmanager
def style() -> Iterator[None]:
    """The one style of all figures, for the length of a `with` block."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}):
        yield


def _styled(function: Callable[P, T]) -> Callable[P, T]:
    """The same drawing function, drawing in the one style."""

    @wraps(function)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return function(*args, **kwargs)

    return drawing


@_styled
def new_axes(columns: int = 1, height: float = 3.6) -> NDArray[Any]:
    """(columns,) axes side by side on a new figure, apart from pyplot's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return np.asarray(figure.subplots(1, columns, squeeze=False)[0])


@_styled
def save(drawn: Axes | Figure | NDArray[Any], path: str | os.PathLike[str]) -> None:
    """Write the figure whole or not at all, the same bytes for the same figure."""
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise RobfcpError(f"{path}: cannot draw .{suffix}; use .png, .svg or .pdf")
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) else drawn
    figure: Any = first if hasattr(first, "savefig") else first.figure
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata=undated[suffix])
    write_atomically(path, buffer.getvalue())


@_styled
def plot_comparison(
    rows: Sequence[Row], level: float = 0.9, axes: NDArray[Any] | None = None
) -> NDArray[Any]:
    """(2,) coverage and set size of every defence under every attack, over the runs.

    Marks are means, whiskers the extremes; grey is what the honest clients alone give.
    """
    pair = new_axes(2) if axes is None else axes
    attacks = list(dict.fromkeys(row.attack for row in rows))
    defences = list(dict.fromkeys(row.defence for row in rows))
    offsets = np.linspace(-0.2, 0.2, len(defences)) if len(defences) > 1 else np.zeros(1)
    for ax, field, title in zip(
        pair, ("coverage", "set_size"), ("Coverage", "Set size"), strict=True
    ):
        for place, attack in enumerate(attacks):
            honest = [getattr(r, f"honest_{field}") for r in rows if r.attack == attack]
            ax.plot(
                [place - 0.36, place + 0.36], [np.mean(honest)] * 2, color=GREY, linewidth=5,
                alpha=0.35, solid_capstyle="butt", label=None if place else "honest clients alone",
            )  # fmt: skip
        for shift, (defence, (colour, marker)) in zip(offsets, _looks(defences), strict=True):
            found = [
                np.array([getattr(r, field) for r in rows if (r.attack, r.defence) == (a, defence)])
                for a in attacks
            ]
            mean = np.array([values.mean() if values.size else np.nan for values in found])
            low = mean - [values.min(initial=np.inf) for values in found]
            high = [values.max(initial=-np.inf) for values in found] - mean
            ax.errorbar(
                np.arange(len(attacks)) + shift, mean, [low, high], color=colour, marker=marker,
                linestyle="none", capsize=3, label="undefended" if defence == "none" else defence,
            )  # fmt: skip
        ax.set_xticks(range(len(attacks)), attacks)
        ax.set_xlim(-0.6, len(attacks) - 0.4)
        ax.set_title(title)
        ax.grid(axis="x", visible=False)
    pair[0].axhline(level, color=GREY, linestyle=":", linewidth=1, label=f"wanted {level:g}")
    pair[0].legend(fontsize=8.5)
    return pair


@_styled
def plot_lines(
    x: ArrayLike,
    lines: Mapping[str, ArrayLike],
    spreads: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    *,
    level: float | None = None,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Named curves over x, each with its own colour and mark, with shaded spreads if given."""
    target: Axes = new_axes()[0] if ax is None else ax
    for (name, (colour, marker)), values in zip(_looks(lines), lines.values(), strict=True):
        target.plot(x, values, color=colour, marker=marker, markersize=5, label=name)
        if spreads is not None and name in spreads:
            target.fill_between(x, *spreads[name], color=colour, alpha=0.15, linewidth=0)
    if level is not None:
        target.axhline(level, color=GREY, linestyle=":", linewidth=1)
    target.set(xlabel=xlabel, ylabel=ylabel, title=title)
    target.legend(fontsize=8.5)
    return target


@_styled
def plot_heatmap(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    label: str = "",
    largest: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Attacks by defences, say: the darker, the farther from zero; every cell holds its number."""
    cells = np.asarray(values, dtype=float)
    target: Axes = new_axes(1, 1.4 + 0.34 * len(rows))[0] if ax is None else ax
    top = largest if largest is not None else float(np.nanmax(np.abs(cells), initial=0)) or 1.0
    image = target.imshow(np.abs(cells), cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for (i, j), value in np.ndenumerate(cells):
        dark = np.abs(value) > 0.55 * top
        words = "" if np.isnan(value) else f"{value:+.3f}" if (cells < 0).any() else f"{value:.3f}"
        target.text(
            j, i, words, ha="center", va="center", fontsize=8.5,
            color="white" if dark else "black",
        )  # fmt: skip
    target.set_xticks(range(len(columns)), columns)
    target.set_yticks(range(len(rows)), rows)
    target.set_title(title)
    target.grid(visible=False)
    target.figure.colorbar(image, ax=target, label=label)
    return target


@_styled
def plot_certificates(outcomes: Sequence[WhatIf], axes: NDArray[Any] | None = None) -> NDArray[Any]:
    """(2,) proved coverage band and guaranteed level against the number of liars."""
    pair = new_axes(2) if axes is None else axes
    for colour, outcome in zip(cycle(CYCLE), outcomes, strict=False):
        m = [row.m for row in outcome.budgets]
        lower = [row.certificate.lower for row in outcome.budgets]
        upper = [row.certificate.upper for row in outcome.budgets]
        name = f"threshold {outcome.threshold:.4g} for {float(outcome.level):g}"
        pair[0].fill_between(m, lower, upper, color=colour, alpha=0.25, linewidth=0, label=name)
        pair[0].plot(m, lower, color=colour)
        pair[1].plot(range(len(outcome.curve)), outcome.curve, color=colour)
        for ax in pair:
            ax.axhline(float(outcome.level), color=colour, linestyle=":", linewidth=1)
            ax.set_xlabel("clients that may lie, m")
    confidence = outcomes[0].budgets[0].certificate.confidence
    pair[0].set(title=f"Proved coverage, {confidence:.0%} confidence", ylabel="benign coverage")
    pair[0].legend(loc="best", fontsize=8.5)
    pair[1].set_title("Level guaranteed on average")
    return pair


@_styled
def plot_tolerance_curve(
    federation: Federation,
    level: Fraction,
    threshold_index: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The threshold guaranteed against 0, 1, 2, ... liars; a threshold in use cuts it at m*."""
    target: Axes = new_axes()[0] if ax is None else ax
    upper = federation.grid.upper
    found: list[float] = []
    for m in range((federation.n_clients + 1) // 2):
        index = marginal_threshold(federation, level, m)
        if index is None or not np.isfinite(upper[index]):
            target.axvline(m, color=GREY, linestyle=":", label=f"full sets from {m} liars")
            break
        found.append(float(upper[index]))
    target.step(range(len(found)), found, where="pre", color=BLUE, marker="o", markersize=4)
    if threshold_index is not None:
        survived = tolerance(federation, threshold_index, level)
        words = f"threshold in use survives {'none' if survived is None else survived}"
        target.axhline(upper[threshold_index], color=GREEN, linestyle="--", label=words)
    if target.get_legend_handles_labels()[0]:
        target.legend(fontsize=8.5)
    target.set(xlabel="liars to survive", ylabel=f"threshold guaranteed at {float(level):g}")
    target.set_title("Tolerance curve")
    return target


@_styled
def plot_cdf(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """The trusted clients' pooled CDF, every flagged client's own, and the thresholds."""
    target: Axes = new_axes()[0] if ax is None else ax
    federation, trusted = whole(calibration.federation), calibration.trusted_mask
    upper = federation.grid.upper
    inside = np.isfinite(upper)
    shares = federation.cumulative(np.flatnonzero(inside)) / federation.sizes[:, None]
    low, high = np.quantile(shares[trusted], [0.05, 0.95], axis=0)
    label = "middle 90% of the trusted clients"
    target.fill_between(upper[inside], low, high, color=GREY, alpha=0.2, linewidth=0, label=label)
    for number, k in enumerate(np.flatnonzero(~trusted)):
        name = None if number else "flagged clients"
        target.plot(upper[inside], shares[k], color=VERMILION, linewidth=0.9, alpha=0.6, label=name)
    pooled = np.cumsum(federation.pooled(trusted))[inside] / federation.sizes[trusted].sum()
    target.plot(upper[inside], pooled, color=BLUE, label="trusted clients pooled")
    for number, level in enumerate(calibration.levels):
        if np.isfinite(level.threshold):
            name = None if number else "threshold"
            target.axvline(level.threshold, color=GREEN, linestyle="--", label=name)
    target.set(xlabel="score", ylabel="share at or below", title="Scores of the clients")
    target.legend(fontsize=8.5)
    return target


@_styled
def plot_maliciousness(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Clients in the order of maliciousness, trusted and flagged ones told apart."""
    target: Axes = new_axes()[0] if ax is None else ax
    order = np.argsort(calibration.maliciousness, kind="stable")
    number, trusted = calibration.maliciousness[order], calibration.trusted_mask[order]
    place = np.arange(1, len(order) + 1)
    looks = (("trusted", trusted, BLUE, "o"), ("flagged", ~trusted, VERMILION, "^"))
    for name, chosen, colour, marker in looks:
        target.scatter(place[chosen], number[chosen], s=18, color=colour, marker=marker, label=name)
    if number[0] > 0 and number[-1] > 20 * number[len(number) // 2]:
        target.set_yscale("log")
    target.set(xlabel="clients, least malicious first", ylabel="maliciousness")
    target.set_title("Clients by maliciousness")
    target.legend(fontsize=8.5)
    return target


def _looks(names: Iterable[str]) -> list[tuple[str, tuple[str, str]]]:
    """Colour and mark for each name: defences keep theirs, others take the next free ones."""
    wanted = list(names)
    taken = {DEFENCES[name][0] for name in wanted if name in DEFENCES}
    free = cycle([look for look in zip(CYCLE, MARKERS, strict=True) if look[0] not in taken])
    return [(name, DEFENCES[name] if name in DEFENCES else next(free)) for name in wanted]
