"""The clipped vote: FCP's threshold, raised where clients claim more than their samples show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from statistics import NormalDist

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.defense._duplicates import DuplicateGroup
from robfcp.defense.consensus._tuning import Tuning
from robfcp.federation import Federation
from robfcp.guarantees import FCPThreshold, RankRule

N_NORMAL_QUANTILES = 10_000  # by which the moments of a clipped normal variable are computed
N_BINS_PER_PASS = 16  # of which the votes are counted in one pass over the reports
UNLIMITED_SIZE = 2.0**40  # samples, more than any client has

# Votes are rounded to integers, so that their sum is the same in any order. Their sum at one bin is
# at most about this number, so that it fits into 64 bits.
VOTE_SCALE = 2.0**59
MIN_ACCEPTED_VOTE = -1e-9 * VOTE_SCALE  # a sum of zero, up to rounding; in the unit of scaled votes


@dataclass(frozen=True, eq=False)
class ClippedVoteThreshold:
    """FCP's threshold, raised until the clients' clipped votes accept it.

    At bin t a client votes with its empirical CDF F_k(t), that of a coarsened report at the
    midpoint of its bounds:

        v_k(t) = s_k [clip((F_k(t) - L + d) / s_k, -b_k, a) - e],
        s_k^2 = L (1 - L) (1 / n_k + phi),

    where L is the level, n_k the client's sample size, phi the overdispersion, a = `upper_clip`,
    b_k = 1 / a, or a for a client that is suspected of larger scores, and e the mean of a standard
    normal variable that is clipped to [-1 / a, a]. A client counts for at most `a` standard
    deviations in favor of a bin, so that malicious clients with small scores cannot lower the
    threshold by more than their samples allow.

    The threshold is the first bin at or above FCP's at which sum_k w_k v_k(t) >= 0. d is the
    standard deviation of the difference between clipped and plain vote if all clients are benign,
    less 1 / N. The weights w_k are sample sizes, at most a multiple of their median unless sizes
    are registered. Of several sets of voters the highest threshold is taken.

    Attributes
    ----------
    federation : Federation
        The reports of one round, one count a sample and without noise: else the assessment takes
        FCP's threshold alone.
    voter_sets : sequence of ndarray of bool, shape (K,)
        The clients that vote, under every plausible reference; at least one set.
    duplicates : sequence of DuplicateGroup
        Clients with equal reports, of which one votes.
    suspected_larger : ndarray of bool, shape (K,)
        Clients suspected of larger scores than they should have.
    overdispersion : float
        phi, per sample.
    rank : RankRule
        By which FCP's threshold is computed.
    tuning : Tuning
        For the clip and the largest weight.
    """

    federation: Federation
    voter_sets: Sequence[BoolArray]
    duplicates: Sequence[DuplicateGroup]
    suspected_larger: BoolArray
    overdispersion: float
    rank: RankRule
    tuning: Tuning

    def bin_index(self, level: Fraction) -> int | None:
        """Return the highest bin that any set of voters accepts; None for an infinite threshold.

        Parameters
        ----------
        level : Fraction
            The target coverage.
        """
        bins = []
        for voters in self.voter_sets:
            voters = one_voter_per_group(voters, self.duplicates)

            # The threshold of no voters at all is infinite: the search always has a voter.
            fcp_bin = FCPThreshold(self.federation, voters, self.rank).bin_index(level)
            if fcp_bin is None:
                return None
            accepted_bin = self._first_accepted_bin(voters, fcp_bin, level)
            if accepted_bin is None:
                return None
            bins.append(accepted_bin)
        return max(bins)

    def _first_accepted_bin(self, voters: BoolArray, first_bin: int, level: Fraction) -> int | None:
        """Return the first bin at or above `first_bin` that the voters accept; None without any.

        The sum of the votes grows with the bin, so the first one is found by bisection, several
        bins in one pass over the reports.

        Parameters
        ----------
        voters : ndarray of bool, shape (K,)
            Who votes; at least one client.
        first_bin : int
            The bin of FCP's threshold on the voters.
        level : Fraction
            The target coverage.
        """
        votes = ClippedVotes.of_voters(self, voters, level)
        n_bins = self.federation.binning.n_bins

        # Invariant: no bin below `low` is accepted, and every bin from `high` on is. Bin `n_bins`
        # does not exist and stands for an infinite threshold.
        low, high = first_bin, n_bins
        while low < high:
            bins = np.unique(np.linspace(low, high - 1, N_BINS_PER_PASS).astype(np.intp))
            sums = self.federation.reduce_blocks(
                partial(votes.sum_at, bins=bins), voters, self.suspected_larger
            )
            accepted = np.flatnonzero(sums >= MIN_ACCEPTED_VOTE)
            if len(accepted) == 0:
                low = int(bins[-1]) + 1
                continue
            first_accepted = int(accepted[0])
            high = int(bins[first_accepted])
            if first_accepted > 0:
                low = int(bins[first_accepted - 1]) + 1
        if low == n_bins:
            return None
        return low


@dataclass(frozen=True)
class ClippedVotes:
    """The votes of one set of voters at one level.

    Attributes
    ----------
    level : float
        L, the target coverage.
    corrected_level : float
        L - d, which the CDFs are compared with.
    overdispersion : float
        phi, per sample.
    max_weight : int
        The largest weight of a client, in samples.
    total_weight : float
        Sum of the voters' weights, in samples; positive.
    upper_clip : float
        a, in standard deviations s_k.
    mean_vote : float
        e, in standard deviations s_k.
    """

    level: float
    corrected_level: float
    overdispersion: float
    max_weight: int
    total_weight: float
    upper_clip: float
    mean_vote: float

    @staticmethod
    def of_voters(
        threshold: ClippedVoteThreshold, voters: BoolArray, level: Fraction
    ) -> ClippedVotes:
        """Compute what all votes share from the voters' sample sizes.

        Parameters
        ----------
        threshold : ClippedVoteThreshold
            For the reports and the constants.
        voters : ndarray of bool, shape (K,)
            Who votes: at least one client, and of each group of duplicates at most one.
        level : Fraction
            The target coverage.
        """
        federation = threshold.federation
        tuning = threshold.tuning
        target = float(level)
        overdispersion = threshold.overdispersion
        max_weight = max_voting_weight(federation, tuning)

        # Sums over distinct sizes: few numbers, in an order that no client can choose.
        sizes, n_of_size = np.unique(federation.sample_sizes[voters], return_counts=True)
        weights = np.minimum(sizes, max_weight).astype(np.float64)
        total_weight = float(n_of_size @ weights)

        # The standard deviation of sum_k w_k F_k(t), from s_k^2 of each client; in samples.
        variance_factor = float(n_of_size @ (weights**2 * (1 / sizes + overdispersion)))
        standard_deviation = float(np.sqrt(target * (1 - target) * variance_factor))

        # d: the standard deviation that clipping adds to the weighted mean of all CDFs. One sample
        # is subtracted, as FCP's own correction is in the bin that the search begins with.
        mean_vote, clipping_sd = clipped_normal_moments(tuning.upper_clip)
        correction = max((clipping_sd * standard_deviation - 1) / total_weight, 0.0)
        return ClippedVotes(
            level=target,
            corrected_level=target - correction,
            overdispersion=overdispersion,
            max_weight=max_weight,
            total_weight=total_weight,
            upper_clip=tuning.upper_clip,
            mean_vote=mean_vote,
        )

    def sum_at(
        self,
        block: Federation,
        voters: BoolArray,
        suspected_larger: BoolArray,
        bins: IndexArray,
    ) -> IntArray:
        """Return (E,) sums of the weighted votes w_k v_k(t) of a block's clients at some bins.

        The sums are integers, VOTE_SCALE over the total weight times the votes: blocks may be added
        in any order. The formula of v_k(t) is that of `ClippedVoteThreshold`.

        Parameters
        ----------
        block : Federation
            k clients of the round.
        voters, suspected_larger : ndarray of bool, shape (k,)
            Which of them vote, and which are suspected of larger scores.
        bins : ndarray of int, shape (E,)
            The bins, ascending and distinct.
        """
        # All arrays of floats are (V, 1) or (V, E), for the V voters of the block.
        rows = np.flatnonzero(voters)
        sizes = block.sample_sizes[rows, None].astype(np.float64)
        variance = self.level * (1 - self.level) * (1 / sizes + self.overdispersion)
        standard_deviation = np.sqrt(variance)
        lower_clip = np.where(suspected_larger[rows, None], self.upper_clip, 1 / self.upper_clip)

        cdf = block.cumulative_midpoints(bins)[rows] / sizes
        standardized = (cdf - self.corrected_level) / standard_deviation
        clipped = np.clip(standardized, -lower_clip, self.upper_clip)
        weights = np.minimum(sizes, self.max_weight)
        votes = weights * standard_deviation * (clipped - self.mean_vote)

        scaled = np.rint(VOTE_SCALE / self.total_weight * votes).astype(np.int64)
        return np.asarray(scaled.sum(axis=0))


def one_voter_per_group(voters: BoolArray, duplicates: Sequence[DuplicateGroup]) -> BoolArray:
    """Return the voters without all but the first of every group of clients with equal reports.

    Parameters
    ----------
    voters : ndarray of bool, shape (K,)
        The clients that may vote; not changed.
    duplicates : sequence of DuplicateGroup
        The groups, which share no client.

    Returns
    -------
    ndarray of bool, shape (K,)
        Of a group the first client that may vote, which need not be the first of the group.
    """
    voters = voters.copy()
    for group in duplicates:
        voting_rows = group.rows[voters[group.rows]]
        voters[voting_rows[1:]] = False
    return voters


def max_voting_weight(federation: Federation, tuning: Tuning) -> int:
    """Return the largest weight of a client in the vote, in samples.

    A multiple of the median size, so that a claimed size buys no influence. Registered sizes are
    known to be true and count as they are.

    Parameters
    ----------
    federation : Federation
        The whole round: the median is that of all clients, whether or not they vote.
    tuning : Tuning
        For the multiple.

    Returns
    -------
    int
        At least 1.
    """
    median_size = float(np.median(federation.sample_sizes))
    if federation.sizes_registered:
        median_size = UNLIMITED_SIZE
    return max(1, int(tuning.max_relative_weight * median_size))


def clipped_normal_moments(upper_clip: float) -> tuple[float, float]:
    """Return the mean of a clipped normal variable, and how much clipping adds to its deviation.

    With Z standard normal and g(Z) = clip(Z, -1 / upper_clip, upper_clip) these are e = E g(Z) and
    the standard deviation of Z - (g(Z) - e) / P(g(Z) = Z), the difference between a plain vote and
    a clipped one that is scaled to the same slope.

    Parameters
    ----------
    upper_clip : float
        a, where Z is clipped above; positive.

    Returns
    -------
    mean : float
        e, in standard deviations of Z.
    clipping_sd : float
        The standard deviation of the difference, in those of Z.
    """
    # Quantiles at the midpoints of equal probabilities stand for Z.
    normal = NormalDist()
    probabilities = [(k + 0.5) / N_NORMAL_QUANTILES for k in range(N_NORMAL_QUANTILES)]
    z: FloatArray = np.array([normal.inv_cdf(probability) for probability in probabilities])
    clipped = np.clip(z, -1 / upper_clip, upper_clip)
    mean = clipped.mean()
    share_unclipped = (clipped == z).mean()  # the slope of g on average
    difference = z - (clipped - mean) / share_unclipped
    return float(mean), float(difference.std())
