"""A calibration round on any engine: replies become a federation, and a record of who did what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from robfcp.calibration import Calibration
from robfcp.engines.outcomes import Outcome, Outcomes, Participant, Status
from robfcp.engines.requests import LetterReply, SizeReply, ThresholdReply, read_reply
from robfcp.errors import ReportError
from robfcp.federation import Fault, Federation
from robfcp.grid import Grid
from robfcp.reports import MAX_SAMPLES, Report, check_named_key, unwrap, verify
from robfcp.scores import Score

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
        report = verify(body, keys, round, client)
    else:
        check_named_key(body, client)
        report = Report.from_json(unwrap(body), client)
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
