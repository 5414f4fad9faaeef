"""The comparison of clients by class totals and coarsened counts, against plain loops."""

import numpy as np
import pytest

import robfcp
from robfcp.defense.consensus._basis import ComparisonBasis
from robfcp.defense.consensus._outlier_test import (
    compare_with_members,
    compare_with_reference,
    reference_counts,
)
from robfcp.defense.consensus._tuning import Tuning
from robfcp.federation import Federation

BINNING = robfcp.Binning.uniform(60)
N_CLASSES = 3
TUNING = Tuning()


def samples(rng, n, class_shares=(0.5, 0.3, 0.2)):
    """Scores and labels; scores of later classes are larger."""
    labels = rng.choice(N_CLASSES, n, p=class_shares)
    return rng.beta(1 + labels, 4), labels


def default_report(name, scores, labels, **options):
    options = {"min_cell_count": 5, **options}
    return robfcp.Report.from_scores(
        name, scores, BINNING, labels=labels, classes=N_CLASSES, **options
    )


def default_round(seed, n_clients=9, n=150):
    rng = np.random.default_rng(seed)
    return Federation.from_reports(
        default_report(f"s{k}", *samples(rng, n, rng.dirichlet([2, 2, 2])))
        for k in range(n_clients)
    )


def views_of(federation):
    basis = ComparisonBasis.from_federation(federation, federation, TUNING)
    return basis, basis.client_views(federation)


def merged(row, bin_ends):
    """Counts of merged bins, by a loop."""
    cumulative = [sum(row[: end + 1]) for end in bin_ends]
    return np.diff(cumulative, prepend=0)


def test_counts_are_midpoints_and_divided_by_class_totals():
    federation = default_round(0)
    basis, views = views_of(federation)
    lowest = federation.counts_in_lowest_bins()
    for k in range(federation.n_clients):
        as_sent = merged(federation.counts[k].tolist(), basis.bin_ends)
        low = merged(lowest.counts[k].tolist(), basis.bin_ends)
        midpoints = (as_sent + low) / 2
        assert views.pooled.counts[k, 0] == pytest.approx(midpoints)
        totals = federation.class_totals.row(k)
        fractions = totals / totals.sum()
        assert views.given_labels.counts[k] == pytest.approx(np.outer(fractions, midpoints))

        # A number that is as likely anywhere between both bounds has this variance.
        width = np.cumsum(low) - np.cumsum(as_sent)
        assert (width >= 0).all()
        assert views.pooled.coarsening.edge_variance[k] == pytest.approx(width**2 / 12)
        cdf = np.cumsum(as_sent) / as_sent.sum()
        assert views.pooled.coarsening.cdf_as_sent[k] == pytest.approx(cdf)


def test_tables_by_class_are_off_independently():
    rng = np.random.default_rng(3)
    reports = []
    for k in range(6):
        scores, labels = samples(rng, 300)
        reports.append(default_report(f"s{k}", scores, labels, stratify_by_class=True))
    federation = Federation.from_reports(reports)
    basis, views = views_of(federation)
    lowest = federation.counts_in_lowest_bins().strata.table.dense().reshape(6, N_CLASSES, -1)
    as_sent = federation.strata.table.dense().reshape(6, N_CLASSES, -1)
    for k in range(6):
        variance = 0
        for c in range(N_CLASSES):
            width = np.cumsum(lowest[k, c] - as_sent[k, c])[basis.bin_ends]
            variance = variance + width**2 / 12
        assert views.given_labels.coarsening.edge_variance[k] == pytest.approx(variance)
    assert not views.given_labels.has_totals_alone.any()


def plain_reference(counts, weights, members, tuning):
    """Counts by class of a reference from margins alone: expectation and maximization, in loops."""
    n_classes, n_bins = counts.shape[1:]
    total = sum(weights[k] * counts[k] for k in members)
    for _ in range(tuning.reference_em_rounds):
        fractions = np.zeros((n_classes, n_bins))
        all_clients = total.sum(axis=0) + tuning.bin_prior
        for c in range(n_classes):
            prior = tuning.prior_strength * all_clients / all_clients.sum()
            fractions[c] = (total[c] + prior) / (total[c].sum() + tuning.prior_strength)
        total = np.zeros((n_classes, n_bins))
        for k in members:
            for b in range(n_bins):
                expected = [counts[k, c].sum() * fractions[c, b] for c in range(n_classes)]
                in_bin = counts[k, :, b].sum()
                for c in range(n_classes):
                    total[c, b] += weights[k] * in_bin * expected[c] / sum(expected)
    return total


def test_the_classes_of_a_reference_are_the_likeliest_given_the_class_totals():
    federation = default_round(1)
    _, views = views_of(federation)
    clients = views.given_labels
    members = np.array([True] * 6 + [False] * 3)
    estimated = reference_counts(clients, members)
    weights = clients.reference_weight[:, 0, 0]
    expected = plain_reference(clients.counts, weights, np.flatnonzero(members), TUNING)
    assert estimated == pytest.approx(expected)

    # The pooled counts of the members are kept, and no client outside has a say.
    weighted = (weights[:, None] * clients.counts.sum(axis=1))[members].sum(axis=0)
    assert estimated.sum(axis=0) == pytest.approx(weighted)
    changed = default_round(1)
    larger = np.roll(changed.counts, 20, axis=1)
    assert (larger != changed.counts).any()


def test_class_totals_find_the_classes_that_counts_by_class_would_show():
    """Clients of different classes: so their pooled counts tell the classes apart."""
    rng = np.random.default_rng(2)
    exact, totals = [], []
    for k in range(40):
        scores, labels = samples(rng, 400, rng.dirichlet([0.5, 0.5, 0.5]))
        exact.append(default_report(f"s{k:02d}", scores, labels, min_cell_count=1))
        totals.append(default_report(f"s{k:02d}", scores, labels))
    by_class = Federation.from_reports(exact)
    basis, views = views_of(by_class)
    members = np.ones(40, dtype=bool)
    true = reference_counts(views.given_labels, members)
    default = Federation.from_reports(totals)
    estimated = reference_counts(basis.client_views(default).given_labels, members)
    error = np.abs(estimated - true).sum() / true.sum()
    divided = basis.client_views(default).given_labels.counts.sum(axis=0)
    error_of_divided = np.abs(divided - true).sum() / true.sum()
    assert error < 0.5 * error_of_divided


def test_a_member_is_compared_with_the_reference_without_its_own_part():
    federation = default_round(4)
    _, views = views_of(federation)
    clients = views.given_labels
    members = np.ones(federation.n_clients, dtype=bool)
    comparison = compare_with_members(clients, members)
    reference = reference_counts(clients, members)
    outside = compare_with_reference(clients, reference, np.zeros_like(members))
    # A reference that still holds the client's own scores is closer to it.
    assert (comparison.chi2_ratio > outside.chi2_ratio).all()


def test_a_lower_half_that_coarsening_leaves_open_is_no_evidence():
    """Of a client whose scores are all largest, no sample must lie in the lower half."""
    rng = np.random.default_rng(5)
    reports = [default_report(f"s{k}", *samples(rng, 100)) for k in range(8)]
    reports.append(default_report("s8", np.full(100, 0.999), samples(rng, 100)[1]))
    federation = Federation.from_reports(reports)
    _, views = views_of(federation)
    members = np.array([True] * 8 + [False])
    comparison = compare_with_members(views.pooled, members)
    assert comparison.has_larger_scores[8]
    assert comparison.lower_half_ratio[8] == 0
    assert comparison.body_ratio[8] == 0
    assert federation.counts_in_lowest_bins().counts[8, :30].sum() == 5
    analysis = robfcp.Consensus().find_outliers(federation)
    assert np.flatnonzero(analysis.is_excluded).tolist() == [8]


def test_exact_reports_are_compared_as_they_are():
    rng = np.random.default_rng(6)
    federation = Federation.from_reports(
        default_report(f"s{k}", *samples(rng, 80), min_cell_count=1) for k in range(6)
    )
    basis, views = views_of(federation)
    assert views.given_labels.coarsening is None
    assert not views.given_labels.has_totals_alone.any()
    table = federation.strata.table.dense().reshape(6, N_CLASSES, -1)
    for k in range(6):
        for c in range(N_CLASSES):
            expected = merged(table[k, c].tolist(), basis.bin_ends)
            assert views.given_labels.counts[k, c].tolist() == expected.tolist()


def test_groups_are_compared_unless_more_clients_state_class_totals():
    rng = np.random.default_rng(7)

    def client(k, by_group):
        scores, labels = samples(rng, 200)
        if not by_group:
            return default_report(f"s{k}", scores, labels)
        groups = rng.choice(["day", "night"], 200)
        return robfcp.Report.from_scores(f"s{k}", scores, BINNING, groups=groups, min_cell_count=5)

    for n_by_group, n_classes in ((1, 3), (4, 2), (6, 2), (7, 2)):
        federation = Federation.from_reports(client(k, k < n_by_group) for k in range(7))
        assert federation.strata.by == "group"
        basis, views = views_of(federation)
        assert basis.n_classes == n_classes
        n_divided = 7 - n_by_group if n_classes == 3 else 0
        assert views.given_labels.has_totals_alone.sum() == n_divided
        assert views.pooled.counts.sum(axis=(1, 2)) == pytest.approx(np.full(7, 200))
