"""A sketch with its client's name and the context it was made in: what crosses the wire."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp._util.files import MAX_FILE_BYTES, read_limited, write_atomically
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports.checks import (
    check_client,
    check_counts,
    check_grid,
    check_risk,
    check_score,
    check_set_sizes,
    check_strata,
    check_text,
)
from robfcp.reports.disclosure import Exact, check_privacy, disclosure_of
from robfcp.reports.making import Made
from robfcp.reports.strata import Strata
from robfcp.reports.wire import ReportFields, decode_fields, encode_fields
from robfcp.scores import (
    Risk,
    Score,
)

_COMPARED = ("client", "context", "privacy", "n_samples", "strata")


@dataclass(frozen=True, eq=False)
class Report(Made):
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
    risk
        The loss whose falls are counted in place of scores, if so; n_samples must be stated.
    strata
        Counts by class or by another grouping, where the report keeps them.
    set_sizes
        (H,) how many labels of all samples have their score in each bin, so that the mean size of
        the sets is known for every threshold; never with privacy.

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
    risk: Risk | None = None
    strata: Strata | None = None
    set_sizes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_client(self.client)
        object.__setattr__(self, "client", str(self.client))
        check_grid(self.client, self.grid)
        check_score(self.client, self.score)
        check_privacy(self.client, self.privacy)
        derived = self.counts is None and isinstance(self.strata, Strata)
        if derived:
            object.__setattr__(self, "counts", self.strata.pooled)  # type: ignore[union-attr]
        counts = check_counts(self.client, self.counts, self.grid)
        self.disclosure.check_counts(self.client, counts)
        unit = check_risk(self.client, self.risk)
        object.__setattr__(self, "counts", counts)
        check_strata(self.client, self.strata, self, derived)
        size = self.disclosure.size(
            self.client, counts, self.n_samples, unit=unit, strata=self.strata
        )
        object.__setattr__(self, "n_samples", size)
        object.__setattr__(self, "set_sizes", check_set_sizes(self.client, self.set_sizes, self))
        for field in ("round", "model"):
            check_text(self.client, field, getattr(self, field))
        counts.flags.writeable = False

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
        if not isinstance(other, Report):
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in _COMPARED)
        own, others = (() if one.set_sizes is None else one.set_sizes for one in (self, other))
        same = np.array_equal(own, others) and np.array_equal(self.counts, other.counts)
        return same and all(a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """A line without the counts, which need not be in a log."""
        by = "" if self.strata is None else f", by {self.strata.by}"
        kept = f"{self.n_samples} samples, {self.grid!r}{by}"
        return f"Report({self.client!r}, {kept}{self.disclosure.brief})"

    @property
    def disclosure(self) -> Exact:
        """How the report shows its counts: as they are, or with noise."""
        return disclosure_of(self.privacy)

    @property
    def context(self) -> tuple[Grid, Score | None, str | None, str | None, Risk | None]:
        """What all reports of one round must share."""
        return self.grid, self.score, self.round, self.model, self.risk
