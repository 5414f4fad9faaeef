"""Every sample goes to exactly one client, and impossible wishes end with advice."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robfcp.errors import RobfcpError
from robfcp.lab import partitions


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(200, 600), k=st.integers(1, 9), beta=st.floats(0.4, 10), seed=st.integers(0, 999)
)
def test_every_sample_has_one_owner(n, k, beta, seed):
    labels = np.random.default_rng(seed).integers(0, 5, n)
    equal = partitions.iid(n, k, seed)
    assert {len(part) for part in equal} <= {n // k, n // k + 1}
    assert all(map(np.array_equal, equal, partitions.iid(n, k, seed)))
    intervals = partitions.by_attribute(labels, k)
    for lower, upper in pairwise(intervals):
        assert labels[lower].max() <= labels[upper].min()
    for parts in (equal, intervals, partitions.dirichlet(labels, k, beta, seed, minimum=2)):
        assert len(parts) == k
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def test_smaller_beta_makes_clients_less_alike_and_a_tiny_one_does_not_underflow():
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    spread = []
    for beta in (200, 2, 0.2):
        parts = partitions.dirichlet(labels, 20, beta, 0)
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        spread.append(np.std(shares, axis=0).mean())
    assert spread[2] > 2 * spread[1] > 4 * spread[0]
    parts = partitions.dirichlet(np.zeros(100, dtype=int), 3, 1e-300, 0, minimum=0)
    assert sum(map(len, parts)) == 100
    parts = partitions.dirichlet(np.arange(1000) % 10, 5, 0.05, 0, minimum=0)
    assert max(map(len, parts)) <= 200 + 100  # who has a fair share takes no further class
    parts = partitions.by_site([3, 1, 3, 2, 3, 1], minimum=2)
    assert {name: part.tolist() for name, part in parts.items()} == {"1": [1, 5], "3": [0, 2, 4]}


LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@pytest.mark.parametrize(
    ("split", "given", "word"),
    [
        (partitions.dirichlet, (LABELS, 40, 0.05, 0), "use fewer than 40 clients, a larger beta"),
        *((partitions.dirichlet, (LABELS, 2, b, 0), "beta") for b in (0, -1, np.nan, np.inf)),
        (partitions.iid, (3, 4), "use fewer clients"),
        (partitions.iid, (3, 0), "use fewer clients"),
        (partitions.dirichlet, (LABELS[:30], 4, 1.0), "use fewer clients"),
        (partitions.by_attribute, ([1, 2], 3), "use fewer clients"),
        (partitions.by_site, ([3, 1, 3, 2], 9), "none of 3 has 9 samples"),
    ],
)
def test_what_cannot_be_split_ends_with_advice(split, given, word):
    more = {"attempts": 20} if split is partitions.dirichlet else {}
    with pytest.raises(RobfcpError, match=word):
        split(*given, **more)
