"""Rob-FCP by its text and by its code, against plain Python and plain readings of both."""

from fractions import Fraction

import brute
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import robfcp
from robfcp.defence import RobFCP, RobFCPReleased, named_defence, rob_fcp, threshold_of
from robfcp.defence import rob_fcp as module
from robfcp.defence.base import trust_lowest
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import rank_charge
from robfcp.lab.paper.runs import LEVEL, PaperWorld, make_trial
from robfcp.lab.published import full_rank, published_rank, table_edge

RANKS = {"partial": rank_charge, "full": full_rank, "published": published_rank}


def random_counts(rng, k_low=2, k_high=9):
    """Unequal sizes, single samples, ties and copies."""
    n_clients, n_bins = rng.integers(k_low, k_high), rng.integers(1, 7)
    sizes = rng.choice([1, 1, 2, 5, 9, 20], n_clients)
    counts = np.array([rng.multinomial(n, rng.dirichlet(np.ones(n_bins))) for n in sizes])
    if rng.random() < 0.3:
        counts[rng.integers(n_clients)] = counts[rng.integers(n_clients)]
    return counts


@pytest.mark.parametrize(
    ("number", "seed"), [(50, 1), pytest.param(3000, 0, marks=pytest.mark.slow)]
)
def test_published_method_equals_brute_force_on_thousands_of_federations(number, seed):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        counts = random_counts(rng)
        n_clients = len(counts)
        n_malicious = int(rng.integers(0, (n_clients - 1) // 2 + 1))
        level = Fraction(int(rng.integers(100, 200)), 200)
        rule = str(rng.choice(list(RANKS)))
        federation = Federation.from_counts(counts)
        uppers = federation.grid.upper.tolist()
        for defence in ("none", "rob-fcp"):
            told = named_defence(defence, n_malicious)
            calibration = robfcp.calibrate(federation, level, defence=told)
            kept = list(range(n_clients))
            if defence == "rob-fcp":
                kept = brute.trusted(counts.tolist(), federation.ids, n_clients - n_malicious)
            assert calibration.trusted == tuple(federation.ids[k] for k in kept)
            expected = brute.threshold([counts[k] for k in kept], uppers, level, rule)
            own = threshold_of(told, federation, calibration.trusted_mask, RANKS[rule])
            assert federation.threshold_at(own.index(level)) == expected


@pytest.mark.parametrize("metric", rob_fcp.METRICS)
def test_oddness_equals_brute_force_for_every_distance(metric):
    rng = np.random.default_rng(1)
    for _ in range(40):
        counts = random_counts(rng)
        n_malicious = int(rng.integers(0, (len(counts) - 1) // 2 + 1))
        found = RobFCP(n_malicious, metric)(Federation.from_counts(counts))
        expected = brute.maliciousness(counts.tolist(), len(counts) - n_malicious, metric)
        np.testing.assert_allclose(found.oddness, expected, atol=1e-12)


@pytest.mark.parametrize("metric", rob_fcp.METRICS)
def test_means_between_two_ranks_are_those_of_sorted_distances_block_by_block(metric, monkeypatch):
    v = np.random.default_rng(4).dirichlet(np.ones(9), 60)
    v[:5] = v[5] + 1e-9 * v[:5]  # close pairs keep their digits
    names = {"l2": "euclidean", "cosine": "cosine", "linf": "chebyshev", "kolmogorov": "chebyshev"}
    points = np.cumsum(v, axis=1) if metric in ("kolmogorov", "wasserstein") else v
    ordered = np.sort(cdist(points, points, names.get(metric, "cityblock")), axis=1)
    for first, last in ((1, 59), (3, 30), (58, 59)):
        whole = rob_fcp.mean_distances(v, metric, first, last)
        tight = {"atol": 1e-15} if metric != "cosine" else {"atol": 1e-14}
        np.testing.assert_allclose(whole, ordered[:, first : last + 1].mean(axis=1), **tight)
        with monkeypatch.context() as patched:
            patched.setattr(module, "_CELLS", 1)
            np.testing.assert_array_equal(rob_fcp.mean_distances(v, metric, first, last), whole)
    assert rob_fcp.mean_distances(v[:1], metric, 1, 0).tolist() == [0]


def test_what_cannot_be_compared_is_refused_or_at_no_distance(monkeypatch):
    with pytest.raises(RobfcpError, match="distance: 'l3' is unknown"):
        rob_fcp.mean_distances(np.eye(4), "l3", 1, 2)
    nothing = rob_fcp.mean_distances(np.array([[0.0, 0], [0, 0], [1, 0]]), "cosine", 1, 2)
    assert nothing.tolist() == [0.25, 0.25, 0.5]
    monkeypatch.setattr(module, "MOST_SITES", 3)
    with pytest.raises(RobfcpError, match="all pairs of 4 sites are too many; use consensus"):
        rob_fcp.mean_distances(np.eye(4), "l2", 1, 2)


def test_the_view_is_the_papers_and_the_threshold_is_on_the_full_grid():
    rng = np.random.default_rng(2)
    scores = rng.beta(0.4, 2, (8, 300))
    fine = [robfcp.Report.from_scores(f"c{k}", s, Grid.default()) for k, s in enumerate(scores)]
    coarse = [robfcp.Report.from_scores(f"c{k}", s, Grid.uniform()) for k, s in enumerate(scores)]
    one = robfcp.calibrate(fine, defence=RobFCP(3))
    other = robfcp.calibrate(coarse, defence=RobFCP(3))
    np.testing.assert_array_equal(one.oddness, other.oddness)
    assert one.trusted == other.trusted
    assert one.threshold < other.threshold <= one.threshold + 0.01
    kept = np.sort(scores[[int(name[1:]) for name in one.trusted]].ravel())
    exact = kept[int(np.ceil(0.9 * (len(kept) + 5))) - 1]
    edges = Grid.default().upper
    assert one.threshold == edges[np.searchsorted(edges, exact)]


def test_ties_go_by_client_id():
    number = np.array([0.5, 0.5, 0.1, 0.5 + 1e-15])
    mask = trust_lowest(Federation.from_counts([[1, 2]] * 4, ids="dbca"), number, 2)
    assert mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize("how", rob_fcp.CHARACTERISATIONS)
@pytest.mark.parametrize("grid", [Grid.default(), Grid.uniform(20), Grid.open_ended([0.1, 0.5])])
def test_every_characterisation_tells_liars_from_honest_clients(how, grid):
    rng = np.random.default_rng(5)
    scores = [rng.beta(2, 3, 200) for _ in range(14)] + [np.full(200, 0.95) for _ in range(4)]
    reports = [robfcp.Report.from_scores(f"c{k:02d}", s, grid) for k, s in enumerate(scores)]
    calibration = robfcp.calibrate(reports, defence=RobFCP(4, characterisation=how))
    assert calibration.flagged == ("c14", "c15", "c16", "c17")


def test_characterisations_are_what_they_say():
    scores = np.random.default_rng(6).beta(2, 3, 5000)
    federation = Federation.from_reports(
        [robfcp.Report.from_scores("a", scores, Grid.uniform(1000))]
    )
    mean, deviation = rob_fcp.characterise(federation, "gaussian", bins=1000)[0]
    assert mean == pytest.approx(scores.mean(), abs=1e-3)
    assert deviation == pytest.approx(scores.std(), abs=1e-3)
    quantiles = rob_fcp.characterise(federation, "quantiles", bins=1000)[0]
    np.testing.assert_allclose(quantiles, np.quantile(scores, np.arange(1, 20, 2) / 20), atol=2e-3)
    centres = rob_fcp.characterise(federation, "k-means", bins=1000)[0]
    nearest = np.abs(scores[:, None] - centres).argmin(axis=1)
    np.testing.assert_allclose(centres, [scores[nearest == j].mean() for j in range(10)], atol=2e-2)
    kernel = rob_fcp.characterise(federation, "kernel")[0]
    assert kernel.sum() == pytest.approx(1, abs=0.02)
    with pytest.raises(RobfcpError, match="characterisation"):
        rob_fcp.characterise(federation, "nope")


def plain_vector(scores, bins=100):
    """`int(score / width) - 1` of conformity scores; index -1 is the last bin."""
    vector = [0] * bins
    for score in scores:
        vector[int((1 - score) * bins) - 1] += 1
    return np.array(vector) / len(scores)


def plain_number(vectors, n_benign):
    distances = [[np.linalg.norm(v - w) for w in vectors] for v in vectors]
    return np.array([np.mean(sorted(row)[::-1][: n_benign - 1]) for row in distances])


def plain_estimate(vectors):
    n_clients = len(vectors)
    number = plain_number(vectors, -(-n_clients // 2))
    ranked = vectors[np.argsort(np.round(number, 12), kind="stable")]
    best = {}
    for z in range(n_clients // 2 + 1, n_clients):
        squared = ((ranked - ranked[:z].mean(axis=0)) ** 2).sum(axis=1)
        best[z] = squared[z:].mean() - squared[:z].mean()
    return n_clients - max(best, key=best.get)


def test_the_released_rule_equals_a_plain_reading_of_its_description():
    """Scores away from the edges of bins, where rounding would decide, and exact zeros."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        n_clients = int(rng.integers(4, 14))
        n_malicious = int(rng.integers(0, (n_clients - 1) // 2 + 1))
        sizes = rng.integers(5, 40, n_clients)
        scores = [(rng.integers(0, 100, n) + rng.uniform(0.1, 0.9, n)) / 100 for n in sizes]
        for part in scores[: n_clients // 3]:
            part[rng.random(len(part)) < 0.5] = 0.0
        federation = Federation.from_reports(
            robfcp.Report.from_scores(f"c{k:02d}", part, Grid.default())
            for k, part in enumerate(scores)
        )
        vectors = np.array([plain_vector(part) for part in scores])
        np.testing.assert_allclose(
            np.sort(rob_fcp.wrapped(federation), axis=1), np.sort(vectors, axis=1), atol=1e-12
        )
        number = plain_number(vectors, n_clients - n_malicious)
        found = RobFCPReleased(n_malicious)(federation)
        np.testing.assert_allclose(found.oddness, number, atol=1e-12)
        order = np.argsort(np.round(number, 12), kind="stable")
        assert set(np.flatnonzero(~found.trusted)) == set(order[n_clients - n_malicious :])
        assert RobFCPReleased().estimate(federation) == plain_estimate(vectors)


def test_a_grid_no_finer_than_the_view_tells_no_zeros_apart():
    federation = Federation.from_counts([[5] + [0] * 99, [1] * 100], Grid.uniform())
    assert rob_fcp.wrapped(federation)[0, 0] == 1


@pytest.mark.parametrize(
    ("dataset", "text", "released"),
    [("mnist", 0.68, 0.900), ("cifar10", 0.81, 0.898), ("pathmnist", 0.69, 0.895)],
)
def test_the_text_fails_where_the_code_does_not(dataset, text, released):
    """40 of 100 report zeros, Dirichlet(0.5), the shipped outputs."""
    found = []
    for seed in range(5):
        trial = make_trial(PaperWorld(dataset, "beta0.5", "final", 0.5), seed)
        federation = trial.attacked("coverage", 40, np.random.default_rng(seed))
        edges = [
            table_edge(federation, LEVEL, rule(federation).trusted)
            for rule in (RobFCP(40), RobFCPReleased(40))
        ]
        found.append([trial.measure(edge, trial.benign(40))[0] for edge in edges])
    means = np.mean(found, axis=0)
    assert means[0] == pytest.approx(text, abs=0.02)
    assert means[1] == pytest.approx(released, abs=0.01)
