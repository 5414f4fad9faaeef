"""Claimed noise is a place to hide: nobody holds more than most, and no count weighs beyond it."""

import numpy as np
import pytest
from makers import LAC, reports_of
from noises import draw

import robfcp
from robfcp import Binning, Federation, Privacy, Report
from robfcp.guarantees import count_bounds, fcp_bin_index

GRID = Binning.uniform(200)
SITES, N = 40, 500
FRESH = np.random.default_rng(1).beta(1, 3, 100_000)
HONEST = reports_of(np.random.default_rng(0).beta(1, 3, (SITES, N)), binning=GRID)
COUNTS = HONEST[0].counts
SIZES = {f"site-{k:02d}": N for k in range(SITES)}


def private(name, epsilon=1.0, counts=None, seed=0, **more):
    """A report that claims noise; without counts it holds the noise."""
    privacy = Privacy(epsilon, **more)
    if counts is None:
        rng = np.random.default_rng(seed)
        counts = GRID.counts(rng.beta(1, 3, N)) + draw(rng, privacy.noise, (GRID.n_bins,))
    stated = None if privacy.protects_sample_size else N
    return Report(name, counts, GRID, LAC, n_samples=stated, privacy=privacy)


def ends(size=100_000):
    """Far more than there is in the first bin, as much taken off the last."""
    counts = np.zeros(GRID.n_bins, dtype=np.int64)
    counts[[0, -1]] = size, N - size
    return counts


def coverage(calibration):
    return float(np.mean(calibration.threshold >= FRESH))


@pytest.mark.parametrize(
    ("budgets", "sizes"), [([None], None), ([1.0], SIZES), ([0.8, 1.0, 1.2, 1.4], None)]
)
def test_one_liar_hides_behind_no_noise_that_nobody_else_holds(budgets, sizes):
    honest = [
        report if (budget := budgets[k % len(budgets)]) is None else private(client, budget, seed=k)
        for k, (client, report) in enumerate(zip(SIZES, HONEST, strict=True))
    ]
    sent = [private("site-00", 2e-5, ends()), *honest[1:]]
    found = robfcp.calibrate(
        Federation.from_reports([r.to_json() for r in sent], registered_sizes=sizes)
    )
    (refused,) = (fault.reason for fault in found.rejected_reports if fault.client == "site-00")
    assert "claims more noise than most reports hold, and none was agreed on" in refused
    assert 0.88 < coverage(found) < 0.93


@pytest.mark.parametrize("neighbours", ["substitution", "add-remove"])
@pytest.mark.parametrize("end", ["bottom", "top"])
def test_a_liar_with_the_noise_of_all_moves_no_more_than_its_samples_and_a_little(neighbours, end):
    honest = [private(f"site-{k:02d}", seed=k, neighbours=neighbours) for k in range(1, SITES)]
    step = np.where(np.arange(GRID.n_bins) < 100, 40, -40)
    counts = ends(size=N) + (step if end == "bottom" else -step)
    liar = private("site-00", counts=counts, neighbours=neighbours)
    without, found = (robfcp.calibrate(r, defense="none") for r in (honest, [liar, *honest]))
    assert abs(coverage(found) - coverage(without)) < (N + 3 * 10 * 2.9) / (SITES * N) + 0.01


def test_counts_held_within_their_noise_stay_unbiased(monkeypatch):
    monkeypatch.setattr("robfcp.guarantees._count_bounds.isotonic_fit", lambda pooled: pooled)
    rng = np.random.default_rng(4)
    shares = np.diff(GRID.edges**0.3)
    for epsilon in (0.1, 1.0):
        privacy, moved, edges = Privacy(epsilon), [], []
        for _ in range(30):
            true = rng.multinomial(N, shares, SITES)
            sent = true + draw(rng, privacy.noise, true.shape)
            federation = Federation.from_counts(
                sent, GRID, privacy=privacy, sample_sizes=[N] * SITES
            )
            bounds = count_bounds(federation)
            raw = bounds.estimates(np.arange(GRID.n_bins)).sum(axis=1) / 2
            moved.append(bounds.pooled_counts(None) - raw)
            edges.append(
                fcp_bin_index(federation, 0.9) - fcp_bin_index(Federation.from_counts(true), 0.9)
            )
        spread = np.sqrt(
            federation.noise_variances.sum()
            * np.minimum(bounds.noise_model.n_draws, GRID.n_bins / 4)
        )
        assert (np.abs(np.mean(moved, axis=0)) <= 0.05 * spread).all()
        assert (np.mean(moved, axis=0) != 0).any()
        assert abs(np.mean(edges)) < 4 * np.std(edges) / np.sqrt(30) + 0.5


def stating(*budgets):
    """Sites a, b, ... with equal counts and these budgets."""
    marks = [None if epsilon is None else Privacy(epsilon) for epsilon in budgets]
    return [
        Report(client, COUNTS, GRID, n_samples=N, privacy=privacy)
        for client, privacy in zip("abcd", marks, strict=False)
    ]


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ((None, None, 1), "ab"),
        ((None, 1, 1), "abc"),
        ((None, 1, 4), "ac"),  # the upper median: more noise than that is refused
        ((None, None, 1, 1), "abcd"),
        ((None, None, 1e6), "abc"),  # noise that never moves a count
        ((0.95, 1, 1, 1.05), "bcd"),
    ],
)
def test_no_report_claims_more_noise_than_most_hold(stated, kept):
    for sizes in (None, dict.fromkeys("abcd", N)):
        assert (
            "".join(Federation.from_reports(stating(*stated), registered_sizes=sizes).clients)
            == kept
        )


def test_who_sends_many_reports_has_no_vote_on_the_noise():
    crowd = [private("x", 2e-5, ends(size=10**4 + k)) for k in range(9)]
    found = Federation.from_reports([*crowd, private("y", 2e-5, ends()), *HONEST[:4]])
    assert (found.n_clients, len(found.rejected_reports)) == (4, 2)


def test_nobody_hides_the_size_that_most_state():
    sent = [*HONEST[:4], private("x", 1e6, COUNTS, neighbours="add-remove")]
    found = Federation.from_reports(sent)
    assert found.sizes_known
    assert "hides its size, which most reports state" in found.rejected_reports[0].reason
    assert Federation.from_reports(sent, registered_sizes={**SIZES, "x": N}).n_clients == 5


@pytest.mark.parametrize("n_hidden", range(7))
def test_a_size_may_be_hidden_where_at_least_half_of_the_reports_hide_theirs(n_hidden):
    # Half the epsilon under add-remove is the same noise: one sample changes half as many counts.
    hidden = [private(f"h{k}", 1.0, neighbours="add-remove") for k in range(n_hidden)]
    stated = [private(f"s{k}", 2.0) for k in range(6 - n_hidden)]
    found = Federation.from_reports([*hidden, *stated])
    may_hide = 2 * n_hidden >= 6
    assert found.n_clients == (6 if may_hide else 6 - n_hidden)
    assert found.sizes_known == (n_hidden == 0 or not may_hide)


def test_privacy_can_be_agreed():
    federation = Federation.from_reports(stating(1.0, 2.0, None), privacy=Privacy(2.0))
    assert federation.clients == ("b",)
    assert "is not private, but agreed was" in federation.rejected_reports[1].reason


def test_a_remark_names_who_holds_how_much_noise_and_no_calibration_does():
    found = robfcp.calibrate(stating(1, 1, 4, None), defense="none")
    named = "noise: laplace of scale 0.5 in c; laplace of scale 2 in a, b; none in d"
    public = f"3 of 4 reports are private, at least {Privacy(4).statement}."
    assert found.notes == (named, public)
    assert named not in found.to_json().decode()
    variances = [Privacy(epsilon).noise.variance for epsilon in (1, 1, 4)]
    np.testing.assert_allclose(found.federation.noise_variances, [*variances, 0])
