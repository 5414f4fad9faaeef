"""A sketch with its client's name and the context it was made in: what crosses the wire."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import MAX_FILE_BYTES, read_limited, write_atomically
from robfcp.errors import MAX_NAME, ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.noise import noise_bound
from robfcp.privacy import Privacy, add_noise
from robfcp.scores import Score
from robfcp.sketches import sketch

MAX_SAMPLES = 2**40  # keeps every sum over a million clients inside int64
IMPLAUSIBLE = 1e-10  # noisy counts are refused beyond what their noise exceeds with this chance


class Header(NamedTuple):
    """A report without its counts, which stand in row `row` of the server's table."""

    client: str
    n_samples: int
    row: int
    grid: Grid
    score: Score | None
    round: str | None
    model: str | None
    privacy: Privacy | None


@dataclass(frozen=True, eq=False)
class Report:
    """One client's counts on the shared grid, checked on construction.

    With `privacy` the counts hold noise: they may be negative, and n_samples must be stated, unless
    it is protected too; it is then the noisy total, at least 1.
    """

    client: str
    counts: NDArray[np.int64]
    grid: Grid
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    n_samples: int = None  # type: ignore[assignment]  # the sum of the counts unless stated
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        check_client(self.client)
        object.__setattr__(self, "client", str(self.client))
        _check_kinds(self)
        counts = _check_counts(self.client, self.counts, self.grid, self.privacy)
        total = int(counts.sum())
        if self.privacy is not None:
            size = _check_noisy(self.client, counts, self.n_samples, self.privacy)
            object.__setattr__(self, "n_samples", size)
        elif self.n_samples is None or (_whole(self.n_samples) and self.n_samples == total):
            object.__setattr__(self, "n_samples", total)
        else:
            raise ReportError(
                self.client,
                "n_samples",
                f"counts sum to {total} but n_samples says {self.n_samples!r}",
                "rebuild the report",
            )
        for field in ("round", "model"):
            _check_text(self.client, field, getattr(self, field))
        counts.flags.writeable = False
        object.__setattr__(self, "counts", counts)

    @staticmethod
    def from_scores(
        client: str,
        scores: ArrayLike,
        grid: Grid | None = None,
        *,
        score: Score | None = None,
        round: str | None = None,
        model: str | None = None,
        privacy: Privacy | None = None,
        patients: ArrayLike | None = None,
    ) -> Report:
        """The report of a client's calibration scores, on the score's own grid if none is given.

        privacy: adds noise to the counts (extra: privacy); the grid should then be a coarse one
            fixed before the round, see `robfcp.recommend_grid`.
        patients: (n,) whose sample each score is; refused if somebody has more than privacy states.
        """
        check_client(client)
        _check_score(client, score)
        if grid is None:
            grid = Grid.default() if score is None else score.default_grid()
        _check_grid(client, grid)
        try:
            counts = sketch(scores, grid)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
        if privacy is None:
            if patients is not None:
                raise RobfcpError(f"{client}: patients: only privacy protects them; pass privacy=")
            return Report(client, counts, grid, score, round, model)
        _check_patients(client, len(np.asarray(scores)), patients, privacy)
        size = None if privacy.hides_size else int(counts.sum())
        noisy = add_noise(_check_counts(client, counts, grid), privacy)
        return Report(client, noisy, grid, score, round, model, size, privacy)  # type: ignore[arg-type]

    def to_json(self) -> bytes:
        """The report as one JSON object."""
        from robfcp._wire import encode_report

        return encode_report(self)

    @staticmethod
    def from_json(data: bytes | str, source: str = "report") -> Report:
        """A report from untrusted JSON; `source` names it in errors until its client is known."""
        from robfcp._wire import decode_report

        return decode_report(data, source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON whole or not at all."""
        write_atomically(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> Report:
        """Read and validate one report file."""
        return Report.from_json(read_limited(path, limit), source=os.fspath(path))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Report)
            and self.context == other.context
            and self.client == other.client
            and np.array_equal(self.counts, other.counts)
            and self.privacy == other.privacy
            and self.n_samples == other.n_samples
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def context(self) -> tuple[Grid, Score | None, str | None, str | None]:
        """What all reports of one round must share."""
        return self.grid, self.score, self.round, self.model


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


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_kinds(report: Report) -> None:
    """Refuse what stands in the place of a grid, a score or a privacy but is none."""
    _check_grid(report.client, report.grid)
    _check_score(report.client, report.score)
    if report.privacy is not None and not isinstance(report.privacy, Privacy):
        raise ReportError(
            report.client, "privacy", "privacy is not stated as such", "pass Privacy(epsilon=1)"
        )


def _check_grid(client: str, grid: object) -> None:
    if not isinstance(grid, Grid):
        raise ReportError(
            client, "grid", f"{type(grid).__name__} is not a grid", "pass Grid.default(), say"
        )


def _check_score(client: str, score: object) -> None:
    if score is not None and (isinstance(score, type) or not isinstance(score, Score)):
        raise ReportError(client, "score", f"{score!r} is not a score", "pass LAC(), say")


def _check_text(client: str, field: str, value: object) -> None:
    if value is not None and not (
        isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    ):
        raise ReportError(
            client, field, f"{field} is not a short text", f"use at most {MAX_NAME} characters"
        )


def _check_counts(
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


def _check_noisy(client: str, counts: NDArray[np.int64], n_samples: Any, privacy: Privacy) -> int:
    """n_k of a private report, refused where its counts cannot come from n_k and its noise."""

    def refuse(field: str, problem: str) -> ReportError:
        return ReportError(client, field, problem, "rebuild the report from the scores")

    total = int(counts.sum())
    if privacy.hides_size:
        if n_samples is not None:
            raise refuse("n_samples", "n_samples is stated though add-remove privacy hides it")
        return max(1, total)
    if not _whole(n_samples) or not 1 <= n_samples <= MAX_SAMPLES:
        raise refuse("n_samples", f"n_samples is {n_samples!r}, not a number of samples")
    slack = noise_bound(((privacy.noise, counts.size),), IMPLAUSIBLE)
    if abs(total - int(n_samples)) > slack:
        raise refuse(
            "counts", f"counts sum to {total}, which noise cannot make of {n_samples} samples"
        )
    slack = noise_bound(((privacy.noise, 1),), IMPLAUSIBLE / counts.size)
    if counts.min() < -slack or counts.max() > n_samples + slack:
        raise refuse("counts", "a count is beyond what the stated noise can make of it")
    return int(n_samples)


def _check_patients(
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
