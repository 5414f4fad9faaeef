"""What a report must satisfy, field by field; every refusal names client, field and remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.names import deceptive
from robfcp.errors import MAX_NAME, ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Privacy, noise_bound
from robfcp.reports.strata import Strata
from robfcp.scores import Risk, Score

MAX_SAMPLES = 2**40  # keeps every sum over a million clients inside int64
IMPLAUSIBLE = 1e-10  # noisy counts are refused beyond what their noise exceeds with this chance


def check_client(client: object) -> None:
    """Refuse what cannot be a client's name."""
    if not isinstance(client, str) or not client or len(client) > MAX_NAME:
        raise ReportError(
            repr(client)[:40], "client", "is not a client name", f"use 1 to {MAX_NAME} characters"
        )
    if not client.isprintable():
        raise ReportError(
            repr(client)[:40], "client", "holds unprintable characters", "use a plain name"
        )
    problem = deceptive(client)
    if problem:
        raise ReportError(ascii(client)[1:-1][:MAX_NAME], "client", problem, "use a plain name")


def is_whole(value: object) -> bool:
    """Whether the value is an integer of any library, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_privacy(client: str, privacy: object) -> None:
    """Refuse what stands in the place of a privacy statement but is none."""
    if privacy is not None and not isinstance(privacy, Privacy):
        raise ReportError(
            client, "privacy", "privacy is not stated as such", "pass Privacy(epsilon=1)"
        )


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


def check_counts(
    client: str, values: Any, grid: Grid, privacy: Privacy | None = None
) -> NDArray[np.int64]:
    """The counts as a fresh int64 vector, refused when they cannot be a histogram on the grid."""

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
    if privacy is None and counts.min() < 0:
        raise refuse(f"counts[{int(counts.argmin())}] is negative")
    if counts.max() > MAX_SAMPLES or counts.sum(dtype=np.float64) > MAX_SAMPLES:
        raise refuse(f"counts exceed {MAX_SAMPLES} samples")
    if counts.min() < -MAX_SAMPLES or counts.sum(dtype=np.float64) < -MAX_SAMPLES:
        raise refuse(f"counts lie below {-MAX_SAMPLES}")
    if privacy is None and not counts.any():
        raise refuse("counts are all zero")
    return counts.astype(np.int64)


def check_noisy(
    client: str,
    counts: NDArray[np.int64],
    n_samples: Any,
    privacy: Privacy,
    *,
    unit: int = 1,
    draws: int = 1,
) -> int:
    """n_k of a private report, refused where its counts cannot come from n_k and its noise."""

    def refuse(field: str, problem: str) -> ReportError:
        return ReportError(client, field, problem, "rebuild the report from the scores")

    total = int(counts.sum())
    if privacy.hides_size:
        if unit > 1:
            raise refuse("privacy", "losses need n_samples, which add-remove privacy hides")
        if n_samples is not None:
            raise refuse("n_samples", "n_samples is stated though add-remove privacy hides it")
        return max(1, total)
    if not is_whole(n_samples) or not 1 <= n_samples <= MAX_SAMPLES:
        raise refuse("n_samples", f"n_samples is {n_samples!r}, not a number of samples")
    noise = privacy.noise_on(unit)
    slack = noise_bound(((noise, draws * counts.size),), IMPLAUSIBLE)
    if abs(total - unit * int(n_samples)) > slack:
        raise refuse(
            "counts", f"counts sum to {total}, which noise cannot make of {n_samples} samples"
        )
    slack = noise_bound(((noise, draws),), IMPLAUSIBLE / counts.size)
    if counts.min() < -slack or counts.max() > unit * n_samples + slack:
        raise refuse("counts", "a count is beyond what the stated noise can make of it")
    return int(n_samples)


def check_noisy_cells(client: str, strata: Strata | None, n_samples: Any, privacy: Privacy) -> None:
    """Refuse a private report with a cell that its noise cannot have made."""
    if strata is None or not strata.counts.size:
        return
    slack = noise_bound(((privacy.noise_on(1), 1),), IMPLAUSIBLE / strata.counts.size)
    most = np.inf if privacy.hides_size else int(n_samples) + slack
    if strata.counts.min() < -slack or strata.counts.max() > most:
        raise ReportError(
            client,
            "strata",
            f"a count by {strata.by} is beyond what the stated noise can make of it",
            "rebuild the report from the scores",
        )


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


def check_strata(client: str, strata: Strata | None, report: Any, derived: bool) -> int:
    """How many draws of noise a pooled count holds: one for each stratum, 1 without any."""
    if strata is None:
        return 1

    def refuse(problem: str) -> ReportError:
        return ReportError(client, "strata", problem, "rebuild the report from the scores")

    if not isinstance(strata, Strata) or report.risk is not None:
        raise refuse("counts by class go with scores, not with losses")
    if strata.n_bins != report.grid.n_bins:
        raise refuse(f"counts by {strata.by} are for {strata.n_bins} bins, not the grid's")
    if report.privacy is None and strata.counts.min(initial=1) < 1:
        raise refuse(f"a count by {strata.by} is not positive")
    if not derived and not np.array_equal(strata.pooled, report.counts):
        raise refuse(f"counts by {strata.by} do not add up to the counts of all")
    return strata.n_strata


def check_patients(
    client: str, n_samples: int, patients: ArrayLike | None, privacy: Privacy
) -> None:
    """Refuse more samples of one person than the privacy statement speaks of."""
    if patients is None:
        return
    names = np.asarray(patients)
    if names.shape != (n_samples,):
        raise RobfcpError(f"{client}: patients: need one name a score ({n_samples})")
    most = int(np.unique(names, return_counts=True)[1].max())
    if most > privacy.samples_per_patient:
        raise RobfcpError(
            f"{client}: patients: somebody has {most} samples but samples_per_patient is "
            f"{privacy.samples_per_patient}; drop the surplus or state the larger bound"
        )
