"""Figures: every function draws into the axes given, or new ones, and returns them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import write_atomically
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.monitoring import Monitor

__all__ = [
    "plot_cdf",
    "plot_certificates",
    "plot_e_process",
    "plot_heatmap",
    "plot_maliciousness",
    "save",
]


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any kind of colour vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#5B6673"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY)
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DEFENSE_STYLES = {"none": (VERMILION, "^"), "rob-fcp": (ORANGE, "s"), "consensus": (BLUE, "o")}
STYLE: dict[Any, Any] = {
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
    "legend.fontsize": 8.5,
    "svg.hashsalt": "robfcp",
}
# By what each kind of file would be dated: the same figure has the same bytes.
FORMATS = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}


@contextmanager
def style() -> Iterator[None]:
    """The one style of all figures, for a `with` block or, as `@style()`, for a function."""
    try:
        import matplotlib
        from cycler import cycler
    except ImportError:
        raise RobfcpError("figures: need matplotlib; pip install 'robfcp[figures]'") from None

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}):
        yield


@style()
def new_axes(columns: int = 1, height: float = 3.6) -> NDArray[Any]:
    """(columns,) axes side by side on a new figure, apart from pyplot's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return np.asarray(figure.subplots(1, columns, squeeze=False)[0])


@style()
def save(drawn: Axes | Figure | NDArray[Any], path: str | os.PathLike[str]) -> None:
    """Write the figure whole or not at all, the same bytes for the same figure.

    Parameters
    ----------
    drawn
        A figure, its axes, or an array of them.
    path
        A .png, .svg or .pdf file.

    Examples
    --------
    >>> from robfcp.figures import new_axes, save
    >>> save(new_axes(), "axes.svg")
    """
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise RobfcpError(f"{path}: cannot draw .{suffix}; use .png, .svg or .pdf")
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) else drawn
    figure: Any = first if hasattr(first, "savefig") else first.figure
    buffer = BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata={FORMATS[suffix]: None})
    write_atomically(path, buffer.getvalue())


def _label_axes(ax: Axes, title: str, xlabel: str, ylabel: str = "") -> Axes:
    """The axes with their title, labels and legend."""
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return ax


def _method_styles(names: Iterable[str]) -> list[tuple[str, tuple[str, str]]]:
    """Colour and mark for each name: defences keep theirs, others take the next free ones."""
    wanted = list(names)
    taken = {DEFENSE_STYLES[name][0] for name in wanted if name in DEFENSE_STYLES}
    free = cycle([look for look in zip(CYCLE, MARKERS, strict=True) if look[0] not in taken])
    return [
        (name, DEFENSE_STYLES[name] if name in DEFENSE_STYLES else next(free)) for name in wanted
    ]


@style()
def plot_certificates(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Where coverage is proved to lie, for each number of liars; a colour a level.

    Parameters
    ----------
    calibration
        Without classes or groups, which have a curve each.
    ax
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_certificates, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> save(plot_certificates(robfcp.calibrate(federation, [0.5, 0.9])), "curve.png")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    for colour, level in zip(cycle(CYCLE), calibration.levels, strict=False):
        m, lower, upper = np.transpose(
            [(one.m, one.lower, one.upper) for one in level.certificate_points]
        )
        name = f"threshold {level.threshold:.4g} for {float(level.coverage):g}"
        target.fill_between(m, lower, upper, color=colour, alpha=0.25, linewidth=0, label=name)
        target.plot(m, lower, color=colour)
        target.axhline(float(level.coverage), color=colour, linestyle=":", linewidth=1)
    proved = f"Proved coverage, {calibration.certificate_confidence:.0%} confidence"
    return _label_axes(target, proved, "sites that may lie, m", "coverage of the honest sites")


@style()
def plot_cdf(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """The trusted clients' pooled CDF, every flagged client's own, and the thresholds.

    Parameters
    ----------
    calibration
        With its record.
    ax
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_cdf, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> save(plot_cdf(robfcp.calibrate(federation, defense="none")), "scores.svg")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    federation = calibration.federation.as_sample_counts().with_integer_counts()
    trusted = calibration.benign_mask
    upper = federation.binning.upper_edges
    inside = np.isfinite(upper)
    shares = federation.cumulative_counts(np.flatnonzero(inside)) / federation.sample_sizes[:, None]
    low, high = np.quantile(shares[trusted], [0.05, 0.95], axis=0)
    label = "middle 90% of the sites used"
    target.fill_between(upper[inside], low, high, color=GREY, alpha=0.2, linewidth=0, label=label)
    look: dict[str, Any] = {"color": VERMILION, "linewidth": 0.9, "alpha": 0.6}
    for line in target.plot(upper[inside], shares[~trusted].T, **look)[:1]:
        line.set_label("flagged sites")
    pooled = (
        np.cumsum(federation.pooled_counts(trusted))[inside]
        / federation.sample_sizes[trusted].sum()
    )
    target.plot(upper[inside], pooled, color=BLUE, label="sites used, pooled")
    limits = [level.threshold for level in calibration.levels if np.isfinite(level.threshold)]
    for limit, name in zip(limits, ("threshold", *[None] * len(limits)), strict=False):
        target.axvline(limit, color=GREEN, linestyle="--", label=name)
    return _label_axes(target, "Scores of the sites", "score", "share at or below")


@style()
def plot_maliciousness(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Sites in the order of their oddness, trusted and flagged ones told apart.

    Parameters
    ----------
    calibration
        With its record.
    ax
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_maliciousness, save
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> calibration = robfcp.calibrate(federation, defense=robfcp.RobFCP(liars=1))
    >>> save(plot_maliciousness(calibration), "oddness.png")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    order = np.argsort(calibration.maliciousness, kind="stable")
    number, trusted = calibration.maliciousness[order], calibration.benign_mask[order]
    place, some = np.arange(1, len(order) + 1), number[number > 0]
    kinds = (("used", trusted, BLUE, "o"), ("flagged", ~trusted, VERMILION, "^"))
    for name, chosen, colour, marker in kinds:
        target.scatter(place[chosen], number[chosen], s=18, color=colour, marker=marker, label=name)
    if len(some) > 1 and some[-1] > 20 * np.median(some):
        target.set_yscale("symlog", linthresh=some[0])  # 0 at the foot, as on the page
    return _label_axes(target, "Sites by oddness", "sites, least odd first", "oddness")


@style()
def plot_heatmap(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    label: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Attacks by defences, say: the darker, the farther from zero; every cell holds its number.

    Parameters
    ----------
    values
        (R, C) numbers; NaN leaves a cell empty.
    rows
        (R,) their names.
    columns
        (C,) their names.
    title
        Above the axes.
    label
        Beside the colour bar.
    ax
        Where to draw; new axes if None.

    Examples
    --------
    >>> from robfcp.figures import plot_heatmap
    >>> ax = plot_heatmap([[0.0, -0.3]], ["coverage"], ["consensus", "none"])
    >>> [text.get_text() for text in ax.texts]
    ['+0.000', '-0.300']
    """
    cells = np.asarray(values, dtype=float)
    target: Axes = new_axes(1, 1.4 + 0.34 * len(rows))[0] if ax is None else ax
    top = float(np.nanmax(np.abs(cells), initial=0)) or 1.0
    image = target.imshow(np.abs(cells), cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for (i, j), value in np.ndenumerate(cells):
        dark = np.abs(value) > 0.55 * top
        words = "" if np.isnan(value) else f"{value:+.3f}" if (cells < 0).any() else f"{value:.3f}"
        ink = "white" if dark else "black"
        target.text(j, i, words, ha="center", va="center", fontsize=8.5, color=ink)
    target.set_xticks(range(len(columns)), columns)
    target.set_yticks(range(len(rows)), rows)
    target.set_title(title)
    target.grid(visible=False)
    target.figure.colorbar(image, ax=target, label=label)
    return target


@style()
def plot_e_process(monitor: Monitor, ax: Axes | None = None) -> Axes:
    """How strong each alarm is over the samples, and the line at which it rings.

    Parameters
    ----------
    monitor
        With samples counted.
    ax
        Where to draw; new axes if None.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from robfcp.figures import plot_e_process, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    >>> monitor = robfcp.Monitor(robfcp.calibrate(federation, defense="none"))
    >>> state = monitor.update(np.tile([0.9, 0.1], (100, 1)), np.repeat([0, 1], [80, 20]))
    >>> save(plot_e_process(monitor), "alarm.png")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    points = monitor.state.curve
    words = ("coverage below the floor", "scores have drifted", "change (R)")
    kinds = zip(("coverage", "drift", "change"), words, (BLUE, GREEN, ORANGE), strict=True)
    for name, word, colour in kinds:
        logs = [getattr(point, name) for point in points]
        if logs and logs[0] is not None:
            n = [point.n for point in points]
            target.plot(n, np.array(logs) / np.log(10), color=colour, label=word)
    line = monitor.state.log_alarm_threshold / np.log(10)
    target.axhline(line, color=VERMILION, linestyle="--", linewidth=1, label="alarm")
    return _label_axes(target, "How strong the alarms are", "samples", "alarm strength, log10")
