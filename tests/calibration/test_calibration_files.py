"""Calibration, record and client feedback as files; feedback is about its client only."""

import json
import multiprocessing
import os
import re
from contextlib import suppress
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from makers import LAC, beta_scores, command_output, outputs, reports_by_class, reports_of

import robfcp
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, feedback_filenames, save_feedback
from robfcp.page import write_html
from robfcp.privacy import PrivacyLedger


def reports(n_clients=12, n=50, seed=0, n_malicious=2):
    return reports_of(beta_scores(seed, n_clients, n, n_malicious), round="r", model="m")


@pytest.mark.parametrize("n_clients", [12, 800])
def test_a_calibration_is_a_few_kilobytes_whatever_the_number_of_clients(n_clients, tmp_path):
    calibration = robfcp.calibrate(reports(n_clients, 5), defense="none")
    calibration.save(tmp_path / "c.json")
    assert (tmp_path / "c.json").stat().st_size < 4000
    assert "site-" not in (tmp_path / "c.json").read_text()


def test_predicting_does_not_read_the_record_and_saving_does_not_need_it(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    calibration.record_path(tmp_path / "c.json").unlink()
    without_record = Calibration.load(tmp_path / "c.json")
    p = np.random.default_rng(0).dirichlet(np.ones(4), 20)
    np.testing.assert_array_equal(without_record.predict_set(p), calibration.predict_set(p))
    assert without_record.summary.n_flagged == len(calibration.flagged_clients)
    with pytest.raises(RobfcpError, match="record: this calibration came without its record"):
        _ = without_record.flagged_clients
    with pytest.raises(RobfcpError, match=r"\.record\.json: this calibration came"):
        Calibration.load(tmp_path / "c.json", record=True)
    unsaved = Calibration.from_json(calibration.to_json())
    unsaved.save(tmp_path / "c.json")
    assert not list(tmp_path.glob("*.record.json"))
    assert Calibration.load(tmp_path / "c.json") == calibration
    with pytest.raises(RobfcpError, match="came without its record"):
        _ = unsaved.federation


def test_a_record_may_be_elsewhere_but_not_of_another_calibration(tmp_path):
    calibration, other_calibration = (robfcp.calibrate(reports(seed=seed)) for seed in (0, 1))
    calibration.save(tmp_path / "c.json")
    record_path = calibration.record_path(tmp_path / "c.json").rename(tmp_path / "kept.json")
    without_record = Calibration.load(tmp_path / "c.json")
    with_record = without_record.with_record(record_path)
    assert with_record.benign_clients == calibration.benign_clients
    assert with_record.reasons == calibration.reasons
    other_calibration.save(tmp_path / "other.json")
    with pytest.raises(RobfcpError, match="is not the record of this calibration"):
        _ = without_record.with_record(
            other_calibration.record_path(tmp_path / "other.json")
        ).benign_clients


def test_feedback_states_the_verdict_of_its_client_and_of_no_other(tmp_path):
    outdated = robfcp.Report.from_scores("site-x", np.zeros(9), score=LAC, round="old", model="m")
    sizes = {f"site-{k:02d}": 50 for k in range(13)} | {"site-x": 9}
    federation = robfcp.Federation.from_reports(
        [*reports(), outdated], registered_sizes=sizes, round="r"
    )
    calibration = robfcp.calibrate(federation)
    expected_verdicts = dict.fromkeys(calibration.flagged_clients, "flagged") | {
        "site-x": "rejected",
        "site-12": "missing",
    }
    for path in save_feedback(calibration, tmp_path / "feedback"):
        text, feedback = path.read_text(), ClientFeedback.load(path)
        sizes.pop(feedback.client)
        assert feedback.verdict == expected_verdicts.get(feedback.client, "benign")
        assert text.count("site-") == text.count(feedback.client)
        assert feedback.calibration == calibration
        assert feedback.reason == calibration.reasons.get(feedback.client, feedback.reason)
        assert len(text) < 5000
    assert not sizes
    assert calibration.feedback("site-12").sentence == "site-12 sent no report."
    assert calibration.feedback("site-x").sentence.startswith(
        "site-x sent a report that was refused"
    )
    with pytest.raises(RobfcpError, match="neither reported nor was registered"):
        calibration.feedback("absent")


UNSAFE_NAMES = [
    "../../etc/passwd",
    "a/b",
    ".hidden",
    "C:\\x",
    "nul",
    "..",
    "a b",
    "con\u202e",
    "x" * 150,
]


def save_calibration(path, seed):
    robfcp.calibrate(reports(seed=seed)).save(path)


def test_feedback_files_have_distinct_names_that_stay_in_their_folder(tmp_path):
    munich = "Klinik München"
    named_like_its_file = feedback_filenames([munich])[munich]
    client_names = [*UNSAFE_NAMES, munich, named_like_its_file, "Ward", "ward", "WARD.", "site-01"]
    filenames = feedback_filenames(client_names)
    assert len({name.casefold() for name in filenames.values()}) == len(client_names)
    assert (filenames["site-01"], filenames[munich]) == ("site-01", named_like_its_file)
    for name in filenames.values():
        assert re.fullmatch(r"[!-.0-Z^-~][!-.0-Z^-~]{,120}", name)
        assert not name.startswith(".")
    assert feedback_filenames(["Ward"]) == {"Ward": "Ward"}
    reports = [robfcp.Report.from_scores(name, [0.1, 0.5, 0.9]) for name in client_names[9:]]
    paths = save_feedback(robfcp.calibrate(reports, coverage=0.5, defense="none"), tmp_path)
    assert sorted(ClientFeedback.load(path).client for path in paths) == sorted(client_names[9:])


def test_a_calibration_has_its_record_after_kills_and_concurrent_saves(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    old, new = (robfcp.calibrate(reports(seed=seed)) for seed in (1, 2))
    old.save(path)
    for n_renames, expected in ((1, old), (2, new)):  # killed at the second rename, or at the third
        replace = Mock(side_effect=[DEFAULT] * n_renames + [KeyboardInterrupt], wraps=os.replace)
        monkeypatch.setattr("os.replace", replace)
        with suppress(KeyboardInterrupt):
            new.save(path)
        monkeypatch.undo()
        loaded = Calibration.load(path, record=True)
        assert (loaded, loaded.benign_clients) == (expected, expected.benign_clients)
    assert [record_path.name for record_path in tmp_path.glob("*.record.json")] == [
        new.record_path("c.json").name
    ]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.starmap(save_calibration, [(path, seed) for seed in range(4)])
    assert Calibration.load(path, record=True).benign_clients
    assert len(list(tmp_path.glob("*.record.json"))) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no modes")
def test_files_that_name_clients_are_private_and_a_calibration_is_not(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    (feedback_path, *_) = save_feedback(calibration, tmp_path / "feedback")
    monitor = robfcp.Monitor(calibration, min_coverage=0.8, path=tmp_path / "m.json")
    monitor.update(np.full((40, 2), 0.5), np.zeros(40, int))
    write_html(calibration, tmp_path / "page.html")
    PrivacyLedger(tmp_path / "l.json").charge(robfcp.Privacy(epsilon=1.0))
    private_paths = [calibration.record_path(tmp_path / "c.json"), feedback_path]
    private_paths += [tmp_path / name for name in ("m.json", "l.json", "page.html")]
    assert {oct(path.stat().st_mode & 0o777) for path in private_paths} == {"0o600"}
    assert (tmp_path / "c.json").stat().st_mode & 0o044
    feedback_path.chmod(0o640)  # as an administrator may set it
    save_feedback(calibration, tmp_path / "feedback")
    assert feedback_path.stat().st_mode & 0o777 == 0o640


@pytest.mark.filterwarnings("ignore:.*are rough")
def test_the_record_holds_the_reports_unchanged(tmp_path):
    rng, lambdas = np.random.default_rng(0), [0.2, 0.4, 0.6]
    client_outputs = [outputs(seed, 60, 3) for seed in range(5)]
    scores_reports = [
        robfcp.Report.from_predictions(
            f"s{k}",
            *samples,
            stratify_by_class=(False, True, None)[k % 3],
            include_all_labels=k > 1,
            classes=list("abc"),
        )
        for k, samples in enumerate(client_outputs)
    ]
    loss_reports = [
        robfcp.Report.from_losses(f"l{k}", np.sort(rng.random((9, 3)))[:, ::-1], lambdas, risk="x")
        for k in range(3)
    ]
    for reports, options in ((scores_reports, {}), (loss_reports, {"risk_level": 0.9})):
        federation = robfcp.Federation.from_reports(reports)
        assert [robfcp.Report.from_json(document) for document in federation.to_json()] == reports
        robfcp.calibrate(federation, defense="none", **options).save(tmp_path / "c.json")
        assert list(Calibration.load(tmp_path / "c.json", record=True).federation) == reports


# What feedback states

CLIENTS = tuple(f"site-{k:02d}" for k in range(10))


def federation(*, is_copied=False):
    """Return ten reports by class; the last swaps two classes, or is a copy of the first."""
    rng = np.random.default_rng(0)
    client_outputs = [outputs(rng, 300, 3, 0.2) for _ in CLIENTS]
    probabilities, labels = client_outputs[-1]
    swapped_labels = np.array([0, 2, 1])[labels]
    client_outputs[-1] = client_outputs[0] if is_copied else (probabilities, swapped_labels)
    return reports_by_class(client_outputs, ["mild", "grave", "dead"])


@pytest.fixture(scope="module")
def swapped():
    return robfcp.calibrate(federation(), defense=robfcp.Consensus(max_malicious=2))


def test_feedback_to_an_excluded_client_is_the_diagnosis_of_the_page(swapped):
    feedback = swapped.feedback(CLIENTS[-1])
    diagnosis = robfcp.diagnose(swapped)[CLIENTS[-1]]
    decoded = ClientFeedback.from_json(feedback.to_json())
    assert decoded.verdict == "flagged"
    assert decoded.diagnosis == diagnosis.observation
    assert decoded.recommendation == diagnosis.recommendation
    assert feedback.sentence.startswith("site-09 was left out: ")
    assert 'the labels "grave" and "dead" look swapped' in feedback.sentence
    assert str(feedback) == feedback.sentence == str(diagnosis)
    assert str(swapped.feedback(CLIENTS[0])) == "site-00 was used."


def test_feedback_names_no_other_client():
    calibration = robfcp.calibrate(
        federation(is_copied=True), defense=robfcp.Consensus(max_malicious=2)
    )
    duplicate_feedback = calibration.feedback(CLIENTS[-1])
    assert "its report is the same as that of another site" in duplicate_feedback.sentence
    for feedback in (duplicate_feedback, calibration.feedback(CLIENTS[0])):
        other_clients = [name for name in CLIENTS if name != feedback.client]
        assert not [name for name in other_clients if name in feedback.to_json().decode()]
    assert not [name for name in CLIENTS if name in calibration.to_json().decode()]
    assert "site-00, site-09 send the same report" in calibration.notes[0]


def test_commands_print_the_sentence_of_the_feedback(swapped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swapped.save("c.json")
    save_feedback(swapped, "feedback")
    p, _ = outputs(1, 60, 3, 0.2)
    np.savez("new.npz", probabilities=p, labels=p.argmax(axis=1))
    path, feedback = "feedback/site-09.json", swapped.feedback(CLIENTS[-1])
    for arguments in (
        ("verify", path),
        ("predict", path, "new.npz"),
        ("evaluate", path, "new.npz"),
        ("predict", "--feedback", path, "--local-data", "new.npz"),
        ("monitor", path, "new.npz"),
    ):
        assert feedback.sentence in " ".join(command_output(*arguments, code=None).split()), (
            arguments
        )
    assert "was used" not in command_output("predict", "feedback/site-00.json", "new.npz")
    diagnoses = json.loads(command_output("verify", "c.json", "--json"))["diagnoses"]
    assert diagnoses[CLIENTS[-1]]["cause"] == "labels swapped"
