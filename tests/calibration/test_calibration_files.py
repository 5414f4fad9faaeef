"""Calibration, record and letters as files: light and apart."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from makers import LAC, beta_scores, reports_of

import robfcp
from robfcp.calibration import Calibration, Letter, load_calibration
from robfcp.calibration.letters import file_names, letters, save_letters
from robfcp.errors import RobfcpError
from robfcp.monitoring import Chain
from robfcp.page import write_page
from robfcp.privacy import Ledger


def reports(n_clients=12, n=50, seed=0, liars=2):
    return reports_of(beta_scores(seed, n_clients, n, liars), round="r", model="m")


@pytest.mark.parametrize("n_clients", [12, 3000])
def test_a_calibration_is_a_few_kilobytes_whatever_the_number_of_clients(n_clients, tmp_path):
    calibration = robfcp.calibrate(reports(n_clients, 5), defence="none")
    calibration.save(tmp_path / "c.json")
    assert (tmp_path / "c.json").stat().st_size < 4000
    assert "site-" not in (tmp_path / "c.json").read_text()


def test_predicting_reads_no_record(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    calibration.record_path(tmp_path / "c.json").unlink()
    light = Calibration.load(tmp_path / "c.json")
    p = np.random.default_rng(0).dirichlet(np.ones(4), 20)
    np.testing.assert_array_equal(light.predict_set(p), calibration.predict_set(p))
    assert light.certificate.statement == calibration.certificate.statement
    assert light.summary.n_flagged == len(calibration.flagged)
    with pytest.raises(RobfcpError, match=r"\.record\.json: no such file"):
        _ = light.flagged


def test_record_can_lie_elsewhere_but_not_be_anothers(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    moved = calibration.record_path(tmp_path / "c.json").rename(tmp_path / "kept.json")
    light = Calibration.load(tmp_path / "c.json")
    again = light.with_record(moved)
    assert again.trusted == calibration.trusted
    assert again.reasons == calibration.reasons
    other = robfcp.calibrate(reports(seed=1))
    other.save(tmp_path / "other.json")
    with pytest.raises(RobfcpError, match="is not the record of this calibration"):
        _ = light.with_record(other.record_path(tmp_path / "other.json")).trusted


def test_a_calibration_without_its_record_is_saved_without_it(tmp_path):
    calibration = robfcp.calibrate(reports())
    light = Calibration.from_json(calibration.to_json())
    light.save(tmp_path / "c.json")
    assert not list(tmp_path.glob("*.record.json"))
    assert Calibration.load(tmp_path / "c.json") == calibration
    with pytest.raises(RobfcpError, match="came without its record"):
        _ = light.federation


def test_what_was_checked_is_recorded(tmp_path):
    plain = robfcp.calibrate(reports())
    assert plain.checked.signatures == "not checked"
    assert plain.checked.sizes == "claimed"
    sizes = {f"site-{k:02d}": 50 for k in range(12)}
    federation = robfcp.Federation.from_reports(reports(), sizes=sizes, round="r", score=LAC)
    stated = robfcp.calibrate(federation)
    stated.save(tmp_path / "c.json")
    checked = Calibration.load(tmp_path / "c.json").checked
    assert (checked.sizes, checked.round, checked.score) == ("registered", "as stated", "as stated")
    assert (checked.model, checked.grid) == ("as most reports", "as most reports")


@pytest.mark.parametrize(
    ("defence", "name", "parameters"),
    [
        (robfcp.Consensus(exactly=2), "consensus", {"exactly": 2, "at_most": None}),
        (robfcp.RobFCP(2, "l1"), "rob-fcp", {"liars": 2, "distance": "l1", "bins": 100}),
        (robfcp.defence.NoDefence(), "none", {}),
        ("consensus", "consensus", {"exactly": None, "at_most": None}),
    ],
    ids=str,
)
def test_the_record_names_the_defence_with_its_parameters(defence, name, parameters, tmp_path):
    calibration = robfcp.calibrate(reports(), defence=defence)
    calibration.save(tmp_path / "c.json")
    settings = Calibration.load(tmp_path / "c.json").record
    assert settings.defence == name
    assert parameters.items() <= dict(settings.parameters).items()


def test_letters_tell_a_site_its_own_verdict_and_nobody_elses(tmp_path):
    faulty = robfcp.Report.from_scores("site-x", np.zeros(9), score=LAC, round="old", model="m")
    sizes = {f"site-{k:02d}": 50 for k in range(13)} | {"site-x": 9}
    federation = robfcp.Federation.from_reports([*reports(), faulty], sizes=sizes, round="r")
    calibration = robfcp.calibrate(federation)
    written = save_letters(calibration, tmp_path / "letters")
    assert len(written) == 14
    verdicts = {}
    for path in written:
        text = path.read_text()
        letter = Letter.load(path)
        verdicts[letter.client] = letter.verdict
        assert text.count("site-") == text.count(letter.client)
        assert letter.calibration == calibration
        assert len(text) < 5000
    assert [name for name, v in verdicts.items() if v == "flagged"] == list(calibration.flagged)
    assert verdicts["site-x"] == "faulty"
    assert verdicts["site-12"] == "missing"
    first = next(letters(calibration))
    assert first.covered == (1.0,)
    assert first.reason == calibration.reasons[first.client]
    with pytest.raises(RobfcpError, match="neither reported nor was registered"):
        calibration.letter("nobody")


def test_a_site_predicts_with_its_letter(tmp_path):
    calibration = robfcp.calibrate(reports())
    written = save_letters(calibration, tmp_path)
    assert load_calibration(written[3]) == calibration
    calibration.save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json").trusted == calibration.trusted


ASTRAY = [
    "../../etc/passwd",
    "a/b",
    ".hidden",
    "x" * 150,
    "C:\\x",
    "é",
    "..",
    "a b",
    "con\u202e",
    "nul",
]


def test_files_of_sites_have_names_of_their_own_that_lead_nowhere_else(tmp_path):
    munich = "Klinik München"
    named_like_its_file = file_names([munich])[munich]
    every = [*ASTRAY, munich, named_like_its_file, "Ward", "ward", "WARD.", "site-01"]
    found = file_names(every)
    assert len({name.casefold() for name in found.values()}) == len(every)
    assert (found["site-01"], found[munich]) == ("site-01", named_like_its_file)
    for name in found.values():
        assert name.isascii()
        assert not set(name) & set("/\\ ")
        assert not name.startswith(".")
        assert len(name) <= 121
    assert file_names(["Ward"]) == {"Ward": "Ward"}
    sent = [robfcp.Report.from_scores(name, [0.1, 0.5, 0.9]) for name in every[10:]]
    written = save_letters(robfcp.calibrate(sent, 0.5, defence="none"), tmp_path)
    assert sorted(Letter.load(path).client for path in written) == sorted(every[10:])


def test_a_calibration_has_its_record_whoever_is_killed_and_however_many_save(
    tmp_path, monkeypatch
):
    path = tmp_path / "c.json"
    old, new = (robfcp.calibrate(reports(seed=seed)) for seed in (1, 2))
    old.save(path)
    for step in range(1, 20):  # killed at the first rename, the second, ...
        left = iter(range(step))

        def dying(source, target, left=left, rename=os.replace):
            if next(left, None) is None:
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr("os.replace", dying)
        with suppress(KeyboardInterrupt):
            new.save(path)
        monkeypatch.undo()
        found = Calibration.load(path)
        assert found.trusted == (new if found == new else old).trusted
        if found == new:
            break
    assert step == 2
    assert [one.name for one in tmp_path.glob("*.record.json")] == [new.record_path("c.json").name]
    here = str(Path(__file__).parent)
    code = "import sys, robfcp; from test_calibration_files import reports; "
    code += "robfcp.calibrate(reports(seed=int(sys.argv[1]))).save('c.json')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, here])}
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(seed)], cwd=tmp_path, env=env)
        for seed in range(4)
    ]
    assert [process.wait(120) for process in running] == [0] * 4
    assert Calibration.load(path).trusted
    assert len(list(tmp_path.glob("*.record.json"))) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no modes")
def test_what_names_sites_is_for_its_owner_alone_and_a_calibration_for_everybody(tmp_path):
    calibration = robfcp.calibrate(reports())
    calibration.save(tmp_path / "c.json")
    (letter, *_) = save_letters(calibration, tmp_path / "letters")
    robfcp.Monitor(calibration, floor=0.8, path=tmp_path / "m.json").update(
        np.full((40, 2), 0.5), np.zeros(40, int)
    )
    write_page(calibration, tmp_path / "page.html")
    Chain.begin(calibration).save(tmp_path / "c.chain.json")
    Ledger(tmp_path / "l.json").charge(robfcp.Privacy(epsilon=1.0))
    secret = [calibration.record_path(tmp_path / "c.json"), letter]
    secret += [tmp_path / name for name in ("m.json", "l.json", "page.html", "c.chain.json")]
    assert {oct(path.stat().st_mode & 0o777) for path in secret} == {"0o600"}
    assert (tmp_path / "c.json").stat().st_mode & 0o044
    letter.chmod(0o640)  # asked otherwise
    save_letters(calibration, tmp_path / "letters")
    assert letter.stat().st_mode & 0o777 == 0o640
