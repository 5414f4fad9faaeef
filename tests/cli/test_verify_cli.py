"""keygen, calibrate --sign, and everything that reads with --server-key."""

import json

import msgspec
import pytest
from test_cli import RUNNER, invoke, write_csv

import robfcp
from robfcp.calibration.sealed import digest_of
from robfcp.cli import app

pytest.importorskip("cryptography")


def refused(*words):
    """The one line of a refused call."""
    result = RUNNER.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, robfcp.RobfcpError)
    return str(result.exception)


@pytest.fixture
def signed(tmp_path):
    paths = []
    for k in range(6):
        write_csv(tmp_path / f"{k}.csv", 60, k)
        paths.append(tmp_path / f"{k}.json")
        invoke("sketch", tmp_path / f"{k}.csv", "-c", f"site-{k}", "-o", paths[-1], "--model", "m1")
    invoke("keygen", "server", "-o", tmp_path / "server.key")
    words = "--sign", tmp_path / "server.key", "--letters", tmp_path / "letters"
    invoke("calibrate", *paths, "--malicious", 1, "-o", tmp_path / "c.json", *words)
    return tmp_path


def forge(path):
    envelope = msgspec.json.decode(path.read_bytes())
    envelope["body"]["levels"][0]["threshold"] = float(robfcp.Grid.default().upper[3])
    envelope["digest"] = digest_of(msgspec.json.encode(envelope["body"]))
    path.write_bytes(msgspec.json.encode(envelope))


def test_readers_with_a_pinned_key_refuse_a_forgery(signed):
    pinned = "--server-key", signed / "server.key.pub"
    readers = [
        ("predict", signed / "c.json", signed / "0.csv"),
        ("predict", signed / "letters" / "site-0.json", signed / "0.csv"),
        ("page", signed / "c.json", "-o", signed / "p.html"),
        ("certify", signed / "c.json"),
        ("verify", signed / "c.json", signed / "c.evidence.json"),
    ]
    for words in readers:
        invoke(*words, *pinned)
    forge(signed / "c.json")
    for words in readers:
        if "letters" not in str(words[1]):
            assert "not signed by the pinned key" in refused(*words, *pinned)
    assert "signs calibrations" in refused("certify", signed / "0.json", *pinned)


def test_verify_says_what_differs(signed):
    text = invoke("verify", signed / "c.json", "--report", signed / "2.json")
    assert "Everything is as the 6 reports" in " ".join(text.split())
    forge(signed / "c.json")
    assert "threshold is stated as" in refused("verify", signed / "c.json")
    result = RUNNER.invoke(app, ["verify", str(signed / "c.json"), "--json"])
    data = json.loads(result.stdout)
    assert "threshold" in [d["what"] for d in data["differences"]]
    assert data["signature"] == "not checked"


def test_calibrate_and_verify_write_a_log_that_audit_checks(signed):
    log = signed / "audit.jsonl"
    paths = [signed / f"{k}.json" for k in range(6)]
    invoke("calibrate", *paths, "--malicious", 1, "-o", signed / "d.json", "--audit", log)
    invoke("verify", signed / "d.json", "--audit", log)
    events = json.loads(invoke("audit", log, "--json"))
    assert [event["event"] for event in events][-2:] == ["calibration written", "file verified"]
    assert "the chain holds" in invoke("audit", log)
    log.write_text(log.read_text().replace("trusted", "flagged", 1))
    assert "was altered" in refused("audit", log)


def test_predict_refuses_another_model(signed):
    words = "predict", signed / "c.json", signed / "0.csv"
    invoke(*words, "--model", "m1")
    assert "was made for model m1, not m2" in refused(*words, "--model", "m2")
