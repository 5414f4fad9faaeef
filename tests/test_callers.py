"""The calls that documentation and users write, from a client's report to a monitor, in one place.

Each line is one that a reader of the documentation would write; the test fails where a name of the
public interface changes.
"""

import numpy as np
import pytest

import robfcp

CLASSES = ["none", "mild", "severe"]
N_CLIENTS = 9


def client_data(k, n_samples=80):
    """Class probabilities and labels of one client."""
    rng = np.random.default_rng([41, k])
    probabilities = rng.dirichlet(np.ones(3), n_samples)
    labels = (probabilities.cumsum(axis=1) > rng.random((n_samples, 1))).argmax(axis=1)
    return probabilities, labels


def all_reports(**options):
    """A report of each client."""
    reports = []
    for k in range(N_CLIENTS):
        probabilities, labels = client_data(k)
        reports.append(
            robfcp.Report.from_predictions(
                f"hospital-{k}", probabilities, labels, classes=CLASSES, **options
            )
        )
    return reports


def test_a_client_makes_reports(tmp_path):
    probabilities, labels = client_data(3)
    scores = robfcp.LAC()(probabilities, labels)

    report = robfcp.Report.from_predictions("hospital-3", probabilities, labels)
    report = robfcp.Report.from_predictions(
        "hospital-3",
        probabilities,
        labels,
        score=robfcp.APS(),
        classes=CLASSES,
        privacy=robfcp.Privacy(epsilon=1.0),
        stratify_by_class=False,
    )
    report = robfcp.Report.from_predictions(
        "hospital-3", probabilities, labels, groups=labels % 2, min_cell_count=5
    )
    report = robfcp.Report.from_scores(
        "hospital-3",
        scores,
        score=robfcp.LAC(),
        labels=labels,
        classes=CLASSES,
        binning=robfcp.Binning.default(),
    )
    lambdas = np.linspace(0, 1, 11)
    robfcp.Report.from_losses("hospital-3", np.ones((5, 11)) - lambdas, lambdas, risk="fnr")
    robfcp.Report.from_multilabel("hospital-3", probabilities, probabilities > 0.4)
    counts = robfcp.Binning.uniform(100).counts(scores)
    report = robfcp.Report(client="hospital-3", counts=counts, binning=robfcp.Binning.uniform(100))

    assert report.counts.sum() == len(scores)
    report.save(tmp_path / "report.json")
    assert robfcp.Report.load(tmp_path / "report.json") == report
    assert robfcp.Report.from_json(report.to_json()) == report


def test_a_server_reads_a_federation(tmp_path):
    reports = all_reports(round="r1")
    for report in reports:
        report.save(tmp_path / f"{report.client}.json")

    sizes = {f"hospital-{k}": 80 for k in range(N_CLIENTS)}
    federation = robfcp.Federation.from_files(
        tmp_path, registered_sizes=sizes, quorum=0.8, round="r1"
    )
    assert federation.n_clients == N_CLIENTS
    assert robfcp.Federation.from_reports(reports, quorum=0.8).clients == federation.clients


def test_a_server_calibrates():
    reports = all_reports()
    calibration = robfcp.calibrate(reports, coverage=0.9)
    assert robfcp.calibrate(reports, alpha=0.1).threshold == calibration.threshold
    for defense in ("consensus", "rob-fcp", "rob-fcp-released", "none"):
        robfcp.calibrate(reports, coverage=0.9, defense=defense)
    robfcp.calibrate(reports, coverage=0.9, defense=robfcp.RobFCP(n_malicious=3))
    robfcp.calibrate(reports, coverage=0.9, defense=robfcp.Consensus(n_malicious=2))
    robfcp.calibrate(reports, coverage=0.9, defense=robfcp.Consensus(max_malicious=2))

    for guarantee in (
        robfcp.MarginalGuarantee(max_malicious=1),
        robfcp.MarginalGuarantee(max_malicious_samples=5),
        robfcp.PACGuarantee(max_malicious=1, heterogeneity=0.02),
    ):
        guaranteed = robfcp.calibrate(reports, coverage=0.9, guarantee=guarantee)
        assert guaranteed.max_malicious == guarantee.max_malicious

    probabilities, labels = client_data(100, 400)
    trusted_report = robfcp.Report.from_predictions(
        "server", probabilities, labels, classes=CLASSES, min_cell_count=1
    )
    robfcp.calibrate(reports, coverage=0.9, trusted_report=trusted_report)
    levels = robfcp.calibrate(reports, coverage=[0.8, 0.9], certificate_confidence=0.95)
    assert [float(level.coverage) for level in levels.levels] == [0.8, 0.9]


def test_a_server_calibrates_by_class():
    reports = all_reports(stratify_by_class=True)
    by_class = robfcp.calibrate(reports, coverage=0.9, by="class")
    assert len(by_class.strata) == len(CLASSES)
    clusters = {"none": "low", "mild": "low", "severe": "high"}
    assert len(robfcp.calibrate(reports, coverage=0.9, by=clusters).strata) == len(CLASSES)
    guarantee = robfcp.LabelShiftGuarantee(
        max_malicious=1, heterogeneity=0.02, label_distribution="any"
    )
    robfcp.calibrate(reports, coverage=0.9, guarantee=guarantee)


def test_a_server_controls_a_risk():
    rng = np.random.default_rng(42)
    reports = [
        robfcp.Report.from_multilabel(f"hospital-{k}", p := rng.random((60, 4)), p > 0.5)
        for k in range(5)
    ]
    assert robfcp.calibrate(reports, risk_level=0.1).risk.name == "fnr"


def test_anyone_reads_and_uses_a_calibration(tmp_path):
    calibration = robfcp.calibrate(all_reports(stratify_by_class=True), coverage=0.9)
    assert calibration.threshold == calibration.levels[0].threshold
    assert set(calibration.benign_clients) | set(calibration.flagged_clients) == set(
        calibration.verdicts
    )
    assert calibration.verdicts["hospital-0"].status == "benign"
    assert calibration.verdicts["hospital-0"].effect == "included"
    assert calibration.maliciousness.shape == (N_CLIENTS,)
    assert calibration.statement == calibration.certificate.statement
    assert calibration.certificates[2].max_malicious == 2
    assert isinstance(calibration.notes, tuple)
    assert (calibration.max_malicious, calibration.n_malicious) == (None, 0)

    probabilities, labels = client_data(200)
    assert calibration.predict_set(probabilities).shape == probabilities.shape
    calibration.save(tmp_path / "calibration.json")
    loaded = robfcp.Calibration.load(tmp_path / "calibration.json", record=True)
    assert loaded.threshold == calibration.threshold

    feedback = calibration.feedback("hospital-3")
    assert feedback.verdict == "benign"
    local = feedback.calibrate_locally(*client_data(3))
    assert local.levels[0].n_samples == 80
    assert calibration.evaluate(probabilities, labels).result in {
        "ok",
        "undercoverage",
        "inconclusive",
    }
    monitor = robfcp.Monitor(calibration, min_coverage=0.5, seed=0)
    assert monitor.update(probabilities, labels).n_samples == 80


def test_an_interval_is_predicted():
    rng = np.random.default_rng(43)
    reports = []
    for k in range(5):
        targets = rng.normal(size=100)
        scores = robfcp.AbsoluteResidual()(np.zeros(100), targets)
        score = robfcp.AbsoluteResidual()
        reports.append(robfcp.Report.from_scores(f"hospital-{k}", scores, score=score))
    calibration = robfcp.calibrate(reports, coverage=0.9)
    intervals = calibration.predict_interval(np.zeros(3))
    assert intervals.shape == (3, 2)


def test_a_wrong_call_says_what_to_type():
    reports = all_reports()
    with pytest.raises(TypeError, match=r"write calibrate\(reports, coverage=0.9\), or alpha=0.1"):
        robfcp.calibrate(reports, 0.1)
    for name in ("confidence", "confidence_level"):
        with pytest.raises(TypeError, match=r"coverage=0.9 .* certificate_confidence=0.95"):
            robfcp.calibrate(reports, **{name: 0.9})
    with pytest.raises(robfcp.RobfcpError, match="give one of them, not both"):
        robfcp.calibrate(reports, coverage=0.9, alpha=0.1)
    with pytest.warns(robfcp.RobfcpWarning, match="did you mean alpha=0.1, which is coverage=0.9"):
        robfcp.calibrate(reports, coverage=0.1)
    with pytest.raises(TypeError, match="write guarantee"):
        robfcp.calibrate(reports, promise=None)
