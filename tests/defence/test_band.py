"""The default defence: its parts against plain formulas, and what it promises."""

import numpy as np
import pytest

import robfcp
from robfcp import Federation, Grid, RobfcpError
from robfcp.defence import Band, outside_band
from robfcp.defence.band.band import _raises
from robfcp.defence.band.spacings import _null, _statistics, most_conspicuous, tail_p_values
from robfcp.defence.band.views import (
    LEVELS,
    capped_sizes,
    core_cdf,
    ends_at,
    fair_distance,
    group_directions,
    median_cdf,
    oddity,
    squared_distance,
    stabilised,
    trusted_core,
    without_self,
)
from robfcp.lab.attacks import Coverage, Displacement, Efficiency, GaussianRelative, Mimic, MimicLow
from robfcp.lab.worlds import federation_of


def federation(n_clients=30, n=100, seed=0, spread=0.0, sizes=None):
    """Clients with scores of an accurate model; `spread` makes them differ."""
    rng = np.random.default_rng([seed, n_clients, n])
    sizes = np.full(n_clients, n) if sizes is None else sizes
    skill = 0.25 * np.exp(spread * rng.standard_normal(n_clients))
    scores = [rng.beta(a, 4, size) for a, size in zip(skill, sizes, strict=True)]
    return federation_of(scores, Grid.default(), robfcp.LAC())


def test_the_fair_distance_is_the_mean_over_the_neighbours_of_rank_m_to_benign_minus_one():
    rng = np.random.default_rng(0)
    points, sizes = rng.normal(size=(17, 3)), rng.integers(5, 50, 17).astype(float)
    for m in (0, 1, 5, 8):
        found = fair_distance(points, sizes, m)
        for k in range(17):
            others = [
                np.linalg.norm(points[k] - points[j]) / np.sqrt(1 / sizes[k] + 1 / sizes[j])
                for j in range(17)
                if j != k
            ]
            ranks = np.sort(others)[max(1, m) - 1 : 17 - m - 1]
            assert found[k] == pytest.approx(ranks.mean())


def test_distances_from_the_core_leave_out_the_client_itself():
    reports = federation(12, 80)
    core = np.array([0, 2, 3, 5, 7, 8, 10])
    ends = ends_at(core_cdf(reports, core), LEVELS)
    merged = reports.merged(ends)
    for k in range(12):
        others = [j for j in core if j != k]
        share = merged[others].sum(axis=0) / merged[others].sum()
        difference = np.sqrt((merged[k] + 0.375) / 80) - np.sqrt(share + 0.375 / 80)
        expected = 80 * 4 * (difference**2).sum()
        assert squared_distance(reports, core, LEVELS)[k] == pytest.approx(expected)
    points = stabilised(merged, reports.sizes)
    assert np.allclose(
        without_self(points, np.full(12, 80.0), core)[2], points[core[core != 2]].mean(axis=0)
    )


def test_a_client_that_differs_by_noise_alone_is_at_about_the_number_of_bins_whatever_its_size():
    sizes = np.repeat([40, 200, 1000], 20)
    reports = federation(60, sizes=sizes, seed=3)
    found = squared_distance(reports, np.arange(60), LEVELS)
    for size in (40, 200):
        assert 7 < found[sizes == size].mean() < 17
    assert found[sizes == 1000].mean() < 17
    assert np.array_equal(capped_sizes(reports), np.minimum(sizes, 200))


def test_merged_bins_end_where_the_cdf_reaches_the_levels():
    cdf = np.array([0.1, 0.1, 0.5, 0.5, 0.9, 1.0])
    assert ends_at(cdf, np.array([0.1, 0.3, 0.5, 0.95])).tolist() == [0, 2, 5]
    assert np.array_equal(
        median_cdf(Federation.from_counts([[2, 0], [1, 1], [0, 2]])), np.array([0.5, 1.0])
    )


def test_directions_are_those_beyond_what_noise_gives():
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(200, 12))
    assert len(group_directions(noise, np.ones(200))[1]) <= 2
    groups = noise + 3 * np.outer(np.arange(200) < 80, np.eye(12)[4])
    mean, directions = group_directions(groups, np.ones(200))
    assert np.allclose(mean, groups.mean(axis=0))
    assert abs(directions[0, 4]) > 0.95


def test_gap_statistics_follow_their_formula():
    logs = np.sort(np.random.default_rng(5).normal(size=21))
    statistics, gaps = _statistics(logs[None, :])
    for i in range(1, 11):
        low, high = np.quantile(logs[: 21 - i], [0.1, 0.9])
        gap = logs[21 - i] - logs[21 - i - 1]
        assert gaps[0, i - 1] == pytest.approx(gap)
        assert statistics[0, i - 1] == pytest.approx(i * gap / max((high - low) / np.log(9), 0.4))


def test_p_values_of_the_null_are_uniform_or_larger():
    rng = np.random.default_rng(6)
    points, sizes = np.zeros((10, 2)), np.ones(10)
    found = np.array(
        [
            most_conspicuous(np.exp(5 + rng.exponential(size=10)), points, sizes).p_value
            for _ in range(1000)
        ]
    )
    for level in (0.05, 0.1, 0.2):
        assert np.mean(found <= level) <= level + 3 * np.sqrt(level / 1000)
    assert not _null(10).flags.writeable


def test_a_group_that_spreads_or_is_more_diverse_than_the_rest_is_passed_over():
    rng = np.random.default_rng(7)
    values = np.concatenate([rng.uniform(900, 1000, 30), rng.uniform(2300, 2500, 15)])
    alike = np.zeros((45, 4))
    alike[:30] = rng.normal(0, 1, (30, 4))
    assert most_conspicuous(values, alike, np.ones(45)).size == 15
    assert most_conspicuous(values, alike, np.ones(45)).p_value < 0.01
    diverse = alike.copy()
    diverse[30:] = rng.normal(0, 3, (15, 4))
    assert most_conspicuous(values, diverse, np.ones(45)).p_value > 0.05
    assert most_conspicuous(np.r_[values[:30], 3 * values[30:]], diverse, np.ones(45)).size == 15
    spread = np.concatenate([values[:30], np.geomspace(2300, 30000, 15)])
    assert most_conspicuous(spread, alike, np.ones(45)).p_value > 0.05


def test_few_clients_and_equal_values_never_stand_out():
    assert most_conspicuous(np.ones(2), np.zeros((2, 1)), np.ones(2)).size == 0
    assert most_conspicuous(np.ones(9), np.zeros((9, 1)), np.ones(9)).p_value == 1
    assert (tail_p_values(np.zeros(9), np.ones(9, bool)) == 1).all()
    for n_clients in (1, 2, 3):
        assert not outside_band(federation(n_clients)).outstanding.any()


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("attack", [Coverage(), Efficiency(), GaussianRelative(), Mimic()])
@pytest.mark.parametrize("share", [0.1, 0.45])
def test_attackers_stand_out_with_a_reason_each(attack, share, spread):
    if isinstance(attack, GaussianRelative) and share < 0.2:
        spread = 0.0  # four noisy clients are lost among honest ones that differ
    honest = federation(40, 400, 8, spread)
    bad = np.arange(round(40 * share))
    standing = outside_band(attack(honest, bad, 9))
    found = np.flatnonzero(standing.outstanding)
    assert len(found) == len(bad)
    assert len(set(found) - set(bad)) <= isinstance(attack, Mimic)
    assert set(standing.reasons) == {honest.ids[k] for k in found}
    assert (standing.p_values > 0).all()
    assert (standing.p_values <= 1).all()


def test_outstanding_excludes_at_most_m_and_nobody_without_cause():
    honest = federation(40, 200, 10, 0.2)
    attacked = Coverage()(honest, np.arange(10), 0)
    for m in (0, 4, 10, 19):
        assessment = Band()(attacked, m)
        assert (~assessment.trusted).sum() == min(m, 10)
        assert assessment.trusted[10:].all()
        assert len(assessment.reasons) == min(m, 10)
        assert Band()(honest, m).trusted.all()


def test_exactly_excludes_that_many_and_the_liars_first():
    attacked = Coverage()(federation(40, 200, 11, 0.2), np.arange(10), 0)
    for m in (5, 10, 15):
        assessment = Band("exactly")(attacked, m)
        out = np.flatnonzero(~assessment.trusted)
        assert len(out) == m == len(assessment.reasons)
        assert set(out) >= set(range(10)) or set(out) <= set(range(10))


def test_a_small_honest_site_is_not_punished_for_being_small():
    ranks = []
    for seed in range(20):
        sizes = np.full(30, 1000)
        sizes[0] = 30
        ranks.append((oddity_of(federation(30, sizes=sizes, seed=seed, spread=0.1)) > 0).sum())
    assert np.mean(ranks) > 5


def oddity_of(reports):
    """Of the others, how much odder than client 0 they are."""
    numbers = oddity(reports, trusted_core(reports))
    return numbers[1:] - numbers[0]


@pytest.mark.parametrize("attack", [Coverage(), Efficiency()])
def test_liars_with_small_samples_stand_out_as_far_as_those_with_large_ones(attack):
    sizes = np.random.default_rng(1).integers(60, 3000, 30)
    attacked = attack(federation(30, sizes=sizes, seed=2, spread=0.3), np.arange(12), 0)
    assert np.array_equal(np.flatnonzero(outside_band(attacked).outstanding), np.arange(12))


def test_nearly_half_who_huddle_do_not_become_the_core():
    attacked = Coverage()(federation(61, 200, 3, 0.4), np.arange(30), 0)
    assert np.array_equal(np.flatnonzero(outside_band(attacked).outstanding), np.arange(30))


def test_a_group_raises_the_threshold_when_it_has_less_below_the_cores_quantile():
    honest = federation(20, 200, 4)
    core, numbers = np.arange(8, 20), np.r_[np.full(8, 9.0), np.ones(12)]
    assert _raises(Efficiency()(honest, np.arange(8), 0), core, numbers, 8)
    assert not _raises(Coverage()(honest, np.arange(8), 0), core, numbers, 8)


def test_a_huge_size_buys_no_weight_in_the_core():
    honest = federation(21, 100, 12)
    counts = honest.counts.copy()
    counts[0] = 0
    counts[0, -1] = 10**9
    standing = outside_band(Federation.from_counts(counts, honest.grid))
    assert standing.oddity[0] > 5 * standing.oddity[1:].max()
    assert standing.outstanding[0]


def test_the_verdict_does_not_depend_on_the_order_of_clients():
    attacked = GaussianRelative()(federation(40, 300, 13, 0.2), np.arange(12), 0)
    order = np.random.default_rng(0).permutation(40)
    shuffled = Federation.from_counts(
        attacked.counts[order], attacked.grid, [attacked.ids[k] for k in order]
    )
    first, second = Band()(attacked, 15), Band()(shuffled, 15)
    assert np.array_equal(first.trusted[order], second.trusted)
    assert np.allclose(first.maliciousness[order], second.maliciousness)


@pytest.mark.parametrize("attack", [MimicLow(), Displacement(0.1), Displacement(0.3)])
def test_liars_who_huddle_at_one_end_cannot_have_honest_clients_thrown_out(attack):
    for seed in range(5):
        attacked = attack(federation(30, 500, seed, 0.5), np.arange(12), seed)
        standing = outside_band(attacked)
        assert standing.outstanding[12:].sum() <= 2


def test_wrong_numbers_are_refused():
    with pytest.raises(RobfcpError, match="majority of honest sites"):
        Band()(federation(10), 5)
    with pytest.raises(RobfcpError, match="false_alarm"):
        outside_band(federation(10), 0)
    with pytest.raises(RobfcpError, match="distance"):
        robfcp.calibrate(federation(10), malicious=2, distance="l1")


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(("n_clients", "n"), [(20, 50), (20, 500), (60, 50), (60, 500)])
def test_honest_clients_are_left_alone_in_95_of_100_runs(n_clients, n, spread):
    alarms = [
        outside_band(federation(n_clients, n, seed, spread)).outstanding.any()
        for seed in range(200)
    ]
    assert np.mean(alarms) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [Coverage(), Efficiency(), GaussianRelative()])
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_the_threshold_stays_that_of_the_honest_clients(attack, spread):
    for n in (50, 500):
        for seed in range(10):
            honest = federation(60, n, seed, spread)
            attacked = attack(honest, np.arange(24), seed)
            pool = np.cumsum(honest.counts[24:].sum(axis=0)) / (36 * n)
            expected = robfcp.calibrate(
                honest.subset(np.arange(60) >= 24), malicious=0, defence="none"
            ).threshold
            found = robfcp.calibrate(attacked, malicious=24, exclude="exactly").threshold
            errors = [
                pool[np.searchsorted(honest.grid.upper, value)] for value in (expected, found)
            ]
            assert abs(errors[0] - errors[1]) <= 0.01
