"""How many sites lie: by whom the default defence leaves out, or by the paper's likelihood."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus import stand_out
from robfcp.defence.copies import find_copies
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

RIDGE = 1e-6  # added to variances: those of points on a simplex are singular


def estimate_malicious(federation: Federation) -> int:
    """The estimated number of liars; an estimate never bounds liars who hide in honest noise.

    Those whom `Consensus` leaves out, and all but one of every group of copies that it keeps; at
    most a minority.

    Parameters
    ----------
    federation
        The reports of one round.

    Returns
    -------
    int
        0 in at least 95% of the rounds in which nobody lies.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> robfcp.defence.estimate_malicious(robfcp.Federation.from_counts(counts))
    1
    """
    left_out = set(np.array(federation.ids)[stand_out(federation).stands_out].tolist())
    groups = [group.clients for group in find_copies(federation)]
    surplus = sum(len(clients) - 1 for clients in groups if clients[0] not in left_out)
    return min(len(left_out) + surplus, (federation.n_clients - 1) // 2)


def likelihood_count(
    vectors: NDArray[np.float64], oddness: NDArray[np.float64], *, scaled: bool
) -> int:
    """K - z for the z in (K/2, K) of the greatest contrast, as the paper estimates it.

    The contrast is mean_{k<=z} log p(v_k) - mean_{k>z} log p(v_k), sites ranked by oddness and p
    the normal density with mean and variances of the z best (`scaled`), or with unit variances.
    Faults of the published method: z = K is undefined, so it never answers 0; its first term is
    constant for fitted variances, so that one far site decides; exact copies escape it.
    """
    n_clients = len(vectors)
    if n_clients < 3:
        raise RobfcpError(f"clients: the likelihood contrast needs at least 3, got {n_clients}")
    sizes, values = contrasts(vectors[np.argsort(np.round(oddness, 12), kind="stable")], scaled)
    return n_clients - int(sizes[np.argmax(values)])


def contrasts(
    ranked: NDArray[np.float64], scaled: bool
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Every z in (K/2, K) and its contrast, all at once in O(K H) by prefix sums.

    sum_k (v_k - mu)^2 / s = (Q - 2 mu L + count mu^2) / s, with L and Q the sums of v and v^2;
    one coordinate at a time, so that little is held beside the vectors.
    """
    sizes = np.arange(len(ranked) // 2 + 1, len(ranked))
    above, found = len(ranked) - sizes, np.zeros(len(sizes))
    for column in ranked.T:
        centred = column - column.mean()  # keeps the digits of the variances
        linear, squares = np.cumsum(centred), np.cumsum(centred**2)
        mean = linear[sizes - 1] / sizes
        variance = np.maximum(squares[sizes - 1] / sizes - mean**2, 0) + RIDGE
        inside = squares[sizes - 1] - sizes * mean**2
        outside = (
            (squares[-1] - squares[sizes - 1])
            - 2 * mean * (linear[-1] - linear[sizes - 1])
            + above * mean**2
        )
        found += 0.5 * (outside / above - inside / sizes) / (variance if scaled else 1.0)
    return sizes, found
