"""Figures: every function draws into the axes given, or new ones, and returns them.

May import the rooms from `_util` to `calibration`; the commands and the test range build on it.
Needs matplotlib (extra: figures), which is imported when something is drawn.
"""

from robfcp.figures.calibrations import (
    plot_cdf,
    plot_certificates,
    plot_maliciousness,
    plot_tolerance_curve,
)
from robfcp.figures.charts import plot_heatmap, plot_lines
from robfcp.figures.monitors import plot_wealth
from robfcp.figures.strata import plot_by_class
from robfcp.figures.style import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    looks,
    new_axes,
    save,
    style,
    styled,
)

__all__ = [
    "BLUE",
    "CYCLE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILION",
    "looks",
    "new_axes",
    "plot_by_class",
    "plot_cdf",
    "plot_certificates",
    "plot_heatmap",
    "plot_lines",
    "plot_maliciousness",
    "plot_tolerance_curve",
    "plot_wealth",
    "save",
    "style",
    "styled",
]
