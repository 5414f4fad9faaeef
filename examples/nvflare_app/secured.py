"""A deployment over mutual TLS on one machine, from NVFlare's `provision` to client feedback.

python secured.py STATE

Six clients, each with a startup kit. The job carries no code: every client names its functions in
`local/robfcp.json`, and `local/resources.json` allows robfcp's classes. Client 2 is malicious,
clients 1 and 3 are private, client 5 hangs and client 6 is killed during the request. The script
provisions, starts, runs, checks and stops.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.recipe import ProdEnv
from show import show

import robfcp
from robfcp.integrations.nvflare import CalibrationRecipe
from robfcp.local import ClientFeedback
from robfcp.privacy import PrivacyLedger
from robfcp.reports.signing import generate_key

FOLDER = Path(__file__).parent
CLIENTS = [f"site-{k}" for k in range(1, 7)]
REPORTING_CLIENTS = CLIENTS[:4]
PRIVATE_CLIENTS = ("site-1", "site-3")
PREDICT_FUNCTIONS = {  # of `local_functions.py`, if not `predict_split`
    "site-2": "predict_maliciously",
    "site-5": "hang",
    "site-6": "hang",
}
ADMIN = "admin@example.org"
BUILDERS = """
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {template_file: [master_template.yml]}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def free_port():
    """Return a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def provision(state):
    """Let NVFlare write the startup kits; return their folder."""
    lines = ["api_version: 3", "name: robfcp", "description: calibration", "participants:"]
    ports = f"fed_learn_port: {free_port()}, admin_port: {free_port()}"
    lines.append(f"  - {{name: localhost, type: server, org: example, {ports}}}")
    lines += [f"  - {{name: {client}, type: client, org: example}}" for client in CLIENTS]
    lines.append(f"  - {{name: {ADMIN}, type: admin, org: example, role: project_admin}}")
    project_path = state / "project.yml"
    project_path.write_text("\n".join(lines) + BUILDERS, encoding="utf-8")

    nvflare = Path(sys.executable).with_name("nvflare")
    command = [nvflare, "provision", "-p", project_path, "-w", state / "kits"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return state / "kits" / "robfcp" / "prod_00"


def configure(kits, state):
    """Configure each client's kit, write the registry of keys, and allow robfcp's classes."""
    registry = {client: {"key": configure_client(kits / client, client)} for client in CLIENTS}
    (state / "registry.json").write_text(json.dumps(registry), encoding="utf-8")
    for name in ("localhost", *CLIENTS):
        allow_classes(kits / name / "local")


def configure_client(kit, client):
    """Write what a client writes in its kit; return its public key."""
    local = kit / "local"
    config = {
        "predict-fn": f"local_functions:{PREDICT_FUNCTIONS.get(client, 'predict_split')}",
        "signing-key": str(local / "signing.key"),
        "feedback-dir": str(kit / "feedback"),
    }
    if client in PRIVATE_CLIENTS:
        config |= {"dp-epsilon": 2.0, "privacy-ledger": str(kit / "ledger.json")}
    (local / "robfcp.json").write_text(json.dumps(config), encoding="utf-8")

    (local / "custom").mkdir()
    for name in ("local_functions.py", "task.py"):
        shutil.copy(FOLDER / name, local / "custom")
    return generate_key(local / "signing.key")


def allow_classes(local):
    """Let the jobs of a participant use robfcp's classes."""
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    allowed_classes = list(resources.get("class_allow_list", ()))
    allowed_classes.append("robfcp.integrations.nvflare.")
    resources["class_allow_list"] = allowed_classes
    (local / "resources.json").write_text(json.dumps(resources), encoding="utf-8")


def start(kits, name):
    """Start a participant in a new process session."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",  # else the server waits 900 s for a dead client
    }
    return subprocess.Popen(
        ["bash", kits / name / "startup" / "sub_start.sh"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(process):
    """End a participant with all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_when_requested(kits, process):
    """Kill client 6 in the middle of the round."""
    while not (kits / "site-6" / "requested").exists():
        time.sleep(0.2)
    stop(process)


def wait_for_clients(kits, seconds=120):
    """Wait until all clients are connected: a job takes those that are when it starts."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(Exception):  # the server is still starting
            session = new_secure_session(ADMIN, str(kits / ADMIN), timeout=10)
            try:
                while time.monotonic() < deadline:
                    if len(session.get_connected_client_list()) == len(CLIENTS):
                        return
                    time.sleep(1)
            finally:
                session.close()
        time.sleep(1)
    raise SystemExit("the clients did not connect; see log.txt in the kits")


def check(path, kits):
    """Check the calibration and what the clients have received."""
    calibration = robfcp.Calibration.load(path, record=True)
    clients = calibration.provenance["clients"]
    statuses = {client: entry["status"] for client, entry in clients.items()}
    expected_statuses = dict.fromkeys(REPORTING_CLIENTS, "ok")
    expected_statuses |= {"site-5": "missing", "site-6": "missing"}
    assert statuses == expected_statuses, statuses
    assert calibration.flagged_clients == ("site-2",), calibration.flagged_clients

    is_private = [privacy is not None for privacy in calibration.federation.privacy]
    assert is_private == [client in PRIVATE_CLIENTS for client in REPORTING_CLIENTS]
    for client in PRIVATE_CLIENTS:
        ledger = PrivacyLedger(kits / client / "ledger.json", "calibration data")
        assert len(ledger.releases()) == 1

    reports = list(calibration.federation)
    recalibration = robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=1))
    assert recalibration.threshold == calibration.threshold
    for client in REPORTING_CLIENTS:
        (feedback_path,) = (kits / client / "feedback").iterdir()
        assert ClientFeedback.load(feedback_path).client == client


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("--deadline", type=float, default=30.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `finally` stops all
    state = options.state.resolve()
    state.mkdir(parents=True, mode=0o700)
    kits = provision(state)
    configure(kits, state)
    recipe = CalibrationRecipe(
        min_clients=4,
        max_malicious=1,
        binning="uniform:20",
        registered_sizes="none",
        keys=str(state / "registry.json"),
        expected_clients=" ".join(CLIENTS),
        send_feedback=True,
        deadline=options.deadline,
    )
    processes = {}
    try:
        for name in ("localhost", *CLIENTS):
            processes[name] = start(kits, name)
        wait_for_clients(kits)
        killer = threading.Thread(
            target=kill_when_requested, args=(kits, processes["site-6"]), daemon=True
        )
        killer.start()
        env = ProdEnv(startup_kit_location=str(kits / ADMIN), username=ADMIN)
        job = recipe.execute(env).get_job_id()
        result = Path(env.get_job_result(job, timeout=600))
        print(env.get_job_status(job))
        meta = json.loads(next(result.rglob("meta.json")).read_text(encoding="utf-8"))
        assert not meta.get("byoc"), "the job carries code"
        path = next(result.rglob("calibration.json"))
        show(path)
        check(path, kits)
        print("all checks passed")
    finally:
        for process in processes.values():
            stop(process)
