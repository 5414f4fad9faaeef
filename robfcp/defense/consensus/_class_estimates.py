"""Which scores are of which class, where clients report pooled counts and class totals alone.

Let a client have h_b samples in bin b and n_c samples of class c, and let p_cb be the share of bin
b within class c. It then has, as one expects,

    h_b n_c p_cb / sum_c' n_c' p_c'b    samples of class c in bin b.

The shares that are likeliest for several clients are found by expectation and maximization
(Dempster, Laird and Rubin 1977): divide the counts of all clients by the shares, take the shares of
the divided counts, and so on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robfcp._typing import FloatArray

_MIN_COUNT = 1e-9  # the least expected count, as it is a divisor


def divide_among_classes(
    class_sizes: FloatArray, counts: FloatArray, class_shares: FloatArray
) -> FloatArray:
    """Return (k, C, B) the counts to expect of each client by class and bin.

    Parameters
    ----------
    class_sizes : ndarray of shape (k, C)
        n_c, the clients' samples of each class.
    counts : ndarray of shape (k, B)
        h_b, their counts of all classes together.
    class_shares : ndarray of shape (C, B)
        p_cb.
    """
    expected = np.maximum(class_sizes @ class_shares, _MIN_COUNT)  # (k, B)
    return np.asarray(class_sizes[:, :, None] * class_shares * (counts / expected)[:, None])


def estimate_class_counts(
    class_sizes: FloatArray,
    counts: FloatArray,
    start: FloatArray,
    shares_of: Callable[[FloatArray], FloatArray],
    n_rounds: int,
    common_classes: FloatArray | float = 0.0,
) -> FloatArray:
    """Return (C, B) the likeliest counts by class and bin of some clients together.

    Parameters
    ----------
    class_sizes : ndarray of shape (k, C)
        The clients' samples of each class.
    counts : ndarray of shape (k, B)
        Their counts of all classes together; weighted, if clients have weights.
    start : ndarray of shape (C, B)
        The counts by class to begin with.
    shares_of : callable
        Returns the (C, B) shares of the bins within each class, from counts by class.
    n_rounds : int
        Rounds of expectation and maximization.
    common_classes : ndarray of shape (C, B), optional
        Counts of other clients whose classes are known, which are added in every round.
    """
    total = start
    for _ in range(n_rounds):
        # The sum over the clients of `divide_among_classes`, as a product of matrices.
        class_shares = shares_of(total)
        expected = np.maximum(class_sizes @ class_shares, _MIN_COUNT)
        total = common_classes + class_shares * (class_sizes.T @ (counts / expected))
    return np.asarray(total)
