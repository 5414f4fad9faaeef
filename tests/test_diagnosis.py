"""The diagnosis names what was done to a site's report, and only that."""

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


def site(name, seed, *, n=300, mix=(0.5, 0.3, 0.2), change=None, fine=True):
    """A site of a fairly sure model; `change` gets and gives (probabilities, labels)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=mix)
    logits = rng.normal(0, 1, (n, 3))
    logits[np.arange(n), labels] += 2.5
    probabilities = softmax(logits, axis=1)
    if change is not None:
        probabilities, labels = change(probabilities, labels)
    return Report.from_predictions(name, probabilities, labels, classes=CLASSES, fine=fine)


HONEST = [site(f"s{k:02d}", k) for k in range(11)]


def told(odd):
    calibration = robfcp.calibrate([*HONEST, odd], defense="none")
    return robfcp.diagnose(calibration, [odd.client])[odd.client]


def swapped(probabilities, labels):
    return probabilities, np.array([0, 2, 1])[labels]


def powered(power):
    def change(probabilities, labels):
        return softmax(power * np.log(probabilities), axis=1), labels

    return change


def easy(probabilities, labels):
    own = probabilities[np.arange(len(labels)), labels]
    kept = own >= np.median(own)
    return probabilities[kept], labels[kept]


def odd_in_none(probabilities, labels):
    return np.where(labels[:, None] == 0, [[0.5, 0.25, 0.25]], probabilities), labels


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (swapped, "labels swapped", 'the labels "mild" and "grave" look swapped'),
        (lambda p, y: (p, (y + 1) % 3), "labels mixed up", ""),
        (powered(3.0), "probabilities too extreme", ""),
        (powered(0.35), "much smaller spread", ""),
        (easy, "hard cases missing", ""),
        (odd_in_none, "other cases", 'its scores differ from the others\' in "none"'),
        (lambda p, y: (p[:5], y[:5]), "not told", ""),
        (lambda p, y: (np.eye(3)[y], y), "scores all equal", "smallest"),
        (lambda p, y: (np.eye(3)[(y + 1) % 3], y), "scores all equal", "largest"),
        (lambda p, y: (np.where(np.eye(3)[y], 0.6, 0.2), y), "scores all equal", "one bin"),
    ],
)
def test_faults_are_called_by_their_names(change, cause, words):
    for seed in range(100, 106):
        found = told(site("dresden", seed, n=600, change=change))
        assert found.cause == cause
        assert words in found.finding


def test_who_is_left_in_but_looks_odd_is_named_with_what_to_do(monkeypatch):
    reports = [*HONEST, site("dresden", 77, change=swapped), site("flat", 6, change=powered(0.35))]
    calibration = robfcp.calibrate(reports, defense="none")
    found = robfcp.diagnose(calibration)["dresden"]
    assert found.sentence.startswith("dresden was used, but look: only ")
    assert found.advice.startswith('check how "mild" and "grave" are coded')
    assert found.summary == 'labels swapped: "mild" and "grave"'
    assert set(robfcp.diagnose(calibration)) == {"dresden", "flat"}
    monkeypatch.setattr(
        "robfcp.diagnosis._diagnose.MAX_CELLS_DIAGNOSED", 10
    )  # of many sites coverage alone is looked at
    assert set(robfcp.diagnose(calibration)) == {"dresden"}
    with pytest.raises(robfcp.RobfcpError, match="'c' sent no valid report"):
        robfcp.diagnose(calibration, ["c"])


def test_another_mix_of_the_same_cases_is_no_fault():
    found = told(site("dresden", 5, n=600, mix=(0.05, 0.05, 0.9)))
    assert found.cause == "other mix of classes"
    assert '"grave" where the others have 2' in found.finding


@pytest.mark.parametrize("fine", [True, False])
def test_honest_sites_are_not_told_of_faults_and_not_looked_at(fine):
    reports = [site(f"s{k:02d}", 900 + k, fine=fine) for k in range(40)]
    calibration = robfcp.calibrate(reports, defense="none")
    assert robfcp.diagnose(calibration) == {}
    said = robfcp.diagnose(calibration, calibration.federation.clients).values()
    assert sum(one.cause == "not told" for one in said) >= 38
    odd = {"zero": lambda p, y: (np.eye(3)[y], y), "easy": easy, "swapped": swapped}
    reports += [site(name, 7, n=600, change=one, fine=fine) for name, one in odd.items()]
    found = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))
    causes = ["hard cases missing", "labels swapped", "scores all equal"]  # by name
    assert [one.cause for one in found.values()] == causes


def test_whom_a_remark_names_is_to_be_looked_at():
    calibration = robfcp.calibrate([*HONEST, site("dresden", 5, n=100, change=powered(0.7))])
    assert calibration.flagged_clients == ()
    assert any("as another population would: dresden." in one for one in calibration.notes)
    assert set(robfcp.diagnose(calibration)) == {"dresden"}


def test_a_copy_names_the_other_site_and_small_ones_are_none():
    whole = [*HONEST, structs.replace(HONEST[4], client="twin")]
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
        honest = [Report.from_scores(f"s{k}", 20 * s, **residual) for k, s in enumerate(scores[:8])]
        odd = Report.from_scores("s8", 20 * unit * scores[0], **residual)
        found = robfcp.diagnose(robfcp.calibrate([*honest, odd]))["s8"]
        assert found.finding == f"its residuals are far {size} than elsewhere"
        assert found.advice.startswith("check the unit of predictions and targets")
    losses = [np.sort(rng.random((60, 4)), axis=1)[:, ::-1] for _ in range(5)]
    reports = [Report.from_losses(f"s{k}", x, lambdas, risk="fnr") for k, x in enumerate(losses)]
    calibration = robfcp.calibrate(reports, risk_level=0.6, defense="none")
    assert set(robfcp.diagnose(calibration, ["s1"])) == {"s1"}
    counts = rng.multinomial(400, np.full(10, 0.1), size=6)
    stated = {"privacy": Privacy(1.0), "sizes": [400] * 6}
    calibration = robfcp.calibrate(Federation.from_counts(counts, **stated), defense="none")
    assert robfcp.diagnose(calibration) == {}
    assert "privacy noise" in robfcp.diagnose(calibration, ["client-0"])["client-0"].finding


@pytest.mark.effort
def test_an_unsure_diagnosis_says_what_else_it_may_be():
    seen = [told(site("x", seed, n=40, change=powered(0.6))) for seed in range(cases(8))]
    unsure = [one for one in seen if one.instead]
    assert unsure
    assert all(not one.sure and one.instead != one.summary for one in unsure)


def test_coverage_is_told_where_it_is_off():
    said = {0.403: "only 40%", 1.0: "all", 0.0: "none", 0.996: "99.6%", 0.94: "", 0.88: ""}
    for covered, words in said.items():
        found = robfcp.Diagnosis("x", True, "not told", "", "", covered, 0.9).coverage_text
        assert found == (words and f"{words} of its own cases are covered where 90% should be")


@pytest.mark.parametrize("sites", thorough([1, 5], 1))
def test_everyday_faults_at_real_hospitals_are_named(sites):
    """On hospitals that the laws were not fitted to."""
    right = {
        row.fault: row.right
        for row in diagnosis_accuracy(natural_partitions.FEDERATIONS[0], most=sites, seed=1)
    }
    assert set(right) == {*NAMES, NO_FAULT}
    assert right["stale-file"] == right["all-zero"] == sites
    if sites == 5:
        assert min(right.values()) >= 2
        assert sum(right.values()) >= 42
