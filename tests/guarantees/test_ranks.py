"""Ranks in exact arithmetic."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robfcp.arguments import exact_level
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold, fcp_index, rank_charge
from robfcp.guarantees.engine import ExactCounts
from robfcp.guarantees.rank import conformal_rank
from robfcp.lab.published import full_rank, published_rank


@pytest.mark.parametrize(
    ("n", "level", "rank"),
    [(9, 0.9, 9), (19, 0.9, 18), (99, 0.99, 99), (10, 0.9, 10), (8, 0.9, 9), (1, 0.5, 1)],
)
def test_split_conformal_ranks_are_exact(n, level, rank):
    assert conformal_rank(exact_level(level), n, 1) == rank
    assert conformal_rank(exact_level(level), n, 1, full_rank) == rank


def test_nine_samples_at_90_percent_give_the_ninth_smallest_not_infinity():
    nine, eight = (Federation.from_counts(np.ones((1, n), dtype=int)) for n in (9, 8))
    assert fcp_index(nine, exact_level(0.9)) == 8
    assert fcp_index(eight, exact_level(0.9)) is None


@pytest.mark.parametrize(
    ("level", "exact"),
    [
        (0.9, Fraction(9, 10)),
        (1 - 0.7, Fraction(3, 10)),
        (np.float64(0.995), Fraction(199, 200)),
        ("0.95", Fraction(19, 20)),
        ("2/3", Fraction(2, 3)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.8"), Fraction(4, 5)),
        (np.float32(0.5), Fraction(1, 2)),
    ],
)
def test_levels_are_read_as_people_mean_them(level, exact):
    assert exact_level(level) == exact


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, np.nan, np.inf, "x", None, [0.9]])
def test_impossible_levels_are_refused(level):
    with pytest.raises(RobfcpError, match="coverage"):
        exact_level(level)


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30).filter(any),
    rank=st.integers(1, 60),
)
def test_threshold_is_the_order_statistics_bin(counts, rank):
    values = np.repeat(np.arange(len(counts)), counts)
    expected = int(np.sort(values)[rank - 1]) if rank <= len(values) else None
    assert ExactCounts(Federation.from_counts([counts])).first_reaching(rank) == expected


@given(
    counts=st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any), min_size=1),
    level=st.fractions(Fraction(1, 100), Fraction(99, 100)),
    seed=st.integers(0, 99),
    rule=st.sampled_from([rank_charge, full_rank, published_rank]),
)
def test_fcps_threshold_is_the_order_statistic_of_the_trusted(counts, level, seed, rule):
    trusted = np.random.default_rng(seed).random(len(counts)) < 0.7
    trusted[0] = True
    values = np.sort(np.repeat(np.arange(4), np.array(counts)[trusted].sum(axis=0)))
    rank = ceil(level * len(values)) + 1
    if rule is published_rank:
        rank = ceil(level * (len(values) + int(trusted.sum())))
    elif rule is full_rank or trusted.sum() == 1:
        rank = ceil(level * (len(values) + 1))
    expected = int(values[rank - 1]) if rank <= len(values) else None
    federation = Federation.from_counts(counts)
    assert fcp_index(federation, level, trusted, rule) == expected
    assert FcpThreshold(federation, trusted, rule).index(level) == expected
