"""No line of a server's log can be altered, dropped or inserted unseen."""

import json
import multiprocessing
from collections import Counter

import pytest
from test_verify import reports

import robfcp
from robfcp.calibration.audit import AuditLog, log_round
from robfcp.errors import RobfcpError


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    calibration = robfcp.calibrate([*reports(), "{broken"], defence=robfcp.Consensus(at_most=2))
    log_round(log, calibration, {"malicious": 2})
    return log


def test_a_round_is_logged_as_it_went(log):
    events = list(log.events())
    kinds = Counter(event["event"] for event in events)
    assert (kinds["report received"], kinds["report refused"]) == (12, 1)
    assert (events[0]["event"], events[0]["terms"]) == ("round opened", {"malicious": 2})
    assert events[-1]["event"] == "calibration written"
    assert [e["client"] for e in events if e.get("verdict") == "flagged"] == ["site-03"]


CHANGES = [
    lambda lines: lines[:3] + lines[4:],
    lambda lines: lines[:3] + [lines[2]] + lines[3:],
    lambda lines: [lines[1], lines[0], *lines[2:]],
    lambda lines: lines[:3] + [lines[3].replace("trusted", "flagged")] + lines[4:],
    lambda lines: lines[:3] + ["{}"] + lines[4:],
    lambda lines: lines[:3] + ["[" * 5000] + lines[4:],
    lambda lines: lines[1:],
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_breaks_the_chain(log, change):
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join(change(lines)) + "\n")
    with pytest.raises(RobfcpError, match="does not follow the line before it"):
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
