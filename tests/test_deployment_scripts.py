"""The deployment's scripts protect their state and never lose a calibration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from effort import thorough

import robfcp

SCRIPTS = Path(__file__).parents[1] / "examples" / "deployment"


def bash(state, command):
    """Run a command after settings.sh was read."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {**os.environ, "PATH": path, "STATE": str(state)}
    arguments = ["bash", "-c", f'source "{SCRIPTS}/settings.sh"; {command}']
    return subprocess.run(
        arguments, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_state_is_private_even_if_it_was_readable(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    assert bash(state, 'touch "$STATE/state.db"').returncode == 0
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "state.db").stat().st_mode & 0o077 == 0


def test_every_script_reads_the_settings_first():
    for script in SCRIPTS.glob("*.sh"):
        if script.name != "settings.sh":
            lines = [line for line in script.read_text().splitlines() if line[:1] not in ("#", "")]
            assert lines[0] == 'source "$(dirname "$0")/settings.sh"', script.name


def save_calibration(folder, counts=(9, 1)):
    folder.mkdir(exist_ok=True)
    calibration = robfcp.calibrate(robfcp.Federation.from_counts([counts] * 3), defense="none")
    calibration.save(folder / "calibration.json")
    return calibration


def test_a_complete_calibration_replaces_the_previous_one(tmp_path):
    calibration = save_calibration(tmp_path / "new")
    save_calibration(tmp_path, (8, 2))
    result = bash(tmp_path, 'keep "$STATE/new"')
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("*.record.json"))) == 1
    assert robfcp.Calibration.load(tmp_path / "calibration.json") == calibration


@pytest.mark.parametrize("broken", thorough(["calibration.json", "*.record.json"], "*.record.json"))
def test_a_run_without_a_calibration_fails_and_keeps_the_previous_one(tmp_path, broken):
    save_calibration(tmp_path / "new")
    (path,) = (tmp_path / "new").glob(broken)
    path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / "calibration.json").write_text("old")
    result = bash(tmp_path, 'keep "$STATE/new"')
    assert result.returncode == 1
    assert "the previous one is unchanged" in result.stderr
    assert (tmp_path / "calibration.json").read_text() == "old"


def test_registered_names_are_read_from_the_state(tmp_path):
    (tmp_path / "keys").mkdir()
    assert bash(tmp_path, "registered").stdout == ""
    for name in ("site-2", "site-1"):
        (tmp_path / "keys" / f"{name}.registered").touch()
    assert bash(tmp_path, "registered").stdout == "site-1 site-2 "
