"""Flower's `Grid`, called network here: its nodes, and one in this process that needs no Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

TROUBLE: tuple[type[Exception], ...] = (OSError,)  # a network that may work again a moment later
for _module, _error in (("httpx", "HTTPError"), ("grpc", "RpcError")):
    with suppress(ModuleNotFoundError):
        TROUBLE += (getattr(import_module(_module), _error),)

APP_RAISED = 2  # Flower's code for a ClientApp that raised
RUN_ID = 1


@dataclass(frozen=True)
class Node:
    """A node as a network lists it."""

    node_id: int
    name: str = ""
    public_key: bytes = b""


def nodes_of(network: Any) -> list[tuple[int, str, bytes]]:
    """Number, registered name and public key of every node, where this version of flwr tells."""
    if not hasattr(network, "get_nodes"):
        return [(int(node_id), "", b"") for node_id in network.get_node_ids()]
    found = []
    for node in network.get_nodes():
        key = getattr(node, "public_key", b"")
        key = key.encode() if isinstance(key, str) else bytes(key)
        found.append((int(node.node_id), str(getattr(node, "name", "") or ""), key))
    return found


class InProcessNetwork:
    """Runs one ClientApp for every node in this process; messages are answered when pushed.

    node_configs: what each node's `context.node_config` holds. names: the registered names.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        self._names = [""] * len(node_configs) if names is None else list(names)
        self._contexts = {
            node_id: Context(RUN_ID, node_id, dict(config), RecordDict(), dict(run_config or {}))
            for node_id, config in enumerate(node_configs, start=1)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0
        self._lock = threading.Lock()
        self.run = import_module("flwr.supercore.run").Run.create_empty(RUN_ID)
        with suppress(ModuleNotFoundError):  # flwr from 1.34 on wants to know whose process it is
            identity = import_module("flwr.supercore.task_identity").TaskIdentity
            if identity._run_id is None:
                identity.run_id, identity.task_id, identity.node_id = RUN_ID, 1, 1

    def set_run(self, run: Any) -> None:
        """Set the run information."""
        self.run = run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes' ids."""
        return list(self._contexts)

    def get_nodes(self) -> list[Node]:
        """All nodes, with the names they were registered under."""
        return [Node(*pair) for pair in zip(self._contexts, self._names, strict=True)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer each message; the ids to pull the replies by."""
        identifiers = []
        for message in messages:
            with self._lock:  # two rounds at once must not share an id
                self._sent += 1
                identifier = f"message-{self._sent}"
            message.metadata.__dict__["_message_id"] = identifier
            identifiers.append(identifier)
            self.deliver(message)
        return identifiers

    def deliver(self, message: Message) -> None:
        """Run the app on a message and keep its reply."""
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(APP_RAISED, str(error)), reply_to=message)
        self.answer(message.metadata.message_id, reply)

    def answer(self, message_id: str, reply: Message) -> None:
        """Keep a reply; a second one is dropped."""
        self._replies.setdefault(message_id, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that are there."""
        found = (self._replies.pop(message_id, None) for message_id in list(message_ids))
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push and pull: everybody answers at once."""
        return self.pull_messages(self.push_messages(messages))
