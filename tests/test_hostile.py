"""Hostile sites, careless operators: refused in one printable line, or taken for what it means."""

import json
import os

import numpy as np
import pytest

import robfcp
from robfcp._files import make_folder, write_atomically
from robfcp.calibration import Calibration
from robfcp.errors import MAX_TEXT, RobfcpError

LAC = robfcp.LAC()


def make_reports(n_clients=6, n=30, seed=0):
    rng = np.random.default_rng(seed)
    return [
        robfcp.Report.from_scores(f"site-{k}", rng.beta(0.5, 2, n), score=LAC)
        for k in range(n_clients)
    ]


REPORTS = make_reports()

ESCAPES = [
    '{"schema": 99, "client": "a\\nrobfcp: all is well\\u001b[2J"}',
    '{"schema": 1, "kind": "report", "client": "b", "\\u001b[2J\\nx": 1}',
    json.dumps({"schema": 99, "client": "x" * 10**6}),
    json.dumps(json.loads(REPORTS[0].to_json()) | {"grid": {"name": "z" * 10**5, "digest": "0"}}),
    '{"schema": 99, "client": "\\u202eabc"}',
]


@pytest.mark.parametrize("text", ESCAPES, ids=range(len(ESCAPES)))
def test_what_a_hostile_report_says_cannot_steer_a_terminal_or_fill_a_log(text):
    calibration = robfcp.calibrate([*REPORTS[1:], text])
    (fault,) = calibration.faulty
    assert fault.reason.isprintable()
    assert fault.client.isprintable()
    assert len(fault.reason) <= MAX_TEXT + 50
    assert len(fault.client) <= 250
    assert Calibration.from_json(calibration.to_json()).faulty == calibration.faulty


def test_folders_devices_and_pipes_are_never_replaced_by_a_file(tmp_path):
    with pytest.raises(RobfcpError, match=r"cannot be written \(Is a directory\)"):
        REPORTS[0].save(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "hello")
    assert os.read(reader, 99) == b"hello"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    for place in ("a\0b", tmp_path / "real.json" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(RobfcpError, match="choose another place"):
            write_atomically(place, "")
    with pytest.raises(RobfcpError, match="cannot be made"):
        make_folder(tmp_path / "real.json")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "real.json", "link.json"}
