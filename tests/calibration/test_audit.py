"""A forged calibration is refused under a pinned key and found out by its record; no line of a
server's log can be altered, dropped or inserted unseen."""

import json
import multiprocessing
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from makers import LAC, by_class, outputs, reports_of

import robfcp
from robfcp._sealed import check_signer, sha256_of
from robfcp.audit import AuditLog, find_own_report, log_calibration, verify_calibration
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, save_feedback

pytest.importorskip("cryptography")
from robfcp.reports.signing import generate_key, load_key, read_public_key


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
    return robfcp.calibrate(reports(), defense=robfcp.Consensus(at_most=2))


def forged(data, change):
    """The file with another body and a digest that fits it."""
    envelope = msgspec.json.decode(data)
    change(envelope["body"])
    envelope["digest"] = sha256_of(msgspec.json.encode(envelope["body"]))
    return msgspec.json.encode(envelope)


@pytest.mark.parametrize("attack", ["unsigned", "another key", "another key named", "kind"])
def test_no_other_signature_will_do(tmp_path, calibration, server, attack):
    own, public = server
    generate_key(tmp_path / "other.key")
    keys = {"unsigned": None, "kind": own}
    data = calibration.to_json(keys.get(attack, load_key(tmp_path / "other.key")))
    envelope = msgspec.json.decode(data)
    # a signature over one kind of file means nothing for another
    envelope |= {"another key named": {"key": public}, "kind": {"kind": "letter"}}.get(attack, {})
    with pytest.raises(RobfcpError, match="is not signed"):
        check_signer(msgspec.json.encode(envelope), public, "c.json")


def test_letters_are_signed_as_a_whole(tmp_path, calibration, server):
    key, public = server
    (path, *_) = save_feedback(calibration, tmp_path / "letters", key)
    assert ClientFeedback.load(path, public).calibration == calibration
    other = forged(path.read_bytes(), lambda body: body.update(verdict="flagged"))
    for data in (other, calibration.feedback("site-00").to_json()):
        path.write_bytes(data)
        with pytest.raises(RobfcpError, match="is not signed"):
            ClientFeedback.load(path, public)


def test_a_public_key_is_read_from_its_text_its_file_or_a_registry(tmp_path, server):
    _, public = server
    assert read_public_key(public) == public
    assert read_public_key(str(tmp_path / "server.key.pub")) == public
    (tmp_path / "r.toml").write_text(f'["server"]\nkey = "{public}"\n')
    assert read_public_key(str(tmp_path / "r.toml")) == public


NAMES = ("flu", "cold", "none")
SITES = [outputs(seed, 200, 3) for seed in range(9)]
SETTINGS = [
    {"defense": robfcp.Consensus(at_most=2), "coverage": [0.8, 0.9]},
    {"defense": robfcp.Consensus(exactly=2)},
    {"defense": robfcp.RobFCP(liars=2, distance="l1")},
    {"defense": "none", "certificate_confidence": 0.8},
    {"guarantee": robfcp.PACGuarantee(2, alike=0.3)},
    {"guarantee": robfcp.MarginalGuarantee(samples=100)},
    {"by": "class"},
    {"by": "class", "guarantee": robfcp.MarginalGuarantee(2), "coverage": [0.9, 0.8]},
    {"by": {"flu": "ill", "cold": "ill", "none": "well"}},
    {"guarantee": robfcp.LabelShiftGuarantee(2)},
    {"guarantee": robfcp.LabelShiftGuarantee(1, mix="any")},
    {"guarantee": robfcp.LabelShiftGuarantee(1, mix=["uniform", {"flu": np.float32(1)}])},
    {"by": "class", "privacy": robfcp.Privacy(4.0), "binning": robfcp.Binning.uniform(16)},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_honest_calibration_is_what_its_file_and_its_record_give(settings, tmp_path):
    made = {name: settings[name] for name in ("privacy", "binning") if name in settings}
    asked = {name: value for name, value in settings.items() if name not in made}
    found = robfcp.calibrate(by_class(SITES, NAMES, stratify_by_class=True, **made), **asked)
    found.save(tmp_path / "c.json")
    loaded = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    assert verify_calibration(loaded) == []
    assert (loaded, loaded.record.guarantee) == (found, found.record.guarantee)
    assert (loaded.levels, loaded.classes) == (found.levels, NAMES)
    assert {one.certificate.n_clients for one in loaded.levels} == {len(SITES)}
    covered = loaded.client_coverage()
    for k, (p, y) in enumerate(() if made else SITES):
        for level, one in enumerate(found.levels):
            limits = one.threshold if found.by is None else [part.threshold for part in one.strata]
            inside = LAC(p, y) <= np.broadcast_to(limits, 3)[y]
            assert covered[k, level] == pytest.approx(inside.mean())


EDGE = float(robfcp.Binning.default().upper_edges[7])
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
    record, odd = calibration.record, calibration.maliciousness.copy()
    changed = calibration.with_record(replace(record, reasons={"site-00": "odd"}))
    found = {each.what: (each.stated, each.recomputed) for each in verify_calibration(changed)}
    assert found["flagged"] == (["site-00"], ["site-03"])
    odd[5] += 1
    changed = calibration.with_record(replace(record, maliciousness=odd))
    assert [each.what for each in verify_calibration(changed)] == ["the oddness of site-05"]


def test_a_site_finds_its_own_report_in_the_record(calibration):
    assert find_own_report(calibration, reports()[4]) == []
    stranger = robfcp.Report.from_scores("stranger", [0.5], score=robfcp.LAC())
    for own, stated in ((reports(seed=1)[4], "another one"), (stranger, "no report")):
        assert [each.recomputed for each in find_own_report(calibration, own)] == [stated]


def test_what_was_an_object_cannot_be_made_again():
    class Mine(robfcp.defense.FCP):
        name = "mine"

    calibration = robfcp.calibrate(reports(), defense=Mine())
    assert (calibration.record.defense, calibration.record.parameters) == ("custom:mine", {})
    with pytest.raises(RobfcpError, match="cannot be made again"):
        verify_calibration(calibration)


# The log


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    calibration = robfcp.calibrate([*reports(), "{broken"], defense=robfcp.Consensus(at_most=2))
    log_calibration(log, calibration, {"malicious": 2})
    return log


def test_a_round_is_logged_as_it_went(log):
    events = list(log.events())
    kinds = Counter(event["event"] for event in events)
    assert (kinds["report received"], kinds["report refused"]) == (12, 1)
    assert (events[0]["event"], events[0]["terms"]) == ("round opened", {"malicious": 2})
    assert events[-1]["event"] == "calibration written"
    assert [e["client"] for e in events if e.get("verdict") == "flagged"] == ["site-03"]


CHANGES = [
    (lambda lines: lines[:3] + lines[4:], 2),
    (lambda lines: lines[:3] + [lines[2]] + lines[3:], 2),
    (lambda lines: [lines[1], lines[0], *lines[2:]], 0),
    (lambda lines: lines[:3] + [lines[3].replace("trusted", "flagged")] + lines[4:], 3),
    (lambda lines: lines[:3] + ["{}"] + lines[4:], 2),
    (lambda lines: lines[:3] + ["[" * 5000] + lines[4:], 2),
    (lambda lines: lines[1:], 0),
]


@pytest.mark.parametrize(("change", "sound"), CHANGES)
def test_every_change_breaks_the_chain(log, change, sound):
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join(change(lines)) + "\n")
    words = f"trust lines 1 to {sound} at most" if sound else "trust none"
    with pytest.raises(RobfcpError, match=words):
        list(log.events())


def write(path):
    for number in range(20):
        AuditLog(path).write("test", number=number)


def test_several_processes_keep_one_chain(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(write, [tmp_path / "a"] * 4)
    assert len(list(AuditLog(tmp_path / "a").events())) == 80


def test_lines_are_json_that_steers_no_terminal_and_one_cut_short_is_refused(tmp_path):
    log = AuditLog(tmp_path / "a")
    log.write("x", name="a\n\x1b[2J\u202e", number=float(1), path=tmp_path)
    (line,) = log.path.read_text("ascii").splitlines()
    assert "\x1b" not in line
    assert json.loads(line)["name"] == "a\n\x1b[2J\u202e"
    with pytest.raises(RobfcpError, match="too long"):
        log.write("x", name="x" * 2**21)
    log.path.write_text(line[:-5])
    with pytest.raises(RobfcpError, match="cut short"):
        log.write("more")
