"""Figures of the test range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.figures import GREY, looks, new_axes, style
from robfcp.lab.simulation import Row


@style()
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
                alpha=0.35, solid_capstyle="butt", label=None if place else "honest sites alone",
            )  # fmt: skip
        for shift, (defence, (colour, marker)) in zip(offsets, looks(defences), strict=True):
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
    pair[0].legend()
    return pair
