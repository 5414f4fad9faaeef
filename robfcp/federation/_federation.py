"""The validated reports of one round as counts, with the clients that sent none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from operator import add
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import abbreviate, check_fraction, set_fields
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import _intake
from robfcp.federation._arguments import (
    check_cell_count,
    check_distinct_names,
    check_exact_counts,
    load_public_keys,
    privacy_of_clients,
    sizes_of_noisy_counts,
)
from robfcp.federation._comparison import losses_as_samples, project_noisy_rows, round_counts
from robfcp.federation._encoding import encode_reports
from robfcp.federation._inbox import RejectedReport, UntrustedReport
from robfcp.federation._intake import FilePath
from robfcp.federation._lowest_bins import lowest_tables, spread_counts
from robfcp.federation._passes import iter_block_results
from robfcp.federation._stored import StoredCountTable, scatter
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.privacy import Noise, Privacy
from robfcp.reports import ClassTotals, Report, StratifiedCounts, StratumNames
from robfcp.reports import terms as round_terms
from robfcp.scores import Risk, Score

BLOCK_ENTRIES = 2**20  # counts other than 0 that are worked on at a time, to bound the memory
REPORTS_PER_READ = 2**16  # reports made of stored counts at a time

_EXACT_COUNTS: Any = None  # stands for a minimum cell count of 1 at every client

S = TypeVar("S")
T = TypeVar("T")
Add = Callable[[S, S], S]


@runtime_checkable
class PackedNames(Protocol):
    """The names of stored tables, which take little memory: a sequence that selects by itself."""

    def take(self, rows: IndexArray) -> Sequence[str]:
        """Return the names at (n,) positions, in the order of these."""


@dataclass(frozen=True, eq=False)
class Federation:
    """The counts of K clients on one binning, with the clients that sent no valid report.

    Counts are kept as the bins in use of each client, in memory or where they are stored; the
    methods work on either. `counts` is the full (K, H) array: large for many clients.

    Attributes
    ----------
    clients : sequence of str
        (K,) the clients' names: a tuple, or `PackedNames` where counts are stored.
    table : CountTable
        Their counts.
    sample_sizes : ndarray of int, shape (K,)
        N_k; noisy totals where not `sizes_known`.
    binning : Binning
        The bins all reports share.
    score : Score, optional
        The score that all reports name, if any.
    round : str, optional
        The round that all reports name, if any.
    model : str, optional
        The model that all reports name, if any.
    rejected_reports : tuple of RejectedReport
        The reports that were rejected, and why.
    missing_clients : tuple of str
        The expected or registered clients that sent nothing.
    resubmitted_clients : tuple of str
        The clients that sent the same report twice; it counts once.
    sizes_registered : bool
        Whether sizes were registered beforehand.
    privacy : tuple[Privacy or None, ...]
        An entry for each client if any report is private; empty otherwise.
    sizes_known : bool
        Whether sizes are exact: no report hides its sample size, or sizes are registered.
    risk : Risk, optional
        The loss whose counts the reports hold in place of those of scores, if any.
    strata : StratifiedTable, optional
        The counts by class or group of the clients that report them.
    all_label_counts : StratifiedTable, optional
        Counts of the scores of all labels, of the clients that report them; one stratum.
    class_totals : StratifiedTable, optional
        (R, C) the rounded samples of each class, of the clients that report them beside pooled
        counts; one bin.
    min_cell_counts : ndarray of int, shape (K,)
        The stated minimum cell counts: 1 where counts are exact, or hold noise.
    lowest_table : CountTable, optional
        The counts as low as coarsened reports allow, where they no longer follow from `table`:
        of merged classes. None elsewhere.
    verification : round_terms.Verification
        How each part of the reports was checked, for the record.
    rows : ndarray of int, optional
        Of one class or group: the positions of its clients in the round.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> federation = robfcp.Federation.from_reports(reports)
    >>> federation.clients, federation.n_samples
    (('a', 'b'), 4)
    """

    clients: Sequence[str]
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
    min_cell_counts: IntArray = _EXACT_COUNTS
    lowest_table: CountTable | None = None
    class_totals: StratifiedTable | None = None

    def __post_init__(self) -> None:
        # Sizes may come in the narrow type of a file, in which arithmetic would overflow.
        sample_sizes = np.asarray(self.sample_sizes).astype(np.int64, copy=False)
        privacy = self.privacy if any(self.privacy) else ()
        min_cell_counts = self.min_cell_counts
        if min_cell_counts is None:
            min_cell_counts = np.ones(len(sample_sizes), dtype=np.int64)
        set_fields(
            self, sample_sizes=sample_sizes, privacy=privacy, min_cell_counts=min_cell_counts
        )

    def __repr__(self) -> str:
        """Return a line without the reports."""
        n_excluded = len(self.rejected_reports) + len(self.missing_clients)
        suffix = f", {n_excluded} faulty or missing" if n_excluded else ""
        return f"Federation({self.n_clients} sites, {self.n_samples} samples{suffix})"

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K, H) counts, `counts_per_sample` of them a sample; large: prefer the methods."""
        return self.table.dense()

    @property
    def is_out_of_core(self) -> bool:
        """Whether the counts stay in tables or on a cluster, too many to hold."""
        return isinstance(self.table, StoredCountTable)

    def of_all_labels(self) -> Federation:
        """Return the scores of all labels as a federation of the clients that report them.

        A sample has a count for each label, and sizes are samples. Only where `all_label_counts` is
        not None.
        """
        labels = self.all_label_counts
        assert labels is not None
        return replace(
            self._select(labels.rows),
            table=labels.table,
            strata=None,
            class_totals=None,
            all_label_counts=None,
            rows=labels.rows,
        )

    @cached_property
    def counts_per_sample(self) -> int:
        """How many counts one sample has: 1, or the resolution of a loss."""
        return 1 if self.risk is None else self.risk.resolution

    @property
    def total_counts(self) -> NDArray[np.int64]:
        """(K,) the sum of each client's counts without noise: n_k times `counts_per_sample`."""
        return self.counts_per_sample * self.sample_sizes

    @cached_property
    def has_private_reports(self) -> bool:
        """Whether any client's report is private, even if its noise is negligible."""
        return bool(self.privacy)

    @property
    def n_private(self) -> int:
        """The number of clients whose reports are private."""
        return sum(privacy is not None for privacy in self.privacy)

    @property
    def noise_models(self) -> tuple[Noise | None, ...]:
        """(K,) the distribution of one draw of noise, of each client; None without noise.

        In units of `counts`. A pooled count holds `noise_draws` of these draws.
        """
        if not self.privacy:
            return (None,) * self.n_clients
        return tuple(
            None if privacy is None else privacy.noise_for_counts(self.counts_per_sample)
            for privacy in self.privacy
        )

    @cached_property
    def has_noise(self) -> bool:
        """Whether noise moves any count: that of a huge budget never does."""
        if not self.privacy:
            return False
        # Many clients have few different budgets.
        distinct = {privacy for privacy in self.privacy if privacy is not None}
        noises = [privacy.noise_for_counts(self.counts_per_sample) for privacy in distinct]
        return not all(noise.is_negligible for noise in noises)

    @property
    def noise_draws(self) -> int:
        """How many draws of noise one pooled count holds: one for each stratum reported.

        A count of one stratum holds one draw; where reports have strata, `counts` are their sums.
        """
        if not self.has_private_reports or self.strata is None:
            return 1
        return self.strata.n_strata

    @property
    def noise_variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each pooled count, of each client; 0 without noise.

        In squared units of `counts`: `noise_draws` times the variance of one draw.
        """
        models = self.noise_models
        variances = np.array([0.0 if model is None else model.variance for model in models])
        return variances * self.noise_draws

    @property
    def noise_free_class_totals(self) -> StratifiedTable | None:
        """The class totals; None where any counts hold noise, to go with `noise_free_strata`."""
        return None if self.has_noise else self.class_totals

    @property
    def noise_free_strata(self) -> StratifiedTable | None:
        """The counts by class or group where they are exact; None also where they hold noise."""
        return None if self.has_noise else self.strata

    @cached_property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.sample_sizes)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports; noisy where not `sizes_known`."""
        return int(self.sample_sizes.sum())

    def threshold_at(self, bin_index: int | None) -> float:
        """Return the threshold at the upper edge of bin `bin_index`; infinity where there is none.

        Also infinite in the last bin where reports are private: their scores beyond the binning,
        and those that are not numbers, count there.

        Parameters
        ----------
        bin_index : int or None
            A bin's index, or None.

        Returns
        -------
        float
            An upper edge of the binning, or infinity.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2], [4, 0]]).threshold_at(0)
        0.5
        """
        if bin_index is None or bin_index >= self.binning.n_bins:
            return float(np.inf)
        is_last_bin = bin_index == self.binning.n_bins - 1
        if is_last_bin and self.has_private_reports:
            return float(np.inf)
        return float(self.binning.upper_edges[bin_index])

    def cumulative_count(self, bin_index: int) -> NDArray[np.int64]:
        """Return (K,) counts at or below the upper edge of bin `bin_index`.

        Parameters
        ----------
        bin_index : int
            A bin's index.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).cumulative_count(1)
        array([3, 4])
        """
        return self.table.cumulative_count(bin_index)

    def cumulative_counts(self, bin_indices: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
        """Return (K, H) counts at or below every upper edge, or (K, E) at some of them.

        Parameters
        ----------
        bin_indices : ndarray of int, shape (E,), optional
            Rising bin indices; all bins if None.

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
        if bin_indices is None:
            return np.cumsum(self.table.dense(), axis=1)
        # Merged bins must end with the last one, which is cut off again.
        with_last_bin = np.append(bin_indices, self.binning.n_bins - 1)
        bin_ends = np.unique(with_last_bin).astype(np.intp)
        return np.cumsum(self.merge_bins(bin_ends), axis=1)[:, : len(bin_indices)]

    def pooled_counts(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return (H,) counts of some clients together.

        Parameters
        ----------
        mask : ndarray of bool, shape (K,), optional
            Which clients; all of them if None.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).pooled_counts()
        array([5, 2, 3])
        """
        return self.table.pooled_counts(mask)

    def merge_bins(self, bin_ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return (K, B) counts of merged bins.

        Parameters
        ----------
        bin_ends : ndarray of int, shape (B,)
            The last bin of each merged one, rising, as `Binning.merged_bin_ends` gives them;
            the last one is H - 1.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).merge_bins([0, 2])
        array([[1, 5],
               [4, 0]])
        """
        return self.table.merge_bins(np.asarray(bin_ends))

    def select(self, mask: NDArray[np.bool_]) -> Federation:
        """Return the federation of some clients.

        Parameters
        ----------
        mask : ndarray of bool, shape (K,)
            Which clients.

        Returns
        -------
        Federation
            In the same order, with the same rejected and missing clients.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).select([False, True]).clients
        ('client-1',)
        """
        is_selected = np.asarray(mask, dtype=bool)
        if is_selected.all():
            return self
        return self._select(np.flatnonzero(is_selected))

    def without(self, clients: Iterable[str]) -> Federation:
        """Exclude the reports of some clients by a decision of the round's operator.

        Parameters
        ----------
        clients : iterable of str
            Names of clients that reported. A client whose report was rejected or is missing may
            be named too; it stays listed as it is.

        Returns
        -------
        Federation
            The remaining reports. Those excluded are listed in `rejected_reports`.

        Raises
        ------
        RobfcpError
            Where a name is no client's, or where no report would be left.

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
        rejected_clients = {rejection.client for rejection in self.rejected_reports}
        clients_of_round = {*self.clients, *self.missing_clients, *rejected_clients}
        unknown = sorted(excluded - clients_of_round)
        if unknown:
            raise RobfcpError(
                f"clients (--exclude): no client of this round is called {abbreviate(unknown)}; "
                "check the name"
            )

        is_excluded = np.array([client in excluded for client in self.clients], dtype=bool)
        if not is_excluded.any():
            return self
        if is_excluded.all():
            raise RobfcpError("clients (--exclude): no report is left; exclude fewer clients")

        rejections = []
        for client in self.names_of(is_excluded):
            reason = f"{client}: was excluded by the operator; ask the operator why"
            rejections.append(RejectedReport(client, "client", reason))
        resubmitted = [client for client in self.resubmitted_clients if client not in excluded]
        return replace(
            self.select(~is_excluded),
            rejected_reports=(*self.rejected_reports, *rejections),
            resubmitted_clients=tuple(resubmitted),
        )

    def names_of(self, selected: NDArray[Any]) -> Sequence[str]:
        """Return the names of some clients.

        Parameters
        ----------
        selected : ndarray
            Their positions from 0, or (K,) a mask.
        """
        rows = np.asarray(selected)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        return _select_names(self.clients, rows)

    def select_rows(self, rows: NDArray[np.intp]) -> Federation:
        """Return the clients at some positions, in memory wherever the federation is.

        Parameters
        ----------
        rows : ndarray of int
            Rising positions from 0, all different.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).select_rows([1]).counts
        array([[4, 0, 0]])
        """
        if not self.is_out_of_core:
            is_everything = len(rows) == self.n_clients
            return self if is_everything else self._select(np.asarray(rows))

        selected = self._select(np.asarray(rows))
        return replace(
            selected,
            table=selected.table.load(),
            strata=_load(selected.strata),
            all_label_counts=_load(selected.all_label_counts),
            class_totals=_load(selected.class_totals),
        )

    def _select(self, rows: IndexArray | slice) -> Federation:
        """Return the clients at some rising positions; stored counts stay stored.

        `rows` of the result is None, for positions in the round are only known of a whole stratum.
        Everything that is no column, such as rejected reports, stays as it is.

        Parameters
        ----------
        rows : (n,) ndarray of int, or slice
            Positions from 0, rising and all different.
        """
        lowest_table = self.lowest_table
        if lowest_table is not None:
            lowest_table = lowest_table.select(rows)
        return replace(
            self,
            clients=_select_names(self.clients, rows),
            privacy=_select_values(self.privacy, rows),
            sample_sizes=self.sample_sizes[rows],
            table=self.table.select(rows),
            strata=_select_clients(self.strata, rows),
            all_label_counts=_select_clients(self.all_label_counts, rows),
            class_totals=_select_clients(self.class_totals, rows),
            min_cell_counts=self.min_cell_counts[rows],
            lowest_table=lowest_table,
            rows=None,
        )

    def select_stratum(self, stratum: int) -> Federation:
        """Return one class or group as a federation of the clients that hold it.

        Where reports are private the numbers of samples are protected too: sizes are then noisy,
        and every client with such a report holds every class.

        Parameters
        ----------
        stratum : int
            The position of the class among the names of `strata`.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.4, 0.6], labels=[0, 1, 1], classes=2)
        >>> robfcp.Federation.from_reports([report]).select_stratum(1).n_samples
        2
        """
        if self.strata is None:
            raise RobfcpError(
                "by: the reports hold no counts by class; recreate them with --stratify-by-class "
                "(stratify_by_class=True)"
            )
        is_noisy = None  # (R,) of the clients with counts by stratum
        if self.has_noise:
            is_noisy = np.array([self.privacy[row] is not None for row in self.strata.rows])
        rows, counts, lowest_counts = self.strata.select_stratum(stratum, is_noisy)

        sizes = np.zeros(0, dtype=np.int64)
        if len(rows) > 0:
            sizes = counts.cumulative_count(self.binning.n_bins - 1)
        privacy = _select_values(self.privacy, rows)
        is_private = any(privacy)
        if is_private:
            sizes = np.maximum(sizes, 1)  # noise may make a total 0 or negative
        return replace(
            self,
            clients=_select_names(self.clients, rows),
            table=counts,
            sample_sizes=sizes,
            strata=None,
            all_label_counts=None,
            class_totals=None,
            privacy=privacy,
            sizes_known=self.sizes_known and not is_private,
            min_cell_counts=self.min_cell_counts[rows],
            lowest_table=lowest_counts,
            rows=rows,
        )

    @property
    def is_coarsened(self) -> NDArray[np.bool_]:
        """(K,) which reports are coarsened: their samples may lie below the bins reported."""
        return np.asarray(self.min_cell_counts > 1)

    def counts_in_lowest_bins(self) -> Federation:
        """Return the same with each sample of a coarsened report in the lowest bin it may be of.

        The bounds of docs/theory.md on a count that was coarsened: it is at least the count as
        sent, and at most the count that is returned here. Only of counts in memory.
        """
        if not self.is_coarsened.any():
            return self
        return self._in_lowest_bins

    def at_midpoints(self, read: Callable[[Federation], NDArray[Any]]) -> NDArray[Any]:
        """Read something that is linear in the counts half-way between their bounds.

        A count up to a bin that was coarsened to cells of m samples lies between the count as sent
        and the count in `counts_in_lowest_bins`. The midpoint is off by m / 2 at most, and below
        the end of the lowest cell, which holds up to 2 m - 1 samples, by m - 1 / 2 at most; to
        either side about evenly: for estimates. Guarantees rest on the bounds.

        Parameters
        ----------
        read : callable
            Takes a federation and returns an array that is linear in its counts.

        Returns
        -------
        ndarray
            What `read` returns for this federation where no report is coarsened. Else the mean of
            what it returns for both bounds, in halves, which are exact in floating point.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[0, 0, 5, 0, 5]], min_cell_count=5)
        >>> federation.at_midpoints(lambda bounded: bounded.cumulative_counts())
        array([[ 2.5,  2.5,  7.5,  7.5, 10. ]])
        """
        as_sent = read(self)
        if not self.is_coarsened.any():
            return as_sent
        return (as_sent + read(self.counts_in_lowest_bins())) / 2

    def cumulative_midpoints(self, bin_indices: NDArray[np.intp] | None = None) -> NDArray[Any]:
        """Return (K, H) estimates of `cumulative_counts`, or (K, E), wherever the counts are.

        Those of coarsened reports are midpoints (`at_midpoints`); all others are the counts.

        Parameters
        ----------
        bin_indices : ndarray of int, shape (E,), optional
            Rising bin indices; all bins if None.
        """

        def read_block(block: Federation) -> NDArray[Any]:
            return block.at_midpoints(lambda bounded: bounded.cumulative_counts(bin_indices))

        return self.map_blocks(read_block)

    def pooled_midpoints(self, mask: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Return (H,) estimates of `pooled_counts`, wherever the counts are.

        Parameters
        ----------
        mask : ndarray of bool, shape (K,), optional
            Which clients; all of them if None.
        """
        if mask is None:
            mask = np.ones(self.n_clients, dtype=bool)

        def read_block(block: Federation, is_pooled: NDArray[np.bool_]) -> NDArray[Any]:
            return block.at_midpoints(lambda bounded: bounded.pooled_counts(is_pooled))

        return self.reduce_blocks(read_block, mask)

    def spread_counts(self, bin_ends: NDArray[np.intp]) -> NDArray[Any]:
        """Return (K, B) counts of merged bins, coarsened ones spread over where they may lie.

        An estimate of each client's histogram: what may lie in several merged bins is spread evenly
        over these. Midpoints would heap it up at both ends.

        Parameters
        ----------
        bin_ends : ndarray of int, shape (B,)
            The last bin of each merged one, rising; the last one is H - 1.
        """

        def read(block: Federation) -> NDArray[Any]:
            if not block.is_coarsened.any():
                return block.merge_bins(bin_ends)
            if block.lowest_table is not None:
                return block.at_midpoints(lambda bounded: bounded.merge_bins(bin_ends))
            n_bins = block.binning.n_bins
            return spread_counts(
                block.table, block.strata, n_bins, block._min_counts, np.asarray(bin_ends)
            )

        return self.map_blocks(read)

    @property
    def _min_counts(self) -> IntArray:
        """(K,) the minimum of each client's cells in counts; 0 where they are not coarsened."""
        min_cell_counts = np.where(self.is_coarsened, self.min_cell_counts, 0)
        return min_cell_counts * self.counts_per_sample

    @cached_property
    def _in_lowest_bins(self) -> Federation:
        """The federation with some coarsened reports that `counts_in_lowest_bins` returns."""
        table = self.lowest_table
        strata = self.strata
        if table is None:
            n_bins = self.binning.n_bins
            table, strata = lowest_tables(self.table, strata, n_bins, self._min_counts)
        elif strata is not None and strata.lowest_table is not None:
            strata = replace(strata, table=strata.lowest_table, lowest_table=None)
        exact = np.ones(self.n_clients, dtype=np.int64)
        return replace(self, table=table, strata=strata, min_cell_counts=exact, lowest_table=None)

    def merge_strata(self, cluster: Sequence[int], names: StratumNames) -> Federation:
        """Return the federation with merged strata, in memory.

        What coarsened reports count at most is the sum over the strata, which the merged counts
        would not tell any more: it is kept beside them.

        Parameters
        ----------
        cluster : sequence of int
            (C,) the index of the merged stratum that each stratum goes to: 0 to M - 1, all of them
            used.
        names : StratumNames
            The names of the M merged strata, or M.
        """
        assert self.strata is not None
        strata = self.strata.load()
        merged = strata.merge_strata(cluster, names)
        if not self.is_coarsened.any():
            return replace(self, strata=merged)

        in_memory = replace(self, table=self.table.load(), strata=strata)
        lowest = in_memory.counts_in_lowest_bins()
        assert lowest.strata is not None
        lowest_strata = lowest.strata.merge_strata(cluster, names)
        return replace(
            self,
            strata=replace(merged, lowest_table=lowest_strata.table),
            lowest_table=lowest.table,
        )

    def __iter__(self) -> Iterator[Report]:
        """Iterate over the reports the federation was made of."""
        for block in self._iter_in_memory():
            yield from map(block._report, range(block.n_clients))

    def _iter_in_memory(self) -> Iterator[Federation]:
        """Yield all clients in order, in memory: at once, or some at a time if they are stored."""
        if not self.is_out_of_core:
            yield self
            return
        starts = [*range(0, self.n_clients, REPORTS_PER_READ), self.n_clients]
        for first, stop in pairwise(starts):
            yield self.select_rows(np.arange(first, stop))

    def _report(self, position: int) -> Report:
        """Return the report of the client at a position from 0, of a federation in memory.

        The size of a report that hides it is left out, as its client left it out.
        """
        privacy = self.privacy[position] if self.privacy else None
        n_samples: Any = int(self.sample_sizes[position])
        if privacy is not None and privacy.protects_sample_size:
            n_samples = None

        all_label_counts: Any = None
        if self.all_label_counts is not None:
            all_label_counts = self.all_label_counts.row(position)
        class_totals = None
        if self.class_totals is not None:
            totals = self.class_totals.row(position)
            if totals is not None:
                class_totals = ClassTotals(self.class_totals.names, totals)
        return Report(
            self.clients[position],
            self.table.row(position),
            self.binning,
            self.score,
            self.round,
            self.model,
            n_samples=n_samples,
            privacy=privacy,
            risk=self.risk,
            strata=self._stratified_counts(position, is_private=privacy is not None),
            all_label_counts=all_label_counts,
            min_cell_count=int(self.min_cell_counts[position]),
            class_totals=class_totals,
        )

    def _stratified_counts(self, position: int, is_private: bool) -> StratifiedCounts | None:
        """Return the counts by stratum of the client at a position; None where it reports none."""
        strata = self.strata
        if strata is None:
            return None
        row = strata.row(position)
        if row is None:
            return None

        # A private report states all its cells: which of them are 0 is noise.
        cells = np.arange(len(row)) if is_private else np.flatnonzero(row)
        return StratifiedCounts(strata.by, strata.names, cells, row[cells], strata.n_bins)

    def to_json(self) -> Iterator[bytes]:
        """The reports as JSON, a tenth of the time of one by one; private ones are one by one."""
        for block in self._iter_in_memory():
            yield from encode_reports(block, block._report)

    @staticmethod
    def from_counts(
        counts: ArrayLike,
        binning: Binning | None = None,
        clients: Sequence[str] | None = None,
        score: Score | None = None,
        *,
        privacy: Privacy | Sequence[Privacy | None] | None = None,
        sample_sizes: ArrayLike | None = None,
        min_cell_count: int = 1,
    ) -> Federation:
        """Make a federation of trusted (K, H) counts, in their order; for simulations.

        Parameters
        ----------
        counts : array_like, shape (K, H)
            Counts; with `privacy` they hold its noise and may be negative.
        binning : Binning, optional
            The bins; H uniform ones on [0, 1] if None.
        clients : sequence of str, optional
            (K,) distinct names; client-00, client-01, ... if None.
        score : Score, optional
            What the scores are.
        privacy : Privacy or Sequence[Privacy or None], optional
            The noise the counts hold, one for all or one a client; none if None.
        sample_sizes : array_like, shape (K,), optional
            The n_k beside noisy counts; hidden where they are not given.
        min_cell_count : int
            The minimum cell count that the counts without noise were coarsened to; 1 if they are
            exact.

        Returns
        -------
        Federation
            Nothing of it was checked but its shape.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).sample_sizes
        array([6, 4])
        """
        array = np.asarray(counts)
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise RobfcpError("counts: need a (clients, bins) array of integers")
        n_clients, n_bins = array.shape
        privacy_by_client = privacy_of_clients(privacy, n_clients)
        if not privacy_by_client:
            check_exact_counts(array)

        if binning is None:
            binning = Binning.uniform(n_bins)
        if n_bins != binning.n_bins:
            raise RobfcpError(f"counts: {n_bins} bins do not fit the binning's {binning.n_bins}")
        names = check_distinct_names(clients, n_clients)
        min_cell_count = check_cell_count(min_cell_count)
        noises = privacy_by_client or (None,) * n_clients

        array = array.astype(np.int64)
        if privacy_by_client:
            sizes = sizes_of_noisy_counts(array, privacy_by_client, sample_sizes)
        else:
            sizes = array.sum(axis=1)
        return Federation(
            names,
            SparseTable.from_dense(array),
            sizes,
            binning,
            score,
            privacy=privacy_by_client,
            sizes_known=not privacy_by_client or sample_sizes is not None,
            min_cell_counts=np.array([min_cell_count if noise is None else 1 for noise in noises]),
        )

    @staticmethod
    def from_files(
        paths: Any,
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
        min_cell_count: int | None = None,
        revoked: FilePath | None = None,
        terms: round_terms.RoundTerms | FilePath | None = None,
        expected_clients: Iterable[str] = (),
    ) -> Federation:
        """Read the federation in report files; unreadable ones are rejected, by their file name.

        Parameters
        ----------
        paths : object
            Report files, signed or not; tables of reports in Parquet, whose counts stay there if
            they are many; folders, of which the .json files and the tables, also those in folders
            below, are read; or a Spark frame of such tables, whose counts stay on the cluster.
        keys, registered_sizes, quorum, round, model, score, binning, max_client_share, privacy,
        min_cell_count, revoked, terms, expected_clients
            Who may report and the terms of the round, as `from_reports` takes them.

        Returns
        -------
        Federation
            The valid reports; the others are listed as rejected, silent registered clients as
            missing.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Report.from_scores("a", [0.1, 0.4]).save("a.json")
        >>> robfcp.Federation.from_files(["a.json", "nobody.json"]).rejected_reports[0].reason
        'nobody.json: no such file; check the path'
        """
        from robfcp.fleet import is_dataframe, read_dataframe, read_report_files  # only for files

        read: Callable[[Any], Any] = read_dataframe if is_dataframe(paths) else read_report_files
        return Federation.from_reports(
            read(paths),
            keys=keys,
            registered_sizes=registered_sizes,
            quorum=quorum,
            round=round,
            model=model,
            score=score,
            binning=binning,
            max_client_share=max_client_share,
            privacy=privacy,
            min_cell_count=min_cell_count,
            revoked=revoked,
            terms=terms,
            expected_clients=expected_clients,
        )

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
        min_cell_count: int | None = None,
        revoked: FilePath | None = None,
        terms: round_terms.RoundTerms | FilePath | None = None,
        expected_clients: Iterable[str] = (),
        rejected: Iterable[RejectedReport] = (),
        signatures: str | None = None,
    ) -> Federation:
        """Collect the valid reports in the order of their clients' names; list all others.

        Reports are read one by one and only the bins in use are kept: pass an iterator where there
        are many.

        Parameters
        ----------
        reports : iterable of UntrustedReport
            `Report` objects, their JSON, or what JSON decodes to, from any sender.
        keys : mapping, optional
            By which key each client's report must be signed: a mapping, or the path of a registry.
            Needs `round`. Without keys a signature must only be by the key its report names.
        registered_sizes : mapping, optional
            Who may report and with how many samples, registered beforehand: a mapping, or the path
            of a registry.
        quorum : int or float, optional
            The least number of valid reports, or their least fraction of those awaited: all that
            came, the `expected_clients` and the registered.
        round : str, optional
            The expected round; the majority's if None.
        model : str, optional
            The expected model; the majority's if None.
        score : Score, optional
            The expected score; the majority's if None.
        binning : Binning, optional
            The expected binning; reports on others are rejected unread. The majority's if None.
        max_client_share : float, optional
            Clients that claim a larger fraction of all samples are rejected.
        privacy : Privacy, optional
            The agreed privacy; if None no report may claim more noise than most reports hold.
        min_cell_count : int, optional
            The agreed minimum cell count: reports of larger cells are rejected. If None it is 5,
            or that of most reports where these state a larger one.
        revoked : path, optional
            A file of public keys that are no longer valid, one a line.
        terms : round_terms.RoundTerms or path, optional
            What was agreed for the round, or the path of its file; it gives round, model, score,
            binning and privacy where these arguments are None.
        expected_clients : iterable of str
            Who should report; the silent ones are listed as missing.
        rejected : iterable of RejectedReport
            Reports that were rejected before.
        signatures : str, optional
            How an engine checked identities, for the record.

        Returns
        -------
        Federation
            The valid reports of one round, and the rejected and missing clients.

        Raises
        ------
        QuorumError
            Where too few reports are valid.
        RobfcpError
            Where there is no majority, or the registry is not valid.

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

        if min_cell_count is not None:
            min_cell_count = check_cell_count(min_cell_count)

        # The keys are entries of reports and of terms; but for privacy and the minimum cell count
        # also fields of `Verification`.
        expected: dict[str, Any] = {
            "score": score,
            "binning": binning,
            "round": round,
            "model": model,
            "privacy": privacy,
            "min_cell_count": min_cell_count,
        }
        if terms is not None:
            if not isinstance(terms, round_terms.RoundTerms):
                terms = round_terms.read_terms(terms)
            expected = terms.complete(expected)
        if isinstance(registered_sizes, (str, os.PathLike)):
            registered_sizes = round_terms.read_registered_sizes(registered_sizes)

        # Reports that are not signed by their client's registered key are rejected first.
        if keys is not None or revoked is not None:
            public_keys = load_public_keys(keys, revoked, expected["round"])
            reports, forged = _intake.verify_signatures(reports, public_keys, expected["round"])
            rejected = [*rejected, *forged]
            expected_clients = [*expected_clients, *public_keys]
            signatures = signatures or "by registered keys"

        # Privacy and coarsening have checks of their own. Nobody states the risk: it is that of
        # most reports.
        expected_privacy = expected.pop("privacy")
        largest_cell_count = expected.pop("min_cell_count")
        fields = _intake.read_reports(
            reports,
            {**expected, "risk": None},
            rejected,
            expected_clients,
            registered_sizes=registered_sizes,
            privacy=expected_privacy,
            min_cell_count=largest_cell_count,
            quorum=quorum,
        )
        embedded_signatures = fields.pop("signatures")
        verification = round_terms.Verification(
            signatures=signatures or embedded_signatures,
            sample_sizes="claimed" if registered_sizes is None else "registered",
            **{name: "given" for name, value in expected.items() if value is not None},
        )
        federation = Federation(**fields, verification=verification)
        if max_client_share is None:
            return federation
        return federation._cap_client_share(max_client_share)

    def save(self, path: FilePath) -> None:
        """Write the valid reports as one table in Parquet, which `from_files` reads.

        Parameters
        ----------
        path : path
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
        """Project noisy counts onto histograms of n_k samples, for comparing clients.

        Reports without noise stay as they are. The counts of the others are no whole numbers then,
        and `privacy` is empty, as if they held no noise: never for guarantees, which rest on the
        counts as they were sent. Counts by class or group keep their noise.
        """
        if not self.has_noise:
            return self
        return replace(self, table=SparseTable.from_dense(self._projected_counts), privacy=())

    @property
    def _projected_counts(self) -> FloatArray:
        """(K, H) counts with the noisy rows projected onto histograms."""
        is_noisy = self.noise_variances > 0
        return project_noisy_rows(self.counts, self.total_counts, is_noisy)

    def with_integer_counts(self) -> Federation:
        """Round the projected counts to whole numbers, for showing them.

        Sizes are the sums of the rounded counts, and `privacy` is empty. Counts without noise stay
        as they are. Sizes are in samples only where one count is one sample: call
        `as_sample_counts` before.
        """
        if not self.has_noise:
            return self
        counts = round_counts(self._projected_counts)
        table = SparseTable.from_dense(counts)
        return replace(self, table=table, sample_sizes=counts.sum(axis=1), privacy=())

    def as_sample_counts(self) -> Federation:
        """Return the same with one count a sample, for comparing clients.

        The counts of losses are rounded to samples below each edge; sizes are the sums of these,
        and `risk` and `privacy` are left out. Counts of scores stay as they are.
        """
        if self.counts_per_sample == 1:
            return self
        counts = self._losses_as_samples()
        lowest_table = None
        if self.is_coarsened.any():
            # Rounding to samples leaves no cells of which the bounds would follow.
            lowest_counts = self.counts_in_lowest_bins()._losses_as_samples()
            lowest_table = SparseTable.from_dense(lowest_counts)
        return replace(
            self,
            table=SparseTable.from_dense(counts),
            sample_sizes=counts.sum(axis=1),
            risk=None,
            privacy=(),
            lowest_table=lowest_table,
        )

    def _losses_as_samples(self) -> IntArray:
        """Return (K, H) the counts of losses, rounded to samples."""
        cumulative = self.cumulative_counts()
        return losses_as_samples(cumulative, self.sample_sizes, self.counts_per_sample)

    def _cap_client_share(self, max_share: float) -> Federation:
        """Return the federation without clients that claim more than a fraction of all samples.

        Fractions are of the samples of all clients, also of those that are then left out; these are
        listed as rejected.
        """
        max_share = check_fraction("max_client_share", max_share, "give 0.2, say", allow_one=True)
        fractions = self.sample_sizes / self.n_samples
        is_above = fractions > max_share
        if is_above.all():
            raise RobfcpError(
                f"max_client_share: every site holds more than {max_share:g}; raise it"
            )
        if not is_above.any():
            return self

        rejections = []
        for client, fraction in zip(self.names_of(is_above), fractions[is_above], strict=True):
            reason = (
                f"{client}: claims {fraction:.1%} of all samples but the cap is {max_share:.1%}; "
                "check its size or raise max_share"
            )
            rejections.append(RejectedReport(client, "n_samples", reason))
        return replace(
            self.select(~is_above), rejected_reports=(*self.rejected_reports, *rejections)
        )

    @cached_property
    def _is_one_block(self) -> bool:
        """Whether the counts are in memory, and few enough to be worked on at once."""
        if not isinstance(self.table, SparseTable):
            return False
        return len(self.table.row_blocks(BLOCK_ENTRIES)) < 2

    def iter_blocks(self) -> Iterator[Federation]:
        """Yield the clients in order, some at a time, as federations; only of counts in memory.

        Stored counts have no rows to cut: `reduce_blocks` and `map_blocks` work on either.
        """
        if self._is_one_block:
            yield self
            return
        for rows in cast(SparseTable, self.table).row_blocks(BLOCK_ENTRIES):
            yield self._select(rows)

    def reduce_blocks(
        self, summary: Callable[..., S], *columns: NDArray[Any], add: Add[S] = add
    ) -> S:
        """Return the sum of a summary over all clients, block by block.

        Parameters
        ----------
        summary : callable
            Takes a block, a federation of some clients, and the rows of every column that belong
            to it; returns what can be added.
        columns
            Arrays with a row a client.
        add : Add[S]
            Adds two summaries, in any order, for blocks of stored counts come in any; + if not
            given.

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
        if self._is_one_block:
            return summary(self, *columns)
        results = iter_block_results(self, summary, columns)
        return reduce(add, (result for _, result in results))

    def map_blocks(
        self, block_values: Callable[..., NDArray[Any]], *columns: NDArray[Any]
    ) -> NDArray[Any]:
        """Return a few numbers of every client, block by block.

        Parameters
        ----------
        block_values : callable
            Takes a block, a federation of some clients, and the rows of every column that belong
            to it; returns an array with a row for each of these clients.
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
        if self._is_one_block:
            return block_values(self, *columns)
        return scatter(iter_block_results(self, block_values, columns), self.n_clients)


def _load(strata: StratifiedTable | None) -> StratifiedTable | None:
    """Return the counts of some clients in memory; None where no client has any."""
    return None if strata is None else strata.load()


def _select_clients(
    strata: StratifiedTable | None, rows: IndexArray | slice
) -> StratifiedTable | None:
    """Return the counts of the clients at some positions; None where no client has any."""
    return None if strata is None else strata.select(rows)


def _select_names(names: Sequence[str], rows: IndexArray | slice) -> Sequence[str]:
    """Return the names at some positions, in the order of these; packed ones stay packed.

    Parameters
    ----------
    names : sequence of str
        (K,) names: a tuple, or `PackedNames`.
    rows : (n,) ndarray of int, or slice
        Positions from 0.
    """
    if isinstance(rows, slice):
        return names[rows]
    if isinstance(names, PackedNames):
        return names.take(rows)
    return _select_values(tuple(names), rows)


def _select_values(values: tuple[T, ...], rows: IndexArray | slice) -> tuple[T, ...]:
    """Return the values at some positions, in the order of these; none where there are none at all.

    Parameters
    ----------
    values : tuple
        (K,) one for each client; or empty, such as `privacy` where no report is private.
    rows : (n,) ndarray of int, or slice
        Positions from 0.
    """
    if isinstance(rows, slice):
        return values[rows]
    if not values:
        return ()
    return tuple(values[row] for row in rows.tolist())
