"""Coverage of fresh samples: exact intervals, the right promise, an honest verdict."""

from dataclasses import replace

import makers
import numpy as np
import pytest
from effort import cases
from makers import LAC, by_class, reports_of
from scipy.stats import binom, binomtest

import robfcp
from robfcp.errors import RobfcpError
from robfcp.evaluation import clopper_pearson, coverage_floor, n_samples_needed
from robfcp.local._threshold import local_coverage_bound


class Told(robfcp.defense.FCP):
    """Trusts everybody, though so many were said to lie."""

    def assess(self, federation):
        return replace(super().assess(federation), n_malicious=1, n_malicious_given=True)


def calibration(**options):
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=LAC)
    return robfcp.calibrate(federation, **{"defense": Told(), **options})


def outputs(n, missed):
    """Two-class outputs of which so many are missed."""
    return np.tile([0.9, 0.1], (n, 1)), np.repeat([0, 1], [n - missed, missed])


@pytest.mark.parametrize(("covered", "n"), [(0, 7), (7, 7), (3, 20), (96, 100), (899, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_intervals_are_clopper_and_pearsons(covered, n, confidence):
    other = binomtest(covered, n).proportion_ci(confidence, "exact")
    np.testing.assert_allclose(clopper_pearson(covered, n, confidence), other, atol=1e-10)


def test_the_number_that_would_tell_is_the_smallest_by_brute_force():
    for covered, n, floor in ((96, 100, 0.93), (88, 100, 0.9), (19, 20, 0.9), (0, 2, 0.5)):
        sizes = np.arange(n, 2000)
        hits = covered * sizes // n if covered > floor * n else -(-covered * sizes // n)
        above, below = binom.sf(hits - 1, sizes, floor), binom.cdf(hits, sizes, floor)
        brute = sizes[np.minimum(above, below) < 0.025][0]
        assert n_samples_needed(covered, n, floor, 0.95) == brute
    assert n_samples_needed(90, 100, 0.9, 0.95) is None


def test_the_verdict_says_how_many_samples_would_tell_and_the_promise_where_it_comes_from():
    c = calibration()
    for n, missed, verdict in ((2000, 20, "within"), (2000, 400, "below")):
        assert c.evaluate(*outputs(n, missed)).verdict == verdict
    found = c.evaluate(*outputs(100, 8))
    assert found.enough > 100
    assert found.line.startswith("cannot tell yet: 0.9200 of 100 samples")
    assert f"{found.enough} other samples, looked at once" in found.line
    assert "wanted" not in found.line
    assert "the wanted 0.9000 is missed" in c.evaluate(*outputs(60, 20), min_coverage=0.7).line
    assert "the wanted 0.9000 is reached" in c.evaluate(*outputs(2000, 20)).line
    federation = robfcp.Federation.from_counts([[1, 1]] * 2, score=LAC)
    full = robfcp.calibrate(federation, 0.99, defense="none")  # every set is full
    assert full.evaluate([[0.9, 0.1]], [1]).verdict == "within"
    few = robfcp.Federation.from_counts([[0, 6], [90, 1]], score=LAC)
    for made, value, holds, source in (
        (c, None, True, "certificate's lower end, 0.95"),
        (calibration(defense="none"), None, True, "estimated"),
        (calibration(guarantee=robfcp.MarginalGuarantee(1)), 0.9, False, "on average"),
        (robfcp.calibrate(few, 0.5, defense=Told()), 0.5, False, "nothing is certified"),
    ):
        floor = coverage_floor(made)
        assert (floor.value, floor.holds) == (value or made.certificate.lower, holds)
        assert source in floor.source
    assert coverage_floor(c, min_coverage=0.7).source == "stated floor"


def test_classes_groups_and_sizes_add_up():
    rng = np.random.default_rng(0)
    p, y = makers.outputs(rng, 300, 4, 1.0)
    night, c = rng.integers(0, 3, 300), calibration()
    found, sets = c.evaluate(p, y, groups=night), c.predict_set(p)
    assert found.overall.coverage == robfcp.metrics.coverage(sets, y)
    assert found.set_size == robfcp.metrics.mean_set_size(sets)
    assert sum(found.set_sizes.values()) == 300
    shares = robfcp.metrics.class_conditional_coverage(sets, y)
    assert [part.coverage for part in found.classes] == shares.tolist()
    for part in found.groups:
        rows = night == int(part.name)
        assert (part.n, part.coverage) == (rows.sum(), robfcp.metrics.coverage(sets[rows], y[rows]))
        assert (part.low, part.high) == clopper_pearson(part.covered, part.n, 1 - 0.05 / 3)


ONE = ([[0.5, 0.5]], [0])


def test_intervals_of_regression_are_checked_too():
    grid = robfcp.Binning.open_ended([0.0, 0.5, 1.0, 2.0])
    scores = np.abs(np.random.default_rng(0).normal(0, 0.4, (20, 100)))
    reports = reports_of(scores, binning=grid, score=robfcp.AbsoluteResidual())
    c = robfcp.calibrate(reports, 0.75, defense="none")
    found = c.evaluate([3.0, 7.0, 1.0], [3.2, 9.0, 1.0])
    assert (found.overall.covered, found.classes, found.set_sizes) == (2, (), {})
    assert str(found) == f"mean width {2 * c.threshold:.4g}\n{found.line}"


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([[0.5, 0.5]], [2]), {}, "labels"),
        (ONE, {"level": 1}, "level: 1 is not 0 to 0"),
        (ONE, {"groups": [1, 2]}, "groups: need one"),
        (ONE, {"min_coverage": 1.5}, "floor"),
        (ONE, {"interval_confidence": 2}, "confidence"),
        ((np.empty((0, 2)), np.empty(0, int)), {}, "samples|probabilities"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(arguments, options, words):
    with pytest.raises(RobfcpError, match=words):
        calibration().evaluate(*arguments, **options)


@pytest.mark.effort
def test_a_sites_own_report_gives_a_floor_that_holds():
    """In draws of 200 scores, with the threshold picked to look best, at most 5% fail."""
    rng, failed = np.random.default_rng(0), 0
    for _ in range(cases(20)):
        report = robfcp.Report.from_scores("a", rng.random(200), robfcp.Binning.uniform(20))
        floors = [local_coverage_bound(report, t) - t for t in np.arange(3, 20, 4) / 20]
        failed += max(floors) > 0
        assert (
            local_coverage_bound(report, 0.59)
            == local_coverage_bound(report, 0.55)
            > local_coverage_bound(report, 0.01)
            == 0
        )
    assert failed <= 0.05 * cases(20)


def test_the_command_prints_the_line_and_reads_groups(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration().save("c.json")
    makers.table("f.csv", *outputs(60, 6), ids=np.arange(60) % 2)
    told = makers.said("check", "c.json", "f.csv", "--group", "ID")
    assert "cannot tell yet: 0.9000 of 60 samples" in " ".join(told.split())
    assert "by ID, all intervals together" in told


def test_an_infinite_threshold_stands_for_its_own_class_only():
    """Two of 20 sites hold the third class, two may lie: it is in every set, the others not."""
    rng = np.random.default_rng(0)
    sites = []
    for k in range(20):
        p, y = rng.dirichlet([8, 1, 1], 100), np.repeat([0, 1], 50)
        p[50:] = p[50:, [1, 0, 2]]
        y[:4] = 2 if k < 2 else y[:4]
        sites.append((p, y))
    c = robfcp.calibrate(
        by_class(sites), by="class", guarantee=robfcp.PACGuarantee(2), defense="none"
    )
    assert np.isinf(c.threshold).tolist() == [False, False, True]
    missed = np.tile([0.98, 0.01, 0.01], (100, 1)), np.repeat([1, 0], [88, 12])
    found = c.evaluate(*missed)
    assert (found.overall.coverage, found.verdict, found.floor.value) == (0.12, "below", 0.9)
    assert robfcp.Monitor(c).update(*missed).has_alarm
    assert c.client_coverage().max() < 1


def test_an_average_is_no_floor_but_may_be_missed():
    average = calibration(guarantee=robfcp.MarginalGuarantee(1)).evaluate(*outputs(2000, 300))
    assert (average.floor.value, average.verdict) == (0.9, "below")
