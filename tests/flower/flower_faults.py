"""Flower's nodes in this process, some of which misbehave; and the driver of the shared tests."""

import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from integration_faults import (
    DATA,
    QUICK,
    Stage,
    Turn,
    config_keys,
    merged_values,
    return_or_raise,
    watched,
)

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


class FaultyGrid(InProcessGrid):
    """faults: {client: fault} for requests of the kind `only`; configs: {client: node config}."""

    def __init__(self, data, faults=None, only="report", configs=None, **options):
        names = list(data)

        def predict_fn(split, arrays, context):
            return return_or_raise(data[names[context.node_id - 1]])

        app = make_client_app(predict_fn, **options)
        super().__init__(app, [(configs or {}).get(name, {}) for name in names], names=names)
        self.stage = Stage(names, faults, only)

    def deliver(self, message):
        node_id = message.metadata.dst_node_id
        reply = self._app(message, self._contexts[node_id])
        turn = FlowerTurn(self, message, reply)
        self.stage.act(turn, self._names[node_id - 1], message.content[RECORD])

    def pull_messages(self, message_ids):
        for message_id in message_ids:
            read_hook = self.stage.read_hooks.get(message_id)
            if read_hook is not None:
                read_hook()
        return super().pull_messages(message_ids)


class FlowerTurn(Turn):
    """A turn of a node."""

    def __init__(self, grid, message, reply):
        super().__init__(grid.stage, reply.content[RECORD])
        self.grid = grid
        self.message = message
        self.message_id = message.metadata.message_id

    def send_content(self, content):
        """Reply with any content."""
        self.grid.answer(self.message_id, Message(content, reply_to=self.message))

    def send(self, record=None):
        record = self.record if record is None else record
        self.send_content(RecordDict({RECORD: ConfigRecord(record)}))

    def send_with_arrays(self):
        arrays = ArrayRecord([np.zeros(50 * 2**20, dtype=np.uint8)])
        self.send_content(RecordDict({RECORD: ConfigRecord(self.record), "arrays": arrays}))

    def fail(self, code=2):
        self.send_content(Error(code, "patient 4711 has no label"))


class FlowerDriver:
    """Rounds as a ServerApp's run config has them."""

    name = "flower 1."

    def play(self, folder, data=DATA, faults=None, configs=None, only="report", **config):
        folder.mkdir(exist_ok=True)
        grid = FaultyGrid(data, faults, only, configs)
        started = time.monotonic()
        config = {**QUICK, "output": str(folder / "calibration.json"), **config_keys(config)}
        make_server_app()(grid, Context(RUN_ID, 0, {}, RecordDict(), config))
        seconds = time.monotonic() - started
        calibration = robfcp.Calibration.load(config["output"], record=True)
        return calibration, grid.stage.nonces, seconds

    def monitor(self, folder, fresh, configs, max_malicious, **options):
        names = list(DATA)

        def fresh_data_fn(arrays, context):
            name = names[context.node_id - 1]
            return return_or_raise(fresh.get(name, OSError("nothing")))

        grid = FaultyGrid(DATA, configs=configs, fresh_data_fn=fresh_data_fn if fresh else None)
        transport = FlowerTransport(grid, deadline=20.0, poll=0.02)
        merged = run_monitoring_round(transport, watched(), max_malicious, **options)
        return merged_values(merged)
