"""Local thresholds: feedback, clipping, unseen clients, and no effect of malicious clients."""

import json

import numpy as np
import pytest
from makers import LAC, command_error, command_output, reports_by_class, write_table
from msgspec.structs import replace

import robfcp
from robfcp import Consensus
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, local_thresholds
from robfcp.local._threshold import calibrate_unseen_client
from robfcp.page._strata import strata_data

NAMES = ("flu", "cold", "none")
AT_MOST_TWO = Consensus(max_malicious=2)


def sample_client(rng, n_samples=300, label_distribution=None, separation=1.5):
    """Return probabilities and labels of one client; a larger separation is a better model."""
    y = rng.choice(
        3,
        n_samples,
        p=rng.dirichlet([1, 1, 1]) if label_distribution is None else label_distribution,
    )
    logits = rng.normal(size=(n_samples, 3))
    logits[np.arange(n_samples), y] += separation
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True), y


def sample_clients(seed, n_clients=11, **options):
    rng = np.random.default_rng(seed)
    return [sample_client(rng, **options) for _ in range(n_clients)]


CLIENT_OUTPUTS = sample_clients(5)
REPORTS = reports_by_class(CLIENT_OUTPUTS, NAMES)


@pytest.fixture(scope="module")
def calibration():
    return robfcp.calibrate(REPORTS, defense=AT_MOST_TWO)


def test_feedback_keeps_the_peer_threshold_which_the_client_clips(calibration, tmp_path):
    feedback = calibration.feedback("site-03")
    feedback.save(tmp_path / "feedback.json")
    loaded = ClientFeedback.load(tmp_path / "feedback.json")
    assert loaded.peer_thresholds == feedback.peer_thresholds
    assert feedback.peer_thresholds.label_counts == tuple(
        np.bincount(CLIENT_OUTPUTS[3][1], minlength=3)
    )
    local = loaded.calibrate_locally(*CLIENT_OUTPUTS[3])
    level = local.levels[0]
    local_lower = np.sort(LAC(*CLIENT_OUTPUTS[3]))[
        round(level.marginal_lower * (level.n_samples + 1)) - 1
    ]
    assert (
        local.threshold
        == level.threshold
        == max(local_lower, min(level.peer_threshold, level.local_upper))
    )
    assert level.unclipped == max(local_lower, level.peer_threshold)
    assert local.notes == ()
    fresh = CLIENT_OUTPUTS[4][0]
    for is_clipped, threshold in ((True, level.threshold), (False, level.unclipped)):
        sets = local.predict_set(fresh, clip=is_clipped)
        np.testing.assert_array_equal(sets, LAC.score_all_labels(fresh) <= threshold)
    assert level.mean_set_sizes[2] == pytest.approx(
        local.predict_set(CLIENT_OUTPUTS[3][0]).sum(axis=1).mean()
    )
    assert any("at most 2 other sites are malicious" in text for text in level.statements)
    of_low_peers = replace(
        feedback, peer_thresholds=replace(feedback.peer_thresholds, stored_thresholds=(0.0,))
    ).calibrate_locally(*CLIENT_OUTPUTS[3])
    assert of_low_peers.threshold == local_lower  # whatever peers report


def test_the_server_estimates_each_local_threshold_up_to_one_bin(calibration):
    clients = {"site-00", "site-03", "site-07"}
    estimates = local_thresholds(calibration, clients)
    assert set(estimates) == clients
    edges = calibration.federation.binning.edges
    for client, estimate in estimates.items():
        client_outputs = CLIENT_OUTPUTS[int(client[-2:])]
        local = calibration.feedback(client).calibrate_locally(*client_outputs)
        bins = np.searchsorted(edges, [local.threshold, estimate[0]], side="left")
        assert bins[0] == bins[1]
        assert local.threshold <= estimate[0]
        assert estimate[1] == np.mean(LAC(*client_outputs) <= estimate[0])
    plotted = {
        client["name"]: client["local_threshold"] for client in strata_data(calibration)["clients"]
    }
    assert plotted["site-03"] == [estimates["site-03"][0], round(estimates["site-03"][1], 5)]


def heterogeneous_clients():
    """Return clients that differ within classes, which is no label shift."""
    rng = np.random.default_rng(12)
    return [sample_client(rng, separation=-2.0 if k % 2 else 3.0) for k in range(11)]


@pytest.mark.parametrize(
    ("client_outputs", "stratify_by_class", "client_index", "defense", "message"),
    [
        (CLIENT_OUTPUTS, True, 4, AT_MOST_TWO, "not the labels this site reported"),
        (CLIENT_OUTPUTS, True, 3, Consensus(), "estimated, not stated"),
        (CLIENT_OUTPUTS, False, 3, AT_MOST_TWO, "no threshold from other sites"),
        (
            heterogeneous_clients(),
            True,
            3,
            Consensus(max_malicious=1),
            "more than 1 of them disagree within classes",
        ),
    ],
    ids=["labels", "estimated", "pooled", "heterogeneous"],
)
def test_a_client_learns_why_its_peers_certify_nothing(
    client_outputs, stratify_by_class, client_index, defense, message
):
    calibration = robfcp.calibrate(
        reports_by_class(client_outputs, NAMES, stratify_by_class=stratify_by_class),
        defense=defense,
    )
    local = calibration.feedback("site-03").calibrate_locally(*client_outputs[client_index])
    assert message in local.notes[-1]
    assert not any("other sites are malicious" in text for text in local.levels[0].statements)
    if np.isinf(local.levels[0].peer_threshold):
        assert local.threshold == local.levels[0].local_upper
    if not stratify_by_class:
        assert local_thresholds(calibration, {"site-03"}) == {}


def test_too_few_local_samples_certify_nothing():
    client_outputs = sample_clients(1, 4, n_samples=20)
    calibration = robfcp.calibrate(
        reports_by_class(client_outputs, NAMES),
        coverage=[0.9, 0.8],
        defense=Consensus(max_malicious=1),
    )
    local = calibration.feedback("site-00").calibrate_locally(*client_outputs[0])
    assert np.isinf(local.levels[0].local_upper)
    assert local.levels[0].statements[-1].endswith("prove nothing: too few samples")
    assert local.predict_set(client_outputs[1][0]).shape == (20, 3, 2)


def test_an_unseen_client_gets_the_threshold_of_a_client_with_its_data(calibration):
    unseen_outputs = sample_client(np.random.default_rng(9))
    local = calibrate_unseen_client(calibration, *unseen_outputs)
    assert np.isfinite(local.levels[0].peer_threshold)
    with_client = robfcp.calibrate(
        reports_by_class([*CLIENT_OUTPUTS, unseen_outputs], NAMES), defense=AT_MOST_TWO
    )
    assert with_client.feedback("site-11").peer_thresholds.thresholds == (
        local.levels[0].peer_threshold,
    )


def test_feedback_controls_the_local_risk_whatever_peers_report(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.random((60, 4))
    y = rng.random((60, 4)) < np.sqrt(p)
    report = robfcp.Report.from_multilabel("own", p, y | (p == p.max(axis=1, keepdims=True)))
    malicious_reports = [
        robfcp.Report.from_multilabel(f"{k}", np.ones((60, 4)), y | True) for k in range(9)
    ]
    calibration = robfcp.calibrate([report, *malicious_reports], risk_level=0.1, defense="none")
    calibration.feedback("own").save(tmp_path / "feedback.json")
    local = ClientFeedback.load(tmp_path / "feedback.json").calibrate_risk_locally(report)
    cumulative = np.cumsum(report.counts) / report.risk.resolution  # samples less their summed loss
    max_risk = 0.1 + (0.09 / 60) ** 0.5
    local_lower = report.binning.upper_edges[np.argmax(60 - cumulative + 1 <= 61 * max_risk)]
    assert local.peer_threshold < local_lower == local.threshold < local.local_upper
    assert local.max_risk == pytest.approx(max_risk)
    assert np.array_equal(local.predict_multilabel(p), 1 - p <= local.threshold)
    assert "has a mean fnr of at most 13.88% here on average" in local.statements[0]
    small_report = robfcp.Report.from_multilabel("own", p[:3], y[:3] | True)
    assert (
        "prove nothing: too few"
        in calibration.feedback("own").calibrate_risk_locally(small_report).statements[-1]
    )
    other_risk = robfcp.Report.from_multilabel("own", p, y | True, risk="miss-rate")
    private_report = robfcp.Report.from_multilabel("own", p, y | True, privacy=robfcp.Privacy(1.0))
    for feedback, passed_report, message in (
        (calibration.feedback("own"), other_risk, "is of the loss fnr; report that"),
        (calibration.feedback("own"), private_report, "the report holds noise"),
        (
            robfcp.calibrate(REPORTS).feedback("site-03"),
            report,
            "of no losses; use calibrate_locally",
        ),
    ):
        with pytest.raises(RobfcpError, match=message):
            feedback.calibrate_risk_locally(passed_report)


def test_a_given_heterogeneity_warns_where_label_distributions_differ():
    similar_clients = sample_clients(2, label_distribution=[0.3, 0.3, 0.4])
    for client_outputs, is_noted in ((CLIENT_OUTPUTS, True), (similar_clients, False)):
        calibration = robfcp.calibrate(
            reports_by_class(client_outputs, NAMES),
            guarantee=robfcp.PACGuarantee(2, heterogeneity=0.1),
        )
        assert any("label mixes differ" in note for note in calibration.notes) is is_noted


def test_the_command_gives_an_unseen_client_its_sets(calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration.save("c.json")
    arguments = (
        "predict",
        "c.json",
        "--local-data",
        write_table("own.csv", *CLIENT_OUTPUTS[3], NAMES),
    )
    (level,) = json.loads(command_output(*arguments, "--json"))["levels"]
    command_output(
        *arguments,
        write_table("new.csv", probabilities := CLIENT_OUTPUTS[5][0], names=NAMES),
        "-o",
        "sets.npy",
    )
    np.testing.assert_array_equal(
        np.load("sets.npy"), LAC.score_all_labels(probabilities) <= level["threshold"]
    )
    assert "'4' is none of the calibration's levels" in command_error(*arguments, "--level", 4)


def test_label_shift_does_not_cover_clients_without_counts_of_all_classes():
    p, y = CLIENT_OUTPUTS[2]
    rows = np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y != 0)])
    guarantee = robfcp.LabelShiftGuarantee(1, label_distribution="uniform")
    merged = list(REPORTS)
    merged[2] = robfcp.Report.from_predictions(
        "site-02", p[rows], y[rows], classes=NAMES, min_class_count=5, min_cell_count=1
    )
    calibration = robfcp.calibrate(merged, guarantee=robfcp.LabelShiftGuarantee(1))
    assert calibration.certificate.exclusions == "1 site without counts of all classes (site-02)"
    assert (
        ClientFeedback.from_json(calibration.feedback("site-02").to_json()).peer_thresholds is None
    )
    of_others = robfcp.calibrate([*merged[:2], *merged[3:]], guarantee=guarantee)
    assert robfcp.calibrate(merged, guarantee=guarantee).threshold == of_others.threshold


def coarsened_reports(client_outputs, **options):
    """Return default reports, or reports with coarsened counts by class."""
    return reports_by_class(client_outputs, NAMES, min_cell_count=5, **options)


def test_class_totals_give_no_peer_threshold():
    calibration = robfcp.calibrate(coarsened_reports(CLIENT_OUTPUTS), defense=AT_MOST_TWO)
    assert calibration.federation.class_totals is not None
    feedback = calibration.feedback("site-03")
    assert feedback.peer_thresholds is None
    local = feedback.calibrate_locally(*CLIENT_OUTPUTS[3])
    assert "they reported no counts by class" in local.notes[-1]
    assert "stratify_by_class=True" in local.notes[-1]
    assert local.threshold == local.levels[0].local_upper
    assert local_thresholds(calibration, {"site-03"}) == {}
    with pytest.raises(RobfcpError, match="needs reports by class"):
        calibrate_unseen_client(calibration, *CLIENT_OUTPUTS[3])


def test_peer_thresholds_of_coarsened_counts_are_at_least_those_of_exact_ones(calibration):
    """What holds for bounds on the counts holds for the counts."""
    coarse = robfcp.calibrate(
        coarsened_reports(CLIENT_OUTPUTS, stratify_by_class=True), defense=AT_MOST_TWO
    )
    for client in calibration.federation.clients:
        exact_threshold = calibration.feedback(client).peer_thresholds.thresholds[0]
        peers = coarse.feedback(client).peer_thresholds
        assert peers.thresholds[0] >= exact_threshold
        assert peers.label_counts == calibration.feedback(client).peer_thresholds.label_counts


def test_thresholds_that_the_server_estimates_from_coarsened_reports_are_close():
    """Estimates from midpoints are compared with thresholds from the exact local scores."""
    client_outputs = sample_clients(8, n_samples=600, label_distribution=(0.4, 0.3, 0.3))
    reports = coarsened_reports(client_outputs, stratify_by_class=True)
    calibration = robfcp.calibrate(reports, defense=Consensus(max_malicious=1))
    estimates = local_thresholds(calibration, set(calibration.federation.clients))
    errors = []
    for client, (threshold, coverage) in estimates.items():
        outputs_of_client = client_outputs[int(client[-2:])]
        local = calibration.feedback(client).calibrate_locally(*outputs_of_client)
        assert threshold == pytest.approx(local.threshold, abs=0.03)
        errors.append(coverage - np.mean(LAC(*outputs_of_client) <= threshold))
    assert len(errors) == len(client_outputs)
    assert np.abs(errors).max() < 5 * 3 / 600
    assert abs(np.mean(errors)) < 0.004


def test_the_coverage_that_feedback_states_is_unbiased():
    errors = []
    for seed in range(4):
        client_outputs = sample_clients(seed, n_samples=100)
        calibration = robfcp.calibrate(coarsened_reports(client_outputs), defense="none")
        for client, outputs_of_client in zip(
            calibration.federation.clients, client_outputs, strict=True
        ):
            stated_coverage = calibration.feedback(client).coverage[0]
            errors.append(
                stated_coverage - np.mean(LAC(*outputs_of_client) <= calibration.threshold)
            )
    assert np.abs(errors).max() <= 5 / 100
    assert abs(np.mean(errors)) < 0.01  # a sample; of the counts as sent two and a half


@pytest.mark.parametrize("min_cell_count", [1, 5])
def test_feedback_is_made_where_one_of_two_clients_with_classes_is_malicious(min_cell_count):
    """Nothing can be guaranteed by class, and all clients get their feedback."""
    reports = []
    for k in range(6):
        rng = np.random.default_rng(50 + k)
        p = rng.dirichlet(np.ones(3), 200)
        labels = (p.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
        if k == 5:
            labels = p.argmin(axis=1)
        reports.append(
            robfcp.Report.from_predictions(
                f"s{k}", p, labels, stratify_by_class=k > 3, min_cell_count=min_cell_count
            )
        )
    calibration = robfcp.calibrate(reports, coverage=0.9)
    assert calibration.flagged_clients == ("s5",)
    for client in calibration.federation.clients:
        assert calibration.feedback(client).peer_thresholds is None
