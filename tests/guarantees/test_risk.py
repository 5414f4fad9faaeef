"""Risk control: the guarantees for losses, against brute force and closed forms."""

import json
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from makers import command_output
from noises import draw
from scipy.stats import binom

import robfcp
from robfcp import Federation, Privacy, Report, Risk
from robfcp.errors import ReportError, RobfcpError
from robfcp.guarantees import ClientIntervals, count_bounds, marginal_threshold_bin
from robfcp.guarantees._heterogeneity import estimate_heterogeneity, prune_clients
from robfcp.page._data import PageInfo, page_data

LAMBDAS = np.linspace(0, 1, 21)


def outputs(rng, n=80, classes=5, sharpness=2.0):
    """Return multilabel probabilities of samples, and labels drawn from them."""
    p = rng.beta(0.6, 0.6 * sharpness, (n, classes))
    return p, (rng.random((n, classes)) < p).astype(int)


def loss_table(p, y, lambdas=LAMBDAS):
    """Return the (n, L) fraction of true labels whose 1 - p exceeds lambda, by a plain loop."""
    table = np.zeros((len(p), len(lambdas)))
    for i, (row, truth) in enumerate(zip(p, y, strict=True)):
        scores = [
            1 - probability for probability, is_true in zip(row, truth, strict=True) if is_true
        ]
        for j, threshold in enumerate(lambdas):
            table[i, j] = np.mean([s > threshold for s in scores]) if scores else 0.0
    return table


def reports(rng, n_clients=6, n=40, **options):
    loss_reports = []
    for k in range(n_clients):
        p, y = outputs(rng, n)
        loss_reports += [
            Report.from_losses(f"site-{k}", loss_table(p, y), LAMBDAS, risk="fnr", **options)
        ]
    return loss_reports


@pytest.mark.parametrize("classes", [3, 12, 30])
def test_labels_and_losses_give_the_same_report_of_the_summed_loss(classes):
    """In integers: exact where a twelfth divides every loss, else never too small."""
    p, y = outputs(np.random.default_rng(classes), classes=classes)
    y[3] = 0  # nothing to miss
    binning = robfcp.Binning.uniform(20)
    table, n = loss_table(p, y, binning.upper_edges), len(p)
    of_losses = Report.from_losses("a", table, binning.upper_edges, risk="fnr")
    for report, bins in (
        (Report.from_multilabel("a", p, y, binning, min_cell_count=1), 20),
        (of_losses, -1),
    ):
        resolution = report.risk.resolution
        assert (report.counts.sum(), report.n_samples) == (n * resolution, n)
        summed_loss = n - np.cumsum(report.counts)[:bins] / resolution
        np.testing.assert_allclose(summed_loss, table.sum(axis=0), atol=n / 27720 + 1e-9)
        assert (summed_loss >= table.sum(axis=0) - 1e-9).all()
        if classes <= 12:
            np.testing.assert_allclose(summed_loss, table.sum(axis=0), atol=1e-9)
    losses = -np.sort(-np.random.default_rng(12).random((50, 21)), axis=1)
    _, loss_drops, n_samples = Risk("x", resolution=7).count_loss_drops(losses, np.arange(21))
    assert (n_samples - np.cumsum(loss_drops)[:-1] / 7 >= losses.sum(axis=0) - 1e-9).all()


def brute(federation, alpha, m, level_of_one):
    """Return the first bin where every plausible S has summed loss + B <= alpha N_S, or None."""
    counts_per_sample = federation.counts_per_sample
    cumulative = np.cumsum(federation.counts, axis=1)
    k = federation.n_clients
    for bin_index in range(federation.binning.n_bins):
        is_accepted = True
        for size in range(k - m, k + 1):
            for remaining in combinations(range(k), size):
                n = int(federation.sample_sizes[list(remaining)].sum())
                summed_loss = n - Fraction(
                    int(cumulative[list(remaining), bin_index].sum()), counts_per_sample
                )
                correction = 1 if k > 1 else level_of_one
                is_accepted &= summed_loss + correction <= alpha * n
        if is_accepted:
            return bin_index
    return None


@pytest.mark.parametrize("n_trials", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_the_lambda_is_the_largest_over_all_removals(n_trials):
    rng = np.random.default_rng(1)
    finite = 0
    for _ in range(n_trials):
        n_clients = int(rng.integers(1, 6))
        sizes = rng.integers(3, 60, n_clients)
        risk = Risk("fnr", resolution=int(rng.choice([1, 12, 360])))
        fractions = rng.dirichlet(np.linspace(1.5, 0.2, 8), n_clients)
        counts = rng.multinomial(sizes * risk.resolution, fractions)
        loss_reports = [
            Report(f"s{k}", row, robfcp.Binning.uniform(8), n_samples=int(n), risk=risk)
            for k, (row, n) in enumerate(zip(counts, sizes, strict=True))
        ]
        federation = Federation.from_reports(loss_reports)
        alpha, m = Fraction(int(rng.integers(1, 9)), 10), int(rng.integers(0, n_clients))
        bin_index = marginal_threshold_bin(federation, 1 - alpha, m)
        assert bin_index == brute(federation, alpha, m, 1 - alpha)
        finite += bin_index is not None
    assert finite > 0.2 * n_trials


def test_one_benign_client_is_conformal_risk_control():
    """The first lambda with n/(n+1) R + B/(n+1) <= alpha (Angelopoulos et al.)."""
    rng = np.random.default_rng(2)
    for alpha in (0.05, 0.1, 0.3):
        p, y = outputs(rng, 150)
        table = loss_table(p, y)
        n = len(p)
        accepted = np.flatnonzero(n / (n + 1) * table.mean(axis=0) + 1 / (n + 1) <= alpha + 1e-12)
        report = Report.from_losses("a", table, LAMBDAS, risk="fnr")
        for guarantee in (None, robfcp.MarginalGuarantee(0)):
            calibration = robfcp.calibrate([report], risk_level=alpha, guarantee=guarantee)
            assert calibration.threshold == LAMBDAS[accepted[0]]


def test_risk_control_from_reports_to_predictions_by_the_command_line(tmp_path):
    rng = np.random.default_rng(4)
    calibration_path = tmp_path / "c.json"
    page_path = tmp_path / "p.html"
    for k in range(5):
        p, y = outputs(rng, 120)
        np.savez(tmp_path / f"{k}.npz", probabilities=p, labels=y)
        arguments = ["-c", f"s{k}", "-o", tmp_path / f"r{k}.json", "--risk", "fnr"]
        command_output("report", tmp_path / f"{k}.npz", *arguments)
    options = [
        "--risk-level",
        "0.2",
        "--max-malicious",
        "1",
        "--guarantee",
        "marginal",
        "-o",
        calibration_path,
        "--html",
        page_path,
    ]
    printed = command_output("calibrate", *tmp_path.glob("r*.json"), *options)
    assert "mean fnr is at most 20%" in " ".join(printed.split())
    assert "A mean fnr of at most 20% is guaranteed" in page_path.read_text()
    np.savez(tmp_path / "t.npz", probabilities=p, labels=y)
    assert (
        json.loads(command_output("predict", calibration_path, tmp_path / "t.npz", "--json"))["fnr"]
        < 0.25
    )
    assert robfcp.Calibration.load(calibration_path).risk == Risk("fnr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_samples": 39}, "fall by"),
        ({"counts": [-1] + [0] * 21}, "negative"),
        ({"risk": {"name": "fnr", "upper_bound": -1, "resolution": 27720}}, "bound"),
        ([[0.2, 0.5]], "rise with lambda"),
        ([[np.nan, 0]], "leave"),
        ([[0.5]], "shape"),
    ],
)
def test_broken_reports_and_impossible_losses_are_refused(change, message):
    if isinstance(change, list):
        with pytest.raises(RobfcpError, match=f"site-1: losses: .*{message}"):
            Report.from_losses("site-1", change, [0.1, 0.5], risk="fnr")
        return
    report = reports(np.random.default_rng(6), 1)[0]
    assert Report.from_json(report.to_json()) == report
    broken = json.loads(report.to_json()) | change
    with pytest.raises(ReportError, match=message) as caught:
        Report.from_json(json.dumps(broken))
    assert caught.value.client == "site-0"


def test_losses_and_scores_do_not_mix_and_have_their_own_argument():
    losses = reports(np.random.default_rng(7), 3)
    scores = Report.from_scores("x", [0.3] * 40)
    calibration = robfcp.calibrate([*losses, scores], risk_level=0.3)
    assert [rejected.client for rejected in calibration.rejected_reports] == ["x"]
    for passed_reports, options, message in (
        (losses, {}, "give risk_level, the mean loss"),
        ([scores], {"risk_level": 0.1}, "hold no losses"),
        (
            losses,
            {"risk_level": 0.3, "guarantee": robfcp.LabelShiftGuarantee(1)},
            "not proved for losses",
        ),
        (losses, {"risk_level": 1.5}, "1.5 is not in"),
    ):
        with pytest.raises(RobfcpError, match=message):
            robfcp.calibrate(passed_reports, **options)


def test_weights_and_pixels_are_losses_too():
    p, y = outputs(np.random.default_rng(9), 30, classes=4)
    weights, bin_index = (10.0, 1.0, 1.0, 1.0), 500
    report = Report.from_multilabel("a", p, y, weights=weights, min_cell_count=1)
    summed_loss = 30 - np.cumsum(report.counts)[bin_index] / report.risk.resolution
    sets = 1 - p <= report.binning.upper_edges[bin_index]
    assert summed_loss == pytest.approx(
        report.risk.multilabel_losses(sets, y, weights).sum(), abs=0.01
    )
    flat, pixels = (
        Report.from_multilabel("a", probabilities, labels, risk="miss-rate", min_cell_count=1)
        for probabilities, labels in ((p, y), (p.reshape(30, 2, 2), y.reshape(30, 2, 2)))
    )
    np.testing.assert_array_equal(pixels.counts, flat.counts)


def test_private_losses_allow_for_their_noise_and_a_huge_epsilon_changes_nothing():
    rng, thresholds = np.random.default_rng(10), {}
    tables = [loss_table(*outputs(rng, 300)) for _ in range(8)]
    report_options = {"risk": Risk("fnr", resolution=360)}
    for epsilon in (None, 1e6, 3.0):
        report_options["privacy"] = None if epsilon is None else Privacy(epsilon)
        passed_reports = [
            Report.from_losses(f"s{k}", t, LAMBDAS, **report_options) for k, t in enumerate(tables)
        ]
        options = {"risk_level": 0.25, "defense": "none", "guarantee": robfcp.PACGuarantee(1)}
        thresholds[epsilon] = robfcp.calibrate(passed_reports, **options).threshold
    assert thresholds[None] == thresholds[1e6] <= thresholds[3.0] + 0.051
    hidden = Privacy(1, neighbors="add-remove")
    with pytest.raises(RobfcpError, match="add-remove"):
        Report.from_losses("a", tables[0], LAMBDAS, risk="fnr", privacy=hidden)


PRIVATE_RISK = Risk("fnr", resolution=60)


def private_losses(rng, fractions, n=2000, epsilon=4.0):
    """Return private losses, each of which falls by half at two bins drawn from `fractions`.

    Returns the counts without noise too, of shape (K, H).
    """
    half_losses = rng.multinomial(2 * n, fractions)
    counts = PRIVATE_RISK.resolution // 2 * half_losses
    privacy = Privacy(epsilon)
    noise = draw(rng, privacy.noise_for_counts(PRIVATE_RISK.resolution), counts.shape)
    binning = robfcp.Binning.uniform(counts.shape[1])
    reports = [
        Report(f"s{k}", row, binning, n_samples=n, risk=PRIVATE_RISK, privacy=privacy)
        for k, row in enumerate(counts + noise)
    ]
    return Federation.from_reports(reports), counts


def test_the_interval_of_each_client_contains_its_mean_loss_drop_though_losses_are_private():
    """Bounds on its counts, and the interval of its mean loss drop, fail as rarely as stated."""
    rng = np.random.default_rng(20)
    fractions = rng.dirichlet(np.full(8, 2.0), 5)
    mean_drops = np.cumsum(fractions, axis=1)[:, :-1].T
    delta, beta, n_runs = 0.1, 0.2, 100
    misses = np.zeros((2, *mean_drops.shape))
    n_missed_runs = 0
    for _ in range(n_runs):
        federation, counts = private_losses(rng, fractions)
        cumulative = np.cumsum(counts, axis=1)[:, :-1].T
        lowest, highest = count_bounds(federation).per_client(np.arange(7), delta)
        misses += [lowest > cumulative, highest < cumulative]
        intervals = ClientIntervals(federation, beta)
        contains_mean = (intervals.low <= mean_drops) & (mean_drops <= intervals.high)
        n_missed_runs += not contains_mean.all()
        assert (
            intervals.high - intervals.low
        ).max() < 0.2  # and not because the intervals are vacuous
    assert (binom.sf(misses - 1, n_runs, delta) > 1e-4).all()
    assert binom.sf(n_missed_runs - 1, n_runs, beta) > 1e-4


def test_a_client_whose_private_losses_are_clearly_different_is_pruned():
    rng = np.random.default_rng(21)
    fractions = np.tile(np.full(8, 1 / 8), (8, 1))
    fractions[3] = np.eye(8)[7]
    federation, _ = private_losses(rng, fractions)
    pruning = prune_clients(federation, 1, 0.05, 0.01)
    assert list(pruning.pruned_at) == ["s3"]
    assert not pruning.is_contradicted
    guarantee = robfcp.PACGuarantee(1, heterogeneity=0.05)
    calibration = robfcp.calibrate(federation, risk_level=0.25, guarantee=guarantee, defense="none")
    assert "1 sites that cannot be honest were dropped first" in str(calibration.certificate)


def test_noise_in_losses_is_not_taken_for_heterogeneity():
    """Homogeneous clients: noise alone contradicts nothing."""
    rng = np.random.default_rng(23)
    fractions = np.full((8, 8), 1 / 8)
    for epsilon in (0.05, 0.1, 0.5):
        federation, _ = private_losses(rng, fractions, 300, epsilon)
        estimate = estimate_heterogeneity(federation, 1, 0.999)
        assert estimate.lower_bound == 0
        assert estimate.recommended < 0.1


def test_of_many_bins_those_compared_are_spread_over_the_mean_loss_drops():
    """Clients that differ only in the middle are distinguished."""
    rng = np.random.default_rng(22)
    n_bins, n = 400, 2000
    fractions = np.full((8, n_bins), 1 / n_bins)
    fractions[3, n_bins // 4 : n_bins // 2] = 0
    fractions[3, n_bins // 2] += 1 / 4
    counts = PRIVATE_RISK.resolution // 2 * rng.multinomial(2 * n, fractions)
    reports = [
        Report(f"s{k}", row, robfcp.Binning.uniform(n_bins), n_samples=n, risk=PRIVATE_RISK)
        for k, row in enumerate(counts)
    ]
    federation = Federation.from_reports(reports)
    bins = ClientIntervals(federation, 0.05).bins
    assert bins[0] < n_bins // 20
    assert bins[-1] > n_bins * 9 // 10
    assert list(prune_clients(federation, 1, 0.05, 0.01).pruned_at) == ["s3"]


def test_all_texts_name_the_loss_in_its_units():
    """Losses up to 2, with a target of 0.2; those of one client are far larger."""
    rng, steps = np.random.default_rng(0), np.linspace(0, 1, 21)
    reports = []
    for k in range(8):
        worst = rng.beta(*((30, 2) if k == 7 else (2, 2)), (100, 1))
        losses = 2 * np.clip(worst - steps, 0, 1)
        reports.append(Report.from_losses(f"s{k}", losses, steps, risk=robfcp.Risk("cost", 2)))
    calibration = robfcp.calibrate(
        reports, risk_level=0.2, guarantee=robfcp.PACGuarantee(1), defense="none"
    )
    page, feedback = page_data(calibration, PageInfo()), calibration.feedback("s7").sentence
    assert "for a mean cost of at most 0.2\n" in str(calibration)
    for text in (feedback, page["diagnoses"]["s7"]["coverage_text"]):
        assert "own mean cost is 0.5" in text
        assert "where 0.2 is wanted" in text
    assert page["risk"]["upper_bound"] == 2
    assert dict(page["audit"])["target"] == "a mean cost of at most 0.2"
    texts = [
        str(calibration),
        repr(calibration),
        feedback,
        *page["summary"].values(),
        *page["headline"].values(),
    ]
    assert not any(
        coverage_word in text
        for text in texts
        for coverage_word in ("cover", "missed", "true label")
    )
    for call in (
        lambda: calibration.evaluate([[0.5, 0.5]], [0]),
        lambda: robfcp.Monitor(calibration),
    ):
        with pytest.raises(robfcp.RobfcpError, match=r"promises a mean cost of at most 0\.2, not"):
            call()
