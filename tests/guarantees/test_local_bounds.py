"""Thresholds for one client from the reports of its peers, and intervals of local scores."""

from dataclasses import replace
from fractions import Fraction

import makers
import numpy as np
import pytest
from effort import cases
from makers import command_output, outputs, save_reports, write_table
from plain_shift import (
    ATTACKS,
    attack_tables,
    class_cdfs,
    draw_clients,
    federation_by_class,
    label_counts,
    label_distribution_bin,
)
from scipy.stats import binom

import robfcp
from robfcp.audit import verify_calibration
from robfcp.certificates import format_lower
from robfcp.errors import RobfcpError
from robfcp.guarantees import _local_bounds as local_bounds
from robfcp.guarantees._label_shift_thresholds import class_counts


def federation(seed, n_clients, n_classes, n_samples, bins, n_malicious=0, attack="bottom"):
    """Return the counts of a federation whose last clients are malicious."""
    rng = np.random.default_rng(seed)
    sizes = label_counts(rng, n_clients, n_classes, n_samples)
    tables = draw_clients(rng, sizes, class_cdfs(n_classes, bins))
    return replace(
        class_counts(federation_by_class(attack_tables(rng, tables, n_malicious, attack))),
        cumulative_upper=None,
    )


def without_client(counts, client_index):
    """Return the counts without one client."""
    rows = [k for k in range(len(counts.clients)) if k != client_index]
    clients = tuple(counts.clients[k] for k in rows)
    return replace(
        counts,
        cumulative=counts.cumulative[:, rows],
        class_sizes=counts.class_sizes[rows],
        clients=clients,
    )


def next_label_distributions(label_counts):
    """Return the distribution of n labels and one more, for each class of that one."""
    n = int(label_counts.sum())
    return [
        [(int(label_counts[c]) + (c == y)) / (n + 1) for c in range(len(label_counts))]
        for y in range(len(label_counts))
    ]


@pytest.mark.effort
def test_client_thresholds_are_those_of_rule_t_on_the_peers():
    """The bin of each client is the largest of rule T on its peers over its next distributions.

    sigma counts twice: from the peers to the common distribution, and from that to the client's.
    """
    rng, all_bins, n_different = np.random.default_rng(1), set(), 0
    for trial in range(cases(12)):
        n_clients, n_classes = int(rng.integers(4, 10)), int(rng.integers(1, 4))
        max_malicious, n_malicious = int(rng.integers(0, 3)), int(rng.integers(0, 4))
        n, alpha, sigma = int(rng.choice([40, 150, 400])), 0.3, 0.04 * (trial % 3 == 0)
        counts = federation([1, trial], n_clients, n_classes, n, 8, n_malicious, ATTACKS[trial % 4])
        delta = alpha / 20
        bins = local_bounds.client_thresholds(counts, alpha, max_malicious, sigma)
        for client_index in range(n_clients):
            bins_of_distributions = [
                label_distribution_bin(
                    counts,
                    [distribution],
                    alpha - delta - sigma,
                    max_malicious,
                    delta,
                    sigma,
                    without=client_index,
                )
                for distribution in next_label_distributions(counts.class_sizes[client_index])
            ]
            expected = -1 if None in bins_of_distributions else max(bins_of_distributions)
            assert bins[client_index] == expected
            unseen = local_bounds.unseen_client_threshold(
                without_client(counts, client_index),
                counts.class_sizes[client_index],
                alpha,
                max_malicious,
                sigma,
            )
            assert (-1 if unseen is None else unseen) == expected
            all_bins.add(expected)
        n_different += len(set(bins.tolist())) > 1
    assert len(all_bins) > 2
    assert -1 in all_bins
    assert n_different > 2


def test_clients_not_requested_alone_or_without_enough_alpha_get_none():
    counts = federation(4, 8, 2, 300, 20)
    of_all = local_bounds.client_thresholds(counts, 0.3, 1)
    of_two = local_bounds.client_thresholds(counts, 0.3, 1, clients=[2, 5])
    assert of_two.tolist() == np.where(np.isin(range(8), [2, 5]), of_all, -1).tolist()
    assert local_bounds.client_thresholds(federation(5, 1, 2, 300, 20), 0.3, 0).tolist() == [-1]
    assert (local_bounds.client_thresholds(counts, 0.1, 0, 0.1) == -1).all()
    assert local_bounds.unseen_client_threshold(counts, np.array([3, 4]), 0.1, 0, 0.1) is None
    with pytest.raises(RobfcpError, match="nothing can be guaranteed against 3 of 3"):
        local_bounds.client_thresholds(federation(6, 4, 2, 50, 10), 0.2, 3)


# Order statistics of trusted samples: local ones, and those of the server


def binomial_ranks(n, level, low_delta, high_delta):
    """Return ranks a and b by scipy: the largest, and the smallest or n + 1."""
    ranks = np.arange(1, n + 1)
    a = ranks[binom.cdf(ranks - 1, n, level) <= low_delta]
    b = binom.sf(ranks - 1, n, level) <= high_delta
    return (a[-1] if a.size else 1), (ranks[b][0] if b.any() else n + 1)


BINS = 200
BINNING = robfcp.Binning.uniform(BINS)
LEVEL = Fraction(9, 10)


def trusted_report_of(rng, n, power=1.0):
    """Return the server's report of n trusted scores, uniform to a power."""
    return robfcp.Report.from_scores("server", rng.random(n) ** (1 / power), BINNING)


@pytest.mark.parametrize("level", [LEVEL, Fraction(4, 5), Fraction(99, 100)])
@pytest.mark.parametrize("delta", [0.05, 0.01])
def test_bounds_of_trusted_samples_are_binomial_order_statistics(level, delta):
    rng = np.random.default_rng(13)
    for n in (1, 10, 28, 29, 37, 100, 500):
        scores = np.sort(rng.random(n))
        bins = BINNING.bin_indices(scores)
        trusted = local_bounds.TrustedInterval.from_counts(
            np.bincount(bins, minlength=BINS), level, delta
        )
        a, b = binomial_ranks(n, float(level), delta, delta)
        assert (trusted.lower, trusted.marginal_lower) == (bins[a - 1], a / (n + 1))
        assert trusted.upper == (bins[b - 1] if b <= n else None)
        local = local_bounds.local_threshold_range(scores, float(1 - level))
        a, b = binomial_ranks(n, float(level), 0.05, 0.025)
        expected = scores[a - 1], scores[b - 1] if b <= n else np.inf, a / (n + 1), n
        assert (local.lower, local.upper, local.marginal_lower, local.n_samples) == expected
    with pytest.raises(RobfcpError, match="samples: there are none"):
        local_bounds.local_threshold_range(np.array([]), 0.1)
    of_one_sample = local_bounds.TrustedInterval.from_counts(
        np.bincount([3], minlength=9), level, delta
    )
    assert (of_one_sample.clip(None), of_one_sample.clip(1), of_one_sample.clip(5)) == (None, 3, 5)
    interval = local_bounds.TrustedInterval(2, 6, 0.5, 99, 0.05)
    assert [interval.clip(bin_index) for bin_index in (None, 0, 4, 8)] == [6, 2, 4, 6]
    assert [interval.lower_only().clip(bin_index) for bin_index in (None, 0, 8)] == [None, 2, 8]


def attacked_reports(rng, fraction, forged, n_clients=20, n=60):
    """Return reports of uniform scores; a fraction of the clients reports forged ones."""
    n_benign = n_clients - round(fraction * n_clients)
    scores = [rng.random(n) for _ in range(n_benign)] + [forged(rng, n)] * (n_clients - n_benign)
    return [
        robfcp.Report.from_scores(f"s{k:02d}", client_scores, BINNING)
        for k, client_scores in enumerate(scores)
    ]


FORGED_SCORES = {
    "zeros": lambda rng, n: np.zeros(n),
    "ones": lambda rng, n: np.ones(n),
    "half": lambda rng, n: rng.random(n) / 2,
    "lifted": lambda rng, n: 0.9 + rng.random(n) / 10,
}


@pytest.mark.parametrize("n", [29, 100])
@pytest.mark.parametrize("fraction", [0.4, 0.9])
@pytest.mark.parametrize("attack", FORGED_SCORES)
def test_trusted_samples_bound_the_threshold_whatever_malicious_clients_report(n, fraction, attack):
    rng = np.random.default_rng(14)
    trusted_report = trusted_report_of(rng, n)
    reports = attacked_reports(rng, fraction, FORGED_SCORES[attack])
    interval = local_bounds.TrustedInterval.from_counts(trusted_report.counts, LEVEL, 0.05)
    for guarantee in (None, robfcp.PACGuarantee(3)):
        options = {"defense": "none", "guarantee": guarantee}
        unbounded = robfcp.calibrate(reports, **options).threshold
        calibration = robfcp.calibrate(reports, trusted_report=trusted_report, **options)
        assert (
            calibration.threshold
            == BINNING.upper_edges[
                interval.clip(int(BINNING.bin_index_of_threshold([unbounded])[0]))
            ]
        )
        assert (
            BINNING.upper_edges[interval.lower]
            <= calibration.threshold
            <= BINNING.upper_edges[interval.upper]
        )
        lower = format_lower(interval.marginal_lower)
        statement = (
            f"whatever malicious clients report, at least {lower} on average over {n} trusted"
        )
        assert statement in calibration.statement
        assert guarantee is None or calibration.certificate.confidence == pytest.approx(0.9)


def test_a_marginal_guarantee_is_bounded_from_below_only():
    rng = np.random.default_rng(17)
    reports = attacked_reports(rng, 0.4, FORGED_SCORES["ones"])
    trusted_report = trusted_report_of(rng, 100)
    calibration = robfcp.calibrate(
        reports,
        guarantee=robfcp.MarginalGuarantee(8),
        trusted_report=trusted_report,
        defense="none",
    )
    assert (
        calibration.threshold == 1
    )  # eight of twenty force trivial sets, which a marginal guarantee allows
    assert calibration.certificate.confidence is None
    reports = attacked_reports(rng, 0.9, FORGED_SCORES["zeros"])
    of_small_scores = robfcp.calibrate(
        reports,
        guarantee=robfcp.MarginalGuarantee(1),
        trusted_report=trusted_report,
        defense="none",
    )
    assert (
        of_small_scores.threshold
        == BINNING.upper_edges[
            local_bounds.TrustedInterval.from_counts(trusted_report.counts, LEVEL, 0.05).lower
        ]
    )


def report_by_class(rng, name, n_samples, label_distribution=(0.5, 0.45, 0.05), **options):
    labels = rng.choice(3, n_samples, p=label_distribution)
    scores = rng.random(n_samples) ** np.array([1.0, 0.5, 2.0])[labels]
    return robfcp.Report.from_scores(name, scores, BINNING, labels=labels, classes=3, **options)


def test_trusted_samples_bound_each_class_and_small_classes_together():
    rng, labels = np.random.default_rng(18), np.arange(200) % 3
    reports = [report_by_class(rng, f"s{k}", 200) for k in range(6)]
    malicious_labels = {"labels": labels, "classes": 3}
    reports += [
        robfcp.Report.from_scores(f"z{k}", 0 * labels, BINNING, **malicious_labels)
        for k in range(14)
    ]
    trusted_report, delta = report_by_class(rng, "server", 200), 0.05 / 3
    options = {"by": "class", "defense": "none"}
    calibration = robfcp.calibrate(reports, trusted_report=trusted_report, **options)
    *classes, rare_class = calibration.levels[0].strata
    intervals = [
        local_bounds.TrustedInterval.from_counts(counts, LEVEL, delta)
        for counts in trusted_report.strata.dense()
    ]
    for stratum, interval in zip(classes, intervals[:2], strict=True):
        assert (
            BINNING.upper_edges[interval.lower]
            <= stratum.threshold
            <= BINNING.upper_edges[interval.upper]
        )
        assert stratum.certificate.trusted_lower == interval.marginal_lower
    assert intervals[2].upper is None
    assert rare_class.certificate.trusted_lower is None
    assert calibration.certificate.trusted_lower is None
    assert rare_class.threshold >= BINNING.upper_edges[intervals[2].lower]
    assert (
        f"held from below by {intervals[2].n_samples} trusted samples"
        in rare_class.certificate.note
    )
    pooled = robfcp.Report("server", trusted_report.counts, BINNING)
    strata = robfcp.calibrate(reports, trusted_report=pooled, **options).levels[0].strata
    low = BINNING.upper_edges[
        local_bounds.TrustedInterval.from_counts(pooled.counts, LEVEL, delta).lower
    ]
    assert all(
        stratum.threshold >= low and "200 trusted" in stratum.certificate.note for stratum in strata
    )


def test_trusted_samples_without_classes_lower_no_threshold():
    """They may be of another class than a threshold that they seem to bound."""
    rng = np.random.default_rng(19)
    reports = [report_by_class(rng, f"s{k}", 200) for k in range(6)]
    easy_counts = np.bincount(BINNING.bin_indices(0.1 * rng.random(500)), minlength=BINNING.n_bins)
    trusted_report = robfcp.Report("server", easy_counts, BINNING)
    options = {"by": "class", "defense": "none"}
    without = robfcp.calibrate(reports, **options).levels[0].strata
    with_trusted = (
        robfcp.calibrate(reports, trusted_report=trusted_report, **options).levels[0].strata
    )
    assert [stratum.threshold for stratum in with_trusted] == [
        stratum.threshold for stratum in without
    ]
    high = local_bounds.TrustedInterval.from_counts(trusted_report.counts, LEVEL, 0.05 / 3).upper
    assert all(stratum.threshold > BINNING.upper_edges[high] for stratum in without)


@pytest.mark.parametrize(
    ("guarantee", "has_trusted_data", "confidence"),
    [
        (None, False, 0.95),
        (None, True, 0.95),
        (robfcp.PACGuarantee(1), False, 0.95),
        (robfcp.PACGuarantee(1), True, 0.9),
    ],
)
def test_trusted_samples_that_may_lower_a_guaranteed_threshold_spend_delta_again(
    guarantee, has_trusted_data, confidence
):
    """A union of two events, each of 5%: a threshold covers too little, or its upper bound does."""
    rng = np.random.default_rng(20)
    reports = [report_by_class(rng, f"s{k}", 400) for k in range(8)]
    trusted_report = report_by_class(rng, "server", 900) if has_trusted_data else None
    calibration = robfcp.calibrate(
        reports, by="class", defense="none", guarantee=guarantee, trusted_report=trusted_report
    )
    assert calibration.certificate.confidence == pytest.approx(confidence)


PRIVATE_OPTIONS = {"n_samples": 200, "privacy": robfcp.Privacy(1.0)}
TRUSTED_REPORT = robfcp.Report("server", [1] * BINS, BINNING)


@pytest.mark.parametrize(
    ("trusted_report", "options", "message"),
    [
        (0.9, {}, "is not a report"),
        (TRUSTED_REPORT, {"guarantee": robfcp.LabelShiftGuarantee(1)}, "with LabelShift"),
        (robfcp.Report("server", [1] * 9, robfcp.Binning.uniform(9)), {}, "binning"),
        (robfcp.Report("s01", [1] * BINS, BINNING), {}, "is among the reports"),
        (robfcp.Report("server", [1] * BINS, BINNING, **PRIVATE_OPTIONS), {}, "holds noise"),
        (TRUSTED_REPORT, {"certificate_confidence": 0.5}, "more than 0.5"),
    ],
)
def test_trusted_data_that_cannot_bound_the_threshold_are_refused(trusted_report, options, message):
    reports = [report_by_class(np.random.default_rng(k), f"s{k:02d}", 60) for k in range(5)]
    with pytest.raises(RobfcpError, match=f"trusted_report: .*{message}"):
        robfcp.calibrate(reports, trusted_report=trusted_report, defense="none", **options)


def test_the_record_keeps_the_trusted_report_so_that_the_round_can_be_recomputed(tmp_path):
    p, y = outputs(20, 400, 2)
    files = save_reports(
        tmp_path / "in", makers.reports_by_class([(p[k::9], y[k::9]) for k in range(8)], 2)
    )
    trusted_table = write_table(tmp_path / "own.csv", p[8::9], y[8::9])
    options = ["--guarantee", "pac", "--max-malicious", "1"]
    command_output(
        "calibrate", *files, *options, "-o", tmp_path / "c.json", "--trusted-data", trusted_table
    )
    calibration = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    assert f"on average over {len(p[8::9])} trusted samples" in calibration.statement
    assert verify_calibration(calibration) == []
    calibration.record.trusted_report.save(tmp_path / "own.json")
    command_output(
        "calibrate",
        *files,
        *options,
        "-o",
        tmp_path / "d.json",
        "--trusted-data",
        tmp_path / "own.json",
    )
    assert robfcp.Calibration.load(tmp_path / "d.json").threshold == calibration.threshold
    without_trusted = replace(calibration.record, trusted_report=None)
    assert verify_calibration(calibration.with_record(without_trusted)) != []


@pytest.mark.effort
@pytest.mark.parametrize("n", [3, 12, 60])
def test_the_local_lambda_range_controls_the_risk_whatever_the_peers_report(n):
    """The loss is the fraction of three labels missed, each with probability 1 - sqrt(lambda)."""
    rng = np.random.default_rng(n)
    lambdas = np.linspace(0, 1, 101)
    losses_at_thresholds = []
    uppers = []
    max_loss = max(0.1 + (0.09 / n) ** 0.5, 2 / (n + 1))
    resolution = robfcp.Risk("fnr").resolution
    for _ in range(cases(300)):
        losses = (rng.random((n, 3, 1)) ** 2 > lambdas).mean(axis=1)
        report = robfcp.Report.from_losses("a", losses, lambdas, risk="fnr")
        local = local_bounds.local_lambda_range(
            report.counts, n, resolution, Fraction(9, 10), report.binning.upper_edges
        )
        is_controlled = (losses.sum(axis=0) + 1) / (n + 1) <= max_loss + 1e-9
        assert local.lower == lambdas[is_controlled.argmax()]
        assert local.marginal_lower == pytest.approx(1 - max_loss)
        peer_thresholds = np.array([0.0, 0.81, 1.0])  # forged, true, forged
        losses_at_thresholds.append(
            1
            - np.sqrt(np.maximum(local.lower, np.minimum(peer_thresholds, local.upper)).clip(0, 1))
        )
        uppers.append(local.upper)
    mean = np.mean(losses_at_thresholds, axis=0)
    error = np.std(losses_at_thresholds, axis=0) / len(losses_at_thresholds) ** 0.5
    assert (mean <= max_loss + 3 * error).all()
    assert (
        mean[2] <= mean[1] <= 0.1 < max_loss
    )  # unclipped, the first forged threshold would miss all labels
    assert np.mean(np.array(uppers) < 0.81) <= 0.025
