"""All clients' data in one process, calibrated through Flower's messages: demo and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike

from robfcp.calibration import Calibration
from robfcp.engines import Part, SketchRequest, read_request
from robfcp.federation import Federation
from robfcp.flower.apps import client_app
from robfcp.flower.client import action
from robfcp.flower.network import InProcessNetwork
from robfcp.flower.server import calibration_round


def calibrate_in_process(
    data: Mapping[str, tuple[ArrayLike, ArrayLike]], *, rng: int | None = None, **options: Any
) -> Calibration:
    """The calibration of clients' (predictions, targets), through the apps a deployment runs.

    options: those of `calibration_round`, and with them those of `robfcp.calibrate`.
    """
    names = list(data)
    sizes = {name: len(targets) for name, (_, targets) in data.items()}  # type: ignore[arg-type]

    def outputs(
        split: Part, arrays: ArrayRecord | None, context: Context
    ) -> tuple[ArrayLike, ArrayLike]:
        return data[names[int(context.node_config["partition-id"])]]

    return _play(client_app(outputs, rng=rng), names, {"sizes": sizes, **options})


def replay_in_process(federation: Federation, **options: Any) -> Calibration:
    """The calibration of a federation's reports, each sent again by a node of its own."""

    def answer(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request = read_request(body, SketchRequest)
        report = reports[int(context.node_config["partition-id"])]
        return replace(report, round=request.round, model=request.model).to_json()

    reports = list(federation)
    app = ClientApp()
    app.query("sketch")(action(answer))
    context = {"grid": federation.grid, "score": federation.score}
    return _play(app, federation.ids, {**context, **options})


def _play(app: ClientApp, names: Sequence[str], options: dict[str, Any]) -> Calibration:
    configs = [{"partition-id": k, "num-partitions": len(names)} for k in range(len(names))]
    network = InProcessNetwork(app, configs, names=names)
    return calibration_round(network, **{"check": False, **options})
