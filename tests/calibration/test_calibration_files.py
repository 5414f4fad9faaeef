"""Calibration, record and letters as files: light and apart; a letter tells of its site only."""

import json
import multiprocessing
import os
import re
from contextlib import suppress
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from makers import LAC, beta_scores, by_class, outputs, reports_of, said

import robfcp
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, feedback_filenames, save_feedback
from robfcp.page import write_html
from robfcp.privacy import PrivacyLedger


def reports(n_clients=12, n=50, seed=0, liars=2):
    return reports_of(beta_scores(seed, n_clients, n, liars), round="r", model="m")


@pytest.mark.parametrize("n_clients", [12, 800])
def test_a_calibration_is_a_few_kilobytes_whatever_the_number_of_clients(n_clients, tmp_path):
    calibration = robfcp.calibrate(reports(n_clients, 5), defense="none")
    calibration.save(tmp_path / "c.json")
    assert (tmp_path / "c.json").stat().st_size < 4000
    assert "site-" not in (tmp_path / "c.json").read_text()


def test_predicting_reads_no_record_and_a_calibration_is_saved_without_it(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    calibration.record_path(tmp_path / "c.json").unlink()
    light = Calibration.load(tmp_path / "c.json")
    p = np.random.default_rng(0).dirichlet(np.ones(4), 20)
    np.testing.assert_array_equal(light.predict_set(p), calibration.predict_set(p))
    assert light.summary.n_flagged == len(calibration.flagged_clients)
    with pytest.raises(RobfcpError, match="record: this calibration came without its record"):
        _ = light.flagged_clients
    with pytest.raises(RobfcpError, match=r"\.record\.json: this calibration came"):
        Calibration.load(tmp_path / "c.json", record=True)
    bare = Calibration.from_json(calibration.to_json())
    bare.save(tmp_path / "c.json")
    assert not list(tmp_path.glob("*.record.json"))
    assert Calibration.load(tmp_path / "c.json") == calibration
    with pytest.raises(RobfcpError, match="came without its record"):
        _ = bare.federation


def test_record_can_lie_elsewhere_but_not_be_anothers(tmp_path):
    calibration, other = (robfcp.calibrate(reports(seed=seed)) for seed in (0, 1))
    calibration.save(tmp_path / "c.json")
    moved = calibration.record_path(tmp_path / "c.json").rename(tmp_path / "kept.json")
    light = Calibration.load(tmp_path / "c.json")
    again = light.with_record(moved)
    assert (again.benign_clients, again.reasons) == (
        calibration.benign_clients,
        calibration.reasons,
    )
    other.save(tmp_path / "other.json")
    with pytest.raises(RobfcpError, match="is not the record of this calibration"):
        _ = light.with_record(other.record_path(tmp_path / "other.json")).benign_clients


def test_letters_tell_a_site_its_own_verdict_and_nobody_elses(tmp_path):
    faulty = robfcp.Report.from_scores("site-x", np.zeros(9), score=LAC, round="old", model="m")
    sizes = {f"site-{k:02d}": 50 for k in range(13)} | {"site-x": 9}
    federation = robfcp.Federation.from_reports(
        [*reports(), faulty], registered_sizes=sizes, round="r"
    )
    calibration = robfcp.calibrate(federation)
    out = dict.fromkeys(calibration.flagged_clients, "flagged") | {
        "site-x": "faulty",
        "site-12": "missing",
    }
    for path in save_feedback(calibration, tmp_path / "letters"):
        text, letter = path.read_text(), ClientFeedback.load(path)
        sizes.pop(letter.client)
        assert letter.verdict == out.get(letter.client, "trusted")
        assert text.count("site-") == text.count(letter.client)
        assert letter.calibration == calibration
        assert letter.reason == calibration.reasons.get(letter.client, letter.reason)
        assert len(text) < 5000
    assert not sizes
    assert calibration.feedback("site-12").sentence == "site-12 sent no report."
    assert calibration.feedback("site-x").sentence.startswith(
        "site-x sent a report that was refused"
    )
    with pytest.raises(RobfcpError, match="neither reported nor was registered"):
        calibration.feedback("nobody")


ASTRAY = ["../../etc/passwd", "a/b", ".hidden", "C:\\x", "nul", "..", "a b", "con\u202e", "x" * 150]


def save_one(path, seed):
    robfcp.calibrate(reports(seed=seed)).save(path)


def test_files_of_sites_have_names_of_their_own_that_lead_nowhere_else(tmp_path):
    munich = "Klinik München"
    named_like_its_file = feedback_filenames([munich])[munich]
    every = [*ASTRAY, munich, named_like_its_file, "Ward", "ward", "WARD.", "site-01"]
    found = feedback_filenames(every)
    assert len({name.casefold() for name in found.values()}) == len(every)
    assert (found["site-01"], found[munich]) == ("site-01", named_like_its_file)
    for name in found.values():
        assert re.fullmatch(r"[!-.0-Z^-~][!-.0-Z^-~]{,120}", name)
        assert not name.startswith(".")
    assert feedback_filenames(["Ward"]) == {"Ward": "Ward"}
    sent = [robfcp.Report.from_scores(name, [0.1, 0.5, 0.9]) for name in every[9:]]
    written = save_feedback(robfcp.calibrate(sent, 0.5, defense="none"), tmp_path)
    assert sorted(ClientFeedback.load(path).client for path in written) == sorted(every[9:])


def test_a_calibration_has_its_record_whoever_is_killed_and_however_many_save(
    tmp_path, monkeypatch
):
    path = tmp_path / "c.json"
    old, new = (robfcp.calibrate(reports(seed=seed)) for seed in (1, 2))
    old.save(path)
    for step, kept in ((1, old), (2, new)):  # killed at the second rename, or at a third
        done = Mock(side_effect=[DEFAULT] * step + [KeyboardInterrupt], wraps=os.replace)
        monkeypatch.setattr("os.replace", done)
        with suppress(KeyboardInterrupt):
            new.save(path)
        monkeypatch.undo()
        found = Calibration.load(path, record=True)
        assert (found, found.benign_clients) == (kept, kept.benign_clients)
    assert [one.name for one in tmp_path.glob("*.record.json")] == [new.record_path("c.json").name]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.starmap(save_one, [(path, seed) for seed in range(4)])
    assert Calibration.load(path, record=True).benign_clients
    assert len(list(tmp_path.glob("*.record.json"))) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no modes")
def test_what_names_sites_is_for_its_owner_alone_and_a_calibration_for_everybody(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    (letter, *_) = save_feedback(calibration, tmp_path / "letters")
    watched = robfcp.Monitor(calibration, min_coverage=0.8, path=tmp_path / "m.json")
    watched.update(np.full((40, 2), 0.5), np.zeros(40, int))
    write_html(calibration, tmp_path / "page.html")
    PrivacyLedger(tmp_path / "l.json").charge(robfcp.Privacy(epsilon=1.0))
    secret = [calibration.record_path(tmp_path / "c.json"), letter]
    secret += [tmp_path / name for name in ("m.json", "l.json", "page.html")]
    assert {oct(path.stat().st_mode & 0o777) for path in secret} == {"0o600"}
    assert (tmp_path / "c.json").stat().st_mode & 0o044
    letter.chmod(0o640)  # asked otherwise
    save_feedback(calibration, tmp_path / "letters")
    assert letter.stat().st_mode & 0o777 == 0o640


@pytest.mark.filterwarnings("ignore:.*are rough")
def test_the_record_holds_the_reports_as_they_were_sent(tmp_path):
    rng, lambdas = np.random.default_rng(0), [0.2, 0.4, 0.6]
    sites = [outputs(seed, 60, 3) for seed in range(5)]
    split = [
        robfcp.Report.from_predictions(
            f"s{k}",
            *site,
            stratify_by_class=(False, True, None)[k % 3],
            include_all_labels=k > 1,
            classes=list("abc"),
        )
        for k, site in enumerate(sites)
    ]
    losses = [
        robfcp.Report.from_losses(f"l{k}", np.sort(rng.random((9, 3)))[:, ::-1], lambdas, risk="x")
        for k in range(3)
    ]
    for sent, asked in ((split, {}), (losses, {"risk_level": 0.9})):
        federation = robfcp.Federation.from_reports(sent)
        assert [robfcp.Report.from_json(one) for one in federation.to_json()] == sent
        robfcp.calibrate(federation, defense="none", **asked).save(tmp_path / "c.json")
        assert list(Calibration.load(tmp_path / "c.json", record=True).federation) == sent


# What a letter says

SITES = tuple(f"site-{k:02d}" for k in range(10))


def federation(*, copy=False):
    """Ten sites; the last swaps two classes, or sends the report of the first."""
    rng = np.random.default_rng(0)
    sites = [outputs(rng, 300, 3, 0.2) for _ in SITES]
    sites[-1] = sites[0] if copy else (sites[-1][0], np.array([0, 2, 1])[sites[-1][1]])
    return by_class(sites, ["mild", "grave", "dead"])


@pytest.fixture(scope="module")
def swapped():
    return robfcp.calibrate(federation(), defense=robfcp.Consensus(at_most=2))


def test_a_site_that_was_left_out_reads_the_pages_diagnosis(swapped):
    letter, one = swapped.feedback(SITES[-1]), robfcp.diagnose(swapped)[SITES[-1]]
    again = ClientFeedback.from_json(letter.to_json())
    assert (again.verdict, again.diagnosis, again.advice) == (
        "flagged",
        one.observation,
        one.advice,
    )
    assert letter.sentence.startswith("site-09 was left out: ")
    assert 'the labels "grave" and "dead" look swapped' in letter.sentence
    assert str(letter) == letter.sentence == str(one)
    assert str(swapped.feedback(SITES[0])) == "site-00 was used."


def test_a_letter_names_no_other_site():
    calibration = robfcp.calibrate(federation(copy=True), defense=robfcp.Consensus(at_most=2))
    said = calibration.feedback(SITES[-1])
    assert "its report is the same as that of another site" in said.sentence
    for letter in (said, calibration.feedback(SITES[0])):
        others = [name for name in SITES if name != letter.client]
        assert not [name for name in others if name in letter.to_json().decode()]
    assert not [name for name in SITES if name in calibration.to_json().decode()]
    assert "site-00, site-09 send the same report" in calibration.notes[0]


def test_commands_say_what_a_letter_says(swapped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swapped.save("c.json")
    save_feedback(swapped, "letters")
    p, _ = outputs(1, 60, 3, 0.2)
    np.savez("new.npz", probabilities=p, labels=p.argmax(axis=1))
    own, letter = "letters/site-09.json", swapped.feedback(SITES[-1])
    for words in (
        ("verify", own),
        ("predict", own, "new.npz"),
        ("check", own, "new.npz"),
        ("predict", "--letter", own, "--local", "new.npz"),
        ("monitor", own, "new.npz"),
    ):
        assert letter.sentence in " ".join(said(*words, code=None).split()), words
    assert "was used" not in said("predict", "letters/site-00.json", "new.npz")
    causes = json.loads(said("verify", "c.json", "--json"))["diagnoses"]
    assert causes[SITES[-1]]["cause"] == "labels swapped"
