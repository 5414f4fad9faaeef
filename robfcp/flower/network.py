"""Flower's `Grid` as far as it is needed, and one in this process that needs no Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from robfcp.flower._flwr import Node, empty_run, identify_task

APP_RAISED = 2  # Flower's code for a ClientApp that raised
RUN_ID = 1


class Network(Protocol):
    """What a calibration round needs of Flower's `Grid`."""

    def get_nodes(self) -> Iterable[Any]:
        """The nodes with id, registered name and public key."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; the ids under which replies can be pulled."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there."""
        ...


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
        self._run = empty_run(RUN_ID)
        identify_task(RUN_ID)

    @property
    def run(self) -> Any:
        """Run information."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Set the run information."""
        self._run = run

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
        return [
            Node(node_id, name) for node_id, name in zip(self._contexts, self._names, strict=True)
        ]

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
        context = self._contexts[message.metadata.dst_node_id]
        try:
            reply = self._app(message, context)
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
        """Push and pull until all have answered or the time is up."""
        waiting = set(self.push_messages(messages))
        end = time.monotonic() + (60.0 if timeout is None else timeout)
        replies: list[Message] = []
        while True:
            new = self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            replies += new
            if not waiting or time.monotonic() >= end:
                return replies
            time.sleep(0.01)


def run_in_process(
    server: ServerApp,
    client: ClientApp,
    node_configs: Sequence[Mapping[str, Any]],
    run_config: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Run a ServerApp with its ClientApps in this process, as `flwr run` would on many."""
    network: Any = InProcessNetwork(client, node_configs, run_config, names)
    server(network, Context(RUN_ID, 0, {}, RecordDict(), dict(run_config or {})))
