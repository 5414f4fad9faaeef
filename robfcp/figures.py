"""Figures: every function draws into given axes, or new ones, and returns them."""

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

# Okabe and Ito's colors, distinct with any kind of color vision.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
GRAY = "#5B6673"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GRAY)
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DEFENSE_STYLES = {"none": (VERMILION, "^"), "rob-fcp": (ORANGE, "s"), "consensus": (BLUE, "o")}
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "robfcp",
}
# Of the largest maliciousness score to the median: above it, a linear scale hides the others.
MAX_LINEAR_RATIO = 20
# Of the largest value of a heat map: darker cells have white numbers.
DARK_FRACTION = 0.55
# Metadata that would date each kind of file, omitted so that the same figure has the same bytes.
FORMATS = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}


@contextmanager
def style() -> Iterator[None]:
    """Apply the one style of all figures, to a `with` block or, as `@style()`, to a function."""
    try:
        import matplotlib
        from cycler import cycler
    except ImportError:
        raise RobfcpError("figures: need matplotlib; pip install 'robfcp[figures]'") from None

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}):
        yield


@style()
def new_axes(columns: int = 1, height: float = 3.6) -> NDArray[Any]:
    """Return (columns,) axes side by side on a new figure, apart from pyplot's.

    Parameters
    ----------
    columns : int
        How many.
    height : float
        Of the figure, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return np.asarray(figure.subplots(1, columns, squeeze=False)[0])


@style()
def save(plot: Axes | Figure | NDArray[Any], path: str | os.PathLike[str]) -> None:
    """Write the figure atomically, the same bytes for the same figure.

    Parameters
    ----------
    plot : Axes or Figure or ndarray
        A figure, its axes, or an array of them.
    path : path
        A .png, .svg or .pdf file.

    Examples
    --------
    >>> from robfcp.figures import new_axes, save
    >>> save(new_axes(), "axes.svg")
    """
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise RobfcpError(f"{path}: cannot draw .{suffix}; use .png, .svg or .pdf")
    buffer = BytesIO()
    figure = _figure_of(plot)
    figure.savefig(buffer, format=suffix, dpi=150, metadata={FORMATS[suffix]: None})
    write_atomically(path, buffer.getvalue())


def _figure_of(plot: Any) -> Any:
    """Return the figure of axes or of an array of them; a figure as it is."""
    artist = plot.flat[0] if isinstance(plot, np.ndarray) else plot
    return artist if hasattr(artist, "savefig") else artist.figure


def _axes_or_new(ax: Axes | None, height: float = 3.6) -> Axes:
    """Return the given axes, else new ones of a height in inches."""
    if ax is not None:
        return ax
    axes: Axes = new_axes(1, height)[0]
    return axes


def _label_axes(ax: Axes, title: str, xlabel: str, ylabel: str = "") -> Axes:
    """Return the axes with their title, labels and legend."""
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return ax


def _method_styles(names: Iterable[str]) -> list[tuple[str, tuple[str, str]]]:
    """Return color and marker by name: defenses have fixed ones, others the next free ones."""
    names = list(names)
    defense_colors = {DEFENSE_STYLES[name][0] for name in names if name in DEFENSE_STYLES}
    free_styles = [
        (color, marker)
        for color, marker in zip(CYCLE, MARKERS, strict=True)
        if color not in defense_colors
    ]
    next_styles = cycle(free_styles)

    styles = []
    for name in names:
        if name in DEFENSE_STYLES:
            styles.append((name, DEFENSE_STYLES[name]))
        else:
            styles.append((name, next(next_styles)))
    return styles


@style()
def plot_certificates(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Draw the certified range of coverage, for each number of malicious clients.

    Each level has a color.

    Parameters
    ----------
    calibration : Calibration
        Without strata: those have certificates of their own.
    ax : Axes, optional
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_certificates, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> calibration = robfcp.calibrate(federation, coverage=[0.5, 0.9])
    >>> save(plot_certificates(calibration), "certificates.png")
    """
    axes = _axes_or_new(ax)
    for color, level in zip(cycle(CYCLE), calibration.levels, strict=False):
        points = level.certificate_points
        max_malicious = [point.max_malicious for point in points]
        lower = [point.lower for point in points]
        upper = [point.upper for point in points]
        target = float(level.coverage)
        label = f"threshold {level.threshold:.4g} for {target:g}"
        axes.fill_between(
            max_malicious, lower, upper, color=color, alpha=0.25, linewidth=0, label=label
        )
        axes.plot(max_malicious, lower, color=color)
        axes.axhline(target, color=color, linestyle=":", linewidth=1)
    title = f"Certified coverage, {calibration.certificate_confidence:.0%} confidence"
    return _label_axes(axes, title, "malicious clients, at most m", "coverage of benign clients")


@style()
def plot_cdf(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Draw the benign clients' pooled CDF, the CDF of every flagged client, and the thresholds.

    Parameters
    ----------
    calibration : Calibration
        With its record.
    ax : Axes, optional
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_cdf, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> save(plot_cdf(robfcp.calibrate(federation, defense="none")), "scores.svg")
    """
    axes = _axes_or_new(ax)
    federation = calibration.federation.as_sample_counts().with_integer_counts()
    benign_mask = calibration.benign_mask
    sample_sizes = federation.sample_sizes
    bins = np.flatnonzero(np.isfinite(federation.binning.upper_edges))
    edges = federation.binning.upper_edges[bins]
    cumulative = federation.cumulative_midpoints(bins)
    cdfs = cumulative / sample_sizes[:, None]

    low, high = np.quantile(cdfs[benign_mask], [0.05, 0.95], axis=0)
    label = "middle 90% of benign clients"
    axes.fill_between(edges, low, high, color=GRAY, alpha=0.2, linewidth=0, label=label)

    flagged_cdfs = cdfs[~benign_mask]
    if len(flagged_cdfs):
        curves = axes.plot(edges, flagged_cdfs.T, color=VERMILION, linewidth=0.9, alpha=0.6)
        curves[0].set_label("flagged clients")

    pooled_cdf = cumulative[benign_mask].sum(axis=0) / sample_sizes[benign_mask].sum()
    axes.plot(edges, pooled_cdf, color=BLUE, label="benign clients, pooled")

    thresholds = [level.threshold for level in calibration.levels if np.isfinite(level.threshold)]
    lines = [axes.axvline(threshold, color=GREEN, linestyle="--") for threshold in thresholds]
    if lines:
        lines[0].set_label("threshold")
    return _label_axes(axes, "Scores of the clients", "score", "fraction at or below")


@style()
def plot_maliciousness(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Draw clients in the order of their maliciousness, benign and flagged ones apart.

    Parameters
    ----------
    calibration : Calibration
        With its record.
    ax : Axes, optional
        Where to draw; new axes if None.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_maliciousness, save
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> calibration = robfcp.calibrate(federation, defense=robfcp.RobFCP(n_malicious=1))
    >>> save(plot_maliciousness(calibration), "maliciousness.png")
    """
    axes = _axes_or_new(ax)
    order = np.argsort(calibration.maliciousness, kind="stable")
    maliciousness = calibration.maliciousness[order]
    benign_mask = calibration.benign_mask[order]
    ranks = np.arange(1, len(order) + 1)
    groups = (("benign", benign_mask, BLUE, "o"), ("flagged", ~benign_mask, VERMILION, "^"))
    for label, mask, color, marker in groups:
        axes.scatter(
            ranks[mask], maliciousness[mask], s=18, color=color, marker=marker, label=label
        )

    positive = maliciousness[maliciousness > 0]
    if len(positive) > 1 and positive[-1] > MAX_LINEAR_RATIO * np.median(positive):
        axes.set_yscale("symlog", linthresh=positive[0])  # 0 at the bottom, as on the page
    return _label_axes(axes, "Clients by maliciousness", "rank", "maliciousness")


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
    """Draw a table of numbers, for example attacks by defenses: darker cells are farther from zero.

    Parameters
    ----------
    values : array_like, shape (R, C)
        Numbers; NaN leaves a cell empty.
    rows : sequence of str
        (R,) their names.
    columns : sequence of str
        (C,) their names.
    title : str
        Above the axes.
    label : str
        Beside the color bar.
    ax : Axes, optional
        Where to draw; new axes if None.

    Examples
    --------
    >>> from robfcp.figures import plot_heatmap
    >>> ax = plot_heatmap([[0.0, -0.3]], ["coverage"], ["consensus", "none"])
    >>> [text.get_text() for text in ax.texts]
    ['+0.000', '-0.300']
    """
    cells = np.asarray(values, dtype=float)
    axes = _axes_or_new(ax, 1.4 + 0.34 * len(rows))
    magnitudes = np.abs(cells)
    largest = float(np.nanmax(magnitudes, initial=0)) or 1.0
    image = axes.imshow(magnitudes, cmap="Blues", vmin=0, vmax=largest, aspect="auto")

    number_format = "+.3f" if (cells < 0).any() else ".3f"
    for (row, column), value in np.ndenumerate(cells):
        is_dark = np.abs(value) > DARK_FRACTION * largest
        color = "white" if is_dark else "black"
        text = "" if np.isnan(value) else format(value, number_format)
        axes.text(column, row, text, ha="center", va="center", fontsize=8.5, color=color)

    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_title(title)
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, label=label)
    return axes


@style()
def plot_e_process(monitor: Monitor, ax: Axes | None = None) -> Axes:
    """Draw the e-value of each alarm over the samples, and the alarm threshold.

    Parameters
    ----------
    monitor : Monitor
        With samples.
    ax : Axes, optional
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
    axes = _axes_or_new(ax)
    points = monitor.state.points
    n_samples = [point.n_samples for point in points]
    alarm_styles = (
        ("log_e_coverage", "coverage below its minimum", BLUE),
        ("log_e_exchangeability", "scores have drifted", GREEN),
        ("log_shiryaev_roberts", "change (R)", ORANGE),
    )
    for attribute, label, color in alarm_styles:
        log_e_values = [getattr(point, attribute) for point in points]
        is_available = bool(log_e_values) and log_e_values[0] is not None
        if is_available:
            axes.plot(n_samples, np.array(log_e_values) / np.log(10), color=color, label=label)

    log10_threshold = monitor.state.log_alarm_threshold / np.log(10)
    axes.axhline(log10_threshold, color=VERMILION, linestyle="--", linewidth=1, label="alarm")
    return _label_axes(axes, "E-values of the alarms", "samples", "e-value, log10")
