"""What the callers of a federation's constructors pass, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import IntArray
from robfcp._validation import check_integer
from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy
from robfcp.reports import MAX_MIN_CELL_COUNT
from robfcp.reports.terms import FilePath, read_keys, read_revoked_keys


def privacy_of_clients(
    privacy: Privacy | Sequence[Privacy | None] | None, n_clients: int
) -> tuple[Privacy | None, ...]:
    """Return the privacy of each client's counts.

    Parameters
    ----------
    privacy : Privacy, sequence of Privacy or None, optional
        One for all clients, or one for each; None for counts without noise.
    n_clients : int
        K.

    Returns
    -------
    tuple of Privacy or None
        K entries; none at all where no counts hold noise.
    """
    if isinstance(privacy, Privacy):
        return (privacy,) * n_clients
    privacy_by_client = tuple(privacy or ())
    if not any(privacy_by_client):
        return ()
    if len(privacy_by_client) != n_clients:
        raise RobfcpError("privacy: need one entry a site")
    return privacy_by_client


def check_cell_count(min_cell_count: object) -> int:
    """Return a minimum cell count; refuse what no report may state."""
    remedy = f"give 5, or 1 for exact counts; {MAX_MIN_CELL_COUNT} at most"
    count = check_integer("min_cell_count", min_cell_count, remedy, 1)
    if count > MAX_MIN_CELL_COUNT:
        raise RobfcpError(f"min_cell_count: {count} is too large; {remedy}")
    return count


def check_exact_counts(counts: IntArray) -> None:
    """Refuse (K, H) counts without noise that are negative, or of a client without samples."""
    if counts.min(initial=0) < 0:
        raise RobfcpError("counts: a count is negative; only privacy's noise makes such")
    if not counts.any(axis=1).all():
        raise RobfcpError("counts: a site has no samples; leave it out")


def check_distinct_names(clients: Sequence[str] | None, n_clients: int) -> tuple[str, ...]:
    """Return K distinct names; client-00, client-01, ... where none are passed."""
    if clients is None:
        return default_client_names(n_clients, len(str(n_clients - 1)))
    names = tuple(clients)
    if len(names) != n_clients or len(set(names)) != n_clients:
        raise RobfcpError("clients: need one distinct name for each client")
    return names


def default_client_names(n_clients: int, width: int) -> tuple[str, ...]:
    """Return client-00, client-01, ... padded with zeros so that names sort as numbers.

    Parameters
    ----------
    n_clients : int
        How many names.
    width : int
        Digits of each at least.
    """
    return tuple(f"client-{k:0{width}d}" for k in range(n_clients))


def sizes_of_noisy_counts(
    counts: IntArray, privacy: tuple[Privacy | None, ...], sample_sizes: ArrayLike | None
) -> IntArray:
    """Return (K,) the sample sizes beside counts that hold noise.

    Parameters
    ----------
    counts : (K, H) ndarray of int
        The counts.
    privacy : tuple of Privacy or None
        The noise of each client's counts.
    sample_sizes : (K,) array-like, optional
        The true sizes n_k. Where privacy protects any of them they may be left out: the noisy
        totals, at least 1, are then in their place.
    """
    if sample_sizes is not None:
        return np.asarray(sample_sizes).astype(np.int64)
    are_hidden = any(noise is not None and noise.protects_sample_size for noise in privacy)
    if not are_hidden:
        raise RobfcpError(
            "sample_sizes: private counts need them; pass the true numbers of samples"
        )
    return np.maximum(counts.sum(axis=1), 1)


def load_public_keys(
    keys: Mapping[str, str] | FilePath | None, revoked: FilePath | None, round: str | None
) -> Mapping[str, str]:
    """Return each registered client's public key; "" where it is expired or revoked.

    Parameters
    ----------
    keys : mapping of str to str, or path-like
        The keys, or the path of a registry.
    revoked : path-like, optional
        A file of public keys that are no longer valid.
    round : str, optional
        The round that reports must be signed for. It is only required here; `verify_signatures`
        compares it.
    """
    if keys is None:
        raise RobfcpError(
            "revoked (--revoked): belongs to the registry of keys (--keys); pass both"
        )
    if round is None:
        raise RobfcpError(
            "keys (--keys): need round (--round), or an old report could be used again"
        )
    if not isinstance(keys, Mapping):
        return read_keys(keys, revoked)
    if revoked is None:
        return keys
    revoked_keys = read_revoked_keys(revoked)
    return {client: "" if key in revoked_keys else key for client, key in keys.items()}
