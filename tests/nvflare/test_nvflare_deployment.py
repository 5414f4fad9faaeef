"""The examples as they stand: the simulator, the local deployment, and one over mutual TLS."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from integration_processes import left

import robfcp

pytest.importorskip("nvflare.apis")
pytestmark = [pytest.mark.nvflare, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "nvflare_app"
PATIENCE = 600


def example(name, folder, *arguments):
    """What an example prints; nothing that it started is left when it ends, or is ended."""
    words = [sys.executable, str(EXAMPLES / name), str(folder / "w"), *map(str, arguments)]
    own = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "start_new_session": True}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **own)
    finally:
        stubborn = left(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert stubborn == []
    return done.stdout + done.stderr


def test_training_and_calibration_in_one_job_in_the_simulator(tmp_path):
    output = example("simulation.py", tmp_path, "--rounds", 1, "--deadline", 120)
    calibration = robfcp.Calibration.load(*(tmp_path / "w").rglob("calibration.json"), record=True)
    clients = calibration.provenance["clients"]
    assert calibration.flagged_clients == ("site-2", "site-5")
    assert "reports under another name" in clients["site-8"]["reason"]
    assert "not a valid report" in clients["site-11"]["reason"]
    faulty = {"site-8", "site-11"}
    assert {client for client, entry in clients.items() if entry["status"] != "ok"} == faulty
    assert len(clients) == 12
    assert calibration.federation.sizes_registered
    core = robfcp.calibrate(list(calibration.federation), defense=robfcp.Consensus(at_most=2))
    assert core.threshold == calibration.threshold
    assert "site-8: faulty" in output


def test_the_local_deployment_with_processes_of_their_own(tmp_path):
    for port in (8002, 8003):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use")
    output = example("local.py", tmp_path, "--deadline", 120)
    assert "FINISHED:COMPLETED" in output
    for k in range(1, 6):
        assert f"site-{k}: {'flagged' if k in (2, 5) else 'ok, covered'}" in output


def test_a_secured_deployment_survives_a_killed_and_a_hanging_site(tmp_path):
    """Its own checks: nobody's code travels, who lies is flagged, who is silent is missing."""
    assert "as it should be" in example("secured.py", tmp_path, "--deadline", 30)
    kits = tmp_path / "w" / "kits" / "robfcp" / "prod_00"
    for site in ("site-1", "localhost"):
        resources = json.loads((kits / site / "local" / "resources.json").read_text())
        assert resources["class_allow_list"][-1] == "robfcp.integrations.nvflare."


def test_the_deployed_job_carries_no_code(tmp_path):
    from robfcp.integrations.nvflare import CalibrationRecipe

    CalibrationRecipe(min_clients=2, liars=1).export(str(tmp_path))
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
