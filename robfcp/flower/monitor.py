"""The monitor as a further task: nodes count fresh samples, the server merges their wealth."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike

from robfcp._util.files import make_folder
from robfcp.calibration import Calibration, Merged, Monitor
from robfcp.engines import (
    MonitorRequest,
    Refused,
    SiteRules,
    merged_replies,
    monitor_request,
    read_e_reply,
    read_request,
)
from robfcp.errors import RobfcpError
from robfcp.flower.client import guarded
from robfcp.flower.collector import collect, participants
from robfcp.flower.network import Network
from robfcp.privacy import Privacy

MONITOR = "query.monitor"
FreshSamples = Callable[[ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike, ArrayLike]]


def add_monitor(
    app: ClientApp,
    fresh: FreshSamples,
    folder: str | os.PathLike[str] | None = None,
    *,
    privacy: Privacy | None = None,
) -> None:
    """Teach an app to watch a calibration; call it beside `add_calibration`.

    fresh(arrays, context): predictions, true targets and names of the samples labelled so far;
        those counted before are passed over.
    folder: where the node keeps its state, one file a calibration; its own node config
        (`monitor-folder`) goes before it.
    privacy: a site that states a budget does not answer: wealth tells of its samples.
    """

    def watch(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request: MonitorRequest = read_request(body, MonitorRequest)
        if SiteRules(privacy).with_config(context.node_config).privacy is not None:
            raise Refused(4, "wealth tells of protected samples")
        calibration = Calibration.from_json(bytes(request.calibration))
        place = context.node_config.get("monitor-folder", folder)
        if place is None:
            raise RobfcpError("monitor-folder: the node has no place for its state; configure it")
        name = f"monitor-{calibration.identity[:16]}-{request.level}.json"
        monitor = Monitor(
            calibration,
            client=request.client,
            level=request.level,
            floor=request.floor,
            delta=request.delta,
            path=Path(make_folder(str(place))) / name,
        )
        predictions, targets, ids = fresh(arrays, context)
        monitor.update(predictions, targets, ids=ids)
        return monitor.e_report(request.round, request.step).to_json()

    app.query("monitor")(guarded(watch))


def monitor_round(
    network: Network,
    calibration: Calibration,
    malicious: int,
    arrays: ArrayRecord | None = None,
    *,
    round: str,
    step: int = 0,
    level: int = 0,
    floor: float | None = None,
    delta: float = 0.05,
    independent: bool = False,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> Merged:
    """Ask all nodes for their wealth and merge it, when at most `malicious` of them lie.

    Ask at dates fixed beforehand, `step` their number. A node that does not answer, or not as
    asked, counts as no evidence.
    """
    expected = calibration.identity
    found = collect(
        network,
        participants(network),
        MONITOR,
        lambda client: monitor_request(
            client, calibration, round=round, step=step, floor=floor, delta=delta, level=level
        ),
        lambda body, client: read_e_reply(
            body, client, round=round, step=step, calibration=expected
        ),
        arrays=arrays,
        deadline=deadline,
        poll=poll,
    )
    return merged_replies(found.outcomes, malicious, delta=delta, independent=independent)
