"""Bins are (a, b], counts up to an edge are exact, and grids can be told apart."""

from functools import partial

import numpy as np
import pytest

from robfcp.binning import _MIN_VALUES_FOR_LOOKUP, Binning, named_binning
from robfcp.errors import RobfcpError
from robfcp.reports import Report

GRIDS = [Binning.default(), Binning.uniform(), Binning.uniform(7, -1, 2), Binning.extended()]
OPEN = [Binning.open_ended(), Binning.open_ended([0, 1, 5])]
OUTSIDE = ([-0.1], [1.0001], [np.nan], [np.inf], ["a"], [1j], [[0.5]], [True])
IMPOSSIBLE = ([0], [0, 0], [1, 0], [0, np.nan], [0, np.inf, 1], [[0, 1]], [np.inf, 1], "ab")
IMPOSSIBLE += ([0, 1 + 1j], [10**400, 10**401], range(1_000_003))
NOT_UNIFORM = ((0,), (10, 1, 0), (10**9,), (2.5,), (10, -np.inf, 1), (10, -1e308, 1e308))
NOT_UNIFORM += ((10, "a", "b"), (np.nan,), (np.inf,), (3, 0, 10**400), (np.complex64(3),))


def odd_grids(rng):
    """Grids of many kinds; some have too uneven edges to look values up."""
    yield from GRIDS + OPEN
    yield Binning.uniform(2)
    yield Binning.uniform(1000, -3e5, 7.7e11)
    yield Binning.uniform(13, 1e-290, 2e-290)
    for scale in (1.0, 1e-8, 1e200):
        yield Binning(np.unique(rng.random(300)) * scale)
        yield Binning(np.unique(rng.normal(size=50) ** 3) * scale)
        yield Binning(np.concatenate([[0.0], np.cumsum(np.exp(rng.normal(size=99) * 3))]) * scale)


@pytest.mark.parametrize("number", [40, _MIN_VALUES_FOR_LOOKUP - 1, _MIN_VALUES_FOR_LOOKUP, 2**14])
def test_scores_are_counted_exactly_where_a_search_finds_them(number):
    rng = np.random.default_rng(number)
    looked_up = 0
    for grid in odd_grids(rng):
        low, high = np.maximum(grid.edges[0], -9), np.minimum(grid.edges[-1], 9e300)
        values = low + (high - low) * np.concatenate([rng.random(number), rng.random(number) ** 40])
        inside = grid.edges[np.isfinite(grid.edges)]
        near = np.concatenate([inside, np.nextafter(inside, -np.inf), np.nextafter(inside, np.inf)])
        values = np.clip(np.concatenate([values, near, [low, high]]), low, high)
        values = rng.permutation(values)
        for some in (values[:number], values, values[::2], np.full(number, grid.upper_edges[0])):
            wanted = np.searchsorted(grid.edges[1:-1], some, side="left")
            np.testing.assert_array_equal(grid.bin_indices(some), wanted)
            counts = np.bincount(wanted, minlength=grid.n_bins)
            np.testing.assert_array_equal(grid.counts(some), counts)
            assert grid.counts(some).dtype == np.int64
        looked_up += grid._lookup is not None
    assert looked_up >= 8


@pytest.mark.parametrize("number", [1, 40, _MIN_VALUES_FOR_LOOKUP])
@pytest.mark.parametrize("grid", [*GRIDS, *OPEN], ids=repr)
def test_one_score_outside_is_found_among_any_number(grid, number):
    values = np.random.default_rng(0).random(number)
    low, high = grid.edges[0], grid.edges[-1]
    outside = [np.nextafter(low, -np.inf), np.nextafter(high, np.inf), low - 1e-20, high + 1]
    for wrong in [np.nan, *(one for one in outside if one < low or one > high)]:
        values[number // 2] = wrong
        for call in (grid.counts, grid.bin_indices):
            with pytest.raises(RobfcpError, match="is NaN" if np.isnan(wrong) else "leaves the"):
                call(values)


@pytest.mark.parametrize("number", [40, _MIN_VALUES_FOR_LOOKUP])
def test_scores_of_any_type_and_shape_are_binned_as_their_numbers(number):
    grid, values = Binning.default(), np.random.default_rng(1).random(number)
    for kind in (np.float16, np.float32, np.longdouble, np.float64, bool):
        same = values.astype(kind) if kind is not bool else (values > 0.5).astype(np.uint8)
        wanted = np.searchsorted(grid.edges[1:-1], same.astype(np.float64))
        np.testing.assert_array_equal(grid.bin_indices(same.reshape(-1, 4)).ravel(), wanted)
        counts = np.bincount(wanted, minlength=grid.n_bins)
        np.testing.assert_array_equal(grid.counts(same.tolist()), counts)


def test_default_grid_is_fine_at_both_ends_and_nests_the_papers():
    grid = Binning.default()
    assert grid.digest.startswith("6dcb67ab")  # reports of sites with other platforms must fit
    assert (grid.edges < 1e-4).sum() > 100 < (grid.edges > 1 - 1e-4).sum()
    ends = grid.merged_bin_ends(Binning.uniform(100))
    np.testing.assert_array_equal(grid.upper_edges[ends], Binning.uniform(100).upper_edges)


def test_grids_are_rebuilt_from_their_names_and_told_apart_by_their_digests():
    for grid in (*GRIDS, OPEN[0]):
        again = named_binning(grid.name, grid.parameters)
        assert (again, hash(again), again.digest) == (grid, hash(grid), grid.digest)
    digests = {grid.digest for grid in [*GRIDS, *OPEN, Binning.uniform(101)]}
    assert len(digests) == len(GRIDS) + len(OPEN) + 1
    assert Binning.uniform(2) == Binning([-0.0, 0.5, 1]) == Binning([0.0, 0.5, 1])
    assert Binning.uniform(2) != "grid"


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        *((partial(Report.from_scores, "a"), (values, Binning.default())) for values in OUTSIDE),
        *((Binning, (edges,)) for edges in IMPOSSIBLE),
        *((Binning.uniform, bad) for bad in NOT_UNIFORM),
        *((Binning.open_ended, (bad,)) for bad in ([np.inf], [[1.0]], ["a"])),
        *((named_binning, bad) for bad in (("nope", {}), ("default", {"bins": 3}))),
    ],
)
def test_what_is_no_grid_or_leaves_it_is_refused(make, arguments):
    with pytest.raises(RobfcpError, match=r"grid|scores"):
        make(*arguments)


def test_merging_needs_nested_edges_of_the_same_range():
    for other in (Binning.uniform(3), Binning.uniform(10, 0, 2)):
        assert Binning.uniform(10).merged_bin_ends(other) is None
