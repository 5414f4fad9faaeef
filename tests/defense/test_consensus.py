"""Consensus: evidence against brute force, one null at any K, groups, duplicates, sizes, votes."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from effort import cases
from noises import draw

import robfcp
from robfcp import Privacy
from robfcp.defense import get_defense
from robfcp.defense.consensus import OutlierAnalysis, Tuning, analyze_outliers
from robfcp.defense.consensus._basis import (
    ClientViews,
    ComparisonBasis,
    common_bin_ends,
    common_classes,
)
from robfcp.defense.consensus._clipped_vote import ClippedVoteThreshold
from robfcp.defense.consensus._outlier_test import (
    OverdispersedNull,
    benjamini_hochberg_cutoff,
    compare_with_members,
    expected_counts,
    reference_counts,
)
from robfcp.defense.consensus._references import (
    CandidateReference,
    SampledRound,
    _best_per_outlier_set,
    concentrate,
)
from robfcp.experiments import outputs
from robfcp.experiments.redteam import redteam
from robfcp.federation import Federation, SparseTable, StratifiedTable
from robfcp.guarantees import FCPThreshold, fcp_bin_index, rank_correction
from robfcp.privacy import logistic_binning

LEVEL = Fraction(9, 10)
CLASS_FRACTIONS = np.array(  # three classes on eight bins, the last one harder
    [
        [0.30, 0.20, 0.15, 0.10, 0.10, 0.07, 0.05, 0.03],
        [0.20, 0.20, 0.20, 0.15, 0.10, 0.07, 0.05, 0.03],
        [0.05, 0.05, 0.10, 0.15, 0.20, 0.20, 0.15, 0.10],
    ]
)


def by_class(tables: np.ndarray) -> Federation:
    """A federation of counts (K, C, B)."""
    n_clients, n_classes, n_bins = tables.shape
    pooled = Federation.from_counts(tables.sum(axis=1))
    flat = SparseTable.from_dense(tables.reshape(n_clients, -1))
    strata = StratifiedTable("class", n_classes, flat, np.arange(n_clients), n_bins)
    return replace(pooled, strata=strata)


def benign_counts(
    n_clients: int, sizes: int | np.ndarray, rng: np.random.Generator, beta: float | None = None
) -> np.ndarray:
    """(K, 3, 8) counts of clients that differ by their labels alone."""
    class_shares = np.full((n_clients, 3), 1 / 3)
    if beta is not None:
        class_shares = rng.dirichlet([beta] * 3, n_clients)
    labels = rng.multinomial(np.broadcast_to(sizes, n_clients), class_shares)
    return rng.multinomial(labels, CLASS_FRACTIONS)


def views_of(tables: np.ndarray) -> ClientViews:
    """All clients of counts (K, C, B) in both views."""
    federation = by_class(tables)
    basis = ComparisonBasis.from_federation(federation, federation, Tuning())
    return basis.client_views(federation)


def reference_of(views: ClientViews, members: np.ndarray) -> CandidateReference:
    """A reference in a round of these clients alone."""
    sampled = SampledRound.from_clients(views, len(members))
    return CandidateReference(sampled, members)


def clipped_vote(
    federation: Federation, voters: np.ndarray, analysis: OutlierAnalysis
) -> ClippedVoteThreshold:
    """The vote of one set of voters, given the analysis of the round."""
    assert analysis.overdispersion is not None
    return ClippedVoteThreshold(
        federation=federation,
        voter_sets=[voters],
        duplicates=analysis.duplicates,
        suspected_larger=analysis.suspected_larger,
        overdispersion=analysis.overdispersion,
        rank=rank_correction,
        tuning=Tuning(),
    )


def test_every_constant_of_the_defense_is_documented() -> None:
    """Each field of Tuning heads an entry of the docstring, which has a role below it."""
    documented = set()
    for line in (Tuning.__doc__ or "").splitlines():
        names, separator, _ = line.partition(" : ")
        if separator:
            documented.update(name.strip() for name in names.split(","))
    assert documented == {field.name for field in fields(Tuning)}


def test_expected_counts_and_variances_equal_plain_loops() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        views = views_of(benign_counts(6, rng.integers(20, 60, 6), rng, 0.5))
        clients = views.given_labels
        members = rng.random(6) < 0.7
        members[:2] = True
        counts, sizes = clients.counts, clients.sample_sizes
        assert counts.sum(axis=(1, 2)) == pytest.approx(sizes)
        assert clients.reference_weight.ravel() == pytest.approx(
            np.minimum(1, np.median(sizes) / sizes)
        )
        contribution = counts * clients.reference_weight * members[:, None, None]
        total = contribution.sum(axis=0)
        assert reference_counts(clients, members) == pytest.approx(total)
        strength = Tuning().prior_strength
        expected = expected_counts(counts, total - contribution, False, Tuning())
        for k in range(6):
            reference = total - contribution[k]
            prior = (reference.sum(axis=0) + 0.5) / (reference.sum() + 0.5 * reference.shape[1])
            loop_sums = [np.zeros(reference.shape[1]) for _ in range(3)]
            for c in range(3):
                size, weight = counts[k, c].sum(), reference[c].sum() + strength
                fractions = (reference[c] + strength * prior) / weight
                cumulative = np.cumsum(fractions)
                loop_sums[0] += size * fractions
                loop_sums[1] += size * (1 + size / weight) * fractions * (1 - fractions)
                loop_sums[2] += size * (1 + size / weight) * cumulative * (1 - cumulative)
            loop_sums[2] = loop_sums[2][:-1]
            for computed, by_loops in zip(expected, loop_sums, strict=True):
                assert computed[k] == pytest.approx(by_loops)


@pytest.mark.parametrize("size", [10, 50, 500])
def test_both_statistics_are_one_on_average_under_sampling(size: int) -> None:
    rng, all_clients = np.random.default_rng(size), np.ones(40, dtype=bool)
    rounds = [views_of(benign_counts(40, size, rng)) for _ in range(40)]
    comparisons = [compare_with_members(views.given_labels, all_clients) for views in rounds]
    assert np.mean([pooled.chi2_ratio for pooled in comparisons]) == pytest.approx(1, abs=0.08)
    tolerance = 0.25 if size < 50 else 0.12  # 3/8 weighs more
    ratios = [pooled.anderson_darling_ratio for pooled in comparisons]
    assert np.mean(ratios) == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize("concentration", [0, 300, 60])
def test_the_smaller_p_value_of_both_statistics_is_valid(concentration: int) -> None:
    """Benign clients come below a level no more often than it says, and not much less often."""
    rng, all_clients, p_values = np.random.default_rng(0), np.ones(100, dtype=bool), []
    for _ in range(20):
        fractions = CLASS_FRACTIONS
        if concentration:
            fractions = np.stack(
                [rng.dirichlet(concentration * row, 100) for row in CLASS_FRACTIONS], axis=1
            )
        views = views_of(rng.multinomial(rng.multinomial(300, [1 / 3] * 3, 100), fractions))
        p_values.append(reference_of(views, all_clients).verdict.p_value)
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.concatenate(p_values) <= level) <= 1.1 * level
    assert np.mean(np.concatenate(p_values) <= 0.5) > 0.25


def test_a_p_value_does_not_depend_on_the_other_clients_of_a_call() -> None:
    rng, null = np.random.default_rng(4), OverdispersedNull(11.2, 0.01, 0.7, 1.6)
    ratio, sizes = rng.lognormal(0.2, 0.7, 6000), np.round(rng.lognormal(5, 1, 6000))
    assert (null.p_value(ratio[:10], sizes[:10]) == null.p_value(ratio, sizes)[:10]).all()


def test_the_p_value_of_a_statistic_is_its_frequency_among_drawn_ones() -> None:
    """u (1 + phi n G) drawn a million times: u chi-square over its freedom, log G normal."""
    rng, null = np.random.default_rng(5), OverdispersedNull(8.0, 0.01, 0.7, 1.6)
    n = np.array([20.0, 100.0, 400.0])
    u, g = rng.chisquare(8, 10**6) / 8, np.exp(0.7 * rng.standard_normal(10**6))
    for ratio in (1.0, 3.0, 12.0):
        tail_fractions = [np.mean(u * (1 + 0.01 * size * g) >= ratio) for size in n]
        expected = np.minimum(
            1, 1.6 * np.array(tail_fractions)
        )  # two statistics are worth so many tests
        p_values = null.p_value(np.full(3, ratio), n)
        assert p_values == pytest.approx(expected, rel=0.05, abs=2e-4)


def test_a_class_is_common_where_three_clients_in_four_hold_it() -> None:
    """Four malicious clients of ten cannot make one common that few benign clients hold."""
    rng = np.random.default_rng(6)
    tables = np.zeros((10, 3, 8), dtype=np.int64)
    tables[:, 0] = rng.multinomial(100, CLASS_FRACTIONS[0], 10)
    tables[:8, 1] = rng.multinomial(40, CLASS_FRACTIONS[1], 8)
    tables[:2, 2] = rng.multinomial(300, CLASS_FRACTIONS[2], 2)
    assert common_classes(views_of(tables).given_labels).tolist() == [True, True, False]
    tables[6:, 2] = rng.multinomial(150, CLASS_FRACTIONS[2], 4)
    assert common_classes(views_of(tables).given_labels).tolist() == [True, True, False]
    one_class = views_of(tables.sum(axis=1, keepdims=True))
    assert not common_classes(one_class.given_labels).any()


def test_benjamini_and_hochberg_by_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.random(9) ** 4
        order = np.sort(p)
        last = max((j for j in range(1, 10) if order[j - 1] <= 0.15 * j / 9), default=0)
        expected = {int(k) for k in np.argsort(p)[:last]}
        assert set(np.flatnonzero(p <= benjamini_hochberg_cutoff(p, 9, 0.15))) == expected


def test_members_that_fit_stay_in_the_majority_however_similar_the_others_are() -> None:
    rng = np.random.default_rng(8)
    tables = benign_counts(20, 200, rng)
    tables[:8] = np.round(200 / 3 * CLASS_FRACTIONS).astype(
        int
    )  # closer to the distribution than sampling is
    views, start = views_of(tables), np.arange(20) >= 9
    sampled = SampledRound.from_clients(views, len(start))
    assert (concentrate(sampled, start) == start).all()
    assert not reference_of(views, start).refit_until_stable().verdict.is_excluded.any()


def test_five_malicious_clients_of_many_are_excluded() -> None:
    rng = np.random.default_rng(5)
    counts = rng.multinomial(50, CLASS_FRACTIONS.mean(axis=0), 1001)
    counts[:5] = [50, 0, 0, 0, 0, 0, 0, 0]
    counts[:5, 0] -= np.arange(5)  # no copies
    counts[:5, 1] += np.arange(5)
    is_excluded = analyze_outliers(Federation.from_counts(counts)).is_excluded
    assert is_excluded[:5].all()
    assert not is_excluded[5:].any()


@pytest.mark.parametrize("seed", range(6))
def test_one_faulty_client_of_a_few_unequal_ones_is_excluded_with_a_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.round(np.exp(rng.uniform(np.log(40), np.log(900), 6))).astype(int)
    tables = benign_counts(6, sizes, rng, 0.5)
    tables[2] = tables[2][:, ::-1]  # easy scores are hard ones
    tables[2][:, :4] = 0
    tables[2][0, 7] += sizes[2] - tables[2].sum()
    federation = by_class(tables)
    analysis = analyze_outliers(federation)
    assert np.flatnonzero(analysis.is_excluded).tolist() == [2]
    reason = analysis.reasons["client-2"]
    assert "its labels lead one to expect" in reason


def test_the_reference_of_a_minority_excludes_no_client_that_has_some_easy_scores() -> None:
    """Four malicious clients with easy scores and a benign one as the reference of unlike ones."""
    rng, tables = np.random.default_rng(0), np.zeros((10, 6, 8), dtype=int)
    for k, table in enumerate(tables):
        class_shares, easy = np.full(6, 1 / 6), [0.93, 0.04, 0.03, 0, 0, 0, 0, 0]
        if k > 3:
            class_shares = np.where(np.arange(6) == k - 4, 0.9, 0.02)
            easy = [0.04, 0, *(0.96 * rng.dirichlet([3] * 6))]
        table[:] = rng.multinomial(rng.multinomial(200, class_shares), easy)
    reference = reference_of(views_of(tables), np.arange(10) < 5)
    assert reference.outlier_fraction >= 0.5
    assert reference.verdict.is_outlier[4:].all()
    assert not reference.verdict.is_excluded.any()


def test_the_nearest_half_shows_the_overdispersion_of_all_benign_clients() -> None:
    rng, freedom = np.random.default_rng(1), 10.0
    clients = views_of(benign_counts(1000, 100, rng)).given_labels
    heterogeneity = 1 + 0.02 * 100 * rng.lognormal(0, 0.7, 1000)
    ratio = rng.chisquare(freedom, 1000) / freedom * heterogeneity
    ratio[600:] += 100  # malicious clients
    benign, nearest = np.arange(1000) < 600, ratio <= np.sort(ratio)[500]
    fitted = [
        OverdispersedNull.fit(ratio, clients.sample_sizes, members, freedom, clients.basis)
        for members in (nearest, benign)
    ]
    assert fitted[0].overdispersion == pytest.approx(fitted[1].overdispersion, rel=0.05)


@pytest.mark.parametrize("name", ["mnist", "sleep"])
def test_a_single_client_whose_labels_are_really_wrong_is_excluded(name) -> None:
    shipped = outputs.load(name, "iid")
    scenario = {
        "n_clients": 12,
        "malicious_fractions": (1 / 12,),
        "beta": 0.3,
        "n_malicious_known": False,
        "min_cell_count": 1,
    }
    runs = {"attacks": ["label-poisoning"], "defenses": ["consensus"], "n_runs": 4}
    (cell,) = redteam(shipped.probabilities, shipped.labels, **runs, **scenario)
    assert cell.n_detected == cell.n_flagged == 1


def test_two_fifths_with_sharpened_scores_do_not_hide_in_wide_differences() -> None:
    """With all as the reference no client is an outlier: two populations fit the reports better."""
    shipped = outputs.load("stroke", outputs.NATURAL)
    scenario = {
        "partition": shipped.column("site"),
        "min_client_size": 50,
        "malicious_fractions": (0.4,),
        "n_malicious_known": False,
        "min_cell_count": 1,  # cells of five hide so small a difference: one of 47 is found
    }
    runs = {"attacks": ["temperature-scaling"], "defenses": ["consensus"], "n_runs": 4}
    (cell,) = redteam(shipped.probabilities, shipped.labels, **runs, **scenario)
    assert cell.n_detected == cell.n_flagged >= 20  # of 47


def test_the_gaussian_attack_is_found_where_benign_clients_differ_by_chance() -> None:
    shipped = outputs.load("mnist", "iid")
    scenario = {"beta": 0.3, "malicious_fractions": (0.4,), "n_malicious_known": False}
    runs = {"attacks": ["gaussian"], "defenses": ["consensus"], "n_runs": 6}
    (cell,) = redteam(shipped.probabilities, shipped.labels, **runs, **scenario)
    assert cell.n_detected == cell.n_flagged == 8


def test_an_easier_population_that_keeps_a_seventh_of_the_tail_is_seldom_excluded() -> None:
    easier = CLASS_FRACTIONS[0] * np.exp([0, 0, 0, 0, 0, -1, -2, -2])
    n_rounds = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(1000, CLASS_FRACTIONS[0], size=20)
        counts[:4] = rng.multinomial(1000, easier / easier.sum(), size=4)
        n_rounds += analyze_outliers(Federation.from_counts(counts)).is_excluded.any()
    assert n_rounds <= 3


def test_label_distributions_alone_exclude_no_client() -> None:
    rng = np.random.default_rng(7)
    n_rounds = 0
    for _ in range(20):
        federation = by_class(benign_counts(12, 150, rng, 0.2))
        n_rounds += analyze_outliers(federation).is_excluded.any()
    assert n_rounds <= 3  # 5% of 20, and two standard deviations


def test_a_tight_malicious_cluster_does_not_become_the_reference_of_unlike_benign_clients() -> None:
    rng = np.random.default_rng(8)
    tables = benign_counts(20, 200, rng, 0.3)
    center = np.array([0, 0.1, 0.3, 0.4, 0.2, 0, 0, 0])
    for k in range(8):
        tables[k] = rng.multinomial(tables[k].sum(axis=1), center)
    assert not analyze_outliers(by_class(tables)).is_excluded[8:].any()


def test_two_benign_groups_are_mentioned_and_kept() -> None:
    rng = np.random.default_rng(9)
    fractions = CLASS_FRACTIONS.mean(axis=0)
    harder = fractions * np.exp(0.25 * np.arange(8))
    counts = rng.multinomial(400, fractions, 20)
    counts[:6] = rng.multinomial(400, harder / harder.sum(), 6)
    analysis = analyze_outliers(Federation.from_counts(counts))
    assert not analysis.is_excluded.any()
    (note,) = analysis.notes
    assert note.text.startswith("standing out, as another population would: client-00")
    assert "Consensus(n_malicious=m)" in note.text
    assert tuple(note.clients) == tuple(f"client-{k:02d}" for k in range(6))


def test_duplicates_vote_once_and_no_client_is_excluded_for_being_copied() -> None:
    rng = np.random.default_rng(10)
    counts = rng.multinomial(300, CLASS_FRACTIONS.mean(axis=0), 12)
    easy = np.vstack([counts, np.tile(counts[np.argmax(counts[:, 0])], (6, 1))])
    analysis = analyze_outliers(Federation.from_counts(easy))
    assert not analysis.is_excluded.any()
    assert any("one site's say together" in note.text for note in analysis.notes)
    without_copies = robfcp.calibrate(Federation.from_counts(counts), coverage=0.8)
    with_copies = robfcp.calibrate(Federation.from_counts(easy), coverage=0.8)
    assert with_copies.threshold == without_copies.threshold


def test_a_client_that_claims_a_hundred_times_the_samples_counts_for_three() -> None:
    rng = np.random.default_rng(11)
    counts = rng.multinomial(200, np.full(50, 0.02), 20)
    claimed = counts.copy()
    claimed[0] = 100 * counts[0]
    claimed[0, 30:] //= 2
    all_clients = np.ones(20, dtype=bool)
    federation = Federation.from_counts(claimed)
    expected = fcp_bin_index(federation, LEVEL)
    usual = fcp_bin_index(Federation.from_counts(counts), LEVEL)
    all_benign = replace(robfcp.Consensus().assess(federation), benign_mask=all_clients)
    voted = all_benign.threshold_rule(federation).bin_index(LEVEL)
    assert expected is not None
    assert usual is not None
    assert voted is not None
    assert expected < usual - 1
    assert voted >= usual - 1
    registered = replace(federation, sizes_registered=True)
    vote = robfcp.Consensus(n_malicious=0).assess(registered).threshold_rule(registered)
    assert vote.bin_index(LEVEL) in (expected, expected + 1)


def test_the_vote_is_never_below_fcps_threshold_whatever_sizes_are_claimed() -> None:
    rng = np.random.default_rng(12)
    all_clients = np.ones(9, dtype=bool)
    for run in range(60):
        sizes = [80] * 9 if run % 2 else np.round(np.exp(rng.uniform(2, 9, 9))).astype(int)
        fractions = rng.dirichlet([1.0] * 8, 9)
        federation = Federation.from_counts(rng.multinomial(sizes, fractions))
        for level in (Fraction(1, 2), LEVEL, Fraction(99, 100)):
            analysis = replace(analyze_outliers(federation), suspected_larger=~all_clients)
            vote = clipped_vote(federation, all_clients, analysis).bin_index(level)
            fcp_bin = fcp_bin_index(federation, level)
            assert (vote is None) or (fcp_bin is not None and vote >= fcp_bin)


def test_clients_that_another_reference_excludes_do_not_lead_the_vote() -> None:
    """Some send the largest scores and are excluded; others' easy scores must not lead then."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(200, np.full(50, 0.02), 20)
    counts[:4] = 0
    counts[:4, 49] = 200
    easy = np.linspace(1.6, 0.4, 50)
    counts[4:8] = rng.multinomial(200, easy / easy.sum(), 4)
    federation = Federation.from_counts(counts)
    assessment = robfcp.Consensus().assess(federation)
    analysis = assessment.analysis
    assert analysis.is_excluded[:4].all()
    assert not analysis.is_excluded[4:].any()
    assert any(mask[:8].all() and not mask[8:].any() for mask in analysis.alternative_exclusions)
    best_alone = clipped_vote(federation, ~analysis.is_excluded, analysis).bin_index(LEVEL)
    highest = assessment.threshold_rule(federation).bin_index(LEVEL)
    benign_bin = fcp_bin_index(federation, LEVEL, np.arange(20) >= 8)
    assert best_alone is not None
    assert highest is not None
    assert benign_bin is not None
    assert best_alone <= highest
    assert benign_bin <= highest + 1


def test_the_seed_is_unpredictable_recorded_and_repeated() -> None:
    counts = benign_counts(300, 100, np.random.default_rng(3)).sum(axis=1)
    federation = Federation.from_counts(counts)
    assert federation.n_clients > Tuning().max_sampled_clients
    seeds = {robfcp.calibrate(federation).record.parameters["random_state"] for _ in range(3)}
    assert len(seeds) == 3
    assert robfcp.Consensus(random_state=5).with_random_seed(federation).random_state == 5
    calibration = robfcp.calibrate(federation)
    repeated = robfcp.Consensus(random_state=calibration.record.parameters["random_state"]).assess(
        federation
    )
    assert (repeated.maliciousness == calibration.maliciousness).all()


def test_a_seed_is_drawn_only_where_clients_are_sampled() -> None:
    federation = Federation.from_counts(
        benign_counts(12, 100, np.random.default_rng(3)).sum(axis=1)
    )
    assert robfcp.Consensus().with_random_seed(federation).random_state == 0
    small = replace(Tuning(), max_sampled_clients=8)
    assert robfcp.Consensus(tuning=small).with_random_seed(federation).random_state > 0


def test_smallest_scores_take_off_no_more_coverage_than_the_bound() -> None:
    """40% report only the smallest scores and none is excluded; the other clients are alike.

    The loss is at most (b - e) / P(inside) eps / (1 - eps) and the deviation that is allowed for.
    """
    rng = np.random.default_rng(13)
    n_bins, n_clients, size, n_malicious = 400, 50, 50, 20
    losses, plain_losses = [], []
    for _ in range(60):
        counts = rng.multinomial(size, np.full(n_bins, 1 / n_bins), n_clients)
        counts[:n_malicious] = 0
        counts[:n_malicious, 0] = size
        federation = Federation.from_counts(counts)
        all_clients = np.ones(n_clients, dtype=bool)
        analysis = replace(
            analyze_outliers(federation), suspected_larger=~all_clients, overdispersion=0.0
        )
        index = clipped_vote(federation, all_clients, analysis).bin_index(LEVEL)
        undefended = fcp_bin_index(federation, LEVEL)
        assert index is not None
        assert undefended is not None
        losses.append(0.9 - (index + 1) / n_bins)
        plain_losses.append(0.9 - (undefended + 1) / n_bins)
    deviation = np.sqrt(0.09 / size)
    bound = 1.02 * deviation * 0.4 / 0.6 + 0.9 * deviation / np.sqrt(n_clients)
    assert np.mean(plain_losses) > 0.06  # 1 - .9 / .6 of the benign ones: without the vote
    assert np.mean(losses) < bound < 0.036


def test_private_reports_and_losses_take_fcps_threshold() -> None:
    rng = np.random.default_rng(14)
    counts = rng.multinomial(200, CLASS_FRACTIONS.mean(axis=0), 8)
    private = Federation.from_counts(counts, privacy=robfcp.Privacy(2.0), sample_sizes=[200] * 8)
    threshold_rule = robfcp.Consensus().assess(private).threshold_rule(private)
    assert isinstance(threshold_rule, FCPThreshold)
    noisy = np.vstack([counts, [[200, 0, 0, 0, 0, 0, 0, 0]]])
    attacked = Federation.from_counts(noisy, privacy=robfcp.Privacy(2.0), sample_sizes=[200] * 9)
    assert analyze_outliers(attacked).is_excluded[8]


def test_clients_that_do_not_report_by_class_are_judged_too() -> None:
    rng = np.random.default_rng(15)
    tables = benign_counts(10, 200, rng)
    federation = by_class(tables)
    assert federation.strata is not None
    first_nine = federation.strata.select(np.arange(9))
    mixed = replace(federation, strata=replace(first_nine, rows=np.arange(9)))
    assert not analyze_outliers(mixed).is_excluded.any()
    counts = tables.sum(axis=1)
    counts[9] = [0, 0, 0, 0, 0, 0, 0, 200]
    attacked = replace(Federation.from_counts(counts), strata=mixed.strata)
    assert np.flatnonzero(analyze_outliers(attacked).is_excluded).tolist() == [9]


def test_a_class_that_no_other_client_has_excludes_no_client() -> None:
    rng = np.random.default_rng(16)
    tables = np.zeros((8, 3, 8), dtype=np.int64)
    tables[1:, 0] = rng.multinomial(100, CLASS_FRACTIONS[0], 7)
    tables[1:, 1] = rng.multinomial(100, CLASS_FRACTIONS[2], 7)
    tables[0, 2] = rng.multinomial(200, CLASS_FRACTIONS[1])
    analysis = analyze_outliers(by_class(tables))
    assert not analysis.is_excluded.any()


def test_malicious_clients_are_found_where_references_are_sought_among_a_few() -> None:
    rng = np.random.default_rng(17)
    counts = rng.multinomial(40, CLASS_FRACTIONS.mean(axis=0), 2500)
    counts[:750] = rng.multinomial(40, [0, 0, 0, 0, 0, 0, 0.3, 0.7], 750)
    is_excluded = analyze_outliers(Federation.from_counts(counts)).is_excluded
    assert is_excluded[:750].mean() > 0.99
    assert is_excluded[750:].mean() < 0.01


@pytest.mark.effort
def test_tens_of_thousands_of_benign_clients_are_all_kept() -> None:
    for seed in range(cases(1)):
        rng = np.random.default_rng([7, seed])
        sizes = np.maximum(10, rng.lognormal(4, 1, 10_000).astype(int))
        counts = rng.multinomial(sizes, rng.dirichlet(np.full(60, 0.5)))
        assert not analyze_outliers(Federation.from_counts(counts)).is_excluded.any()


def test_a_group_with_the_smallest_scores_does_not_get_the_rest_excluded() -> None:
    """Half a federation at the lowest scores, the rest spread over all: two groups, both kept."""
    rng = np.random.default_rng(8)
    spread = rng.multinomial(200, [0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.1, 0.1], 8)
    easy = rng.multinomial(200, [0.97, 0.03, 0, 0, 0, 0, 0, 0], 12)
    analysis = analyze_outliers(Federation.from_counts(np.concatenate([spread, easy])))
    assert not analysis.is_excluded.any()
    assert any("No client was excluded" in note.text for note in analysis.notes)


def test_the_only_holders_of_a_class_do_not_hide_an_outlier() -> None:
    """Two benign clients alone hold a hard class; off the reference they would hide the outlier."""
    rng = np.random.default_rng(9)
    counts = np.zeros((10, 3, 8), dtype=np.int64)
    counts[:7, :2] = rng.multinomial(np.full((7, 2), 150), CLASS_FRACTIONS[:2])
    hard = [0.0, 0.02, 0.03, 0.05, 0.2, 0.3, 0.25, 0.15]
    counts[7:9, 2] = rng.multinomial([300, 300], hard)
    counts[9, 0, 7] = 300
    analysis = analyze_outliers(by_class(counts))
    assert np.flatnonzero(analysis.is_excluded).tolist() == [9]


def test_fewer_than_three_clients_are_all_kept() -> None:
    analysis = analyze_outliers(Federation.from_counts([[9, 1], [0, 10]]))
    assert not analysis.is_excluded.any()
    assert not analysis.reasons


def flagged_of_a_few(n_clients: int, seed: int, sent_score: float | None = None) -> tuple[str, ...]:
    """Who is flagged among unlike clients of 100; the first may send one score throughout."""
    rng = np.random.default_rng([seed, n_clients])
    reports = []
    for k, accuracy in enumerate(rng.beta(19, 1, n_clients)):
        easy = rng.random(100) < accuracy
        scores = np.where(easy, rng.beta(0.3, 6, 100), rng.beta(3, 1.2, 100))
        if k == 0 and sent_score is not None:
            scores = np.full(100, sent_score)
        reports.append(robfcp.Report.from_scores(f"site-{k:02d}", scores))
    return robfcp.calibrate(reports).flagged_clients


@pytest.mark.effort
@pytest.mark.parametrize("n_clients", [5, 9, 20])
@pytest.mark.parametrize("sent_score", [0.0, 1.0, None])
def test_one_gross_outlier_of_a_few_is_flagged_and_no_other_client(n_clients, sent_score) -> None:
    runs = [flagged_of_a_few(n_clients, seed, sent_score) for seed in range(cases(5))]
    malicious = set()
    if sent_score is not None:
        malicious = {"site-00"}
        assert np.mean(["site-00" in flagged for flagged in runs]) >= 0.6
    assert sum(bool(set(flagged) - malicious) for flagged in runs) <= cases(5) / 20


BINNING = logistic_binning(24)
SCORES = np.random.default_rng(0).beta(0.4, 1.5, 200_000)
BENIGN_SHARES = np.bincount(BINNING.bin_indices(SCORES), minlength=24) / len(SCORES)
PRIVACIES = {
    "heavy": [Privacy(0.2)] * 40,
    "light": [Privacy(4)] * 40,
    "different": [Privacy(0.3), Privacy(1), Privacy(3), Privacy(8)] * 10,
    "half": [Privacy(0.5), None] * 20,
    "gaussian": [Privacy(1, 1e-6, mechanism="gaussian")] * 40,
}


def private_round(rng, n, privacies, n_malicious=0, sent_bin=0) -> Federation:
    """Clients of one law with the given privacy; the first few send one bin alone."""
    counts = rng.multinomial(n, BENIGN_SHARES, size=40)
    counts[:n_malicious] = 0
    counts[:n_malicious, sent_bin] = n
    for row, privacy in enumerate(privacies):
        if privacy is not None:
            counts[row] += draw(rng, privacy.noise, (24,))
    return Federation.from_counts(counts, BINNING, privacy=privacies, sample_sizes=np.full(40, n))


@pytest.mark.effort
@pytest.mark.parametrize("privacies", PRIVACIES)
@pytest.mark.parametrize(
    ("n", "runs", "max_excluded"),
    [
        (50, cases(4), 0.25),
        (500, cases(4), 0.25),
        pytest.param(200, 100, 0.12, marks=pytest.mark.slow),
    ],
)
def test_benign_clients_are_not_excluded_for_their_noise(privacies, n, runs, max_excluded) -> None:
    rng = np.random.default_rng(n)
    has_exclusions = []
    for _ in range(runs):
        federation = private_round(rng, n, PRIVACIES[privacies])
        has_exclusions.append(analyze_outliers(federation).is_excluded.any())
    assert np.mean(has_exclusions) <= max_excluded


@pytest.mark.parametrize("defense", ["consensus", "rob-fcp", "none"])
@pytest.mark.parametrize("sent_bin", [0, -1])
def test_malicious_clients_are_found_through_the_noise(defense, sent_bin) -> None:
    rng = np.random.default_rng(2)
    noisy = private_round(rng, 500, [Privacy(1)] * 40, n_malicious=8, sent_bin=sent_bin)
    assert robfcp.defense.estimate_n_malicious(noisy) in (7, 8)  # noise may look like a tail
    calibration = robfcp.calibrate(noisy, defense=get_defense(defense, 8))
    assert set(calibration.flagged_clients) <= set(noisy.clients[:8])
    if defense == "none":
        assert len(calibration.flagged_clients) == 0
        return
    assert len(calibration.flagged_clients) >= 7
    reached = np.mean(calibration.threshold >= SCORES)
    assert abs(reached - 0.9) < 0.03


def test_a_majority_of_outlying_duplicates_is_not_excluded() -> None:
    rng = np.random.default_rng(3)
    counts = rng.multinomial(2000, np.full(50, 0.02), 9)
    counts[:5] = rng.multinomial(2000, np.repeat([0.1, 0.0], [10, 40]))
    calibration = robfcp.calibrate(Federation.from_counts(counts))
    assert not calibration.flagged_clients
    assert any("same report" in note for note in calibration.notes)


@pytest.mark.parametrize("n_outlying", range(1, 7))
def test_fewer_than_half_of_all_clients_are_excluded_or_none(n_outlying: int) -> None:
    """Equal reports stand for one client where references are sought, but not where counted."""
    n_clients = 10
    rng = np.random.default_rng(3)
    counts = rng.multinomial(2000, np.full(50, 0.02), n_clients)
    counts[:n_outlying] = rng.multinomial(2000, np.repeat([0.1, 0.0], [10, 40]))
    is_excluded = analyze_outliers(Federation.from_counts(counts)).is_excluded
    expected = set(range(n_outlying))
    if n_outlying >= n_clients / 2:
        expected = set()
    assert set(np.flatnonzero(is_excluded)) == expected


@pytest.mark.parametrize(("n_clients", "is_judged"), [(3, False), (4, True)])
def test_four_clients_are_the_fewest_of_whom_one_is_excluded(
    n_clients: int, is_judged: bool
) -> None:
    counts = np.random.default_rng(0).multinomial(2000, np.full(50, 0.02), n_clients)
    counts[1] = 0
    counts[1, -1] = 2000
    analysis = analyze_outliers(Federation.from_counts(counts))
    assert np.flatnonzero(analysis.is_excluded).tolist() == [1] * is_judged
    assert any("fewer than four" in note.text for note in analysis.notes) != is_judged


@pytest.mark.parametrize("concentration", [0.05, 50.0])
def test_the_overdispersion_of_votes_is_bounded(concentration: float) -> None:
    rng = np.random.default_rng(0)
    fractions = rng.dirichlet(np.full(20, concentration), 20)
    federation = Federation.from_counts(rng.multinomial(400, fractions))
    unbounded = analyze_outliers(federation, tuning=Tuning(max_overdispersion=np.inf))
    assert unbounded.overdispersion is not None
    assert (unbounded.overdispersion > 0.3) == (concentration < 1)
    assert analyze_outliers(federation).overdispersion == min(unbounded.overdispersion, 0.3)


def test_of_candidate_references_the_best_of_each_outlier_set_and_of_majorities_count() -> None:
    """By definition: where half of the clients are outliers, the reference is a minority's."""
    rng = np.random.default_rng(0)
    n_clients = 6
    n_with_half = 0
    for _ in range(200):
        candidates = []
        for _ in range(5):
            is_outlier = np.arange(n_clients) < rng.integers(0, n_clients)
            candidate = SimpleNamespace(
                mean_misfit=float(rng.uniform(1, 2)),
                verdict=SimpleNamespace(is_outlier=is_outlier),
                outlier_fraction=is_outlier.mean(),
            )
            candidates.append(candidate)

        expected = []
        for candidate in candidates:
            same_outliers = [
                other_candidate.mean_misfit
                for other_candidate in candidates
                if other_candidate.outlier_fraction == candidate.outlier_fraction
            ]
            if candidate.mean_misfit == min(same_outliers) and candidate.mean_misfit <= 1.6:
                expected.append(candidate)
        n_outliers = [candidate.verdict.is_outlier.sum() for candidate in expected]
        if any(2 * n < n_clients for n in n_outliers):
            n_with_half += any(2 * n == n_clients for n in n_outliers)
            expected = [
                candidate
                for candidate, n in zip(expected, n_outliers, strict=True)
                if 2 * n < n_clients
            ]
        expected.sort(key=lambda candidate: candidate.mean_misfit)
        assert _best_per_outlier_set(candidates, 1.6) == expected
    assert n_with_half > 20


def test_a_client_that_crosses_the_expected_cdf_by_its_labels_alone_is_kept() -> None:
    """Its labels are mixed otherwise, and within classes all its scores are somewhat larger."""
    n_clients = 12
    n = 3000
    fractions = np.zeros((3, 13))
    for c in range(3):
        fractions[c, 4 * c : 4 * c + 4] = 0.24
    fractions += 0.04 / 13
    rng = np.random.default_rng(0)
    class_sizes = np.full((n_clients, 3), n // 3)
    class_sizes[0] = n * np.array([0.48, 0.04, 0.48])
    tables = rng.multinomial(class_sizes, fractions)
    tables[0] = rng.multinomial(
        class_sizes[0], 0.5 * fractions + 0.5 * np.roll(fractions, 1, axis=1)
    )

    # The plain shares of scores up to each bin: of client 0 and of the others, given its labels.
    observed = tables[0].sum(axis=0).cumsum() / n
    pooled = tables[1:].sum(axis=(0, 1)).cumsum() / (n * (n_clients - 1))
    of_classes = tables[1:].sum(axis=0) / tables[1:].sum(axis=(0, 2))[:, None]
    given_labels = (class_sizes[0] @ of_classes).cumsum() / n
    tolerance = 0.05
    assert (observed - pooled).max() > tolerance
    assert (observed - pooled).min() < -tolerance
    assert (observed - given_labels).max() < tolerance
    assert (observed - given_labels).min() < -tolerance

    analysis = analyze_outliers(by_class(tables))
    assert 10 ** -analysis.maliciousness[0] < 1e-3
    assert not analysis.is_excluded.any()


def test_merged_bins_end_at_the_medians_of_the_clients_quantiles() -> None:
    """By fractions: a quantile is the first bin up to which a share of the order lies, exactly."""
    n = 500  # of which every order is a whole number of samples
    rng = np.random.default_rng(4)
    for _ in range(30):
        counts = 5 * rng.multinomial(n // 5, rng.dirichlet(np.ones(40)), 5)
        expected_ends = {39}
        for order in Tuning().quantile_orders:
            bins = []
            for row in counts.tolist():
                cdf = [Fraction(sum(row[: t + 1]), n) for t in range(40)]
                bins.append(min(t for t in range(40) if cdf[t] >= Fraction(str(order))))
            expected_ends.add(sorted(bins)[2])
        bin_ends = common_bin_ends(Federation.from_counts(counts), Tuning().quantile_orders)
        assert bin_ends.tolist() == sorted(expected_ends)
