"""Flower's nodes in this process, some of which misbehave; and the driver of the shared tests."""

import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from integration_faults import DATA, QUICK, Stage, Turn, looked, told, watched

import robfcp
from robfcp.integrations import run_monitoring_round
from robfcp.integrations._messages import RECORD
from robfcp.integrations.flower import (
    RUN_ID,
    FlowerTransport,
    InProcessGrid,
    make_client_app,
    make_server_app,
)


class FaultyNetwork(InProcessGrid):
    """faults: {client: fault} for requests of the kind `only`; configs: {client: node config}."""

    def __init__(self, data, faults=None, only="report", configs=None, **options):
        names = list(data)
        app = make_client_app(
            lambda part, arrays, node: told(data[names[node.node_id - 1]]), **options
        )
        super().__init__(app, [(configs or {}).get(name, {}) for name in names], names=names)
        self.stage = Stage(names, faults, only)

    def deliver(self, message):
        node = message.metadata.dst_node_id
        reply = self._app(message, self._contexts[node])
        turn = FlowerTurn(self, message, reply)
        self.stage.act(turn, self._names[node - 1], message.content[RECORD])

    def pull_messages(self, message_ids):
        for number in message_ids:
            self.stage.spoilt.get(number, int)()
        return super().pull_messages(message_ids)


class FlowerTurn(Turn):
    """A turn of a node."""

    def __init__(self, network, message, reply):
        super().__init__(network.stage, reply.content[RECORD])
        self.network, self.message = network, message
        self.number = message.metadata.message_id

    def content(self, content):
        """Reply with any content."""
        self.network.answer(self.number, Message(content, reply_to=self.message))

    def send(self, record=None):
        self.content(RecordDict({RECORD: ConfigRecord(self.record if record is None else record)}))

    def beside(self):
        arrays = ArrayRecord([np.zeros(50 * 2**20, dtype=np.uint8)])
        self.content(RecordDict({RECORD: ConfigRecord(self.record), "arrays": arrays}))

    def fail(self, code=2):
        self.content(Error(code, "patient 4711 has no label"))


class FlowerDriver:
    """Rounds as a ServerApp's run config has them."""

    name = "flower 1."

    def play(self, folder, data=DATA, faults=None, configs=None, only="report", **config):
        folder.mkdir(exist_ok=True)
        network, started = FaultyNetwork(data, faults, only, configs), time.monotonic()
        config = {**QUICK, "output": str(folder / "calibration.json"), **config}
        make_server_app()(network, Context(RUN_ID, 0, {}, RecordDict(), config))
        seconds = time.monotonic() - started
        return robfcp.Calibration.load(config["output"], record=True), network.stage.asked, seconds

    def monitor(self, folder, fresh, configs, liars, **options):
        names = list(DATA)

        def samples(arrays, node):
            return told(fresh.get(names[node.node_id - 1], OSError("nothing")))

        network = FaultyNetwork(DATA, configs=configs, fresh_data_fn=samples if fresh else None)
        engine = FlowerTransport(network, deadline=20.0, poll=0.02)
        return looked(run_monitoring_round(engine, watched(), liars, **options))
