"""The diagnosis names what was done to a client's report, and only that."""

import numpy as np
import pytest
from effort import cases, thorough
from msgspec import structs
from scipy.special import softmax

import robfcp
from robfcp import Federation, Privacy, Report
from robfcp.experiments import natural_partitions
from robfcp.experiments.data_faults import NAMES, NO_FAULT, diagnosis_accuracy

CLASSES = ("none", "mild", "grave")


def report_of(name, seed, *, n=300, mix=(0.5, 0.3, 0.2), change=None, fine=True):
    """A report of a fairly sure model; `change` gets and gives (probabilities, labels)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=mix)
    logits = rng.normal(0, 1, (n, 3))
    logits[np.arange(n), labels] += 2.5
    probabilities = softmax(logits, axis=1)
    if change is not None:
        probabilities, labels = change(probabilities, labels)
    return Report.from_predictions(name, probabilities, labels, classes=CLASSES, fine=fine)


BENIGN = [report_of(f"s{k:02d}", k) for k in range(11)]


def diagnosis_of(odd_report):
    calibration = robfcp.calibrate([*BENIGN, odd_report], defense="none")
    return robfcp.diagnose(calibration, [odd_report.client])[odd_report.client]


def swapped(probabilities, labels):
    return probabilities, np.array([0, 2, 1])[labels]


def powered(power):
    def change(probabilities, labels):
        return softmax(power * np.log(probabilities), axis=1), labels

    return change


def only_easy_samples(probabilities, labels):
    of_label = probabilities[np.arange(len(labels)), labels]
    is_easy = of_label >= np.median(of_label)
    return probabilities[is_easy], labels[is_easy]


def unsure_in_first_class(probabilities, labels):
    return np.where(labels[:, None] == 0, [[0.5, 0.25, 0.25]], probabilities), labels


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (swapped, "labels swapped", 'the labels "mild" and "grave" look swapped'),
        (lambda p, y: (p, (y + 1) % 3), "labels mixed up", ""),
        (powered(3.0), "probabilities too extreme", ""),
        (powered(0.35), "much smaller spread", ""),
        (only_easy_samples, "hard cases missing", ""),
        (unsure_in_first_class, "other cases", 'its scores differ from the others\' in "none"'),
        (lambda p, y: (p[:5], y[:5]), "not told", ""),
        (lambda p, y: (np.eye(3)[y], y), "scores all equal", "smallest"),
        (lambda p, y: (np.eye(3)[(y + 1) % 3], y), "scores all equal", "largest"),
        (lambda p, y: (np.where(np.eye(3)[y], 0.6, 0.2), y), "scores all equal", "one bin"),
    ],
)
def test_faults_are_called_by_their_names(change, cause, words):
    for seed in range(100, 106):
        found = diagnosis_of(report_of("dresden", seed, n=600, change=change))
        assert found.cause == cause
        assert words in found.finding


def test_a_suspicious_client_that_was_included_is_named_with_what_to_do(monkeypatch):
    reports = [
        *BENIGN,
        report_of("dresden", 77, change=swapped),
        report_of("flat", 6, change=powered(0.35)),
    ]
    calibration = robfcp.calibrate(reports, defense="none")
    found = robfcp.diagnose(calibration)["dresden"]
    assert found.sentence.startswith("dresden was used, but look: only ")
    assert found.advice.startswith('check how "mild" and "grave" are coded')
    assert found.summary == 'labels swapped: "mild" and "grave"'
    assert set(robfcp.diagnose(calibration)) == {"dresden", "flat"}
    monkeypatch.setattr(
        "robfcp.diagnosis._diagnose.MAX_CELLS_DIAGNOSED", 10
    )  # of many clients only the coverage is examined
    assert set(robfcp.diagnose(calibration)) == {"dresden"}
    with pytest.raises(robfcp.RobfcpError, match="'c' sent no valid report"):
        robfcp.diagnose(calibration, ["c"])


def test_another_mix_of_the_same_cases_is_no_fault():
    found = diagnosis_of(report_of("dresden", 5, n=600, mix=(0.05, 0.05, 0.9)))
    assert found.cause == "other mix of classes"
    assert '"grave" where the others have 2' in found.finding


@pytest.mark.parametrize("fine", [True, False])
def test_benign_clients_are_told_of_no_fault(fine):
    reports = [report_of(f"s{k:02d}", 900 + k, fine=fine) for k in range(40)]
    calibration = robfcp.calibrate(reports, defense="none")
    assert robfcp.diagnose(calibration) == {}
    diagnoses = robfcp.diagnose(calibration, calibration.federation.clients).values()
    assert sum(one.cause == "not told" for one in diagnoses) >= 38
    odd = {"zero": lambda p, y: (np.eye(3)[y], y), "easy": only_easy_samples, "swapped": swapped}
    reports += [report_of(name, 7, n=600, change=one, fine=fine) for name, one in odd.items()]
    found = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))
    causes = ["hard cases missing", "labels swapped", "scores all equal"]  # by name
    assert [one.cause for one in found.values()] == causes


def test_a_client_that_a_note_names_is_diagnosed():
    calibration = robfcp.calibrate([*BENIGN, report_of("dresden", 5, n=100, change=powered(0.7))])
    assert calibration.flagged_clients == ()
    assert any("as another population would: dresden." in one for one in calibration.notes)
    assert set(robfcp.diagnose(calibration)) == {"dresden"}


def test_a_duplicate_names_the_other_client_and_small_reports_are_none():
    whole = [*BENIGN, structs.replace(BENIGN[4], client="twin")]
    found = robfcp.diagnose(robfcp.calibrate(whole, defense="none"))
    assert (found["twin"].summary, found["s04"].summary) == ("copy of s04", "copy of twin")
    assert found["s04"].redacted().finding == "its report is the same as that of another site"
    few = [Report.from_scores(name, [0.1, 0.5, 0.9]) for name in "abc"]
    assert robfcp.diagnose(robfcp.calibrate(few, 0.5, defense="none")) == {}


def test_pooled_private_and_grouped_reports_and_losses_are_diagnosed_too():
    rng, lambdas, groups = np.random.default_rng(1), [0.1, 0.2, 0.3, 0.4], ["old", "young"] * 100
    scores = [*rng.beta(1, 4, (8, 200)), rng.beta(6, 1, 200)]
    for more in ({}, {"groups": groups}):
        reports = [Report.from_scores(f"s{k}", s, **more) for k, s in enumerate(scores)]
        found = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))["s8"]
        assert (found.cause, found.classes) == ("labels mixed up", ())
    for unit, size in ((10, "larger"), (0.001, "smaller")):
        residual = {"score": robfcp.AbsoluteResidual()}
        benign = [Report.from_scores(f"s{k}", 20 * s, **residual) for k, s in enumerate(scores[:8])]
        odd_report = Report.from_scores("s8", 20 * unit * scores[0], **residual)
        found = robfcp.diagnose(robfcp.calibrate([*benign, odd_report]))["s8"]
        assert found.finding == f"its residuals are far {size} than elsewhere"
        assert found.advice.startswith("check the unit of predictions and targets")
    losses = [np.sort(rng.random((60, 4)), axis=1)[:, ::-1] for _ in range(5)]
    reports = [Report.from_losses(f"s{k}", x, lambdas, risk="fnr") for k, x in enumerate(losses)]
    calibration = robfcp.calibrate(reports, risk_level=0.6, defense="none")
    assert set(robfcp.diagnose(calibration, ["s1"])) == {"s1"}
    counts = rng.multinomial(400, np.full(10, 0.1), size=6)
    stated = {"privacy": Privacy(1.0), "sample_sizes": [400] * 6}
    calibration = robfcp.calibrate(Federation.from_counts(counts, **stated), defense="none")
    assert robfcp.diagnose(calibration) == {}
    assert "privacy noise" in robfcp.diagnose(calibration, ["client-0"])["client-0"].finding


@pytest.mark.effort
def test_an_unclear_diagnosis_names_the_alternative():
    diagnoses = [
        diagnosis_of(report_of("x", seed, n=40, change=powered(0.6))) for seed in range(cases(8))
    ]
    unclear = [one for one in diagnoses if one.instead]
    assert unclear
    assert all(not one.sure and one.instead != one.summary for one in unclear)


def test_coverage_is_stated_where_it_is_off_target():
    texts = {0.403: "only 40%", 1.0: "all", 0.0: "none", 0.996: "99.6%", 0.94: "", 0.88: ""}
    for covered, words in texts.items():
        found = robfcp.Diagnosis("x", True, "not told", "", "", covered, 0.9).coverage_text
        assert found == (words and f"{words} of its own cases are covered where 90% should be")


@pytest.mark.parametrize("sites", thorough([1, 5], 1))
def test_everyday_faults_at_real_hospitals_are_named(sites):
    """On hospitals that the priors were not fitted to."""
    right = {
        row.fault: row.right
        for row in diagnosis_accuracy(natural_partitions.FEDERATIONS[0], most=sites, seed=1)
    }
    assert set(right) == {*NAMES, NO_FAULT}
    assert right["stale-file"] == right["all-zero"] == sites
    if sites == 5:
        assert min(right.values()) >= 2
        assert sum(right.values()) >= 42
