"""The examples: the simulator, the local deployment, and a deployment over mutual TLS."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from integration_processes import kill_remaining_processes

import robfcp

pytest.importorskip("nvflare.apis")
pytestmark = [pytest.mark.nvflare, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "nvflare_app"
MAX_SECONDS = 600


def run_example(name, folder, *arguments):
    """The output of an example, of which no process remains when it ends or is killed."""
    command = [sys.executable, str(EXAMPLES / name), str(folder / "w"), *map(str, arguments)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    finally:
        remaining = kill_remaining_processes(folder)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert remaining == []
    return result.stdout + result.stderr


def test_training_and_calibration_in_one_job_in_the_simulator(tmp_path):
    output = run_example("simulation.py", tmp_path, "--rounds", 1, "--deadline", 120)
    calibration = robfcp.Calibration.load(*(tmp_path / "w").rglob("calibration.json"), record=True)
    clients = calibration.provenance["clients"]
    assert calibration.flagged_clients == ("site-2", "site-5")
    assert "reports under another name" in clients["site-8"]["reason"]
    assert "not a valid report" in clients["site-11"]["reason"]
    invalid_clients = {client for client, entry in clients.items() if entry["status"] != "ok"}
    assert invalid_clients == {"site-8", "site-11"}
    assert len(clients) == 12
    assert calibration.federation.sizes_registered
    core = robfcp.calibrate(list(calibration.federation), defense=robfcp.Consensus(max_malicious=2))
    assert core.threshold == calibration.threshold
    assert "site-8: invalid" in output


def test_the_local_deployment_in_separate_processes(tmp_path):
    for port in (8002, 8003):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use")
    output = run_example("local.py", tmp_path, "--deadline", 120)
    assert "FINISHED:COMPLETED" in output
    for k in range(1, 6):
        assert f"site-{k}: {'flagged' if k in (2, 5) else 'ok, covered'}" in output


def test_a_secured_deployment_survives_a_killed_and_a_hanging_client(tmp_path):
    """The example checks: no code in the job, malicious flagged, silent missing."""
    assert "all checks passed" in run_example("secured.py", tmp_path, "--deadline", 30)
    kits = tmp_path / "w" / "kits" / "robfcp" / "prod_00"
    for name in ("site-1", "localhost"):
        resources = json.loads((kits / name / "local" / "resources.json").read_text())
        assert resources["class_allow_list"][-1] == "robfcp.integrations.nvflare."


def test_the_deployed_job_carries_no_code(tmp_path):
    from robfcp.integrations.nvflare import CalibrationRecipe

    CalibrationRecipe(min_clients=2, max_malicious=1).export(str(tmp_path))
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
