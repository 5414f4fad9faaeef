"""All clients' data in one process, calibrated through Flower's messages: demo and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Context
from numpy.typing import ArrayLike

from robfcp.calibration import Calibration
from robfcp.flower.apps import client_app
from robfcp.flower.client import Split
from robfcp.flower.network import InProcessNetwork
from robfcp.flower.server import calibration_round


def calibrate_in_process(
    data: Mapping[str, tuple[ArrayLike, ArrayLike]], *, rng: int | None = None, **options: Any
) -> Calibration:
    """The calibration of clients' (predictions, targets), through the apps a deployment runs.

    options: those of `calibration_round`, and with them those of `robfcp.calibrate`.
    """
    names = list(data)

    def outputs(
        split: Split, arrays: ArrayRecord | None, context: Context
    ) -> tuple[ArrayLike, ArrayLike]:
        return data[names[int(context.node_config["partition-id"])]]

    network = InProcessNetwork(
        client_app(outputs, rng=rng),
        [{"partition-id": k, "num-partitions": len(names)} for k in range(len(names))],
        names=names,
    )
    sizes = {name: len(targets) for name, (_, targets) in data.items()}  # type: ignore[arg-type]
    return calibration_round(network, **{"sizes": sizes, "check": False, **options})
