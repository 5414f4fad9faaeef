"""FedCP-QQ: its closed form, its coverage on iid sites, and its place in the test range."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from makers import outputs

from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab.redteam import redteam
from robfcp.lab.rivals import chosen_orders, expected_coverages, fedcp_qq_index
from robfcp.lab.simulation import simulate
from robfcp.lab.worlds import federation_of
from robfcp.scores import LAC

LEVEL = Fraction(9, 10)


def published_coverage(m: int, n: int, order: int, place: int) -> Fraction:
    """The finite-sample formula of the rule's paper, term by term."""
    total = Fraction(0)
    for counts in product(range(n + 1), repeat=m):
        if sum(i >= order for i in counts) >= place:
            ways = np.prod([comb(n, i) for i in counts], dtype=object)
            total += Fraction(int(ways), comb(m * n, sum(counts)))
    return 1 - total / (m * n + 1)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 3), (4, 2)])
def test_expected_coverage_is_the_published_formula(m: int, n: int) -> None:
    for order in range(1, n + 1):
        found = expected_coverages(np.full(m, order), np.full(m, n))
        exact = [float(published_coverage(m, n, order, place)) for place in range(1, m + 1)]
        np.testing.assert_allclose(found, exact, atol=1e-9)


def test_orders_reach_the_level_with_little_excess() -> None:
    for sizes in ((50,) * 20, (500,) * 9, tuple(range(20, 120, 5))):
        local, place = chosen_orders(sizes, LEVEL) or ((), 0)
        coverage = expected_coverages(np.array(local), np.array(sizes))[place - 1]
        assert 0.9 <= coverage < 0.905
        assert len(sizes) / 4 < place <= 3 * len(sizes) / 4
    assert chosen_orders((2, 2), LEVEL) is None
    assert fedcp_qq_index(Federation.from_counts([[1, 1], [2, 0]]), LEVEL) is None


def test_it_covers_on_sites_of_one_distribution() -> None:
    rng, covered = np.random.default_rng(0), []
    grid = Grid.uniform(1000)
    for _ in range(300):
        scores = [rng.random(50) for _ in range(20)]
        index = fedcp_qq_index(federation_of(scores, grid, LAC()), LEVEL)
        assert index is not None
        covered.append(grid.upper[index])
    assert 0.899 < np.mean(covered) < 0.904  # a bin is .001 wide


def test_it_is_compared_beside_the_defences() -> None:
    data = outputs(0, 2000, 4, 0.3)
    rows = simulate(*data, n_clients=20, seeds=1, defences=["none", "fedcp-qq"])
    assert [row.defence for row in rows] == ["none", "fedcp-qq"]
    assert rows[1].flagged == 0
    assert abs(rows[1].error) < abs(rows[0].error)
    cells = redteam(*data, attacks=("coverage",), seeds=1, trials=1, shares=(0.2,))
    assert {cell.defence for cell in cells} >= {"fedcp-qq", "rob-fcp-released"}
    (row,) = simulate(*data, share=0, n_clients=5, seeds=1, defences=["fedcp-qq"], by="class")
    assert row.coverage > 0.8
