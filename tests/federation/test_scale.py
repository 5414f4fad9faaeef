"""Many clients: the same answers from sparse tables, samples and blocks, within stated memory."""

from dataclasses import replace

import numpy as np
import pytest
from makers import LAC, peak, reports_of

import robfcp
from robfcp.defence import named_defence
from robfcp.defence.copies import find_copies
from robfcp.federation import DenseCounts, Federation, SparseCounts
from robfcp.federation import counts as _counts
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets

GRID = Grid.default()


def scores(n_clients, zeros=0, seed=0):
    """(K, 50) scores of sites that differ; the first few report zeros only."""
    rng = np.random.default_rng([n_clients, seed])
    drawn = rng.beta(rng.uniform(0.3, 0.9, n_clients)[:, None], 2, (n_clients, 50))
    drawn[:zeros] = 0
    return drawn


def federation(drawn):
    return Federation.from_counts(np.array([GRID.counts(row) for row in drawn]), GRID, score=LAC)


def narrow(dense):
    """The same reports in a sparse table."""
    starts, bins, values = dense.entries()
    table = SparseCounts(starts, bins.astype(np.uint16), values.astype(np.uint8), GRID.n_bins)
    return replace(dense, table=table)


def test_sparse_and_dense_federations_answer_as_their_counts_do(monkeypatch):
    monkeypatch.setattr(_counts, "_ENTRIES", 100)  # many blocks
    dense = federation(scores(60))
    counts, passed = dense.counts, np.cumsum(dense.counts, axis=1)
    mask = np.arange(60) % 3 > 0
    weights = np.random.default_rng(0).random(60) * mask
    edges, last = np.array([3, 500, GRID.n_bins - 1]), GRID.n_bins - 1
    ends = np.array([10, 11, 700, last])
    for found in (narrow(dense), dense):
        np.testing.assert_array_equal(found.counts, counts)
        np.testing.assert_array_equal(found.cumulative(), passed)
        for chosen in (edges, edges[:2], edges[:0]):
            np.testing.assert_array_equal(found.cumulative(chosen), passed[:, chosen])
        for index in (0, 400, last):
            np.testing.assert_array_equal(found.below(index), passed[:, index])
        np.testing.assert_array_equal(found.pooled(), counts.sum(axis=0))
        np.testing.assert_array_equal(found.pooled(mask), counts[mask].sum(axis=0))
        np.testing.assert_allclose(found.weighted(weights), weights @ counts, atol=1e-12)
        wanted = np.diff(passed[:, ends], axis=1, prepend=0)
        np.testing.assert_array_equal(found.merged(ends), wanted)
        for one, other in zip(found.entries(), dense.entries(), strict=True):
            np.testing.assert_array_equal(one, other)
        part = found.subset(mask)
        assert type(part.table) is type(found.table)
        assert part.ids == tuple(np.array(dense.ids)[mask])
        assert (part.n_clients, part.n_samples) == (40, counts[mask].sum())
        np.testing.assert_array_equal(part.counts, counts[mask])
        assert list(found) == list(dense)


@pytest.mark.parametrize("defence", ["consensus", "rob-fcp", "none"])
@pytest.mark.parametrize("promise", [None, robfcp.Marginal(4), robfcp.Pac(4, alike=0.4)])
def test_a_calibration_does_not_depend_on_how_counts_are_held(defence, promise):
    dense = federation(scores(40, zeros=4))
    options = {"defence": named_defence(defence, 4), "promise": promise}
    one, other = robfcp.calibrate(narrow(dense), **options), robfcp.calibrate(dense, **options)
    assert (one.trusted, one.levels) == (other.trusted, other.levels)


def test_large_tables_are_sparse_where_that_is_smaller_and_survive_a_file(monkeypatch, tmp_path):
    reports = reports_of(scores(50))
    monkeypatch.setattr("robfcp.federation.intake._REPORTS", 7)
    small = Federation.from_reports(iter(reports))
    assert isinstance(small.table, DenseCounts)
    monkeypatch.setattr(_counts, "DENSE_BYTES", 0)
    sparse = Federation.from_reports(iter(reports))
    assert sparse.table.bins.dtype == np.uint16
    assert sparse.table.values.dtype == np.uint8
    np.testing.assert_array_equal(sparse.counts, small.counts)
    calibration = robfcp.calibrate(sparse)
    calibration.save(tmp_path / "calibration.json")
    again = robfcp.Calibration.load(tmp_path / "calibration.json")
    assert isinstance(again.federation.table, SparseCounts)
    assert again == calibration


def test_reports_are_taken_in_one_by_one(monkeypatch):
    monkeypatch.setattr(_counts, "DENSE_BYTES", 0)
    drawn = scores(600)

    def stream():
        for k, own in enumerate(drawn):
            yield robfcp.Report.from_scores(f"site-{k:04d}", own, GRID, score=LAC)

    dense_bytes = 8 * 600 * GRID.n_bins
    assert peak(lambda: Federation.from_reports(stream())) < dense_bytes / 3
    assert peak(lambda: Federation.from_reports(list(stream()))) > dense_bytes


def test_of_many_only_equal_reports_are_copies(monkeypatch):
    drawn = scores(400)
    drawn[10:14] = drawn[3]  # exact
    drawn[20:30] = drawn[4]
    drawn[np.arange(20, 30), np.arange(10)] = 0.5  # one sample moved
    assert [len(group.clients) for group in find_copies(federation(drawn))] == [5, 11]
    monkeypatch.setattr("robfcp.defence.copies.MANY", 10)
    assert [len(group.clients) for group in find_copies(federation(drawn))] == [5]


@pytest.mark.parametrize("number", [1000, pytest.param(3000, marks=pytest.mark.slow)])
def test_nobody_is_flagged_among_many_honest_clients(number):
    assert robfcp.defence.estimate_malicious(federation(scores(number, seed=1))) == 0


def test_prediction_sets_are_built_a_block_at_a_time(tmp_path):
    p = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", np.float32, (20_000, 200))
    p[:] = np.random.default_rng(0).dirichlet(np.ones(200), 20_000)
    blocks, sizes = iterate_sets(robfcp.APS(), p, [0.9], rng=1), []
    most = peak(lambda: sizes.extend(members.sum() for _, members in blocks))
    assert most < 40 * 2**20  # blocks of 1 MiB and what an argsort of them takes
    assert len(sizes) > 10
