"""Duplicate reports: equal reports of several clients, where independent samples hardly ever
agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import abbreviate
from robfcp.defense._base import Note
from robfcp.federation import Federation

FALSE_ALARM_PROBABILITY = 1e-3  # of calling any independent reports of a round duplicates

HashCodes = NDArray[np.uint64]


class DuplicateGroup(NamedTuple):
    """Clients that send the same report, and how likely independent samples are to do so.

    Attributes
    ----------
    rows : ndarray of shape (n,)
        The clients' positions in the federation, ascending.
    clients : tuple of str
        Their names.
    p_value : float
        An upper bound on the probability that any pair of independent reports agrees like this:
        that of one pair times the number of pairs in the round, so it may exceed 1.
    """

    rows: IndexArray
    clients: tuple[str, ...]
    p_value: float


def find_duplicate_reports(
    federation: Federation, false_alarm_probability: float = FALSE_ALARM_PROBABILITY
) -> tuple[DuplicateGroup, ...]:
    """Find groups of clients with equal reports that chance does not explain in any pair.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    false_alarm_probability : float
        Groups with a larger p-value are not reported.

    Returns
    -------
    tuple of DuplicateGroup
        In the order of their first clients.
    """
    groups = _equal_report_groups(federation)
    if not groups:
        return ()

    # The reports of a group are equal, so the first stands for all. The least cell that coarsening
    # makes is placed as one, so it counts as one.
    first_clients = federation.select_rows(np.array([group[0] for group in groups]))
    min_counts = first_clients.counts_per_sample * first_clients.min_cell_counts
    counts_per_unit = np.where(first_clients.is_coarsened, min_counts, 1)

    # Bonferroni: any of all pairs might have agreed.
    n_pairs = federation.n_clients * (federation.n_clients - 1) / 2
    p_values = n_pairs * _coincidence_probabilities(first_clients, counts_per_unit)

    duplicates = []
    for group, p_value in zip(groups, p_values, strict=True):
        if p_value <= false_alarm_probability:
            clients = tuple(federation.names_of(group))
            duplicates.append(DuplicateGroup(group, clients, float(p_value)))
    return tuple(duplicates)


def _equal_report_groups(federation: Federation) -> list[IndexArray]:
    """Return the rows of clients that send the same report, in the order of their first rows.

    Each array holds two rows or more, ascending; a client is in at most one of them.

    Equal reports have equal codes. Unequal ones agree with probability 2^-63, whatever they hold,
    since the factors are drawn anew; odd factors are invertible modulo 2^64.
    """
    n_bins = federation.binning.n_bins
    integers = np.random.default_rng().integers(2**63, size=n_bins, dtype=np.uint64)
    factors = 2 * integers + 1  # odd, hence invertible modulo 2^64
    codes = federation.map_blocks(lambda block: _report_codes(block, factors))

    ordered = np.sort(codes)
    is_repeated = ordered[1:] == ordered[:-1]
    if not is_repeated.any():
        return []
    repeated_codes = ordered[1:][is_repeated]

    # Group the clients by code; a stable sort keeps positions ascending within a group.
    rows = np.flatnonzero(np.isin(codes, repeated_codes))
    by_code = np.argsort(codes[rows], kind="stable")
    rows = rows[by_code]
    group_starts = np.flatnonzero(np.diff(codes[rows])) + 1
    return sorted(np.split(rows, group_starts), key=lambda group: int(group[0]))


def duplicate_notes(groups: Sequence[DuplicateGroup]) -> tuple[Note, ...]:
    """Return a note about each group: together its clients have one client's say."""
    notes = []
    for group in groups:
        text = (
            f"{abbreviate(group.clients)} send the same report (chance among independent samples "
            f"{group.p_value:.2g}): they have one site's say together"
        )
        notes.append(Note(text, group.clients))
    return tuple(notes)


def _report_codes(block: Federation, factors: HashCodes) -> HashCodes:
    """Return (k,) sums of count times factor over each client's bins, modulo 2^64.

    Parameters
    ----------
    block : Federation
        k clients. A negative count, which noise makes, is its residue modulo 2^64.
    factors : ndarray of uint64, shape (H,)
        A factor for each bin, the same for all blocks.
    """
    starts, bins, counts = block.table.entries()
    products = factors[bins] * counts.astype(np.uint64)

    # The entries of client k are starts[k] to starts[k + 1] - 1: its sum is the difference of two
    # cumulative sums, also where these overflow. With a plain 0 numpy would make them floats.
    cumulative = np.concatenate([[np.uint64(0)], np.cumsum(products)])
    return np.diff(cumulative[starts])


def _coincidence_probabilities(block: Federation, counts_per_unit: IntArray) -> FloatArray:
    """Return (k,) the probability that a second independent sample equals each report.

    Given the sums of both samples in every bin, each of the 2 a_b units in bin b belongs to either
    sample with probability 1/2. So the samples agree with probability

        prod_b C(2 a_b, a_b) / 4^a_b,

    where a_b is the count of bin b in the client's units.

    Parameters
    ----------
    block : Federation
        k clients.
    counts_per_unit : ndarray of int, shape (k,)
        How many counts of each client are placed together, and so are one unit.
    """
    from scipy.special import gammaln

    starts, _, counts = block.table.entries()
    n_entries = np.diff(starts)  # (k,) the bins in use of each client
    a = np.maximum(counts, 0) / np.repeat(counts_per_unit, n_entries)  # noise makes negative counts
    log_probabilities = gammaln(2 * a + 1) - 2 * gammaln(a + 1) - 2 * a * np.log(2)

    rows = np.repeat(np.arange(block.n_clients), n_entries)
    log_products = np.bincount(rows, log_probabilities, minlength=block.n_clients)
    return np.asarray(np.exp(log_products), dtype=np.float64)
