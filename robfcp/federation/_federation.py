"""The validated reports of one round, stacked; the faulty ones listed with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import add
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import abbreviate, check_fraction
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import _intake
from robfcp.federation._blocks import CountBlock
from robfcp.federation._encoding import encode_reports
from robfcp.federation._inbox import RejectedReport, UntrustedReport
from robfcp.federation._intake import FilePath
from robfcp.federation._spans import CountSpans, count_spans, detect_coarsened
from robfcp.federation._stored import StoredCountTable, scatter
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import (
    CountTable,
    SparseTable,
    default_client_names,
    project_to_simplex,
)
from robfcp.privacy import Noise, Privacy
from robfcp.reports import Report, StratifiedCounts
from robfcp.reports import terms as round_terms
from robfcp.scores import Risk, Score

BLOCK_ENTRIES = 2**20  # of a table: what is worked on at a time
REPORTS_PER_READ = 2**16  # reports made of stored counts at a time

Array = NDArray[np.float64]
S = TypeVar("S")
T = TypeVar("T")
Add = Callable[[S, S], S]


def select_values(values: tuple[T, ...], rows: NDArray[np.intp] | slice) -> tuple[T, ...]:
    """The values at these places; none where there are none at all."""
    if isinstance(rows, slice):
        return values[rows]
    if hasattr(values, "take"):
        return cast("tuple[T, ...]", values.take(rows))
    return tuple(map(values.__getitem__, rows.tolist())) if values else ()


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients' counts on one grid, with those who failed to send a valid report.

    The counts stand in a table that holds only the bins in use where that is much smaller; the
    methods work on either. `counts` is the whole (K, H) array: large for many clients.

    Attributes
    ----------
    clients
        (K,) the clients' names.
    table
        Their counts, dense or sparse.
    sample_sizes
        (K,) n_k; noisy totals where not `sizes_known`.
    binning
        The bins all reports share.
    score
        The score all reports name, if they do.
    round
        The round all reports name, if they do.
    model
        The model all reports name, if they do.
    rejected_reports
        The reports that were refused, and why.
    missing_clients
        The invited or registered clients that sent nothing.
    resubmitted_clients
        The clients whose report came twice, the very same; it counts once.
    sizes_registered
        Whether sizes were registered beforehand.
    privacy
        An entry for each client if any report is private; empty otherwise.
    sizes_known
        Whether sizes are exact: no report hides its own, or they are registered.
    risk
        The loss all reports hold in place of scores, if they do.
    strata
        The counts by class or group of the reports that keep them.
    all_label_counts
        The scores of all labels as counts, of the reports that tell them: one stratum.
    verification
        How each part of the reports was checked, for the record.
    rows
        Of one class or group: the places of its clients in the round.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> federation = robfcp.Federation.from_reports(reports)
    >>> federation.clients, federation.n_samples
    (('a', 'b'), 4)
    """

    clients: tuple[str, ...]
    table: CountTable
    sample_sizes: NDArray[np.int64]
    binning: Binning
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    rejected_reports: tuple[RejectedReport, ...] = ()
    missing_clients: tuple[str, ...] = ()
    sizes_registered: bool = False
    privacy: tuple[Privacy | None, ...] = ()
    sizes_known: bool = True
    verification: round_terms.Verification = field(default_factory=round_terms.Verification)
    risk: Risk | None = None
    strata: StratifiedTable | None = None
    all_label_counts: StratifiedTable | None = None
    rows: NDArray[np.intp] | None = None
    resubmitted_clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(self.privacy):
            object.__setattr__(self, "privacy", ())
        # Arithmetic in the narrow types of a file would overflow.
        object.__setattr__(
            self, "sample_sizes", np.asarray(self.sample_sizes).astype(np.int64, copy=False)
        )

    def __repr__(self) -> str:
        """A line without the reports."""
        out = len(self.rejected_reports) + len(self.missing_clients)
        also = f", {out} faulty or missing" if out else ""
        return f"Federation({self.n_clients} sites, {self.n_samples} samples{also})"

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K, H) counts; for a large sparse federation prefer the methods."""
        return self.table.dense()

    @property
    def is_out_of_core(self) -> bool:
        """Whether the counts stay in tables or on a cluster, too many to hold."""
        return isinstance(self.table, StoredCountTable)

    @cached_property
    def counts_per_sample(self) -> int:
        """How many counts one sample has: 1, or the parts of a loss."""
        return 1 if self.risk is None else self.risk.resolution

    @property
    def total_counts(self) -> NDArray[np.int64]:
        """(K,) what each client's counts add up to without noise: n_k, or its parts."""
        return self.counts_per_sample * self.sample_sizes

    @cached_property
    def has_private_reports(self) -> bool:
        """Whether any client's counts hold noise."""
        return bool(self.privacy)

    @property
    def n_private(self) -> int:
        """The number of clients whose counts hold noise."""
        return sum(stated is not None for stated in self.privacy)

    @property
    def noise_models(self) -> tuple[Noise | None, ...]:
        """(K,) the law of the noise on each of a client's counts; None where there is none."""
        if not self.privacy:
            return (None,) * self.n_clients
        return tuple(
            None if p is None else p.noise_for_counts(self.counts_per_sample) for p in self.privacy
        )

    @cached_property
    def has_noise(self) -> bool:
        """Whether noise moves any count: that of a huge budget never does."""
        stated = {one for one in self.privacy if one is not None}
        return not all(one.noise_for_counts(self.counts_per_sample).is_negligible for one in stated)

    @property
    def noise_draws(self) -> int:
        """How many draws of noise one pooled count holds: one for each class reported."""
        return self.strata.n_strata if self.has_private_reports and self.strata is not None else 1

    @property
    def noise_variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        each = np.array([0.0 if law is None else law.variance for law in self.noise_models])
        return each * self.noise_draws

    @property
    def noise_free_strata(self) -> StratifiedTable | None:
        """The counts by class or group where they are exact; None also where noise is in them."""
        return None if self.has_noise else self.strata

    @cached_property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.sample_sizes)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports."""
        return int(self.sample_sizes.sum())

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
        if index is None or index >= self.binning.n_bins - self.has_private_reports:
            return float(np.inf)
        return float(self.binning.upper_edges[index])

    def cumulative_count(self, index: int) -> NDArray[np.int64]:
        """(K,) counts at or below the upper edge of bin `index`.

        Parameters
        ----------
        index
            A bin's number from 0.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).cumulative_count(1)
        array([3, 4])
        """
        return self.table.cumulative_count(index)

    def cumulative_counts(self, edges: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
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
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).cumulative_counts()
        array([[1, 3, 6],
               [4, 4, 4]])
        """
        if edges is None:
            return np.cumsum(self.table.dense(), axis=1)
        ends = np.unique(np.append(edges, self.binning.n_bins - 1)).astype(np.intp)
        return np.cumsum(self.merge_bins(ends), axis=1)[:, : len(edges)]

    def pooled_counts(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(H,) counts of the chosen clients together.

        Parameters
        ----------
        mask
            (K,) who counts; everybody if None.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).pooled_counts()
        array([5, 2, 3])
        """
        return self.table.pooled_counts(mask)

    def merge_bins(self, ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """(K, B) counts of merged bins; `ends` holds the last bin of each, the last one H - 1.

        Parameters
        ----------
        ends
            Rising bin numbers, as `Binning.merged_bin_ends` gives them.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).merge_bins([0, 2])
        array([[1, 5],
               [4, 0]])
        """
        return self.table.merge_bins(np.asarray(ends))

    def select(self, mask: NDArray[np.bool_]) -> Federation:
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
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).select([False, True]).clients
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
        >>> remaining.clients
        ('client-1',)
        >>> remaining.rejected_reports[0].reason
        'client-0: was excluded by the operator; ask the operator why'
        """
        excluded = set(clients)
        known = {
            *self.clients,
            *self.missing_clients,
            *(fault.client for fault in self.rejected_reports),
        }
        unknown = sorted(excluded - known)
        if unknown:
            raise RobfcpError(
                f"exclude: no client of this round is called {abbreviate(unknown)}; check the name"
            )

        is_excluded = np.array([client in excluded for client in self.clients], dtype=bool)
        if not is_excluded.any():
            return self
        if is_excluded.all():
            raise RobfcpError("exclude: no report is left; exclude fewer clients")

        rejected = []
        for client in self.names_of(is_excluded):
            reason = f"{client}: was excluded by the operator; ask the operator why"
            rejected.append(RejectedReport(client, "client", reason))
        return replace(
            self.select(~is_excluded),
            rejected_reports=(*self.rejected_reports, *rejected),
            resubmitted_clients=tuple(
                client for client in self.resubmitted_clients if client not in excluded
            ),
        )

    def names_of(self, chosen: NDArray[Any]) -> Sequence[str]:
        """The names of some clients.

        Parameters
        ----------
        chosen
            Their places from 0, or (K,) a mask.
        """
        rows = np.asarray(chosen)
        return select_values(self.clients, np.flatnonzero(rows) if rows.dtype == bool else rows)

    def _chosen(self, rows: NDArray[np.intp] | slice) -> Federation:
        return replace(
            self,
            clients=select_values(self.clients, rows),
            table=self.table.select(rows),
            sample_sizes=self.sample_sizes[rows],
            strata=None if self.strata is None else self.strata.select(rows),
            all_label_counts=None
            if self.all_label_counts is None
            else self.all_label_counts.select(rows),
            privacy=select_values(self.privacy, rows),
            rows=None,
        )

    def select_rows(self, rows: NDArray[np.intp]) -> Federation:
        """The clients at some rising places, in memory wherever the others are.

        Parameters
        ----------
        rows
            Rising places from 0.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).select_rows([1]).counts
        array([[4, 0, 0]])
        """
        found = self._chosen(np.asarray(rows))
        if not self.is_out_of_core:
            return found
        strata = found.strata
        all_label_counts = found.all_label_counts
        return replace(
            found,
            table=found.table.load(),
            strata=None if strata is None else strata.load(),
            all_label_counts=None if all_label_counts is None else all_label_counts.load(),
        )

    def select_stratum(self, number: int) -> Federation:
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
        >>> robfcp.Federation.from_reports([report]).select_stratum(1).n_samples
        2
        """
        if self.strata is None:
            raise RobfcpError(
                "by: the reports keep no counts by class; make them with --by-class (by_class=True)"
            )
        rows = self.strata.rows
        noisy = np.array([self.privacy[k] is not None for k in rows]) if self.has_noise else None
        rows, counts = self.strata.select_stratum(number, noisy)
        totals = (
            counts.cumulative_count(self.binning.n_bins - 1)
            if len(rows)
            else np.zeros(0, dtype=np.int64)
        )
        privacy = select_values(self.privacy, rows)
        private = any(privacy)
        return replace(
            self,
            clients=select_values(self.clients, rows),
            table=counts,
            sample_sizes=np.maximum(totals, 1) if private else totals,
            strata=None,
            all_label_counts=None,
            privacy=privacy,
            sizes_known=self.sizes_known and not private,
            rows=rows,
        )

    @cached_property
    def is_coarsened(self) -> NDArray[np.bool_]:
        """(K,) whose report is in fives: its samples are as high as its counts say, or lower.

        Reports that hold noise are not.
        """
        shape = self.binning.n_bins, self.counts_per_sample

        def known(block: Federation) -> NDArray[np.bool_]:
            found = np.zeros(block.n_clients, dtype=bool)
            for rows, counts, _, n_strata in block._tables():
                found[rows] = detect_coarsened(counts, n_strata, *shape)
            return found & block._without_noise

        return self.map_blocks(known)

    @property
    def _without_noise(self) -> NDArray[np.bool_]:
        """(K,) whose report is not private."""
        stated = [one is None for one in self.privacy]
        return np.array(stated) if stated else np.ones(self.n_clients, dtype=bool)

    def _tables(self) -> Iterator[tuple[NDArray[np.intp], CountTable, int, int]]:
        """Rows, counts, the number of their first class and of their classes; C is no class's."""
        strata, rows = self.strata, np.arange(self.n_clients)
        if strata is None:
            yield rows, self.table, 0, 1
        else:
            rest = np.setdiff1d(rows, strata.rows, assume_unique=True)
            yield rest, self.table.select(rest), strata.n_strata, 1
            yield strata.rows, strata.table, 0, strata.n_strata

    def count_spans(self) -> tuple[CountSpans, NDArray[np.bool_]]:
        """Where all counts may lie, and who is in fives; C is the class of reports without any."""
        known, found = np.zeros(self.n_clients, dtype=bool), []
        shape, exact = (self.binning.n_bins, self.counts_per_sample), self._without_noise
        for rows, counts, number, _ in self._tables():
            part, known[rows] = count_spans(counts, *shape, exact[rows])
            found.append(part._replace(row=rows[part.row], stratum=part.stratum + number))
        return CountSpans(*map(np.concatenate, zip(*found, strict=True))), known

    def lowest_counts(self) -> Federation:
        """The same with the samples of reports in fives as low as they may lie."""
        (rows, classes, low, _, values), known = self.count_spans()
        if not known.any():
            return self
        n_bins, strata = self.binning.n_bins, self.strata
        pooled = SparseTable.from_cells(rows, low, values, (self.n_clients, n_bins))
        if strata is not None:
            own = classes < strata.n_strata
            cells, places = (classes * n_bins + low)[own], np.searchsorted(strata.rows, rows[own])
            width = strata.n_strata * n_bins
            by_class = SparseTable.from_cells(places, cells, values[own], (len(strata.rows), width))
            strata = replace(strata, table=by_class)
        return replace(self, table=pooled, strata=strata)

    def __iter__(self) -> Iterator[Report]:
        """The reports the federation was made of."""
        for part in self._iter_in_memory():
            yield from map(part._report, range(part.n_clients))

    def _iter_in_memory(self) -> Iterable[Federation]:
        """Itself, or so many stored clients at a time as fit."""
        ends = [*range(0, self.n_clients, REPORTS_PER_READ), self.n_clients]
        return (
            (self.select_rows(np.arange(*part)) for part in pairwise(ends))
            if self.is_out_of_core
            else [self]
        )

    def _report(self, k: int) -> Report:
        context, by = (self.binning, self.score, self.round, self.model), self.strata
        privacy = self.privacy[k] if self.privacy else None
        size: Any = (
            None
            if privacy is not None and privacy.protects_sample_size
            else int(self.sample_sizes[k])
        )
        own, told = None, None if self.all_label_counts is None else self.all_label_counts.row(k)
        if by is not None and (row := by.row(k)) is not None:
            cells = np.flatnonzero(row) if privacy is None else np.arange(len(row))
            own = StratifiedCounts(by.by, by.names, cells, row[cells], by.n_bins)
        held: Any = {"privacy": privacy, "risk": self.risk, "strata": own, "set_sizes": told}
        return Report(self.clients[k], self.table.row(k), *context, n_samples=size, **held)

    def to_json(self) -> Iterator[bytes]:
        """The reports as JSON, a tenth of the time of one by one; private ones are one by one."""
        for part in self._iter_in_memory():
            yield from encode_reports(part, part._report)

    @staticmethod
    def from_counts(
        counts: ArrayLike,
        binning: Binning | None = None,
        clients: Sequence[str] | None = None,
        score: Score | None = None,
        *,
        privacy: Privacy | Sequence[Privacy | None] | None = None,
        sample_sizes: ArrayLike | None = None,
    ) -> Federation:
        """A federation of trusted in-process counts (K, H), for simulations; order is kept.

        Parameters
        ----------
        counts
            (K, H) counts; with `privacy` they hold its noise and may be negative.
        binning
            The bins; H uniform ones on [0, 1] if None.
        clients
            (K,) distinct names; client-00, client-01, ... if None.
        score
            What the scores are.
        privacy
            The noise the counts hold, one for all or one a client; none if None.
        sample_sizes
            (K,) the n_k beside noisy counts; hidden where they are not given.

        Returns
        -------
        Federation
            Nothing about it was checked but its shape.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).sample_sizes
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
        binning = binning or Binning.uniform(array.shape[1])
        if array.shape[1] != binning.n_bins:
            raise RobfcpError(
                f"counts: {array.shape[1]} bins do not fit the grid's {binning.n_bins}"
            )
        names = (
            tuple(clients)
            if clients is not None
            else default_client_names(len(array), len(str(len(array) - 1)))
        )
        if len(names) != len(array) or len(set(names)) != len(names):
            raise RobfcpError("ids: need one distinct name a site")
        array = array.astype(np.int64)
        totals = array.sum(axis=1)
        if private and sample_sizes is not None:
            totals = np.asarray(sample_sizes).astype(np.int64)
        elif private:
            if not any(p is not None and p.protects_sample_size for p in stated):
                raise RobfcpError("sizes: private counts need the true sizes beside them")
            totals = np.maximum(totals, 1)
        known = not private or sample_sizes is not None
        held = SparseTable.from_dense(array)
        return Federation(names, held, totals, binning, score, privacy=stated, sizes_known=known)

    @staticmethod
    def from_files(paths: Any, **agreed: Any) -> Federation:
        """The federation in report files; unreadable ones count as faulty, under their file name.

        Parameters
        ----------
        paths
            Report files, signed or not; tables of reports in Parquet, whose counts stay there if
            they are many; folders, which stand for the .json files in them and the tables in them
            and below; or a Spark frame of such tables: what is computed runs there.
        agreed
            Who may report and what was agreed, as `from_reports` takes it: `keys`,
            `registered_sizes`, `quorum`, `round`, `model`, `score`, `binning`,
            `max_client_share`, `privacy`, `revoked`, `terms`, `expected_clients`.

        Returns
        -------
        Federation
            The valid reports; the others are listed as faulty, silent registered sites as missing.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.4]).save("a.json")
        >>> robfcp.Federation.from_files(["a.json", "nobody.json"]).rejected_reports[0].reason
        'nobody.json: no such file; check the path'
        """
        from robfcp.fleet import read_dataframe, read_report_files  # only where files are read

        reports: Any
        if hasattr(paths, "mapInArrow"):
            reports = read_dataframe(paths)
        else:
            reports = read_report_files(paths)
        return Federation.from_reports(reports, **agreed)

    @staticmethod
    def from_reports(
        reports: Iterable[UntrustedReport],
        *,
        keys: Mapping[str, str] | FilePath | None = None,
        registered_sizes: Mapping[str, int] | FilePath | None = None,
        quorum: int | float | None = None,
        round: str | None = None,
        model: str | None = None,
        score: Score | None = None,
        binning: Binning | None = None,
        max_client_share: float | None = None,
        privacy: Privacy | None = None,
        revoked: FilePath | None = None,
        terms: round_terms.RoundTerms | FilePath | None = None,
        expected_clients: Iterable[str] = (),
        rejected: Iterable[RejectedReport] = (),
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
        registered_sizes
            Who may report and with how many samples, registered beforehand: a mapping, or the path
            of a registry.
        quorum
            The least number of valid reports, or their least share of those awaited: all that came,
            the `expected_clients` and the registered.
        round
            The expected round; the majority's if None.
        model
            The expected model; the majority's if None.
        score
            The expected score; the majority's if None.
        binning
            The expected grid, others are refused before they are built; the majority's if None.
        max_client_share
            Sites that claim a larger share of all samples are refused.
        privacy
            The agreed privacy; if None no report may claim more noise than most reports hold.
        revoked
            A file of public keys that count no more, one a line.
        terms
            What was agreed for the round, or the path of its file: round, model, score, grid and
            privacy need not be stated besides.
        expected_clients
            Who should report; the silent ones are listed as missing.
        rejected
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
        >>> federation = robfcp.Federation.from_reports([*reports, "{}"], expected_clients=["c"])
        >>> federation.clients, len(federation.rejected_reports), federation.missing_clients
        (('a', 'b'), 1, ('c',))
        """
        if isinstance(reports, (Report, bytes, str, Mapping)) or not isinstance(reports, Iterable):
            raise RobfcpError("reports: pass a list of them, also where there is only one")
        stated: dict[str, Any] = {"score": score, "grid": binning, "round": round, "model": model}
        stated["privacy"] = privacy
        if terms is not None:
            own = (
                terms
                if isinstance(terms, round_terms.RoundTerms)
                else round_terms.read_terms(terms)
            )
            for name, wanted in own.expected_context.items():
                value = stated[name]
                if None not in (wanted, value) and value != wanted:
                    raise RobfcpError(f"{name}: {value} is not what was agreed ({wanted}); drop it")
                stated[name] = value if wanted is None else wanted
        if isinstance(registered_sizes, (str, os.PathLike)):
            registered_sizes = round_terms.read_registered_sizes(registered_sizes)
        if keys is None and revoked is not None:
            raise RobfcpError("--revoked: goes with --keys, whose registry it is about; pass both")
        if keys is not None:
            if stated["round"] is None:
                raise RobfcpError("--keys: needs --round, or an old report could be used again")
            public = keys if isinstance(keys, Mapping) else round_terms.read_keys(keys, revoked)
            reports, forged = _intake.verify_signatures(reports, public, stated["round"])
            rejected, expected_clients = [*rejected, *forged], [*expected_clients, *public]
            signatures = signatures or "by registered keys"
        privacy = stated.pop("privacy")
        known: Any = {"registered_sizes": registered_sizes, "privacy": privacy, "quorum": quorum}
        fields = _intake.read_reports(
            reports, {**stated, "risk": None}, rejected, expected_clients, **known
        )
        found, registered = (
            fields.pop("signatures"),
            "claimed" if registered_sizes is None else "registered",
        )
        as_stated = {name: "as stated" for name, value in stated.items() if value is not None}
        checked = round_terms.Verification(signatures or found, registered, **as_stated)
        federation = Federation(**fields, verification=checked)
        return (
            federation
            if max_client_share is None
            else federation._cap_client_share(max_client_share)
        )

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
        >>> robfcp.Federation.from_files("round.parquet").clients
        ('a', 'b')
        """
        from robfcp.fleet import write_table  # only where a table is written

        write_table(self, path)

    def projected_to_simplex(self) -> Federation:
        """With noisy counts projected onto histograms of n_k samples, for comparing clients.

        Reports without noise stay as they are. Counts are no whole numbers then: never for
        guarantees, which rest on the counts as they were sent.
        """
        if not self.has_noise:
            return self
        noisy = self.noise_variances > 0
        counts = self.counts.astype(np.float64)
        counts[noisy] = project_to_simplex(
            counts[noisy], self.total_counts[noisy].astype(np.float64)
        )
        return replace(self, table=SparseTable.from_dense(counts), privacy=())

    def with_integer_counts(self) -> Federation:
        """The projected counts rounded to whole numbers, for showing them."""
        if not self.has_noise:
            return self
        counts = np.rint(self.projected_to_simplex().counts).astype(np.int64)
        counts[~counts.any(axis=1), 0] = 1
        return replace(
            self, table=SparseTable.from_dense(counts), sample_sizes=counts.sum(axis=1), privacy=()
        )

    def as_sample_counts(self) -> Federation:
        """With one count a sample, for comparing clients; itself where it has that.

        Losses are counted in parts: parts below each edge are rounded to samples.
        """
        if self.counts_per_sample == 1:
            return self
        samples = np.rint(self.cumulative_counts() / self.counts_per_sample).astype(np.int64)
        counts = np.diff(np.maximum.accumulate(np.maximum(samples, 0), axis=1), axis=1, prepend=0)
        counts[:, -1] += np.maximum(self.sample_sizes - counts.sum(axis=1), 0)
        sizes = counts.sum(axis=1)
        return replace(
            self, table=SparseTable.from_dense(counts), sample_sizes=sizes, risk=None, privacy=()
        )

    def _cap_client_share(self, max_share: float) -> Federation:
        """Without the clients that claim more than the allowed share of all samples."""
        limit = check_fraction("max_share", max_share, "give 0.2, say", allow_one=True)
        shares = self.sample_sizes / self.n_samples
        over = shares > limit
        if over.all():
            raise RobfcpError(f"max_share: every site holds more than {limit:g}; raise it")
        faults = tuple(
            RejectedReport(
                self.clients[k],
                "n_samples",
                f"{self.clients[k]}: claims {shares[k]:.1%} of all samples but the cap is "
                f"{limit:.1%}; check its size or raise max_share",
            )
            for k in np.flatnonzero(over)
        )
        return (
            replace(self.select(~over), rejected_reports=self.rejected_reports + faults)
            if faults
            else self
        )

    def iter_blocks(self) -> Iterator[Federation]:
        """The clients in order, some at a time, as federations of their own; one where few."""
        parts = cast(SparseTable, self.table).row_blocks(BLOCK_ENTRIES)
        return iter([self]) if len(parts) < 2 else map(self._chosen, parts)

    def reduce_blocks(
        self, summary: Callable[..., S], *columns: NDArray[Any], add: Add[S] = add
    ) -> S:
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
        >>> federation.reduce_blocks(lambda block: block.pooled_counts())
        array([5, 2, 3])
        """
        return reduce(add, (found for _, found in self._passed(summary, columns)))

    def map_blocks(
        self, numbers: Callable[..., NDArray[Any]], *columns: NDArray[Any]
    ) -> NDArray[Any]:
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
        >>> federation.map_blocks(lambda block: block.cumulative_count(1))
        array([3, 4])
        """
        return scatter(self._passed(numbers, columns), self.n_clients)

    def _passed(
        self, work: Callable[..., S], columns: tuple[NDArray[Any], ...]
    ) -> Iterator[tuple[NDArray[np.intp] | slice, S]]:
        """What `work` makes of every block, with the places of its clients."""
        if isinstance(counts := self.table, StoredCountTable):
            known = copy(self)
            object.__setattr__(known, "clients", ())  # names stay here

            def there(held: CountBlock) -> tuple[NDArray[np.intp] | slice, S]:
                places, block = known._block(held)
                return places, work(block, *(column[places] for column in columns))

            yield from counts.source.iter_blocks(there)
            return
        first = 0
        for block in self.iter_blocks():
            rows = slice(first, first := first + block.n_clients)
            yield rows, work(block, *(column[rows] for column in columns))

    def _block(self, held: CountBlock) -> tuple[NDArray[np.intp], Federation]:
        """Some stored clients as a federation without names, and their places."""
        places, rows, counts = cast(StoredCountTable, self.table).select_block_rows(held)
        split: dict[str, Any] = {}
        for name in ("strata", "all_label_counts"):
            if (kept := getattr(self, name)) is not None:
                _, own, cells = kept.table.select_block_rows(held)
                split[name] = replace(kept, table=cells, rows=np.searchsorted(rows, own))
        split["sample_sizes"], split["privacy"] = (
            self.sample_sizes[places],
            select_values(self.privacy, places),
        )
        return places, replace(self, table=counts, **split)
