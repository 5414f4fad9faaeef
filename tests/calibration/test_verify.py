"""A forged calibration is refused under a pinned key, and found out by its record."""

import msgspec
import numpy as np
import pytest
from makers import reports_of
from msgspec.structs import replace

import robfcp
from robfcp.calibration.audit import check_own_report, verify_calibration
from robfcp.calibration.calibration import load_calibration
from robfcp.calibration.file_format import check_signer, digest_of, sign_sealed
from robfcp.calibration.letters import save_letters
from robfcp.errors import RobfcpError

pytest.importorskip("cryptography")
from robfcp.report.signing import generate_key, load_key, read_public_key


def reports(n_clients=12, seed=0):
    scores = np.random.default_rng(seed).random((n_clients, 80)) ** 2
    scores[3] = 0
    return reports_of(scores, model="m1")


@pytest.fixture
def server(tmp_path):
    public = generate_key(tmp_path / "server.key")
    return load_key(tmp_path / "server.key"), public


@pytest.fixture
def calibration():
    return robfcp.calibrate(reports(), defence=robfcp.Consensus(at_most=2))


def forged(data, change):
    """The file with another body and a digest that fits it."""
    envelope = msgspec.json.decode(data)
    change(envelope["body"])
    envelope["digest"] = digest_of(msgspec.json.encode(envelope["body"]))
    return msgspec.json.encode(envelope)


def test_a_forged_threshold_loads_unpinned_and_is_refused_pinned(tmp_path, calibration, server):
    key, public = server
    path = tmp_path / "c.json"
    calibration.save(path, key)
    assert robfcp.Calibration.load(path, public) == calibration
    path.write_bytes(forged(path.read_bytes(), FORGERIES["threshold"]))
    assert robfcp.Calibration.load(path).threshold == EDGE  # a digest is no signature
    with pytest.raises(RobfcpError, match="not signed by the pinned key"):
        robfcp.Calibration.load(path, public)


@pytest.mark.parametrize("attack", ["unsigned", "another key", "another key named", "kind"])
def test_no_other_signature_will_do(tmp_path, calibration, server, attack):
    own, public = server
    generate_key(tmp_path / "other.key")
    data = calibration.to_json()
    if attack != "unsigned":
        data = sign_sealed(data, own if attack == "kind" else load_key(tmp_path / "other.key"))
    envelope = msgspec.json.decode(data)
    # a signature over one kind of file means nothing for another
    envelope |= {"another key named": {"key": public}, "kind": {"kind": "letter"}}.get(attack, {})
    with pytest.raises(RobfcpError, match="is not signed"):
        check_signer(msgspec.json.encode(envelope), public, "c.json")


def test_letters_are_signed_as_a_whole(tmp_path, calibration, server):
    key, public = server
    (path, *_) = save_letters(calibration, tmp_path / "letters", key)
    assert load_calibration(path, public) == calibration
    other = forged(path.read_bytes(), lambda body: body.update(verdict="flagged"))
    for data in (other, calibration.letter("site-00").to_json()):
        path.write_bytes(data)
        with pytest.raises(RobfcpError, match="is not signed"):
            load_calibration(path, public)


def test_a_public_key_is_read_from_its_text_its_file_or_a_registry(tmp_path, server):
    _, public = server
    assert read_public_key(public) == public
    assert read_public_key(str(tmp_path / "server.key.pub")) == public
    (tmp_path / "r.toml").write_text(f'["server"]\nkey = "{public}"\n')
    assert read_public_key(str(tmp_path / "r.toml")) == public
    (tmp_path / "empty").write_bytes(b"\xff\xfe nothing")
    for wrong in ("ed25519:", "ed25519:AAAA", str(tmp_path / "empty")):
        with pytest.raises(RobfcpError, match="not an Ed25519 public key"):
            read_public_key(wrong)


SETTINGS = [
    {"defence": robfcp.Consensus(at_most=2), "coverage": [0.8, 0.9]},
    {"defence": robfcp.Consensus(exactly=2)},
    {"defence": robfcp.RobFCP(liars=2, distance="l1")},
    {"defence": "none", "confidence": 0.8},
    {"promise": robfcp.Marginal(2)},
    {"promise": robfcp.Pac(2, alike=0.3)},
    {"promise": robfcp.Marginal(samples=100)},
]


@pytest.mark.parametrize("settings", [*SETTINGS, "private"], ids=str)
def test_an_honest_calibration_is_what_its_record_gives(tmp_path, settings):
    sent = reports()
    if settings == "private":
        pytest.importorskip("opendp.prelude")
        scores = np.random.default_rng(0).random((8, 200))
        sent = reports_of(scores, grid=robfcp.Grid.uniform(16), privacy=robfcp.Privacy(2.0))
        settings = {"defence": robfcp.Consensus(at_most=1)}
    robfcp.calibrate(sent, **settings).save(tmp_path / "c.json")
    assert verify_calibration(robfcp.Calibration.load(tmp_path / "c.json")) == []


EDGE = float(robfcp.Grid.default().upper[7])
FORGERIES = {
    "threshold": lambda body: body["levels"][0].update(threshold=EDGE),
    "certificate lower": lambda body: body["levels"][0]["certificate"].update(lower=0.99, upper=1),
    "certificate m": lambda body: body["levels"][0]["certificate"].update(m=1),
    "liars": lambda body: body.update(liars=3),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_every_forged_statement_is_named(calibration, what):
    data = forged(calibration.to_json(), FORGERIES[what])
    changed = robfcp.Calibration.from_json(data).with_record(calibration.record)
    found = verify_calibration(changed)
    assert what in [difference.what for difference in found]
    assert "but its record gives" in found[0].line


def test_a_forged_verdict_is_found(calibration):
    record, odd = calibration.record, calibration.oddness.copy()
    changed = calibration.with_record(replace(record, flagged={"site-00": "odd"}))
    found = {each.what: (each.stated, each.recomputed) for each in verify_calibration(changed)}
    assert found["flagged"] == (["site-00"], ["site-03"])
    odd[5] += 1
    changed = calibration.with_record(replace(record, oddness=odd))
    assert [each.what for each in verify_calibration(changed)] == ["the oddness of site-05"]


def test_a_site_finds_its_own_report_in_the_record(calibration):
    assert check_own_report(calibration, reports()[4]) == []
    stranger = robfcp.Report.from_scores("stranger", [0.5], score=robfcp.LAC())
    for own, stated in ((reports(seed=1)[4], "another one"), (stranger, "no report")):
        assert [each.stated for each in check_own_report(calibration, own)] == [stated]


def test_what_was_an_object_cannot_be_made_again():
    class Mine(robfcp.defence.NoDefence):
        name = "mine"

    calibration = robfcp.calibrate(reports(), defence=Mine())
    assert (calibration.record.defence, calibration.record.parameters) == ("custom:mine", {})
    with pytest.raises(RobfcpError, match="cannot be made again"):
        verify_calibration(calibration)
