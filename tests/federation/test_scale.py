"""Many clients: the same answers from sparse tables, samples and blocks, within stated memory."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import robfcp
from robfcp.defence import named_defence
from robfcp.defence.copies import find_copies
from robfcp.federation import DenseCounts, Federation, SparseCounts
from robfcp.federation import counts as _counts
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets

GRID = Grid.default()


def scores(n_clients, attack="none", share=0.4, n=50, seed=0):
    rng = np.random.default_rng([n_clients, seed])
    drawn = rng.beta(rng.uniform(0.3, 0.9, n_clients)[:, None], 2, (n_clients, n))
    liars = int(share * n_clients)
    if attack == "gaussian":
        noise = rng.normal(0, 0.5 * drawn.std(), (liars, n))
        drawn[:liars] = np.clip(drawn[:liars] + noise, 0, 1)
    elif attack != "none":
        drawn[:liars] = {"coverage": 0.0, "efficiency": 1.0, "mimic": drawn[-1]}[attack]
    return drawn


def counts_of(drawn, grid=GRID):
    cells = (
        grid.index(drawn.ravel()) + np.repeat(np.arange(len(drawn)), drawn.shape[1]) * grid.n_bins
    )
    return np.bincount(cells, minlength=len(drawn) * grid.n_bins).reshape(len(drawn), -1)


def federations(n_clients=60, **options):
    """The same reports in a dense and in a sparse table."""
    dense = Federation.from_counts(
        counts_of(scores(n_clients, **options)), GRID, score=robfcp.LAC()
    )
    starts, bins, values = dense.entries()
    narrow = SparseCounts(starts, bins.astype(np.uint16), values.astype(np.uint8), GRID.n_bins)
    return dense, replace(dense, table=narrow)


def peak(work):
    """Bytes allocated at most while the work is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_sparse_federation_answers_like_a_dense_one(monkeypatch):
    monkeypatch.setattr(_counts, "_ENTRIES", 100)  # many blocks
    dense, sparse = federations()
    mask = np.arange(60) % 3 > 0
    weights = np.random.default_rng(0).random(60) * mask
    edges = np.array([3, 500, GRID.n_bins - 1])
    ends = np.array([10, 11, 700, GRID.n_bins - 1])
    np.testing.assert_array_equal(sparse.counts, dense.counts)
    np.testing.assert_array_equal(sparse.cumulative(), dense.cumulative())
    for chosen in (edges, edges[:2], edges[:0]):
        expected = dense.cumulative()[:, chosen]
        np.testing.assert_array_equal(sparse.cumulative(chosen), expected)
        np.testing.assert_array_equal(dense.cumulative(chosen), expected)
    for index in (0, 400, GRID.n_bins - 1):
        np.testing.assert_array_equal(sparse.below(index), dense.below(index))
    np.testing.assert_array_equal(sparse.pooled(), dense.pooled())
    np.testing.assert_array_equal(sparse.pooled(mask), dense.pooled(mask))
    np.testing.assert_allclose(sparse.weighted(weights), dense.weighted(weights), atol=1e-12)
    np.testing.assert_allclose(dense.weighted(weights), weights @ dense.counts, atol=1e-12)
    np.testing.assert_array_equal(sparse.merged(ends), dense.merged(ends))
    for one, other in zip(sparse.entries(), dense.entries(), strict=True):
        np.testing.assert_array_equal(one, other)
    part, expected = sparse.subset(mask), dense.subset(mask)
    assert isinstance(part.table, SparseCounts)
    assert part.ids == expected.ids
    np.testing.assert_array_equal(part.counts, expected.counts)
    assert list(sparse) == list(dense)


@pytest.mark.parametrize("defence", ["consensus", "rob-fcp", "none"])
@pytest.mark.parametrize("promise", [None, robfcp.Marginal(4), robfcp.Pac(4, alike=0.4)])
def test_a_calibration_does_not_depend_on_how_counts_are_held(defence, promise):
    dense, sparse = federations(40, attack="coverage", share=0.1)
    options = {"defence": named_defence(defence, 4), "promise": promise}
    one, other = robfcp.calibrate(sparse, **options), robfcp.calibrate(dense, **options)
    assert one.threshold == other.threshold
    assert one.trusted == other.trusted
    assert one.certificate == other.certificate
    assert one.levels == other.levels


def test_large_tables_are_sparse_where_that_is_smaller_and_survive_a_file(monkeypatch, tmp_path):
    reports = list(federations(50)[0])
    monkeypatch.setattr("robfcp.federation.intake._REPORTS", 7)
    small = Federation.from_reports(iter(reports))
    assert isinstance(small.table, DenseCounts)
    monkeypatch.setattr(_counts, "DENSE_BYTES", 0)
    sparse = Federation.from_reports(iter(reports))
    assert isinstance(sparse.table, SparseCounts)
    assert sparse.table.bins.dtype == np.uint16
    assert sparse.table.values.dtype == np.uint8
    np.testing.assert_array_equal(sparse.counts, small.counts)
    calibration = robfcp.calibrate(sparse)
    calibration.save(tmp_path / "calibration.json")
    again = robfcp.Calibration.load(tmp_path / "calibration.json")
    assert isinstance(again.federation.table, SparseCounts)
    assert again == calibration
    crowded = Federation.from_reports(
        robfcp.Report(f"c{k}", np.full(20, 10**6 + k), Grid.uniform(20)) for k in range(5)
    )
    assert isinstance(crowded.table, DenseCounts | SparseCounts)
    assert crowded.n_samples == 20 * (5 * 10**6 + 10)


def test_reports_are_taken_in_one_by_one(monkeypatch):
    monkeypatch.setattr(_counts, "DENSE_BYTES", 0)
    drawn = scores(600)

    def stream():
        for k, own in enumerate(drawn):
            yield robfcp.Report.from_scores(f"site-{k:04d}", own, GRID, score=robfcp.LAC())

    dense_bytes = 8 * 600 * GRID.n_bins
    assert peak(lambda: Federation.from_reports(stream())) < dense_bytes / 3
    assert peak(lambda: Federation.from_reports(list(stream()))) > dense_bytes


def test_of_many_only_equal_reports_are_copies(monkeypatch):
    drawn = scores(400)
    drawn[10:14] = drawn[3]  # exact
    drawn[20:30] = drawn[4]
    drawn[np.arange(20, 30), np.arange(10)] = 0.5  # one sample moved
    dense = Federation.from_counts(counts_of(drawn), GRID)
    assert [len(group.clients) for group in find_copies(dense)] == [5, 11]
    monkeypatch.setattr("robfcp.defence.copies.MANY", 10)
    (equal,) = find_copies(Federation.from_counts(counts_of(drawn), GRID))
    assert len(equal.clients) == 5


@pytest.mark.parametrize("number", [1000, pytest.param(3000, marks=pytest.mark.slow)])
def test_nobody_is_flagged_among_many_honest_clients(number):
    honest = Federation.from_counts(counts_of(scores(number, seed=1)), GRID)
    assert robfcp.defence.estimate_malicious(honest) == 0


def test_prediction_sets_are_built_a_block_at_a_time(tmp_path):
    rng = np.random.default_rng(0)
    p = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", np.float32, (20_000, 200))
    p[:] = rng.dirichlet(np.ones(200), 20_000)
    sizes = []

    def predict():
        for _, members in iterate_sets(robfcp.APS(), p, [0.9], rng=1):
            sizes.append(members.sum())

    assert peak(predict) < 40 * 2**20  # blocks of 1 MiB and what an argsort of them takes
    assert len(sizes) > 10
