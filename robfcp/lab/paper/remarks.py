"""Where our figures differ from the published ones or from the honest clients', as measured.

A line states what was measured in its worst cell; it names a cause only where the setting itself is
the cause (a number that was misstated).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robfcp.lab.paper.methods import FCP, LABELS, OURS, RELEASED, TEXT
from robfcp.lab.paper.rows import TableRow

APART = 0.02  # coverage, from that of the honest clients alone


def remarks(rows: Sequence[TableRow]) -> list[str]:
    """A line for each kind of difference, with the measurements of its worst cell."""
    lines = [*_closed_form(rows), *_sizes(rows)]
    for method in (TEXT, RELEASED, OURS):
        lines += _off(rows, method, LABELS[method])
    return lines


def _closed_form(rows: Sequence[TableRow]) -> list[str]:
    compared = [
        (abs(row.published_coverage - row.expected), row)
        for row in rows
        if row.published_coverage is not None and row.expected is not None
    ]
    off = [pair for pair in compared if pair[0] > 0.01]
    if not off:
        return []
    gap, worst = max(off, key=lambda pair: pair[0])
    return [
        f"{len(off)} of {len(compared)} published FCP coverages are over 0.01 from the closed form "
        f"(most: {cell(worst)}, published {worst.published_coverage:.3f}, closed form "
        f"{worst.expected:.3f}, ours {worst.coverage:.3f}). The gap there is {gap:.3f}, the "
        f"standard deviation of our single runs {worst.coverage_sd:.3f}. Where the paper "
        "contradicts "
        "itself is listed on a page of its own."
    ]


def _sizes(rows: Sequence[TableRow]) -> list[str]:
    benign = [
        row for row in rows if row.attack == "none" and row.published_set_size and row.method == FCP
    ]
    other = [
        row for row in benign if abs(np.log(row.set_size / (row.published_set_size or 1))) > 0.15
    ]
    if not other:
        return []
    return [
        "Benign set sizes over 15% from the published ones, with our model's accuracy: "
        + "; ".join(
            f"{cell(row)} {row.set_size:.2f} against {row.published_set_size:.2f} "
            f"({row.accuracy:.1%})"
            for row in other
        )
        + ". The accuracies of the paper's models are not among its tables."
    ]


def _off(rows: Sequence[TableRow], method: str, name: str) -> list[str]:
    own = [row for row in rows if row.method == method]
    if not own:
        return []
    lines = []
    off = [row for row in own if abs(row.coverage - row.honest_coverage) > APART]
    understated = [row for row in off if row.told is not None and row.told < row.ratio]
    if understated:
        worst = max(understated, key=_distance)
        lines.append(
            f"{name}, told fewer liars than there are, is over {APART} from the honest clients in "
            f"{len(understated)} cells (most: {_found(worst)}): it may not leave out more."
        )
    rest = [row for row in off if row not in understated]
    for attack in dict.fromkeys(row.attack for row in rest):
        group = [row for row in rest if row.attack == attack]
        total = sum(row.attack == attack for row in own)
        worst = max(group, key=_distance)
        lines.append(
            f"{name} is over {APART} from the honest clients in {len(group)} of {total} cells "
            f"under {attack} (most: {_found(worst)}{_measured(worst)})."
        )
    if not off:
        lines.append(f"{name} is within {APART} of the honest clients alone in every cell.")
    return lines


def _distance(row: TableRow) -> float:
    return abs(row.coverage - row.honest_coverage)


def _found(row: TableRow) -> str:
    return f"{cell(row)}, {row.coverage:.3f} against {row.honest_coverage:.3f}"


def _measured(row: TableRow) -> str:
    """What was seen of the worst cell: who was left out, how odd the liars looked, the end bins."""
    n_liars = round(row.clients * row.ratio)
    text = (
        f"; {row.caught:.1f} of {n_liars:.0f} liars and {row.flagged - row.caught:.1f} honest out"
    )
    if row.liar_oddity is not None and row.honest_oddity is not None:
        text += f", mean maliciousness {row.liar_oddity:.3g} (liars) and {row.honest_oddity:.3g}"
    if row.attack in ("coverage", "efficiency"):
        place, share = (
            ("first", row.first_bin) if row.attack == "coverage" else ("last", row.last_bin)
        )
        text += f", {share:.0%} of honest scores in the {place} of 100 bins"
    return text


def cell(row: TableRow) -> str:
    """The setting of a row in words."""
    stage = "" if row.model == "final" else f" ({row.model} model)"
    variant = f" {row.variant}" if row.variant and row.variant != row.split else ""
    share = f" at {row.ratio:.0%}" if row.ratio else ""
    return f"{row.dataset}{stage} {row.split}{variant}{share}"
