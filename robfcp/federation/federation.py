"""The validated reports of one round, stacked; the faulty ones listed with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain, pairwise, repeat
from operator import add
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import a_few, share
from robfcp.errors import RobfcpError
from robfcp.federation import intake, parquet, spark
from robfcp.federation.counts import (
    Counts,
    DenseCounts,
    Portion,
    Spans,
    SparseCounts,
    StoredCounts,
    Stratified,
    at_places,
    in_fives,
    numbered,
    onto_simplex,
    placed,
    spans,
    summed,
    table,
)
from robfcp.federation.intake import Fault, FilePath, Untrusted
from robfcp.grid import Grid
from robfcp.privacy import Noise, Privacy
from robfcp.report import Report, Strata, agreement, wire
from robfcp.scores import Risk, Score

BLOCK_ENTRIES = 2**20  # of a table: what is worked on at a time
TAKEN = 2**16  # reports made of stored counts at a time

Array = NDArray[np.float64]
S = TypeVar("S")
Add = Callable[[S, S], S]


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients' counts on one grid, with those who failed to send a valid report.

    The counts stand in a table that holds only the bins in use where that is much smaller; the
    methods work on either. `counts` is the whole (K, H) array: large for many clients.

    Attributes
    ----------
    ids
        (K,) the clients' names.
    table
        Their counts, dense or sparse.
    sizes
        (K,) n_k; noisy totals where not `sizes_known`.
    grid
        The bins all reports share.
    score
        The score all reports name, if they do.
    round
        The round all reports name, if they do.
    model
        The model all reports name, if they do.
    faulty
        The reports that were refused, and why.
    missing
        The invited or registered clients that sent nothing.
    repeated
        The clients whose report came twice, the very same; it counts once.
    registered
        Whether sizes were registered beforehand.
    privacy
        An entry for each client if any report is private; empty otherwise.
    sizes_known
        Whether sizes are exact: no report hides its own, or they are registered.
    risk
        The loss all reports hold in place of scores, if they do.
    strata
        The counts by class or group of the reports that keep them.
    set_sizes
        The scores of all labels as counts, of the reports that tell them: one stratum.
    checked
        How each part of the reports was checked, for the record.
    rows
        Of one class or group: the places of its clients in the round.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> federation = robfcp.Federation.from_reports(reports)
    >>> federation.ids, federation.n_samples
    (('a', 'b'), 4)
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
    checked: agreement.Checked = field(default_factory=agreement.Checked)
    risk: Risk | None = None
    strata: Stratified | None = None
    set_sizes: Stratified | None = None
    rows: NDArray[np.intp] | None = None
    repeated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.table, np.ndarray):
            object.__setattr__(self, "table", DenseCounts(self.table))
        if not any(self.privacy):
            object.__setattr__(self, "privacy", ())
        # Arithmetic in the narrow types of a file would overflow.
        object.__setattr__(self, "sizes", np.asarray(self.sizes).astype(np.int64, copy=False))

    def __repr__(self) -> str:
        """A line without the reports."""
        out = len(self.faulty) + len(self.missing)
        also = f", {out} faulty or missing" if out else ""
        return f"Federation({self.n_clients} sites, {self.n_samples} samples{also})"

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K, H) counts; for a large sparse federation prefer the methods."""
        return self.table.dense()

    @property
    def stored(self) -> bool:
        """Whether the counts stay in tables or on a cluster, too many to hold."""
        return isinstance(self.table, StoredCounts)

    @cached_property
    def unit(self) -> int:
        """How many counts one sample has: 1, or the parts of a loss."""
        return 1 if self.risk is None else self.risk.resolution

    @property
    def masses(self) -> NDArray[np.int64]:
        """(K,) what each client's counts add up to without noise: n_k, or its parts."""
        return self.unit * self.sizes

    @cached_property
    def private(self) -> bool:
        """Whether any client's counts hold noise."""
        return bool(self.privacy)

    @property
    def n_private(self) -> int:
        """The number of clients whose counts hold noise."""
        return sum(stated is not None for stated in self.privacy)

    @property
    def noises(self) -> tuple[Noise | None, ...]:
        """(K,) the law of the noise on each of a client's counts; None where there is none."""
        if not self.privacy:
            return (None,) * self.n_clients
        return tuple(None if p is None else p.noise_on(self.unit) for p in self.privacy)

    @cached_property
    def noisy(self) -> bool:
        """Whether noise moves any count: that of a huge budget never does."""
        stated = {one for one in self.privacy if one is not None}
        return not all(one.noise_on(self.unit).never_moves for one in stated)

    @property
    def noise_draws(self) -> int:
        """How many draws of noise one pooled count holds: one for each class reported."""
        return self.strata.n_strata if self.private and self.strata is not None else 1

    @property
    def variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        each = np.array([0.0 if law is None else law.variance for law in self.noises])
        return each * self.noise_draws

    @property
    def exact_strata(self) -> Stratified | None:
        """The counts by class or group where they are exact; None also where noise is in them."""
        return None if self.noisy else self.strata

    @cached_property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.sizes)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports."""
        return int(self.sizes.sum())

    def threshold_at(self, index: int | None) -> float:
        """The threshold at the upper edge of bin `index`; infinite where there is none.

        Also infinite in the last bin where reports are private: their scores beyond the grid, and
        those that are not numbers, count there.

        Parameters
        ----------
        index
            A bin's number from 0, or None.

        Returns
        -------
        float
            An upper edge of the grid, or infinity.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2], [4, 0]]).threshold_at(0)
        0.5
        """
        if index is None or index >= self.grid.n_bins - self.private:
            return float(np.inf)
        return float(self.grid.upper[index])

    def below(self, index: int) -> NDArray[np.int64]:
        """(K,) counts at or below the upper edge of bin `index`.

        Parameters
        ----------
        index
            A bin's number from 0.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).below(1)
        array([3, 4])
        """
        return self.table.below(index)

    def cumulative(self, edges: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
        """(K, H) counts at or below every upper edge, or (K, E) at the chosen, rising ones.

        Parameters
        ----------
        edges
            Rising bin numbers; all bins if None.

        Returns
        -------
        (K, H) or (K, E) array of int
            One row a client.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).cumulative()
        array([[1, 3, 6],
               [4, 4, 4]])
        """
        if edges is None:
            return np.cumsum(self.table.dense(), axis=1)
        ends = np.unique(np.append(edges, self.grid.n_bins - 1)).astype(np.intp)
        return np.cumsum(self.merged(ends), axis=1)[:, : len(edges)]

    def pooled(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(H,) counts of the chosen clients together.

        Parameters
        ----------
        mask
            (K,) who counts; everybody if None.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).pooled()
        array([5, 2, 3])
        """
        return self.table.pooled(mask)

    def merged(self, ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """(K, B) counts of merged bins; `ends` holds the last bin of each, the last one H - 1.

        Parameters
        ----------
        ends
            Rising bin numbers, as `Grid.merge_ends` gives them.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).merged([0, 2])
        array([[1, 5],
               [4, 0]])
        """
        return self.table.merged(np.asarray(ends))

    def subset(self, mask: NDArray[np.bool_]) -> Federation:
        """The chosen clients alone.

        Parameters
        ----------
        mask
            (K,) whom to keep.

        Returns
        -------
        Federation
            In the same order, with the same faulty and missing clients.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).subset([False, True]).ids
        ('client-1',)
        """
        kept = np.asarray(mask, dtype=bool)
        return self if kept.all() else self._chosen(np.flatnonzero(kept))

    def without(self, clients: Iterable[str]) -> Federation:
        """Set the reports of some clients aside, because the operator of the round says so.

        Parameters
        ----------
        clients : iterable of str
            Names of clients that reported. A client whose report was refused or is missing may
            be named too; it stays listed as it is.

        Returns
        -------
        Federation
            The other reports. Those set aside are listed in `faulty`.

        Raises
        ------
        RobfcpError
            Where a name is nobody's, or where no report would be left.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]])
        >>> remaining = federation.without(["client-0"])
        >>> remaining.ids
        ('client-1',)
        >>> remaining.faulty[0].reason
        'client-0: was excluded by the operator; ask the operator why'
        """
        excluded = set(clients)
        known = {*self.ids, *self.missing, *(fault.client for fault in self.faulty)}
        unknown = sorted(excluded - known)
        if unknown:
            raise RobfcpError(
                f"exclude: no client of this round is called {a_few(unknown)}; check the name"
            )

        is_excluded = np.array([client in excluded for client in self.ids], dtype=bool)
        if not is_excluded.any():
            return self
        if is_excluded.all():
            raise RobfcpError("exclude: no report is left; exclude fewer clients")

        rejected = []
        for client in self.names(is_excluded):
            reason = f"{client}: was excluded by the operator; ask the operator why"
            rejected.append(Fault(client, "client", reason))
        return replace(
            self.subset(~is_excluded),
            faulty=(*self.faulty, *rejected),
            repeated=tuple(client for client in self.repeated if client not in excluded),
        )

    def names(self, chosen: NDArray[Any]) -> Sequence[str]:
        """The names of some clients.

        Parameters
        ----------
        chosen
            Their places from 0, or (K,) a mask.
        """
        rows = np.asarray(chosen)
        return at_places(self.ids, np.flatnonzero(rows) if rows.dtype == bool else rows)

    def _chosen(self, rows: NDArray[np.intp] | slice) -> Federation:
        return replace(
            self,
            ids=at_places(self.ids, rows),
            table=self.table.rows(rows),
            sizes=self.sizes[rows],
            strata=None if self.strata is None else self.strata.chosen(rows),
            set_sizes=None if self.set_sizes is None else self.set_sizes.chosen(rows),
            privacy=at_places(self.privacy, rows),
            rows=None,
        )

    def take(self, rows: NDArray[np.intp]) -> Federation:
        """The clients at some rising places, in memory wherever the others are.

        Parameters
        ----------
        rows
            Rising places from 0.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).take([1]).counts
        array([[4, 0, 0]])
        """
        found = self._chosen(np.asarray(rows))
        if not self.stored:
            return found
        split = {name: getattr(found, name) for name in ("strata", "set_sizes")}
        held: Any = {name: one and one.held() for name, one in split.items()}
        return replace(found, table=table(*found.table.entries(), self.grid.n_bins), **held)

    def stratum(self, number: int) -> Federation:
        """One class or group as a federation of the clients that hold it.

        Where reports are private the numbers of samples are protected too: sizes are then noisy,
        and whoever sent such a report holds every class.

        Parameters
        ----------
        number
            The class's place among the names of `strata`.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.4, 0.6], labels=[0, 1, 1], classes=2)
        >>> robfcp.Federation.from_reports([report]).stratum(1).n_samples
        2
        """
        if self.strata is None:
            raise RobfcpError(
                "by: the reports keep no counts by class; make them with --by-class (by_class=True)"
            )
        rows = self.strata.rows
        noisy = np.array([self.privacy[k] is not None for k in rows]) if self.noisy else None
        rows, counts = self.strata.stratum(number, noisy)
        totals = counts.below(self.grid.n_bins - 1) if len(rows) else np.zeros(0, dtype=np.int64)
        privacy = at_places(self.privacy, rows)
        private = any(privacy)
        return replace(
            self,
            ids=at_places(self.ids, rows),
            table=counts,
            sizes=np.maximum(totals, 1) if private else totals,
            strata=None,
            set_sizes=None,
            privacy=privacy,
            sizes_known=self.sizes_known and not private,
            rows=rows,
        )

    @cached_property
    def in_fives(self) -> NDArray[np.bool_]:
        """(K,) whose report is in fives: its samples are as high as its counts say, or lower.

        Reports that hold noise are not.
        """
        shape = self.grid.n_bins, self.unit

        def known(block: Federation) -> NDArray[np.bool_]:
            found = np.zeros(block.n_clients, dtype=bool)
            for rows, counts, _, n_strata in block._tables():
                found[rows] = in_fives(counts, n_strata, *shape)
            return found & block._without_noise

        return self.map(known)

    @property
    def _without_noise(self) -> NDArray[np.bool_]:
        """(K,) whose report is not private."""
        stated = [one is None for one in self.privacy]
        return np.array(stated) if stated else np.ones(self.n_clients, dtype=bool)

    def _tables(self) -> Iterator[tuple[NDArray[np.intp], Counts, int, int]]:
        """Rows, counts, the number of their first class and of their classes; C is no class's."""
        strata, rows = self.strata, np.arange(self.n_clients)
        if strata is None:
            yield rows, self.table, 0, 1
        else:
            rest = np.setdiff1d(rows, strata.rows, assume_unique=True)
            yield rest, self.table.rows(rest), strata.n_strata, 1
            yield strata.rows, strata.table, 0, strata.n_strata

    def spans(self) -> tuple[Spans, NDArray[np.bool_]]:
        """Where all counts may lie, and who is in fives; C is the class of reports without any."""
        known, found = np.zeros(self.n_clients, dtype=bool), []
        shape, exact = (self.grid.n_bins, self.unit), self._without_noise
        for rows, counts, number, _ in self._tables():
            part, known[rows] = spans(counts, *shape, exact[rows])
            found.append(part._replace(rows=rows[part.rows], strata=part.strata + number))
        return Spans(*map(np.concatenate, zip(*found, strict=True))), known

    def lowered(self) -> Federation:
        """The same with the samples of reports in fives as low as they may lie."""
        (rows, classes, low, _, values), known = self.spans()
        if not known.any():
            return self
        n_bins, strata = self.grid.n_bins, self.strata
        pooled = summed(rows, low, values, self.n_clients, n_bins)
        if strata is not None:
            own = classes < strata.n_strata
            cells, places = (classes * n_bins + low)[own], np.searchsorted(strata.rows, rows[own])
            width = strata.n_strata * n_bins
            by_class = summed(places, cells, values[own], len(strata.rows), width)
            strata = replace(strata, table=by_class)
        return replace(self, table=pooled, strata=strata)

    def __iter__(self) -> Iterator[Report]:
        """The reports the federation was made of."""
        for part in self._in_memory():
            yield from map(part._report, range(part.n_clients))

    def _in_memory(self) -> Iterable[Federation]:
        """Itself, or so many stored clients at a time as fit."""
        ends = [*range(0, self.n_clients, TAKEN), self.n_clients]
        return (self.take(np.arange(*part)) for part in pairwise(ends)) if self.stored else [self]

    def _report(self, k: int) -> Report:
        context, by = (self.grid, self.score, self.round, self.model), self.strata
        privacy = self.privacy[k] if self.privacy else None
        size: Any = None if privacy is not None and privacy.hides_size else int(self.sizes[k])
        own, told = None, None if self.set_sizes is None else self.set_sizes.row(k)
        if by is not None and (row := by.row(k)) is not None:
            cells = np.flatnonzero(row) if privacy is None else np.arange(len(row))
            own = Strata(by.by, by.names, cells, row[cells], by.n_bins)
        held: Any = {"privacy": privacy, "risk": self.risk, "strata": own, "set_sizes": told}
        return Report(self.ids[k], self.table.row(k), *context, n_samples=size, **held)

    def to_json(self) -> Iterator[bytes]:
        """The reports as JSON, a tenth of the time of one by one; private ones are one by one."""
        if self.stored:
            yield from chain.from_iterable(part.to_json() for part in self._in_memory())
            return
        grid = msgspec.Raw(msgspec.json.encode(wire.wire_grid(self.grid)))
        score, risk = (
            UNSET if one is None else msgspec.Raw(msgspec.json.encode(one))
            for one in (wire.wire_score(self.score), self.risk)
        )
        by, everybody = self.strata, np.arange(self.n_clients)
        names = msgspec.Raw(msgspec.json.encode(by and by.names))
        cells, labels = (
            repeat(UNSET)
            if one is None
            else intake.written_counts(one.table, one.rows, self.n_clients)
            for one in (by, self.set_sizes)
        )
        bins = intake.written_counts(self.table, everybody, self.n_clients)
        for k, (counts, split, told) in enumerate(zip(bins, cells, labels, strict=False)):
            if self.privacy and self.privacy[k] is not None:
                yield self._report(k).to_json()
                continue
            if by is not None and split is not UNSET:
                steps = np.diff(split.bins, prepend=0).tolist()
                counts, split = UNSET, wire.WireStrata(by.by, names, steps, split.counts)
            said = self.ids[k], grid, int(self.sizes[k]), counts, score, self.round, self.model
            yield msgspec.json.encode(wire.FastReport(1, *said, risk, split, told))

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

        Parameters
        ----------
        counts
            (K, H) counts; with `privacy` they hold its noise and may be negative.
        grid
            The bins; H uniform ones on [0, 1] if None.
        ids
            (K,) distinct names; client-00, client-01, ... if None.
        score
            What the scores are.
        privacy
            The noise the counts hold, one for all or one a client; none if None.
        sizes
            (K,) the n_k beside noisy counts; hidden where they are not given.

        Returns
        -------
        Federation
            Nothing about it was checked but its shape.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).sizes
        array([6, 4])
        """
        array = np.asarray(counts)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise RobfcpError("counts: need a (clients, bins) array of integers")
        stated = (privacy,) * len(array) if isinstance(privacy, Privacy) else tuple(privacy or ())
        private = any(stated)
        if private and len(stated) != len(array):
            raise RobfcpError("privacy: need one entry a site")
        if not private and array.min(initial=0) < 0:
            raise RobfcpError("counts: a count is negative; only privacy's noise makes such")
        if not private and not array.any(axis=1).all():
            raise RobfcpError("counts: a site has no samples; leave it out")
        grid = grid or Grid.uniform(array.shape[1])
        if array.shape[1] != grid.n_bins:
            raise RobfcpError(f"counts: {array.shape[1]} bins do not fit the grid's {grid.n_bins}")
        names = tuple(ids) if ids is not None else numbered(len(array), len(str(len(array) - 1)))
        if len(names) != len(array) or len(set(names)) != len(names):
            raise RobfcpError("ids: need one distinct name a site")
        array = array.astype(np.int64)
        totals = array.sum(axis=1)
        if private and sizes is not None:
            totals = np.asarray(sizes).astype(np.int64)
        elif private:
            if not any(p is not None and p.hides_size for p in stated):
                raise RobfcpError("sizes: private counts need the true sizes beside them")
            totals = np.maximum(totals, 1)
        known = not private or sizes is not None
        held = DenseCounts(array)
        return Federation(names, held, totals, grid, score, privacy=stated, sizes_known=known)

    @staticmethod
    def read(paths: Any, **agreed: Any) -> Federation:
        """The federation in report files; unreadable ones count as faulty, under their file name.

        Parameters
        ----------
        paths
            Report files, signed or not; tables of reports in Parquet, whose counts stay there if
            they are many; folders, which stand for the .json files in them and the tables in them
            and below; or a Spark frame of such tables: what is computed runs there.
        agreed
            Who may report and what was agreed, as `from_reports` takes it: `keys`, `sizes`,
            `quorum`, `round`, `model`, `score`, `grid`, `max_share`, `privacy`, `revoked`,
            `terms`, `invited`.

        Returns
        -------
        Federation
            The valid reports; the others are listed as faulty, silent registered sites as missing.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.4]).save("a.json")
        >>> robfcp.Federation.read(["a.json", "nobody.json"]).faulty[0].reason
        'nobody.json: no such file; check the path'
        """
        read: Any = spark.read_frame if hasattr(paths, "mapInArrow") else parquet.read_files
        return Federation.from_reports(read(paths), **agreed)

    @staticmethod
    def from_reports(
        reports: Iterable[Untrusted],
        *,
        keys: Mapping[str, str] | FilePath | None = None,
        sizes: Mapping[str, int] | FilePath | None = None,
        quorum: int | float | None = None,
        round: str | None = None,
        model: str | None = None,
        score: Score | None = None,
        grid: Grid | None = None,
        max_share: float | None = None,
        privacy: Privacy | None = None,
        revoked: FilePath | None = None,
        terms: agreement.Terms | FilePath | None = None,
        invited: Iterable[str] = (),
        faults: Iterable[Fault] = (),
        signatures: str | None = None,
    ) -> Federation:
        """The valid reports in the order of their names; the rest listed as faulty or missing.

        Reports are taken one by one and only the bins in use are kept: pass an iterator where there
        are many.

        Parameters
        ----------
        reports
            `Report` objects, their JSON, or what JSON decodes to, from anybody.
        keys
            By which key each client's report must be signed: a mapping, or the path of a registry.
            Needs `round`. Without keys a signature must only be by the key its report names.
        sizes
            Who may report and with how many samples, registered beforehand: a mapping, or the path
            of a registry.
        quorum
            The least number of valid reports, or their least share of those awaited: all that came,
            the `invited` and the registered.
        round
            The expected round; the majority's if None.
        model
            The expected model; the majority's if None.
        score
            The expected score; the majority's if None.
        grid
            The expected grid, others are refused before they are built; the majority's if None.
        max_share
            Sites that claim a larger share of all samples are refused.
        privacy
            The agreed privacy; if None no report may claim more noise than most reports hold.
        revoked
            A file of public keys that count no more, one a line.
        terms
            What was agreed for the round, or the path of its file: round, model, score, grid and
            privacy need not be stated besides.
        invited
            Who should report; the silent ones are listed as missing.
        faults
            Faults that were found before.
        signatures
            How an engine checked identities, for the record.

        Returns
        -------
        Federation
            The valid reports of one round.

        Raises
        ------
        QuorumError
            Where too few reports are valid.
        RobfcpError
            Where there is no majority, or the registry itself is wrong.

        Examples
        --------
        >>> import robfcp
        >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
        >>> federation = robfcp.Federation.from_reports([*reports, "{}"], invited=["c"])
        >>> federation.ids, len(federation.faulty), federation.missing
        (('a', 'b'), 1, ('c',))
        """
        if isinstance(reports, (Report, bytes, str, Mapping)) or not isinstance(reports, Iterable):
            raise RobfcpError("reports: pass a list of them, also where there is only one")
        stated: dict[str, Any] = {"score": score, "grid": grid, "round": round, "model": model}
        stated["privacy"] = privacy
        if terms is not None:
            own = terms if isinstance(terms, agreement.Terms) else agreement.read_terms(terms)
            for name, wanted in own.agreed.items():
                value = stated[name]
                if None not in (wanted, value) and value != wanted:
                    raise RobfcpError(f"{name}: {value} is not what was agreed ({wanted}); drop it")
                stated[name] = value if wanted is None else wanted
        if isinstance(sizes, (str, os.PathLike)):
            sizes = agreement.read_sizes(sizes)
        if keys is None and revoked is not None:
            raise RobfcpError("--revoked: goes with --keys, whose registry it is about; pass both")
        if keys is not None:
            if stated["round"] is None:
                raise RobfcpError("--keys: needs --round, or an old report could be used again")
            public = keys if isinstance(keys, Mapping) else agreement.read_keys(keys, revoked)
            reports, forged = intake.verified(reports, public, stated["round"])
            faults, invited = [*faults, *forged], [*invited, *public]
            signatures = signatures or "by registered keys"
        privacy = stated.pop("privacy")
        known: Any = {"sizes": sizes, "privacy": privacy, "quorum": quorum}
        fields = intake.take_in(reports, {**stated, "risk": None}, faults, invited, **known)
        found, registered = fields.pop("signatures"), "claimed" if sizes is None else "registered"
        as_stated = {name: "as stated" for name, value in stated.items() if value is not None}
        checked = agreement.Checked(signatures or found, registered, **as_stated)
        federation = Federation(**fields, checked=checked)
        return federation if max_share is None else federation._capped(max_share)

    def save(self, path: FilePath) -> None:
        """Write the valid reports as one table in Parquet, which `read` and anybody else reads.

        Parameters
        ----------
        path
            Where: "round.parquet".

        Examples
        --------
        >>> import robfcp
        >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
        >>> robfcp.Federation.from_reports(reports).save("round.parquet")
        >>> robfcp.Federation.read("round.parquet").ids
        ('a', 'b')
        """
        parquet.write(self, path)

    def projected(self) -> Federation:
        """With noisy counts projected onto histograms of n_k samples, for comparing clients.

        Reports without noise stay as they are. Counts are no whole numbers then: never for
        guarantees, which rest on the counts as they were sent.
        """
        if not self.noisy:
            return self
        noisy = self.variances > 0
        counts = self.counts.astype(np.float64)
        counts[noisy] = onto_simplex(counts[noisy], self.masses[noisy].astype(np.float64))
        return replace(self, table=DenseCounts(counts), privacy=())

    def rounded(self) -> Federation:
        """The projected counts rounded to whole numbers, for showing them."""
        if not self.noisy:
            return self
        counts = np.rint(self.projected().counts).astype(np.int64)
        counts[~counts.any(axis=1), 0] = 1
        return replace(self, table=DenseCounts(counts), sizes=counts.sum(axis=1), privacy=())

    def comparable(self) -> Federation:
        """With one count a sample, for comparing clients; itself where it has that.

        Losses are counted in parts: parts below each edge are rounded to samples.
        """
        if self.unit == 1:
            return self
        samples = np.rint(self.cumulative() / self.unit).astype(np.int64)
        counts = np.diff(np.maximum.accumulate(np.maximum(samples, 0), axis=1), axis=1, prepend=0)
        counts[:, -1] += np.maximum(self.sizes - counts.sum(axis=1), 0)
        sizes = counts.sum(axis=1)
        return replace(self, table=DenseCounts(counts), sizes=sizes, risk=None, privacy=())

    def _capped(self, max_share: float) -> Federation:
        """Without the clients that claim more than the allowed share of all samples."""
        limit = share("max_share", max_share, "give 0.2, say", one=True)
        shares = self.sizes / self.n_samples
        over = shares > limit
        if over.all():
            raise RobfcpError(f"max_share: every site holds more than {limit:g}; raise it")
        faults = tuple(
            Fault(
                self.ids[k],
                "n_samples",
                f"{self.ids[k]}: claims {shares[k]:.1%} of all samples but the cap is "
                f"{limit:.1%}; check its size or raise max_share",
            )
            for k in np.flatnonzero(over)
        )
        return replace(self.subset(~over), faulty=self.faulty + faults) if faults else self

    def blocks(self) -> Iterator[Federation]:
        """The clients in order, some at a time, as federations of their own; one where few."""
        parts = list(cast(SparseCounts, self.table).parts(BLOCK_ENTRIES))
        return iter([self]) if len(parts) < 2 else map(self._chosen, parts)

    def fold(self, summary: Callable[..., S], *columns: NDArray[Any], add: Add[S] = add) -> S:
        """What is summed over all clients, block by block.

        Parameters
        ----------
        summary
            Takes a block, a federation of some clients, and its part of every column; returns what
            can be added.
        columns
            Arrays with a row a client.
        add
            Adds two summaries, in any order; + if not given.

        Returns
        -------
        object
            The sum of all summaries: the same for any number of blocks.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]])
        >>> federation.fold(lambda block: block.pooled())
        array([5, 2, 3])
        """
        return reduce(add, (found for _, found in self._passed(summary, columns)))

    def map(self, numbers: Callable[..., NDArray[Any]], *columns: NDArray[Any]) -> NDArray[Any]:
        """A few numbers of every client, block by block.

        Parameters
        ----------
        numbers
            Takes a block, a federation of some clients, and its part of every column; returns an
            array with a row for each of them.
        columns
            Arrays with a row a client.

        Returns
        -------
        (K, ...) array
            The rows of all blocks: the same for any number of them.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]])
        >>> federation.map(lambda block: block.below(1))
        array([3, 4])
        """
        return placed(self._passed(numbers, columns), self.n_clients)

    def _passed(
        self, work: Callable[..., S], columns: tuple[NDArray[Any], ...]
    ) -> Iterator[tuple[NDArray[np.intp] | slice, S]]:
        """What `work` makes of every block, with the places of its clients."""
        if isinstance(counts := self.table, StoredCounts):
            known = copy(self)
            object.__setattr__(known, "ids", ())  # names stay here

            def there(held: Portion) -> tuple[NDArray[np.intp] | slice, S]:
                places, block = known._block(held)
                return places, work(block, *(column[places] for column in columns))

            yield from counts.source.each(there)
            return
        first = 0
        for block in self.blocks():
            rows = slice(first, first := first + block.n_clients)
            yield rows, work(block, *(column[rows] for column in columns))

    def _block(self, held: Portion) -> tuple[NDArray[np.intp], Federation]:
        """Some stored clients as a federation without names, and their places."""
        places, rows, counts = cast(StoredCounts, self.table).own(held)
        split: dict[str, Any] = {}
        for name in ("strata", "set_sizes"):
            if (kept := getattr(self, name)) is not None:
                _, own, cells = kept.table.own(held)
                split[name] = replace(kept, table=cells, rows=np.searchsorted(rows, own))
        split["sizes"], split["privacy"] = self.sizes[places], at_places(self.privacy, places)
        return places, replace(self, table=counts, **split)
