"""A transport of two dictionaries in this process, and the driver of the shared tests."""

import time

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
from robfcp.integrations import DEFAULTS, ClientPolicy, run_monitoring_round
from robfcp.integrations._configuration import run_configured_round
from robfcp.integrations._messages import Participant
from robfcp.integrations._requests import TTL_GRACE_SECONDS, FailedReply, Transport
from robfcp.integrations.client import ClientRequestHandler, handle_message


class Loopback(Transport):
    """Clients answer when they are asked, unless a fault replaces the answer."""

    def __init__(self, handlers, faults=None, only="report", deadline=20.0, poll=0.02):
        super().__init__("loopback", "none", deadline, poll)
        self.handlers = handlers
        self.replies = {}
        self.stage = Stage(handlers, faults, only)

    def present(self):
        return [Participant(k, name) for k, name in enumerate(self.handlers)]

    def send(self, participant, record, ttl):
        assert TTL_GRACE_SECONDS < ttl < self.deadline + TTL_GRACE_SECONDS + 1
        turn = LoopbackTurn(self, record, self.handlers[participant.client])
        self.stage.act(turn, participant.client, record)
        return record["nonce"]

    def receive(self, identifier):
        read_hook = self.stage.read_hooks.get(identifier)
        if read_hook is not None:
            read_hook()
        return self.replies.pop(identifier, None)


class LoopbackTurn(Turn):
    """A turn of a client in this process."""

    def __init__(self, transport, request, make_handler):
        super().__init__(transport.stage, handle_message(request, make_handler))
        self.transport = transport
        self.message_id = request["nonce"]

    def send(self, record=None):
        self.transport.replies.setdefault(
            self.message_id, self.record if record is None else record
        )

    def send_with_arrays(self):
        self.send({**self.record, "arrays": bytes(50 * 2**20)})

    def fail(self, code=42):
        failure = FailedReply("invalid", f"the client failed ({code})")
        self.transport.replies[self.message_id] = failure


def client_handlers(data=DATA, configs=None, fresh=None):
    """For each client a function that makes its request handler."""

    def make_handler(name):
        fresh_data_fn = None
        if fresh is not None and name in fresh:
            fresh_data_fn = lambda: return_or_raise(fresh[name])  # noqa: E731
        policy = ClientPolicy().with_config((configs or {}).get(name, {}))
        return ClientRequestHandler(
            policy, lambda split: return_or_raise(data[name]), fresh_data_fn
        )

    return {name: lambda name=name: make_handler(name) for name in data}


class LoopbackDriver:
    """Rounds as configured, over the loopback."""

    name = "loopback"

    def play(self, folder, data=DATA, faults=None, configs=None, only="report", **config):
        folder.mkdir(exist_ok=True)
        output = str(folder / "calibration.json")
        started = time.monotonic()
        config = {**DEFAULTS, **QUICK, **config_keys(config), "output": output}
        handlers = client_handlers(data, configs)
        transport = Loopback(handlers, faults, only, config["deadline"], config["poll"])
        run_configured_round(transport, config)
        seconds = time.monotonic() - started
        calibration = robfcp.Calibration.load(output, record=True)
        return calibration, transport.stage.nonces, seconds

    def answer(self, folder, record, fresh):
        """The reply of the first client to a request."""
        config = {"feedback-dir": str(folder), "monitor-dir": str(folder)}
        handlers = client_handlers(DATA, {"site-0": config}, {"site-0": fresh})
        return handle_message(record, handlers["site-0"])

    def monitor(self, folder, fresh, configs, max_malicious, **options):
        transport = Loopback(client_handlers(DATA, configs, fresh))
        merged = run_monitoring_round(transport, watched(), max_malicious, **options)
        return merged_values(merged)
