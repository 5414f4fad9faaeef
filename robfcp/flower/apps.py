"""Ready apps: train with a strategy of Flower's, then calibrate, all from the run's config."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from robfcp import engines
from robfcp.calibration import Calibration
from robfcp.engines import bounded, calibrate_as_configured, check_config, sizes_as_configured
from robfcp.errors import RobfcpError
from robfcp.flower._flwr import nodes_of
from robfcp.flower.client import NodeOutputs, add_calibration
from robfcp.flower.collector import engine_of
from robfcp.flower.network import Network

DEFAULTS: Mapping[str, Any] = {
    **engines.DEFAULTS,
    "strategy": "fedavg",  # fedmedian, fedtrimmedavg, krum, multikrum
    "num-server-rounds": 3,
    "training-timeout": 600.0,
    "min-nodes": 2,  # wait for so many before the start, at most `deadline` seconds
}

log = logging.getLogger(__name__)


def client_app(
    outputs: NodeOutputs,
    train: Callable[[Message, Context], Message] | None = None,
    **options: Any,
) -> ClientApp:
    """A ClientApp that trains (where `train` is given) and takes part in calibration rounds.

    options: those of `add_calibration`.
    """
    app = ClientApp()
    if train is not None:
        app.train()(_discreet(train))
    add_calibration(app, outputs, **options)
    return app


def _discreet(train: Callable[[Message, Context], Message]) -> Callable[..., Message]:
    """The same training, whose exceptions do not travel: Flower would send their text."""

    def act(message: Message, context: Context) -> Message:
        try:
            return train(message, context)
        except Exception:
            log.exception("training failed")
        raise RuntimeError("training failed at the client")

    return act


def server_app(initial: Callable[[Context], ArrayRecord] | None = None) -> ServerApp:
    """A ServerApp that trains from `initial` arrays, or not at all without it, and calibrates.

    Its run config may hold any of `DEFAULTS`.
    """
    app = ServerApp()

    def main(network: Any, context: Context) -> None:
        run_calibrated(network, context, None if initial is None else initial(context))

    app.main()(main)
    return app


def run_calibrated(network: Any, context: Context, arrays: ArrayRecord | None) -> Calibration:
    """Register sizes, train, calibrate and write the calibration, as the run's config says."""
    config = {**DEFAULTS, **context.run_config}
    check_config(config)
    waiting = {"deadline": float(config["deadline"]), "poll": float(config["poll"])}
    _wait_for_nodes(network, int(config["min-nodes"]), waiting["deadline"])
    sizes = sizes_as_configured(engine_of(network, arrays, **waiting), config)
    rounds = int(config["num-server-rounds"])
    if arrays is not None and rounds > 0:
        result = named_strategy(config).start(
            grid=network,
            initial_arrays=arrays,
            num_rounds=rounds,
            timeout=float(config["training-timeout"]),
        )
        arrays = result.arrays
    trained = engine_of(network, arrays, **waiting)
    return calibrate_as_configured(trained, config, sizes, context.run_id)


def named_strategy(config: Mapping[str, Any]) -> Any:
    """The strategy the run's config names, on all nodes that are there, without evaluation."""
    from flwr.serverapp import strategy

    common: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": 1,
        "min_available_nodes": 1,
    }
    liars = config["malicious"] if isinstance(config["malicious"], int) else 0
    name = str(config["strategy"])
    if name == "fedavg":
        return strategy.FedAvg(**common)
    if name == "fedmedian":
        return strategy.FedMedian(**common)
    if name == "fedtrimmedavg":
        return strategy.FedTrimmedAvg(**common)
    if name == "krum":
        return strategy.Krum(num_malicious_nodes=liars, **common)
    if name == "multikrum":
        keep = max(1, int(config["min-nodes"]) - liars)
        return strategy.MultiKrum(num_malicious_nodes=liars, num_nodes_to_select=keep, **common)
    raise RobfcpError(
        f"strategy: {name!r} is unknown; use fedavg, fedmedian, fedtrimmedavg, krum or multikrum"
    )


def _wait_for_nodes(network: Network, wanted: int, deadline: float) -> None:
    """Return when enough nodes are there; go on with those there are when the time is up."""
    end = time.monotonic() + deadline
    while (found := _number_of_nodes(network)) < wanted:
        if time.monotonic() >= end:
            log.warning(
                "%d of %d nodes after %g s; going on without the rest", found, wanted, deadline
            )
            return
        time.sleep(0.5)


def _number_of_nodes(network: Network) -> int:
    """How many nodes are there; none where the network does not say."""
    return len(bounded(lambda: nodes_of(network), 10.0).value or ())
