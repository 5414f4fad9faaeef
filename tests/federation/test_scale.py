"""Many clients: the same answers from sparse tables, samples and blocks, within stated memory."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from effort import thorough

import robfcp
from robfcp.defence import RobFCP, find_copies, named_defence, trust_lowest
from robfcp.defence import rob_fcp as large
from robfcp.defence.copies import codes_of, similar_rows
from robfcp.defence.rob_fcp import (
    METRICS,
    Space,
    neighbour_means,
    pairwise,
    rank_means,
    scalable_means,
)
from robfcp.errors import RobfcpError
from robfcp.federation import DenseCounts, Federation, SparseCounts
from robfcp.federation import counts as _counts
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets

GRID = Grid.default()
ATTACKS = ("none", "coverage", "efficiency", "gaussian", "mimic")


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


@pytest.mark.parametrize("metric", ["l2", "l1", "linf"])
def test_exact_distances_stay_within_the_memory_they_are_given(metric):
    vectors = np.random.default_rng(0).dirichlet(np.ones(20), 2500)
    memory = 12 * 2**20
    neighbour_means(vectors[:50], metric, 1, 20)  # imports
    assert peak(lambda: neighbour_means(vectors, metric, 1, 1500, memory=memory)) < memory
    assert peak(lambda: pairwise(vectors, metric)) > memory  # the measure sees what breaks it


def test_copies_do_not_break_the_memory_bound():
    vectors = np.random.default_rng(0).dirichlet(np.ones(20), 2500)
    vectors[:1000] = vectors[0]
    vectors[1000:1500] = vectors[1000] + 1e-9 * vectors[1000:1500]
    memory = 12 * 2**20
    assert peak(lambda: neighbour_means(vectors, "l2", 1, 1500, memory=memory)) < memory


@pytest.mark.parametrize("metric", METRICS)
def test_all_clients_as_references_are_the_exact_path(metric):
    vectors = np.random.default_rng(1).dirichlet(np.ones(9), 80)
    vectors[:20] = vectors[0]
    space = Space.of(vectors, metric)
    for first, last in ((1, 79), (1, 40), (30, 50), (78, 79)):
        exact = rank_means(space, first, last)
        sampled = rank_means(space, first, last, references=np.arange(80))
        np.testing.assert_allclose(sampled.means, exact.means, atol=1e-12)
        assert sampled.errors.max() < 1e-6


def test_distances_in_units_of_noise_equal_the_formula():
    rng = np.random.default_rng(2)
    for width in (1, 3, 12):
        points, variances = rng.normal(size=(50, width)), rng.random(50) + 0.1
        found = rank_means(Space(points, "l2", variances), 5, 30).means
        direct = np.linalg.norm(points[:, None] - points, axis=2)
        direct /= np.sqrt(variances[:, None] + variances)
        np.testing.assert_allclose(found, np.sort(direct, axis=1)[:, 5:31].mean(axis=1), atol=1e-12)


def agreement(n_clients, attack, n=50):
    """Share of clients on whom large and exact path agree, and |error| over stated error."""
    ids = tuple(f"{k:06d}" for k in range(n_clients))
    benign = int(0.6 * n_clients)
    grid = Grid.uniform(100)
    space = Space.of(counts_of(scores(n_clients, attack, n=n), grid) / n, "l2")
    exact = rank_means(space, 1, benign - 1).means
    estimate = scalable_means(space, 1, benign - 1, cut=benign, seed=7)
    verdicts = [trust_lowest(number, ids, benign) for number in (exact, estimate.means)]
    errors = np.abs(estimate.means - exact) / np.maximum(estimate.errors, 1e-9)
    return np.mean(verdicts[0] == verdicts[1]), errors


@pytest.mark.parametrize("attack", thorough(ATTACKS, "mimic"))
def test_a_sample_of_references_keeps_nearly_the_same_clients(attack, monkeypatch):
    monkeypatch.setattr(large, "LARGE", 0)
    share, errors = agreement(2500, attack)
    assert share >= 0.999
    assert np.quantile(errors, 0.99) < 5


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "n"), [*((a, 50) for a in ATTACKS), ("gaussian", 500)])
def test_ten_thousand_clients_by_references_as_by_all_distances(attack, n, monkeypatch):
    monkeypatch.setattr(large, "LARGE", 0)
    share, errors = agreement(10_000, attack, n)
    assert share >= 0.999
    assert np.quantile(errors, 0.99) < 5


def test_references_are_secret_unless_a_seed_is_given(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(large, "REFERENCES", 64)
    dense, _ = federations(300, attack="coverage", share=0.2)
    rules = [RobFCP(60), RobFCP(60), RobFCP(60, seed=1), RobFCP(60, seed=1)]
    notes = [robfcp.calibrate(dense, defence=rule).remarks[0] for rule in rules]
    assert notes[0] != notes[1]
    assert notes[2] == notes[3]
    assert "64 reference clients" in notes[2]
    assert "seed 1" in notes[2]
    monkeypatch.setattr(large, "LARGE", 300)
    assert robfcp.calibrate(dense, defence=robfcp.RobFCP(liars=60)).remarks == ()


def test_copies_are_found_without_comparing_every_pair(monkeypatch):
    drawn = scores(400)
    drawn[10:14] = drawn[3]  # exact
    drawn[20:30] = drawn[4]
    drawn[np.arange(20, 30), np.arange(10)] = 0.5  # one sample moved
    dense = Federation.from_counts(counts_of(drawn), GRID)
    expected = find_copies(dense)
    assert [len(group.clients) for group in expected] == [5, 11]
    monkeypatch.setattr("robfcp.defence.copies.MANY", 10)
    assert find_copies(Federation.from_counts(counts_of(drawn), GRID)) == expected
    codes = codes_of(dense.table, GRID.n_bins)
    assert len(np.unique(codes.rows)) == len(np.unique(dense.counts, axis=0))
    left, right = similar_rows(dense.table, codes, np.arange(30, 400))
    assert len(left) == len(right) == 0


@pytest.mark.parametrize("number", [1000, pytest.param(3000, marks=pytest.mark.slow)])
def test_nobody_is_flagged_among_many_honest_clients(number):
    honest = Federation.from_counts(counts_of(scores(number, seed=1)), GRID)
    assert robfcp.estimate_malicious(honest) == 0


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


@pytest.mark.train
def test_an_accelerator_trusts_the_same_clients():
    pytest.importorskip("torch")
    from robfcp.defence.rob_fcp import gpu_neighbour_means

    for attack in ATTACKS:
        federation = Federation.from_counts(counts_of(scores(400, attack)), GRID)
        here = RobFCP()(federation, 160)
        there = RobFCP(device="cpu")(federation, 160)
        np.testing.assert_array_equal(here.trusted, there.trusted)
    vectors = np.random.default_rng(0).dirichlet(np.ones(8), 90)
    vectors[:30] = vectors[0]
    for metric in METRICS:
        for first, last in ((1, 89), (1, 50), (30, 60)):
            found = gpu_neighbour_means(vectors, metric, first, last, "cpu", memory=10_000)
            expected = neighbour_means(vectors, metric, first, last)
            np.testing.assert_allclose(found, expected, atol=1e-9)
    with pytest.raises(RobfcpError, match="neighbours"):
        gpu_neighbour_means(vectors, "l2", 1, 90, "cpu")
