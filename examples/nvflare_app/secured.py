"""A deployment over mutual TLS on one machine, from NVFlare's own `provision` to the letters.

python secured.py STATE

Six sites with startup kits of their own. The job carries no code: every site names its own in
`local/robfcp.json`, and `local/resources.json` allows robfcp's classes. Site 2 lies, sites 1 and 3
are private, site 5 hangs and site 6 is killed while it is asked. The script provisions, starts,
runs, checks and stops.
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
from robfcp.local._feedback import ClientFeedback
from robfcp.privacy import PrivacyLedger
from robfcp.reports.signing import generate_key

HERE = Path(__file__).parent
SITES = [f"site-{k}" for k in range(1, 7)]
PRIVATE = ("site-1", "site-3")
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def provision(state):
    """The startup kits, made by NVFlare."""
    lines = ["api_version: 3", "name: robfcp", "description: calibration", "participants:"]
    ports = f"fed_learn_port: {free_port()}, admin_port: {free_port()}"
    lines.append(f"  - {{name: localhost, type: server, org: example, {ports}}}")
    lines += [f"  - {{name: {site}, type: client, org: example}}" for site in SITES]
    lines.append(f"  - {{name: {ADMIN}, type: admin, org: example, role: project_admin}}")
    (state / "project.yml").write_text("\n".join(lines) + BUILDERS, encoding="utf-8")
    nvflare = Path(sys.executable).with_name("nvflare")
    command = [nvflare, "provision", "-p", state / "project.yml", "-w", state / "kits"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return state / "kits" / "robfcp" / "prod_00"


def configure(kits, state):
    """What each site writes in its own kit; the public keys go to the server."""
    behaviour = {"site-2": "lies", "site-5": "hangs", "site-6": "hangs"}
    keys = {}
    for site in SITES:
        local = kits / site / "local"
        config = {
            "outputs": f"hospital:{behaviour.get(site, 'outputs')}",
            "signing-key": str(local / "signing.key"),
            "letter-folder": str(kits / site / "letters"),
        }
        if site in PRIVATE:
            config |= {"epsilon": 2.0, "privacy-ledger": str(kits / site / "ledger.json")}
        (local / "robfcp.json").write_text(json.dumps(config), encoding="utf-8")
        (local / "custom").mkdir()
        for name in ("hospital.py", "task.py"):
            shutil.copy(HERE / name, local / "custom")
        keys[site] = {"key": generate_key(local / "signing.key")}
    (state / "registry.json").write_text(json.dumps(keys), encoding="utf-8")
    for name in ("localhost", *SITES):
        local = kits / name / "local"
        resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
        resources["class_allow_list"] = [
            *resources.get("class_allow_list", ()),
            "robfcp.integrations.nvflare.",
        ]
        (local / "resources.json").write_text(json.dumps(resources), encoding="utf-8")


def start(kits, name):
    """A participant in a session of its own."""
    return subprocess.Popen(
        ["bash", kits / name / "startup" / "sub_start.sh"],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",  # else a dead site is waited for 900 s
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(process):
    """End a participant with everything it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_when_asked(kits, process):
    """Site 6 goes down in the middle of the round."""
    while not (kits / "site-6" / "asked").exists():
        time.sleep(0.2)
    stop(process)


def wait_for_sites(kits, seconds=120):
    """Until all sites are connected: a job takes those that are there when it starts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(Exception):  # the server is still starting
            session = new_secure_session(ADMIN, str(kits / ADMIN), timeout=10)
            try:
                while time.monotonic() < end:
                    if len(session.get_connected_client_list()) == len(SITES):
                        return
                    time.sleep(1)
            finally:
                session.close()
        time.sleep(1)
    raise SystemExit("the sites did not connect; see log.txt in the kits")


def check(path, kits):
    """What must have come of it."""
    calibration = robfcp.Calibration.load(path, record=True)
    clients = calibration.provenance["clients"]
    found = {client: entry["status"] for client, entry in clients.items()}
    assert found == {
        **dict.fromkeys(SITES[:4], "ok"),
        "site-5": "missing",
        "site-6": "missing",
    }, found
    assert calibration.flagged_clients == ("site-2",), calibration.flagged_clients
    assert [p is not None for p in calibration.federation.privacy] == [True, False, True, False]
    for site in PRIVATE:
        assert len(PrivacyLedger(kits / site / "ledger.json", "calibration data").releases()) == 1
    core = robfcp.calibrate(list(calibration.federation), defense=robfcp.Consensus(at_most=1))
    assert core.threshold == calibration.threshold
    for site in SITES[:4]:
        (letter,) = (kits / site / "letters").iterdir()
        assert ClientFeedback.load(letter).client == site


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("--deadline", type=float, default=30.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what runs, also then
    state = options.state.resolve()
    state.mkdir(parents=True, mode=0o700)
    kits = provision(state)
    configure(kits, state)
    recipe = CalibrationRecipe(
        min_clients=4,
        liars=1,
        grid="uniform:20",
        sizes="none",
        keys=str(state / "registry.json"),
        invited=" ".join(SITES),
        letters=True,
        deadline=options.deadline,
    )
    running = {}
    try:
        for name in ("localhost", *SITES):
            running[name] = start(kits, name)
        wait_for_sites(kits)
        killer = threading.Thread(
            target=kill_when_asked, args=(kits, running["site-6"]), daemon=True
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
        print("as it should be")
    finally:
        for process in running.values():
            stop(process)
