"""Figures of what a monitor has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robfcp.calibration import Monitor
from robfcp.figures.style import BLUE, GREEN, ORANGE, VERMILION, new_axes, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_wealth(monitor: Monitor, ax: Axes | None = None) -> Axes:
    """The wealth of each bet over the samples, and the line at which its alarm rings.

    Parameters
    ----------
    monitor
        With samples counted.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from robfcp.figures import plot_wealth, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    >>> monitor = robfcp.Monitor(robfcp.calibrate(federation, defence="none", malicious=1))
    >>> reading = monitor.update(np.tile([0.9, 0.1], (100, 1)), np.repeat([0, 1], [80, 20]))
    >>> save(plot_wealth(monitor), "wealth.png")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    points = monitor.curve
    n = [point.n for point in points]
    curves = (
        ("coverage", "coverage below the floor", BLUE),
        ("exchangeability", "scores have drifted", GREEN),
        ("change", "change (R)", ORANGE),
    )
    for name, words, colour in curves:
        logs = [getattr(point, name) for point in points]
        if logs and logs[0] is not None:
            target.plot(n, np.array(logs) / np.log(10), color=colour, label=words)
    line = -np.log10(monitor.reading.delta)
    target.axhline(line, color=VERMILION, linestyle="--", linewidth=1, label="alarm")
    target.set(xlabel="samples", ylabel="log10 of the wealth", title="Evidence against it")
    target.legend(fontsize=8.5)
    return target
