"""Flower's nodes in this process, some of which misbehave; and the driver of the shared tests."""

import threading
import time
from dataclasses import asdict

import msgspec
import numpy as np
from engine_data import DATA, told, watched
from engine_faults import Turn
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

import robfcp
from robfcp.engines import monitor_round
from robfcp.engines.flower import RUN_ID, Flower, InProcessNetwork, client_app, server_app
from robfcp.engines.protocol import RECORD


class FaultyNetwork(InProcessNetwork):
    """faults: {client: fault} for requests of the kind `only`; configs: {client: node config}."""

    def __init__(self, data, faults=None, only="report", configs=None, **options):
        names = list(data)
        app = client_app(lambda part, arrays, node: told(data[names[node.node_id - 1]]), **options)
        own = [(configs or {}).get(name, {}) for name in names]
        super().__init__(app, own, names=names)
        self.faults, self.only = faults or {}, only
        self.held, self.asked = [], {name: [] for name in names}

    def deliver(self, message):
        node = message.metadata.dst_node_id
        client = self._names[node - 1]
        record = message.content[RECORD]
        kind = msgspec.json.decode(record["body"])["kind"]
        while kind == "check" and self.held:
            self.held.pop()()
        if kind == self.only:
            self.asked[client].append(record["nonce"])
            if client in self.faults:
                reply = self._app(message, self._contexts[node])
                turn = FlowerTurn(self, message, reply, len(self.asked[client]))
                self.faults[client](turn)
                return
        super().deliver(message)


class FlowerTurn(Turn):
    """A turn of a node."""

    def __init__(self, network, message, reply, attempt):
        super().__init__(reply.content[RECORD], attempt)
        self.network, self.message = network, message

    def content(self, content):
        """Reply with any content."""
        number = self.message.metadata.message_id
        self.network.answer(number, Message(content, reply_to=self.message))

    def send(self, record=None):
        self.content(RecordDict({RECORD: ConfigRecord(self.record if record is None else record)}))

    def beside(self):
        arrays = ArrayRecord([np.zeros(50 * 2**20, dtype=np.uint8)])
        self.content(RecordDict({RECORD: ConfigRecord(self.record), "arrays": arrays}))

    def fail(self, code=2):
        self.content(Error(code, "patient 4711 has no label"))

    def hold(self):
        self.network.held.append(self.send)

    def later(self, seconds):
        threading.Timer(seconds, self.send).start()


class FlowerDriver:
    """Rounds as a ServerApp's run config has them."""

    name = "flower 1."

    def play(self, folder, data=DATA, faults=None, configs=None, only="report", **config):
        folder.mkdir(exist_ok=True)
        options = {"liars": 1, "deadline": 20.0, "poll": 0.02, "sizes": "none", **config}
        network = FaultyNetwork(data, faults, only, configs)
        run(server_app(), network, output=str(folder / "calibration.json"), **options)
        calibration = robfcp.Calibration.load(folder / "calibration.json")
        return calibration, network.asked, time.monotonic() - network.started

    def monitor(self, folder, fresh, configs, liars, **options):
        names = list(DATA)

        def samples(arrays, node):
            return told(fresh.get(names[node.node_id - 1], OSError("nothing")))

        network = FaultyNetwork(DATA, configs=configs, fresh=samples if fresh else None)
        engine = Flower(network, deadline=20.0, poll=0.02)
        merged = monitor_round(engine, watched(), liars, **options)
        faulty = {fault.client for fault in merged.faulty}
        return {**asdict(merged), "alarm": merged.alarm, "line": merged.line, "faulty": faulty}


def run(app, network, **config):
    """A ServerApp on a network."""
    from flwr.app import Context

    network.started = time.monotonic()
    app(network, Context(RUN_ID, 0, {}, RecordDict(), config))
