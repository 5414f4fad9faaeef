"""How the clients of a round are compared: on a few bins, by class where reports keep classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp.defense.consensus._tuning import Tuning
from robfcp.federation import Federation

CDF_TOLERANCE = 1e-12  # up to which a CDF that is computed in floating point reaches an order
EMPTY_BIN_MASS = 1e-9  # samples added to each pooled bin: a span of empty bins has a mass, too


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


@dataclass(frozen=True, eq=False)
class ComparisonBasis:
    """The bins and classes on which the clients of a round are compared.

    Histograms have the shape (k, C, B): of k clients, C tables and B merged bins. There is a table
    for each class and, where `has_pooled_clients`, one more for the clients without classes; there
    is a single table where clients are compared without classes.

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
        Whether some clients report no classes while others do. Their counts form one more class,
        whose reference is all classes together.
    pooled_histogram : ndarray of shape (B,), optional
        The pooled counts of all sampled clients in the merged bins, positive everywhere; None
        unless most reports are coarsened. Counts of coarsened reports are spread over the bins they
        may have come from in proportion to it.
    """

    bin_ends: IndexArray
    median_size: float
    tuning: Tuning
    degrees_of_freedom: float
    n_classes: int = 0
    has_pooled_clients: bool = False
    pooled_histogram: FloatArray | None = None

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
        strata = federation.noise_free_strata
        if strata is not None:
            # The bound on the sampled clients rather than their number, so that whether classes are
            # compared does not depend on how many clients report.
            n_cells = tuning.max_sampled_clients * strata.n_strata * len(bin_ends)
            if n_cells <= tuning.max_class_cells:
                n_classes = strata.n_strata
                has_pooled_clients = len(strata.rows) < federation.n_clients

        # Some reports look coarsened by chance; only where most do, cells are spread.
        pooled_histogram = None
        if 2 * sampled.is_coarsened.sum() > sampled.n_clients:
            pooled_histogram = sampled.merge_bins(bin_ends).sum(axis=0) + EMPTY_BIN_MASS

        return ComparisonBasis(
            bin_ends=bin_ends,
            median_size=max(float(np.median(sampled.sample_sizes)), 1.0),
            tuning=tuning,
            degrees_of_freedom=max(1.0, tuning.bin_freedom_factor * n_inner_edges),
            n_classes=n_classes,
            has_pooled_clients=has_pooled_clients,
            pooled_histogram=pooled_histogram,
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
        counts = self._merged_counts(clients)
        totals = np.maximum(counts.sum(axis=(1, 2)), 1)
        counts *= (sizes / totals)[:, None, None]  # a new array, which nobody else holds

        # The noise of a merged bin is that of all bins in it, which is independent. It is not
        # scaled with the counts. Without noise one zero stands for all clients and bins.
        noise_variance = np.zeros((1, 1))
        if clients.has_private_reports and clients.noise_variances.any():
            n_bins_merged = np.diff(self.bin_ends, prepend=-1)
            noise_variance = clients.noise_variances[:, None] * n_bins_merged

        # A client weighs at most as much in a reference as the median client.
        reference_weight = np.minimum(1, self.median_size / sizes)[:, None, None]
        given_labels = ClientHistograms(counts, sizes, reference_weight, noise_variance, self)
        pooled = given_labels
        if counts.shape[1] > 1:
            pooled = replace(given_labels, counts=counts.sum(axis=1, keepdims=True))
        return ClientViews(given_labels, pooled)

    def _merged_counts(self, clients: Federation) -> FloatArray:
        """Return (k, T, B) counts of some clients in the merged bins, none below 0; a new array.

        T is 1 where clients are compared without classes: the table holds all their counts. Else
        there is a table for each class and, with `has_pooled_clients`, one more for the counts of
        the clients that report no classes. All other entries are 0.

        Parameters
        ----------
        clients : Federation
            k clients of the round. Where `n_classes` is positive they have counts by class, in a
            table of no rows if none of the k clients reports classes.
        """
        pooled = clients.merge_bins(self.bin_ends)
        if self.n_classes == 0:
            counts = pooled[:, None].astype(np.float64)
        else:
            strata = clients.noise_free_strata
            assert strata is not None  # whoever has classes keeps them in every selection
            n_tables = self.n_classes + self.has_pooled_clients
            counts = np.zeros((len(pooled), n_tables, len(self.bin_ends)))

            # The cells of class c are c * n_bins to (c + 1) * n_bins - 1. The last merged bin ends
            # with the last bin, so that no merged bin holds cells of two classes.
            first_cells = np.arange(self.n_classes)[:, None] * strata.n_bins
            cell_ends = first_cells + self.bin_ends
            merged = strata.table.merge_bins(cell_ends.ravel())
            counts[strata.rows, : self.n_classes] = merged.reshape(-1, *cell_ends.shape)

            # The last table is that of the clients without classes.
            if self.has_pooled_clients:
                counts[:, -1] = pooled
                counts[strata.rows, -1] = 0

        counts = np.maximum(counts, 0)  # privacy noise makes negative ones
        if self.pooled_histogram is None:
            return counts
        return self._spread_coarsened_counts(clients, counts, self.pooled_histogram)

    def _spread_coarsened_counts(
        self, clients: Federation, counts: FloatArray, pooled_histogram: FloatArray
    ) -> FloatArray:
        """Spread the counts of coarsened reports over the bins they may have come from.

        A coarsened report moves scores up so that every cell holds at least five samples. Compared
        bin by bin, its client would look as if its scores were too large. Each cell's count is
        therefore distributed over the merged bins that the cell spans, in proportion to the pooled
        histogram.

        Parameters
        ----------
        clients : Federation
            The k clients whose counts are given.
        counts : ndarray of shape (k, C, B)
            Their counts in the merged bins, in samples and not scaled yet; not changed.
        pooled_histogram : ndarray of shape (B,)
            Pooled counts of all sampled clients in the merged bins, all positive.

        Returns
        -------
        ndarray of shape (k, C, B)
            `counts`, with the rows of coarsened clients replaced. Their sums are the same.
        """
        n_clients, n_tables, n_bins = counts.shape
        spans, is_coarsened = clients.count_spans()

        # The first merged bin of every span, the one behind it, and the pooled mass between them,
        # which is positive. The density is the span's count per unit of that mass.
        first_bins = np.searchsorted(self.bin_ends, spans.low)
        stop_bins = np.searchsorted(self.bin_ends, spans.high) + 1
        cumulative = np.append(0, np.cumsum(pooled_histogram))
        density = spans.counts / (cumulative[stop_bins] - cumulative[first_bins])

        # The stratum of clients that report none is the number of strata, which is the last table.
        # Where clients are compared without classes, all strata are in the only table.
        table_index = np.minimum(spans.stratum, n_tables - 1)

        # Difference array: a span's density is added where the span starts and subtracted behind
        # its end, so the running sum over the bins is the density of all spans that cover a bin.
        # It has one column more than bins, for the spans that end with the last bin.
        shape = (n_clients, n_tables, n_bins + 1)
        first_cells = (spans.row * n_tables + table_index) * (n_bins + 1)
        starts = np.bincount(first_cells + first_bins, density, np.prod(shape))
        stops = np.bincount(first_cells + stop_bins, density, np.prod(shape))
        changes = (starts - stops).reshape(shape)
        density_per_bin = np.cumsum(changes, axis=2)[:, :, :-1]

        spread_counts = density_per_bin * pooled_histogram
        return np.where(is_coarsened[:, None, None], spread_counts, counts)


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
    """

    counts: FloatArray
    sample_sizes: FloatArray
    reference_weight: FloatArray
    noise_variance: FloatArray
    basis: ComparisonBasis


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
    cumulative = np.cumsum(np.maximum(federation.counts, 0), axis=1)  # noise makes negative counts
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
