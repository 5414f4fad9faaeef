"""How Flower carries a round's questions: it pushes, pulls and decodes; `engines` does the rest.

Node authentication does not sign message bodies and a reply's sender is its own claim. So every
pushed message is pulled by itself and its reply belongs to the node that was addressed, provided
it returns the nonce that only this node was sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import msgspec
from flwr.app import ArrayRecord, Message

from robfcp.engines import (
    Carrier,
    Collection,
    Engine,
    Failed,
    Kind,
    Participant,
    Reply,
    ask_all,
    bounded,
    named_participants,
)
from robfcp.errors import RobfcpError
from robfcp.flower._flwr import network_trouble, nodes_of
from robfcp.flower._messages import digest_of, open_reply, request_content
from robfcp.flower.network import Network

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
