"""NVFlare's server side in this process, and the driver of the shared tests.

The workflow's communicator is NVFlare's own; what goes over the wire is packed and unpacked as
NVFlare does it. Honest clients run the executor that a job without code runs.
"""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
from integration_faults import DATA, QUICK, Stage, Turn, told, watched
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

STAGED = ("data", "faults", "only", "configs")
HELD, FRESH = {}, {}  # what a test lets the sites hold
flare_decomposers.register()
common_decomposers.register()


def hangs(part, params):
    time.sleep(10**4)


def with_params(part, params):
    """Probabilities that the received model makes."""
    return np.tile(params["numpy_key"], (60, 1)), np.zeros(60, dtype=int)


def __getattr__(name):
    """Sites' own code, as an installed module would hold it: `nvflare_faults:site_3`."""
    kind, _, number = name.partition("_")
    found = {"site": HELD, "fresh": FRESH}.get(kind)
    if found is None:
        raise AttributeError(name)
    return lambda *given: told(found[f"site-{number}"])


def workspace(folder, name, config=None):
    """A site's folder as a startup kit has it."""
    root = Path(folder) / name
    for part in ("local", "startup"):
        (root / part).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / "local" / "robfcp.json").write_text(json.dumps(config))
    return Workspace(str(root), name)


def server_of(folder, names, components=None):
    """As much of NVFlare's engine as a workflow needs."""
    place = workspace(folder, "server")
    found = SimpleNamespace(
        run_dir=Path(place.get_run_dir("job")),
        get_clients=lambda: [Client(name, "token") for name in names],
        fire_event=lambda event_type, fl_ctx: None,
        get_workspace=lambda: place,
        get_component=(components or {}).get,
    )
    found.run_dir.mkdir(parents=True, exist_ok=True)
    found.new_context = FLContextManager(found, "server", "job").new_context
    return found


class Site(threading.Thread):
    """A client that fetches its tasks, and takes its turn on the stage."""

    def __init__(self, name, folder, config, stage=None):
        super().__init__(daemon=True)
        self.client, self.stage, self.over = Client(name, "token"), stage, False
        self.executor = CalibrationExecutor()
        self.fl_ctx = FLContext()
        self.fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace(folder, name, config))

    def run(self):
        while not self.over:
            fl_ctx = self.server.new_context()
            task, number, data = self.comm.process_task_request(self.client, fl_ctx)
            if task:
                data = fobs.loads(fobs.dumps(data))
                request = FLModelUtils.from_shareable(data).meta[RECORD]
                self.stage.act(NVFlareTurn(self, task, number, data), self.client.name, request)
            time.sleep(0.02)


class NVFlareTurn(Turn):
    """A turn of a site."""

    def __init__(self, site, task, number, data):
        self.site, self.task, self.number = site, task, number
        reply = site.executor.execute(task, data, site.fl_ctx, Signal())
        super().__init__(site.stage, FLModelUtils.from_shareable(reply).metrics)

    def submit(self, reply, client=None):
        """Reply with anything, as anybody."""
        if isinstance(reply, FLModel):
            reply = FLModelUtils.to_shareable(reply)
        result, fl_ctx = fobs.loads(fobs.dumps(reply)), self.site.server.new_context()
        client = client or self.site.client
        self.site.comm.process_submission(client, self.task, self.number, result, fl_ctx)

    def send(self, record=None):
        self.submit(FLModel(metrics=self.record if record is None else record))

    def spoil(self, hook):
        lie = Shareable()
        lie["DXO"] = {"kind": "METRICS", "data": [[]], "meta": 7}
        self.submit(lie)

    def beside(self):
        self.submit(FLModel(params={"weights": bytes(2**20)}, metrics=self.record))

    def fail(self, code=ReturnCode.EXECUTION_EXCEPTION):
        self.submit(make_reply(code))

    def hold(self, fault):
        released, sent = threading.Event(), threading.Event()
        self.stage.held.append(lambda: released.set() or sent.wait(30))
        released.wait(30)
        fault(self)
        sent.set()

    def later(self, seconds):
        time.sleep(seconds)
        self.send()

    def vanish(self):
        self.site.over = True


def run(
    controller, folder, *, data=DATA, faults=None, only="report", configs=None, components=None
):
    """Run a workflow with one thread a site; the stage and the server afterwards."""
    HELD.clear()
    HELD.update(data)
    stage, sites = Stage(data, faults, only), []
    for name in data:
        own = (configs or {}).get(name, {})
        outputs = f"nvflare_faults:{name.replace('-', '_')}"
        sites.append(Site(name, folder, {"outputs": outputs, **own}, stage))
    server = server_of(folder, list(data), components)
    comm = WFCommServer(task_check_period=0.05)
    controller.set_communicator(comm)
    fl_ctx = server.new_context()
    comm.initialize_run(fl_ctx)
    controller.initialize(fl_ctx)
    controller.fl_ctx, controller.abort_signal = fl_ctx, Signal()
    for site in sites:
        site.server, site.comm = server, comm
        site.start()
    try:
        controller.run()
    finally:
        for site in sites:
            site.over = True
        controller.stop_controller(fl_ctx)
        comm.finalize_run(fl_ctx)
    return stage, server


class NVFlareDriver:
    """Rounds as workflows of a job."""

    name = "nvflare 2."

    def play(self, folder, persistor="", components=None, **config):
        stage = {word: config.pop(word) for word in STAGED if word in config}
        started, workflow = time.monotonic(), CalibrationController({**QUICK, **config}, persistor)
        found, server = run(workflow, folder, components=components, **stage)
        calibration = robfcp.Calibration.load(server.run_dir / "calibration.json", record=True)
        assert calibration.provenance["run_id"] == "job"
        return calibration, found.asked, time.monotonic() - started

    def monitor(self, folder, fresh, configs, **options):
        watched().save(folder / "watched.json")
        FRESH.clear()
        FRESH.update(fresh)
        watch = {name: {"fresh": f"nvflare_faults:fresh_{name[5:]}"} for name in fresh}
        own = {name: {**configs[name], **watch.get(name, {})} for name in DATA}
        words = {"calibration": str(folder / "watched.json"), "deadline": 20.0, "poll": 0.02}
        if "min_coverage" in options:  # the configuration's word for it
            options["floor"] = options.pop("min_coverage")
        _, server = run(MonitorController({**words, **options}), folder, configs=own)
        found = msgspec.json.decode((server.run_dir / "monitor.json").read_bytes())
        return {**found, "faulty": {fault["client"] for fault in found["faulty"]}}
