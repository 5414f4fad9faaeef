"""Asks nodes and tells apart who answered, who failed, who forged and who kept silent.

Node authentication does not sign message bodies and a reply's sender is its own claim. So every
pushed message is pulled by itself and its reply belongs to the node that was addressed, provided
it returns the nonce that only this node was sent.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import httpx
import msgspec
from flwr.app import ArrayRecord, Message

from robfcp.engines import FAILURES, Outcome, Participant, Status
from robfcp.errors import RobfcpError
from robfcp.flower._messages import open_reply, request_content
from robfcp.flower.network import Network
from robfcp.reports import check_client

T = TypeVar("T")

TTL_GRACE = 5.0  # seconds beyond the deadline in which a reply still counts as late
ATTEMPTS = 2
GONE = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable
TROUBLE = (OSError, httpx.HTTPError)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    participant: Participant
    nonce: str
    attempts: int
    before: Outcome[Any] | None = None  # what the attempt before this one ended with


@dataclass
class Collection(Generic[T]):
    """The outcomes in the participants' order, and the messages still without a reply."""

    outcomes: list[Outcome[T]]
    silent: dict[str, _Asked] = field(default_factory=dict)

    def note_late(self, network: Network, limit: int) -> None:
        """Look once more: who answered after the deadline was late, not missing."""
        late = set()
        for identifier, asked in self.silent.items():
            for reply in _pull(network, identifier)[:1]:
                nonce, _ = _open(reply, limit) if reply.has_content() else ("", b"")
                if hmac.compare_digest(nonce.encode(), asked.nonce.encode()):
                    late.add(asked.participant)
        self.outcomes = [
            replace(outcome, status="late", reason="answered after the deadline")
            if outcome.participant in late
            else outcome
            for outcome in self.outcomes
        ]


def participants(network: Network) -> list[Participant]:
    """The network's nodes under their registered names, or `node-ID` where that cannot serve."""
    nodes = list(network.get_nodes())
    names = Counter(node.name for node in nodes)
    chosen = []
    for node in nodes:
        name = node.name
        try:
            check_client(name)
            usable = names[name] == 1
        except RobfcpError:
            usable = False
        client = name if usable else f"node-{node.node_id}"
        chosen.append(Participant(node.node_id, client, bytes(node.public_key)))
    return sorted(chosen, key=lambda participant: participant.client)


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
    """Ask every participant once, and once more after a reply that was not its own.

    body(client) makes the request, read(reply, client) the answer or raises RobfcpError.
    A reply of more than `limit` bytes is not read. Ends at the latest after `deadline` seconds.
    """
    end = time.monotonic() + deadline
    waiting: dict[str, _Asked] = {}
    done: dict[Participant, Outcome[T]] = {}

    def ask(participant: Participant, attempts: int = 1, before: Outcome[T] | None = None) -> None:
        nonce = secrets.token_hex(16)
        message = Message(
            request_content(nonce, body(participant.client), arrays),
            dst_node_id=participant.node_id,
            message_type=message_type,
            ttl=max(1.0, end - time.monotonic()) + TTL_GRACE,
        )
        identifier = _push(network, message)
        if identifier is None:
            done[participant] = Outcome(
                participant, "missing", "could not be reached", attempts=attempts
            )
        else:
            waiting[identifier] = _Asked(participant, nonce, attempts, before)

    for participant in asked:
        ask(participant)
    while True:
        for identifier in list(waiting):
            for reply in _pull(network, identifier)[:1]:
                entry = waiting.pop(identifier)
                outcome, authentic = _judge(reply, entry, read, limit)
                retry = not authentic and entry.attempts < ATTEMPTS and time.monotonic() < end
                if retry:
                    log.warning("%s: %s; asking again", entry.participant.client, outcome.reason)
                    ask(entry.participant, entry.attempts + 1, outcome)
                else:
                    done[entry.participant] = outcome
            if time.monotonic() >= end:
                break
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(min(poll, max(0.0, end - time.monotonic())))
    for entry in waiting.values():
        silent: Outcome[T] = Outcome(
            entry.participant, "missing", f"no answer within {deadline:g} s"
        )
        done[entry.participant] = replace(entry.before or silent, attempts=entry.attempts)
    return Collection([done[participant] for participant in asked], waiting)


def _judge(
    reply: Message, asked: _Asked, read: Callable[[bytes, str], T], limit: int
) -> tuple[Outcome[T], bool]:
    """The outcome of a reply and whether the nonce proves that the node sent it."""

    def outcome(status: Status, reason: str, answer: T | None = None) -> Outcome[T]:
        return Outcome(asked.participant, status, reason, answer, asked.attempts)

    if not reply.has_content():
        code = reply.error.code
        if code in GONE:
            return outcome("missing", f"the node is unavailable (Flower's code {code})"), False
        return outcome("faulty", f"the client app failed (Flower's code {code})"), False
    try:
        nonce, body = open_reply(reply.content, limit)
    except RobfcpError as error:
        return outcome("rejected", str(error)), False
    if not hmac.compare_digest(nonce.encode(), asked.nonce.encode()):
        return outcome("rejected", "the reply does not return this request's nonce"), False
    if isinstance(body, int):
        return outcome("faulty", FAILURES[body]), True
    try:
        return outcome("ok", "", read(body, asked.participant.client)), True
    except RobfcpError as error:
        return outcome("faulty", str(error)), True


def _open(reply: Message, limit: int) -> tuple[str, Any]:
    try:
        return open_reply(reply.content, limit)
    except RobfcpError:
        return "", b""


def _push(network: Network, message: Message) -> str | None:
    try:
        identifiers: Iterable[str | None] = network.push_messages([message])
        return next(iter(identifiers), None) or None
    except TROUBLE as error:
        log.warning("sending failed (%s)", type(error).__name__)
        return None


def _pull(network: Network, identifier: str) -> list[Message]:
    """The replies to one message; trouble on the way is tried again at the next turn."""
    try:
        return list(network.pull_messages([identifier]))
    except TROUBLE as error:
        log.warning("receiving failed (%s)", type(error).__name__)
        return []
