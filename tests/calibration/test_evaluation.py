"""Coverage of fresh samples: exact intervals, their results, and the guarantee they refer to."""

import re
from dataclasses import replace

import makers
import numpy as np
import pytest
from effort import cases
from makers import LAC, reports_by_class, reports_of
from scipy.stats import binom, binomtest

import robfcp
from robfcp.errors import RobfcpError
from robfcp.evaluation import clopper_pearson, coverage_floor, n_samples_needed
from robfcp.local._threshold import local_coverage_bound


class GivenMalicious(robfcp.defense.FCP):
    """FCP with a given number of malicious clients."""

    def assess(self, federation):
        return replace(super().assess(federation), n_malicious=1, n_malicious_given=True)


def calibration(**options):
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=LAC)
    return robfcp.calibrate(federation, **{"defense": GivenMalicious(), **options})


def missed_outputs(n_samples, n_missed):
    """Return two-class outputs, some of which are missed."""
    return np.tile([0.9, 0.1], (n_samples, 1)), np.repeat([0, 1], [n_samples - n_missed, n_missed])


@pytest.mark.parametrize(
    ("n_covered", "n_samples"), [(0, 7), (7, 7), (3, 20), (96, 100), (899, 1000)]
)
@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_intervals_are_clopper_and_pearsons(n_covered, n_samples, confidence):
    expected = binomtest(n_covered, n_samples).proportion_ci(confidence, "exact")
    np.testing.assert_allclose(
        clopper_pearson(n_covered, n_samples, confidence), expected, atol=1e-10
    )


def test_n_samples_needed_is_the_smallest_by_brute_force():
    for n_covered, n_samples, min_coverage in (
        (96, 100, 0.93),
        (88, 100, 0.9),
        (19, 20, 0.9),
        (0, 2, 0.5),
    ):
        sizes = np.arange(n_samples, 2000)
        n_hits = (
            n_covered * sizes // n_samples
            if n_covered > min_coverage * n_samples
            else -(-n_covered * sizes // n_samples)
        )
        p_above = binom.sf(n_hits - 1, sizes, min_coverage)
        p_below = binom.cdf(n_hits, sizes, min_coverage)
        expected = sizes[np.minimum(p_above, p_below) < 0.025][0]
        assert n_samples_needed(n_covered, n_samples, min_coverage, 0.95) == expected
    assert n_samples_needed(90, 100, 0.9, 0.95) is None


def test_the_line_states_the_result_and_the_minimum_coverage_its_source():
    evaluated = calibration()
    for n_samples, n_missed, result in ((2000, 20, "ok"), (2000, 400, "undercoverage")):
        assert evaluated.evaluate(*missed_outputs(n_samples, n_missed)).result == result
    evaluation = evaluated.evaluate(*missed_outputs(100, 8))
    assert evaluation.n_samples_needed > 100
    assert evaluation.line.startswith("inconclusive: 0.9200 of 100 samples")
    assert f"{evaluation.n_samples_needed} other samples, looked at once" in evaluation.line
    assert not re.search("wanted|target", evaluation.line)
    assert (
        "the wanted 0.9000 is missed"
        in evaluated.evaluate(*missed_outputs(60, 20), min_coverage=0.7).line
    )
    assert "the wanted 0.9000 is reached" in evaluated.evaluate(*missed_outputs(2000, 20)).line
    federation = robfcp.Federation.from_counts([[1, 1]] * 2, score=LAC)
    trivial = robfcp.calibrate(
        federation, coverage=0.99, defense="none"
    )  # every set contains all labels
    assert trivial.evaluate([[0.9, 0.1]], [1]).result == "ok"
    sparse = robfcp.Federation.from_counts([[0, 6], [90, 1]], score=LAC)
    for other_calibration, floor_value, is_conditional, source in (
        (evaluated, None, True, "certificate's lower end, 0.95"),
        (calibration(defense="none"), None, True, "estimated"),
        (calibration(guarantee=robfcp.MarginalGuarantee(1)), 0.9, False, "on average"),
        (
            robfcp.calibrate(sparse, coverage=0.5, defense=GivenMalicious()),
            0.5,
            False,
            "nothing is certified",
        ),
    ):
        required = coverage_floor(other_calibration)
        assert required.value == (floor_value or other_calibration.certificate.lower)
        assert required.is_conditional == is_conditional
        assert source in required.source
    assert coverage_floor(evaluated, min_coverage=0.7).source == "stated floor"


def test_classes_groups_and_sizes_add_up():
    rng = np.random.default_rng(0)
    p, y = makers.outputs(rng, 300, 4, 1.0)
    groups, evaluated = rng.integers(0, 3, 300), calibration()
    evaluation = evaluated.evaluate(p, y, groups=groups)
    sets = evaluated.predict_set(p)
    assert evaluation.overall.coverage == robfcp.metrics.coverage(sets, y)
    assert evaluation.mean_set_size == robfcp.metrics.mean_set_size(sets)
    assert sum(evaluation.set_size_counts.values()) == 300
    class_coverage = robfcp.metrics.class_conditional_coverage(sets, y)
    assert [interval.coverage for interval in evaluation.classes] == class_coverage.tolist()
    for interval in evaluation.groups:
        rows = groups == int(interval.name)
        assert interval.n_samples == rows.sum()
        assert interval.coverage == robfcp.metrics.coverage(sets[rows], y[rows])
        assert (interval.lower, interval.upper) == clopper_pearson(
            interval.n_covered, interval.n_samples, 1 - 0.05 / 3
        )


ONE_SAMPLE = ([[0.5, 0.5]], [0])


def test_prediction_intervals_are_evaluated_too():
    binning = robfcp.Binning.open_ended([0.0, 0.5, 1.0, 2.0])
    scores = np.abs(np.random.default_rng(0).normal(0, 0.4, (20, 100)))
    reports = reports_of(scores, binning=binning, score=robfcp.AbsoluteResidual())
    evaluated = robfcp.calibrate(reports, coverage=0.75, defense="none")
    evaluation = evaluated.evaluate([3.0, 7.0, 1.0], [3.2, 9.0, 1.0])
    assert evaluation.overall.n_covered == 2
    assert evaluation.classes == ()
    assert evaluation.set_size_counts == {}
    assert str(evaluation) == f"mean width {2 * evaluated.threshold:.4g}\n{evaluation.line}"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[0.5, 0.5]], [2]), {}, "labels"),
        (ONE_SAMPLE, {"level": 1}, "level: 1 is not 0 to 0"),
        (ONE_SAMPLE, {"groups": [1, 2]}, "groups: need one"),
        (ONE_SAMPLE, {"min_coverage": 1.5}, "min_coverage"),
        (ONE_SAMPLE, {"interval_confidence": 2}, "confidence"),
        ((np.empty((0, 2)), np.empty(0, int)), {}, "samples|probabilities|predictions"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(arguments, options, message):
    with pytest.raises(RobfcpError, match=message):
        calibration().evaluate(*arguments, **options)


@pytest.mark.effort
def test_the_coverage_bound_of_a_local_report_holds():
    """In samples of 200 scores, with the most favorable threshold, at most 5% fail."""
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
    makers.write_table("f.csv", *missed_outputs(60, 6), ids=np.arange(60) % 2)
    printed = makers.command_output("evaluate", "c.json", "f.csv", "--group", "ID")
    assert "inconclusive: 0.9000 of 60 samples" in " ".join(printed.split())
    assert "by ID, all intervals together" in printed


def test_an_infinite_threshold_is_of_its_class_only():
    """Two of 20 clients hold the third class and two may be malicious: it is in every set."""
    rng = np.random.default_rng(0)
    client_outputs = []
    for k in range(20):
        p, y = rng.dirichlet([8, 1, 1], 100), np.repeat([0, 1], 50)
        p[50:] = p[50:, [1, 0, 2]]
        y[:4] = 2 if k < 2 else y[:4]
        client_outputs.append((p, y))
    evaluated = robfcp.calibrate(
        reports_by_class(client_outputs),
        by="class",
        guarantee=robfcp.PACGuarantee(2),
        defense="none",
    )
    assert np.isinf(evaluated.threshold).tolist() == [False, False, True]
    samples = np.tile([0.98, 0.01, 0.01], (100, 1)), np.repeat([1, 0], [88, 12])
    evaluation = evaluated.evaluate(*samples)
    assert evaluation.overall.coverage == 0.12
    assert evaluation.result == "undercoverage"
    assert evaluation.min_coverage.value == 0.9
    assert robfcp.Monitor(evaluated).update(*samples).has_alarm
    assert evaluated.client_coverage().max() < 1


def test_a_marginal_guarantee_may_be_missed():
    evaluation = calibration(guarantee=robfcp.MarginalGuarantee(1)).evaluate(
        *missed_outputs(2000, 300)
    )
    assert (evaluation.min_coverage.value, evaluation.result) == (0.9, "undercoverage")
