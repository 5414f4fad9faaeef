"""Rob-FCP by the paper's text and by its code, against plain Python readings of both."""

from fractions import Fraction

import brute
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import robfcp
from robfcp.binning import Binning
from robfcp.defense import RobFCP, RobFCPReleased, get_defense, rob_fcp
from robfcp.defense._base import select_benign_set
from robfcp.defense.rob_fcp import _maliciousness
from robfcp.errors import RobfcpError
from robfcp.experiments.paper.ranks import rank_n_plus_1, rank_n_plus_k, table_bin
from robfcp.experiments.paper.runner import LEVEL, PaperScenario, make_trial
from robfcp.federation import Federation
from robfcp.guarantees import rank_correction

RANKS = {"partial": rank_correction, "full": rank_n_plus_1, "published": rank_n_plus_k}


def random_counts(rng, k_low=2, k_high=9):
    """Unequal sizes, single samples, ties and copies."""
    n_clients, n_bins = rng.integers(k_low, k_high), rng.integers(1, 7)
    sizes = rng.choice([1, 1, 2, 5, 9, 20], n_clients)
    counts = np.array([rng.multinomial(n, rng.dirichlet(np.ones(n_bins))) for n in sizes])
    if rng.random() < 0.3:
        counts[rng.integers(n_clients)] = counts[rng.integers(n_clients)]
    return counts


@pytest.mark.parametrize(
    ("n_rounds", "seed"), [(50, 1), pytest.param(3000, 0, marks=pytest.mark.slow)]
)
def test_published_method_equals_brute_force_on_thousands_of_federations(n_rounds, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n_rounds):
        counts = random_counts(rng)
        n_clients = len(counts)
        n_malicious = int(rng.integers(0, (n_clients - 1) // 2 + 1))
        level = Fraction(int(rng.integers(100, 200)), 200)
        defense_name = str(rng.choice(list(RANKS)))
        federation = Federation.from_counts(counts)
        uppers = federation.binning.upper_edges.tolist()
        for name in ("none", "rob-fcp"):
            defense = get_defense(name, n_malicious)
            calibration = robfcp.calibrate(federation, coverage=level, defense=defense)
            benign = list(range(n_clients))
            if name == "rob-fcp":
                benign = brute.benign_clients(
                    counts.tolist(), federation.clients, n_clients - n_malicious
                )
            assert calibration.benign_clients == tuple(federation.clients[k] for k in benign)
            expected = brute.threshold([counts[k] for k in benign], uppers, level, defense_name)
            assessment = defense.assess(federation)
            threshold_rule = assessment.threshold_rule(federation, RANKS[defense_name])
            assert federation.threshold_at(threshold_rule.bin_index(level)) == expected


@pytest.mark.parametrize("metric", rob_fcp.METRICS)
def test_maliciousness_equals_brute_force_for_every_distance(metric):
    rng = np.random.default_rng(1)
    for _ in range(40):
        counts = random_counts(rng)
        n_malicious = int(rng.integers(0, (len(counts) - 1) // 2 + 1))
        assessment = RobFCP(n_malicious, metric).assess(Federation.from_counts(counts))
        expected = brute.maliciousness(counts.tolist(), len(counts) - n_malicious, metric)
        np.testing.assert_allclose(assessment.maliciousness, expected, atol=1e-12)


@pytest.mark.parametrize("metric", rob_fcp.METRICS)
def test_means_between_two_ranks_are_those_of_sorted_distances_block_by_block(metric, monkeypatch):
    v = np.random.default_rng(4).dirichlet(np.ones(9), 60)
    v[:5] = v[5] + 1e-9 * v[:5]  # close pairs keep their digits
    names = {"l2": "euclidean", "cosine": "cosine", "linf": "chebyshev", "kolmogorov": "chebyshev"}
    points = np.cumsum(v, axis=1) if metric in ("kolmogorov", "wasserstein") else v
    ordered = np.sort(cdist(points, points, names.get(metric, "cityblock")), axis=1)
    for first, last in ((1, 59), (3, 30), (58, 59)):
        expected = rob_fcp.mean_neighbor_distances(v, metric, first, last)
        tight = {"atol": 1e-15} if metric != "cosine" else {"atol": 1e-14}
        np.testing.assert_allclose(expected, ordered[:, first : last + 1].mean(axis=1), **tight)
        with monkeypatch.context() as patched:
            patched.setattr(_maliciousness, "_MAX_DISTANCES_PER_BLOCK", 1)
            np.testing.assert_array_equal(
                rob_fcp.mean_neighbor_distances(v, metric, first, last), expected
            )
    assert rob_fcp.mean_neighbor_distances(v[:1], metric, 1, 0).tolist() == [0]


def test_what_cannot_be_compared_is_refused_or_at_no_distance(monkeypatch):
    with pytest.raises(RobfcpError, match="metric: 'l3' is unknown"):
        rob_fcp.mean_neighbor_distances(np.eye(4), "l3", 1, 2)
    nothing = rob_fcp.mean_neighbor_distances(np.array([[0.0, 0], [0, 0], [1, 0]]), "cosine", 1, 2)
    assert nothing.tolist() == [0.25, 0.25, 0.5]
    monkeypatch.setattr(_maliciousness, "MAX_CLIENTS_ALL_PAIRS", 3)
    with pytest.raises(RobfcpError, match="all pairs of 4 sites are too many; use consensus"):
        rob_fcp.mean_neighbor_distances(np.eye(4), "l2", 1, 2)


def test_vectors_are_the_papers_and_the_threshold_is_on_the_full_binning():
    rng = np.random.default_rng(2)
    scores = rng.beta(0.4, 2, (8, 300))
    fine_reports = [
        robfcp.Report.from_scores(f"c{k}", s, Binning.default()) for k, s in enumerate(scores)
    ]
    coarse = [
        robfcp.Report.from_scores(f"c{k}", s, Binning.uniform()) for k, s in enumerate(scores)
    ]
    on_fine = robfcp.calibrate(fine_reports, defense=RobFCP(3))
    on_coarse = robfcp.calibrate(coarse, defense=RobFCP(3))
    np.testing.assert_array_equal(on_fine.maliciousness, on_coarse.maliciousness)
    assert on_fine.benign_clients == on_coarse.benign_clients
    assert on_fine.threshold < on_coarse.threshold <= on_fine.threshold + 0.01
    benign_scores = np.sort(scores[[int(name[1:]) for name in on_fine.benign_clients]].ravel())
    exact = benign_scores[int(np.ceil(0.9 * (len(benign_scores) + 5))) - 1]
    edges = Binning.default().upper_edges
    assert on_fine.threshold == edges[np.searchsorted(edges, exact)]


def test_ties_are_broken_by_client_name():
    maliciousness = np.array([0.5, 0.5, 0.1, 0.5 + 1e-15])
    federation = Federation.from_counts([[1, 2]] * 4, clients="dbca")
    mask = select_benign_set(federation, maliciousness, 2)
    assert mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize("characterization", rob_fcp.CHARACTERIZATIONS)
@pytest.mark.parametrize(
    "binning", [Binning.default(), Binning.uniform(20), Binning.open_ended([0.1, 0.5])]
)
def test_every_characterization_separates_gross_attacks(characterization, binning):
    rng = np.random.default_rng(5)
    scores = [rng.beta(2, 3, 200) for _ in range(14)] + [np.full(200, 0.95) for _ in range(4)]
    reports = [robfcp.Report.from_scores(f"c{k:02d}", s, binning) for k, s in enumerate(scores)]
    defense = RobFCP(4, characterization=characterization)
    calibration = robfcp.calibrate(reports, defense=defense)
    assert calibration.flagged_clients == ("c14", "c15", "c16", "c17")


def test_characterizations_are_what_they_say():
    scores = np.random.default_rng(6).beta(2, 3, 5000)
    federation = Federation.from_reports(
        [robfcp.Report.from_scores("a", scores, Binning.uniform(1000))]
    )
    mean, deviation = rob_fcp.characterization_vectors(federation, "gaussian", n_bins=1000)[0]
    assert mean == pytest.approx(scores.mean(), abs=1e-3)
    assert deviation == pytest.approx(scores.std(), abs=1e-3)
    quantiles = rob_fcp.characterization_vectors(federation, "quantiles", n_bins=1000)[0]
    np.testing.assert_allclose(quantiles, np.quantile(scores, np.arange(1, 20, 2) / 20), atol=2e-3)
    centers = rob_fcp.characterization_vectors(federation, "k-means", n_bins=1000)[0]
    nearest = np.abs(scores[:, None] - centers).argmin(axis=1)
    np.testing.assert_allclose(centers, [scores[nearest == j].mean() for j in range(10)], atol=2e-2)
    kernel = rob_fcp.characterization_vectors(federation, "kernel")[0]
    assert kernel.sum() == pytest.approx(1, abs=0.02)
    with pytest.raises(RobfcpError, match="characterization"):
        rob_fcp.characterization_vectors(federation, "nope")


def plain_vector(scores, n_bins=100):
    """`int(score / width) - 1` of conformity scores; index -1 is the last bin."""
    vector = [0] * n_bins
    for score in scores:
        vector[int((1 - score) * n_bins) - 1] += 1
    return np.array(vector) / len(scores)


def plain_maliciousness(vectors, n_benign):
    distances = [[np.linalg.norm(v - w) for w in vectors] for v in vectors]
    return np.array([np.mean(sorted(row)[::-1][: n_benign - 1]) for row in distances])


def plain_estimate(vectors):
    n_clients = len(vectors)
    maliciousness = plain_maliciousness(vectors, -(-n_clients // 2))
    ranked = vectors[np.argsort(np.round(maliciousness, 12), kind="stable")]
    best = {}
    for z in range(n_clients // 2 + 1, n_clients):
        squared = ((ranked - ranked[:z].mean(axis=0)) ** 2).sum(axis=1)
        best[z] = squared[z:].mean() - squared[:z].mean()
    return n_clients - max(best, key=best.get)


def test_the_released_code_equals_a_plain_reading_of_its_description():
    """Scores away from the edges of bins, where rounding would decide, and exact zeros."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        n_clients = int(rng.integers(4, 14))
        n_malicious = int(rng.integers(0, (n_clients - 1) // 2 + 1))
        sizes = rng.integers(5, 40, n_clients)
        scores = [(rng.integers(0, 100, n) + rng.uniform(0.1, 0.9, n)) / 100 for n in sizes]
        for cluster in scores[: n_clients // 3]:
            cluster[rng.random(len(cluster)) < 0.5] = 0.0
        federation = Federation.from_reports(
            robfcp.Report.from_scores(f"c{k:02d}", cluster, Binning.default())
            for k, cluster in enumerate(scores)
        )
        vectors = np.array([plain_vector(cluster) for cluster in scores])
        np.testing.assert_allclose(
            np.sort(rob_fcp.released_code_vectors(federation), axis=1),
            np.sort(vectors, axis=1),
            atol=1e-12,
        )
        maliciousness = plain_maliciousness(vectors, n_clients - n_malicious)
        assessment = RobFCPReleased(n_malicious).assess(federation)
        np.testing.assert_allclose(assessment.maliciousness, maliciousness, atol=1e-12)
        order = np.argsort(np.round(maliciousness, 12), kind="stable")
        excluded = set(np.flatnonzero(~assessment.benign_mask))
        assert excluded == set(order[n_clients - n_malicious :])
        assert RobFCPReleased().estimate_n_malicious(federation) == plain_estimate(vectors)


def test_a_binning_no_finer_than_the_vectors_separates_no_zeros():
    federation = Federation.from_counts([[5] + [0] * 99, [1] * 100], Binning.uniform())
    assert rob_fcp.released_code_vectors(federation)[0, 0] == 1


@pytest.mark.parametrize(
    ("dataset", "text", "released"),
    [("mnist", 0.68, 0.900), ("cifar10", 0.81, 0.898), ("pathmnist", 0.69, 0.895)],
)
def test_the_text_fails_where_the_code_does_not(dataset, text, released):
    """40 of 100 report zeros, Dirichlet(0.5), the shipped outputs."""
    coverages = []
    for seed in range(5):
        trial = make_trial(PaperScenario(dataset, "beta0.5", "final", 0.5), seed)
        federation = trial.attacked("coverage", 40, np.random.default_rng(seed))
        edges = [
            table_bin(federation, LEVEL, defense.assess(federation).benign_mask)
            for defense in (RobFCP(40), RobFCPReleased(40))
        ]
        coverages.append([trial.measure(bin_index, trial.benign(40))[0] for bin_index in edges])
    means = np.mean(coverages, axis=0)
    assert means[0] == pytest.approx(text, abs=0.02)
    assert means[1] == pytest.approx(released, abs=0.01)
