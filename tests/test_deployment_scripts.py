"""The deployment's scripts keep what they hold to themselves and never lose a calibration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import thorough

import robfcp

SCRIPTS = Path(__file__).parents[1] / "examples" / "deployment"


def bash(state, command):
    """The command after settings.sh was read."""
    places = (str(Path(sys.executable).parent), os.environ["PATH"])
    env = {**os.environ, "PATH": os.pathsep.join(places), "STATE": str(state)}
    words = ["bash", "-c", f'source "{SCRIPTS}/settings.sh"; {command}']
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_state_is_closed_to_others_also_where_it_was_open(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    assert bash(state, 'touch "$STATE/state.db"').returncode == 0
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "state.db").stat().st_mode & 0o077 == 0


def test_every_script_reads_the_settings_first():
    for script in SCRIPTS.glob("*.sh"):
        if script.name != "settings.sh":
            first = [line for line in script.read_text().splitlines() if line[:1] not in ("#", "")]
            assert first[0] == 'source "$(dirname "$0")/settings.sh"', script.name


def calibration(folder, counts=(9, 1)):
    folder.mkdir(exist_ok=True)
    found = robfcp.calibrate(robfcp.Federation.from_counts([counts] * 3), defense="none")
    found.save(folder / "calibration.json")
    return found


def test_a_whole_calibration_takes_the_last_ones_place(tmp_path):
    new = calibration(tmp_path / "new")
    calibration(tmp_path, (8, 2))
    done = bash(tmp_path, 'keep "$STATE/new"')
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.record.json"))) == 1
    assert robfcp.Calibration.load(tmp_path / "calibration.json") == new


@pytest.mark.parametrize("broken", thorough(["calibration.json", "*.record.json"], "*.record.json"))
def test_a_run_without_a_calibration_fails_and_keeps_the_last_one(tmp_path, broken):
    calibration(tmp_path / "new")
    (half,) = (tmp_path / "new").glob(broken)
    half.write_bytes(half.read_bytes()[:-100])
    (tmp_path / "calibration.json").write_text("old")
    done = bash(tmp_path, 'keep "$STATE/new"')
    assert done.returncode == 1
    assert "the last one is untouched" in done.stderr
    assert (tmp_path / "calibration.json").read_text() == "old"


def test_registered_names_are_those_that_were_registered(tmp_path):
    (tmp_path / "keys").mkdir()
    assert bash(tmp_path, "registered").stdout == ""
    for name in ("site-2", "site-1"):
        (tmp_path / "keys" / f"{name}.registered").touch()
    assert bash(tmp_path, "registered").stdout == "site-1 site-2 "
