"""What a report must satisfy, field by field; every refusal names client, field and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import RESERVED, deceptive
from robfcp.errors import MAX_NAME, ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.report.by_class import Strata
from robfcp.scores import Risk, Score

_BLANK = ord(" ")
_ODD = [_BLANK, *sorted({ord(word[0]) for word in RESERVED})]  # with which refused names begin

MAX_SAMPLES = 2**40  # keeps every sum over a million clients inside int64


def check_client(client: object) -> None:
    """Refuse what cannot be a client's name."""
    if not isinstance(client, str) or not client or len(client) > MAX_NAME:
        raise ReportError(
            repr(client)[:40], "client", "is not a site name", f"use 1 to {MAX_NAME} characters"
        )
    if not client.isprintable():
        raise ReportError(
            repr(client)[:40], "client", "holds unprintable characters", "use a plain name"
        )
    problem = deceptive(client)
    if problem:
        raise ReportError(ascii(client)[1:-1][:MAX_NAME], "client", problem, "use a plain name")


def is_client(client: str) -> bool:
    """Whether the text can be a client's name: what `check_client` does not refuse."""
    return 0 < len(client) <= MAX_NAME and client.isprintable() and not deceptive(client)


def are_clients(names: Sequence[str]) -> NDArray[np.bool_]:
    """The same of many; of plain text only names that begin or end oddly are looked at."""
    text = "".join(names)
    looked_at = np.ones(len(names), dtype=bool)
    if text.isascii() and text.isprintable() and all(names):
        letters = np.frombuffer(text.encode(), dtype=np.uint8)
        lengths = np.fromiter(map(len, names), dtype=np.int64, count=len(names))
        ends = np.cumsum(lengths)
        odd = np.isin(letters[ends - lengths], _ODD)
        looked_at = odd | (letters[ends - 1] == _BLANK) | (lengths > MAX_NAME)
    fine = ~looked_at
    for k in np.flatnonzero(looked_at).tolist():
        fine[k] = is_client(names[k])
    return fine


def is_whole(value: object) -> bool:
    """Whether the value is an integer of any library, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_grid(client: str, grid: object) -> None:
    """Refuse what is no grid."""
    if not isinstance(grid, Grid):
        raise ReportError(
            client, "grid", f"{type(grid).__name__} is not a grid", "pass Grid.default(), say"
        )


def check_fineness(client: str, n_samples: int, grid: Grid, most: float) -> None:
    """Refuse a grid so fine that a report would show single scores nearly as they are."""
    if not grid.n_bins <= most * n_samples:  # nor where the limit is no number
        raise RobfcpError(
            f"{client}: grid: {grid.n_bins} bins for {n_samples} samples are more than {most:g} a "
            "sample; agree on a coarser grid"
        )


def check_score(client: str, score: object) -> None:
    """Refuse what is no score."""
    if score is not None and (isinstance(score, type) or not isinstance(score, Score)):
        raise ReportError(client, "score", f"{score!r} is not a score", "pass LAC(), say")


def check_text(client: str, field: str, value: object) -> None:
    """Refuse a round's or model's name that is no short text."""
    if value is not None and not (
        isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    ):
        raise ReportError(
            client, field, f"{field} is not a short text", f"use at most {MAX_NAME} characters"
        )


def check_counts(client: str, values: Any, grid: Grid) -> NDArray[np.int64]:
    """The counts as a fresh int64 vector, refused when they do not fit the grid."""

    def refuse(problem: str) -> ReportError:
        return ReportError(client, "counts", problem, "rebuild the report from the scores")

    try:
        counts = np.array(values)
    except (ValueError, OverflowError):  # ragged lists
        raise refuse("counts are not a vector of integers") from None
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise refuse(f"counts are not a vector of integers ({counts.dtype}, {counts.ndim}-d)")
    if counts.size != grid.n_bins:
        raise refuse(f"{counts.size} counts do not fit the grid's {grid.n_bins} bins")
    total = counts.sum(dtype=np.float64)
    if counts.max() > MAX_SAMPLES or total > MAX_SAMPLES:
        raise refuse(f"counts exceed {MAX_SAMPLES} samples")
    if counts.min() < -MAX_SAMPLES or total < -MAX_SAMPLES:
        raise refuse(f"counts lie below {-MAX_SAMPLES}")
    return counts.astype(np.int64, copy=False)


def check_risk(client: str, risk: object) -> int:
    """How many counts one sample has: the risk's resolution, or 1 without one."""
    if risk is None:
        return 1
    if not isinstance(risk, Risk):
        raise ReportError(client, "risk", f"{risk!r} is not a risk", 'pass Risk("fnr"), say')
    return risk.resolution


def check_total(client: str, total: int, n_samples: Any, unit: int) -> int:
    """n_k of a report without noise, whose counts must add up to `unit` a sample."""
    if unit == 1 and n_samples is None:
        return total
    if not is_whole(n_samples) or unit * int(n_samples) != total:
        words = f"counts sum to {total} but n_samples says {n_samples!r}"
        if unit > 1:
            words = (
                f"the losses fall by {total} parts in all, not by {unit} for each of "
                f"{n_samples!r} samples"
            )
        raise ReportError(client, "n_samples", words, "rebuild the report")
    return int(n_samples)


def check_strata(client: str, strata: Strata | None, report: Any, derived: bool) -> None:
    """Refuse counts by class that do not belong to the report's own."""
    if strata is None:
        return

    def refuse(problem: str) -> ReportError:
        return ReportError(client, "strata", problem, "rebuild the report from the scores")

    if not isinstance(strata, Strata) or report.risk is not None:
        raise refuse("counts by class go with scores, not with losses")
    if strata.n_bins != report.grid.n_bins:
        raise refuse(f"counts by {strata.by} are for {strata.n_bins} bins, not the grid's")
    report.disclosure.check_cells(client, strata)
    if not derived and not np.array_equal(strata.pooled, report.counts):
        raise refuse(f"counts by {strata.by} do not add up to the counts of all")


def check_set_sizes(client: str, values: Any, report: Any) -> NDArray[np.int64] | None:
    """The scores of all labels as counts, refused where they cannot belong to the report."""
    if values is None:
        return None

    def refuse(problem: str) -> ReportError:
        return ReportError(
            client, "set_sizes", problem, "rebuild the report with its labels' scores"
        )

    report.disclosure.check_set_sizes(client)
    if report.risk is not None:
        raise refuse("sizes of sets go with scores, not with losses")
    try:
        counts = check_counts(client, values, report.grid)
    except ReportError as error:
        raise refuse(str(error).split("; ")[0].removeprefix(f"{client}: ")) from None
    if counts.min() < 0:
        raise refuse("a count of labels is negative")
    total = int(counts.sum())
    if total < report.n_samples or total % report.n_samples:
        raise refuse(f"{total} labels do not make as many for each of {report.n_samples} samples")
    return counts
