"""A sketch with its client's name and the context it was made in: what crosses the wire."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.files import MAX_FILE_BYTES, read_limited, write_atomically
from robfcp.errors import ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Privacy, add_noise
from robfcp.reports.checks import (
    check_client,
    check_counts,
    check_grid,
    check_noisy,
    check_patients,
    check_privacy,
    check_score,
    check_text,
    is_whole,
)
from robfcp.reports.sketches import private_sketch, sketch
from robfcp.reports.wire import ReportFields, decode_fields, encode_fields
from robfcp.scores import Score


@dataclass(frozen=True, eq=False)
class Report:
    """One client's counts on the shared grid, checked on construction.

    With `privacy` the counts hold noise: they may be negative, and n_samples must be stated, unless
    it is protected too; it is then the noisy total, at least 1.

    Parameters
    ----------
    client
        The client's name.
    counts
        (H,) how many calibration scores fall into each bin of the grid.
    grid
        The bins, the same for all clients of a round.
    score
        What the scores are; with it a calibration can predict by itself.
    round
        The name of the round; the server may refuse others.
    model
        The name or digest of the model; the server may refuse others.
    n_samples
        n_k; the sum of the counts unless stated.
    privacy
        What noise the counts hold; none if None.

    Raises
    ------
    ReportError
        Where something does not fit; it names the client, the field and the remedy.

    Examples
    --------
    >>> import robfcp
    >>> report = robfcp.Report("a", [3, 1], robfcp.Grid.uniform(2), score=robfcp.LAC())
    >>> report.n_samples
    4
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
        check_grid(self.client, self.grid)
        check_score(self.client, self.score)
        check_privacy(self.client, self.privacy)
        counts = check_counts(self.client, self.counts, self.grid, self.privacy)
        total = int(counts.sum())
        if self.privacy is not None:
            size = check_noisy(self.client, counts, self.n_samples, self.privacy)
            object.__setattr__(self, "n_samples", size)
        elif self.n_samples is None or (is_whole(self.n_samples) and self.n_samples == total):
            object.__setattr__(self, "n_samples", total)
        else:
            raise ReportError(
                self.client,
                "n_samples",
                f"counts sum to {total} but n_samples says {self.n_samples!r}",
                "rebuild the report",
            )
        for field in ("round", "model"):
            check_text(self.client, field, getattr(self, field))
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

        Parameters
        ----------
        client
            The client's name.
        scores
            (n,) nonconformity scores of its calibration samples. With `privacy` those outside the
            grid count in its end bins and NaN in the top one: nothing shows by a refusal.
        grid
            The bins all clients share; that of the score, or the default grid, if None.
        score
            What the scores are; with it a calibration can predict by itself.
        round
            The name of the round; the server may refuse others.
        model
            The name or digest of the model; the server may refuse others.
        privacy
            Adds noise to the counts (extra: privacy); the grid should then be a coarse one fixed
            before the round, see `robfcp.recommend_grid`.
        patients
            (n,) whose sample each score is; refused if somebody has more than privacy states.

        Returns
        -------
        Report
            Counts only: the scores themselves stay with the client.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9], robfcp.Grid.uniform(4))
        >>> report.counts
        array([2, 0, 0, 1])
        """
        check_client(client)
        check_score(client, score)
        if grid is None:
            grid = Grid.default() if score is None else score.default_grid()
        check_grid(client, grid)
        try:
            counts = sketch(scores, grid) if privacy is None else private_sketch(scores, grid)
        except RobfcpError as error:
            raise RobfcpError(f"{client}: {error}") from error
        if privacy is None:
            if patients is not None:
                raise RobfcpError(f"{client}: patients: only privacy protects them; pass privacy=")
            return Report(client, counts, grid, score, round, model)
        check_patients(client, len(np.asarray(scores)), patients, privacy)
        size = None if privacy.hides_size else int(counts.sum())
        noisy = add_noise(check_counts(client, counts, grid, privacy), privacy)
        return Report(
            client=client,
            counts=noisy,
            grid=grid,
            score=score,
            round=round,
            model=model,
            n_samples=size,  # type: ignore[arg-type]
            privacy=privacy,
        )

    def to_json(self) -> bytes:
        """The report as one JSON object.

        Returns
        -------
        bytes
            What `from_json` reads.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9])
        >>> robfcp.Report.from_json(report.to_json()) == report
        True
        """
        return encode_fields(
            ReportFields(**{name: getattr(self, name) for name in ReportFields._fields})
        )

    @staticmethod
    def from_json(data: bytes | str, source: str = "report", grid: Grid | None = None) -> Report:
        """A report from untrusted JSON; `source` names it in errors until its client is known.

        Parameters
        ----------
        data
            JSON from anybody.
        source
            How errors name the report while its client is not known.
        grid
            The round's grid where it is known; a report on another one is refused before that one
            is built.

        Returns
        -------
        Report
            Checked.

        Raises
        ------
        ReportError
            Where it is no valid report; it names the client, the field and the remedy.

        Examples
        --------
        >>> import robfcp
        >>> data = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).to_json()
        >>> robfcp.Report.from_json(data).n_samples
        3
        """
        return Report(**decode_fields(data, source, grid)._asdict())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON whole or not at all.

        Parameters
        ----------
        path
            The file; an old one is replaced.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).save("a.json")
        """
        write_atomically(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> Report:
        """Read and validate one report file.

        Parameters
        ----------
        path
            A file that `save` wrote.
        limit
            Files of more bytes are refused.

        Returns
        -------
        Report
            Checked.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).save("a.json")
        >>> robfcp.Report.load("a.json").client
        'a'
        """
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
