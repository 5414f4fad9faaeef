"""A sketch with its client's name and the context it was made in: what crosses the wire."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import MAX_FILE_BYTES, read_limited, write_atomically
from robfcp.errors import ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.scores import Score
from robfcp.sketches import sketch

MAX_SAMPLES = 2**40  # keeps every sum over a million clients inside int64
MAX_NAME = 200


@dataclass(frozen=True, eq=False)
class Report:
    """One client's counts on the shared grid, checked on construction."""

    client: str
    counts: NDArray[np.int64]
    grid: Grid
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    n_samples: int = None  # type: ignore[assignment]  # the sum of the counts unless stated

    def __post_init__(self) -> None:
        check_client(self.client)
        counts = _check_counts(self.client, self.counts, self.grid)
        total = int(counts.sum())
        if self.n_samples is None:
            object.__setattr__(self, "n_samples", total)
        elif self.n_samples != total:
            raise ReportError(
                self.client,
                "n_samples",
                f"counts sum to {total} but n_samples says {self.n_samples}",
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
    ) -> Report:
        """The report of a client's calibration scores, on the score's own grid if none is given."""
        check_client(client)
        if grid is None:
            grid = Grid.default() if score is None else score.default_grid()
        try:
            counts = sketch(scores, grid)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
        return Report(client, counts, grid, score, round, model)

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


def _check_text(client: str, field: str, value: object) -> None:
    if value is not None and not (
        isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    ):
        raise ReportError(
            client, field, f"{field} is not a short text", f"use at most {MAX_NAME} characters"
        )


def _check_counts(client: str, values: Any, grid: Grid) -> NDArray[np.int64]:
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
    if counts.min() < 0:
        raise refuse(f"counts[{int(counts.argmin())}] is negative")
    if counts.max() > MAX_SAMPLES or counts.sum(dtype=np.float64) > MAX_SAMPLES:
        raise refuse(f"counts exceed {MAX_SAMPLES} samples")
    if not counts.any():
        raise refuse("counts are all zero")
    return counts.astype(np.int64)
