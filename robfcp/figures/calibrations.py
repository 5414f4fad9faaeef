"""Figures of a calibration: its clients, its certificates, its tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Budgets, Calibration
from robfcp.federation import Federation, comparable, whole
from robfcp.figures.style import BLUE, CYCLE, GREEN, GREY, VERMILION, new_axes, styled
from robfcp.guarantees import marginal_threshold, tolerance

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_certificates(
    outcomes: Sequence[Budgets], axes: NDArray[Any] | None = None
) -> NDArray[Any]:
    """(2,) proved coverage and guaranteed thresholds against the number of liars.

    Parameters
    ----------
    outcomes
        One a confidence level, as `robfcp.calibration.what_if` gives them.
    axes
        (2,) where to draw; new ones if None.

    Returns
    -------
    (2,) array of Axes
        What was drawn into.

    Examples
    --------
    >>> from fractions import Fraction
    >>> import robfcp
    >>> from robfcp.calibration import what_if
    >>> from robfcp.figures import plot_certificates, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> outcome = what_if(federation, Fraction(9, 10), index=1, budgets=(0, 1, 2))
    >>> save(plot_certificates([outcome]), "certificates.png")
    """
    pair = new_axes(2) if axes is None else axes
    for colour, outcome in zip(cycle(CYCLE), outcomes, strict=False):
        m = [row.m for row in outcome.budgets]
        lower = [row.certificate.lower for row in outcome.budgets]
        upper = [row.certificate.upper for row in outcome.budgets]
        name = f"threshold {outcome.threshold:.4g} for {float(outcome.level):g}"
        pair[0].fill_between(m, lower, upper, color=colour, alpha=0.25, linewidth=0, label=name)
        pair[0].plot(m, lower, color=colour)
        for line, name in (("-", "marginal"), ("--", "pac")):
            held = [getattr(row, name) for row in outcome.budgets]
            finite = [value if np.isfinite(value) else np.nan for value in held]
            pair[1].plot(m, finite, color=colour, linestyle=line, label=name)
        pair[0].axhline(float(outcome.level), color=colour, linestyle=":", linewidth=1)
        for ax in pair:
            ax.set_xlabel("sites that may lie, m")
    confidence = outcomes[0].budgets[0].certificate.confidence
    pair[0].set(
        title=f"Proved coverage, {confidence:.0%} confidence", ylabel="coverage of the honest sites"
    )
    pair[0].legend(loc="best", fontsize=8.5)
    pair[1].set(title="Thresholds guaranteed at the level", ylabel="threshold")
    pair[1].legend(loc="best", fontsize=8.5)
    return pair


@styled
def plot_tolerance_curve(
    federation: Federation,
    level: Fraction,
    threshold_index: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The threshold guaranteed against 0, 1, 2, ... liars; a threshold in use cuts it at m*.

    Parameters
    ----------
    federation
        The reports of one round.
    level
        The wanted coverage.
    threshold_index
        The bin whose upper edge is the threshold in use.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> from fractions import Fraction
    >>> import robfcp
    >>> from robfcp.figures import plot_tolerance_curve
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> plot_tolerance_curve(federation, Fraction(9, 10), threshold_index=1).get_title(loc="left")
    'Tolerance curve'
    """
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
        words = f"threshold in use holds against {'nobody' if survived is None else survived}"
        target.axhline(upper[threshold_index], color=GREEN, linestyle="--", label=words)
    if target.get_legend_handles_labels()[0]:
        target.legend(fontsize=8.5)
    target.set(xlabel="liars guarded against", ylabel=f"threshold guaranteed at {float(level):g}")
    target.set_title("Tolerance curve")
    return target


@styled
def plot_cdf(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """The trusted clients' pooled CDF, every flagged client's own, and the thresholds.

    Parameters
    ----------
    calibration
        With its evidence.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_cdf, save
    >>> federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20)
    >>> save(plot_cdf(robfcp.calibrate(federation, defence="none")), "scores.svg")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    federation = whole(comparable(calibration.federation))
    trusted = calibration.trusted_mask
    upper = federation.grid.upper
    inside = np.isfinite(upper)
    shares = federation.cumulative(np.flatnonzero(inside)) / federation.sizes[:, None]
    low, high = np.quantile(shares[trusted], [0.05, 0.95], axis=0)
    label = "middle 90% of the trusted sites"
    target.fill_between(upper[inside], low, high, color=GREY, alpha=0.2, linewidth=0, label=label)
    for number, k in enumerate(np.flatnonzero(~trusted)):
        name = None if number else "flagged sites"
        target.plot(upper[inside], shares[k], color=VERMILION, linewidth=0.9, alpha=0.6, label=name)
    pooled = np.cumsum(federation.pooled(trusted))[inside] / federation.sizes[trusted].sum()
    target.plot(upper[inside], pooled, color=BLUE, label="trusted sites pooled")
    for number, level in enumerate(calibration.levels):
        if np.isfinite(level.threshold):
            name = None if number else "threshold"
            target.axvline(level.threshold, color=GREEN, linestyle="--", label=name)
    target.set(xlabel="score", ylabel="share at or below", title="Scores of the sites")
    target.legend(fontsize=8.5)
    return target


@styled
def plot_maliciousness(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Clients in the order of maliciousness, trusted and flagged ones told apart.

    Parameters
    ----------
    calibration
        With its evidence.
    ax
        Where to draw; new axes if None.

    Returns
    -------
    Axes
        What was drawn into.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.figures import plot_maliciousness, save
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> calibration = robfcp.calibrate(federation, defence="rob-fcp", malicious=1)
    >>> save(plot_maliciousness(calibration), "maliciousness.png")
    """
    target: Axes = new_axes()[0] if ax is None else ax
    order = np.argsort(calibration.maliciousness, kind="stable")
    number, trusted = calibration.maliciousness[order], calibration.trusted_mask[order]
    place = np.arange(1, len(order) + 1)
    looks = (("trusted", trusted, BLUE, "o"), ("flagged", ~trusted, VERMILION, "^"))
    for name, chosen, colour, marker in looks:
        target.scatter(place[chosen], number[chosen], s=18, color=colour, marker=marker, label=name)
    if number[0] > 0 and number[-1] > 20 * number[len(number) // 2]:
        target.set_yscale("log")
    target.set(xlabel="sites, least malicious first", ylabel="maliciousness")
    target.set_title("Sites by maliciousness")
    target.legend(fontsize=8.5)
    return target
