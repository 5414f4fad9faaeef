"""Label shift against plain loops: pairs, pruning, rules PC and T."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import plain_shift
import pytest
from scipy.stats import binom, hypergeom

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import LabelShiftGuarantee, count_bounds
from robfcp.guarantees import _client_pairs as client_pairs
from robfcp.guarantees import _label_distributions as label_distributions
from robfcp.guarantees import _label_shift_thresholds as label_shift
from robfcp.guarantees._tail_bounds import pac_threshold
from robfcp.reports import Report

LEVEL = Fraction(9, 10)
NAMES = ("cat", "dog", "eel")


def pair_p_values(cumulative, sizes, sigma=0.0):
    """Return (K, K) p-values for "both are benign" at one bin."""
    p_values = np.minimum(
        1, 2 * np.exp(-client_pairs.ClientPairs(sizes).exponents(cumulative, sigma))
    )
    np.fill_diagonal(p_values, 1)
    return p_values


def kept_mask(cumulative, sizes, max_malicious, beta, sigma=0.0):
    """Return a (K,) mask of the clients that pruning keeps at one bin, or None."""
    all_clients = np.ones(len(sizes), dtype=bool)
    contradictions = client_pairs.ClientPairs(sizes).contradictions(
        cumulative, max_malicious, beta, sigma, len(sizes)
    )
    return (
        all_clients
        if contradictions is None
        else client_pairs.pruned_mask(contradictions, all_clients, max_malicious)
    )


@pytest.mark.parametrize("n_trials", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_pairs_pruning_and_acceptance_are_those_of_plain_loops(n_trials):
    """All outcomes of pruning, and of accepting a label distribution, have to occur often."""
    rng = np.random.default_rng(n_trials)
    n_seen = dict.fromkeys(["all", "some", "none", True, False], 0)
    for trial in range(n_trials):
        cumulative, sizes, max_malicious = plain_shift.random_table(rng)
        sigma, beta = (0.0, 0.05)[trial % 2], (0.01, 0.2)[trial // 2 % 2]
        if trial % 10 == 0:  # more malicious clients than given
            cumulative[: max_malicious + 2] = 0
        p_values = pair_p_values(cumulative, sizes, sigma)
        for k in range(len(sizes)):
            for peer in range(len(sizes)):
                expected = (
                    1.0 if k == peer else plain_shift.pair_p(cumulative, sizes, k, peer, sigma)
                )
                assert p_values[k, peer] == pytest.approx(expected, rel=1e-6, abs=1e-12)
        mask, expected_clients = (
            function(cumulative, sizes, max_malicious, beta, sigma)
            for function in (kept_mask, plain_shift.pruned_clients)
        )
        assert (mask is None) == (expected_clients is None)
        if expected_clients is None:
            n_seen["none"] += 1
            continue
        assert np.flatnonzero(mask).tolist() == expected_clients
        n_seen["all" if mask.all() else "some"] += 1
        remaining = expected_clients[:9]
        max_left = min(max_malicious - (len(sizes) - len(expected_clients)), 4)
        n_classes = sizes.shape[1]
        neighborhoods = (np.zeros(n_classes), 1.0), (rng.dirichlet(np.ones(n_classes)) / 2, 0.5)
        distributions = label_distributions.LabelDistributions(
            rng.dirichlet(np.ones(n_classes), 2), *neighborhoods[trial % 2]
        )
        evidence = label_shift.BinEvidence(
            cumulative[remaining], sizes[remaining], max_left, 0.08, None
        )
        is_accepted = label_shift.accepts_distributions(evidence, distributions, 0.4 - sigma)
        for distribution, accepted in zip(
            distributions.expectations(np.eye(n_classes)).T, is_accepted, strict=True
        ):
            assert accepted == plain_shift.accepts(
                cumulative[remaining], sizes[remaining], max_left, distribution, 0.4 - sigma, 0.08
            )
            n_seen[bool(accepted)] += 1
    assert min(n_seen.values()) > 0.015 * n_trials


def test_the_p_value_of_a_pair_is_never_below_the_exact_one():
    """Given the pooled counts a client's total is a sum of hypergeometrics: convolve them.

    The probability of a p-value of at most p is at most p.
    """
    rng = np.random.default_rng(2)
    for _ in range(40):
        sizes = rng.integers(1, 25, (2, int(rng.integers(1, 4))))
        pooled = rng.binomial(sizes.sum(axis=0), rng.uniform(0.2, 1))
        probabilities = np.ones(1)
        for c in range(sizes.shape[1]):
            distribution = hypergeom(int(sizes[:, c].sum()), int(pooled[c]), int(sizes[0, c]))
            probabilities = np.convolve(probabilities, distribution.pmf(np.arange(sizes[0, c] + 1)))
        min_counts = np.maximum(0, pooled - sizes[1])
        max_counts = np.minimum(pooled, sizes[0])
        p = np.full(len(probabilities), 2.0)
        counts = min_counts.copy()
        while True:  # one vector of counts for each total
            table = np.stack([counts, pooled - counts]).astype(float)
            p[counts.sum()] = pair_p_values(table, sizes)[0, 1]
            is_open = np.flatnonzero(counts < max_counts)
            if not is_open.size:
                break
            counts[is_open[0]] += 1
        for p_value in p[p <= 1]:
            assert probabilities[p <= p_value].sum() <= p_value + 1e-9


def test_pairs_are_computed_in_blocks(monkeypatch):
    cumulative, sizes, _ = plain_shift.random_table(np.random.default_rng(3))
    expected = [
        client_pairs.ClientPairs(sizes).exponents(cumulative, sigma) for sigma in (0.0, 0.1)
    ]
    monkeypatch.setattr(client_pairs, "_MAX_CACHED_TERMS", 1)
    monkeypatch.setattr(client_pairs, "_MAX_BLOCK_TERMS", 1)
    in_blocks = [
        client_pairs.ClientPairs(sizes).exponents(cumulative, sigma) for sigma in (0.0, 0.1)
    ]
    np.testing.assert_allclose(in_blocks, expected, rtol=1e-12, atol=1e-12)


def test_min_exponent_misses_no_pair():
    rng, n_exceeding = np.random.default_rng(18), 0
    for _ in range(100):
        cumulative, sizes, _ = plain_shift.random_table(rng)
        exponents = client_pairs.ClientPairs(sizes).exponents(cumulative)
        for min_exponent in (0.01, 1.0, 6.0, 20.0):
            exceeds = (
                client_pairs.ClientPairs(sizes).exponents(cumulative, min_exponent=min_exponent)
                >= min_exponent
            )
            assert (exceeds == (exponents >= min_exponent)).all()
            n_exceeding += exceeds.sum()
    assert n_exceeding > 1000


def test_class_counts_are_those_of_the_tables():
    rng = np.random.default_rng(4)
    tables = rng.integers(0, 5, (5, 3, 400))
    counts = label_shift.class_counts(plain_shift.federation_by_class(tables))
    assert counts.class_sizes.tolist() == tables.sum(axis=2).tolist()
    cumulative = np.cumsum(tables, axis=2)
    for position, bin_index in enumerate(counts.edges):
        assert counts.cumulative[position].tolist() == cumulative[:, :, bin_index].tolist()
    assert (counts.clients[0], len(counts.names)) == ("site-00", 3)
    assert (len(counts.edges), counts.edges[0], counts.edges[-1]) == (256, 0, 399)


def test_pooled_reports_are_refused():
    rng = np.random.default_rng(5)
    groups = ["a", "b"] * 15
    grouped = [Report.from_scores(f"s{k}", rng.random(30), groups=groups) for k in range(3)]
    for reports in (Federation.from_counts([[3, 4]] * 4), Federation.from_reports(grouped)):
        with pytest.raises(RobfcpError, match="needs reports by class"):
            label_shift.class_counts(reports)


def sample_tables(seed, n_clients=20, n_classes=4, n_samples=200, bins=40):
    """Return a generator, tables of benign clients with label shift, and the CDFs of classes."""
    rng = np.random.default_rng(seed)
    cdfs = plain_shift.class_cdfs(n_classes, bins)
    return (
        rng,
        plain_shift.draw_clients(
            rng, plain_shift.label_counts(rng, n_clients, n_classes, n_samples), cdfs
        ),
        cdfs,
    )


def test_obviously_malicious_clients_are_pruned_before_the_threshold():
    rng, tables, _ = sample_tables(6, n_samples=400, bins=100)
    federation = plain_shift.federation_by_class(plain_shift.attack_tables(rng, tables, 5, "top"))
    result = label_shift.pac_threshold_after_pruning(
        label_shift.class_counts(federation), LEVEL, 5, 0.05
    )
    assert result.pruned_clients == federation.clients[15:]
    benign_bin = pac_threshold(
        count_bounds(plain_shift.federation_by_class(tables[:15])), LEVEL, 0, 0.04
    )
    assert benign_bin <= result.bin_index < pac_threshold(count_bounds(federation), LEVEL, 5, 0.05)


def plain_threshold_bin(counts, level, max_malicious, delta):
    """Return rule PC's bin by loops over removals of clients of one size, and the most pruned."""
    bin_index, max_pruned, n = None, 0, int(counts.class_sizes[0].sum())
    n_clients = len(counts.clients)
    for position in reversed(range(len(counts.edges))):
        remaining = plain_shift.pruned_clients(
            counts.cumulative[position], counts.class_sizes, max_malicious, 0.2 * delta, 0.0
        )
        if remaining is None:
            return None, max_pruned
        max_left = max_malicious - (n_clients - len(remaining))
        cumulative = counts.cumulative[position].sum(axis=1)
        is_accepted = True
        for n_removed in range(max_left + 1):
            total = n * (len(remaining) - n_removed)
            critical_count = int(binom.isf(0.8 * delta, total, float(level))) + 1
            while binom.sf(critical_count - 2, total, float(level)) <= 0.8 * delta:
                critical_count -= 1
            for removed_clients in combinations(remaining, n_removed):
                is_accepted &= (
                    sum(cumulative[k] for k in remaining if k not in removed_clients)
                    >= critical_count
                )
        if not is_accepted:
            break
        bin_index = int(counts.edges[position])
        max_pruned = max(max_pruned, n_clients - len(remaining))
    return bin_index, max_pruned


def test_thresholds_are_those_of_plain_loops():
    n_pruned = n_finite = 0
    for trial in range(16):
        rng, tables, _ = sample_tables(
            [17, trial], n_clients=9, n_classes=2, n_samples=(200, 800)[trial % 2]
        )
        federation = plain_shift.federation_by_class(
            plain_shift.attack_tables(rng, tables, trial % 3, plain_shift.ATTACKS[trial // 3 % 4])
        )
        counts = label_shift.class_counts(federation)
        result = label_shift.pac_threshold_after_pruning(
            label_shift.class_counts(federation), Fraction(3, 4), 3, 0.1
        )
        expected, n_pruned_clients = plain_threshold_bin(counts, Fraction(3, 4), 3, 0.1)
        assert result.bin_index == expected
        n_pruned += n_pruned_clients > 0
        n_finite += expected is not None and expected < 38
    assert n_pruned > 3
    assert n_finite > 10


# Label distributions


@pytest.mark.parametrize(
    ("distribution", "rows"),
    [
        ("uniform", [[1 / 3] * 3]),
        ({"eel": 0.25, "cat": 0.75}, [[0.75, 0, 0.25]]),
        ([{"cat": 1}, "any", "uniform"], [[1, 0, 0], [1 / 3] * 3, *np.eye(3).tolist()]),
    ],
)
def test_label_distributions_are_parsed_from_names_fractions_and_lists(distribution, rows):
    distributions = label_distributions.parse_label_distributions(distribution, NAMES)
    sizes = np.array([5.0, 2.0, 40.0])
    assert distributions.expectations(np.eye(3)).T.tolist() == rows
    min_sizes = [min(n / p for n, p in zip(sizes, row, strict=True) if p) for row in rows]
    assert distributions.min_effective_sizes(sizes).tolist() == pytest.approx(min_sizes)


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ("balanced", "'balanced' is unknown; use 'uniform', 'any'"),
        ({"cat": 0.5, "fox": 0.5}, "'fox' is none of the classes"),
        ({"cat": 0.5}, "add up to 1"),
        ([], "is unknown; use 'uniform'"),
        ({"cat": float("nan"), "dog": 0.5}, "not negative"),
        ({"cat": [1.0, 2.0], "dog": 0.5}, "shares are numbers"),
    ],
)
def test_other_label_distributions_are_refused(distribution, message):
    with pytest.raises(RobfcpError, match=message):
        label_distributions.parse_label_distributions(
            LabelShiftGuarantee(0, label_distribution=distribution).label_distribution, NAMES
        )


def test_thresholds_of_label_distributions_are_those_of_plain_loops():
    bins = set()
    for trial in range(12):
        rng, tables, _ = sample_tables([2, trial], 9, 3, 120, 15)
        max_malicious, n_malicious = trial % 3, trial % 4
        counts = label_shift.class_counts(
            plain_shift.federation_by_class(
                plain_shift.attack_tables(rng, tables, n_malicious, plain_shift.ATTACKS[trial % 4])
            )
        )
        distributions = label_distributions.parse_label_distributions(
            [{"0": 1}, "uniform"], counts.names
        )
        sigma = 0.03 * (trial % 2)
        result = label_shift.label_distribution_threshold(
            counts, distributions, 0.3, max_malicious, 0.1, sigma
        )
        assert result.bin_index == plain_shift.label_distribution_bin(
            counts, distributions.distributions, 0.3, max_malicious, 0.1, sigma
        )
        bins.add(result.bin_index)
    assert len(bins) > 2


def test_coarsened_counts_contradict_no_pair_that_the_true_ones_do_not():
    """For all counts between the two bounds the exponent is at least its lower bound."""
    rng = np.random.default_rng(12)
    n_positive = 0
    for _ in range(60):
        sizes = rng.integers(0, 40, (6, 3))
        lower = rng.binomial(sizes, rng.random((6, 1)))
        upper = lower + rng.binomial(sizes - lower, 0.3) * (rng.random((6, 1)) < 0.5)
        pairs, sigma = client_pairs.ClientPairs(sizes), float(rng.choice([0.01, 0.1]))
        bound = pairs.exponent_lower_bound(lower, upper, sigma)
        for _ in range(5):
            true = lower + rng.binomial(upper - lower, rng.random())
            assert (bound <= pairs.exponents(true, sigma) + 1e-9).all()
        n_positive += int((bound > 0).sum())
    assert n_positive > 100


@pytest.mark.parametrize(("n_clients", "max_malicious"), [(9, 1), (12, 2), (7, 3)])
def test_a_pair_contradicts_where_enough_witnesses_have_a_fraction_of_beta(
    n_clients, max_malicious, monkeypatch
):
    """With j witnesses among K - 1 - m other benign clients: p (K - 1 - m) / j <= beta / K."""
    rng = np.random.default_rng(n_clients)
    beta = 0.01
    n_witnesses = max(1, (n_clients - 2 * max_malicious) // 4)
    max_p_value = beta / n_clients * n_witnesses / (n_clients - 1 - max_malicious)
    p_values = max_p_value * rng.choice([0.95, 1.05], (n_clients, n_clients), p=[0.9, 0.1])
    pairs = client_pairs.ClientPairs(np.full((n_clients, 2), 30))
    monkeypatch.setattr(pairs, "exponents", lambda *_: np.log(2 / p_values))
    contradicts = pairs.contradictions(
        np.full((n_clients, 2), 20), max_malicious, beta, 0.0, n_clients
    )
    expected = p_values <= max_p_value
    np.fill_diagonal(expected, False)
    assert (contradicts == expected).all()
    assert not expected.all()
