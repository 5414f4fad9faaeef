"""FCP and Rob-FCP exactly as defined, against plain Python; one protocol for every defence."""

from fractions import Fraction

import brute
import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import robfcp
from robfcp.calibration.calibrating import _calibrate
from robfcp.defence import NoDefence, RobFCP, named_defence, trust_lowest
from robfcp.defence.rob_fcp import (
    CHARACTERISATIONS,
    METRICS,
    characterise,
    neighbour_means,
    pairwise,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import rank_charge
from robfcp.lab.published_bounds import full_rank, published_rank

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
            calibration = _calibrate(federation, level, defence=told, rank=RANKS[rule])
            kept = list(range(n_clients))
            if defence == "rob-fcp":
                kept = brute.trusted(counts.tolist(), federation.ids, n_clients - n_malicious)
                np.testing.assert_allclose(
                    calibration.oddness,
                    brute.maliciousness(counts.tolist(), n_clients - n_malicious),
                    atol=1e-12,
                )
            assert calibration.trusted == tuple(federation.ids[k] for k in kept)
            expected = brute.threshold([counts[k] for k in kept], uppers, level, rule)
            assert calibration.threshold == expected


@pytest.mark.parametrize("metric", METRICS)
def test_oddness_equals_brute_force_for_every_distance(metric):
    rng = np.random.default_rng(1)
    for _ in range(100):
        counts = random_counts(rng)
        n_benign = len(counts) - int(rng.integers(0, (len(counts) - 1) // 2 + 1))
        found = RobFCP(len(counts) - n_benign, metric)(Federation.from_counts(counts))
        expected = brute.maliciousness(counts.tolist(), n_benign, metric)
        np.testing.assert_allclose(found.oddness, expected, atol=1e-9)


def test_the_view_is_the_papers_and_the_threshold_is_on_the_full_grid():
    rng = np.random.default_rng(2)
    scores = rng.beta(0.4, 2, (8, 300))
    fine = [robfcp.Report.from_scores(f"c{k}", s, Grid.default()) for k, s in enumerate(scores)]
    coarse = [robfcp.Report.from_scores(f"c{k}", s, Grid.uniform()) for k, s in enumerate(scores)]
    one = robfcp.calibrate(fine, defence=robfcp.RobFCP(liars=3))
    other = robfcp.calibrate(coarse, defence=robfcp.RobFCP(liars=3))
    np.testing.assert_array_equal(one.oddness, other.oddness)
    assert one.trusted == other.trusted
    assert one.threshold < other.threshold <= one.threshold + 0.01
    kept = np.sort(scores[[int(name[1:]) for name in one.trusted]].ravel())
    exact = kept[int(np.ceil(0.9 * (len(kept) + 5))) - 1]
    edges = Grid.default().upper
    assert one.threshold == edges[np.searchsorted(edges, exact)]


@pytest.mark.parametrize("metric", METRICS)
def test_pairwise_distances_agree_with_scipy(metric):
    v = np.random.default_rng(3).dirichlet(np.ones(30), 40)
    names = {"l1": "cityblock", "l2": "euclidean", "linf": "chebyshev", "cosine": "cosine"}
    if metric in names:
        expected = cdist(v, v, names[metric])
    else:
        cumulative = np.cumsum(v, axis=1)
        kind = "chebyshev" if metric == "kolmogorov" else "cityblock"
        expected = cdist(cumulative, cumulative, kind)
    np.testing.assert_allclose(pairwise(v, metric), expected, atol=1e-12)


def test_close_pairs_keep_their_digits():
    v = np.full((3, 50), 0.02)
    v[1, :2] += [1e-9, -1e-9]
    distances = pairwise(v, "l2")
    assert distances[0, 2] == 0
    assert distances[0, 1] == pytest.approx(np.sqrt(2) * 1e-9, rel=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_blocks_do_not_change_the_means(metric):
    v = np.random.default_rng(4).dirichlet(np.ones(9), 60)
    whole = neighbour_means(v, metric, 3, 30)
    np.testing.assert_allclose(neighbour_means(v, metric, 3, 30, memory=1), whole, atol=1e-14)
    ordered = np.sort(pairwise(v, metric), axis=1)
    np.testing.assert_allclose(whole, ordered[:, 3:31].mean(axis=1), atol=1e-12)


def test_impossible_neighbours_and_distances_are_refused():
    v = np.eye(4)
    with pytest.raises(RobfcpError, match=r"neighbours 1\.\.4"):
        neighbour_means(v, "l2", 1, 4)
    with pytest.raises(RobfcpError, match="distance: 'l3' is unknown"):
        pairwise(v, "l3")
    assert neighbour_means(v[:1], "l2", 1, 1).tolist() == [0]


def test_ties_go_by_client_id():
    number = np.array([0.5, 0.5, 0.1, 0.5 + 1e-15])
    mask = trust_lowest(number, ("d", "b", "c", "a"), 2)
    assert mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize("how", CHARACTERISATIONS)
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
    mean, deviation = characterise(federation, "gaussian", bins=1000)[0]
    assert mean == pytest.approx(scores.mean(), abs=1e-3)
    assert deviation == pytest.approx(scores.std(), abs=1e-3)
    quantiles = characterise(federation, "quantiles", bins=1000)[0]
    np.testing.assert_allclose(quantiles, np.quantile(scores, np.arange(1, 20, 2) / 20), atol=2e-3)
    centres = characterise(federation, "k-means", bins=1000)[0]
    nearest = np.abs(scores[:, None] - centres).argmin(axis=1)
    np.testing.assert_allclose(centres, [scores[nearest == j].mean() for j in range(10)], atol=2e-2)
    kernel = characterise(federation, "kernel")[0]
    assert kernel.sum() == pytest.approx(1, abs=0.02)
    with pytest.raises(RobfcpError, match="characterisation"):
        characterise(federation, "nope")


@pytest.mark.effort
@pytest.mark.parametrize("name", ["none", "rob-fcp", "rob-fcp-released", "consensus"])
@settings(max_examples=cases(8), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_defence_keeps_the_protocol(name, seed):
    rng = np.random.default_rng(seed)
    federation = Federation.from_counts(random_counts(rng, 1, 12))
    for exactly in (False, True):
        most = (federation.n_clients - 1) // 2
        defence = named_defence(name, most, exactly=exactly)
        result, again = defence(federation), defence(federation)
        assert (result.liars, result.stated) == ((None, False) if name == "none" else (most, True))
        assert result.trusted.shape == result.oddness.shape == (federation.n_clients,)
        assert result.trusted.dtype == bool
        assert (~result.trusted).sum() <= most
        if exactly and name != "none":
            assert (~result.trusted).sum() == most
        assert np.isfinite(result.oddness).all()
        flagged = {federation.ids[k] for k in np.flatnonzero(~result.trusted)}
        assert set(result.reasons) == flagged
        assert all("\n" not in reason for reason in result.reasons.values())
        np.testing.assert_array_equal(result.trusted, again.trusted)


@pytest.mark.parametrize("name", ["rob-fcp", "consensus"])
@pytest.mark.parametrize("n_malicious", [2, 3, 4])
def test_a_majority_of_liars_is_refused_with_the_reason(name, n_malicious):
    federation = Federation.from_counts(np.eye(4, 5, dtype=int))
    with pytest.raises(RobfcpError, match="majority of honest sites"):
        robfcp.calibrate(federation, defence=named_defence(name, n_malicious))


def test_unknown_defences_are_refused():
    with pytest.raises(RobfcpError, match="defence: 'x' is unknown"):
        named_defence("x")
    assert NoDefence().name == "none"
