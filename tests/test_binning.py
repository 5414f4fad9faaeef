"""Binnings: bins (a, b], exact counts up to edges, names and digests."""

from functools import partial

import numpy as np
import pytest

from robfcp.binning import _MIN_VALUES_FOR_LOOKUP, Binning, named_binning
from robfcp.errors import RobfcpError
from robfcp.reports import Report

BINNINGS = [Binning.default(), Binning.uniform(), Binning.uniform(7, -1, 2), Binning.extended()]
OPEN_ENDED_BINNINGS = [Binning.open_ended(), Binning.open_ended([0, 1, 5])]
INVALID_SCORES = ([-0.1], [1.0001], [np.nan], [np.inf], ["a"], [1j], [[0.5]], [True])
INVALID_EDGES = ([0], [0, 0], [1, 0], [0, np.nan], [0, np.inf, 1], [[0, 1]], [np.inf, 1], "ab")
INVALID_EDGES += ([0, 1 + 1j], [10**400, 10**401], range(1_000_003))
INVALID_UNIFORM_ARGUMENTS = (
    (0,),
    (10, 1, 0),
    (10**9,),
    (2.5,),
    (10, -np.inf, 1),
    (10, -1e308, 1e308),
)
INVALID_UNIFORM_ARGUMENTS += (
    (10, "a", "b"),
    (np.nan,),
    (np.inf,),
    (3, 0, 10**400),
    (np.complex64(3),),
)


def various_binnings(rng):
    """Yield binnings of many kinds; some have too uneven edges for a lookup table."""
    yield from BINNINGS + OPEN_ENDED_BINNINGS
    yield Binning.uniform(2)
    yield Binning.uniform(1000, -3e5, 7.7e11)
    yield Binning.uniform(13, 1e-290, 2e-290)
    for scale in (1.0, 1e-8, 1e200):
        yield Binning(np.unique(rng.random(300)) * scale)
        yield Binning(np.unique(rng.normal(size=50) ** 3) * scale)
        yield Binning(np.concatenate([[0.0], np.cumsum(np.exp(rng.normal(size=99) * 3))]) * scale)


@pytest.mark.parametrize(
    "n_scores", [40, _MIN_VALUES_FOR_LOOKUP - 1, _MIN_VALUES_FOR_LOOKUP, 2**14]
)
def test_lookup_gives_the_bins_of_a_binary_search(n_scores):
    rng = np.random.default_rng(n_scores)
    n_with_lookup = 0
    for binning in various_binnings(rng):
        low, high = np.maximum(binning.edges[0], -9), np.minimum(binning.edges[-1], 9e300)
        values = low + (high - low) * np.concatenate(
            [rng.random(n_scores), rng.random(n_scores) ** 40]
        )
        finite_edges = binning.edges[np.isfinite(binning.edges)]
        near_edges = np.concatenate(
            [finite_edges, np.nextafter(finite_edges, -np.inf), np.nextafter(finite_edges, np.inf)]
        )
        values = np.clip(np.concatenate([values, near_edges, [low, high]]), low, high)
        values = rng.permutation(values)
        for selected in (
            values[:n_scores],
            values,
            values[::2],
            np.full(n_scores, binning.upper_edges[0]),
        ):
            expected = np.searchsorted(binning.edges[1:-1], selected, side="left")
            np.testing.assert_array_equal(binning.bin_indices(selected), expected)
            counts = np.bincount(expected, minlength=binning.n_bins)
            np.testing.assert_array_equal(binning.counts(selected), counts)
            assert binning.counts(selected).dtype == np.int64
        n_with_lookup += binning._lookup is not None
    assert n_with_lookup >= 8


@pytest.mark.parametrize("n_scores", [1, 40, _MIN_VALUES_FOR_LOOKUP])
@pytest.mark.parametrize("binning", [*BINNINGS, *OPEN_ENDED_BINNINGS], ids=repr)
def test_one_invalid_score_among_any_number_is_refused(binning, n_scores):
    values = np.random.default_rng(0).random(n_scores)
    low, high = binning.edges[0], binning.edges[-1]
    candidates = [np.nextafter(low, -np.inf), np.nextafter(high, np.inf), low - 1e-20, high + 1]
    for invalid in [np.nan, *(value for value in candidates if value < low or value > high)]:
        values[n_scores // 2] = invalid
        for call in (binning.counts, binning.bin_indices):
            with pytest.raises(RobfcpError, match="is NaN" if np.isnan(invalid) else "leaves the"):
                call(values)


@pytest.mark.parametrize("n_scores", [40, _MIN_VALUES_FOR_LOOKUP])
def test_scores_of_any_type_and_shape_are_binned_by_value(n_scores):
    binning, values = Binning.default(), np.random.default_rng(1).random(n_scores)
    for dtype in (np.float16, np.float32, np.longdouble, np.float64, bool):
        converted = values.astype(dtype) if dtype is not bool else (values > 0.5).astype(np.uint8)
        expected = np.searchsorted(binning.edges[1:-1], converted.astype(np.float64))
        np.testing.assert_array_equal(
            binning.bin_indices(converted.reshape(-1, 4)).ravel(), expected
        )
        counts = np.bincount(expected, minlength=binning.n_bins)
        np.testing.assert_array_equal(binning.counts(converted.tolist()), counts)


def test_the_default_binning_is_fine_at_both_ends_and_nested_with_that_of_the_paper():
    binning = Binning.default()
    assert binning.digest.startswith("6dcb67ab")  # the same on all platforms
    assert (binning.edges < 1e-4).sum() > 100 < (binning.edges > 1 - 1e-4).sum()
    bin_ends = binning.merged_bin_ends(Binning.uniform(100))
    np.testing.assert_array_equal(binning.upper_edges[bin_ends], Binning.uniform(100).upper_edges)


def test_binnings_are_rebuilt_from_their_names_and_have_distinct_digests():
    for binning in (*BINNINGS, OPEN_ENDED_BINNINGS[0]):
        rebuilt = named_binning(binning.name, binning.parameters)
        assert (rebuilt, hash(rebuilt), rebuilt.digest) == (binning, hash(binning), binning.digest)
    digests = {
        binning.digest for binning in [*BINNINGS, *OPEN_ENDED_BINNINGS, Binning.uniform(101)]
    }
    assert len(digests) == len(BINNINGS) + len(OPEN_ENDED_BINNINGS) + 1
    assert Binning.uniform(2) == Binning([-0.0, 0.5, 1]) == Binning([0.0, 0.5, 1])
    assert Binning.uniform(2) != "binning"


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        *(
            (partial(Report.from_scores, "a"), (values, Binning.default()))
            for values in INVALID_SCORES
        ),
        *((Binning, (edges,)) for edges in INVALID_EDGES),
        *((Binning.uniform, bad) for bad in INVALID_UNIFORM_ARGUMENTS),
        *((Binning.open_ended, (bad,)) for bad in ([np.inf], [[1.0]], ["a"])),
        *((named_binning, bad) for bad in (("nope", {}), ("default", {"bins": 3}))),
    ],
)
def test_invalid_binnings_and_scores_are_refused(make, arguments):
    with pytest.raises(RobfcpError, match=r"n_bins, low, high|binning|scores"):
        make(*arguments)


def test_merging_needs_nested_edges_of_the_same_range():
    for incompatible in (Binning.uniform(3), Binning.uniform(10, 0, 2)):
        assert Binning.uniform(10).merged_bin_ends(incompatible) is None
