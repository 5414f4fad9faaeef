"""The default defense's vote as a formula: loops and fractions, one edge after another.

A voter's share F_k(t) of scores at or below the edge t speaks as g((F_k(t) - wanted) / s_k), where

    s_k^2 = L (1 - L) (1 / n_k + phi)

is the variance of the share of a benign client of n_k samples at level L, phi being how much benign
clients differ. g cuts off at +1/2: nobody vouches for more than half a deviation; and at -2, or at
-1/2 for a client suspected of larger scores than it should have. An edge is accepted where the sum
of the weighted votes is at least what benign voters give on average.
"""

from math import sqrt
from statistics import NormalDist

UPPER_CLIP = 0.5
N_QUANTILES = 10_000


def clip(value, low, high):
    return min(max(value, low), high)


def clipped_normal_moments():
    """E g(Z), and the deviation of Z - (g(Z) - E g(Z)) / P(g(Z) = Z), for Z standard normal."""
    normal = NormalDist()
    z = [normal.inv_cdf((k + 0.5) / N_QUANTILES) for k in range(N_QUANTILES)]
    clipped = [clip(value, -1 / UPPER_CLIP, UPPER_CLIP) for value in z]
    mean = sum(clipped) / N_QUANTILES
    unclipped = sum(a == b for a, b in zip(z, clipped, strict=True)) / N_QUANTILES
    differences = [a - (b - mean) / unclipped for a, b in zip(z, clipped, strict=True)]
    middle = sum(differences) / N_QUANTILES
    variance = sum((value - middle) ** 2 for value in differences) / N_QUANTILES
    return mean, sqrt(variance)


MEAN, SPREAD = clipped_normal_moments()


def voted_bin(counts, suspected, dispersion, level, first, largest_weight):
    """The first bin at or above FCP's (`first`) that the voters accept; None = infinite.

    counts: the voters' histograms, lists of whole numbers. suspected: whether each of them is
    suspected of larger scores. largest_weight: a client counts with at most so many samples.
    """
    if first is None:
        return None
    share = float(level)
    sizes = [sum(row) for row in counts]
    weights = [min(n, largest_weight) for n in sizes]
    variances = [1 / n + dispersion for n in sizes]
    total_weight = sum(weights)

    # Vote and mean differ by so much where everybody is benign; 1 sample is FCP's correction.
    together = sum(w * w * v for w, v in zip(weights, variances, strict=True))
    deviation = sqrt(share * (1 - share) * together)
    wanted = share - max((SPREAD * deviation - 1) / total_weight, 0.0)

    for edge in range(first, len(counts[0])):
        total = 0.0
        for row, n, weight, variance, is_suspected in zip(
            counts, sizes, weights, variances, suspected, strict=True
        ):
            unit = sqrt(share * (1 - share) * variance)
            ahead = (sum(row[: edge + 1]) / n - wanted) / unit
            lowest = -UPPER_CLIP if is_suspected else -1 / UPPER_CLIP
            total += weight * unit * (clip(ahead, lowest, UPPER_CLIP) - MEAN)
        if total >= -1e-9 * total_weight:
            return edge
    return None


def consensus_bin(counts, voter_sets, duplicates, suspected, dispersion, level, fcp_bin, cap):
    """The highest bin that any plausible set of voters accepts.

    voter_sets: sets of clients that may vote. duplicates: groups of clients with equal reports, of
    which the first that may vote speaks alone. fcp_bin(voters): the bin of FCP's threshold on them.
    """
    highest = -1
    for voters in voter_sets:
        speaking = set(voters)
        for group in duplicates:
            members = [k for k in sorted(group) if k in speaking]
            speaking -= set(members[1:])
        speakers = sorted(speaking)
        found = voted_bin(
            [counts[k] for k in speakers],
            [suspected[k] for k in speakers],
            dispersion,
            level,
            fcp_bin(speakers),
            cap,
        )
        if found is None:
            return None
        highest = max(highest, found)
    return highest
