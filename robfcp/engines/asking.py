"""Asks every site and tells apart who answered, who failed, who forged and who kept silent.

An engine's reply is its sender's claim. So every message is sent and received by itself, its reply
belongs to the site that was addressed, and only if it returns the nonce that this site alone was
sent. Whatever one reply does to the code that reads it, the others are heard.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from robfcp.engines.outcomes import Outcome, Participant, Status
from robfcp.engines.requests import FAILURES
from robfcp.engines.workers import Done, Workers
from robfcp.errors import RobfcpError, plain

T = TypeVar("T")

ATTEMPTS = 2
GRACE = 2.0  # seconds beyond the deadline for the last look at everybody
TTL_GRACE = 5.0  # seconds beyond the deadline in which a reply still counts as late
SLICE = 1.0  # seconds at least that one look at everybody may take where one of them hangs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """What came back: the nonce it returns, and a body or a failure's code."""

    nonce: str
    body: bytes | int


@dataclass(frozen=True)
class Failed:
    """The engine's own word that there will be no reply."""

    status: Status
    reason: str


class Carrier(Protocol):
    """How an engine carries one request and its reply. Either call may raise, and may hang."""

    def send(
        self, participant: Participant, nonce: str, body: msgspec.Struct, ttl: float
    ) -> str | None:
        """The number under which the reply can be received; None where sending failed."""
        ...

    def receive(self, identifier: str) -> Reply | Failed | None:
        """The reply; None where there is none yet, or the network is in trouble."""
        ...


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
    carrier: Carrier
    silent: dict[str, _Asked] = field(default_factory=dict)

    def note_late(self) -> None:
        """Look once more: who answered after the deadline was late, not missing."""
        workers: Workers[str] = Workers()
        late = set()
        for identifier in self.silent:
            workers.submit(identifier, _receiver(self.carrier, identifier))
        for done in workers.results(monotonic() + GRACE):
            asked = self.silent[done.key]
            if isinstance(done.value, Reply) and _same(done.value.nonce, asked.nonce):
                late.add(asked.participant)
        workers.close()
        self.outcomes = [
            replace(outcome, status="late", reason="answered after the deadline")
            if outcome.participant in late
            else outcome
            for outcome in self.outcomes
        ]


def ask_all(
    carrier: Carrier,
    asked: Sequence[Participant],
    body: Callable[[str], msgspec.Struct],
    read: Callable[[bytes, str], T],
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> Collection[T]:
    """Ask every participant once, and once more after a reply that was not its own.

    body(client) makes the request, read(reply, client) the answer or raises RobfcpError. Ends at
    the latest `GRACE` seconds after `deadline` seconds, with everybody who had answered by then.
    """
    if not 0 < deadline < inf:
        raise RobfcpError(f"deadline: {deadline:g} s is no time to wait; give seconds above zero")
    return _Asking(carrier, body, read, deadline, poll).run(asked)


class _Asking(Generic[T]):
    """One round of questions while it lasts."""

    def __init__(
        self,
        carrier: Carrier,
        body: Callable[[str], msgspec.Struct],
        read: Callable[[bytes, str], T],
        deadline: float,
        poll: float,
    ) -> None:
        self.carrier, self.body, self.read = carrier, body, read
        self.deadline, self.poll = deadline, poll
        self.end = monotonic() + deadline
        self.waiting: dict[str, _Asked] = {}  # by the message's identifier
        self.sending: dict[str, _Asked] = {}  # by its nonce
        self.done: dict[Participant, Outcome[T]] = {}
        self.workers: Workers[tuple[str, str]] = Workers()

    def run(self, asked: Sequence[Participant]) -> Collection[T]:
        """Everybody's outcome."""
        for participant in asked:
            self._ask(participant)
        while self.waiting or self.sending:
            before = monotonic()
            self._turn(min(self.end, before + max(self.poll, SLICE)))
            if monotonic() >= self.end:
                break
            sleep(max(0.0, min(self.poll - monotonic() + before, self.end - monotonic())))
        if self.waiting or self.sending:
            self._turn(monotonic() + GRACE)
        self.workers.close()
        for number, entry in (*self.sending.items(), *self.waiting.items()):
            self.done[entry.participant] = self._silent(number, entry)
        return Collection([self.done[p] for p in asked], self.carrier, self.waiting)

    def _ask(
        self, participant: Participant, attempts: int = 1, before: Outcome[T] | None = None
    ) -> None:
        nonce = secrets.token_hex(16)
        self.sending[nonce] = _Asked(participant, nonce, attempts, before)
        ttl = max(1.0, self.end - monotonic()) + TTL_GRACE
        request = self.body(participant.client)
        self.workers.submit(
            ("send", nonce), lambda: self.carrier.send(participant, nonce, request, ttl)
        )

    def _turn(self, end: float) -> None:
        """Look once at everybody whose last look has come back, until `end` where one hangs."""
        for identifier in self.waiting:
            self._look(identifier)
        for done in self.workers.results(end):
            kind, key = done.key
            if kind == "send":
                self._sent(key, done)
            else:
                self._received(key, done)

    def _look(self, identifier: str) -> None:
        if ("receive", identifier) not in self.workers.open:
            self.workers.submit(("receive", identifier), _receiver(self.carrier, identifier))

    def _sent(self, nonce: str, done: Done[Any]) -> None:
        entry = self.sending.pop(nonce)
        if isinstance(done.value, str) and done.value:
            self.waiting[done.value] = entry
            self._look(done.value)
            return
        if done.error is not None:
            log.warning("sending failed (%s)", type(done.error).__name__)
        missing: Outcome[T] = Outcome(entry.participant, "missing", "could not be reached")
        self.done[entry.participant] = replace(missing, attempts=entry.attempts)

    def _received(self, identifier: str, done: Done[Any]) -> None:
        if done.error is None and done.value is None:
            return
        entry = self.waiting.pop(identifier)
        outcome, authentic = self._judge(done, entry)
        if not authentic and entry.attempts < ATTEMPTS and monotonic() < self.end:
            log.warning("%s: %s; asking again", entry.participant.client, outcome.reason)
            self._ask(entry.participant, entry.attempts + 1, outcome)
        else:
            self.done[entry.participant] = outcome

    def _judge(self, done: Done[Any], asked: _Asked) -> tuple[Outcome[T], bool]:
        """The outcome of a reply and whether the nonce proves that the site sent it."""

        def outcome(status: Status, reason: str, answer: T | None = None) -> Outcome[T]:
            return Outcome(asked.participant, status, reason, answer, asked.attempts)

        reply = done.value
        if isinstance(reply, Failed):
            return outcome(reply.status, reply.reason), False
        if not isinstance(reply, Reply):
            return outcome("rejected", _unreadable(done.error)), False
        if not _same(reply.nonce, asked.nonce):
            return outcome("rejected", "the reply does not return this request's nonce"), False
        if isinstance(reply.body, int):
            return outcome("faulty", FAILURES.get(reply.body, "an unknown code")), True
        try:
            return outcome("ok", "", self.read(reply.body, asked.participant.client)), True
        except RobfcpError as error:
            return outcome("faulty", str(error)), True
        except Exception as error:
            return outcome("rejected", _unreadable(error)), True

    def _silent(self, number: str, entry: _Asked) -> Outcome[T]:
        """What is said of a site that has not answered: what its first reply was, if it had one."""
        reason = f"no answer within {self.deadline:g} s"
        if ("send", number) in self.workers.open:
            reason = f"could not be reached within {self.deadline:g} s"
        elif ("receive", number) in self.workers.open:
            reason = f"its reply was not there as a whole after {self.deadline:g} s"
        silent: Outcome[T] = Outcome(entry.participant, "missing", reason)
        return replace(entry.before or silent, attempts=entry.attempts)


def _receiver(carrier: Carrier, identifier: str) -> Callable[[], Reply | Failed | None]:
    return lambda: carrier.receive(identifier)


def _same(nonce: str, other: str) -> bool:
    return hmac.compare_digest(nonce.encode(errors="replace"), other.encode())


def _unreadable(error: Exception | None) -> str:
    """What is said of a reply nobody can read; the exception's text may hold anything."""
    if isinstance(error, RobfcpError):
        return str(error)
    return plain(f"the reply cannot be read ({type(error).__name__})")
