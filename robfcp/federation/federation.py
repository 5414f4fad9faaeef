"""The validated reports of one round, stacked; the faulty ones listed with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import RobfcpError
from robfcp.federation.checked import Checked
from robfcp.federation.counts import Counts, DenseCounts, Entries
from robfcp.federation.faults import Fault, Untrusted
from robfcp.federation.intake import take_in
from robfcp.federation.marks import marks_of, size_of
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import Report
from robfcp.scores import Score


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients' counts on one grid, with those who failed to send a valid report.

    The counts stand in a table that holds only the bins in use where that is much smaller; the
    methods work on either. `counts` is the whole (K, H) array: large for many clients.
    `privacy` holds an entry for each client if any report is private, and is empty otherwise.
    Private counts hold noise; `sizes` are then noisy totals unless `sizes_known`.
    """

    ids: tuple[str, ...]
    table: Counts
    sizes: NDArray[np.int64]
    grid: Grid
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    faulty: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    registered: bool = False
    privacy: tuple[Privacy | None, ...] = ()
    sizes_known: bool = True
    checked: Checked = Checked()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if isinstance(self.table, np.ndarray):
            object.__setattr__(self, "table", DenseCounts(self.table))

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K, H) counts; for a large sparse federation prefer the methods."""
        return self.table.dense()

    @property
    def private(self) -> bool:
        """Whether any client's counts hold noise."""
        return bool(self.privacy)

    @property
    def n_private(self) -> int:
        """The number of clients whose counts hold noise."""
        return sum(mark is not None for mark in self.privacy)

    @property
    def variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        if not self.privacy:
            return np.zeros(self.n_clients)
        return np.array([0.0 if p is None else p.noise.variance for p in self.privacy])

    @property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.ids)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports."""
        return int(self.sizes.sum())

    def below(self, index: int) -> NDArray[np.int64]:
        """(K,) counts at or below the upper edge of bin `index`."""
        return self.table.below(index)

    def cumulative(self, edges: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
        """(K, H) counts at or below every upper edge, or (K, E) at the chosen, rising ones."""
        if edges is None:
            return np.cumsum(self.table.dense(), axis=1)
        ends = np.unique(np.append(edges, self.grid.n_bins - 1)).astype(np.intp)
        return np.cumsum(self.merged(ends), axis=1)[:, : len(edges)]

    def pooled(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(H,) counts of the chosen clients together."""
        return self.table.pooled(mask)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums over the clients of weight times counts."""
        return self.table.weighted(weights)

    def merged(self, ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """(K, B) counts of merged bins; `ends` holds the last bin of each, the last one H - 1."""
        return self.table.merged(np.asarray(ends))

    def entries(self) -> Entries:
        """(starts, bins, values): row k holds values[starts[k]:starts[k + 1]] in those bins."""
        return self.table.entries()

    def subset(self, mask: NDArray[np.bool_]) -> Federation:
        """The chosen clients alone."""
        chosen = np.flatnonzero(mask)
        ids = tuple(self.ids[k] for k in chosen)
        part = replace(self, ids=ids, table=self.table.rows(chosen), sizes=self.sizes[chosen])
        if not self.privacy:
            return part
        return replace(part, privacy=marks_of(self.privacy[k] for k in chosen))

    def __iter__(self) -> Iterator[Report]:
        """The reports the federation was made of."""
        context = self.grid, self.score, self.round, self.model
        for k, client in enumerate(self.ids):
            mark = self.privacy[k] if self.privacy else None
            stated: Any = None if mark is None or mark.hides_size else int(self.sizes[k])
            yield Report(client, self.table.row(k), *context, n_samples=stated, privacy=mark)

    @staticmethod
    def from_counts(
        counts: ArrayLike,
        grid: Grid | None = None,
        ids: Sequence[str] | None = None,
        score: Score | None = None,
        *,
        privacy: Privacy | Sequence[Privacy | None] | None = None,
        sizes: ArrayLike | None = None,
    ) -> Federation:
        """A federation of trusted in-process counts (K, H), for simulations; order is kept.

        Counts that hold the noise of `privacy` (one for all, or one a client) may be negative;
        `sizes` are then the n_k, hidden where they are not given.
        """
        array = np.asarray(counts)
        if privacy is not None:
            return _private_counts(array, grid, ids, score, privacy, sizes)
        if array.ndim != 2 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
            raise RobfcpError("counts: need a (clients, bins) array of non-negative integers")
        grid = Grid.uniform(array.shape[1]) if grid is None else grid
        if array.shape[1] != grid.n_bins:
            raise RobfcpError(f"counts: {array.shape[1]} bins do not fit the grid's {grid.n_bins}")
        if not array.any(axis=1).all():
            raise RobfcpError("counts: a client has no samples; leave it out")
        width = len(str(max(0, len(array) - 1)))
        names = tuple(ids) if ids is not None else numbered(len(array), width)
        if len(names) != len(array) or len(set(names)) != len(names):
            raise RobfcpError("ids: need one distinct name a client")
        array = array.astype(np.int64)
        return Federation(names, DenseCounts(array), array.sum(axis=1), grid, score)

    @staticmethod
    def from_reports(
        reports: Iterable[Untrusted],
        *,
        sizes: Mapping[str, int] | None = None,
        quorum: int | float | None = None,
        grid: Grid | None = None,
        score: Score | None = None,
        round: str | None = None,
        model: str | None = None,
        faults: Iterable[Fault] = (),
        invited: Iterable[str] = (),
        signatures: str = "not checked",
    ) -> Federation:
        """The valid reports in the order of their names; the rest listed as faulty or missing.

        `sizes` registers who may report and with how many samples. Grid, score, round and model
        are the expected ones if given, else those of the majority. `quorum` is the least number
        of valid reports, or their least share of those awaited: all that came, the `invited` and
        the registered. `faults` were found before. `signatures` is how identities were checked,
        for the record. Reports are taken one by one and only the bins in use are kept: pass an
        iterator.
        """
        expected = {"grid": grid, "score": score, "round": round, "model": model}
        intake = take_in(reports, expected, sizes, quorum, faults, invited)
        first, headers = intake.headers[0], intake.headers
        return Federation(
            ids=tuple(header.client for header in headers),
            table=intake.counts,
            sizes=np.array([size_of(header, sizes) for header in headers], dtype=np.int64),
            grid=first.grid,
            score=first.score,
            round=first.round,
            model=first.model,
            faulty=intake.faulty,
            missing=intake.missing,
            registered=sizes is not None,
            privacy=marks_of(header.privacy for header in headers),
            sizes_known=intake.sizes_known,
            checked=Checked.against(expected, sizes is not None, signatures),
        )


def numbered(n_clients: int, width: int) -> tuple[str, ...]:
    """client-00, client-01, ... padded so that names sort as numbers."""
    return tuple(f"client-{k:0{width}d}" for k in range(n_clients))


def _private_counts(
    array: NDArray[Any],
    grid: Grid | None,
    ids: Sequence[str] | None,
    score: Score | None,
    privacy: Privacy | Sequence[Privacy | None],
    sizes: ArrayLike | None,
) -> Federation:
    """`from_counts` for noisy counts: names and grid as there, any whole numbers."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise RobfcpError("counts: need a (clients, bins) array of integers")
    plain = Federation.from_counts(np.ones_like(array), grid, ids, score)
    marks = (privacy,) * len(array) if isinstance(privacy, Privacy) else tuple(privacy)
    if len(marks) != len(array):
        raise RobfcpError("privacy: need one entry a client")
    known = sizes is not None or not any(mark and mark.hides_size for mark in marks)
    if known and sizes is None:
        raise RobfcpError("sizes: private counts need the true sizes beside them")
    totals = np.maximum(array.sum(axis=1), 1) if sizes is None else np.asarray(sizes)
    return replace(
        plain,
        table=DenseCounts(array.astype(np.int64)),
        sizes=totals.astype(np.int64),
        privacy=marks_of(marks),
        sizes_known=known,
    )
