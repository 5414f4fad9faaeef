"""Real processes on loopback: Ray, and a SuperLink with TLS, node authentication and SQLite."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from integration_processes import kill_remaining_processes

import robfcp

pytest.importorskip("flwr")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
Encoding = serialization.Encoding
PublicFormat = serialization.PublicFormat
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from robfcp.guarantees import missing_or_rejected_clients  # noqa: E402
from robfcp.integrations import QUIET  # noqa: E402

SCRIPTS = Path(__file__).parents[2] / "examples" / "deployment"
MAX_SECONDS = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scripts:
    """The deployment scripts with a separate state."""

    def __init__(self, state, n_nodes, **settings):
        self.state = state
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ports = {"PORT": free_port(), "NODE_PORT": 20_000 + os.getpid() % 10_000}
        settings |= {
            "STATE": state,
            "NODES": n_nodes,
            "PATIENCE": MAX_SECONDS,
            "OMP_NUM_THREADS": 1,
            "PATH": path,
            "FLWR_HOME": state / "flwr",
            **ports,
        }
        variables = {name: str(value) for name, value in settings.items()}
        self.environment = {**os.environ, **QUIET, **variables}

    def __call__(self, name, *arguments, line="", action=int):
        """Run a script, and the action when this line appears in its output."""
        process = subprocess.Popen(
            [str(SCRIPTS / f"{name}.sh"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        timer = threading.Timer(2 * MAX_SECONDS, process.kill)
        timer.start()
        lines = []
        with process:
            for text in process.stdout:
                lines.append(text)
                if line and line in text:
                    action()
        timer.cancel()
        assert process.returncode == 0, "".join(lines)[-5000:]

    def kill(self, name):
        (path,) = (self.state / "pids").glob(f"{name}.*")
        os.killpg(int(path.read_text()), signal.SIGKILL)

    def calibration(self, max_malicious):
        """The calibration of the last run, which equals that of its reports without Flower."""
        runs = json.loads((self.state / "runs.json").read_text())["runs"]
        assert runs[0]["status"] == "finished:completed"
        calibration = robfcp.Calibration.load(self.state / "calibration.json", record=True)
        defense = robfcp.Consensus(max_malicious=max_malicious)
        core = robfcp.calibrate(list(calibration.federation), defense=defense)
        assert calibration.threshold == core.threshold
        return calibration


@pytest.fixture
def make_scripts(tmp_path):
    """Make the scripts; stop them in the end, when no process may remain."""
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up too
    all_scripts = []

    def make(n_nodes, **settings):
        scripts = Scripts(tmp_path, n_nodes, **settings)
        all_scripts.append(scripts)
        return scripts

    yield make
    try:
        all_scripts[0]("stop")
    finally:
        remaining = kill_remaining_processes(tmp_path, 30)
        signal.signal(signal.SIGTERM, previous_handler)
    assert remaining == []


def test_the_example_runs_in_simulation_on_ray(make_scripts):
    pytest.importorskip("ray")
    simulation = make_scripts(10)
    config = ("attackers=2", "max-malicious=2", "num-server-rounds=1", "deadline=200.0")
    simulation("simulation", *config)
    calibration = simulation.calibration(2)
    assert calibration.federation.n_clients == 10
    assert len(calibration.flagged_clients) == 2


@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs both")
def test_a_run_over_tls_survives_a_malicious_and_a_killed_node(make_scripts):
    deployment = make_scripts(5, ATTACK="2")
    for name in ("keys", "superlink", "supernodes"):
        deployment(name)
    deployment(
        "run",
        "max-malicious=1",
        "num-server-rounds=1",
        "deadline=200.0",
        line="Strategy execution finished",
        action=lambda: deployment.kill("site-5"),
    )
    calibration = deployment.calibration(1)
    clients = calibration.provenance["clients"]
    statuses = {client: entry["status"] for client, entry in clients.items()}
    assert statuses == {**{f"site-{k}": "ok" for k in range(1, 5)}, "site-5": "missing"}
    assert calibration.flagged_clients == ("site-2",)
    assert missing_or_rejected_clients(calibration.federation) == ("site-5",)
    assert calibration.federation.sizes_registered

    key_formats = [
        (Encoding.OpenSSH, PublicFormat.OpenSSH),
        (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        (Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ]
    for client, entry in clients.items():
        registered = (deployment.state / "keys" / f"{client}.pub").read_bytes()
        key = serialization.load_ssh_public_key(registered)
        encoded_keys = [key.public_bytes(*key_format).strip() for key_format in key_formats]
        assert bytes.fromhex(entry["public_key"]).strip() in encoded_keys
