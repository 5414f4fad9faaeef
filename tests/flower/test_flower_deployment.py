"""Real processes on loopback: Ray, and a SuperLink with TLS, node authentication and SQLite."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from engine_processes import left

import robfcp

pytest.importorskip("flwr")
keys = pytest.importorskip("cryptography.hazmat.primitives.serialization")
Encoding, PublicFormat = keys.Encoding, keys.PublicFormat
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from robfcp.engines import QUIET  # noqa: E402
from robfcp.guarantees import outside_of  # noqa: E402

SCRIPTS = Path(__file__).parents[2] / "examples" / "deployment"
NODES = 5
PATIENCE = 300


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scripts:
    """The deployment scripts with a state of their own."""

    def __init__(self, state, nodes, **settings):
        self.state = state
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "STATE": str(state),
            "NODES": str(nodes),
            "PORT": str(free_port()),
            "NODE_PORT": str(20_000 + os.getpid() % 10_000),
            "PATIENCE": str(PATIENCE),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(state / "flwr"),
            **QUIET,
            **settings,
        }

    def __call__(self, name, *arguments):
        done = subprocess.run(
            [str(SCRIPTS / f"{name}.sh"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def watch(self, line, action, *arguments):
        """run.sh, with an action when a line is seen in its log."""
        process = subprocess.Popen(
            [str(SCRIPTS / "run.sh"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        try:
            for text in process.stdout:
                lines.append(text)
                if line in text:
                    action()
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
            process.stdout.close()
        return process.returncode, "".join(lines)

    def pid(self, name):
        (file,) = (self.state / "pids").glob(f"{name}.*")
        return int(file.read_text())

    def statuses(self):
        return [run["status"] for run in json.loads((self.state / "runs.json").read_text())["runs"]]


@contextmanager
def scripts(state, nodes, **settings):
    """Stopped in the end, and nothing is left."""
    found = Scripts(state, nodes, **settings)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up even then
    try:
        yield found
    finally:
        try:
            found("stop")
        finally:
            stubborn = left(state, 30)
            signal.signal(signal.SIGTERM, before)
    assert stubborn == []


def test_the_example_runs_in_simulation_on_ray(tmp_path):
    pytest.importorskip("ray")
    with scripts(tmp_path, 10) as simulation:
        options = ("attackers=2", "liars=2", "num-server-rounds=1", "deadline=200.0")
        simulation("simulation", *options)
        assert simulation.statuses() == ["finished:completed"]
        calibration = robfcp.Calibration.load(tmp_path / "calibration.json")
        assert calibration.federation.n_clients == 10
        assert len(calibration.flagged) == 2
        check_against_the_core(calibration, 2)


def check_against_the_core(calibration, liars):
    core = robfcp.calibrate(list(calibration.federation), defence=robfcp.Consensus(at_most=liars))
    assert core.threshold == calibration.threshold


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    if shutil.which("openssl") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs openssl and ssh-keygen")
    with scripts(tmp_path_factory.mktemp("state"), NODES, ATTACK="2") as deployed:
        for name in ("keys", "superlink", "supernodes"):
            deployed(name)
        yield deployed


def test_an_unregistered_key_is_turned_away(deployment):
    state, port = deployment.state, deployment.environment["PORT"]
    made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", state / "stranger"]
    subprocess.run(made, check=True)
    words = ["flower-supernode", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
    words += ["--root-certificates", state / "certificates" / "ca.crt"]
    words += ["--auth-supernode-private-key", state / "stranger"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    stranger = subprocess.Popen(words, env=deployment.environment, start_new_session=True, **silent)
    try:
        assert stranger.wait(PATIENCE) != 0
    finally:
        with suppress(ProcessLookupError):  # what it leaves behind
            os.killpg(stranger.pid, signal.SIGKILL)


def test_a_run_over_tls_survives_a_lying_and_a_killed_node(deployment):
    code, log = deployment.watch(
        "Strategy execution finished",
        lambda: os.killpg(deployment.pid("site-5"), signal.SIGKILL),
        *("liars=1", "num-server-rounds=1", "deadline=200.0"),
    )
    assert code == 0, log
    assert deployment.statuses()[0] == "finished:completed"
    calibration = robfcp.Calibration.load(deployment.state / "calibration.json")
    clients = calibration.provenance["clients"]
    found = {client: entry["status"] for client, entry in clients.items()}
    assert found == {**{f"site-{k}": "ok" for k in range(1, 5)}, "site-5": "missing"}
    assert calibration.flagged == ("site-2",)
    assert outside_of(calibration.federation) == ("site-5",)
    assert calibration.certificate.n_outside == 1
    assert calibration.federation.registered
    check_against_the_core(calibration, 1)
    for client, entry in clients.items():
        registered = (deployment.state / "keys" / f"{client}.pub").read_text()
        assert _same_key(bytes.fromhex(entry["public_key"]), registered)


def _same_key(recorded, registered):
    key, whole = keys.load_ssh_public_key(registered.encode()), PublicFormat.SubjectPublicKeyInfo
    forms = [(Encoding.OpenSSH, PublicFormat.OpenSSH), (Encoding.PEM, whole), (Encoding.DER, whole)]
    return recorded.strip() in [key.public_bytes(*form).strip() for form in forms]
