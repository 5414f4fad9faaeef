"""Bins are (a, b], counts up to an edge are exact, and grids can be told apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robfcp.errors import RobfcpError
from robfcp.grid import Grid, named
from robfcp.reports import sketch

GRIDS = [Grid.default(), Grid.uniform(), Grid.uniform(7, -1, 2), Grid.extended()]
OPEN = [Grid.open_ended(), Grid.open_ended([0, 1, 5])]


@pytest.mark.parametrize("grid", GRIDS, ids=repr)
@given(values=st.lists(st.floats(0, 1), max_size=60))
def test_counts_up_to_an_edge_are_the_scores_at_or_below_it(grid, values):
    values = np.array([*values, 0.0, 1.0, 0.5, 0.01])
    cumulative = np.cumsum(sketch(values, grid))
    expected = (values[:, None] <= grid.upper).sum(axis=0)
    np.testing.assert_array_equal(cumulative, expected)


@pytest.mark.parametrize("grid", OPEN, ids=repr)
@given(values=st.lists(st.floats(-1e9, 1e9), max_size=60))
def test_open_ended_grids_take_every_number(grid, values):
    cumulative = np.cumsum(sketch(np.array(values, dtype=float), grid))
    expected = (np.array(values)[:, None] <= grid.upper).sum(axis=0) if values else 0 * cumulative
    np.testing.assert_array_equal(cumulative, expected)
    assert grid.upper[-1] == np.inf


def test_default_grid_is_fine_at_both_ends_and_nests_the_papers():
    grid = Grid.default()
    assert 900 <= grid.n_bins <= 1100
    assert grid.edges[0] == 0
    assert grid.edges[-1] == 1
    assert np.isin(np.arange(101) / 100, grid.edges).all()
    assert (grid.edges < 1e-4).sum() > 100
    assert (grid.edges > 1 - 1e-4).sum() > 100
    ends = grid.merge_ends(Grid.uniform(100))
    np.testing.assert_array_equal(grid.upper[ends], Grid.uniform(100).upper)


def test_default_grid_is_the_same_everywhere():
    """A digest kept by hand: reports of sites with other platforms must still fit."""
    assert Grid.default().digest.startswith("6dcb67ab")


@pytest.mark.parametrize("grid", [*GRIDS, OPEN[0]], ids=repr)
def test_named_grids_are_rebuilt_from_their_names(grid):
    again = named(grid.name, grid.parameters)
    assert again == grid
    assert hash(again) == hash(grid)
    assert again.digest == grid.digest


def test_different_grids_have_different_digests():
    digests = {grid.digest for grid in [*GRIDS, *OPEN, Grid.uniform(101)]}
    assert len(digests) == len(GRIDS) + len(OPEN) + 1
    assert Grid.uniform(2) == Grid(np.array([0, 0.5, 1]))
    assert Grid.uniform(2) != "grid"


@pytest.mark.parametrize("values", [[-0.1], [1.0001], [np.nan], [np.inf], ["a"], [1j], [[0.5]]])
def test_scores_outside_the_grid_are_refused_never_wrapped(values):
    with pytest.raises(RobfcpError, match="scores"):
        sketch(values, Grid.default())


@pytest.mark.parametrize(
    "edges", [[0], [0, 0], [1, 0], [0, np.nan], [0, np.inf, 1], [[0, 1]], [np.inf, 1]]
)
def test_impossible_edges_are_refused(edges):
    with pytest.raises(RobfcpError, match="grid"):
        Grid(edges)


def test_impossible_parameters_are_refused():
    for call in (
        lambda: Grid.uniform(0),
        lambda: Grid.uniform(10, 1, 0),
        lambda: Grid.uniform(10**9),
        lambda: Grid.uniform(2.5),
        lambda: Grid.uniform(10, -np.inf, 1),
        lambda: Grid.uniform(10, -1e308, 1e308),
        lambda: Grid.uniform(10, "a", "b"),
        lambda: Grid.open_ended([np.inf]),
        lambda: Grid.open_ended([[1.0]]),
        lambda: Grid(np.arange(1_000_003)),
        lambda: named("nope", {}),
        lambda: named("default", {"bins": 3}),
    ):
        with pytest.raises(RobfcpError, match="grid"):
            call()


def test_edges_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        Grid.default().edges[0] = 1


def test_merging_needs_nested_edges_of_the_same_range():
    assert Grid.uniform(10).merge_ends(Grid.uniform(3)) is None
    assert Grid.uniform(10).merge_ends(Grid.uniform(10, 0, 2)) is None
    np.testing.assert_array_equal(Grid.uniform(10).merge_ends(Grid.uniform(2)), [4, 9])
