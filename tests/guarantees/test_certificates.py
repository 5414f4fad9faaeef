"""Certificates: numbers, assumptions as data, and the words."""

from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from effort import cases
from plain_shift import class_cdfs, draw_sites, label_counts, site_reports

import robfcp
from robfcp.binning import Binning
from robfcp.certificates import Certificate, format_lower, format_upper
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, RejectedReport
from robfcp.guarantees import (
    LabelShiftGuarantee,
    MarginalGuarantee,
    PACGuarantee,
    certify_threshold,
    count_bounds,
    missing_or_rejected_clients,
)
from robfcp.guarantees._certify import (
    certificate_points,
    certified_max_malicious,
    coverage_intervals,
    vacuous_from,
)
from robfcp.guarantees._heterogeneity import prune_clients
from robfcp.guarantees._tail_bounds import pac_threshold
from robfcp.guarantees._worst_case import min_and_max_coverage

LEVEL = Fraction(9, 10)


def federation(n=500, n_clients=100, bins=100):
    rng = np.random.default_rng(0)
    return Federation.from_counts(rng.multinomial(n, np.full(bins, 1 / bins), n_clients))


def certificate_of(guarantee, here=None, confidence=0.95):
    return guarantee.threshold(here or federation(), LEVEL, confidence)[1]


def test_the_band_is_never_wider_than_hoeffdings_and_a_certificate_is_it_at_its_edge():
    here, edges = federation(bins=20), np.arange(20)
    counts, e = count_bounds(here), np.sqrt(np.log(2 * 20 / 0.05) / (2 * 91 * 500))
    (lower,), (upper,) = coverage_intervals(counts, edges, [9], 1 - 0.95)
    (low,), (high,) = min_and_max_coverage(counts, edges, np.array([9]), 0.0)
    assert ((low - e - 1e-12 <= lower) & (lower <= low)).all()
    assert ((high <= upper) & (upper <= high + e + 1e-12)).all()
    certificate = certify_threshold(here, 17, 9, 0.95)
    assert (certificate.lower, certificate.upper) == (lower[17], upper[17])
    assert "either more than 9 of the 100 sites lie or coverage is between" in certificate.statement


def test_a_number_read_off_the_reports_proves_as_much_and_is_called_one():
    stated, read = (
        certify_threshold(federation(), 90, 9, max_malicious_estimated=e) for e in (False, True)
    )
    assert stated.statement == read.statement
    assert "read off the reports" in read.assumptions[0].text
    assert "stated before" in stated.assumptions[0].text
    names = ["liars", "corruption", "samples", "mixture", "identity", "sizes"]
    assert [one.name for one in stated.assumptions] == names
    assert stated.assumptions[-1].value == "claimed"
    assert msgspec.json.decode(msgspec.json.encode(stated), type=Certificate) == stated


def test_an_infinite_threshold_covers_everything_and_too_few_samples_prove_nothing():
    full = certify_threshold(federation(), None, 9)
    assert full.lower == full.upper == 1
    assert "every set is full" in full.statement
    tiny = certify_threshold(Federation.from_counts(np.array([[2, 0], [0, 2], [1, 1]])), 0, 2)
    assert tiny.is_vacuous
    assert "nothing is proved" in tiny.statement


def test_missing_and_faulty_clients_are_outside_and_lower_no_budget():
    faulty = (RejectedReport("site-b", "counts", "negative"),)
    fewer = replace(
        federation(), rejected_reports=faulty, missing_clients=("site-a",), sizes_registered=True
    )
    certificate = certify_threshold(fewer, 90, 9)
    assert (missing_or_rejected_clients(fewer), certificate.m) == (("site-a", "site-b"), 9)
    assert "2 missing or faulty sites" in certificate.statement
    assert {a.name: a.value for a in certificate.assumptions}["sizes"] == "registered"


def test_a_marginal_guarantee_beyond_the_impossibility_says_who_can_force_full_sets():
    certificate = certificate_of(MarginalGuarantee(20))
    assert certificate.lower == 0.9
    assert certificate.confidence is None
    assert certificate.full_sets_from == 8
    assert "guaranteed against 20 of 100" in certificate.statement
    assert "8 or more liars can make every set full" in certificate.statement
    assert "on average over calibration data" in certificate.statement
    assert "full" not in certificate_of(MarginalGuarantee(5)).statement


def test_pruned_pac_spends_a_fifth_of_delta_on_pruning_and_the_rest_on_the_threshold():
    counts = federation().counts.copy()
    counts[:15] = [500, *[0] * 99]
    attacked = Federation.from_counts(counts)
    index, certificate = PACGuarantee(20, alike=0.02).threshold(attacked, LEVEL, 0.95)
    pruning = prune_clients(attacked, 20, 0.02, 0.01)
    assert pruning.max_malicious_left == 5
    remaining = count_bounds(attacked.select(pruning.kept_mask))
    assert index == pac_threshold(remaining, LEVEL, 5, 0.04)
    assert (certificate.lower, certificate.full_sets_from) == (0.9, None)
    assert "15 sites that cannot be honest were dropped" in certificate.statement
    assert "at least 90%, and at every honest site at least 86%" in certificate.statement
    assert any(a.name == "alike" and a.value == 0.02 for a in certificate.assumptions)


def test_likeness_that_the_reports_refute_is_reported_and_nobody_dropped():
    counts = np.zeros((20, 4), dtype=int)
    counts[:10, 0] = counts[10:, 3] = 500
    _, certificate = PACGuarantee(3, alike=0.01).threshold(
        Federation.from_counts(counts), LEVEL, 0.95
    )
    assert "contradict" in certificate.statement


def test_pac_carries_its_confidence_and_a_bound_on_samples_its_assumption():
    pac = certificate_of(PACGuarantee(5), confidence=0.99)
    assert "with 99% confidence" in pac.statement
    budget = certificate_of(MarginalGuarantee(samples=700))
    assert {a.name: a.value for a in budget.assumptions}["held"] == 700
    assert "with at most 700 samples together" in budget.statement


# The curve


def uniform(seed=0, n_clients=20, n=100, truncated=0):
    """Uniform scores; the first clients move theirs above 0.75 below it."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n_clients, n))
    scores[:truncated] *= 0.75
    binning = Binning.uniform(100)
    return Federation.from_counts(np.array([binning.counts(row) for row in scores]), binning)


@pytest.mark.effort
def test_the_interval_for_more_liars_holds_the_interval_for_fewer():
    for seed in range(cases(6)):
        here = uniform(seed, n_clients=(9, 40)[seed % 2], n=60, truncated=seed % 4)
        curve = certificate_points(count_bounds(here), 80, range(here.n_clients))
        lower, upper = [p.lower for p in curve], [p.upper for p in curve]
        assert lower == sorted(lower, reverse=True)
        assert upper == sorted(upper)
        for m in (0, 2, 5):
            one = certify_threshold(uniform(seed, (9, 40)[seed % 2], 60, seed % 4), 80, m)
            assert (one.lower, one.upper) == (lower[m], upper[m])
        vacuous = [p.m for p in curve if p.is_vacuous]
        assert vacuous_from(count_bounds(here), 80) == (vacuous[0] if vacuous else None)


@pytest.mark.effort
def test_the_default_statement_is_true_also_where_the_estimate_is_too_low():
    """Four of twenty truncate unseen; "either more lie or coverage is in the interval" holds."""
    wrong = missed_alone = too_low = 0
    for seed in range(cases(30)):
        found = robfcp.calibrate(uniform(seed, truncated=4), defense="none")
        certificate, coverage = found.certificate, found.threshold  # uniform honest scores
        outside = not certificate.lower <= coverage <= certificate.upper
        too_low += found.n_malicious < 4
        missed_alone += outside and found.n_malicious < 4
        wrong += any(
            not p.lower <= coverage <= p.upper
            for p in found.levels[0].certificate_points
            if p.m >= 4
        )
    assert wrong <= 0.05 * cases(30)
    assert missed_alone > 0.2 * too_low > 0  # the old wording, "if at most m lie", missed here


def test_curves_are_short_whatever_the_number_of_clients():
    assert [certified_max_malicious(*one) for one in ((5,), (5, 4), (1,))] == [
        (0, 1, 2),
        (0, 1, 2, 4),
        (0,),
    ]
    assert certified_max_malicious(100)[-1] == 49
    assert len(certified_max_malicious(10**6, 12345)) <= 12


def test_lower_ends_round_down_and_upper_ends_up():
    for share, down, up in (
        (0.899951, "89.99%", "90%"),
        (0.9, "90%", "90%"),
        (0.99999, "99.99%", "100%"),
        (1e-9, "0%", "0.01%"),
    ):
        assert (format_lower(share), format_upper(share)) == (down, up)


# Whom it speaks of


def shifted(seed, liars=6, pooled=6):
    """Twenty sites whose mixes differ; the last few send one histogram, in which they lie."""
    rng = np.random.default_rng(seed)
    cdfs = class_cdfs(3, 50)
    sizes = label_counts(rng, 20, 3, 150)
    tables = draw_sites(rng, sizes, cdfs)
    reports = site_reports(tables)
    for k in range(20 - pooled, 20):
        counts = tables[k].sum(axis=0)
        if k >= 20 - liars:
            counts = np.bincount([0], [counts.sum()], 50).astype(int)
        reports[k] = robfcp.Report(f"site-{k:02d}", counts, Binning.uniform(50))
    honest = sizes[: 20 - pooled]
    return reports, (honest @ cdfs).sum(axis=0) / honest.sum()


def test_label_shift_and_its_curve_speak_of_the_sites_with_counts_of_all_classes():
    """Six pooled reports lie: computed over all twenty the curve was wrong in most rounds."""
    wrong = 0
    for seed in range(20):
        reports, truth = shifted(seed)
        found = robfcp.calibrate(reports, guarantee=LabelShiftGuarantee(2), defense="none")
        edge = int(np.searchsorted(found.federation.binning.upper_edges, found.threshold))
        certificate = found.certificate
        assert (certificate.n_clients, certificate.n_outside) == (14, 0)
        for point in found.levels[0].certificate_points:
            words = certificate.for_max_malicious(point, 0.95).statement
            assert "of the 14 sites" in words or point.is_vacuous
            assert "outside it: 6 sites without counts of all classes (site-14, site-15, " in words
            assert "missing or faulty" not in words
        wrong += any(
            not p.lower <= truth[edge] <= p.upper for p in found.levels[0].certificate_points
        )
        assert found.levels[0].certificate_points[-1].m < 7
    assert wrong <= 3  # 5% of 20, exceeded once in fifty times


def test_a_cluster_with_merged_classes_speaks_of_the_classes_that_sites_show():
    """What sites merge is in no cluster: of all its cases far fewer are covered than it says."""
    rng, shown, by = np.random.default_rng(0), [], {"a": "x", "b": "x", "c": "y"}
    named = {"classes": ["a", "b", "c"], "min_class_count": 20}
    for _ in range(20):
        reports = []
        for k in range(20):
            labels = rng.choice(3, 200, p=[0.57, 0.03, 0.4])
            scores, named["labels"] = rng.random(200) / 2 + (labels == 1) / 2, labels
            reports.append(
                robfcp.Report.from_scores(f"s{k}", scores, Binning.uniform(200), **named)
            )
        found = robfcp.calibrate(reports, by=by, guarantee=MarginalGuarantee(1), defense="none")
        shown.append(np.clip([2 * found.threshold[0], 2 * found.threshold[0] - 1], 0, 1))
        for certificate in (found.certificate, found.levels[0].strata[0].certificate):
            assert {a.name: a.value for a in certificate.assumptions}["mixture"] == "shown"
            assert "outside it: cases of a class at sites that merged it" in certificate.statement
    assert np.mean(shown, axis=0)[0] >= 0.9
    assert np.mean(shown, axis=0) @ [0.95, 0.05] < 0.89
    refused = {"is none of the class names": {"(other)": "x"}, "kept for": {"b": "(other)"}}
    for words, cluster in refused.items():
        with pytest.raises(RobfcpError, match=words):
            robfcp.calibrate(reports, by=by | cluster)
