"""Ways to split the samples of a data set among clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import IndexArray
from robfcp._validation import Rng, as_array, as_float_array, as_generator, check_integer
from robfcp.errors import RobfcpError

ClientSamples = list[IndexArray]  # the sample indices of each client, rising


def partition_iid(n_samples: int, n_clients: int, rng: Rng = None) -> ClientSamples:
    """Split samples at random among clients whose sizes differ by at most one.

    Parameters
    ----------
    n_samples : int
        The number of samples to split.
    n_clients : int
        The number of clients.
    rng : int or Generator, optional
        A seed or generator.

    Returns
    -------
    list of ndarray of int
        The sample indices of each client, rising.

    Examples
    --------
    >>> from robfcp.experiments import partitions
    >>> [len(indices) for indices in partitions.partition_iid(10, 3, rng=0)]
    [4, 3, 3]
    """
    _check_sizes(n_samples, n_clients, 1)
    shuffled = as_generator(rng).permutation(n_samples)
    return [np.sort(indices) for indices in np.array_split(shuffled, n_clients)]


def partition_dirichlet(
    labels: ArrayLike,
    n_clients: int,
    beta: float,
    rng: Rng = None,
    *,
    minimum: int = 10,
    attempts: int = 1000,
) -> ClientSamples:
    """Split every class among the clients by fractions drawn from Dirichlet(beta).

    As usual in the literature a client that has the mean number of samples takes no more of the
    remaining classes. Draws are repeated until every client has `minimum` samples.

    Parameters
    ----------
    labels : array_like, shape (n,)
        The classes of the samples.
    n_clients : int
        The number of clients.
    beta : float
        The concentration: where it is small, clients see few classes each; where it is large, all.
    rng : int or Generator, optional
        A seed or generator.
    minimum : int
        The smallest number of samples of a client.
    attempts : int
        The number of draws before giving up.

    Returns
    -------
    list of ndarray of int
        The sample indices of each client, rising.

    Raises
    ------
    RobfcpError
        If no draw gives every client enough samples.

    References
    ----------
    Yurochkin, Agarwal, Ghosh, Greenewald, Hoang and Khazaeni (2019), "Bayesian nonparametric
    federated learning of neural networks", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.experiments import partitions
    >>> labels = np.repeat([0, 1, 2], 40)
    >>> sizes = [len(indices) for indices in partitions.partition_dirichlet(labels, 4, 0.5, rng=0)]
    >>> sum(sizes), min(sizes) >= 10
    (120, True)
    """
    label_column = _check_column("labels", labels)
    generator = as_generator(rng)
    n_samples = len(label_column)
    _check_sizes(n_samples, n_clients, check_integer("minimum", minimum, "give 10, say"))
    check_integer("attempts", attempts, "give 1000, say", 1)
    if not 0 < as_float_array("beta", beta) < np.inf:
        raise RobfcpError(
            f"beta: {beta} is not a positive number; use partition_iid (omit --beta) for "
            "equal clients"
        )
    class_indices = np.unique(label_column, return_inverse=True)[1]

    largest_minimum = 0
    for _ in range(attempts):
        client_index = _draw_dirichlet_clients(class_indices, n_clients, beta, generator)
        smallest_size = int(np.bincount(client_index, minlength=n_clients).min())
        if smallest_size >= minimum:
            return _samples_of_clients(client_index, n_clients)
        largest_minimum = max(largest_minimum, smallest_size)
    raise RobfcpError(
        f"beta: in {attempts} draws with beta={beta:g} some client always had fewer than "
        f"{minimum} of {n_samples} samples (at best {largest_minimum}); use fewer than {n_clients} "
        "clients, a larger beta or a smaller minimum"
    )


def _draw_dirichlet_clients(
    class_indices: IndexArray, n_clients: int, beta: float, generator: np.random.Generator
) -> IndexArray:
    """Draw the client of each sample, (n,): of every class clients get Dirichlet(beta) fractions.

    A Dirichlet draw is one of independent gamma variables, divided by their sum.
    """
    n_samples = len(class_indices)
    n_classes = int(class_indices.max()) + 1
    client_index = np.empty(n_samples, dtype=np.intp)
    sizes = np.zeros(n_clients, dtype=np.intp)

    for class_index in generator.permutation(n_classes):
        samples = generator.permutation(np.flatnonzero(class_indices == class_index))

        is_below_mean_size = sizes * n_clients < n_samples
        weights = generator.gamma(beta, size=n_clients) * is_below_mean_size
        if not weights.sum() > 0:  # gamma draws of a tiny beta can underflow all together
            weights = np.eye(n_clients)[generator.integers(n_clients)]

        # The shuffled samples of the class are cut into one block for each client.
        cuts = np.floor(np.cumsum(weights / weights.sum())[:-1] * len(samples))
        client_index[samples] = np.searchsorted(cuts, np.arange(len(samples)), side="right")
        sizes += np.bincount(client_index[samples], minlength=n_clients)
    return client_index


def partition_by_site(sites: ArrayLike, min_client_size: int = 20) -> dict[str, NDArray[np.intp]]:
    """Split samples by the sites they come from, without sites of fewer than `min_client_size`.

    Parameters
    ----------
    sites : array_like, shape (n,)
        The name of the site of each sample: a hospital, a country, a subject.
    min_client_size : int
        The smallest number of samples of a site that takes part.

    Returns
    -------
    dict of str to ndarray of int
        The sample indices of each site, rising, by its name; names in order.

    Raises
    ------
    RobfcpError
        If no site is large enough.

    Examples
    --------
    >>> from robfcp.experiments import partitions
    >>> sites = ["Oslo", "Bergen", "Oslo", "Oslo", "Bergen", "Molde"]
    >>> partitions.partition_by_site(sites, min_client_size=2)
    {'Bergen': array([1, 4]), 'Oslo': array([0, 2, 3])}
    """
    site_column = _check_column("sites", sites)
    check_integer("minimum", min_client_size, "give 20, say", 1)
    names, site_indices = np.unique(site_column, return_inverse=True)

    samples_of_sites = {}
    all_samples = _samples_of_clients(site_indices, len(names))
    for name, samples in zip(names.tolist(), all_samples, strict=True):
        if len(samples) >= min_client_size:
            samples_of_sites[str(name)] = samples

    if not samples_of_sites:
        raise RobfcpError(
            f"min_client_size: none of {len(names)} clients has {min_client_size} samples; "
            "use a smaller minimum or a coarser column"
        )
    return samples_of_sites


def _samples_of_clients(client_index: IndexArray, n_clients: int) -> ClientSamples:
    """Return the sample indices of each client, given the client of each sample."""
    order = np.argsort(client_index, kind="stable")
    sizes = np.bincount(client_index, minlength=n_clients)
    return np.split(order, np.cumsum(sizes)[:-1])


def _check_column(field: str, values: ArrayLike) -> NDArray[Any]:
    """Return the values as a vector whose entries can be sorted."""
    column = as_array(field, values)
    if column.ndim != 1 or column.dtype.kind == "O":
        raise RobfcpError(f"{field}: must be a vector of one kind; give one value a sample")
    return column


def _check_sizes(n_samples: int, n_clients: int, minimum: int) -> None:
    """Refuse fewer samples than the smallest number for every client."""
    check_integer("n_samples", n_samples, "give how many there are to split")
    check_integer("n_clients", n_clients, "give how many share the samples")
    if n_clients < 1 or n_samples < n_clients * max(1, minimum):
        raise RobfcpError(
            f"partition: {n_samples} samples cannot give {n_clients} clients {max(1, minimum)} "
            "each; use fewer clients or a smaller minimum"
        )
