"""The vote of the default defense as a formula: plain loops over the bins.

A voter with the fraction F_k(t) of its scores at or below the edge t votes
g((F_k(t) - target) / s_k), where

    s_k^2 = L (1 - L) (1 / n_k + phi)

is the variance of that fraction for a benign client of n_k samples at level L, phi being the
overdispersion of benign clients. g clips at +1/2, half a standard deviation, and at -2, or at -1/2
for a client suspected of larger scores. A bin is accepted where the sum of the weighted votes is at
least the mean of this sum over benign voters.
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
    mean_difference = sum(differences) / N_QUANTILES
    variance = sum((value - mean_difference) ** 2 for value in differences) / N_QUANTILES
    return mean, sqrt(variance)


MEAN, SPREAD = clipped_normal_moments()


def voted_bin(counts, suspected, dispersion, level, fcp_bin, largest_weight):
    """Return the first bin at or above `fcp_bin` that the voters accept; None: infinite.

    counts: the voters' histograms, lists of whole numbers. suspected: whether each of them is
    suspected of larger scores. largest_weight: a client counts with at most this number of samples.
    """
    if fcp_bin is None:
        return None
    target_level = float(level)
    sizes = [sum(row) for row in counts]
    weights = [min(n, largest_weight) for n in sizes]
    variances = [1 / n + dispersion for n in sizes]
    total_weight = sum(weights)

    # The standard deviation of the vote if all clients are benign; 1 sample is FCP's correction.
    sum_of_variances = sum(w * w * v for w, v in zip(weights, variances, strict=True))
    deviation = sqrt(target_level * (1 - target_level) * sum_of_variances)
    target_fraction = target_level - max((SPREAD * deviation - 1) / total_weight, 0.0)

    for bin_index in range(fcp_bin, len(counts[0])):
        total = 0.0
        for row, n, weight, variance, is_suspected in zip(
            counts, sizes, weights, variances, suspected, strict=True
        ):
            standard_deviation = sqrt(target_level * (1 - target_level) * variance)
            deviations = (sum(row[: bin_index + 1]) / n - target_fraction) / standard_deviation
            lowest = -UPPER_CLIP if is_suspected else -1 / UPPER_CLIP
            total += weight * standard_deviation * (clip(deviations, lowest, UPPER_CLIP) - MEAN)
        if total >= -1e-9 * total_weight:
            return bin_index
    return None


def consensus_bin(counts, voter_sets, duplicates, suspected, dispersion, level, fcp_bin, cap):
    """Return the highest bin that any plausible set of voters accepts.

    voter_sets: sets of clients that may vote. duplicates: groups of clients with equal reports, of
    which only the first that may vote does. fcp_bin(voters): the bin of FCP's threshold on them.
    """
    highest = -1
    for voters in voter_sets:
        speaking = set(voters)
        for group in duplicates:
            members = [k for k in sorted(group) if k in speaking]
            speaking -= set(members[1:])
        speakers = sorted(speaking)
        accepted_bin = voted_bin(
            [counts[k] for k in speakers],
            [suspected[k] for k in speakers],
            dispersion,
            level,
            fcp_bin(speakers),
            cap,
        )
        if accepted_bin is None:
            return None
        highest = max(highest, accepted_bin)
    return highest
