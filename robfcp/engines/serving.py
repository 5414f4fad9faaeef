"""The server's half of a round on any engine: ask, calibrate, tell; monitor; send letters."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

import msgspec
import numpy as np

from robfcp.calibration import Calibration, Merged, calibrate, letters, sign_sealed
from robfcp.engines.asking import Carrier, Collection, ask_all
from robfcp.engines.monitoring import merged_replies, monitor_request, read_e_reply
from robfcp.engines.outcomes import Outcome, Participant
from robfcp.engines.requests import (
    Kind,
    LetterRequest,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
)
from robfcp.engines.round import (
    client_records,
    federation_of_replies,
    read_check,
    read_kept,
    read_report,
    read_size,
    reply_limit,
)
from robfcp.engines.workers import bounded
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.reports import Report, WireScore, check_client, wire_grid, wire_score
from robfcp.scores import LAC, Score

T = TypeVar("T")

MAX_REPLY = 65_536  # bytes of all replies but reports

log = logging.getLogger(__name__)


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
    wire = _wire(score)

    def request(client: str) -> SketchRequest:
        return SketchRequest(client, round, engine.model, wire_grid(grid), wire)

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
    checks = _checks(engine, asked, calibration, wire) if check else {}
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
    """Ask all sites for their wealth and merge it, when at most `malicious` of them lie.

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
    engine: Engine, asked: list[Participant], calibration: Calibration, wire: WireScore
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
            lambda client: ThresholdRequest(client, wire, thresholds),
            lambda body, client: read_check(body, client, len(calibration.levels)),
        )
    )


def _answers(found: Collection[T]) -> dict[str, T]:
    return {o.participant.client: o.answer for o in found.outcomes if o.answer is not None}


def _finite(threshold: float) -> float | None:
    return threshold if np.isfinite(threshold) else None


def _wire(score: Score) -> WireScore:
    wire = wire_score(score)
    assert wire is not None
    return wire


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
