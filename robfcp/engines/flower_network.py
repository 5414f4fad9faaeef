"""Flower's `Grid` as far as it is needed, and one in this process that needs no Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from robfcp.errors import RobfcpError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
except ModuleNotFoundError as error:
    raise RobfcpError("flower: flwr is not installed; pip install 'robfcp[flower]'") from error
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from robfcp.engines import (
    Carrier,
    Collection,
    Engine,
    Failed,
    Kind,
    Participant,
    Refused,
    Reply,
    ask_all,
    bounded,
    model_digest,
    named_participants,
    open_reply_record,
    open_request_record,
    reply_record,
    request_record,
)
from robfcp.errors import RobfcpError


@dataclass(frozen=True)
class Node:
    """A node as a network lists it."""

    node_id: int
    name: str = ""
    status: str = "online"
    public_key: bytes = b""


def network_trouble() -> tuple[type[Exception], ...]:
    """The exceptions of a network that may work again a moment later."""
    found: list[type[Exception]] = [OSError]
    for module, name in (("httpx", "HTTPError"), ("grpc", "RpcError")):
        with suppress(ModuleNotFoundError):
            found.append(getattr(import_module(module), name))
    return tuple(found)


def nodes_of(network: Any) -> list[Node]:
    """The network's nodes with their registered names, where its version of flwr tells them."""
    if not hasattr(network, "get_nodes"):
        return [Node(int(node_id)) for node_id in network.get_node_ids()]
    return [_node(node) for node in _listed(network)]


def _listed(network: Any) -> Iterable[Any]:
    nodes: Iterable[Any] = network.get_nodes()
    return nodes


def _node(node: Any) -> Node:
    key = getattr(node, "public_key", b"")
    return Node(
        int(node.node_id),
        str(getattr(node, "name", "") or ""),
        str(getattr(node, "status", "") or "online"),
        key.encode() if isinstance(key, str) else bytes(key),
    )


def empty_run(run_id: int) -> Any:
    """flwr's description of a run, with nothing in it but its number."""
    return import_module("flwr.supercore.run").Run.create_empty(run_id)


def identify_task(run_id: int) -> None:
    """Tell flwr, from 1.34 on, which run this process belongs to, unless it knows."""
    with suppress(ModuleNotFoundError):
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
        if identity._run_id is None:
            identity.run_id, identity.task_id, identity.node_id = run_id, 1, 1


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


RECORD = "robfcp"
ARRAYS = "arrays"


def request_content(nonce: str, body: msgspec.Struct, arrays: ArrayRecord | None) -> RecordDict:
    """A request as Flower carries it."""
    content = RecordDict({RECORD: ConfigRecord(request_record(nonce, body))})
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def reply_content(nonce: str, answer: bytes | int) -> RecordDict:
    """An answer, or a failure's code, as Flower carries it."""
    return RecordDict({RECORD: ConfigRecord(reply_record(nonce, answer))})


def open_request(content: RecordDict) -> tuple[str, bytes, ArrayRecord | None]:
    """Nonce, body and model of a request."""
    record, arrays = content.get(RECORD), content.get(ARRAYS)
    if not isinstance(record, ConfigRecord) or not isinstance(arrays, (ArrayRecord, type(None))):
        raise Refused(1, "the request is not of this protocol; update robfcp")
    return *open_request_record(record), arrays


def open_reply(content: Any, limit: int) -> tuple[str, bytes | int]:
    """Nonce and body (or failure code) of a reply, its size and shape checked before the rest."""
    if len(content) != 1:
        raise RobfcpError(f"the reply holds {len(content)} records instead of 1")
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise RobfcpError("the reply is not of this protocol")
    return open_reply_record(record, limit)


def digest_of(arrays: ArrayRecord | None) -> str | None:
    """The model's digest; None where there is none."""
    if arrays is None:
        return None
    return model_digest(
        (f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}", array.data)
        for name, array in arrays.items()
    )


T = TypeVar("T")

GONE = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable
TROUBLE = network_trouble()
PAUSE = 0.5  # seconds between two tries to list the nodes

log = logging.getLogger(__name__)


def participants(network: Network) -> list[Participant]:
    """The network's nodes under their registered names, or `node-ID` where that cannot serve."""
    return named_participants(
        (node.node_id, node.name, node.public_key) for node in nodes_of(network)
    )


def present(network: Network, deadline: float) -> list[Participant]:
    """The nodes that are there; a network in trouble is asked again until the deadline."""
    end = time.monotonic() + deadline
    while True:
        found = bounded(lambda: participants(network), max(0.1, end - time.monotonic()))
        if found.error is None:
            nodes: list[Participant] = found.value
            return nodes
        if not isinstance(found.error, TROUBLE) or time.monotonic() + PAUSE >= end:
            raise RobfcpError(
                f"network: cannot list its nodes ({type(found.error).__name__}); "
                "check that the SuperLink is running"
            ) from found.error
        time.sleep(PAUSE)


def engine_of(
    network: Network, arrays: ArrayRecord | None = None, *, deadline: float, poll: float
) -> Engine:
    """Flower during a round, with the model that goes with every request."""

    def carrier(kind: Kind, limit: int) -> Carrier:
        return _Messages(network, f"query.{kind}", arrays, limit)

    return Engine(
        f"flower {version('flwr')}",
        signatures="node and nonce by Flower",
        present=lambda: present(network, deadline),
        carrier=carrier,
        model=digest_of(arrays),
        deadline=deadline,
        poll=poll,
    )


def collect(
    network: Network,
    asked: Sequence[Participant],
    message_type: str,
    body: Callable[[str], msgspec.Struct],
    read: Callable[[bytes, str], T],
    *,
    arrays: ArrayRecord | None = None,
    deadline: float = 60.0,
    poll: float = 1.0,
    limit: int = 65_536,
) -> Collection[T]:
    """Ask every participant a question of your own, as a round asks its own.

    body(client) makes the request, read(reply, client) the answer or raises RobfcpError.
    A reply of more than `limit` bytes is not read. Ends at the latest two seconds after `deadline`
    seconds, with everybody who had answered by then, whatever the others did.
    """
    carrier = _Messages(network, message_type, arrays, limit)
    return ask_all(carrier, asked, body, read, deadline=deadline, poll=poll)


@dataclass(frozen=True)
class _Messages:
    """One kind of message on the network."""

    network: Network
    message_type: str
    arrays: ArrayRecord | None
    limit: int

    def send(
        self, participant: Participant, nonce: str, body: msgspec.Struct, ttl: float
    ) -> str | None:
        """The message's id; None where it was not taken."""
        message = Message(
            request_content(nonce, body, self.arrays),
            dst_node_id=participant.node_id,
            message_type=self.message_type,
            ttl=ttl,
        )
        identifiers: Iterable[str | None] = self.network.push_messages([message])
        return next(iter(identifiers), None) or None

    def receive(self, identifier: str) -> Reply | Failed | None:
        """The reply to one message; trouble on the way is tried again at the next turn."""
        try:
            replies = list(self.network.pull_messages([identifier]))
        except TROUBLE as error:
            log.warning("receiving failed (%s)", type(error).__name__)
            return None
        return _opened(replies[0], self.limit) if replies else None


def _opened(reply: Message, limit: int) -> Reply | Failed:
    """Nonce and body of a reply, or what Flower says instead."""
    if reply.has_content():
        return Reply(*open_reply(reply.content, limit))
    code = int(reply.error.code)
    if code in GONE:
        return Failed("missing", f"the node is unavailable (Flower's code {code})")
    return Failed("faulty", f"the client app failed (Flower's code {code})")
