"""What a client's mix of classes leads one to expect of its scores, where classes are only totals.

Default reports hold one table of counts of all classes together, and rounded class totals. Which
scores are of which class is then not known, but clients of different mixes show it together. K is
the number of clients, C of classes, H of bins and B of rank cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.defense.consensus import divide_among_classes, estimate_class_counts
from robfcp.diagnosis._causes import RANK_DISTRIBUTIONS
from robfcp.diagnosis._likelihood import (
    MIN_CELL_PROBABILITY,
    N_RANK_CELLS,
    UNCLEAR_LOG_PENALTY,
    log_dirichlet_multinomial,
)
from robfcp.federation import Federation, StratifiedTable
from robfcp.reports import class_size_bounds

EM_ROUNDS = 8  # of expectation and maximization
PRIOR_STRENGTH = 10.0  # samples of all classes together that are added to each class
MIN_CELL_SHARE = 1e-9  # so that no expected share is 0


class ClassSizes(NamedTuple):
    """How many samples of each class some clients may have.

    Attributes
    ----------
    lower, upper : ndarray of int, shape (k, C)
        Between these the numbers are; equal where they are exact. 0 for clients that state none.
    n_samples : ndarray of int, shape (k,)
        The samples of all classes together.
    names : tuple of str
        The names of the C classes.
    """

    lower: IntArray
    upper: IntArray
    n_samples: IntArray
    names: tuple[str, ...]

    @staticmethod
    def from_federation(clients: Federation) -> ClassSizes:
        """Return the sizes of the classes of some clients of a round with class totals.

        Parameters
        ----------
        clients : Federation
            The clients, in memory, one count a sample.
        """
        totals = clients.class_totals
        assert totals is not None
        lower = np.zeros((clients.n_clients, totals.n_strata), dtype=np.int64)
        upper = np.zeros_like(lower)

        # The sizes of clients with counts by class are exact.
        strata = _strata_by_class(clients)
        if strata is not None:
            lower[strata.rows] = strata.stratum_sizes
            upper[strata.rows] = strata.stratum_sizes

        # Class totals are rounded.
        min_cell_counts = clients.min_cell_counts[totals.rows, None]
        bounds = class_size_bounds(totals.stratum_sizes, min_cell_counts)
        lower[totals.rows], upper[totals.rows] = bounds
        return ClassSizes(lower, upper, clients.sample_sizes, totals.labels)

    @property
    def midpoints(self) -> FloatArray:
        """(k, C) half-way between the bounds: estimates."""
        return (self.lower + self.upper) / 2

    def ratios_to(self, class_shares: FloatArray) -> tuple[float, float]:
        """Return how much rarer and how much more frequent a class of the first client is, at most.

        Parameters
        ----------
        class_shares : ndarray of shape (C,)
            The share of each class, of the peers.

        Returns
        -------
        lowest, highest : float
            The range of the ratios of the client's share of a class to the peers' share, over the
            classes that the client or the peers hold; from 0 to 1, and from 1 to infinity.
        """
        n_samples = max(1, int(self.n_samples[0]))
        is_held = (self.upper[0] > 0) | (class_shares > 0)
        fractions = np.maximum(class_shares[is_held], MIN_CELL_SHARE)
        lowest = self.lower[0, is_held] / n_samples / fractions
        highest = self.upper[0, is_held] / n_samples / fractions
        return min(1.0, float(lowest.min())), max(1.0, float(highest.max()))

    def nearest_to(self, class_shares: FloatArray) -> FloatArray:
        """Return (C,) the sizes of the first client that are possible and most like some shares.

        Parameters
        ----------
        class_shares : ndarray of shape (C,)
            The share of each class, of the peers.
        """
        return np.clip(self.n_samples[0] * class_shares, self.lower[0], self.upper[0])


def _strata_by_class(clients: Federation) -> StratifiedTable | None:
    """Return the counts by class where there are any, of the classes of the class totals."""
    strata = clients.noise_free_strata
    totals = clients.class_totals
    if strata is None or totals is None or strata.by != "class" or strata.labels != totals.labels:
        return None
    return strata


def _known_rows(federation: Federation) -> IndexArray:
    """Return the positions of the clients whose classes are known, rising."""
    assert federation.class_totals is not None
    rows = federation.class_totals.rows
    strata = _strata_by_class(federation)
    return rows if strata is None else np.union1d(rows, strata.rows)


@dataclass(frozen=True, eq=False)
class ClassProfiles:
    """The distribution of the scores of each class among the peers, as far as mixes tell it.

    Scores are counted in rank cells, which hold about equally many of the peers' scores.

    Attributes
    ----------
    rows : ndarray of int, shape (P,)
        The positions of the included clients that state class totals, rising; of many, some.
    sizes : ClassSizes
        Their samples of each class.
    counts : ndarray of shape (P, B)
        Their counts in these cells, at midpoints.
    cell_of_bin : ndarray of int, shape (H,)
        The rank cell of each bin.
    """

    rows: IndexArray
    sizes: ClassSizes
    counts: FloatArray
    cell_of_bin: IndexArray

    @staticmethod
    def from_federation(
        federation: Federation, pooled: FloatArray, benign_mask: BoolArray, max_cells: int
    ) -> ClassProfiles | None:
        """Count the included clients in rank cells; None where no report states class totals.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        pooled : ndarray of shape (H,)
            The counts of all included clients together, at midpoints.
        benign_mask : ndarray of bool, shape (K,)
            The included clients.
        max_cells : int
            Clients times classes that are looked at; of more, clients evenly spaced.
        """
        totals = federation.noise_free_class_totals
        if totals is None or len(totals.rows) == 0:
            return None
        rows = _known_rows(federation)
        rows = rows[benign_mask[rows]]
        max_rows = max(1, max_cells // totals.n_strata)
        if len(rows) > max_rows:
            rows = rows[np.linspace(0, len(rows) - 1, max_rows).astype(np.intp)]

        middle_rank = (np.cumsum(pooled) - pooled / 2) / max(1.0, float(pooled.sum()))
        cell_of_bin = np.minimum((N_RANK_CELLS * middle_rank).astype(np.intp), N_RANK_CELLS - 1)

        # Cells that no bin belongs to have no counts.
        last_bins = np.flatnonzero(np.diff(cell_of_bin, append=N_RANK_CELLS))
        clients = federation.select_rows(rows)
        counts = np.zeros((len(rows), N_RANK_CELLS))
        counts[:, cell_of_bin[last_bins]] = clients.at_midpoints(
            lambda bounded: bounded.merge_bins(last_bins)
        )
        return ClassProfiles(rows, ClassSizes.from_federation(clients), counts, cell_of_bin)

    def peer_sizes(self, k: int) -> FloatArray:
        """Return (C,) about how many samples of each class the peers of client k have together."""
        return np.asarray(self.sizes.midpoints[self.rows != k].sum(axis=0))

    @cached_property
    def _profile_counts(self) -> FloatArray:
        """(C, B) the likeliest samples of all peers by class and cell.

        Estimated as in the default defense.
        """
        class_sizes = self.sizes.midpoints
        pooled = self.counts.sum(axis=0)
        start = np.outer(class_sizes.sum(axis=0), pooled / max(1.0, float(pooled.sum())))
        return estimate_class_counts(class_sizes, self.counts, start, _cell_shares, EM_ROUNDS)

    def expected_peers(self, k: int, client_row: ClassSizes, peer_counts: FloatArray) -> FloatArray:
        """Return (H,) the peers' counts, weighted as if their mix of classes were that of client k.

        Parameters
        ----------
        k : int
            The client.
        client_row : ClassSizes
            Its samples of each class, alone.
        peer_counts : ndarray of shape (H,)
            The counts of its peers together, at midpoints.
        """
        total = self._profile_counts

        # Without what the client itself contributed.
        for row in np.flatnonzero(self.rows == k):
            sizes = self.sizes.midpoints[[row]]
            contribution = divide_among_classes(sizes, self.counts[[row]], _cell_shares(total))
            total = np.maximum(total - contribution[0], 0)

        fractions = _cell_shares(total)
        peer_sizes = total.sum(axis=1)
        own_sizes = client_row.midpoints[0]
        usual = peer_sizes @ fractions / max(1.0, float(peer_sizes.sum()))
        expected = own_sizes @ fractions / max(1.0, float(own_sizes.sum()))
        ratio = expected / np.maximum(usual, MIN_CELL_SHARE)
        return np.asarray(peer_counts * ratio[self.cell_of_bin])


def _cell_shares(total: FloatArray) -> FloatArray:
    """Return (C, B) the shares of the cells within each class, from counts by class."""
    pooled = total.sum(axis=0) + MIN_CELL_SHARE
    with_prior = total + PRIOR_STRENGTH * pooled / pooled.sum()
    return np.asarray(with_prior / with_prior.sum(axis=1, keepdims=True))


def different_distribution_likelihood(ranks: FloatArray, lowest: float, highest: float) -> float:
    """Return the log-likelihood of a client's ranks if no more than its mix of classes is another.

    Let a class have the share s_c at the client and q_c at its peers. If the scores within every
    class are distributed as the peers', the density of the client's ranks among theirs is a mean of
    the ratios s_c / q_c everywhere, so that it lies between the lowest and the highest of them.
    The likeliest such distribution is taken, which costs as much as "different population".

    Parameters
    ----------
    ranks : ndarray of shape (B,)
        The client's scores in each rank cell.
    lowest, highest : float
        The range of the ratios.
    """
    is_similar = RANK_DISTRIBUTIONS["similar"]
    observed = ranks / max(1.0, float(ranks.sum()))
    lower = max(lowest / len(ranks), MIN_CELL_PROBABILITY)
    upper = min(highest / len(ranks), 1.0)

    # Multiples of the observed shares, clipped to the range: the factor for which they sum to 1.
    low_factor, high_factor = 0.0, 1.0 / max(float(observed[observed > 0].min(initial=1.0)), 1e-6)
    for _ in range(60):
        factor = (low_factor + high_factor) / 2
        if np.clip(factor * observed, lower, upper).sum() < 1:
            low_factor = factor
        else:
            high_factor = factor
    nearest = np.clip(high_factor * observed, lower, upper)
    strengths = is_similar.strength * nearest / nearest.sum()
    return float(log_dirichlet_multinomial(strengths, ranks)) - UNCLEAR_LOG_PENALTY
