"""Ways to split samples among clients, for the test range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import Rng, as_array, as_float_array, as_generator, check_integer
from robfcp.errors import RobfcpError

Parts = list[NDArray[np.intp]]


def partition_iid(n_samples: int, n_clients: int, rng: Rng = None) -> Parts:
    """A random split into parts whose sizes differ by at most one.

    Parameters
    ----------
    n_samples
        How many samples there are to split.
    n_clients
        Among how many clients.
    rng
        A seed or generator.

    Returns
    -------
    list of arrays
        Each client's sample numbers, rising.

    Examples
    --------
    >>> from robfcp.experiments import partitions
    >>> [len(part) for part in partitions.partition_iid(10, 3, rng=0)]
    [4, 3, 3]
    """
    _check(n_samples, n_clients, 1)
    return [
        np.sort(part)
        for part in np.array_split(as_generator(rng).permutation(n_samples), n_clients)
    ]


def partition_dirichlet(
    labels: ArrayLike,
    n_clients: int,
    beta: float,
    rng: Rng = None,
    *,
    minimum: int = 10,
    attempts: int = 1000,
) -> Parts:
    """Each class spread over the clients by a Dirichlet(beta) draw; smaller beta, less alike.

    As usual in the literature a client that has its fair share of samples takes no more of the
    remaining classes. Draws are repeated until every client has `minimum` samples.

    Parameters
    ----------
    labels
        (n,) the samples' classes.
    n_clients
        Among how many clients.
    beta
        The concentration: clients see few classes each where it is small, all where it is large.
    rng
        A seed or generator.
    minimum
        The least samples of every client.
    attempts
        Draws before giving up.

    Returns
    -------
    list of arrays
        Each client's sample numbers, rising.

    Raises
    ------
    RobfcpError
        Where no draw gives every client enough.

    References
    ----------
    Yurochkin, Agarwal, Ghosh, Greenewald, Hoang and Khazaeni (2019), "Bayesian nonparametric
    federated learning of neural networks", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.experiments import partitions
    >>> labels = np.repeat([0, 1, 2], 40)
    >>> parts = partitions.partition_dirichlet(labels, 4, beta=0.5, rng=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (120, True)
    """
    label, random = _column("labels", labels), as_generator(rng)
    _check(len(label), n_clients, check_integer("minimum", minimum, "give 10, say"))
    check_integer("attempts", attempts, "give 1000, say", 1)
    if not 0 < as_float_array("beta", beta) < np.inf:
        raise RobfcpError(f"beta: {beta} is not a positive number; use iid for equal clients")
    classes, which = np.unique(label, return_inverse=True)
    best = 0
    for _ in range(attempts):
        owner = np.empty(len(which), dtype=np.intp)
        size = np.zeros(n_clients, dtype=np.intp)
        for c in random.permutation(len(classes)):
            members = random.permutation(np.flatnonzero(which == c))
            shares = random.gamma(beta, size=n_clients) * (size * n_clients < len(which))
            if not shares.sum() > 0:  # gamma draws of a tiny beta can underflow all together
                shares = np.eye(n_clients)[random.integers(n_clients)]
            cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(members))
            owner[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
            size += np.bincount(owner[members], minlength=n_clients)
        if size.min() >= minimum:
            return _parts(owner, n_clients)
        best = max(best, int(size.min()))
    raise RobfcpError(
        f"dirichlet: in {attempts} draws with beta={beta:g} some client always had fewer than "
        f"{minimum} of {len(label)} samples (at best {best}); use fewer than {n_clients} clients, "
        "a larger beta or a smaller minimum"
    )


def partition_by_site(sites: ArrayLike, min_client_size: int = 20) -> dict[str, NDArray[np.intp]]:
    """The data's own sites: each owns its samples.

    Sites with fewer than `min_client_size` are left out.

    Parameters
    ----------
    sites
        (n,) the name of each sample's site: a hospital, a country, a subject.
    min_client_size
        The least samples of a site that takes part.

    Returns
    -------
    dict
        Each site's sample numbers, rising, by its name; names in order.

    Raises
    ------
    RobfcpError
        Where no site is large enough.

    Examples
    --------
    >>> from robfcp.experiments import partitions
    >>> sites = ["Oslo", "Bergen", "Oslo", "Oslo", "Bergen", "Molde"]
    >>> partitions.partition_by_site(sites, min_client_size=2)
    {'Bergen': array([1, 4]), 'Oslo': array([0, 2, 3])}
    """
    column = _column("sites", sites)
    check_integer("minimum", min_client_size, "give 20, say", 1)
    names, which = np.unique(column, return_inverse=True)
    parts = zip(names.tolist(), _parts(which, len(names)), strict=True)
    found = {str(name): part for name, part in parts if len(part) >= min_client_size}
    if not found:
        raise RobfcpError(
            f"sites: none of {len(names)} has {min_client_size} samples; "
            "use a smaller minimum or a coarser column"
        )
    return found


def _parts(owner: NDArray[np.intp], n_clients: int) -> Parts:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=n_clients))[:-1])


def _column(field: str, values: ArrayLike) -> NDArray[Any]:
    """The values as a vector whose entries can be sorted."""
    column = as_array(field, values)
    if column.ndim != 1 or column.dtype.kind == "O":
        raise RobfcpError(f"{field}: must be a vector of one kind; give one value a sample")
    return column


def _check(n_samples: int, n_clients: int, minimum: int) -> None:
    check_integer("n_samples", n_samples, "give how many there are to split")
    check_integer("n_clients", n_clients, "give how many share the samples")
    if n_clients < 1 or n_samples < n_clients * max(1, minimum):
        raise RobfcpError(
            f"partition: {n_samples} samples cannot give {n_clients} clients {max(1, minimum)} "
            "each; use fewer clients or a smaller minimum"
        )
