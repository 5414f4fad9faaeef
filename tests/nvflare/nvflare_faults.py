"""NVFlare's server side in this process, with clients that misbehave in every way one can.

The workflow's communicator is NVFlare's own; what goes over the wire is packed and unpacked as
NVFlare does it. Honest clients run the executor that a job without code runs.
"""

import json
import threading
import time
from pathlib import Path

import msgspec
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
from nvflare_sites import DATA

import robfcp
from robfcp.engines.nvflare import RECORD, CalibrationController, CalibrationExecutor

flare_decomposers.register()
common_decomposers.register()


def workspace(folder, name, config=None):
    """A site's folder as a startup kit has it."""
    root = Path(folder) / name
    for part in ("local", "startup"):
        (root / part).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / "local" / "robfcp.json").write_text(json.dumps(config))
    return Workspace(str(root), name)


class Server:
    """As much of NVFlare's engine as a workflow needs."""

    def __init__(self, folder, names, components=None):
        self.names, self.components = list(names), components or {}
        self.workspace = workspace(folder, "server")
        self.run_dir = Path(self.workspace.get_run_dir("job"))
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.manager = FLContextManager(self, "server", "job")
        self.events = []

    def get_clients(self):
        return [Client(name, "token") for name in self.names]

    def new_context(self):
        return self.manager.new_context()

    def fire_event(self, event_type, fl_ctx):
        self.events.append(event_type)

    def get_workspace(self):
        return self.workspace

    def get_component(self, name):
        return self.components.get(name)


class Site(threading.Thread):
    """A client that fetches its tasks; fault(site, name, number, request, honest reply)."""

    def __init__(self, name, folder, config, fault=None, only="sketch"):
        super().__init__(daemon=True)
        self.client = Client(name, "token")
        self.fault, self.only, self.asked = fault, only, []
        self.executor = CalibrationExecutor()
        self.fl_ctx = FLContext()
        self.fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace(folder, name, config))
        self.over, self.waits, self.released = False, False, threading.Event()

    def run(self):
        while not self.over:
            fl_ctx = self.server.new_context()
            task, number, data = self.comm.process_task_request(self.client, fl_ctx)
            if task:
                self.act(task, number, fobs.loads(fobs.dumps(data)))
            time.sleep(0.02)

    def act(self, task, number, data):
        request = FLModelUtils.from_shareable(data).meta[RECORD]
        reply = self.executor.execute(task, data, self.fl_ctx, Signal())
        if request["kind"] == self.only:
            self.asked.append(request["nonce"])
            if self.fault is not None:
                self.fault(self, task, number, reply)
                return
        for other in self.others if request["kind"] == "threshold" else ():
            other.released.set()
            while other.waits:
                time.sleep(0.01)
        self.submit(task, number, reply)

    def submit(self, task, number, reply, client=None):
        result = fobs.loads(fobs.dumps(reply))
        self.comm.process_submission(
            client or self.client, task, number, result, self.server.new_context()
        )


def run(controller, folder, *, faults=None, only="sketch", configs=None, components=None):
    """Run a workflow with one thread a site; the sites and the server afterwards."""
    configs = configs or {}
    sites = [
        Site(
            name,
            folder,
            {"outputs": f"nvflare_sites:{name.replace('-', '_')}", **configs.get(name, {})},
            (faults or {}).get(name),
            only,
        )
        for name in DATA
    ]
    server = Server(folder, DATA, components)
    comm = WFCommServer(task_check_period=0.05)
    controller.set_communicator(comm)
    fl_ctx = server.new_context()
    comm.initialize_run(fl_ctx)
    controller.initialize(fl_ctx)
    controller.fl_ctx, controller.abort_signal = fl_ctx, Signal()
    for site in sites:
        site.server, site.comm, site.others = server, comm, sites
        site.start()
    try:
        controller.run()
    finally:
        for site in sites:
            site.over = True
        controller.stop_controller(fl_ctx)
        comm.finalize_run(fl_ctx)
    return sites, server


def play(folder, faults=None, configs=None, components=None, only="sketch", persistor="", **config):
    """One calibration round: the calibration, the sites, and the seconds it took."""
    options = {"malicious": 1, "deadline": 20.0, "poll": 0.02, "sizes": "none", **config}
    started = time.monotonic()
    sites, server = run(
        CalibrationController(options, persistor),
        folder,
        faults=faults,
        only=only,
        configs=configs,
        components=components,
    )
    seconds = time.monotonic() - started
    calibration = robfcp.Calibration.load(server.run_dir / "calibration.json")
    return calibration, {site.client.name: site for site in sites}, seconds


def metrics_of(reply):
    return FLModelUtils.from_shareable(reply).metrics


def sending(change):
    """A fault that sends what `change` makes of the honest reply's record."""

    def fault(site, task, number, reply):
        site.submit(task, number, FLModelUtils.to_shareable(change(dict(metrics_of(reply)))))

    return fault


def raw(body):
    """These bytes with the right nonce."""
    return sending(lambda record: FLModel(metrics={**record, "body": body}))


def altered(change):
    """The decoded report, altered, with the right nonce."""

    def apply(record):
        report = msgspec.json.decode(record["body"])
        change(report)
        return FLModel(metrics={**record, "body": msgspec.json.encode(report)})

    return sending(apply)


def record(**fields):
    """A record of another shape."""
    return sending(lambda honest: FLModel(metrics=fields))


beside = sending(lambda record: FLModel(params={"weights": bytes(2**20)}, metrics=record))
forged = sending(lambda record: FLModel(metrics={**record, "nonce": "0" * 32}))
huge = raw(bytes(50 * 2**20))


def silent(site, task, number, reply):
    site.over = True


def slow(site, task, number, reply):
    time.sleep(0.1)
    site.submit(task, number, reply)


def late(site, task, number, reply):
    """Answers when the deadline is past and the threshold goes out."""
    site.waits = True
    site.released.wait(30)
    site.submit(task, number, reply)
    site.waits = False


def raised(site, task, number, reply):
    site.submit(task, number, make_reply(ReturnCode.EXECUTION_EXCEPTION))


def empty(site, task, number, reply):
    site.submit(task, number, Shareable())


def nested(site, task, number, reply):
    """A reply whose fields are no fields."""
    lie = Shareable()
    lie["DXO"] = {"kind": "METRICS", "data": [[]], "meta": 7}
    site.submit(task, number, lie)


def odd_code(site, task, number, reply):
    site.submit(task, number, make_reply("patient 4711"))


def twice(site, task, number, reply):
    site.submit(task, number, reply)
    forged(site, task, number, reply)


def stolen(site, task, number, reply):
    """Another client answers this one's task first, with the right nonce even."""
    thief = next(other for other in site.others if other.client.name == "site-5")
    lie = {**metrics_of(reply), "body": b"{}"}
    site.submit(task, number, FLModelUtils.to_shareable(FLModel(metrics=lie)), thief.client)
    site.submit(task, number, reply)


def once(fault, then=None):
    """The fault the first time, the honest reply (or another fault) the second."""

    def first(site, task, number, reply):
        if len(site.asked) == 1:
            fault(site, task, number, reply)
        elif then is not None:
            then(site, task, number, reply)
        else:
            site.submit(task, number, reply)

    return first
