"""Certificates: bounds, assumptions, certificate points, and statements."""

from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from effort import cases
from plain_shift import class_cdfs, client_reports, draw_clients, label_counts

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


def federation(n_samples=500, n_clients=100, bins=100):
    rng = np.random.default_rng(0)
    return Federation.from_counts(rng.multinomial(n_samples, np.full(bins, 1 / bins), n_clients))


def certificate_of(guarantee, reports=None, confidence=0.95):
    return guarantee.threshold(reports or federation(), LEVEL, confidence)[1]


def test_a_certificate_is_the_interval_at_its_bin_which_is_within_hoeffdings():
    uniform_counts, edges = federation(bins=20), np.arange(20)
    counts = count_bounds(uniform_counts)
    radius = np.sqrt(np.log(2 * 20 / 0.05) / (2 * 91 * 500))
    (lower,), (upper,) = coverage_intervals(counts, edges, [9], 1 - 0.95)
    (low,), (high,) = min_and_max_coverage(counts, edges, np.array([9]), 0.0)
    assert ((low - radius - 1e-12 <= lower) & (lower <= low)).all()
    assert ((high <= upper) & (upper <= high + radius + 1e-12)).all()
    certificate = certify_threshold(uniform_counts, 17, 9, 0.95)
    assert (certificate.lower, certificate.upper) == (lower[17], upper[17])
    assert "either more than 9 of the 100 sites lie or coverage is between" in certificate.statement


def test_an_estimated_max_malicious_certifies_as_much_and_is_called_estimated():
    given, estimated = (
        certify_threshold(federation(), 90, 9, max_malicious_estimated=e) for e in (False, True)
    )
    assert given.statement == estimated.statement
    assert "read off the reports" in estimated.assumptions[0].text
    assert "stated before" in given.assumptions[0].text
    names = [
        "max_malicious",
        "non_adaptive_corruption",
        "sampling",
        "test_distribution",
        "client_identity",
        "sizes",
    ]
    assert [assumption.name for assumption in given.assumptions] == names
    assert given.assumptions[-1].value == "claimed"
    assert msgspec.json.decode(msgspec.json.encode(given), type=Certificate) == given


def test_trivial_sets_cover_everything_and_too_few_samples_give_a_vacuous_certificate():
    trivial = certify_threshold(federation(), None, 9)
    assert trivial.lower == trivial.upper == 1
    assert "every set is full" in trivial.statement
    vacuous = certify_threshold(Federation.from_counts(np.array([[2, 0], [0, 2], [1, 1]])), 0, 2)
    assert vacuous.is_vacuous
    assert "nothing is certified" in vacuous.statement


def test_missing_and_rejected_clients_are_not_covered_and_do_not_lower_max_malicious():
    rejections = (RejectedReport("site-b", "counts", "negative"),)
    incomplete = replace(
        federation(),
        rejected_reports=rejections,
        missing_clients=("site-a",),
        sizes_registered=True,
    )
    certificate = certify_threshold(incomplete, 90, 9)
    assert missing_or_rejected_clients(incomplete) == ("site-a", "site-b")
    assert certificate.max_malicious == 9
    assert "2 missing or faulty sites" in certificate.statement
    assert {a.name: a.value for a in certificate.assumptions}["sizes"] == "registered"


def test_a_marginal_guarantee_beyond_the_impossibility_states_its_breakdown_point():
    certificate = certificate_of(MarginalGuarantee(20))
    assert certificate.lower == 0.9
    assert certificate.confidence is None
    assert certificate.breakdown_point == 8
    assert "guaranteed against 20 of 100" in certificate.statement
    assert "8 or more malicious clients can force trivial sets" in certificate.statement
    assert "on average over calibration data" in certificate.statement
    assert "trivial" not in certificate_of(MarginalGuarantee(5)).statement


def test_pac_with_heterogeneity_spends_a_fifth_of_delta_on_pruning():
    counts = federation().counts.copy()
    counts[:15] = [500, *[0] * 99]
    attacked = Federation.from_counts(counts)
    index, certificate = PACGuarantee(20, heterogeneity=0.02).threshold(attacked, LEVEL, 0.95)
    pruning = prune_clients(attacked, 20, 0.02, 0.01)
    assert pruning.max_malicious_left == 5
    remaining = count_bounds(attacked.select(pruning.kept_mask))
    assert index == pac_threshold(remaining, LEVEL, 5, 0.04)
    assert (certificate.lower, certificate.breakdown_point) == (0.9, None)
    assert "15 sites that cannot be honest were dropped" in certificate.statement
    assert "at least 90%, and at every honest site at least 86%" in certificate.statement
    assert any(a.name == "heterogeneity" and a.value == 0.02 for a in certificate.assumptions)


def test_a_contradicted_heterogeneity_is_reported_and_no_client_is_pruned():
    counts = np.zeros((20, 4), dtype=int)
    counts[:10, 0] = counts[10:, 3] = 500
    _, certificate = PACGuarantee(3, heterogeneity=0.01).threshold(
        Federation.from_counts(counts), LEVEL, 0.95
    )
    assert "contradict" in certificate.statement


def test_a_pac_certificate_has_its_confidence_and_a_bound_on_samples_its_assumption():
    pac = certificate_of(PACGuarantee(5), confidence=0.99)
    assert "with 99% confidence" in pac.statement
    of_samples = certificate_of(MarginalGuarantee(max_malicious_samples=700))
    assert {a.name: a.value for a in of_samples.assumptions}["max_malicious_samples"] == 700
    assert "with at most 700 samples together" in of_samples.statement


# Certificate points


def uniform_federation(seed=0, n_clients=20, n_samples=100, n_truncating=0):
    """Return uniform scores; the first clients scale theirs to below 0.75."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n_clients, n_samples))
    scores[:n_truncating] *= 0.75
    binning = Binning.uniform(100)
    return Federation.from_counts(np.array([binning.counts(row) for row in scores]), binning)


@pytest.mark.effort
def test_intervals_widen_with_max_malicious():
    for seed in range(cases(6)):
        reports = uniform_federation(
            seed, n_clients=(9, 40)[seed % 2], n_samples=60, n_truncating=seed % 4
        )
        points = certificate_points(count_bounds(reports), 80, range(reports.n_clients))
        lower, upper = [p.lower for p in points], [p.upper for p in points]
        assert lower == sorted(lower, reverse=True)
        assert upper == sorted(upper)
        for m in (0, 2, 5):
            certificate = certify_threshold(
                uniform_federation(seed, (9, 40)[seed % 2], 60, seed % 4), 80, m
            )
            assert (certificate.lower, certificate.upper) == (lower[m], upper[m])
        vacuous = [p.max_malicious for p in points if p.is_vacuous]
        assert vacuous_from(count_bounds(reports), 80) == (vacuous[0] if vacuous else None)


@pytest.mark.effort
def test_the_default_statement_holds_also_where_the_estimate_is_too_low():
    """Four of twenty truncate their scores, which is often not detected."""
    n_wrong = n_missed = n_too_low = 0
    for seed in range(cases(30)):
        calibration = robfcp.calibrate(uniform_federation(seed, n_truncating=4), defense="none")
        certificate = calibration.certificate
        coverage = calibration.threshold  # uniform benign scores
        outside = not certificate.lower <= coverage <= certificate.upper
        n_too_low += calibration.n_malicious < 4
        n_missed += outside and calibration.n_malicious < 4
        n_wrong += any(
            not p.lower <= coverage <= p.upper
            for p in calibration.levels[0].certificate_points
            if p.max_malicious >= 4
        )
    assert n_wrong <= 0.05 * cases(30)
    assert n_missed > 0.2 * n_too_low > 0  # the certificate of the estimate alone fails here


def test_the_number_of_certificate_points_is_bounded():
    assert [certified_max_malicious(*arguments) for arguments in ((5,), (5, 4), (1,))] == [
        (0, 1, 2),
        (0, 1, 2, 4),
        (0,),
    ]
    assert certified_max_malicious(100)[-1] == 49
    assert len(certified_max_malicious(10**6, 12345)) <= 12


def test_lower_bounds_are_rounded_down_and_upper_bounds_up():
    for fraction, rounded_down, rounded_up in (
        (0.899951, "89.99%", "90%"),
        (0.9, "90%", "90%"),
        (0.99999, "99.99%", "100%"),
        (1e-9, "0%", "0.01%"),
    ):
        assert (format_lower(fraction), format_upper(fraction)) == (rounded_down, rounded_up)


# Clients that a certificate covers


def label_shifted_reports(seed, n_malicious=6, n_pooled=6):
    """Return twenty clients with label shift; the last are malicious and report one histogram."""
    rng = np.random.default_rng(seed)
    cdfs = class_cdfs(3, 50)
    sizes = label_counts(rng, 20, 3, 150)
    tables = draw_clients(rng, sizes, cdfs)
    reports = client_reports(tables)
    for k in range(20 - n_pooled, 20):
        counts = tables[k].sum(axis=0)
        if k >= 20 - n_malicious:
            counts = np.bincount([0], [counts.sum()], 50).astype(int)
        reports[k] = robfcp.Report(f"site-{k:02d}", counts, Binning.uniform(50))
    benign_label_counts = sizes[: 20 - n_pooled]
    return reports, (benign_label_counts @ cdfs).sum(axis=0) / benign_label_counts.sum()


def test_label_shift_certificates_cover_the_clients_with_counts_of_all_classes():
    """Six pooled reports are forged; certificates of all twenty clients would often be wrong."""
    n_wrong = 0
    for seed in range(20):
        reports, true_cdf = label_shifted_reports(seed)
        calibration = robfcp.calibrate(reports, guarantee=LabelShiftGuarantee(2), defense="none")
        bin_index = int(
            np.searchsorted(calibration.federation.binning.upper_edges, calibration.threshold)
        )
        certificate = calibration.certificate
        assert (certificate.n_clients, certificate.n_uncovered_clients) == (14, 0)
        for point in calibration.levels[0].certificate_points:
            statement = certificate.for_max_malicious(point, 0.95).statement
            assert "of the 14 sites" in statement or point.is_vacuous
            assert (
                "outside it: 6 sites without counts of all classes (site-14, site-15, " in statement
            )
            assert "missing or faulty" not in statement
        n_wrong += any(
            not p.lower <= true_cdf[bin_index] <= p.upper
            for p in calibration.levels[0].certificate_points
        )
        assert calibration.levels[0].certificate_points[-1].max_malicious < 7
    assert n_wrong <= 3  # 5% of 20, exceeded once in fifty times


def test_a_cluster_with_merged_classes_covers_the_classes_that_are_reported():
    """Merged classes are in no cluster: fewer of all its cases are covered than the level."""
    rng = np.random.default_rng(0)
    class_coverage = []
    clusters = {"a": "x", "b": "x", "c": "y"}
    class_options = {"classes": ["a", "b", "c"], "min_class_count": 20}
    for _ in range(20):
        reports = []
        for k in range(20):
            labels = rng.choice(3, 200, p=[0.57, 0.03, 0.4])
            scores = rng.random(200) / 2 + (labels == 1) / 2
            class_options["labels"] = labels
            reports.append(
                robfcp.Report.from_scores(f"s{k}", scores, Binning.uniform(200), **class_options)
            )
        calibration = robfcp.calibrate(
            reports, by=clusters, guarantee=MarginalGuarantee(1), defense="none"
        )
        class_coverage.append(
            np.clip([2 * calibration.threshold[0], 2 * calibration.threshold[0] - 1], 0, 1)
        )
        for certificate in (calibration.certificate, calibration.levels[0].strata[0].certificate):
            assert {a.name: a.value for a in certificate.assumptions}[
                "test_distribution"
            ] == "shown"
            assert "outside it: cases of a class at sites that merged it" in certificate.statement
    assert np.mean(class_coverage, axis=0)[0] >= 0.9
    assert np.mean(class_coverage, axis=0) @ [0.95, 0.05] < 0.89
    invalid_clusters = {
        "is none of the class names": {"(other)": "x"},
        "kept for": {"b": "(other)"},
    }
    for message, change in invalid_clusters.items():
        with pytest.raises(RobfcpError, match=message):
            robfcp.calibrate(reports, by=clusters | change)
