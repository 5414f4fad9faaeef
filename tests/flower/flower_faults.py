"""An in-process network whose nodes misbehave in every way a deployment has shown."""

import time

import msgspec
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from robfcp.engines.flower import client_app
from robfcp.engines.flower_network import RECORD, InProcessNetwork, reply_content


class FaultyNetwork(InProcessNetwork):
    """faults: {client: function(network, message, honest reply)} for `query.sketch` messages."""

    def __init__(self, data, faults=None, only="query.sketch"):
        names = list(data)

        def outputs(split, arrays, context):
            return data[names[context.node_config["partition-id"]]]

        configs = [{"partition-id": k} for k in range(len(names))]
        super().__init__(client_app(outputs), configs, names=names)
        self.faults, self.only = faults or {}, only
        self.by_node = dict(zip(self.get_node_ids(), names, strict=True))
        self.delayed, self.held, self.asked, self.seen = [], [], [], {}

    def deliver(self, message):
        client = self.by_node[message.metadata.dst_node_id]
        if message.metadata.message_type == self.only:
            self.asked.append(client)
            self.seen.setdefault(client, []).append(message)
            if client in self.faults:
                reply = self._app(message, self._contexts[message.metadata.dst_node_id])
                self.faults[client](self, message, reply)
                return
        if message.metadata.message_type == "query.threshold":
            while self.held:
                self.answer(*self.held.pop())
        super().deliver(message)

    def pull_messages(self, message_ids):
        for due, message_id, reply in list(self.delayed):
            if time.monotonic() >= due:
                self.delayed.remove((due, message_id, reply))
                self.answer(message_id, reply)
        return super().pull_messages(message_ids)


def body_of(reply):
    return msgspec.json.decode(reply.content[RECORD]["body"])


def send(network, message, content):
    network.answer(message.metadata.message_id, Message(content, reply_to=message))


def altered(change):
    """A fault that alters the decoded report and sends it with the right nonce."""

    def fault(network, message, reply):
        report = body_of(reply)
        change(report)
        nonce = reply.content[RECORD]["nonce"]
        send(network, message, reply_content(nonce, msgspec.json.encode(report)))

    return fault


def raw(body):
    """A fault that sends these bytes with the right nonce."""

    def fault(network, message, reply):
        send(network, message, reply_content(reply.content[RECORD]["nonce"], body))

    return fault


def silent(network, message, reply):
    pass


def late(network, message, reply):
    """Answers when the deadline is past and the threshold goes out."""
    network.held.append((message.metadata.message_id, reply))


def slow(seconds):
    def fault(network, message, reply):
        network.delayed.append((time.monotonic() + seconds, message.metadata.message_id, reply))

    return fault


def forged(network, message, reply):
    """Somebody else answers who knows the message's id but not its nonce."""
    body = reply.content[RECORD]["body"]
    send(network, message, reply_content("0" * 32, body))


def once(fault, then=None):
    """The fault the first time, the honest reply (or another fault) the second."""

    def first(network, message, reply):
        client = network.by_node[message.metadata.dst_node_id]
        if network.asked.count(client) == 1:
            fault(network, message, reply)
        elif then is not None:
            then(network, message, reply)
        else:
            network.answer(message.metadata.message_id, reply)

    return first


def twice(network, message, reply):
    network.answer(message.metadata.message_id, reply)
    forged(network, message, reply)


def huge(network, message, reply):
    nonce = reply.content[RECORD]["nonce"]
    send(network, message, reply_content(nonce, bytes(50 * 2**20)))


def huge_record(network, message, reply):
    """50 MB beside the reply."""
    arrays = ArrayRecord([np.zeros(50 * 2**20, dtype=np.uint8)])
    send(network, message, RecordDict({RECORD: reply.content[RECORD], "arrays": arrays}))


def odd(record):
    def fault(network, message, reply):
        send(network, message, RecordDict({RECORD: ConfigRecord(record)}))

    return fault


def error(code):
    def fault(network, message, reply):
        text = "patient 4711 has no label"
        network.answer(message.metadata.message_id, Message(Error(code, text), reply_to=message))

    return fault
