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
from integration_processes import left

import robfcp

pytest.importorskip("flwr")
keys = pytest.importorskip("cryptography.hazmat.primitives.serialization")
Encoding, PublicFormat = keys.Encoding, keys.PublicFormat
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from robfcp.guarantees import missing_or_rejected_clients  # noqa: E402
from robfcp.integrations import QUIET  # noqa: E402

SCRIPTS = Path(__file__).parents[2] / "examples" / "deployment"
PATIENCE = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scripts:
    """The deployment scripts with a state of their own."""

    def __init__(self, state, nodes, **settings):
        self.state = state
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ports = {"PORT": free_port(), "NODE_PORT": 20_000 + os.getpid() % 10_000}
        settings |= {"STATE": state, "NODES": nodes, "PATIENCE": PATIENCE, "OMP_NUM_THREADS": 1}
        settings |= {"PATH": path, "FLWR_HOME": state / "flwr", **ports}
        own = {name: str(value) for name, value in settings.items()}
        self.environment = {**os.environ, **QUIET, **own}

    def __call__(self, name, *arguments, line="", action=int):
        """Run a script, with an action when a line is seen in what it prints."""
        process = subprocess.Popen(
            [str(SCRIPTS / f"{name}.sh"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        patience, lines = threading.Timer(2 * PATIENCE, process.kill), []
        patience.start()
        with process:
            for text in process.stdout:
                lines.append(text)
                if line and line in text:
                    action()
        patience.cancel()
        assert process.returncode == 0, "".join(lines)[-5000:]

    def kill(self, name):
        (file,) = (self.state / "pids").glob(f"{name}.*")
        os.killpg(int(file.read_text()), signal.SIGKILL)

    def calibration(self, liars):
        """What the last run left, which is what the core makes of its reports."""
        runs = json.loads((self.state / "runs.json").read_text())["runs"]
        assert runs[0]["status"] == "finished:completed"
        found = robfcp.Calibration.load(self.state / "calibration.json", record=True)
        defence = robfcp.Consensus(at_most=liars)
        assert (
            found.threshold == robfcp.calibrate(list(found.federation), defense=defence).threshold
        )
        return found


@pytest.fixture
def scripts(tmp_path):
    """Makes them; in the end they are stopped, and nothing is left."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up even then
    made = []
    yield lambda nodes, **settings: made.append(Scripts(tmp_path, nodes, **settings)) or made[0]
    try:
        made[0]("stop")
    finally:
        stubborn = left(tmp_path, 30)
        signal.signal(signal.SIGTERM, before)
    assert stubborn == []


def test_the_example_runs_in_simulation_on_ray(scripts):
    pytest.importorskip("ray")
    simulation = scripts(10)
    simulation("simulation", "attackers=2", "liars=2", "num-server-rounds=1", "deadline=200.0")
    calibration = simulation.calibration(2)
    assert (calibration.federation.n_clients, len(calibration.flagged_clients)) == (10, 2)


@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs both")
def test_a_run_over_tls_survives_a_lying_and_a_killed_node(scripts):
    deployment = scripts(5, ATTACK="2")
    for name in ("keys", "superlink", "supernodes"):
        deployment(name)
    finished = {"line": "Strategy execution finished", "action": lambda: deployment.kill("site-5")}
    deployment("run", "liars=1", "num-server-rounds=1", "deadline=200.0", **finished)
    calibration = deployment.calibration(1)
    clients = calibration.provenance["clients"]
    found = {client: entry["status"] for client, entry in clients.items()}
    assert found == {**{f"site-{k}": "ok" for k in range(1, 5)}, "site-5": "missing"}
    assert calibration.flagged_clients == ("site-2",)
    assert missing_or_rejected_clients(calibration.federation) == ("site-5",)
    assert calibration.federation.sizes_registered
    whole = PublicFormat.SubjectPublicKeyInfo
    forms = [(Encoding.OpenSSH, PublicFormat.OpenSSH), (Encoding.PEM, whole), (Encoding.DER, whole)]
    for client, entry in clients.items():
        registered = (deployment.state / "keys" / f"{client}.pub").read_bytes()
        key = keys.load_ssh_public_key(registered)
        known = [key.public_bytes(*form).strip() for form in forms]
        assert bytes.fromhex(entry["public_key"]).strip() in known
