"""Charts of any numbers: curves and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from robfcp.figures.style import GREY, looks, new_axes, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
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
    """Named curves over x, each with its own colour and mark, with shaded spreads if given.

    Parameters
    ----------
    x
        (n,) where the points lie.
    lines
        Each curve's (n,) values by its name; defences keep their colour and mark.
    spreads
        Lower and upper ends of the shading, by the curve's name.
    level
        A dotted line at this height.
    xlabel
        What x is.
    ylabel
        What the values are.
    title
        Above the axes.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> from robfcp.figures import plot_lines
    >>> ax = plot_lines([0.1, 0.2], {"band": [0.9, 0.9], "none": [0.8, 0.5]}, level=0.9)
    >>> [line.get_label() for line in ax.get_lines()[:2]]
    ['band', 'none']
    """
    target: Axes = new_axes()[0] if ax is None else ax
    for (name, (colour, marker)), values in zip(looks(lines), lines.values(), strict=True):
        target.plot(x, values, color=colour, marker=marker, markersize=5, label=name)
        if spreads is not None and name in spreads:
            target.fill_between(x, *spreads[name], color=colour, alpha=0.15, linewidth=0)
    if level is not None:
        target.axhline(level, color=GREY, linestyle=":", linewidth=1)
    target.set(xlabel=xlabel, ylabel=ylabel, title=title)
    target.legend(fontsize=8.5)
    return target


@styled
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
    largest
        What the darkest colour stands for; the largest value if None.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> from robfcp.figures import plot_heatmap
    >>> ax = plot_heatmap([[0.0, -0.3]], ["coverage"], ["band", "none"])
    >>> [text.get_text() for text in ax.texts]
    ['+0.000', '-0.300']
    """
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
