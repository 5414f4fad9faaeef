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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

import msgspec

from robfcp._validation import MAX_SAMPLES, are_client_names
from robfcp.binning import Binning
from robfcp.calibration import Calibration, _calibrate
from robfcp.defense import Consensus, get_defense
from robfcp.errors import ReportError, RobfcpError, printable
from robfcp.federation import Federation, RejectedReport
from robfcp.fleet import ReplyStore
from robfcp.guarantees import get_guarantee
from robfcp.integrations import _messages
from robfcp.integrations._messages import (
    CoverageClaims,
    Participant,
    ReplyOutcome,
    ReplyStatus,
    Request,
    T,
)
from robfcp.local import iter_feedback
from robfcp.monitoring import EValueReport, MergedEValue, merge_e_values, record_inspection
from robfcp.privacy import parse_binning
from robfcp.reports import Report, _wire, signing, terms
from robfcp.scores import LAC, Score, _base

THREAD_PATIENCE_SECONDS = (
    0.25  # seconds without any result after which as many threads again are started
)
ATTEMPTS = 2
GRACE_SECONDS = 2.0  # seconds beyond the deadline for the last look at everybody
TTL_GRACE_SECONDS = 5.0  # seconds beyond the deadline in which a reply still counts as late
POLL_PAUSE_SECONDS = 0.5  # seconds between two looks at who is there
MIN_POLL_SECONDS = (
    1.0  # seconds at least that one look at everybody may take where one of them hangs
)
MAX_REPLY_BYTES = 65_536  # bytes of a reply, beside a report's counts
BYTES_PER_BIN = 48  # two numbers of at most 20 digits, with room to spare

K = TypeVar("K", bound=Hashable)
log = logging.getLogger(__name__)


class TimeoutWorkers(Generic[K]):
    """Daemon threads that make calls; a call that hangs holds up nobody but itself.

    One thread does all the work while calls return. When none has returned for PATIENCE seconds,
    the number of threads is doubled, so that any number of hanging calls is passed by in a few
    seconds. What still hangs in the end is left behind.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[K, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[K, Any]] = queue.SimpleQueue()
        self._threads = 0
        self.open: set[K] = set()

    def submit(self, key: K, call: Callable[[], Any]) -> None:
        """Make the call as soon as a thread is free; one call a key at a time."""
        self.open.add(key)
        self._calls.put((key, call))
        if not self._threads:
            self._start(1)

    def results(self, end: float) -> Iterator[tuple[K, Any]]:
        """What the calls give or raise, in the order they end, until all have or it is `end`."""
        while self.open:
            left = end - monotonic()
            try:
                key, found = self._results.get(timeout=max(0.0, min(THREAD_PATIENCE_SECONDS, left)))
            except queue.Empty:
                if left <= 0:
                    return
                self._start(max(0, min(self._threads, len(self.open) - self._threads)))
                continue
            self.open.discard(key)
            yield key, found

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
                found = make()
            except Exception as error:
                found = error
            self._results.put((key, found))


def call_with_timeout(call: Callable[[], T], seconds: float) -> T:
    """What the call gives within so many seconds; a TimeoutError where it does not return."""
    workers: TimeoutWorkers[int] = TimeoutWorkers()
    workers.submit(0, call)
    late = 0, TimeoutError(f"no answer within {seconds:g} s")
    _, found = next(workers.results(monotonic() + seconds), late)
    workers.close()
    if isinstance(found, Exception):
        raise found
    return found


@dataclass(frozen=True)
class FailedReply:
    """The engine's own word that there will be no reply."""

    status: ReplyStatus
    reason: str


class Transport(ABC):
    """An engine during a round: whom it reaches, and how it carries a question.

    name: with its version, for the record. signatures: what proves who sent a reply. model: the
    digest of the model that goes with every request. Each of its methods may raise, and may hang.
    """

    model: str | None = None

    def __init__(self, name: str, signatures: str, deadline: float, poll: float) -> None:
        if not 0 < deadline < inf:
            raise RobfcpError(f"deadline: {deadline:g} s is no time to wait; give seconds above 0")
        self.name, self.signatures = name, signatures
        self.deadline, self.poll = deadline, poll

    @abstractmethod
    def present(self) -> list[Participant]:
        """The sites that are there."""

    @abstractmethod
    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """The number under which the reply can be received; None where sending failed."""

    @abstractmethod
    def receive(self, identifier: str) -> Mapping[str, Any] | FailedReply | None:
        """The reply's record; None where there is none yet, or the network is in trouble."""


@dataclass(eq=False)
class _Attempt:
    """One question to one site, until it is answered."""

    participant: Participant
    attempts: int = 1
    previous_outcome: ReplyOutcome[Any] | None = None  # what the attempt before this one ended with
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    message: str = ""  # the number of what was sent; empty until it was


@dataclass
class RequestRound(Generic[T]):
    """One round of questions: everybody is asked once, and again after a reply not its own.

    request(client=...) is what is asked, read(reply, client) the answer, or it raises. Ends at the
    latest GRACE seconds after the deadline, with everybody who had answered by then.
    """

    engine: Transport
    request: Callable[..., Request]
    read: Callable[[bytes, str], T]
    limit: int = MAX_REPLY_BYTES
    open: dict[_Attempt, None] = field(default_factory=dict)  # in the order they were begun
    done: dict[Participant, ReplyOutcome[T]] = field(default_factory=dict)
    workers: TimeoutWorkers[_Attempt] = field(default_factory=lambda: TimeoutWorkers())

    @property
    def outcomes(self) -> list[ReplyOutcome[T]]:
        """What everybody did, by name."""
        return sorted(self.done.values(), key=lambda outcome: outcome.participant.client)

    @property
    def answers(self) -> dict[str, T]:
        """The valid answers."""
        return {o.participant.client: o.answer for o in self.outcomes if o.answer is not None}

    def run(self, asked: Iterable[Participant]) -> RequestRound[T]:
        """Ask, look until all have answered or the time is up, and look once more."""
        poll, self.end = self.engine.poll, monotonic() + self.engine.deadline
        for participant in asked:
            self._ask(_Attempt(participant))
        while self.open and monotonic() < self.end:
            before = monotonic()
            self._look(min(self.end, before + max(poll, MIN_POLL_SECONDS)))
            if self.open:
                sleep(max(0.0, min(before + poll, self.end) - monotonic()))
        self._look(monotonic() + GRACE_SECONDS)
        self.workers.close()
        for turn in self.open:  # what its first reply was, if it had one
            whole = "its reply was not there as a whole after"
            hanging = whole if turn.message else "could not be reached within"
            reason = hanging if turn in self.workers.open else "no answer within"
            reason = f"{reason} {self.engine.deadline:g} s"
            silent: ReplyOutcome[T] = turn.previous_outcome or ReplyOutcome(
                turn.participant, "missing", reason
            )
            self.done[turn.participant] = replace(silent, attempts=turn.attempts)
        for one in self.outcomes:
            if one.status != "ok":
                log.warning("%s: %s: %s", one.participant.client, one.status, one.reason)
        return self

    def note_late(self) -> None:
        """Look again: who answered after the deadline was late, not missing."""
        self.workers = TimeoutWorkers()
        for turn in self.open:
            if turn.message:
                self._receive(turn)
        for turn, found in self.workers.results(monotonic() + GRACE_SECONDS):
            if self._judge(found, turn)[1]:
                late, reason = self.done[turn.participant], "answered after the deadline"
                self.done[turn.participant] = replace(late, status="late", reason=reason)
        self.workers.close()

    def _ask(self, turn: _Attempt) -> None:
        self.open[turn] = None
        ttl = max(1.0, self.end - monotonic()) + TTL_GRACE_SECONDS
        body = msgspec.json.encode(self.request(client=turn.participant.client))
        record = {"nonce": turn.nonce, "body": body}
        self.workers.submit(turn, lambda: self.engine.send(turn.participant, record, ttl))

    def _receive(self, turn: _Attempt) -> None:
        if turn not in self.workers.open:
            self.workers.submit(turn, lambda: self.engine.receive(turn.message))

    def _look(self, end: float) -> None:
        """Look once at everybody whose last look has come back, until `end` where one hangs."""
        for turn in self.open:
            self._receive(turn)
        for turn, found in self.workers.results(end):
            if turn.message and found is not None:
                self._settle(turn, *self._judge(found, turn))
            elif not turn.message and isinstance(found, str) and found:
                turn.message = found
                self._receive(turn)
            elif not turn.message:
                if isinstance(found, Exception):
                    log.warning("sending failed (%s)", type(found).__name__)
                lost: ReplyOutcome[T] = ReplyOutcome(
                    turn.participant, "missing", "could not be reached"
                )
                self._settle(turn, replace(lost, attempts=turn.attempts), True)

    def _settle(self, turn: _Attempt, outcome: ReplyOutcome[T], authentic: bool) -> None:
        """Keep the outcome, or ask again where the reply was not the site's own."""
        del self.open[turn]
        if not authentic and turn.attempts < ATTEMPTS and monotonic() < self.end:
            log.warning("%s: %s; asking again", turn.participant.client, outcome.reason)
            self._ask(_Attempt(turn.participant, turn.attempts + 1, outcome))
        else:
            self.done[turn.participant] = outcome

    def _judge(self, found: Any, asked: _Attempt) -> tuple[ReplyOutcome[T], bool]:
        """The outcome of a reply and whether the nonce proves that the site sent it."""

        def outcome(status: ReplyStatus, reason: str, answer: T | None = None) -> ReplyOutcome[T]:
            return ReplyOutcome(asked.participant, status, reason, answer, asked.attempts)

        authentic = False
        try:
            if isinstance(found, FailedReply):
                return outcome(found.status, found.reason), False
            if isinstance(found, Exception):
                raise found
            nonce, body = _messages.parse_reply(found, self.limit)
            if not hmac.compare_digest(nonce.encode(errors="replace"), asked.nonce.encode()):
                raise RobfcpError("the reply does not return this request's nonce")
            authentic = True
            if isinstance(body, int):
                return outcome("faulty", _messages.FAILURES[body]), True
            return outcome("ok", "", self.read(body, asked.participant.client)), True
        except RobfcpError as error:
            return outcome("faulty" if authentic else "rejected", str(error)), authentic
        except Exception as error:  # whose text may hold anything
            reason = printable(f"the reply cannot be read ({type(error).__name__})")
            return outcome("rejected", reason), authentic


def resolve_participants(nodes: Iterable[tuple[int, str, bytes]]) -> list[Participant]:
    """Nodes (number, name, public key) under their names, or `node-NUMBER` where one cannot serve.

    Examples
    --------
    >>> from robfcp.integrations._server import resolve_participants
    >>> nodes = [(1, "b", b""), (2, "a", b""), (3, "a", b""), (4, "", b""), (5, "x y\\n", b"")]
    >>> [one.client for one in resolve_participants(nodes)]
    ['b', 'node-2', 'node-3', 'node-4', 'node-5']
    """
    found = list(nodes)
    names = Counter(name for _, name, _ in found)
    usable = {name for name, fine in zip(names, are_client_names([*names]), strict=True) if fine}
    chosen = (
        Participant(n, name if name in usable and names[name] == 1 else f"node-{n}", key)
        for n, name, key in found
    )
    return sorted(chosen, key=lambda participant: participant.client)


def model_digest(parts: Iterable[tuple[str, bytes | memoryview]]) -> str:
    """SHA-256 over every array's description (name, type, shape) and bytes: equal when models are.

    Examples
    --------
    >>> from robfcp.integrations._server import model_digest
    >>> model_digest([("weights", b"12")]) == model_digest([("weights", b"13")])
    False
    """
    digest = hashlib.sha256()
    for description, data in parts:
        digest.update(f"{description}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def register_sample_sizes(engine: Transport) -> dict[str, int]:
    """How many calibration samples each site says it has."""

    def read(body: bytes, client: str) -> int:
        n_samples: int = _messages.read_body(body, int)
        if not 0 < n_samples <= MAX_SAMPLES:
            raise ReportError(client, "n_samples", f"{n_samples} samples cannot be", "fix the data")
        return n_samples

    return RequestRound(engine, _messages.SizeRequest, read).run(engine.present()).answers


def run_calibration_round(
    engine: Transport,
    *,
    score: Score | None = None,
    binning: Binning | None = None,
    registered_sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    evaluate: bool = True,
    keys: Mapping[str, str] | None = None,
    round: str | None = None,
    run_id: int | str | None = None,
    expected_clients: Iterable[str] = (),
    reply_folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Calibration:
    """Collect the sites' reports, calibrate, and tell the sites the threshold.

    registered_sizes: who may report and with how many samples, fixed before; see
    `register_sample_sizes`.
    evaluate: send the threshold and note the coverage and set size each site claims to see.
    keys: each client's public key, by which its report must be signed; a registry holds them
    (`reports.terms.read_keys`). Without keys a signature must be by the key it names itself.
    expected_clients: the names of all registered sites, so that those offline now are listed as
    missing.
    reply_folder: a folder in which reports are kept in Parquet as they come, few in memory. A round
    that died goes on from it: whoever is in it was heard. It is empty after a round.
    options: those of `robfcp.calibrate`. The calibration's `provenance` holds the run and what
    every client did.
    """
    score = score or LAC()
    binning = binning or score.default_binning()
    kept = None if reply_folder is None else ReplyStore(reply_folder)
    name = round or (kept and kept.round) or secrets.token_hex(8)
    started, asked = datetime.now(timezone.utc), engine.present()
    context: Any = {"grid": _wire.to_wire_binning(binning), "score": _wire.to_wire_score(score)}
    request = partial(_messages.ReportRequest, round=name, model=engine.model, **context)

    def read(body: bytes, client: str) -> Report | str:
        if keys is None:
            signing.check_embedded_key(body, client)
            report = Report.from_json(signing.unwrap(body), client)
        else:
            report = signing.verify(body, Report, keys, name, client)
        if report.client != client:
            raise ReportError(client, "client", "reports under another name", "use the given name")
        return report if kept is None else kept.add(client, body, name)

    found: RequestRound[Any] = RequestRound(
        engine, request, read, BYTES_PER_BIN * binning.n_bins + MAX_REPLY_BYTES
    )
    heard = {} if kept is None else dict.fromkeys(client for client, _ in kept)
    found.done = {
        one: ReplyOutcome(one, "ok", "", one.client) for one in asked if one.client in heard
    }
    found.run(one for one in asked if one.client not in heard)
    federation = Federation.from_reports(
        found.answers.values() if kept is None else (data for _, data in kept),
        registered_sizes=registered_sizes,
        quorum=quorum,
        binning=binning,
        score=score,
        round=name,
        model=engine.model,
        rejected=[
            _rejection(one) for one in found.outcomes if one.status in ("faulty", "rejected")
        ],
        expected_clients=[*expected_clients, *(participant.client for participant in asked)],
        signatures=engine.signatures + (", reports by registered keys" if keys else ""),
    )
    calibration = _calibrate.calibrate(federation, **options)
    if kept is not None:
        kept.clear()
    claims = _collect_claims(engine, asked, calibration) if evaluate else {}
    found.note_late()
    provenance = {
        "engine": engine.name,
        "run_id": None if run_id is None else str(run_id),
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "deadline": engine.deadline,
        "clients": _provenance_records(engine, found.outcomes, calibration, claims),
    }
    record = replace(calibration.require_record(), provenance=provenance)
    return calibration.with_record(record)


def _collect_claims(engine: Transport, asked: list[Participant], calibration: Calibration) -> Any:
    """{client: Claims}: what the clients with valid reports claim to see on their test data."""
    text, reported = msgspec.Raw(calibration.to_json()), set(calibration.federation.clients)

    def read(body: bytes, client: str) -> CoverageClaims:
        claims: CoverageClaims = _messages.read_body(body, CoverageClaims)
        fits = len(claims.covered) == len(claims.total_size) == len(calibration.levels)
        if not fits or not all(0 <= count <= claims.n_samples for count in claims.covered):
            raise ReportError(client, "covered", "counts cannot be", "update robfcp")
        return claims

    asking = RequestRound(engine, partial(_messages.EvaluateRequest, calibration=text), read)
    return asking.run(one for one in asked if one.client in reported).answers


def _provenance_records(
    engine: Transport, outcomes: list[ReplyOutcome[Report]], calibration: Calibration, claims: Any
) -> dict[str, dict[str, Any]]:
    """Every client's node, public key, status and claims; also of those that came later."""

    def entry(node: Participant | None, status: ReplyStatus, reason: str, attempts: int = 0) -> Any:
        return {
            "node_id": None if node is None else str(node.node_id),
            "public_key": None if node is None else node.public_key.hex(),
            "status": status,
            "reason": reason,
            "attempts": attempts,
            "claims": None if node is None else msgspec.to_builtins(claims.get(node.client)),
        }

    missing = set(calibration.missing_clients)
    found = {name: entry(None, "missing", "registered but not connected") for name in missing}
    asked = {one.participant.node_id for one in outcomes}
    try:  # nobody waits for a network that hangs
        now = call_with_timeout(engine.present, 2.0)
    except Exception:
        now = []
    for node in now:
        if node.node_id not in asked:
            status: ReplyStatus = "missing" if node.client in missing else "not asked"
            found[node.client] = entry(node, status, "joined after the round had begun")
    faults = {fault.client: fault.reason for fault in calibration.rejected_reports}
    for one in outcomes:
        client, status, reason = one.participant.client, one.status, one.reason
        if status == "ok" and client in faults:
            status, reason = "faulty", faults[client]
        found[client] = entry(one.participant, status, reason, one.attempts)
    return dict(sorted(found.items()))


def send_feedback(
    engine: Transport, calibration: Calibration, key: Any = None
) -> list[ReplyOutcome[str]]:
    """Send every site that is there its letter; who has kept it, and who has not.

    key: the server's private key to sign the letters with, if any.
    """

    def read(body: bytes, client: str) -> str:
        kept: str = _messages.read_body(body, str)
        if kept != calibration.fingerprint:
            raise ReportError(client, "calibration", "keeps another letter", "update robfcp")
        return kept

    asked = engine.present()
    sent = {}
    for letter in iter_feedback(calibration, {participant.client for participant in asked}):
        sent[letter.client] = msgspec.Raw(letter.to_json(key))
    asking = RequestRound(
        engine, lambda client: _messages.FeedbackRequest(client=client, letter=sent[client]), read
    )
    return asking.run(one for one in asked if one.client in sent).outcomes


def run_monitoring_round(
    engine: Transport,
    calibration: Calibration,
    max_malicious: int,
    *,
    round: str,
    step: int = 0,
    level: int = 0,
    min_coverage: float | None = None,
    delta: float = 0.05,
    independent: bool = False,
    history: str | os.PathLike[str] | None = None,
) -> MergedEValue:
    """Ask all sites how strong their alarms are and merge them, when at most `liars` lie.

    Ask at dates fixed beforehand, `step` their number. A site that does not answer, or not as
    asked, counts as no alarm. `history` is a file that keeps every date, for the page and for
    `calibrate --alarms`; the sites asked at the first one are how many are watched.
    """
    expected = {"round": round, "step": step, "calibration": calibration.fingerprint}
    text = msgspec.Raw(calibration.to_json())
    asked: Any = {
        **expected,
        "calibration": text,
        "level": level,
        "floor": min_coverage,
        "delta": delta,
    }

    def read(body: bytes, client: str) -> EValueReport:
        report = EValueReport.from_json(body, client)
        for part, value in {"client": client, **expected}.items():
            if (stated := getattr(report, part)) != value:
                wrong = f"{part} is {stated}, not {value}"
                raise ReportError(client, part, wrong, "answer as asked")
        return report

    request = partial(_messages.MonitorRequest, **asked)
    found = RequestRound(engine, request, read).run(engine.present())
    reports, total = list(found.answers.values()), len(found.outcomes)
    how: dict[str, Any] = {"delta": delta, "independent": independent}
    how["rejected"] = [_rejection(one) for one in found.outcomes if one.answer is None]
    how["signatures_checked"] = True  # each was asked by itself
    if history is None or not reports:
        return merge_e_values(reports, max_malicious, n_clients=total, **how)
    watched = None if Path(history).exists() else total
    return record_inspection(
        history, reports, max_malicious, step=step, round=round, n_sites=watched, **how
    )[0]


def _rejection(outcome: ReplyOutcome[Any]) -> RejectedReport:
    return RejectedReport(outcome.participant.client, outcome.status, outcome.line)


DEFAULTS: Mapping[str, Any] = {  # of a run's configuration, in the same words on every engine
    "score": "lac",
    "grid": "",  # the score's own; "uniform:100" and the like
    "coverage": 0.9,
    "defence": Consensus.name,
    "liars": "unknown",  # or the most sites that may lie
    "promise": "",  # marginal, pac, label-shift
    "alike": "",  # by how much sites may differ, where that is promised
    "mix": "",  # of labels, where they may shift: uniform, any
    "confidence": 0.95,  # with which certificates hold
    "sizes": "ask",  # beforehand; "none", or the absolute path of a registry
    "keys": "",  # absolute path of a registry of public keys; unsigned reports are refused
    "quorum": 0.5,
    "deadline": 60.0,
    "poll": 1.0,
    "min-nodes": 2,  # wait for so many before the start, at most `deadline` seconds
    "invited": "",  # all registered sites' names, with blanks between: who is offline is missing
    "check": True,  # tell the sites the threshold and note what they claim to cover
    "letters": False,  # send each site its letter afterwards
    "replies": "",  # absolute path of a folder: many sites' reports wait there, also for a crash
    "output": "",  # absolute path of the calibration
}


def run_configured_round(
    engine: Transport,
    config: Mapping[str, Any],
    run_id: int | str | None = None,
    train: Callable[[], object] = int,
) -> Calibration:
    """A run as its configuration has it: sizes, training, the round, its file and the letters.

    config: all of `DEFAULTS`; what it cannot mean is refused before anybody is asked.
    train: what comes between the sizes, which are fixed before, and the reports.
    """
    output, sizes, name = (str(config[word]) for word in ("output", "sizes", "promise"))
    for word in ("output", "replies"):
        if (place := str(config[word])) and not Path(place).is_absolute():
            raise RobfcpError(f"{word}: {place} is not absolute; nobody knows where this app runs")
    if config["liars"] != "unknown" and not isinstance(config["liars"], int):
        raise RobfcpError("liars: neither a number nor 'unknown'; fix the run config")
    words = ("liars", "alike", "mix")
    stated = {word: config[word] for word in words if config[word] not in ("", "unknown")}
    promise = get_guarantee(name, **stated) if name else None
    options = {
        "score": _base.get_score(str(config["score"])),
        "binning": parse_binning(str(config["grid"])) if config["grid"] else None,
        "keys": terms.read_keys(str(config["keys"])) if config["keys"] else None,
        "expected_clients": str(config["invited"]).split(),
        "defense": get_defense(str(config["defence"]), None if promise else stated.get("liars")),
        "guarantee": promise,
        "reply_folder": str(config["replies"]) or None,
        "quorum": config["quorum"],
        "evaluate": config["check"],
        "coverage": config["coverage"],
        "certificate_confidence": config["confidence"],
    }
    wanted, end = int(config["min-nodes"]), monotonic() + engine.deadline
    while (there := len(engine.present())) < wanted and monotonic() < end:
        sleep(min(POLL_PAUSE_SECONDS, engine.poll))
    if there < wanted:
        log.warning("%d of %d sites; going on without the rest", there, wanted)
    fixed: Mapping[str, int] | None = None
    if sizes != "none":
        fixed = (
            register_sample_sizes(engine)
            if sizes == "ask"
            else terms.read_registered_sizes(Path(sizes))
        )
    train()
    calibration = run_calibration_round(engine, registered_sizes=fixed, run_id=run_id, **options)
    if output:
        calibration.save(Path(output))
    for level in calibration.levels:
        log.warning("threshold %.6g: %s", level.threshold, level.certificate.statement)
    if config["letters"]:
        send_feedback(engine, calibration)
    return calibration
