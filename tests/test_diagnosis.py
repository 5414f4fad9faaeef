"""The diagnosis names the fault in the report of a client, and no other."""

import numpy as np
import pytest
from effort import cases, thorough
from msgspec import structs
from scipy.special import softmax

import robfcp
from robfcp import Federation, Privacy, Report
from robfcp.diagnosis._label_distribution import ClassProfiles, ClassSizes
from robfcp.diagnosis._likelihood import rank_histogram
from robfcp.experiments import natural_partitions
from robfcp.experiments.data_faults import NAMES, NO_FAULT, diagnosis_accuracy

CLASSES = ("none", "mild", "grave")


def report_of(
    name, seed, *, n=300, label_distribution=(0.5, 0.3, 0.2), change=None, min_cell_count=1
):
    """Return a report of a fairly accurate model; `change` maps (probabilities, labels)."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=label_distribution)
    logits = rng.normal(0, 1, (n, 3))
    logits[np.arange(n), labels] += 2.5
    probabilities = softmax(logits, axis=1)
    if change is not None:
        probabilities, labels = change(probabilities, labels)
    return Report.from_predictions(
        name, probabilities, labels, classes=CLASSES, min_cell_count=min_cell_count
    )


BENIGN = [report_of(f"s{k:02d}", k) for k in range(11)]


def diagnosis_of(report):
    calibration = robfcp.calibrate([*BENIGN, report], defense="none")
    return robfcp.diagnose(calibration, [report.client])[report.client]


def swapped(probabilities, labels):
    return probabilities, np.array([0, 2, 1])[labels]


def powered(power):
    def change(probabilities, labels):
        return softmax(power * np.log(probabilities), axis=1), labels

    return change


def small_scores_only(probabilities, labels):
    of_label = probabilities[np.arange(len(labels)), labels]
    is_easy = of_label >= np.median(of_label)
    return probabilities[is_easy], labels[is_easy]


def uncertain_in_first_class(probabilities, labels):
    return np.where(labels[:, None] == 0, [[0.5, 0.25, 0.25]], probabilities), labels


@pytest.mark.parametrize(
    ("change", "cause", "text"),
    [
        (swapped, "labels swapped", 'the labels "mild" and "grave" look swapped'),
        (lambda p, y: (p, (y + 1) % 3), "labels permuted", ""),
        (powered(3.0), "overconfident probabilities", ""),
        (powered(0.35), "scores under-dispersed", ""),
        (small_scores_only, "large scores missing", ""),
        (
            uncertain_in_first_class,
            "different population",
            'its scores differ from the others\' in "none"',
        ),
        (lambda p, y: (p[:5], y[:5]), "unexplained", ""),
        (lambda p, y: (np.eye(3)[y], y), "scores all equal", "smallest"),
        (lambda p, y: (np.eye(3)[(y + 1) % 3], y), "scores all equal", "largest"),
        (lambda p, y: (np.where(np.eye(3)[y], 0.6, 0.2), y), "scores all equal", "one bin"),
    ],
)
def test_the_cause_of_a_fault_is_diagnosed(change, cause, text):
    for seed in range(100, 106):
        diagnosis = diagnosis_of(report_of("dresden", seed, n=600, change=change))
        assert diagnosis.cause == cause
        assert text in diagnosis.description


def test_an_included_but_suspicious_client_has_a_recommendation(monkeypatch):
    reports = [
        *BENIGN,
        report_of("dresden", 77, change=swapped),
        report_of("flat", 6, change=powered(0.35)),
    ]
    calibration = robfcp.calibrate(reports, defense="none")
    diagnosis = robfcp.diagnose(calibration)["dresden"]
    assert diagnosis.sentence.startswith("dresden was used, but look: only ")
    assert diagnosis.recommendation.startswith('check how "mild" and "grave" are coded')
    assert diagnosis.summary == 'labels swapped: "mild" and "grave"'
    assert set(robfcp.diagnose(calibration)) == {"dresden", "flat"}
    monkeypatch.setattr(
        "robfcp.diagnosis._diagnose.MAX_CELLS_DIAGNOSED", 10
    )  # of many clients only the coverage is examined
    assert set(robfcp.diagnose(calibration)) == {"dresden"}
    with pytest.raises(robfcp.RobfcpError, match="'c' sent no valid report"):
        robfcp.diagnose(calibration, ["c"])


def test_a_different_label_distribution_is_no_fault():
    diagnosis = diagnosis_of(report_of("dresden", 5, n=600, label_distribution=(0.05, 0.05, 0.9)))
    assert diagnosis.cause == "different label distribution"
    assert '"grave" where the others have 2' in diagnosis.description


@pytest.mark.parametrize("min_cell_count", [1, 5])
def test_benign_clients_have_no_diagnosed_fault(min_cell_count):
    reports = [report_of(f"s{k:02d}", 900 + k, min_cell_count=min_cell_count) for k in range(40)]
    calibration = robfcp.calibrate(reports, defense="none")
    assert robfcp.diagnose(calibration) == {}
    diagnoses = robfcp.diagnose(calibration, calibration.federation.clients).values()
    assert sum(diagnosis.cause == "unexplained" for diagnosis in diagnoses) >= 38
    changes = {
        "zero": lambda p, y: (np.eye(3)[y], y),
        "easy": small_scores_only,
        "swapped": swapped,
    }
    reports += [
        report_of(name, 7, n=600, change=diagnosis, min_cell_count=min_cell_count)
        for name, diagnosis in changes.items()
    ]
    diagnosed = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))
    # Class totals do not show which labels are wrong: both causes are named.
    cause_of_swap = "labels swapped" if min_cell_count == 1 else "different model"
    causes = ["large scores missing", cause_of_swap, "scores all equal"]  # by name
    assert [diagnosis.cause for diagnosis in diagnosed.values()] == causes
    assert ("or some of its labels are wrong" in diagnosed["swapped"].description) == (
        min_cell_count > 1
    )


def label_distribution(rng, concentration):
    """Return a client's label distribution: the same for all, or of a Dirichlet distribution."""
    if concentration is None:
        return (0.5, 0.3, 0.2)
    return rng.dirichlet([concentration] * 3)


def hard_in_last_class(probabilities, labels):
    """Return the outputs of a model that is uncertain about the last class."""
    flatter = softmax(0.4 * np.log(probabilities), axis=1)
    return np.where(labels[:, None] == 2, flatter, probabilities), labels


def default_report(name, rng, *, n, distribution, change=None):
    """Return a default report, whose pooled scores depend on the label distribution."""

    def changed(probabilities, labels):
        probabilities, labels = hard_in_last_class(probabilities, labels)
        return (probabilities, labels) if change is None else change(probabilities, labels)

    return report_of(
        name, rng, n=n, label_distribution=distribution, change=changed, min_cell_count=5
    )


def default_round(seed, *, n, concentration, change=None):
    """Return a round of 20 default reports; `change` is applied at the first client."""
    rng = np.random.default_rng(seed)
    reports = []
    for k in range(20):
        distribution = label_distribution(rng, concentration)
        change_of_client = change if k == 0 else None
        reports.append(
            default_report(
                f"s{k:02d}", rng, n=n, distribution=distribution, change=change_of_client
            )
        )
    return robfcp.calibrate(reports, defense="none")


@pytest.mark.effort
@pytest.mark.parametrize("concentration", [None, 1.0, 0.5])
def test_label_distributions_of_default_reports_are_not_taken_for_faults(concentration):
    """At most 1% of benign clients have another cause than a different label distribution."""
    n_clients = 0
    n_faults = 0
    for n in (60, 100, 300):
        for seed in range(cases(4)):
            calibration = default_round(seed, n=n, concentration=concentration)
            assert calibration.federation.strata is None
            diagnoses = robfcp.diagnose(calibration).values()
            n_faults += sum(
                diagnosis.cause not in ("unexplained", "different label distribution")
                for diagnosis in diagnoses
            )
            n_clients += 20
    assert n_faults <= 0.01 * n_clients


@pytest.mark.effort
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda p, y: (np.eye(3)[y], y), "scores all equal"),
        (lambda p, y: (np.eye(3)[(y + 1) % 3], y), "scores all equal"),
        (lambda p, y: (p, np.random.default_rng(0).permutation(y)), "different model"),
    ],
)
def test_obvious_faults_in_default_reports_are_diagnosed(change, cause):
    causes = [cause]
    concentrations = [None, 1.0]
    if cause == "different model":
        causes.append("labels permuted")  # totals do not distinguish these
        concentrations = [None]  # where nearly all labels are equal, permuted ones are right
    for concentration in concentrations:
        for seed in range(cases(3)):
            calibration = default_round(seed, n=300, concentration=concentration, change=change)
            assert robfcp.diagnose(calibration)["s00"].cause in causes


@pytest.mark.effort
def test_a_label_distribution_of_no_other_client_is_no_clear_fault():
    """Peers of one distribution do not show the scores of each class: both causes are named."""
    readings = set()
    for seed in range(cases(8)):
        rng = np.random.default_rng(seed)
        reports = [
            default_report(f"s{k:02d}", rng, n=300, distribution=(0.5, 0.3, 0.2)) for k in range(15)
        ]
        different_report = default_report("odd", rng, n=300, distribution=(0.02, 0.03, 0.95))
        calibration = robfcp.calibrate([*reports, different_report], defense="none")
        diagnosis = robfcp.diagnose(calibration, ["odd"])["odd"]
        readings.add(diagnosis.alternative or diagnosis.cause)
        assert not diagnosis.is_clear or diagnosis.cause == "different label distribution"
    assert readings == {"different label distribution"}


def test_class_profiles_predict_the_scores_of_another_label_distribution():
    """Compared with a large sample of that distribution, and with the pooled scores."""
    calibration = default_round(5, n=300, concentration=0.7)
    federation = calibration.federation
    peers = federation.at_midpoints(lambda bounded: bounded.pooled_counts())
    profiles = ClassProfiles.from_federation(federation, peers, calibration.benign_mask, 10_000)
    errors = []
    for k in range(20):
        totals = federation.class_totals.row(k)
        fractions = totals / totals.sum()
        large = report_of(
            "large", 99, n=40_000, label_distribution=fractions, change=hard_in_last_class
        )
        true_cdf = np.cumsum(large.counts) / large.n_samples
        class_sizes = ClassSizes.from_federation(federation.select_rows(np.array([k])))
        expected = np.cumsum(profiles.expected_peers(k, class_sizes, peers))
        expected_cdf = expected / expected[-1]
        pooled_cdf = np.cumsum(peers) / peers.sum()
        errors.append([abs(expected_cdf - true_cdf).max(), abs(pooled_cdf - true_cdf).max()])
    of_profiles, of_pooled = np.mean(errors, axis=0)
    assert of_profiles < 0.4 * of_pooled


def test_very_large_and_mixed_rounds_are_compared_by_class_totals_too(monkeypatch):
    """Profiles of some clients, or of clients that report by class, explain distributions too."""
    rng = np.random.default_rng(3)
    distributions = rng.dirichlet([1.0] * 3, 30)
    reports = [
        default_report(f"s{k:02d}", rng, n=200, distribution=distribution)
        for k, distribution in enumerate(distributions)
    ]
    exact_rng = np.random.default_rng(4)
    stratified_reports = [
        report_of(
            f"t{k:02d}",
            exact_rng,
            n=200,
            label_distribution=distribution,
            change=hard_in_last_class,
        )
        for k, distribution in enumerate(distributions)
    ]
    for clients in (reports, [*reports[:15], *stratified_reports[15:]]):
        calibration = robfcp.calibrate(clients, defense="none")
        for max_cells in (10_000, 60):
            monkeypatch.setattr("robfcp.diagnosis._diagnose.MAX_CELLS_DIAGNOSED", max_cells)
            names = [client for client in calibration.federation.clients if client[0] == "s"]
            diagnoses = robfcp.diagnose(calibration, names).values()
            is_fault = [
                diagnosis.cause not in ("unexplained", "different label distribution")
                for diagnosis in diagnoses
            ]
            assert sum(is_fault) <= 1
            assert "different label distribution" in {diagnosis.cause for diagnosis in diagnoses}


def test_class_totals_bound_the_sizes_of_classes():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, n) for n in (40, 77, 133)]
    reports = [
        Report.from_scores(f"s{k}", rng.random(len(y)), labels=y, classes=3, min_cell_count=5)
        for k, y in enumerate(labels)
    ]
    sizes = ClassSizes.from_federation(Federation.from_reports(reports))
    true_sizes = np.array([np.bincount(y, minlength=3) for y in labels])
    assert (sizes.lower <= true_sizes).all()
    assert (true_sizes <= sizes.upper).all()
    assert (sizes.upper - sizes.lower <= 4).all()
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


def test_coarsening_alone_is_not_taken_for_undercoverage():
    """Samples of the cell above the threshold may be below it: coverage is from 60% to 80%."""
    peers = np.zeros((5, 10), dtype=int)
    peers[:, 1::2] = 160
    counts = np.zeros((1, 10), dtype=int)
    counts[0, [1, 3, 5, 8, 9]] = 160
    federation = Federation.from_counts(np.vstack([peers, counts]), min_cell_count=160)
    calibration = robfcp.calibrate(federation, coverage=0.8, defense="none")
    assert calibration.client_coverage()[5, 0] == 0.7
    assert robfcp.diagnose(calibration) == {}
    # Here coverage is at most 60%.
    counts[0] = [0, 160, 0, 160, 0, 0, 0, 0, 0, 480]
    federation = Federation.from_counts(np.vstack([peers, counts]), min_cell_count=160)
    calibration = robfcp.calibrate(federation, coverage=0.8, defense="none")
    assert set(robfcp.diagnose(calibration)) == {"client-5"}


def test_a_client_in_a_note_is_diagnosed():
    calibration = robfcp.calibrate([*BENIGN, report_of("dresden", 5, n=100, change=powered(0.7))])
    assert calibration.flagged_clients == ()
    assert any("as another population would: dresden." in note for note in calibration.notes)
    assert set(robfcp.diagnose(calibration)) == {"dresden"}


def test_a_duplicate_names_the_other_client_and_small_reports_are_no_duplicates():
    reports = [*BENIGN, structs.replace(BENIGN[4], client="twin")]
    diagnoses = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))
    assert (diagnoses["twin"].summary, diagnoses["s04"].summary) == ("copy of s04", "copy of twin")
    assert (
        diagnoses["s04"].redacted().description == "its report is the same as that of another site"
    )
    small_reports = [Report.from_scores(name, [0.1, 0.5, 0.9]) for name in "abc"]
    assert robfcp.diagnose(robfcp.calibrate(small_reports, coverage=0.5, defense="none")) == {}


def test_pooled_private_and_grouped_reports_and_losses_are_diagnosed_too():
    rng = np.random.default_rng(1)
    lambdas = [0.1, 0.2, 0.3, 0.4]
    groups = ["old", "young"] * 100
    scores = [*rng.beta(1, 4, (8, 200)), rng.beta(6, 1, 200)]
    for grouping in ({}, {"groups": groups}):
        reports = [Report.from_scores(f"s{k}", s, **grouping) for k, s in enumerate(scores)]
        diagnosis = robfcp.diagnose(robfcp.calibrate(reports, defense="none"))["s8"]
        assert (diagnosis.cause, diagnosis.classes) == ("labels permuted", ())
    for scale, size in ((10, "larger"), (0.001, "smaller")):
        score_option = {"score": robfcp.AbsoluteResidual()}
        benign = [
            Report.from_scores(f"s{k}", 20 * s, **score_option) for k, s in enumerate(scores[:8])
        ]
        scaled_report = Report.from_scores("s8", 20 * scale * scores[0], **score_option)
        diagnosis = robfcp.diagnose(robfcp.calibrate([*benign, scaled_report]))["s8"]
        assert diagnosis.description == f"its residuals are far {size} than elsewhere"
        assert diagnosis.recommendation.startswith("check the unit of predictions and targets")
    losses = [np.sort(rng.random((60, 4)), axis=1)[:, ::-1] for _ in range(5)]
    reports = [Report.from_losses(f"s{k}", x, lambdas, risk="fnr") for k, x in enumerate(losses)]
    calibration = robfcp.calibrate(reports, risk_level=0.6, defense="none")
    assert set(robfcp.diagnose(calibration, ["s1"])) == {"s1"}
    counts = rng.multinomial(400, np.full(10, 0.1), size=6)
    options = {"privacy": Privacy(1.0), "sample_sizes": [400] * 6}
    calibration = robfcp.calibrate(Federation.from_counts(counts, **options), defense="none")
    assert robfcp.diagnose(calibration) == {}
    assert "privacy noise" in robfcp.diagnose(calibration, ["client-0"])["client-0"].description


@pytest.mark.effort
def test_an_unclear_diagnosis_names_the_alternative():
    diagnoses = [
        diagnosis_of(report_of("x", seed, n=40, change=powered(0.6))) for seed in range(cases(8))
    ]
    unclear = [diagnosis for diagnosis in diagnoses if diagnosis.alternative]
    assert unclear
    assert all(
        not diagnosis.is_clear and diagnosis.alternative != diagnosis.summary
        for diagnosis in unclear
    )


def test_coverage_is_stated_where_it_differs_from_the_target():
    texts = {0.403: "only 40%", 1.0: "all", 0.0: "none", 0.996: "99.6%", 0.94: "", 0.88: ""}
    for coverage, text in texts.items():
        coverage_text = robfcp.Diagnosis(
            "x", True, "unexplained", "", "", coverage, 0.9
        ).coverage_text
        assert coverage_text == (
            text and f"{text} of its own cases are covered where 90% should be"
        )


@pytest.mark.parametrize("n_clients", thorough([1, 5], 1))
def test_common_faults_at_real_hospitals_are_diagnosed(n_clients):
    """The hospitals are not those that the priors were fitted to."""
    n_correct = {}
    for min_cell_count in (5, 1):
        rows = diagnosis_accuracy(
            natural_partitions.FEDERATIONS[0],
            max_size=n_clients,
            seed=1,
            min_cell_count=min_cell_count,
        )
        n_correct[min_cell_count] = {row.fault: row.n_correct for row in rows}
        assert set(n_correct[min_cell_count]) == {*NAMES, NO_FAULT}

    # Default reports do not show swapped labels, nor duplicates of small clients.
    causes = ("all-zero", "selection-bias", "label-poisoning", "temperature-scaling", NO_FAULT)
    assert all(n_correct[5][cause] >= n_clients - n_clients // 5 for cause in causes)

    n_correct_on_exact_counts = n_correct[1]
    assert (
        n_correct_on_exact_counts["wrong-file"]
        == n_correct_on_exact_counts["all-zero"]
        == n_clients
    )
    if n_clients == 5:
        assert min(n_correct_on_exact_counts.values()) >= 2
        assert sum(n_correct_on_exact_counts.values()) >= 42
