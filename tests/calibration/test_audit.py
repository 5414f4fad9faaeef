"""No line of a server's log can be altered, dropped or inserted unseen."""

import json
import multiprocessing

import pytest
from test_verify import reports

import robfcp
from robfcp.calibration import AuditLog
from robfcp.calibration.audit import log_round
from robfcp.errors import RobfcpError


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    calibration = robfcp.calibrate([*reports(), "{broken"], defence=robfcp.Consensus(at_most=2))
    log_round(log, calibration, {"malicious": 2})
    return log


def test_a_round_is_logged_as_it_went(log):
    events = list(log.events())
    kinds = [event["event"] for event in events]
    assert kinds[0] == "round opened"
    assert events[0]["terms"] == {"malicious": 2}
    assert kinds.count("report received") == 12
    assert kinds.count("report refused") == 1
    assert kinds[-1] == "calibration written"
    verdicts = {e["client"]: e["verdict"] for e in events if e["event"] == "report received"}
    assert verdicts["site-03"] == "flagged"


def altered(lines):
    yield lines[:3] + lines[4:]
    yield lines[:3] + [lines[2]] + lines[3:]
    yield [lines[1], lines[0], *lines[2:]]
    yield lines[:3] + [lines[3].replace("trusted", "flagged")] + lines[4:]
    yield lines[:3] + ["{}"] + lines[4:]
    yield lines[:3] + ["[" * 5000] + lines[4:]
    yield lines[1:]


@pytest.mark.parametrize("case", range(7))
def test_every_change_breaks_the_chain(log, case):
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join(list(altered(lines))[case]) + "\n")
    with pytest.raises(RobfcpError, match="does not follow the line before it"):
        list(log.events())


def write(path):
    for number in range(20):
        AuditLog(path).write("test", number=number)


def test_several_processes_keep_one_chain(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(write, [tmp_path / "a"] * 4)
    assert len(list(AuditLog(tmp_path / "a").events())) == 80


def test_lines_are_json_and_nothing_steers_a_terminal(tmp_path):
    log = AuditLog(tmp_path / "a")
    log.write("x", name="a\n\x1b[2J\u202e", number=float(1), path=tmp_path)
    (line,) = log.path.read_bytes().splitlines()
    assert line.isascii()
    assert b"\x1b" not in line
    assert json.loads(line)["name"] == "a\n\x1b[2J\u202e"
    with pytest.raises(RobfcpError, match="too long"):
        log.write("x", name="x" * 2**21)


def test_a_line_cut_short_is_refused(log):
    log.path.write_bytes(log.path.read_bytes()[:-5])
    with pytest.raises(RobfcpError, match="cut short"):
        log.write("more")
