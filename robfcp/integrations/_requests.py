"""Asks every client, and separates valid answers from failed, forged and missing ones.

A reply that a framework delivers is its sender's claim. So every message is sent and received
separately, and its reply belongs to the client that was addressed only if it returns the nonce
that was sent to this client alone. An exception that one reply raises does not keep the others
from being read.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, sleep
from typing import Any, Generic

import msgspec

from robfcp._validation import are_client_names
from robfcp.errors import RobfcpError, printable
from robfcp.integrations._messages import (
    FAILURES,
    Participant,
    ReplyOutcome,
    ReplyStatus,
    Request,
    T,
    parse_reply,
)
from robfcp.integrations._workers import TimeoutWorkers

MAX_ATTEMPTS = 2  # times that a client is asked if a reply is not authentic
GRACE_SECONDS = 2.0  # seconds beyond the deadline for the last poll of all clients
TTL_GRACE_SECONDS = 5.0  # seconds beyond the deadline in which a reply still counts as late
MIN_TTL_SECONDS = 1.0  # seconds that every message may travel, at the end of the deadline too

POLL_PAUSE_SECONDS = 0.5  # seconds at most between two listings of clients

# Seconds at least that one poll of all clients may take if one of them hangs.
MIN_POLL_SECONDS = 1.0

MAX_REPLY_BYTES = 65_536  # bytes of a reply, beside a report's counts
NONCE_BYTES = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FailedReply:
    """What a framework reports if there will be no reply."""

    status: ReplyStatus
    reason: str


class Transport(ABC):
    """A framework during a round: which clients it reaches, and how it carries a request.

    Each of its methods may raise, and may hang.

    Parameters
    ----------
    name : str
        The framework with its version, for the record.
    signatures : str
        What proves who sent a reply.
    deadline : float
        Seconds that all clients together have for every request.
    poll : float
        Seconds between two polls for replies.

    Attributes
    ----------
    model : str or None
        The digest of the model that goes with every request.
    """

    model: str | None = None

    def __init__(self, name: str, signatures: str, deadline: float, poll: float) -> None:
        if not 0 < deadline < inf:
            raise RobfcpError(f"deadline: {deadline:g} s is not a valid time; give seconds above 0")
        self.name = name
        self.signatures = signatures
        self.deadline = deadline
        self.poll = poll

    @abstractmethod
    def present(self) -> list[Participant]:
        """Return the clients that are connected."""

    @abstractmethod
    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """Send a request; return the number of its reply, None if sending failed."""

    @abstractmethod
    def receive(self, identifier: str) -> Mapping[str, Any] | FailedReply | None:
        """Return the reply's record; None if there is none yet or the network has failed."""


def _new_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


@dataclass(eq=False)
class _Attempt:
    """One request to one client, until it is answered."""

    participant: Participant
    count: int = 1  # of the attempts for this client so far
    previous_outcome: ReplyOutcome[Any] | None = None  # what the attempt before this one ended with
    nonce: str = field(default_factory=_new_nonce)
    message: str = ""  # the number of what was sent; empty until it was


@dataclass
class RequestRound(Generic[T]):
    """One round of requests: every client is asked once, and again after an unauthentic reply.

    It ends at the latest GRACE_SECONDS after the deadline, with all clients that have answered.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    request : callable
        ``request(client=...)`` is what a client is asked.
    read : callable
        ``read(reply, client)`` is the answer in a reply, or raises.
    max_bytes : int
        The largest number of bytes of a reply.
    open : dict
        The attempts that are not answered, in the order they were begun.
    done : dict
        The outcome of each client that is not asked any more.
    """

    transport: Transport
    request: Callable[..., Request]
    read: Callable[[bytes, str], T]
    max_bytes: int = MAX_REPLY_BYTES
    open: dict[_Attempt, None] = field(default_factory=dict)
    done: dict[Participant, ReplyOutcome[T]] = field(default_factory=dict)
    workers: TimeoutWorkers[_Attempt] = field(default_factory=TimeoutWorkers)

    @property
    def outcomes(self) -> list[ReplyOutcome[T]]:
        """The outcomes of all clients, by name."""
        return sorted(self.done.values(), key=_client_of_outcome)

    @property
    def answers(self) -> dict[str, T]:
        """The valid answers."""
        answers = {}
        for outcome in self.outcomes:
            if outcome.answer is not None:
                answers[outcome.participant.client] = outcome.answer
        return answers

    def run(self, participants: Iterable[Participant]) -> RequestRound[T]:
        """Ask, poll until all have answered or the deadline has passed, and poll once more."""
        poll = self.transport.poll
        self.end = monotonic() + self.transport.deadline
        for participant in participants:
            self._ask(_Attempt(participant))

        # One poll may take longer than the pause between two if a client hangs.
        while self.open and monotonic() < self.end:
            poll_started = monotonic()
            self._poll_all(min(self.end, poll_started + max(poll, MIN_POLL_SECONDS)))
            if self.open:
                next_poll = min(poll_started + poll, self.end)
                sleep(max(0.0, next_poll - monotonic()))
        self._poll_all(monotonic() + GRACE_SECONDS)
        self.workers.close()

        for attempt in self.open:
            self.done[attempt.participant] = self._outcome_of_silence(attempt)
        for outcome in self.outcomes:
            if outcome.status != "ok":
                log.warning(
                    "%s: %s: %s", outcome.participant.client, outcome.status, outcome.reason
                )
        return self

    def note_late(self) -> None:
        """Poll again: a client that answered after the deadline was late, not missing."""
        self.workers = TimeoutWorkers()
        for attempt in self.open:
            if attempt.message:
                self._receive(attempt)
        for attempt, reply in self.workers.results(monotonic() + GRACE_SECONDS):
            _, is_authentic = self._judge(reply, attempt)
            if is_authentic:
                self.done[attempt.participant] = replace(
                    self.done[attempt.participant],
                    status="late",
                    reason="answered after the deadline",
                )
        self.workers.close()

    def _ask(self, attempt: _Attempt) -> None:
        """Send the request with the nonce of this client alone."""
        self.open[attempt] = None
        ttl = max(MIN_TTL_SECONDS, self.end - monotonic()) + TTL_GRACE_SECONDS
        body = msgspec.json.encode(self.request(client=attempt.participant.client))
        record = {"nonce": attempt.nonce, "body": body}

        def send() -> str | None:
            return self.transport.send(attempt.participant, record, ttl)

        self.workers.submit(attempt, send)

    def _receive(self, attempt: _Attempt) -> None:
        """Poll for the reply, unless an earlier poll for it has not returned."""

        def receive() -> Mapping[str, Any] | FailedReply | None:
            return self.transport.receive(attempt.message)

        if attempt not in self.workers.open:
            self.workers.submit(attempt, receive)

    def _poll_all(self, end: float) -> None:
        """Poll once for the reply of each client without an open call, at most until `end`."""
        for attempt in self.open:
            self._receive(attempt)
        for attempt, result in self.workers.results(end):
            if attempt.message:
                if result is not None:
                    self._settle(attempt, *self._judge(result, attempt))
            else:
                self._note_sending(attempt, result)

    def _note_sending(self, attempt: _Attempt, result: Any) -> None:
        """Store the number of the message, or settle that the client cannot be reached."""
        if isinstance(result, str) and result:
            attempt.message = result
            self._receive(attempt)
            return
        if isinstance(result, Exception):
            log.warning("sending failed (%s)", type(result).__name__)
        unreachable: ReplyOutcome[T] = ReplyOutcome(
            attempt.participant, "missing", "could not be reached", attempts=attempt.count
        )
        self._settle(attempt, unreachable, True)

    def _settle(self, attempt: _Attempt, outcome: ReplyOutcome[T], is_authentic: bool) -> None:
        """Store the outcome, or ask again if the reply is not the client's."""
        del self.open[attempt]
        if not is_authentic and attempt.count < MAX_ATTEMPTS and monotonic() < self.end:
            log.warning("%s: %s; asking again", attempt.participant.client, outcome.reason)
            self._ask(_Attempt(attempt.participant, attempt.count + 1, outcome))
        else:
            self.done[attempt.participant] = outcome

    def _judge(self, reply: Any, attempt: _Attempt) -> tuple[ReplyOutcome[T], bool]:
        """Return the outcome of a reply, and whether the nonce proves that the client sent it."""

        def outcome(status: ReplyStatus, reason: str, answer: T | None = None) -> ReplyOutcome[T]:
            return ReplyOutcome(attempt.participant, status, reason, answer, attempt.count)

        is_authentic = False
        try:
            if isinstance(reply, FailedReply):
                return outcome(reply.status, reply.reason), False
            if isinstance(reply, Exception):
                raise reply
            nonce, body = parse_reply(reply, self.max_bytes)
            if not hmac.compare_digest(nonce.encode(errors="replace"), attempt.nonce.encode()):
                raise RobfcpError("the reply does not return this request's nonce")
            is_authentic = True
            if isinstance(body, int):
                return outcome("invalid", FAILURES[body]), True
            return outcome("ok", "", self.read(body, attempt.participant.client)), True
        except RobfcpError as error:
            return outcome(
                "invalid" if is_authentic else "refused_by_client", str(error)
            ), is_authentic
        except Exception as error:  # whose text may hold anything
            reason = printable(f"the reply cannot be read ({type(error).__name__})")
            return outcome("refused_by_client", reason), is_authentic

    def _outcome_of_silence(self, attempt: _Attempt) -> ReplyOutcome[T]:
        """Return the outcome of a client that had not answered at the deadline."""
        # If this is the second attempt, the first had a reply that was not authentic.
        if attempt.previous_outcome is not None:
            return replace(attempt.previous_outcome, attempts=attempt.count)

        if attempt not in self.workers.open:
            reason = "no answer within"
        elif attempt.message:
            reason = "its reply was incomplete after"
        else:
            reason = "could not be reached within"
        reason = f"{reason} {self.transport.deadline:g} s"
        return ReplyOutcome(attempt.participant, "missing", reason, attempts=attempt.count)


def _client_of_outcome(outcome: ReplyOutcome[Any]) -> str:
    return outcome.participant.client


def resolve_participants(nodes: Iterable[tuple[int, str, bytes]]) -> list[Participant]:
    """Return nodes under their registered names, or as `node-NUMBER` if a name is not usable.

    A name is not usable if it is not a valid client name, or if two nodes have it.

    Parameters
    ----------
    nodes : iterable of (int, str, bytes)
        The number, name and public key of each node.

    Returns
    -------
    list of Participant
        In the order of their names.

    Examples
    --------
    >>> from robfcp.integrations._requests import resolve_participants
    >>> nodes = [(1, "b", b""), (2, "a", b""), (3, "a", b""), (4, "", b""), (5, "x y\\n", b"")]
    >>> [participant.client for participant in resolve_participants(nodes)]
    ['b', 'node-2', 'node-3', 'node-4', 'node-5']
    """
    nodes = list(nodes)
    n_nodes_of_name = Counter(name for _, name, _ in nodes)
    names = list(n_nodes_of_name)
    is_client_name = dict(zip(names, are_client_names(names), strict=True))

    participants = []
    for node_id, name, public_key in nodes:
        is_usable = is_client_name[name] and n_nodes_of_name[name] == 1
        client = name if is_usable else f"node-{node_id}"
        participants.append(Participant(node_id, client, public_key))
    return sorted(participants, key=lambda participant: participant.client)


def model_digest(arrays: Iterable[tuple[str, bytes | memoryview]]) -> str:
    """Return the SHA-256 of every array's description (name, type, shape) and bytes.

    It is equal for equal models.

    Examples
    --------
    >>> from robfcp.integrations._requests import model_digest
    >>> model_digest([("weights", b"12")]) == model_digest([("weights", b"13")])
    False
    """
    digest = hashlib.sha256()
    for description, data in arrays:
        digest.update(f"{description}\0".encode())
        digest.update(data)
    return digest.hexdigest()
