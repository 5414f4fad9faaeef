"""Consensus: evidence against brute force, one null at every K, groups, copies, sizes, the vote."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from noises import draw

import robfcp
from robfcp import Privacy
from robfcp.defense import get_defense
from robfcp.defense.consensus import _references
from robfcp.defense.consensus._consensus import ClippedVoteThreshold, analyze_outliers
from robfcp.defense.consensus._references import (
    CandidateReference,
    ComparisonBasis,
    OverdispersedNull,
    benjamini_hochberg_cutoff,
    concentrate,
    expected_counts,
)
from robfcp.experiments import outputs
from robfcp.experiments.redteam import redteam
from robfcp.federation import DenseCounts, Federation, StratifiedTable
from robfcp.guarantees import FCPThreshold, fcp_bin_index, rank_correction
from robfcp.privacy import logistic_binning

LEVEL = Fraction(9, 10)
SHARES = np.array(  # three classes on eight bins, the last one harder
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
    flat = DenseCounts(tables.reshape(n_clients, -1))
    strata = StratifiedTable("class", n_classes, flat, np.arange(n_clients), n_bins)
    return replace(pooled, strata=strata)


def honest(
    clients: int, sizes: int | np.ndarray, rng: np.random.Generator, beta: float | None = None
) -> np.ndarray:
    """(K, 3, 8) counts of clients that differ by their labels alone."""
    mixes = np.full((clients, 3), 1 / 3) if beta is None else rng.dirichlet([beta] * 3, clients)
    labels = rng.multinomial(np.broadcast_to(sizes, clients), mixes)
    return rng.multinomial(labels, SHARES)


def sites(tables: np.ndarray) -> _references.ClientHistograms:
    """The reduced table of counts (K, C, B)."""
    federation = by_class(tables)
    return ComparisonBasis.from_federation(federation, federation).client_histograms(federation)


def test_expected_counts_and_variances_equal_plain_loops() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        made = sites(honest(6, rng.integers(20, 60, 6), rng, 0.5))
        reference = rng.random(6) < 0.7
        reference[:2] = True
        own, sizes = made.counts, made.sample_sizes
        assert own.sum(axis=(1, 2)) == pytest.approx(sizes)
        assert made.reference_weight.ravel() == pytest.approx(
            np.minimum(1, np.median(sizes) / sizes)
        )
        said = own * made.reference_weight * reference[:, None, None]
        total = said.sum(axis=0)
        assert CandidateReference(made, reference, 6).reference_counts[0] == pytest.approx(total)
        found, worth = expected_counts(own, said, total, False), _references.PRIOR_STRENGTH
        for k in range(6):
            others = total - said[k]
            prior = (others.sum(axis=0) + 0.5) / (others.sum() + 0.5 * others.shape[1])
            plain = [np.zeros(others.shape[1]) for _ in range(3)]
            for c in range(3):
                size, weight = own[k, c].sum(), others[c].sum() + worth
                shares = (others[c] + worth * prior) / weight
                below = np.cumsum(shares)
                plain[0] += size * shares
                plain[1] += size * (1 + size / weight) * shares * (1 - shares)
                plain[2] += size * (1 + size / weight) * below * (1 - below)
            plain[2] = plain[2][:-1]
            for ours, theirs in zip(found, plain, strict=True):
                assert ours[k] == pytest.approx(theirs)


@pytest.mark.parametrize("size", [10, 50, 500])
def test_both_views_are_one_on_average_under_noise(size: int) -> None:
    rng, everybody = np.random.default_rng(size), np.ones(40, dtype=bool)
    made = [sites(honest(40, size, rng)) for _ in range(40)]
    found = [CandidateReference(one, everybody, 40).compare(one, everybody)[0] for one in made]
    assert np.mean([one.chi2_ratio for one in found]) == pytest.approx(1, abs=0.08)
    most = 0.25 if size < 50 else 0.12  # 3/8 weighs more
    assert np.mean([one.anderson_darling_ratio for one in found]) == pytest.approx(1, abs=most)


@pytest.mark.parametrize("unlike", [0, 300, 60])
def test_the_smaller_of_both_views_chances_is_a_chance(unlike: int) -> None:
    """Honest sites come below a level no more often than it says, and not much less often."""
    rng, everybody, found = np.random.default_rng(0), np.ones(100, dtype=bool), []
    for _ in range(20):
        own = SHARES
        if unlike:
            own = np.stack([rng.dirichlet(unlike * one, 100) for one in SHARES], axis=1)
        made = sites(rng.multinomial(rng.multinomial(300, [1 / 3] * 3, 100), own))
        found.append(CandidateReference(made, everybody, 100).verdict.p_value)
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.concatenate(found) <= level) <= 1.1 * level
    assert np.mean(np.concatenate(found) <= 0.5) > 0.25


def test_a_chance_is_the_same_whoever_is_beside() -> None:
    rng, law = np.random.default_rng(4), OverdispersedNull(11.2, 0.01, 0.7)
    ratio, sizes = rng.lognormal(0.2, 0.7, 6000), np.round(rng.lognormal(5, 1, 6000))
    assert (law.p_value(ratio[:10], sizes[:10]) == law.p_value(ratio, sizes)[:10]).all()


def test_the_chance_of_a_ratio_is_that_of_drawn_ones() -> None:
    """u (1 + phi n G) drawn a million times: u chi-square over `free`, log G normal."""
    rng, law = np.random.default_rng(5), OverdispersedNull(8.0, 0.01, 0.7)
    n = np.array([20.0, 100.0, 400.0])
    u, g = rng.chisquare(8, 10**6) / 8, np.exp(0.7 * rng.standard_normal(10**6))
    for ratio in (1.0, 3.0, 12.0):
        drawn = [np.mean(u * (1 + 0.01 * size * g) >= ratio) for size in n]
        wanted = np.minimum(1, 1.6 * np.array(drawn))  # the two views are worth so many tests
        assert law.p_value(np.full(3, ratio), n) == pytest.approx(wanted, rel=0.05, abs=2e-4)


def test_a_class_is_known_where_three_sites_in_four_hold_it() -> None:
    """Four liars of ten cannot make one known that few of the honest hold."""
    rng = np.random.default_rng(6)
    tables = np.zeros((10, 3, 8), dtype=np.int64)
    tables[:, 0] = rng.multinomial(100, SHARES[0], 10)
    tables[:8, 1] = rng.multinomial(40, SHARES[1], 8)
    tables[:2, 2] = rng.multinomial(300, SHARES[2], 2)
    assert sites(tables).common_classes.tolist() == [True, True, False]
    tables[6:, 2] = rng.multinomial(150, SHARES[2], 4)
    assert sites(tables).common_classes.tolist() == [True, True, False]
    assert not sites(tables.sum(axis=1, keepdims=True)).common_classes.any()


def test_benjamini_and_hochberg_by_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.random(9) ** 4
        order = np.sort(p)
        last = max((j for j in range(1, 10) if order[j - 1] <= 0.15 * j / 9), default=0)
        plain = {int(k) for k in np.argsort(p)[:last]}
        assert set(np.flatnonzero(p <= benjamini_hochberg_cutoff(p, 9))) == plain


def test_whoever_fits_stays_in_the_majority_however_alike_others_are() -> None:
    rng = np.random.default_rng(8)
    tables = honest(20, 200, rng)
    tables[:8] = np.round(200 / 3 * SHARES).astype(int)  # closer to the law than sampling is
    made, start = sites(tables), np.arange(20) >= 9
    assert (concentrate(made, start) == start).all()
    assert not CandidateReference(made, start, 20).refit_until_stable().verdict.is_excluded.any()


def test_five_liars_of_many_are_found() -> None:
    rng = np.random.default_rng(5)
    counts = rng.multinomial(50, SHARES.mean(axis=0), 1001)
    counts[:5] = [50, 0, 0, 0, 0, 0, 0, 0]
    counts[:5, 0] -= np.arange(5)  # no copies
    counts[:5, 1] += np.arange(5)
    out = analyze_outliers(Federation.from_counts(counts)).is_excluded
    assert out[:5].all()
    assert not out[5:].any()


@pytest.mark.parametrize("seed", range(6))
def test_one_wrong_site_of_a_few_unequal_ones_is_found_and_explained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.round(np.exp(rng.uniform(np.log(40), np.log(900), 6))).astype(int)
    tables = honest(6, sizes, rng, 0.5)
    tables[2] = tables[2][:, ::-1]  # easy scores are hard ones
    tables[2][:, :4] = 0
    tables[2][0, 7] += sizes[2] - tables[2].sum()
    federation = by_class(tables)
    finding = analyze_outliers(federation)
    assert np.flatnonzero(finding.is_excluded).tolist() == [2]
    reason = finding.reasons["client-2"]
    assert "its labels lead one to expect" in reason


def test_a_majority_of_nobody_condemns_no_site_that_has_some_easy_scores() -> None:
    """Four liars with easy scores and one honest site as the reference of unlike honest sites."""
    rng, tables = np.random.default_rng(0), np.zeros((10, 6, 8), dtype=int)
    for k, table in enumerate(tables):
        mix, easy = np.full(6, 1 / 6), [0.93, 0.04, 0.03, 0, 0, 0, 0, 0]
        if k > 3:
            mix = np.where(np.arange(6) == k - 4, 0.9, 0.02)
            easy = [0.04, 0, *(0.96 * rng.dirichlet([3] * 6))]
        table[:] = rng.multinomial(rng.multinomial(200, mix), easy)
    found = CandidateReference(sites(tables), np.arange(10) < 5, 10)
    assert found.outlier_fraction >= 0.5
    assert found.verdict.is_outlier[4:].all()
    assert not found.verdict.is_excluded.any()


def test_the_nearest_half_tells_how_far_sites_differ_as_all_honest_ones_do() -> None:
    rng, free = np.random.default_rng(1), 10.0
    made = sites(honest(1000, 100, rng))
    ratio = rng.chisquare(free, 1000) / free * (1 + 0.02 * 100 * rng.lognormal(0, 0.7, 1000))
    ratio[600:] += 100  # liars
    honest_ones, nearest = np.arange(1000) < 600, ratio <= np.sort(ratio)[500]
    told, all_of_them = (
        OverdispersedNull.fit(ratio, made, of, free).overdispersion for of in (nearest, honest_ones)
    )
    assert told == pytest.approx(all_of_them, rel=0.05)


@pytest.mark.parametrize("name", ["mnist", "sleep"])
def test_a_lone_site_whose_labels_are_really_wrong_goes(name) -> None:
    given = outputs.load(name, "iid")
    setting = {"n_clients": 12, "shares": (1 / 12,), "beta": 0.3, "liars": "estimate"}
    rules = {"attacks": ["label-poisoning"], "defences": ["consensus"], "seeds": 4}
    (cell,) = redteam(given.probabilities, given.labels, **rules, **setting)
    assert cell.caught == cell.flagged == 1


def test_two_fifths_with_sharpened_scores_do_not_hide_in_wide_differences() -> None:
    """Nobody stands out where all are the reference: two populations explain the reports better."""
    given = outputs.load("stroke", outputs.NATURAL)
    setting = {"sites": given.column("site"), "min_size": 50, "shares": (0.4,), "seeds": 4}
    rules = {"attacks": ["temperature"], "defences": ["consensus"], "liars": "estimate"}
    (cell,) = redteam(given.probabilities, given.labels, **rules, **setting)
    assert cell.caught == cell.flagged >= 20  # of 47


def test_gaussian_liars_go_where_honest_sites_stand_out_by_chance() -> None:
    given = outputs.load("mnist", "iid")
    setting = {"beta": 0.3, "shares": (0.4,), "seeds": 6, "liars": "estimate"}
    rules = {"attacks": ["gaussian"], "defences": ["consensus"]}
    (cell,) = redteam(given.probabilities, given.labels, **rules, **setting)
    assert cell.caught == cell.flagged == 8


def test_an_easier_population_that_keeps_a_seventh_of_the_tail_is_seldom_accused() -> None:
    easier, accused = SHARES[0] * np.exp([0, 0, 0, 0, 0, -1, -2, -2]), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(1000, SHARES[0], size=20)
        counts[:4] = rng.multinomial(1000, easier / easier.sum(), size=4)
        accused += analyze_outliers(Federation.from_counts(counts)).is_excluded.any()
    assert accused <= 3


def test_label_mixes_alone_accuse_nobody() -> None:
    rng = np.random.default_rng(7)
    odd = sum(
        analyze_outliers(by_class(honest(12, 150, rng, 0.2))).is_excluded.any() for _ in range(20)
    )
    assert odd <= 3  # 5% of 20, and two standard deviations


def test_tight_liars_are_not_taken_for_the_majority_of_unlike_honest_sites() -> None:
    rng = np.random.default_rng(8)
    tables = honest(20, 200, rng, 0.3)
    middle = np.array([0, 0.1, 0.3, 0.4, 0.2, 0, 0, 0])
    for k in range(8):
        tables[k] = rng.multinomial(tables[k].sum(axis=1), middle)
    assert not analyze_outliers(by_class(tables)).is_excluded[8:].any()


def test_two_honest_groups_are_said_to_be_two_and_kept() -> None:
    rng = np.random.default_rng(9)
    shares = SHARES.mean(axis=0)
    harder = shares * np.exp(0.25 * np.arange(8))
    counts = rng.multinomial(400, shares, 20)
    counts[:6] = rng.multinomial(400, harder / harder.sum(), 6)
    finding = analyze_outliers(Federation.from_counts(counts))
    assert not finding.is_excluded.any()
    (note,) = finding.notes
    assert note.text.startswith("standing out, as another population would: client-00")
    assert "Consensus(exactly=m)" in note.text
    assert tuple(note.clients) == tuple(f"client-{k:02d}" for k in range(6))


def test_copies_have_one_sites_say_and_nobody_is_expelled_for_being_copied() -> None:
    rng = np.random.default_rng(10)
    counts = rng.multinomial(300, SHARES.mean(axis=0), 12)
    easy = np.vstack([counts, np.tile(counts[np.argmax(counts[:, 0])], (6, 1))])
    finding = analyze_outliers(Federation.from_counts(easy))
    assert not finding.is_excluded.any()
    assert any("one site's say together" in note.text for note in finding.notes)
    alone = robfcp.calibrate(Federation.from_counts(counts), 0.8)
    cloned = robfcp.calibrate(Federation.from_counts(easy), 0.8)
    assert cloned.threshold == alone.threshold


def test_one_that_claims_a_hundred_times_the_samples_counts_for_three() -> None:
    rng = np.random.default_rng(11)
    counts = rng.multinomial(200, np.full(50, 0.02), 20)
    claimed = counts.copy()
    claimed[0] = 100 * counts[0]
    claimed[0, 30:] //= 2
    everybody = np.ones(20, dtype=bool)
    federation = Federation.from_counts(claimed)
    plain, usual = (
        fcp_bin_index(Federation.from_counts(part), LEVEL) for part in (claimed, counts)
    )
    voted = robfcp.Consensus().threshold_rule(federation, everybody).bin_index(LEVEL)
    assert plain is not None
    assert usual is not None
    assert voted is not None
    assert plain < usual - 1
    assert voted >= usual - 1
    registered = replace(federation, sizes_registered=True)
    vote = robfcp.Consensus(exactly=0).threshold_rule(registered, everybody)
    assert vote.bin_index(LEVEL) in (plain, plain + 1)


def test_vote_never_falls_below_fcps_threshold_whatever_sizes_are_claimed() -> None:
    rng = np.random.default_rng(12)
    everybody = np.ones(9, dtype=bool)
    for run in range(60):
        sizes = [80] * 9 if run % 2 else np.round(np.exp(rng.uniform(2, 9, 9))).astype(int)
        shares = rng.dirichlet([1.0] * 8, 9)
        federation = Federation.from_counts(rng.multinomial(sizes, shares))
        for level in (Fraction(1, 2), LEVEL, Fraction(99, 100)):
            finding = analyze_outliers(federation)._replace(suspected_larger=~everybody)
            vote = ClippedVoteThreshold(
                federation, [everybody], finding, rank_correction
            ).bin_index(level)
            plain = fcp_bin_index(federation, level)
            assert (vote is None) or (plain is not None and vote >= plain)


def test_without_those_who_are_set_aside_the_threshold_is_no_higher() -> None:
    """Some liars send the largest scores and go; others' easy ones must not lead then."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(200, np.full(50, 0.02), 20)
    counts[:4] = 0
    counts[:4, 49] = 200
    easy = np.linspace(1.6, 0.4, 50)
    counts[4:8] = rng.multinomial(200, easy / easy.sum(), 4)
    federation = Federation.from_counts(counts)
    rule = robfcp.Consensus()
    finding = rule.find_outliers(federation)
    assert finding.is_excluded[:4].all()
    assert not finding.is_excluded[4:].any()
    assert any(mask[:8].all() and not mask[8:].any() for mask in finding.alternative_exclusions)
    trusted = ~finding.is_excluded
    alone = ClippedVoteThreshold(federation, [trusted], finding, rank_correction).bin_index(LEVEL)
    led = rule.threshold_rule(federation, trusted).bin_index(LEVEL)
    honest_edge = fcp_bin_index(federation, LEVEL, np.arange(20) >= 8)
    assert alone is not None
    assert led is not None
    assert honest_edge is not None
    assert alone <= led
    assert honest_edge <= led + 1


def test_the_lot_is_unforeseen_recorded_and_repeated(monkeypatch) -> None:
    monkeypatch.setattr("robfcp.defense.consensus._references.MAX_SAMPLED_CLIENTS", 8)
    federation = Federation.from_counts(honest(12, 100, np.random.default_rng(3)).sum(axis=1))
    seeds = {robfcp.calibrate(federation).record.parameters["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert robfcp.Consensus(seed=5).with_random_seed(federation).seed == 5
    calibration = robfcp.calibrate(federation)
    again = robfcp.Consensus(seed=calibration.record.parameters["seed"])(federation)
    assert (again.maliciousness == calibration.maliciousness).all()


def test_who_vouches_for_everything_takes_off_no_more_than_the_bound() -> None:
    """40% that report nothing but the lowest scores, all of them trusted, alike clients: the loss
    is at most (b - e) / P(inside) eps / (1 - eps) and the deviation that is allowed for."""
    rng = np.random.default_rng(13)
    n_bins, clients, size, liars = 400, 50, 50, 20
    losses, plain_losses = [], []
    for _ in range(60):
        counts = rng.multinomial(size, np.full(n_bins, 1 / n_bins), clients)
        counts[:liars] = 0
        counts[:liars, 0] = size
        federation = Federation.from_counts(counts)
        everybody = np.ones(clients, dtype=bool)
        stated = analyze_outliers(federation)._replace(
            suspected_larger=~everybody, overdispersion=0.0
        )
        vote = ClippedVoteThreshold(federation, [everybody], stated, rank_correction)
        index, plain = vote.bin_index(LEVEL), fcp_bin_index(federation, LEVEL)
        assert index is not None
        assert plain is not None
        losses.append(0.9 - (index + 1) / n_bins)
        plain_losses.append(0.9 - (plain + 1) / n_bins)
    deviation = np.sqrt(0.09 / size)
    bound = 1.02 * deviation * 0.4 / 0.6 + 0.9 * deviation / np.sqrt(clients)
    assert np.mean(plain_losses) > 0.06  # 1 - .9 / .6 of the honest: without the vote
    assert np.mean(losses) < bound < 0.036


def test_private_reports_and_losses_take_fcps_threshold() -> None:
    rng = np.random.default_rng(14)
    counts = rng.multinomial(200, SHARES.mean(axis=0), 8)
    private = Federation.from_counts(counts, privacy=robfcp.Privacy(2.0), sample_sizes=[200] * 8)
    everybody = np.ones(8, dtype=bool)
    found = robfcp.Consensus().threshold_rule(private, everybody)
    assert isinstance(found, FCPThreshold)
    noisy = np.vstack([counts, [[200, 0, 0, 0, 0, 0, 0, 0]]])
    liar = Federation.from_counts(noisy, privacy=robfcp.Privacy(2.0), sample_sizes=[200] * 9)
    assert analyze_outliers(liar).is_excluded[8]


def test_sites_that_keep_their_classes_back_are_judged_too() -> None:
    rng = np.random.default_rng(15)
    tables = honest(10, 200, rng)
    federation = by_class(tables)
    assert federation.strata is not None
    told = federation.strata.select(np.arange(9))
    mixed = replace(federation, strata=replace(told, rows=np.arange(9)))
    assert not analyze_outliers(mixed).is_excluded.any()
    counts = tables.sum(axis=1)
    counts[9] = [0, 0, 0, 0, 0, 0, 0, 200]
    lying = replace(Federation.from_counts(counts), strata=mixed.strata)
    assert np.flatnonzero(analyze_outliers(lying).is_excluded).tolist() == [9]


def test_a_class_that_nobody_else_holds_accuses_nobody() -> None:
    rng = np.random.default_rng(16)
    tables = np.zeros((8, 3, 8), dtype=np.int64)
    tables[1:, 0] = rng.multinomial(100, SHARES[0], 7)
    tables[1:, 1] = rng.multinomial(100, SHARES[2], 7)
    tables[0, 2] = rng.multinomial(200, SHARES[1])
    finding = analyze_outliers(by_class(tables))
    assert not finding.is_excluded.any()


def test_many_clients_are_drawn_from_and_found_all_the_same() -> None:
    rng = np.random.default_rng(17)
    counts = rng.multinomial(40, SHARES.mean(axis=0), 2500)
    counts[:750] = rng.multinomial(40, [0, 0, 0, 0, 0, 0, 0.3, 0.7], 750)
    out = analyze_outliers(Federation.from_counts(counts)).is_excluded
    assert out[:750].mean() > 0.99
    assert out[750:].mean() < 0.01


@pytest.mark.effort
def test_tens_of_thousands_of_honest_sites_are_all_kept() -> None:
    for seed in range(cases(1)):
        rng = np.random.default_rng([7, seed])
        sizes = np.maximum(10, rng.lognormal(4, 1, 10_000).astype(int))
        counts = rng.multinomial(sizes, rng.dirichlet(np.full(60, 0.5)))
        assert not analyze_outliers(Federation.from_counts(counts)).is_excluded.any()


def test_liars_who_share_the_easiest_scores_do_not_make_the_honest_impossible() -> None:
    """Half a federation at the lowest scores, the rest spread over all: two groups, both kept."""
    rng = np.random.default_rng(8)
    spread = rng.multinomial(200, [0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.1, 0.1], 8)
    easy = rng.multinomial(200, [0.97, 0.03, 0, 0, 0, 0, 0, 0], 12)
    finding = analyze_outliers(Federation.from_counts(np.concatenate([spread, easy])))
    assert not finding.is_excluded.any()
    assert any("Nobody was left out" in note.text for note in finding.notes)


def test_the_only_holders_of_a_class_do_not_hide_who_stands_out() -> None:
    """Two honest sites alone hold a hard class; off the reference they would hide the liar."""
    rng = np.random.default_rng(9)
    counts = np.zeros((10, 3, 8), dtype=np.int64)
    counts[:7, :2] = rng.multinomial(np.full((7, 2), 150), SHARES[:2])
    hard = [0.0, 0.02, 0.03, 0.05, 0.2, 0.3, 0.25, 0.15]
    counts[7:9, 2] = rng.multinomial([300, 300], hard)
    counts[9, 0, 7] = 300
    finding = analyze_outliers(by_class(counts))
    assert np.flatnonzero(finding.is_excluded).tolist() == [9]


def test_fewer_than_three_sites_are_all_trusted() -> None:
    finding = analyze_outliers(Federation.from_counts([[9, 1], [0, 10]]))
    assert not finding.is_excluded.any()
    assert not finding.reasons


def few(n_clients: int, seed: int, liar: float | None = None) -> tuple[str, ...]:
    """Whom a round of unlike sites of 100 accuses; the first sends one score throughout."""
    rng = np.random.default_rng([seed, n_clients])
    reports = []
    for k, accuracy in enumerate(rng.beta(19, 1, n_clients)):
        easy = rng.random(100) < accuracy
        scores = np.where(easy, rng.beta(0.3, 6, 100), rng.beta(3, 1.2, 100))
        if k == 0 and liar is not None:
            scores = np.full(100, liar)
        reports.append(robfcp.Report.from_scores(f"site-{k:02d}", scores))
    return robfcp.calibrate(reports).flagged_clients


@pytest.mark.effort
@pytest.mark.parametrize("n_clients", [5, 9, 20])
@pytest.mark.parametrize("liar", [0.0, 1.0, None])
def test_one_gross_liar_of_a_few_is_found_and_nobody_else(n_clients, liar) -> None:
    runs = [few(n_clients, seed, liar) for seed in range(cases(5))]
    if liar is not None:
        assert np.mean(["site-00" in flagged for flagged in runs]) >= 0.6
    liars = set() if liar is None else {"site-00"}
    assert sum(bool(set(flagged) - liars) for flagged in runs) <= cases(5) / 20


GRID = logistic_binning(24)
SCORES = np.random.default_rng(0).beta(0.4, 1.5, 200_000)
USUAL = np.bincount(GRID.bin_indices(SCORES), minlength=24) / len(SCORES)
MARKS = {
    "heavy": [Privacy(0.2)] * 40,
    "light": [Privacy(4)] * 40,
    "different": [Privacy(0.3), Privacy(1), Privacy(3), Privacy(8)] * 10,
    "half": [Privacy(0.5), None] * 20,
    "gaussian": [Privacy(1, 1e-6, mechanism="gaussian")] * 40,
}


def private(rng, n, marks, liars=0, end=0) -> Federation:
    """Sites of one law with the given privacy; the first few send one end of the grid alone."""
    counts = rng.multinomial(n, USUAL, size=40)
    counts[:liars] = 0
    counts[:liars, end] = n
    for row, mark in enumerate(marks):
        if mark is not None:
            counts[row] += draw(rng, mark.noise, (24,))
    return Federation.from_counts(counts, GRID, privacy=marks, sample_sizes=np.full(40, n))


@pytest.mark.effort
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize(
    ("n", "runs", "most"),
    [
        (50, cases(4), 0.25),
        (500, cases(4), 0.25),
        pytest.param(200, 100, 0.12, marks=pytest.mark.slow),
    ],
)
def test_honest_private_sites_are_not_flagged_for_their_noise(marks, n, runs, most) -> None:
    rng = np.random.default_rng(n)
    accused = [
        analyze_outliers(private(rng, n, MARKS[marks])).is_excluded.any() for _ in range(runs)
    ]
    assert np.mean(accused) <= most


@pytest.mark.parametrize("defence", ["consensus", "rob-fcp", "none"])
@pytest.mark.parametrize("end", [0, -1])
def test_liars_are_found_through_the_noise(defence, end) -> None:
    sent = private(np.random.default_rng(2), 500, [Privacy(1)] * 40, liars=8, end=end)
    assert robfcp.defense.estimate_n_malicious(sent) in (7, 8)  # noise may look like a tail
    calibration = robfcp.calibrate(sent, defense=get_defense(defence, 8))
    assert set(calibration.flagged_clients) <= set(sent.clients[:8])
    assert (
        len(calibration.flagged_clients) == 0
        if defence == "none"
        else len(calibration.flagged_clients) >= 7
    )
    reached = np.mean(calibration.threshold >= SCORES)
    assert abs(reached - 0.9) < 0.03 or defence == "none"


def test_no_round_is_lost_where_copies_that_go_are_a_majority() -> None:
    rng = np.random.default_rng(3)
    counts = rng.multinomial(2000, np.full(50, 0.02), 9)
    counts[:5] = rng.multinomial(2000, np.repeat([0.1, 0.0], [10, 40]))
    found = robfcp.calibrate(Federation.from_counts(counts))
    assert not found.flagged_clients
    assert any("same report" in remark for remark in found.notes)
