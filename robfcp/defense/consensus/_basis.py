"""How the clients of a round are compared: on a few bins, by class where reports keep classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp.defense.consensus._tuning import Tuning
from robfcp.federation import Federation, StratifiedTable

CDF_TOLERANCE = 1e-12  # up to which a CDF that is computed in floating point reaches an order


def sample_clients(n_clients: int, max_sampled_clients: int, seed: int) -> IndexArray:
    """Return the positions of all clients, or of a few of them drawn at random, ascending.

    Parameters
    ----------
    n_clients : int
        How many clients there are.
    max_sampled_clients : int
        How many of them are drawn; where there are no more, the seed has no effect.
    seed : int
        Of the draw.

    Returns
    -------
    ndarray of int, shape (k,)
        Distinct positions from 0 to `n_clients` - 1.
    """
    n_sampled = min(n_clients, max_sampled_clients)
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(n_clients, n_sampled, replace=False))


class ComparedClasses(NamedTuple):
    """The classes by which the clients of a round can be compared.

    Attributes
    ----------
    strata : StratifiedTable or None
        Exact or coarsened counts by class or group of the clients that report them.
    totals : StratifiedTable or None
        The class totals of clients that report pooled counts beside them.
    """

    strata: StratifiedTable | None
    totals: StratifiedTable | None

    @property
    def n_classes(self) -> int:
        """C, the number of classes or groups; 0 where no client reports any."""
        table = self.strata or self.totals
        return 0 if table is None else table.n_strata

    @property
    def n_clients(self) -> int:
        """How many clients report classes, in either way."""
        return sum(len(table.rows) for table in (self.strata, self.totals) if table is not None)


def compared_classes(clients: Federation, compares_groups: bool) -> ComparedClasses:
    """Return by which classes some clients can be compared.

    Parameters
    ----------
    clients : Federation
        Clients of one round, all of them or some: tables have no rows where none of these reports.
    compares_groups : bool
        Whether clients are compared by group where counts are by group; else by class totals.
    """
    strata = clients.noise_free_strata
    totals = clients.noise_free_class_totals
    if strata is None or strata.by == "class":
        return ComparedClasses(strata, totals)
    if compares_groups:
        return ComparedClasses(strata, None)
    return ComparedClasses(None, totals)


def _are_groups_compared(federation: Federation) -> bool:
    """Whether counts by group, if there are any, are of at least as many clients as totals are."""
    strata = federation.strata
    totals = federation.class_totals
    if strata is None or totals is None:
        return True
    return len(strata.rows) >= len(totals.rows)


@dataclass(frozen=True, eq=False)
class ComparisonBasis:
    """The bins and classes on which the clients of a round are compared.

    Histograms have the shape (k, C, B): of k clients, C tables and B merged bins. There is a table
    for each class and, where `has_pooled_clients`, one more for the clients without classes; there
    is a single table where clients are compared without classes.

    Clients that state class totals beside pooled counts are compared by class, too: their counts
    are divided among the classes in proportion to the totals. Only the sums of such a table over
    the classes and over the bins are data; no comparison uses more of it.

    Attributes
    ----------
    bin_ends : ndarray of int, shape (B,)
        The last bin of each merged bin, as a position in the binning of the reports, ascending; the
        last one is the last bin.
    median_size : float
        The median number of samples of the sampled clients, at least 1.
    tuning : Tuning
        The constants of the defense.
    degrees_of_freedom : float
        Of the statistic by bin.
    n_classes : int
        The number of classes; 0 where clients are compared without classes.
    has_pooled_clients : bool
        Whether some clients report neither counts by class nor class totals while others do. Their
        counts form one more class, whose reference is all classes together.
    compares_groups : bool
        Whether the classes are groups where counts are by group.
    """

    bin_ends: IndexArray
    median_size: float
    tuning: Tuning
    degrees_of_freedom: float
    n_classes: int = 0
    has_pooled_clients: bool = False
    compares_groups: bool = True

    @staticmethod
    def from_federation(
        federation: Federation, sampled: Federation, tuning: Tuning
    ) -> ComparisonBasis:
        """Choose the bins and classes for a round from its sampled clients.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        sampled : Federation
            The clients among which references are sought: `federation` itself, or some of it.
        tuning : Tuning
            The constants of the defense.
        """
        bin_ends = common_bin_ends(sampled, tuning.quantile_orders)
        n_inner_edges = len(bin_ends) - 1

        # Classes are compared where the table of the sampled clients stays small.
        n_classes = 0
        has_pooled_clients = False
        compares_groups = _are_groups_compared(federation)
        classes = compared_classes(federation, compares_groups)
        if classes.n_classes > 0:
            # The bound on the sampled clients rather than their number, so that whether classes are
            # compared does not depend on how many clients report.
            n_cells = tuning.max_sampled_clients * classes.n_classes * len(bin_ends)
            if n_cells <= tuning.max_class_cells:
                n_classes = classes.n_classes
                has_pooled_clients = classes.n_clients < federation.n_clients

        return ComparisonBasis(
            bin_ends=bin_ends,
            median_size=max(float(np.median(sampled.sample_sizes)), 1.0),
            tuning=tuning,
            degrees_of_freedom=max(1.0, tuning.bin_freedom_factor * n_inner_edges),
            n_classes=n_classes,
            has_pooled_clients=has_pooled_clients,
            compares_groups=compares_groups,
        )

    def iter_row_blocks(self, n_clients: int) -> Iterator[IndexArray]:
        """Yield consecutive row indices of clients whose tables fit a processor's cache together.

        Parameters
        ----------
        n_clients : int
            How many clients there are; each is in exactly one block, in order.

        Yields
        ------
        ndarray of int, shape (k,)
            Consecutive positions; k is at least 1.
        """
        n_tables = self.n_classes + 1  # one for each class, and one of all classes together
        n_cells = n_tables * len(self.bin_ends)
        block_size = max(1, self.tuning.block_cells // n_cells)
        for start in range(0, n_clients, block_size):
            yield np.arange(start, min(start + block_size, n_clients))

    def client_views(self, clients: Federation) -> ClientViews:
        """Return the histograms of some clients, given their labels and without them.

        Counts are scaled to the client's sample size, which counts up to a multiple of the median.

        Parameters
        ----------
        clients : Federation
            k clients of the round, sampled or not, one count a sample.
        """
        max_size = int(self.tuning.max_relative_weight * self.median_size)
        sizes = np.clip(clients.sample_sizes, 1, max_size).astype(np.float64)
        counts_as_sent = self._merged_counts(clients)
        counts = counts_as_sent
        if clients.is_coarsened.any():
            counts = (counts_as_sent + self._merged_counts(clients.counts_in_lowest_bins())) / 2
        totals = np.maximum(counts.sum(axis=(1, 2)), 1)
        scale = sizes / totals
        has_totals_alone = self._has_totals_alone(clients)

        # The noise of a merged bin is that of all bins in it, which is independent. It is not
        # scaled with the counts. Without noise one zero stands for all clients and bins.
        noise_variance = np.zeros((1, 1))
        if clients.has_private_reports and clients.noise_variances.any():
            n_bins_merged = np.diff(self.bin_ends, prepend=-1)
            noise_variance = clients.noise_variances[:, None] * n_bins_merged

        # What coarsening leaves open; exact reports leave nothing open.
        coarsening = None
        if clients.is_coarsened.any():
            coarsening = CoarseningError.between(
                counts_as_sent, counts, scale, totals, has_totals_alone
            )

        # A client weighs at most as much in a reference as the median client.
        reference_weight = np.minimum(1, self.median_size / sizes)[:, None, None]
        given_labels = ClientHistograms(
            counts=counts * scale[:, None, None],
            sample_sizes=sizes,
            reference_weight=reference_weight,
            noise_variance=noise_variance,
            basis=self,
            coarsening=coarsening,
            has_totals_alone=has_totals_alone,
        )
        pooled = given_labels
        if counts.shape[1] > 1:
            pooled = replace(
                given_labels,
                counts=given_labels.counts.sum(axis=1, keepdims=True),
                has_totals_alone=np.zeros(len(sizes), dtype=bool),
            )
        return ClientViews(given_labels, pooled)

    def _has_totals_alone(self, clients: Federation) -> BoolArray:
        """Return (k,) which clients state class totals, and no counts by class."""
        has_totals = np.zeros(clients.n_clients, dtype=bool)
        if self.n_classes > 0:
            totals = compared_classes(clients, self.compares_groups).totals
            if totals is not None:
                has_totals[totals.rows] = True
        return has_totals

    def _merged_counts(self, clients: Federation) -> FloatArray:
        """Return (k, T, B) counts of some clients in the merged bins, none below 0; a new array.

        T is 1 where clients are compared without classes: the table holds all their counts. Else
        there is a table for each class and, with `has_pooled_clients`, one more for the counts of
        the clients that report no classes. All other entries are 0. The counts of clients with
        class totals alone are divided among the classes in proportion to the totals.

        Parameters
        ----------
        clients : Federation
            k clients of the round. Where `n_classes` is positive they have counts by class or class
            totals, in tables of no rows if none of the k clients reports them.
        """
        pooled = clients.merge_bins(self.bin_ends)
        if self.n_classes == 0:
            return np.maximum(pooled[:, None].astype(np.float64), 0)  # noise makes negative ones

        classes = compared_classes(clients, self.compares_groups)
        n_tables = self.n_classes + self.has_pooled_clients
        counts = np.zeros((len(pooled), n_tables, len(self.bin_ends)))

        # The last table is that of the clients without classes.
        if self.has_pooled_clients:
            counts[:, -1] = pooled

        strata = classes.strata
        if strata is not None:
            # The cells of class c are c * n_bins to (c + 1) * n_bins - 1. The last merged bin ends
            # with the last bin, so that no merged bin holds cells of two classes.
            first_cells = np.arange(self.n_classes)[:, None] * strata.n_bins
            cell_ends = first_cells + self.bin_ends
            merged = strata.table.merge_bins(cell_ends.ravel())
            counts[strata.rows] = 0
            counts[strata.rows, : self.n_classes] = merged.reshape(-1, *cell_ends.shape)

        totals = classes.totals
        if totals is not None:
            class_sizes = totals.stratum_sizes
            class_shares = class_sizes / class_sizes.sum(axis=1, keepdims=True)
            divided = class_shares[:, :, None] * pooled[totals.rows, None]
            counts[totals.rows] = 0
            counts[totals.rows, : self.n_classes] = divided
        return np.maximum(counts, 0)


@dataclass(frozen=True, eq=False)
class ClientHistograms:
    """Histograms of some clients on the comparison basis, in one view.

    Attributes
    ----------
    counts : ndarray of shape (k, C, B)
        Samples by table and merged bin, none below 0; one table in the pooled view. They are scaled
        to `sample_sizes`, so they are no whole numbers.
    sample_sizes : ndarray of shape (k,)
        The sums of the counts, in samples: at least 1 (also of a client without counts), and at
        most `max_relative_weight` times the median.
    reference_weight : ndarray of shape (k, 1, 1)
        Factor of each client's counts in a reference, at most 1, so that it holds at most as many
        samples as the median client.
    noise_variance : ndarray of shape (k, B) or (1, 1)
        Variance of the privacy noise on each count, summed over the tables, in squared samples.
    basis : ComparisonBasis
        The bins and classes of the view given labels; the pooled view has the same object.
    has_totals_alone : ndarray of bool, shape (k,)
        The clients whose counts by class are not known: of their tables only the sums over classes
        and over bins are data. Nobody in the pooled view.
    coarsening : CoarseningError or None
        How far the counts may be off; None where all reports are exact. The same in both views.
    """

    counts: FloatArray
    sample_sizes: FloatArray
    reference_weight: FloatArray
    noise_variance: FloatArray
    basis: ComparisonBasis
    has_totals_alone: BoolArray
    coarsening: CoarseningError | None


@dataclass(frozen=True, eq=False)
class CoarseningError:
    """How far the cumulative counts of some clients may be off, which are midpoints of two bounds.

    Attributes
    ----------
    edge_variance : ndarray of shape (k, B)
        Variances of the cumulative counts up to the end of each merged bin, in squared samples: of
        a number that is as likely anywhere between both bounds, (most - least)^2 / 12.
    cdf_as_sent : ndarray of shape (k, B)
        The CDFs of the counts as sent, which are never above the true ones.
    """

    edge_variance: FloatArray
    cdf_as_sent: FloatArray

    @staticmethod
    def between(
        counts_as_sent: FloatArray,
        counts: FloatArray,
        scale: FloatArray,
        totals: FloatArray,
        has_totals_alone: BoolArray,
    ) -> CoarseningError:
        """Compute the error from the lower bounds and the midpoints.

        Parameters
        ----------
        counts_as_sent, counts : ndarray of shape (k, T, B)
            The lower bounds and the midpoints in the merged bins, in samples.
        scale : ndarray of shape (k,)
            By what the counts of each client are multiplied for the comparison.
        totals : ndarray of shape (k,)
            The sums of each client's counts.
        has_totals_alone : ndarray of bool, shape (k,)
            Whose tables are one table of all classes that was divided. All other tables were
            coarsened each by itself, so that their errors are independent.
        """
        half_widths = np.cumsum(counts - counts_as_sent, axis=2)  # half of most - least
        of_all_classes = half_widths.sum(axis=1) ** 2
        of_each_class = (half_widths**2).sum(axis=1)
        squares = np.where(has_totals_alone[:, None], of_all_classes, of_each_class)
        edge_variance = squares / 3 * scale[:, None] ** 2
        cdf_as_sent = np.cumsum(counts_as_sent.sum(axis=1), axis=1) / totals[:, None]
        return CoarseningError(edge_variance, cdf_as_sent)


class ClientViews(NamedTuple):
    """The same clients given their labels and without them.

    Both are one object where there are no labels. Sample sizes are the same in both.
    """

    given_labels: ClientHistograms
    pooled: ClientHistograms


def common_bin_ends(federation: Federation, quantile_orders: Sequence[float]) -> IndexArray:
    """Return the last bin of each merged bin: medians of the clients' own quantiles.

    Parameters
    ----------
    federation : Federation
        A few clients; their counts are held as a whole.
    quantile_orders : sequence of float
        The orders of the quantiles, between 0 and 1.

    Returns
    -------
    ndarray of int, shape (B,)
        Ascending and distinct; the last one is the last bin. B is at most the number of orders
        plus one.
    """
    counts = federation.at_midpoints(lambda bounded: bounded.counts)
    cumulative = np.cumsum(np.maximum(counts, 0), axis=1)  # noise makes negative counts
    cdfs = cumulative / np.maximum(cumulative[:, -1:], 1)
    last_bin = federation.binning.n_bins - 1
    median_bins = []
    for order in quantile_orders:
        # The number of bins before the order is reached is the first bin that reaches it.
        quantile_bins = (cdfs < order - CDF_TOLERANCE).sum(axis=1)
        median_bins.append(np.median(quantile_bins))

    # A median between two bins is rounded down.
    bin_ends = np.minimum(np.array(median_bins, dtype=np.intp), last_bin)
    return np.unique(np.append(bin_ends, last_bin))


def common_classes(clients: ClientHistograms) -> BoolArray:
    """Return (C,) the classes that most clients hold.

    Three in four clients hold at least a quarter of its mean share. Where fewer do, malicious
    clients may be most of a class's holders, and what the class leads one to expect is theirs.

    Without classes there is one table, which is not common: no label tells what to expect.

    Parameters
    ----------
    clients : ClientHistograms
        The sampled clients, given their labels.
    """
    tuning = clients.basis.tuning
    class_shares = clients.counts.sum(axis=2) / clients.sample_sizes[:, None]  # (k, C)
    lower_quantile = np.quantile(class_shares, tuning.common_class_quantile, axis=0)
    is_rare = lower_quantile < tuning.common_class_share * class_shares.mean(axis=0)
    has_classes = len(is_rare) > 1
    return np.asarray(~is_rare & has_classes)
