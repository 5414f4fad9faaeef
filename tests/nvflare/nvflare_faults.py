"""NVFlare's server side in this process, and the driver of the shared tests.

The workflow's communicator is NVFlare's own; what goes over the wire is packed and unpacked as
NVFlare does it. Benign clients run the executor that a job without code runs.
"""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
from integration_faults import (
    DATA,
    QUICK,
    Stage,
    Turn,
    config_keys,
    return_or_raise,
    watched,
)
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

import robfcp
from robfcp.integrations._messages import RECORD
from robfcp.integrations.nvflare import (
    CalibrationController,
    CalibrationExecutor,
    MonitorController,
)

STAGE_OPTIONS = ("data", "faults", "only", "configs")
CLIENT_DATA = {}  # of the current test
FRESH_DATA = {}
flare_decomposers.register()
common_decomposers.register()


def hang(split, params):
    time.sleep(10**4)


def predict_with_params(split, params):
    """Probabilities that the received model gives."""
    return np.tile(params["numpy_key"], (60, 1)), np.zeros(60, dtype=int)


def __getattr__(name):
    """Clients' functions, as an installed module would hold them: `nvflare_faults:site_3`."""
    prefix, _, index = name.partition("_")
    data = {"site": CLIENT_DATA, "fresh": FRESH_DATA}.get(prefix)
    if data is None:
        raise AttributeError(name)
    return lambda *arguments: return_or_raise(data[f"site-{index}"])


def workspace(folder, name, config=None):
    """A client's folder as a startup kit has it."""
    root = Path(folder) / name
    for subfolder in ("local", "startup"):
        (root / subfolder).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / "local" / "robfcp.json").write_text(json.dumps(config))
    return Workspace(str(root), name)


def make_server(folder, names, components=None):
    """As much of NVFlare's server as a workflow needs."""
    server_workspace = workspace(folder, "server")
    server = SimpleNamespace(
        run_dir=Path(server_workspace.get_run_dir("job")),
        get_clients=lambda: [Client(name, "token") for name in names],
        fire_event=lambda event_type, fl_ctx: None,
        get_workspace=lambda: server_workspace,
        get_component=(components or {}).get,
    )
    server.run_dir.mkdir(parents=True, exist_ok=True)
    server.new_context = FLContextManager(server, "server", "job").new_context
    return server


class ClientThread(threading.Thread):
    """A client that fetches its tasks, and replies as the stage decides."""

    def __init__(self, name, folder, config, stage=None):
        super().__init__(daemon=True)
        self.client = Client(name, "token")
        self.stage = stage
        self.is_stopped = False
        self.executor = CalibrationExecutor()
        self.fl_ctx = FLContext()
        self.fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace(folder, name, config))

    def run(self):
        while not self.is_stopped:
            fl_ctx = self.server.new_context()
            task, task_id, data = self.comm.process_task_request(self.client, fl_ctx)
            if task:
                data = fobs.loads(fobs.dumps(data))
                request = FLModelUtils.from_shareable(data).meta[RECORD]
                self.stage.act(NVFlareTurn(self, task, task_id, data), self.client.name, request)
            time.sleep(0.02)


class NVFlareTurn(Turn):
    """A turn of a client."""

    def __init__(self, thread, task, task_id, data):
        self.thread = thread
        self.task = task
        self.message_id = task_id
        reply = thread.executor.execute(task, data, thread.fl_ctx, Signal())
        super().__init__(thread.stage, FLModelUtils.from_shareable(reply).metrics)

    def submit(self, reply, client=None):
        """Submit any reply, as any client."""
        if isinstance(reply, FLModel):
            reply = FLModelUtils.to_shareable(reply)
        result = fobs.loads(fobs.dumps(reply))
        fl_ctx = self.thread.server.new_context()
        client = client or self.thread.client
        self.thread.comm.process_submission(client, self.task, self.message_id, result, fl_ctx)

    def send(self, record=None):
        self.submit(FLModel(metrics=self.record if record is None else record))

    def spoil(self, hook):
        unreadable = Shareable()
        unreadable["DXO"] = {"kind": "METRICS", "data": [[]], "meta": 7}
        self.submit(unreadable)

    def send_with_arrays(self):
        self.submit(FLModel(params={"weights": bytes(2**20)}, metrics=self.record))

    def fail(self, code=ReturnCode.EXECUTION_EXCEPTION):
        self.submit(make_reply(code))

    def hold(self, fault):
        is_released = threading.Event()
        is_sent = threading.Event()

        def release():
            is_released.set()
            is_sent.wait(30)

        self.stage.delayed_replies.append(release)
        is_released.wait(30)
        fault(self)
        is_sent.set()

    def later(self, seconds):
        time.sleep(seconds)
        self.send()

    def vanish(self):
        self.thread.is_stopped = True


def run(
    controller, folder, *, data=DATA, faults=None, only="report", configs=None, components=None
):
    """Run a workflow with one thread per client; return the stage and the server."""
    CLIENT_DATA.clear()
    CLIENT_DATA.update(data)
    stage = Stage(data, faults, only)
    threads = []
    for name in data:
        predict_fn = f"nvflare_faults:{name.replace('-', '_')}"
        config = {"predict-fn": predict_fn, **(configs or {}).get(name, {})}
        threads.append(ClientThread(name, folder, config, stage))
    server = make_server(folder, list(data), components)
    comm = WFCommServer(task_check_period=0.05)
    controller.set_communicator(comm)
    fl_ctx = server.new_context()
    comm.initialize_run(fl_ctx)
    controller.initialize(fl_ctx)
    controller.fl_ctx = fl_ctx
    controller.abort_signal = Signal()
    for thread in threads:
        thread.server = server
        thread.comm = comm
        thread.start()
    try:
        controller.run()
    finally:
        for thread in threads:
            thread.is_stopped = True
        controller.stop_controller(fl_ctx)
        comm.finalize_run(fl_ctx)
    return stage, server


class NVFlareDriver:
    """Rounds as workflows of a job."""

    name = "nvflare 2."

    def play(self, folder, persistor="", components=None, **config):
        stage_options = {name: config.pop(name) for name in STAGE_OPTIONS if name in config}
        started = time.monotonic()
        controller = CalibrationController({**QUICK, **config_keys(config)}, persistor)
        stage, server = run(controller, folder, components=components, **stage_options)
        calibration = robfcp.Calibration.load(server.run_dir / "calibration.json", record=True)
        assert calibration.provenance["run_id"] == "job"
        return calibration, stage.nonces, time.monotonic() - started

    def monitor(self, folder, fresh, configs, **options):
        calibration_path = folder / "monitored.json"
        watched().save(calibration_path)
        FRESH_DATA.clear()
        FRESH_DATA.update(fresh)
        configs = {name: dict(configs[name]) for name in DATA}
        for name in fresh:
            configs[name]["fresh-data-fn"] = f"nvflare_faults:fresh_{name.removeprefix('site-')}"
        config = {"calibration": str(calibration_path), "deadline": 20.0, "poll": 0.02, **options}
        _, server = run(MonitorController(config), folder, configs=configs)
        merged = msgspec.json.decode((server.run_dir / "monitor.json").read_bytes())
        rejected_clients = {rejected["client"] for rejected in merged["rejected_reports"]}
        return {**merged, "rejected_reports": rejected_clients}
