"""Figures by class or group: what each is covered, what is proved of it, and its threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration, covered_by_stratum, stratum_limits
from robfcp.errors import RobfcpError
from robfcp.figures.style import BLUE, GREEN, GREY, VERMILION, new_axes, styled

MOST = 40  # classes shown, those that are covered least


@styled
def plot_by_class(
    calibration: Calibration, axes: NDArray[Any] | None = None, *, level: int = 0
) -> NDArray[Any]:
    """(2,) coverage and threshold of every class or group, the least covered first.

    Coverage is that of the trusted clients' own reported samples. Where thresholds are by class,
    the bar behind it is what is proved, and classes that too few clients hold are marked.

    Parameters
    ----------
    calibration
        With its evidence: reports by class or group.
    axes
        (2,) where to draw; new ones if None.
    level
        Which confidence level of the calibration, counted from 0.

    Returns
    -------
    (2,) array of Axes
        What was drawn into.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> from robfcp.figures import plot_by_class, save
    >>> rng = np.random.default_rng(0)
    >>> reports = [
    ...     robfcp.Report.from_scores(
    ...         name, rng.random(90), labels=rng.integers(0, 3, 90), classes=["a", "b", "c"]
    ...     )
    ...     for name in ("north", "south", "west")
    ... ]
    >>> save(plot_by_class(robfcp.calibrate(reports, by="class")), "classes.png")
    """
    strata = calibration.federation.strata
    if strata is None:
        raise RobfcpError("calibration: its reports keep no classes or groups; sketch with labels")
    chosen = calibration.levels[level]
    covered, sizes = covered_by_stratum(strata, calibration.federation.grid, chosen)
    believed = calibration.trusted_mask[strata.rows]
    held = sizes[believed].sum(axis=0)
    share = covered[believed].sum(axis=0) / np.maximum(held, 1)
    some = np.flatnonzero(held > 0)
    shown = some[np.argsort(share[some], kind="stable")][:MOST][::-1]  # the first one on top
    pair = new_axes(2) if axes is None else axes
    places = np.arange(len(shown))
    known = {one.name: one for one in chosen.strata}
    _draw_proved(pair[0], [known.get(strata.labels[c]) for c in shown])
    pair[0].scatter(share[shown], places, s=26, color=BLUE, zorder=3, label="reported samples")
    wanted = float(chosen.confidence_level)
    pair[0].axvline(wanted, color=GREEN, linestyle="--", label=f"wanted, {wanted:g}")
    limits = stratum_limits(strata, chosen)[shown]
    finite = np.isfinite(limits)
    pair[1].scatter(limits[finite], places[finite], s=26, color=BLUE, label="threshold")
    if not finite.all():
        edge = calibration.federation.grid.edges[np.isfinite(calibration.federation.grid.edges)][-1]
        full = np.full(int((~finite).sum()), edge)
        words = "infinite: in every set"
        pair[1].scatter(full, places[~finite], s=36, color=VERMILION, marker=">", label=words)
    names = [strata.labels[c] for c in shown]
    for ax in pair:
        ax.set_yticks(places, names, fontsize=8 if len(shown) > 15 else None)
        ax.set_ylim(-0.6, len(shown) - 0.4)
        ax.legend(loc="best", fontsize=8.5)
    more = f", the {MOST} covered least" if len(shown) < len(some) else ""
    pair[0].set(title=f"Coverage by {strata.by}{more}", xlabel="share covered")
    pair[1].set(title="Thresholds", xlabel="score")
    return pair


def _draw_proved(ax: Any, levels: list[Any]) -> None:
    """A bar from the lower to the upper end of what is proved of each."""
    words: str | None = "proved"
    weak: str | None = "proved, held by few"
    for place, one in enumerate(levels):
        if one is None or one.certificate.vacuous:
            continue
        ends = one.certificate.lower, one.certificate.upper
        colour = VERMILION if one.protection else GREY
        label = weak if one.protection else words
        look = {"color": colour, "alpha": 0.35, "linewidth": 6, "solid_capstyle": "butt"}
        ax.plot(ends, (place, place), label=label, **look)
        weak, words = (None, words) if one.protection else (weak, None)
