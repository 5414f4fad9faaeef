"""Claimed noise: no client may have more than most, and no count weighs more than it allows."""

import numpy as np
import pytest
from makers import LAC, reports_of
from noises import draw

import robfcp
from robfcp import Binning, Federation, Privacy, Report
from robfcp.guarantees import count_bounds, fcp_bin_index

BINNING = Binning.uniform(200)
N_CLIENTS, N_SAMPLES = 40, 500
FRESH = np.random.default_rng(1).beta(1, 3, 100_000)
BENIGN = reports_of(np.random.default_rng(0).beta(1, 3, (N_CLIENTS, N_SAMPLES)), binning=BINNING)
COUNTS = BENIGN[0].counts
SIZES = {f"site-{k:02d}": N_SAMPLES for k in range(N_CLIENTS)}


def private(name, epsilon=1.0, counts=None, seed=0, **more):
    """A report that claims noise; without counts it holds the noise."""
    privacy = Privacy(epsilon, **more)
    if counts is None:
        rng = np.random.default_rng(seed)
        counts = BINNING.counts(rng.beta(1, 3, N_SAMPLES)) + draw(
            rng, privacy.noise, (BINNING.n_bins,)
        )
    n_samples = None if privacy.protects_sample_size else N_SAMPLES
    return Report(name, counts, BINNING, LAC, n_samples=n_samples, privacy=privacy)


def crafted_counts(size=100_000):
    """Counts of one client: `size` in the first bin, as much removed from the last."""
    counts = np.zeros(BINNING.n_bins, dtype=np.int64)
    counts[[0, -1]] = size, N_SAMPLES - size
    return counts


def coverage(calibration):
    return float(np.mean(calibration.threshold >= FRESH))


@pytest.mark.parametrize(
    ("budgets", "sizes"), [([None], None), ([1.0], SIZES), ([0.8, 1.0, 1.2, 1.4], None)]
)
def test_a_malicious_client_cannot_claim_noise_that_no_other_client_has(budgets, sizes):
    benign = [
        report if (budget := budgets[k % len(budgets)]) is None else private(client, budget, seed=k)
        for k, (client, report) in enumerate(zip(SIZES, BENIGN, strict=True))
    ]
    reports = [private("site-00", 2e-5, crafted_counts()), *benign[1:]]
    calibration = robfcp.calibrate(
        Federation.from_reports([r.to_json() for r in reports], registered_sizes=sizes)
    )
    (reason,) = (
        rejected.reason for rejected in calibration.rejected_reports if rejected.client == "site-00"
    )
    assert "claims more noise than most reports hold, and none was agreed on" in reason
    assert 0.88 < coverage(calibration) < 0.93


@pytest.mark.parametrize("neighbors", ["substitution", "add-remove"])
@pytest.mark.parametrize("end", ["bottom", "top"])
def test_a_malicious_client_with_the_noise_of_all_moves_little_more_than_its_samples(
    neighbors, end
):
    benign = [private(f"site-{k:02d}", seed=k, neighbors=neighbors) for k in range(1, N_CLIENTS)]
    step = np.where(np.arange(BINNING.n_bins) < 100, 40, -40)
    counts = crafted_counts(size=N_SAMPLES) + (step if end == "bottom" else -step)
    malicious = private("site-00", counts=counts, neighbors=neighbors)
    without, attacked = (
        robfcp.calibrate(r, defense="none") for r in (benign, [malicious, *benign])
    )
    assert (
        abs(coverage(attacked) - coverage(without))
        < (N_SAMPLES + 3 * 10 * 2.9) / (N_CLIENTS * N_SAMPLES) + 0.01
    )


def test_counts_held_within_their_noise_stay_unbiased(monkeypatch):
    monkeypatch.setattr("robfcp.guarantees._count_bounds.isotonic_fit", lambda pooled: pooled)
    rng = np.random.default_rng(4)
    fractions = np.diff(BINNING.edges**0.3)
    for epsilon in (0.1, 1.0):
        privacy, moved, edges = Privacy(epsilon), [], []
        for _ in range(30):
            true = rng.multinomial(N_SAMPLES, fractions, N_CLIENTS)
            noisy = true + draw(rng, privacy.noise, true.shape)
            federation = Federation.from_counts(
                noisy, BINNING, privacy=privacy, sample_sizes=[N_SAMPLES] * N_CLIENTS
            )
            bounds = count_bounds(federation)
            raw = bounds.estimates(np.arange(BINNING.n_bins)).sum(axis=1) / 2
            moved.append(bounds.pooled_counts(None) - raw)
            edges.append(
                fcp_bin_index(federation, 0.9) - fcp_bin_index(Federation.from_counts(true), 0.9)
            )
        spread = np.sqrt(
            federation.noise_variances.sum()
            * np.minimum(bounds.noise_model.n_draws, BINNING.n_bins / 4)
        )
        assert (np.abs(np.mean(moved, axis=0)) <= 0.05 * spread).all()
        assert (np.mean(moved, axis=0) != 0).any()
        assert abs(np.mean(edges)) < 4 * np.std(edges) / np.sqrt(30) + 0.5


def reports_with_budgets(*budgets):
    """Reports of clients a, b, ... with equal counts and these budgets."""
    marks = [None if epsilon is None else Privacy(epsilon) for epsilon in budgets]
    return [
        Report(client, COUNTS, BINNING, n_samples=N_SAMPLES, privacy=privacy)
        for client, privacy in zip("abcd", marks, strict=False)
    ]


@pytest.mark.parametrize(
    ("budgets", "accepted"),
    [
        ((None, None, 1), "ab"),
        ((None, 1, 1), "abc"),
        ((None, 1, 4), "ac"),  # the upper median: more noise than that is refused
        ((None, None, 1, 1), "abcd"),
        ((None, None, 1e6), "abc"),  # noise that never moves a count
        ((0.95, 1, 1, 1.05), "bcd"),
    ],
)
def test_no_report_claims_more_noise_than_most_hold(budgets, accepted):
    for sizes in (None, dict.fromkeys("abcd", N_SAMPLES)):
        assert (
            "".join(
                Federation.from_reports(
                    reports_with_budgets(*budgets), registered_sizes=sizes
                ).clients
            )
            == accepted
        )


def test_who_sends_many_reports_has_no_vote_on_the_noise():
    crowd = [private("x", 2e-5, crafted_counts(size=10**4 + k)) for k in range(9)]
    federation = Federation.from_reports(
        [*crowd, private("y", 2e-5, crafted_counts()), *BENIGN[:4]]
    )
    assert (federation.n_clients, len(federation.rejected_reports)) == (4, 2)


def test_no_client_hides_the_size_that_most_report():
    reports = [*BENIGN[:4], private("x", 1e6, COUNTS, neighbors="add-remove")]
    federation = Federation.from_reports(reports)
    assert federation.sizes_known
    assert "hides its size, which most reports state" in federation.rejected_reports[0].reason
    assert (
        Federation.from_reports(reports, registered_sizes={**SIZES, "x": N_SAMPLES}).n_clients == 5
    )


@pytest.mark.parametrize("n_hidden", range(7))
def test_a_size_may_be_hidden_where_at_least_half_of_the_reports_hide_theirs(n_hidden):
    # Half the epsilon under add-remove is the same noise: one sample changes half as many counts.
    hidden = [private(f"h{k}", 1.0, neighbors="add-remove") for k in range(n_hidden)]
    visible = [private(f"s{k}", 2.0) for k in range(6 - n_hidden)]
    federation = Federation.from_reports([*hidden, *visible])
    may_hide = 2 * n_hidden >= 6
    assert federation.n_clients == (6 if may_hide else 6 - n_hidden)
    assert federation.sizes_known == (n_hidden == 0 or not may_hide)


def test_privacy_can_be_agreed():
    federation = Federation.from_reports(reports_with_budgets(1.0, 2.0, None), privacy=Privacy(2.0))
    assert federation.clients == ("b",)
    assert "is not private, but agreed was" in federation.rejected_reports[1].reason


def test_a_note_names_the_noise_of_each_client_and_the_file_does_not():
    calibration = robfcp.calibrate(reports_with_budgets(1, 1, 4, None), defense="none")
    private_note = "noise: laplace of scale 0.5 in c; laplace of scale 2 in a, b; none in d"
    public_note = f"3 of 4 reports are private, at least {Privacy(4).statement}."
    assert calibration.notes == (private_note, public_note)
    assert private_note not in calibration.to_json().decode()
    variances = [Privacy(epsilon).noise.variance for epsilon in (1, 1, 4)]
    np.testing.assert_allclose(calibration.federation.noise_variances, [*variances, 0])
