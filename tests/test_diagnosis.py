"""The diagnosis names what was done to a client's report, and only that."""

import numpy as np
import pytest
from effort import cases, thorough
from msgspec import structs
from scipy.special import softmax

import robfcp
from robfcp import Federation, Privacy, Report
from robfcp.diagnosis._class_mix import ClassProfiles, ClassSizes
from robfcp.diagnosis._likelihood import rank_histogram
from robfcp.experiments import natural_partitions
from robfcp.experiments.data_faults import NAMES, NO_FAULT, diagnosis_accuracy

CLASSES = ("none", "mild", "grave")


def report_of(name, seed, *, n=300, mix=(0.5, 0.3, 0.2), change=None, min_cell_count=1):
    """A report of a fairly sure model; `change` gets and gives (probabilities, labels)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=mix)
    logits = rng.normal(0, 1, (n, 3))
    logits[np.arange(n), labels] += 2.5
    probabilities = softmax(logits, axis=1)
    if change is not None:
        probabilities, labels = change(probabilities, labels)
    return Report.from_predictions(
        name, probabilities, labels, classes=CLASSES, min_cell_count=min_cell_count
    )


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


@pytest.mark.parametrize("min_cell_count", [1, 5])
def test_benign_clients_are_told_of_no_fault(min_cell_count):
    reports = [report_of(f"s{k:02d}", 900 + k, min_cell_count=min_cell_count) for k in range(40)]
    calibration = robfcp.calibrate(reports, defense="none")
    assert robfcp.diagnose(calibration) == {}
    diagnoses = robfcp.diagnose(calibration, calibration.federation.clients).values()
    assert sum(one.cause == "not told" for one in diagnoses) >= 38
    odd = {"zero": lambda p, y: (np.eye(3)[y], y), "easy": only_easy_samples, "swapped": swapped}
    reports += [
        report_of(name, 7, n=600, change=one, min_cell_count=min_cell_count)
        for name, one in odd.items()
    ]
    found = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))
    # Class totals do not show which labels are wrong: both are said.
    wrong_labels = "labels swapped" if min_cell_count == 1 else "another model"
    causes = ["hard cases missing", wrong_labels, "scores all equal"]  # by name
    assert [one.cause for one in found.values()] == causes
    assert ("or some of its labels are wrong" in found["swapped"].finding) == (min_cell_count > 1)


def class_mix(rng, concentration):
    """The clients' mix of classes: the same, or drawn from a Dirichlet distribution."""
    if concentration is None:
        return (0.5, 0.3, 0.2)
    return rng.dirichlet([concentration] * 3)


def hard_in_last_class(probabilities, labels):
    """A model that is in doubt about the last class."""
    flatter = softmax(0.4 * np.log(probabilities), axis=1)
    return np.where(labels[:, None] == 2, flatter, probabilities), labels


def default_report(name, rng, *, n, mix, change=None):
    """A default report, whose pooled scores depend on the mix of classes."""

    def changed(probabilities, labels):
        probabilities, labels = hard_in_last_class(probabilities, labels)
        return (probabilities, labels) if change is None else change(probabilities, labels)

    return report_of(name, rng, n=n, mix=mix, change=changed, min_cell_count=5)


def default_round(seed, *, n, concentration, change=None):
    """A round of 20 default reports; `change` is made at the first client."""
    rng = np.random.default_rng(seed)
    reports = []
    for k in range(20):
        mix = class_mix(rng, concentration)
        change_here = change if k == 0 else None
        reports.append(default_report(f"s{k:02d}", rng, n=n, mix=mix, change=change_here))
    return robfcp.calibrate(reports, defense="none")


@pytest.mark.effort
@pytest.mark.parametrize("concentration", [None, 1.0, 0.5])
def test_no_mix_of_classes_in_default_reports_is_taken_for_a_fault(concentration):
    """Of 20 benign clients at most 1% are told of more than another mix of classes."""
    n_clients = 0
    n_faults = 0
    for n in (60, 100, 300):
        for seed in range(cases(4)):
            calibration = default_round(seed, n=n, concentration=concentration)
            assert calibration.federation.strata is None
            found = robfcp.diagnose(calibration).values()
            n_faults += sum(one.cause not in ("not told", "other mix of classes") for one in found)
            n_clients += 20
    assert n_faults <= 0.01 * n_clients


@pytest.mark.effort
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda p, y: (np.eye(3)[y], y), "scores all equal"),
        (lambda p, y: (np.eye(3)[(y + 1) % 3], y), "scores all equal"),
        (lambda p, y: (p, np.random.default_rng(0).permutation(y)), "another model"),
    ],
)
def test_gross_faults_in_default_reports_are_named(change, cause):
    causes = [cause]
    concentrations = [None, 1.0]
    if cause == "another model":
        causes.append("labels mixed up")  # totals do not tell one from the other
        concentrations = [None]  # of nearly one class shuffled labels are right
    for concentration in concentrations:
        for seed in range(cases(3)):
            calibration = default_round(seed, n=300, concentration=concentration, change=change)
            assert robfcp.diagnose(calibration)["s00"].cause in causes


@pytest.mark.effort
def test_a_mix_that_nobody_else_has_is_no_certain_fault():
    """Peers of one mix do not show the scores of each class: both readings are given."""
    readings = set()
    for seed in range(cases(8)):
        rng = np.random.default_rng(seed)
        reports = [default_report(f"s{k:02d}", rng, n=300, mix=(0.5, 0.3, 0.2)) for k in range(15)]
        odd_report = default_report("odd", rng, n=300, mix=(0.02, 0.03, 0.95))
        calibration = robfcp.calibrate([*reports, odd_report], defense="none")
        found = robfcp.diagnose(calibration, ["odd"])["odd"]
        readings.add(found.instead or found.cause)
        assert not found.sure or found.cause == "other mix of classes"
    assert readings == {"other mix of classes"}


def test_class_profiles_foretell_the_scores_of_another_mix():
    """Against the scores of a large sample with that mix; what is left is not the pooled scores."""
    calibration = default_round(5, n=300, concentration=0.7)
    federation = calibration.federation
    peers = federation.at_midpoints(lambda bounded: bounded.pooled_counts())
    profiles = ClassProfiles.from_federation(federation, peers, calibration.benign_mask, 10_000)
    errors = []
    for k in range(20):
        totals = federation.class_totals.row(k)
        mix = totals / totals.sum()
        large = report_of("large", 99, n=40_000, mix=mix, change=hard_in_last_class)
        true_cdf = np.cumsum(large.counts) / large.n_samples
        own_sizes = ClassSizes.from_federation(federation.select_rows(np.array([k])))
        expected = np.cumsum(profiles.expected_peers(k, own_sizes, peers))
        expected_cdf = expected / expected[-1]
        pooled_cdf = np.cumsum(peers) / peers.sum()
        errors.append([abs(expected_cdf - true_cdf).max(), abs(pooled_cdf - true_cdf).max()])
    of_profiles, of_pooled = np.mean(errors, axis=0)
    assert of_profiles < 0.4 * of_pooled


def test_very_large_and_mixed_rounds_are_compared_by_class_totals_too(monkeypatch):
    """Profiles of some clients, or of clients that report by class, explain a mix as well."""
    rng = np.random.default_rng(3)
    mixes = rng.dirichlet([1.0] * 3, 30)
    reports = [default_report(f"s{k:02d}", rng, n=200, mix=mix) for k, mix in enumerate(mixes)]
    exact_rng = np.random.default_rng(4)
    by_class = [
        report_of(f"t{k:02d}", exact_rng, n=200, mix=mix, change=hard_in_last_class)
        for k, mix in enumerate(mixes)
    ]
    for clients in (reports, [*reports[:15], *by_class[15:]]):
        calibration = robfcp.calibrate(clients, defense="none")
        for max_cells in (10_000, 60):
            monkeypatch.setattr("robfcp.diagnosis._diagnose.MAX_CELLS_DIAGNOSED", max_cells)
            names = [client for client in calibration.federation.clients if client[0] == "s"]
            found = robfcp.diagnose(calibration, names).values()
            is_fault = [one.cause not in ("not told", "other mix of classes") for one in found]
            assert sum(is_fault) <= 1
            assert "other mix of classes" in {one.cause for one in found}


def test_class_totals_say_between_which_sizes_classes_are():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, n) for n in (40, 77, 133)]
    reports = [
        Report.from_scores(f"s{k}", rng.random(len(y)), labels=y, classes=3, min_cell_count=5)
        for k, y in enumerate(labels)
    ]
    sizes = ClassSizes.from_federation(Federation.from_reports(reports))
    true_sizes = np.array([np.bincount(y, minlength=3) for y in labels])
    assert (sizes.least <= true_sizes).all()
    assert (true_sizes <= sizes.most).all()
    assert (sizes.most - sizes.least <= 4).all()
    assert sizes.nearest_to(true_sizes[0] / 40) == pytest.approx(true_sizes[0], abs=1.0)


@pytest.mark.parametrize("n", [60, 300])
def test_ranks_of_coarsened_reports_are_neither_too_large_nor_too_small(n):
    rng = np.random.default_rng(n)
    reports = [
        Report.from_scores(f"s{k:03d}", rng.beta(1, 4, n), min_cell_count=5) for k in range(80)
    ]
    federation = Federation.from_reports(reports)
    peers = federation.at_midpoints(lambda bounded: bounded.pooled_counts())[None, :]
    ranks = sum(rank_histogram(row[None, :], peers, min_cell_count=5) for row in federation.counts)
    middles = (np.arange(ranks.shape[1]) + 0.5) / ranks.shape[1]
    assert (ranks @ middles / ranks.sum()).item() == pytest.approx(0.5, abs=0.01)


def test_nobody_covers_too_little_because_of_what_coarsening_leaves_open():
    """The cell above the threshold may lie below it: covered are from 60% to 80%."""
    peers = np.zeros((5, 10), dtype=int)
    peers[:, 1::2] = 160
    odd = np.zeros((1, 10), dtype=int)
    odd[0, [1, 3, 5, 8, 9]] = 160
    federation = Federation.from_counts(np.vstack([peers, odd]), min_cell_count=160)
    calibration = robfcp.calibrate(federation, 0.8, defense="none")
    assert calibration.client_coverage()[5, 0] == 0.7
    assert robfcp.diagnose(calibration) == {}
    # Of this one at most 60% are covered.
    odd[0] = [0, 160, 0, 160, 0, 0, 0, 0, 0, 480]
    federation = Federation.from_counts(np.vstack([peers, odd]), min_cell_count=160)
    calibration = robfcp.calibrate(federation, 0.8, defense="none")
    assert set(robfcp.diagnose(calibration)) == {"client-5"}


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
    rights = {}
    for min_cell_count in (5, 1):
        rows = diagnosis_accuracy(
            natural_partitions.FEDERATIONS[0], most=sites, seed=1, min_cell_count=min_cell_count
        )
        rights[min_cell_count] = {row.fault: row.right for row in rows}
        assert set(rights[min_cell_count]) == {*NAMES, NO_FAULT}

    # A default report says too little for swapped labels, and of few patients for a copy.
    named = ("all-zero", "subset", "label-poisoning", "temperature", NO_FAULT)
    assert all(rights[5][fault] >= sites - sites // 5 for fault in named)

    right = rights[1]
    assert right["stale-file"] == right["all-zero"] == sites
    if sites == 5:
        assert min(right.values()) >= 2
        assert sum(right.values()) >= 42
