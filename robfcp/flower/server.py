"""The server's half: a calibration round, callable after any Flower strategy."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from flwr.app import ArrayRecord

from robfcp.calibration import Calibration, calibrate
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.flower._messages import (
    SIZE,
    SKETCH,
    THRESHOLD,
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    model_digest,
)
from robfcp.flower.collector import Collection, Outcome, Participant, collect, participants
from robfcp.flower.network import Network
from robfcp.grid import Grid
from robfcp.reports import MAX_SAMPLES, Report, WireScore, wire_grid, wire_score
from robfcp.scores import LAC, Score

BYTES_PER_BIN = 48  # two numbers of at most 20 digits, with room to spare

log = logging.getLogger(__name__)


def register_sizes(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> dict[str, int]:
    """How many calibration samples each node says it has, to be fixed before calibration."""
    found = collect(
        network,
        participants(network),
        SIZE,
        SizeRequest,
        _read_size,
        arrays=arrays,
        deadline=deadline,
        poll=poll,
    )
    _log(found.outcomes)
    return {
        outcome.participant.client: outcome.answer
        for outcome in found.outcomes
        if outcome.answer is not None
    }


def calibration_round(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    score: Score | None = None,
    grid: Grid | None = None,
    sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    deadline: float = 60.0,
    poll: float = 1.0,
    check: bool = True,
    round: str | None = None,
    run_id: int | str | None = None,
    **options: Any,
) -> Calibration:
    """Collect the nodes' reports, calibrate, and tell the nodes the threshold.

    arrays: the trained model the nodes score with, e.g. `result.arrays`; None for their own.
    sizes: who may report and with how many samples, fixed before; see `register_sizes`.
    deadline: seconds for the reports and again for the nodes' own check of the threshold.
    check: send the threshold and note the coverage and set size each node claims to see.
    options: those of `robfcp.calibrate` (confidence_level, defence, malicious, guarantee, ...).
    The calibration's `provenance` holds the run and what every client did.
    """
    score = LAC() if score is None else score
    grid = score.default_grid() if grid is None else grid
    round = secrets.token_hex(8) if round is None else round
    started = _now()
    asked = participants(network)
    model = model_digest(arrays)
    limit = BYTES_PER_BIN * grid.n_bins + 65_536

    def request(client: str) -> SketchRequest:
        return SketchRequest(client, round, model, wire_grid(grid), _wire(score))

    found = collect(
        network,
        asked,
        SKETCH,
        request,
        _read_report,
        arrays=arrays,
        deadline=deadline,
        poll=poll,
        limit=limit,
    )
    _log(found.outcomes)
    federation = _federation(
        found.outcomes,
        grid=grid,
        score=score,
        round=round,
        model=model,
        sizes=sizes,
        quorum=quorum,
    )
    calibration = calibrate(federation, **options)
    checks: dict[str, ThresholdReply] = {}
    if check:
        checks = _checks(
            network, asked, calibration, score=score, arrays=arrays, deadline=deadline, poll=poll
        )
    found.note_late(network, limit)
    return calibration.with_provenance(
        {
            "engine": f"flower {version('flwr')}",
            "run_id": None if run_id is None else str(run_id),
            "started": started,
            "finished": _now(),
            "deadline": deadline,
            "clients": _clients(found, calibration, checks),
        }
    )


def _read_size(body: bytes, client: str) -> int:
    n_samples = _decode(body, SizeReply).n_samples
    if not 0 < n_samples <= MAX_SAMPLES:
        raise ReportError(client, "n_samples", f"{n_samples} samples cannot be", "fix the data")
    return int(n_samples)


def _read_report(body: bytes, client: str) -> Report:
    report = Report.from_json(body, client)
    if report.client != client:
        raise ReportError(client, "client", "reports under another name", "use the given name")
    return report


def _decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(f"not a valid reply ({error}); update robfcp at the client") from None


def _federation(
    outcomes: list[Outcome[Report]],
    *,
    grid: Grid,
    score: Score,
    round: str,
    model: str | None,
    sizes: Mapping[str, int] | None,
    quorum: int | float | None,
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
            Fault(o.participant.client, o.status, _line(o))
            for o in outcomes
            if o.status in ("faulty", "rejected")
        ],
        invited=[o.participant.client for o in outcomes],
        signatures="node and nonce by Flower",
    )


def _checks(
    network: Network,
    asked: list[Participant],
    calibration: Calibration,
    *,
    score: Score,
    arrays: ArrayRecord | None,
    deadline: float,
    poll: float,
) -> dict[str, ThresholdReply]:
    """What the clients with valid reports claim to see on their test data."""
    thresholds = [
        level.threshold if np.isfinite(level.threshold) else None for level in calibration.levels
    ]
    reported = set(calibration.federation.ids)

    def read(body: bytes, client: str) -> ThresholdReply:
        reply: ThresholdReply = _decode(body, ThresholdReply)
        fits = len(reply.covered) == len(reply.total_size) == len(thresholds)
        if not fits or not all(0 <= count <= reply.n_samples for count in reply.covered):
            raise ReportError(client, "covered", "counts cannot be", "update robfcp")
        return reply

    found = collect(
        network,
        [participant for participant in asked if participant.client in reported],
        THRESHOLD,
        lambda client: ThresholdRequest(client, _wire(score), thresholds),
        read,
        arrays=arrays,
        deadline=deadline,
        poll=poll,
    )
    _log(found.outcomes)
    return {o.participant.client: o.answer for o in found.outcomes if o.answer is not None}


def _clients(
    found: Collection[Report], calibration: Calibration, checks: Mapping[str, ThresholdReply]
) -> dict[str, dict[str, Any]]:
    """Every client's node, public key, status and claims; faults found later included."""
    faults = {fault.client: fault.reason for fault in calibration.faulty}
    clients: dict[str, dict[str, Any]] = {}
    for outcome in found.outcomes:
        client, status, reason = outcome.participant.client, outcome.status, outcome.reason
        if status == "ok" and client in faults:
            status, reason = "faulty", faults[client]
        clients[client] = {
            "node_id": str(outcome.participant.node_id),
            "public_key": outcome.participant.public_key.hex(),
            "status": status,
            "reason": reason,
            "attempts": outcome.attempts,
            "claims": msgspec.to_builtins(checks[client]) if client in checks else None,
        }
    for client in set(calibration.missing) - set(clients):
        clients[client] = {
            "node_id": None,
            "public_key": None,
            "status": "missing",
            "reason": "registered but not connected",
            "attempts": 0,
            "claims": None,
        }
    return dict(sorted(clients.items()))


def _line(outcome: Outcome[Any]) -> str:
    client = outcome.participant.client
    if outcome.reason.startswith(f"{client}: "):
        return outcome.reason
    return f"{client}: {outcome.reason}; check that node"


def _wire(score: Score) -> WireScore:
    wire = wire_score(score)
    assert wire is not None
    return wire


def _log(outcomes: list[Outcome[Any]]) -> None:
    for outcome in outcomes:
        if outcome.status != "ok":
            log.warning("%s: %s: %s", outcome.participant.client, outcome.status, outcome.reason)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
