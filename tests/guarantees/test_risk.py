"""Risk control: the same rule for losses, against brute force, other libraries and liars."""

import json
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from makers import said
from noises import draw
from scipy.stats import binom

import robfcp
from robfcp import Federation, Privacy, Report, Risk
from robfcp.errors import ReportError, RobfcpError
from robfcp.guarantees import ClientIntervals, count_bounds, marginal_threshold_bin
from robfcp.guarantees._heterogeneity import estimate_heterogeneity, prune_clients
from robfcp.page._data import PageInfo, page_data

LAMBDAS = np.linspace(0, 1, 21)


def outputs(rng, n=80, classes=5, sharp=2.0):
    """Probabilities of several labels a sample, and labels drawn from them."""
    p = rng.beta(0.6, 0.6 * sharp, (n, classes))
    return p, (rng.random((n, classes)) < p).astype(int)


def loss_table(p, y, lambdas=LAMBDAS):
    """(n, L) share of the true labels whose 1 - p exceeds lambda, by a plain loop."""
    table = np.zeros((len(p), len(lambdas)))
    for i, (row, truth) in enumerate(zip(p, y, strict=True)):
        scores = [1 - v for v, t in zip(row, truth, strict=True) if t]
        for j, limit in enumerate(lambdas):
            table[i, j] = np.mean([s > limit for s in scores]) if scores else 0.0
    return table


def reports(rng, n_clients=6, n=40, **options):
    made = []
    for k in range(n_clients):
        p, y = outputs(rng, n)
        made += [Report.from_losses(f"site-{k}", loss_table(p, y), LAMBDAS, risk="fnr", **options)]
    return made


@pytest.mark.parametrize("classes", [3, 12, 30])
def test_labels_and_losses_give_the_same_report_which_adds_up(classes):
    """In whole parts: exact where a twelfth divides every loss, else never too small."""
    p, y = outputs(np.random.default_rng(classes), classes=classes)
    y[3] = 0  # nothing to miss
    binning = robfcp.Binning.uniform(20)
    table, n = loss_table(p, y, binning.upper_edges), len(p)
    given = Report.from_losses("a", table, binning.upper_edges, risk="fnr")
    for report, bins in (
        (Report.from_multilabel("a", p, y, binning, min_cell_count=1), 20),
        (given, -1),
    ):
        unit = report.risk.resolution
        assert (report.counts.sum(), report.n_samples) == (n * unit, n)
        lost = n - np.cumsum(report.counts)[:bins] / unit
        np.testing.assert_allclose(lost, table.sum(axis=0), atol=n / 27720 + 1e-9)
        assert (lost >= table.sum(axis=0) - 1e-9).all()
        if classes <= 12:
            np.testing.assert_allclose(lost, table.sum(axis=0), atol=1e-9)
    rough = -np.sort(-np.random.default_rng(12).random((50, 21)), axis=1)
    _, gains, number = Risk("x", resolution=7).count_loss_drops(rough, np.arange(21))
    assert (number - np.cumsum(gains)[:-1] / 7 >= rough.sum(axis=0) - 1e-9).all()


def brute(federation, alpha, m, level_of_one):
    """The first lambda at which every plausible S has summed loss + B <= alpha N_S; else none."""
    unit = federation.counts_per_sample
    below = np.cumsum(federation.counts, axis=1)
    k = federation.n_clients
    for edge in range(federation.binning.n_bins):
        good = True
        for size in range(k - m, k + 1):
            for kept in combinations(range(k), size):
                n = int(federation.sample_sizes[list(kept)].sum())
                lost = n - Fraction(int(below[list(kept), edge].sum()), unit)
                charge = 1 if k > 1 else level_of_one
                good &= lost + charge <= alpha * n
        if good:
            return edge
    return None


@pytest.mark.parametrize("number", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_the_lambda_is_the_worst_over_all_removals(number):
    rng = np.random.default_rng(1)
    finite = 0
    for _ in range(number):
        n_clients = int(rng.integers(1, 6))
        sizes = rng.integers(3, 60, n_clients)
        risk = Risk("fnr", resolution=int(rng.choice([1, 12, 360])))
        shares = rng.dirichlet(np.linspace(1.5, 0.2, 8), n_clients)
        counts = rng.multinomial(sizes * risk.resolution, shares)
        made = [
            Report(f"s{k}", row, robfcp.Binning.uniform(8), n_samples=int(n), risk=risk)
            for k, (row, n) in enumerate(zip(counts, sizes, strict=True))
        ]
        federation = Federation.from_reports(made)
        alpha, m = Fraction(int(rng.integers(1, 9)), 10), int(rng.integers(0, n_clients))
        found = marginal_threshold_bin(federation, 1 - alpha, m)
        assert found == brute(federation, alpha, m, 1 - alpha)
        finite += found is not None
    assert finite > 0.2 * number


def test_one_client_and_nobody_lying_is_conformal_risk_control():
    """The first lambda with n/(n+1) R + B/(n+1) <= alpha (Angelopoulos et al.)."""
    rng = np.random.default_rng(2)
    for alpha in (0.05, 0.1, 0.3):
        p, y = outputs(rng, 150)
        table = loss_table(p, y)
        n = len(p)
        good = np.flatnonzero(n / (n + 1) * table.mean(axis=0) + 1 / (n + 1) <= alpha + 1e-12)
        report = Report.from_losses("a", table, LAMBDAS, risk="fnr")
        for promise in (None, robfcp.MarginalGuarantee(0)):
            calibration = robfcp.calibrate([report], risk_level=alpha, guarantee=promise)
            assert calibration.threshold == LAMBDAS[good[0]]


def test_the_whole_way_by_files(tmp_path):
    rng, out, page = np.random.default_rng(4), tmp_path / "c.json", tmp_path / "p.html"
    for k in range(5):
        p, y = outputs(rng, 120)
        np.savez(tmp_path / f"{k}.npz", probabilities=p, labels=y)
        sent = ["-c", f"s{k}", "-o", tmp_path / f"r{k}.json", "--risk", "fnr"]
        said("report", tmp_path / f"{k}.npz", *sent)
    asked = ["--risk", "0.2", "--liars", "1", "--promise", "marginal", "-o", out, "--html", page]
    told = said("calibrate", *tmp_path.glob("r*.json"), *asked)
    assert "mean fnr is at most 20%" in " ".join(told.split())
    assert "A mean fnr of at most 20% is guaranteed" in page.read_text()
    np.savez(tmp_path / "t.npz", probabilities=p, labels=y)
    assert json.loads(said("predict", out, tmp_path / "t.npz", "--json"))["fnr"] < 0.25
    assert robfcp.Calibration.load(out).risk == Risk("fnr")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_samples": 39}, "fall by"),
        ({"counts": [-1] + [0] * 21}, "negative"),
        ({"risk": {"name": "fnr", "bound": -1, "resolution": 27720}}, "bound"),
        ([[0.2, 0.5]], "rise with lambda"),
        ([[np.nan, 0]], "leave"),
        ([[0.5]], "shape"),
    ],
)
def test_broken_reports_and_losses_that_cannot_be_are_refused_in_words(change, words):
    if isinstance(change, list):
        with pytest.raises(RobfcpError, match=f"site-1: losses: .*{words}"):
            Report.from_losses("site-1", change, [0.1, 0.5], risk="fnr")
        return
    report = reports(np.random.default_rng(6), 1)[0]
    assert Report.from_json(report.to_json()) == report
    message = json.loads(report.to_json()) | change
    with pytest.raises(ReportError, match=words) as caught:
        Report.from_json(json.dumps(message))
    assert caught.value.client == "site-0"


def test_losses_and_scores_do_not_mix_and_each_is_asked_for_by_its_own_word():
    losses, scores = reports(np.random.default_rng(7), 3), Report.from_scores("x", [0.3] * 40)
    calibration = robfcp.calibrate([*losses, scores], risk_level=0.3)
    assert [fault.client for fault in calibration.rejected_reports] == ["x"]
    for sent, asked, words in (
        (losses, {}, "state the mean loss"),
        ([scores], {"risk_level": 0.1}, "hold no losses"),
        (
            losses,
            {"risk_level": 0.3, "guarantee": robfcp.LabelShiftGuarantee(1)},
            "not proved for losses",
        ),
        (losses, {"risk_level": 1.5}, "1.5 is not in"),
    ):
        with pytest.raises(RobfcpError, match=words):
            robfcp.calibrate(sent, **asked)


def test_weights_and_pixels_are_losses_too():
    p, y = outputs(np.random.default_rng(9), 30, classes=4)
    heavy, edge = (10.0, 1.0, 1.0, 1.0), 500
    report = Report.from_multilabel("a", p, y, weights=heavy, min_cell_count=1)
    lost = 30 - np.cumsum(report.counts)[edge] / report.risk.resolution
    sets = 1 - p <= report.grid.upper_edges[edge]
    assert lost == pytest.approx(report.risk.multilabel_losses(sets, y, heavy).sum(), abs=0.01)
    flat, pixels = (
        Report.from_multilabel("a", one, two, risk="miss-rate", min_cell_count=1)
        for one, two in ((p, y), (p.reshape(30, 2, 2), y.reshape(30, 2, 2)))
    )
    np.testing.assert_array_equal(pixels.counts, flat.counts)


def test_private_losses_hold_with_their_noise_and_huge_budgets_change_nothing():
    rng, found = np.random.default_rng(10), {}
    tables = [loss_table(*outputs(rng, 300)) for _ in range(8)]
    made = {"risk": Risk("fnr", resolution=360)}
    for epsilon in (None, 1e6, 3.0):
        made["privacy"] = None if epsilon is None else Privacy(epsilon)
        sent = [Report.from_losses(f"s{k}", t, LAMBDAS, **made) for k, t in enumerate(tables)]
        asked = {"risk_level": 0.25, "defense": "none", "guarantee": robfcp.PACGuarantee(1)}
        found[epsilon] = robfcp.calibrate(sent, **asked).threshold
    assert found[None] == found[1e6] <= found[3.0] + 0.051
    hidden = Privacy(1, neighbours="add-remove")
    with pytest.raises(RobfcpError, match="add-remove"):
        Report.from_losses("a", tables[0], LAMBDAS, risk="fnr", privacy=hidden)


PRIVATE_RISK = Risk("fnr", resolution=60)


def private_losses(rng, shares, n=2000, epsilon=4.0):
    """Losses with noise: every sample's falls by half at each of two bins of its client's shares.

    Returns the counts without noise too, of shape (K, H).
    """
    halves = rng.multinomial(2 * n, shares)
    counts = PRIVATE_RISK.resolution // 2 * halves
    privacy = Privacy(epsilon)
    noise = draw(rng, privacy.noise_for_counts(PRIVATE_RISK.resolution), counts.shape)
    binning = robfcp.Binning.uniform(counts.shape[1])
    reports = [
        Report(f"s{k}", row, binning, n_samples=n, risk=PRIVATE_RISK, privacy=privacy)
        for k, row in enumerate(counts + noise)
    ]
    return Federation.from_reports(reports), counts


def test_each_clients_interval_holds_its_mean_gain_though_losses_are_private():
    """The bounds on its counts, and the interval of its mean gain, fail as rarely as stated."""
    rng = np.random.default_rng(20)
    shares = rng.dirichlet(np.full(8, 2.0), 5)
    mean_gains = np.cumsum(shares, axis=1)[:, :-1].T
    delta, beta, n_runs = 0.1, 0.2, 100
    misses = np.zeros((2, *mean_gains.shape))
    n_missed_runs = 0
    for _ in range(n_runs):
        federation, counts = private_losses(rng, shares)
        cumulative = np.cumsum(counts, axis=1)[:, :-1].T
        lowest, highest = count_bounds(federation).per_client(np.arange(7), delta)
        misses += [lowest > cumulative, highest < cumulative]
        intervals = ClientIntervals(federation, beta)
        is_held = (intervals.low <= mean_gains) & (mean_gains <= intervals.high)
        n_missed_runs += not is_held.all()
        assert (intervals.high - intervals.low).max() < 0.2  # not held by saying nothing
    assert (binom.sf(misses - 1, n_runs, delta) > 1e-4).all()
    assert binom.sf(n_missed_runs - 1, n_runs, beta) > 1e-4


def test_a_client_whose_private_losses_are_clearly_different_is_dropped():
    rng = np.random.default_rng(21)
    shares = np.tile(np.full(8, 1 / 8), (8, 1))
    shares[3] = np.eye(8)[7]
    federation, _ = private_losses(rng, shares)
    pruning = prune_clients(federation, 1, 0.05, 0.01)
    assert list(pruning.pruned_at) == ["s3"]
    assert not pruning.is_contradicted
    guarantee = robfcp.PACGuarantee(1, alike=0.05)
    found = robfcp.calibrate(federation, risk_level=0.25, guarantee=guarantee, defense="none")
    assert "1 sites that cannot be honest were dropped first" in str(found.certificate)


def test_noise_in_losses_is_not_taken_for_heterogeneity():
    """Clients that are all alike: what noise alone produces contradicts nothing."""
    rng = np.random.default_rng(23)
    shares = np.full((8, 8), 1 / 8)
    for epsilon in (0.05, 0.1, 0.5):
        federation, _ = private_losses(rng, shares, 300, epsilon)
        estimate = estimate_heterogeneity(federation, 1, 0.999)
        assert estimate.lower_bound == 0
        assert estimate.recommended < 0.1


def test_of_many_bins_those_compared_are_spread_over_the_mean_gains():
    """Clients that differ only in the middle are told apart."""
    rng = np.random.default_rng(22)
    n_bins, n = 400, 2000
    shares = np.full((8, n_bins), 1 / n_bins)
    shares[3, n_bins // 4 : n_bins // 2] = 0
    shares[3, n_bins // 2] += 1 / 4
    counts = PRIVATE_RISK.resolution // 2 * rng.multinomial(2 * n, shares)
    reports = [
        Report(f"s{k}", row, robfcp.Binning.uniform(n_bins), n_samples=n, risk=PRIVATE_RISK)
        for k, row in enumerate(counts)
    ]
    federation = Federation.from_reports(reports)
    bins = ClientIntervals(federation, 0.05).bins
    assert bins[0] < n_bins // 20
    assert bins[-1] > n_bins * 9 // 10
    assert list(prune_clients(federation, 1, 0.05, 0.01).pruned_at) == ["s3"]


def test_every_sentence_names_the_loss_in_its_units():
    """Losses up to 2, of which 0.2 is wanted; one site's are far larger."""
    rng, steps = np.random.default_rng(0), np.linspace(0, 1, 21)
    reports = []
    for k in range(8):
        worst = rng.beta(*((30, 2) if k == 7 else (2, 2)), (100, 1))
        losses = 2 * np.clip(worst - steps, 0, 1)
        reports.append(Report.from_losses(f"s{k}", losses, steps, risk=robfcp.Risk("cost", 2)))
    found = robfcp.calibrate(
        reports, risk_level=0.2, guarantee=robfcp.PACGuarantee(1), defense="none"
    )
    page, letter = page_data(found, PageInfo()), found.feedback("s7").sentence
    assert "for a mean cost of at most 0.2\n" in str(found)
    for words in (letter, page["diagnoses"]["s7"]["fact"]):
        assert "own mean cost is 0.5" in words
        assert "where 0.2 is wanted" in words
    assert page["risk"]["bound"] == 2
    assert dict(page["audit"])["wanted"] == "a mean cost of at most 0.2"
    said = [str(found), repr(found), letter, *page["message"].values(), *page["headline"].values()]
    assert not any(word in one for one in said for word in ("cover", "missed", "true label"))
    for look in (lambda: found.evaluate([[0.5, 0.5]], [0]), lambda: robfcp.Monitor(found)):
        with pytest.raises(robfcp.RobfcpError, match=r"promises a mean cost of at most 0\.2, not"):
            look()
