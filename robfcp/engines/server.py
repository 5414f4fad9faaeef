"""Asks every site and tells apart who answered, who failed, who forged and who kept silent.

An engine's reply is its sender's claim. So every message is sent and received by itself, its reply
belongs to the site that was addressed, and only if it returns the nonce that this site alone was
sent. Whatever one reply does to the code that reads it, the others are heard.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from robfcp.arguments import MAX_SAMPLES, check_client
from robfcp.calibration import Calibration, calibrate, letters, sign_sealed
from robfcp.engines.protocol import (
    FAILURES,
    PROTOCOL,
    Kind,
    LetterReply,
    LetterRequest,
    Outcome,
    Outcomes,
    Participant,
    SizeReply,
    SizeRequest,
    SketchRequest,
    Status,
    ThresholdReply,
    ThresholdRequest,
    read_reply,
)
from robfcp.errors import ReportError, RobfcpError, plain
from robfcp.federation import Fault, Federation
from robfcp.grid import Grid
from robfcp.monitoring import EReport, Merged, merge, record_look
from robfcp.report import Report, signing, wire
from robfcp.scores import LAC, Score

K = TypeVar("K", bound=Hashable)
PATIENCE = 0.25  # seconds without any result after which as many threads again are started


@dataclass(frozen=True)
class Done(Generic[K]):
    """What a call gave, or the exception it ended with."""

    key: K
    value: Any = None
    error: Exception | None = None


class Workers(Generic[K]):
    """Daemon threads that make calls; a call that hangs holds up nobody but itself.

    One thread does all the work while calls return. When none has returned for PATIENCE seconds,
    the number of threads is doubled, so that any number of hanging calls is passed by in a few
    seconds. What still hangs in the end is left behind.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[K, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Done[K]] = queue.SimpleQueue()
        self._threads = 0
        self.open: set[K] = set()

    def submit(self, key: K, call: Callable[[], Any]) -> None:
        """Make the call as soon as a thread is free; one call a key at a time."""
        self.open.add(key)
        self._calls.put((key, call))
        if not self._threads:
            self._start(1)

    def results(self, end: float) -> Iterator[Done[K]]:
        """What the calls give, in the order they end, until all have or the time is `end`."""
        while self.open:
            left = end - monotonic()
            try:
                done = self._results.get(timeout=max(0.0, min(PATIENCE, left)))
            except queue.Empty:
                if left <= 0:
                    return
                self._start(max(0, min(self._threads, len(self.open) - self._threads)))
                continue
            self.open.discard(done.key)
            yield done

    def close(self) -> None:
        """Let the threads end when their calls do."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _start(self, number: int) -> None:
        for _ in range(number):
            threading.Thread(target=self._work, daemon=True, name="robfcp-engine").start()
        self._threads += number

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            key, make = call
            try:
                done = Done(key, make())
            except Exception as error:
                done = Done(key, error=error)
            self._results.put(done)


def bounded(call: Callable[[], Any], seconds: float) -> Done[int]:
    """What the call gives within so many seconds; a TimeoutError where it does not return."""
    workers: Workers[int] = Workers()
    workers.submit(0, call)
    for done in workers.results(monotonic() + seconds):
        workers.close()
        return done
    workers.close()
    return Done(0, error=TimeoutError(f"no answer within {seconds:g} s"))


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


BYTES_PER_BIN = 48  # two numbers of at most 20 digits, with room to spare


def reply_limit(grid: Grid) -> int:
    """The bytes beyond which a reply cannot be a report on the grid."""
    return BYTES_PER_BIN * grid.n_bins + 65_536


def read_size(body: bytes, client: str) -> int:
    """A number of samples that can be."""
    n_samples = read_reply(body, SizeReply).n_samples
    if not 0 < n_samples <= MAX_SAMPLES:
        raise ReportError(client, "n_samples", f"{n_samples} samples cannot be", "fix the data")
    return int(n_samples)


def read_report(
    body: bytes, client: str, keys: Mapping[str, str] | None = None, round: str = ""
) -> Report:
    """A valid report under the client's own name; with keys, signed by the client's own.

    Without keys a signature must be by the key that the report itself names.
    """
    if keys is not None:
        report = signing.verify(body, Report, keys, round, client)
    else:
        signing.check_named_key(body, client)
        report = Report.from_json(signing.unwrap(body), client)
    if report.client != client:
        raise ReportError(client, "client", "reports under another name", "use the given name")
    return report


def federation_of_replies(
    outcomes: list[Outcome[Report]],
    *,
    grid: Grid,
    score: Score,
    round: str,
    model: str | None,
    sizes: Mapping[str, int] | None,
    quorum: int | float | None,
    signatures: str,
    invited: Iterable[str] = (),
) -> Federation:
    """The valid reports; faulty and rejected clients with their reason, silent ones as missing."""
    return Federation.from_reports(
        [outcome.answer for outcome in outcomes if outcome.answer is not None],
        sizes=sizes,
        quorum=quorum,
        grid=grid,
        score=score,
        round=round,
        model=model,
        faults=[
            Fault(o.participant.client, o.status, o.line)
            for o in outcomes
            if o.status in ("faulty", "rejected")
        ],
        invited=[*invited, *(o.participant.client for o in outcomes)],
        signatures=signatures,
    )


def client_records(
    outcomes: Outcomes,
    calibration: Calibration,
    checks: Mapping[str, ThresholdReply],
    joined: Iterable[Participant] = (),
) -> dict[str, dict[str, Any]]:
    """Every client's node, public key, status and claims; faults found later included.

    joined: who came when the round had begun, and was not asked.
    """
    faults = {fault.client: fault.reason for fault in calibration.faulty}
    clients: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        client, status, reason = outcome.participant.client, outcome.status, outcome.reason
        if status == "ok" and client in faults:
            status, reason = "faulty", faults[client]
        claims = msgspec.to_builtins(checks[client]) if client in checks else None
        clients[client] = _record(
            outcome.participant, status, reason, attempts=outcome.attempts, claims=claims
        )
    for participant in joined:
        expected = participant.client in calibration.missing
        status = "missing" if expected else "not asked"
        clients.setdefault(
            participant.client, _record(participant, status, "joined after the round had begun")
        )
    for client in set(calibration.missing) - set(clients):
        clients[client] = _record(None, "missing", "registered but not connected")
    return dict(sorted(clients.items()))


def _record(
    participant: Participant | None,
    status: Status,
    reason: str,
    *,
    attempts: int = 0,
    claims: Any = None,
) -> dict[str, Any]:
    """One client's line in the record of a round."""
    return {
        "node_id": None if participant is None else str(participant.node_id),
        "public_key": None if participant is None else participant.public_key.hex(),
        "status": status,
        "reason": reason,
        "attempts": attempts,
        "claims": claims,
    }


def read_check(body: bytes, client: str, n_thresholds: int) -> ThresholdReply:
    """What a client claims to see on its test data, refused where it cannot be."""
    reply: ThresholdReply = read_reply(body, ThresholdReply)
    fits = len(reply.covered) == len(reply.total_size) == n_thresholds
    if not fits or not all(0 <= count <= reply.n_samples for count in reply.covered):
        raise ReportError(client, "covered", "counts cannot be", "update robfcp")
    return reply


def read_kept(body: bytes, client: str, calibration: str) -> str:
    """The calibration whose letter a client says it keeps; refused where it is another."""
    reply: LetterReply = read_reply(body, LetterReply)
    if reply.calibration != calibration:
        raise ReportError(client, "calibration", "keeps another letter", "update robfcp")
    return reply.calibration


class MonitorRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Count your fresh samples against this calibration and report how strong its alarm is."""

    client: str
    round: str
    step: int
    calibration: msgspec.Raw
    level: int = 0
    floor: float | None = None
    delta: float = 0.05
    protocol: int = PROTOCOL


def monitor_request(
    client: str, calibration: Calibration, *, round: str, step: int, floor: float | None,
    delta: float, level: int = 0,
) -> MonitorRequest:  # fmt: skip
    """The request to one client."""
    body = msgspec.Raw(calibration.to_json())
    return MonitorRequest(
        client, round=round, step=step, calibration=body, level=level, floor=floor, delta=delta
    )


def read_e_reply(body: bytes, client: str, *, round: str, step: int, calibration: str) -> EReport:
    """The e-report of this client, round, step and calibration (its digest), or why not."""
    report = EReport.from_json(body, client)
    expected = {"client": client, "round": round, "step": step, "calibration": calibration}
    for part, value in expected.items():
        if getattr(report, part) != value:
            raise ReportError(
                client,
                part,
                f"{part} is {getattr(report, part)}, not {value}",
                "answer as asked",
            )
    return report


def merged_replies(
    outcomes: Iterable[Outcome[EReport]],
    m: int,
    *,
    delta: float,
    independent: bool = False,
    history: str | os.PathLike[str] | None = None,
    round: str | None = None,
    step: int = 0,
) -> Merged:
    """The evidence of all nodes asked; those without a valid answer count as no evidence.

    history: a file that keeps every look, as `robfcp alarms --history` does; the nodes asked at the
        first one are how many are watched.
    """
    reports, faults, total = [], [], 0
    for outcome in outcomes:
        total += 1
        if outcome.answer is not None:
            reports.append(outcome.answer)
        else:
            faults.append(Fault(outcome.participant.client, outcome.status, outcome.line))
    if history is None or not reports:
        return merge(reports, m, n_sites=total, delta=delta, independent=independent, faulty=faults)
    merged, _ = record_look(
        history,
        reports,
        m,
        step=step,
        round=round,
        n_sites=None if Path(history).exists() else total,
        delta=delta,
        independent=independent,
        faulty=faults,
    )
    return merged


MAX_REPLY = 65_536  # bytes of all replies but reports


@dataclass(frozen=True)
class Engine:
    """An engine during a round: whom it reaches, and how it carries a question.

    name: with its version, for the record. signatures: what proves who sent a reply. present():
    the sites that are there. carrier(kind, limit): carries one kind of request, and refuses replies
    of more than `limit` bytes. model: the digest of the model that goes with every request.
    """

    name: str
    signatures: str
    present: Callable[[], list[Participant]]
    carrier: Callable[[Kind, int], Carrier]
    model: str | None = None
    deadline: float = 60.0
    poll: float = 1.0

    def ask(
        self,
        kind: Kind,
        asked: Sequence[Participant],
        body: Callable[[str], msgspec.Struct],
        read: Callable[[bytes, str], T],
        limit: int = MAX_REPLY,
    ) -> Collection[T]:
        """Everybody's outcome; those without an answer are logged."""
        carrier = self.carrier(kind, limit)
        found = ask_all(carrier, asked, body, read, deadline=self.deadline, poll=self.poll)
        for one in found.outcomes:
            if one.status != "ok":
                log.warning("%s: %s: %s", one.participant.client, one.status, one.reason)
        return found


def named_participants(nodes: Iterable[tuple[int, str, bytes]]) -> list[Participant]:
    """Nodes (number, name, public key) under their names, or `node-NUMBER` where one cannot serve.

    Examples
    --------
    >>> from robfcp.engines import named_participants
    >>> nodes = [(1, "b", b""), (2, "a", b""), (3, "a", b"")]
    >>> [one.client for one in named_participants(nodes)]
    ['b', 'node-2', 'node-3']
    """
    found = list(nodes)
    names = Counter(name for _, name, _ in found)
    chosen = []
    for number, name, key in found:
        try:
            check_client(name)
            usable = names[name] == 1
        except RobfcpError:
            usable = False
        chosen.append(Participant(number, name if usable else f"node-{number}", key))
    return sorted(chosen, key=lambda participant: participant.client)


def model_digest(parts: Iterable[tuple[str, bytes | memoryview]]) -> str:
    """SHA-256 over every array's description (name, type, shape) and bytes: equal when models are.

    Examples
    --------
    >>> from robfcp.engines import model_digest
    >>> model_digest([("weights", b"12")]) == model_digest([("weights", b"13")])
    False
    """
    digest = hashlib.sha256()
    for description, data in parts:
        digest.update(f"{description}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def register_sizes(engine: Engine) -> dict[str, int]:
    """How many calibration samples each site says it has."""
    return _answers(engine.ask("size", engine.present(), SizeRequest, read_size))


def calibration_round(
    engine: Engine,
    *,
    score: Score | None = None,
    grid: Grid | None = None,
    sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    check: bool = True,
    keys: Mapping[str, str] | None = None,
    round: str | None = None,
    run_id: int | str | None = None,
    invited: Iterable[str] = (),
    **options: Any,
) -> Calibration:
    """Collect the sites' reports, calibrate, and tell the sites the threshold.

    keys: each client's public key, by which its report must be signed; `reports.read_keys` reads
    them from a registry. options: those of `robfcp.calibrate`. The calibration's `provenance`
    holds the run and what every client did.
    """
    score = LAC() if score is None else score
    grid = score.default_grid() if grid is None else grid
    round = secrets.token_hex(8) if round is None else round
    started = _now()
    asked = engine.present()
    said = _said(score)

    def request(client: str) -> SketchRequest:
        return SketchRequest(client, round, engine.model, wire.wire_grid(grid), said)

    def read(body: bytes, client: str) -> Report:
        return read_report(body, client, keys, round)

    found = engine.ask("sketch", asked, request, read, reply_limit(grid))
    federation = federation_of_replies(
        found.outcomes,
        grid=grid,
        score=score,
        round=round,
        model=engine.model,
        sizes=sizes,
        quorum=quorum,
        invited=invited,
        signatures=engine.signatures + (", reports by registered keys" if keys else ""),
    )
    calibration = calibrate(federation, **options)
    checks = _checks(engine, asked, calibration, said) if check else {}
    found.note_late()
    return calibration.with_provenance(
        {
            "engine": engine.name,
            "run_id": None if run_id is None else str(run_id),
            "started": started,
            "finished": _now(),
            "deadline": engine.deadline,
            "clients": client_records(
                found.outcomes, calibration, checks, joined=_joined(engine, asked)
            ),
        }
    )


def send_letters(engine: Engine, calibration: Calibration, key: Any = None) -> list[Outcome[str]]:
    """Send every site that is there its letter; who has kept it, and who has not.

    key: the server's private key to sign the letters with, if any.
    """
    asked = engine.present()
    sent = {}
    for letter in letters(calibration, {participant.client for participant in asked}):
        data = letter.to_json()
        sent[letter.client] = LetterRequest(
            letter.client, msgspec.Raw(data if key is None else sign_sealed(data, key))
        )
    return engine.ask(
        "letter",
        [participant for participant in asked if participant.client in sent],
        sent.__getitem__,
        lambda body, client: read_kept(body, client, calibration.identity),
    ).outcomes


def monitor_round(
    engine: Engine,
    calibration: Calibration,
    malicious: int,
    *,
    round: str,
    step: int = 0,
    level: int = 0,
    floor: float | None = None,
    delta: float = 0.05,
    independent: bool = False,
    history: str | os.PathLike[str] | None = None,
) -> Merged:
    """Ask all sites for their alarms and merge them, when at most `malicious` of them lie.

    Ask at dates fixed beforehand, `step` their number. A site that does not answer, or not as
    asked, counts as no evidence. `history` is a file that keeps every date, for the page and for
    `calibrate --alarms`.
    """
    expected = calibration.identity
    found = engine.ask(
        "monitor",
        engine.present(),
        lambda client: monitor_request(
            client, calibration, round=round, step=step, floor=floor, delta=delta, level=level
        ),
        lambda body, client: read_e_reply(
            body, client, round=round, step=step, calibration=expected
        ),
    )
    return merged_replies(
        found.outcomes,
        malicious,
        delta=delta,
        independent=independent,
        history=history,
        round=round,
        step=step,
    )


def _joined(engine: Engine, asked: list[Participant]) -> list[Participant]:
    """The sites that came when the round had begun; nobody waits for a network that hangs."""
    now = bounded(engine.present, 2.0)
    before = {participant.node_id for participant in asked}
    return [node for node in now.value or () if node.node_id not in before]


def _checks(
    engine: Engine, asked: list[Participant], calibration: Calibration, said: wire.WireScore
) -> dict[str, ThresholdReply]:
    """What the clients with valid reports claim to see on their test data."""
    thresholds: Any = [
        [_finite(one.threshold) for one in level.strata] or _finite(level.threshold)
        for level in calibration.levels
    ]
    reported = set(calibration.federation.ids)
    return _answers(
        engine.ask(
            "threshold",
            [participant for participant in asked if participant.client in reported],
            lambda client: ThresholdRequest(client, said, thresholds),
            lambda body, client: read_check(body, client, len(calibration.levels)),
        )
    )


def _answers(found: Collection[T]) -> dict[str, T]:
    return {o.participant.client: o.answer for o in found.outcomes if o.answer is not None}


def _finite(threshold: float) -> float | None:
    return threshold if np.isfinite(threshold) else None


def _said(score: Score) -> wire.WireScore:
    said = wire.wire_score(score)
    assert said is not None
    return said


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
