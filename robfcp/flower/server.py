"""The server's half: a calibration round, callable after any Flower strategy."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from robfcp.calibration import Calibration, calibrate
from robfcp.engines import (
    Outcomes,
    Participant,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    bounded,
    client_records,
    federation_of_replies,
    read_check,
    read_report,
    read_size,
    reply_limit,
)
from robfcp.flower._messages import SIZE, SKETCH, THRESHOLD, model_digest
from robfcp.flower.collector import collect, participants, present
from robfcp.flower.network import Network
from robfcp.grid import Grid
from robfcp.reports import WireScore, wire_grid, wire_score
from robfcp.scores import LAC, Score

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
        present(network, deadline),
        SIZE,
        SizeRequest,
        read_size,
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
    invited: Iterable[str] = (),
    **options: Any,
) -> Calibration:
    """Collect the nodes' reports, calibrate, and tell the nodes the threshold.

    arrays: the trained model the nodes score with, e.g. `result.arrays`; None for their own.
    sizes: who may report and with how many samples, fixed before; see `register_sizes`.
    deadline: seconds for the reports and again for the nodes' own check of the threshold.
    check: send the threshold and note the coverage and set size each node claims to see.
    invited: the names of all registered nodes, so that those offline now are listed as missing;
        Flower tells an app only of the nodes that are online.
    options: those of `robfcp.calibrate` (confidence_level, defence, malicious, guarantee, ...).
    The calibration's `provenance` holds the run and what every client did.
    """
    score = LAC() if score is None else score
    grid = score.default_grid() if grid is None else grid
    round = secrets.token_hex(8) if round is None else round
    started = _now()
    asked = present(network, deadline)
    model = model_digest(arrays)
    limit = reply_limit(grid)

    def request(client: str) -> SketchRequest:
        return SketchRequest(client, round, model, wire_grid(grid), _wire(score))

    found = collect(
        network,
        asked,
        SKETCH,
        request,
        read_report,
        arrays=arrays,
        deadline=deadline,
        poll=poll,
        limit=limit,
    )
    _log(found.outcomes)
    federation = federation_of_replies(
        found.outcomes,
        grid=grid,
        score=score,
        round=round,
        model=model,
        sizes=sizes,
        quorum=quorum,
        invited=invited,
        signatures="node and nonce by Flower",
    )
    calibration = calibrate(federation, **options)
    checks: dict[str, ThresholdReply] = {}
    if check:
        checks = _checks(
            network, asked, calibration, score=score, arrays=arrays, deadline=deadline, poll=poll
        )
    found.note_late()
    return calibration.with_provenance(
        {
            "engine": f"flower {version('flwr')}",
            "run_id": None if run_id is None else str(run_id),
            "started": started,
            "finished": _now(),
            "deadline": deadline,
            "clients": client_records(
                found.outcomes, calibration, checks, joined=_joined(network, asked)
            ),
        }
    )


def _joined(network: Network, asked: list[Participant]) -> list[Participant]:
    """The nodes that came when the round had begun; nobody waits for a network that hangs."""
    now = bounded(lambda: participants(network), 2.0)
    before = {participant.node_id for participant in asked}
    return [node for node in now.value or () if node.node_id not in before]


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
    thresholds: Any = [
        [_finite(one.threshold) for one in level.strata] or _finite(level.threshold)
        for level in calibration.levels
    ]
    reported = set(calibration.federation.ids)

    found = collect(
        network,
        [participant for participant in asked if participant.client in reported],
        THRESHOLD,
        lambda client: ThresholdRequest(client, _wire(score), thresholds),
        lambda body, client: read_check(body, client, len(calibration.levels)),
        arrays=arrays,
        deadline=deadline,
        poll=poll,
    )
    _log(found.outcomes)
    return {o.participant.client: o.answer for o in found.outcomes if o.answer is not None}


def _finite(threshold: float) -> float | None:
    return threshold if np.isfinite(threshold) else None


def _wire(score: Score) -> WireScore:
    wire = wire_score(score)
    assert wire is not None
    return wire


def _log(outcomes: Outcomes) -> None:
    for outcome in outcomes:
        if outcome.status != "ok":
            log.warning("%s: %s: %s", outcome.participant.client, outcome.status, outcome.reason)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
