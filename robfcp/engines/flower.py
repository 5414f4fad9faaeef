"""The engine: calibration rounds on Flower. A thin adapter, no mathematics in it.

`add_calibration` teaches any ClientApp to answer, `calibration_round` asks after any strategy;
`client_app` and `server_app` are ready ones, and `InProcessNetwork` runs them without Ray.
Flower's own `Grid` is called `network` here, so that `grid` keeps one meaning.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from numpy.typing import ArrayLike, NDArray

from robfcp import engines
from robfcp.calibration import Calibration
from robfcp.engines import (
    Kind,
    Outcome,
    Part,
    Question,
    SiteRules,
    SketchRequest,
    answer,
    bounded,
    calibrate_as_configured,
    check_config,
    check_ledger,
    guarded_reply,
    read_request,
    sizes_as_configured,
)
from robfcp.engines.flower_network import (
    RECORD,
    InProcessNetwork,
    Network,
    digest_of,
    engine_of,
    nodes_of,
    open_request,
    run_in_process,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.monitoring import Merged
from robfcp.privacy import Privacy
from robfcp.scores import Score

__all__ = [
    "InProcessNetwork",
    "add_calibration",
    "add_monitor",
    "calibrate_in_process",
    "calibration_round",
    "client_app",
    "monitor_round",
    "register_sizes",
    "replay_in_process",
    "run_in_process",
    "send_letters",
    "server_app",
]

NodeOutputs = Callable[[Part, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike, ArrayLike]]
Attack = Callable[[NDArray[np.float64], Context], ArrayLike]
Answer = Callable[[bytes, ArrayRecord | None, Context], bytes]


def add_calibration(
    app: ClientApp,
    outputs: NodeOutputs,
    *,
    rng: int | None = None,
    attack: Attack | None = None,
    privacy: Privacy | None = None,
    ledger: str | os.PathLike[str] | None = None,
    dataset: str | None = None,
    grid: Grid | None = None,
    score: Score | None = None,
) -> None:
    """Teach an app to take part in calibration rounds.

    outputs(split, arrays, context): the model's predictions and the true targets on this node's
        "calibration" or "test" data; `arrays` is the received model, None for the local one.
    rng: a seed for randomised scores (joined with the node's id); fresh entropy without it.
    attack(scores, context): what a node sketches instead of its scores, for simulations.
    privacy: adds noise to the sketch; the same request is then answered by the same noisy report,
        however often it comes, and questions outside the budget are not answered. A site's own
        node config (`epsilon`, `delta`, ..., `privacy-ledger`, `privacy-dataset`, `privacy-grid`,
        `privacy-score`, `privacy-samples`) goes before it. What a score refuses counts in the top
        bin and every failure looks alike: let `outputs` give NaN for a sample, not raise.
    ledger: the file in which this site records what it has spent; privacy needs one.
    dataset: the name of the calibration data, which the ledger is bound to.
    grid, score: the only ones this site reports on; any the server asks for where None.
    Counts are kept by class, unless the node config says `pooled`; with `least` thin classes are
    merged, and with `bins-per-sample` too fine a grid is refused. Its `signing-key` signs the
    reports, and its `letter-folder` is where letters are kept.
    """
    site = SiteRules(privacy, ledger, dataset, grid, score)
    check_ledger(privacy, ledger)

    def ask(kind: Kind, body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        empty = ConfigRecord({"request": b"", "report": b""})
        question = Question(
            body,
            lambda part: outputs(part, arrays, context),
            config=context.node_config,
            model=digest_of(arrays),
            memory=context.state.setdefault(RECORD, empty),
            seed=None if rng is None else [rng, context.node_id],
            attack=None if attack is None else lambda scores: attack(scores, context),
        )
        return answer(kind, site, question)

    for kind in get_args(Kind):
        if kind != "monitor":
            app.query(kind)(action(partial(ask, kind)))


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
    privacy: a site that states a budget does not answer: alarms tell of its samples.
    """

    def watch(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        config: dict[str, Any] = {"monitor-folder": folder, **context.node_config}
        question = Question(body, fresh=lambda: fresh(arrays, context), config=config)
        return answer("monitor", SiteRules(privacy), question)

    app.query("monitor")(action(watch))


def action(answer: Answer) -> Callable[[Message, Context], Message]:
    """An action that echoes the nonce and turns every exception into a generic code."""

    def act(message: Message, context: Context) -> Message:
        def opened() -> tuple[str, Callable[[], bytes]]:
            nonce, body, arrays = open_request(message.content)
            return nonce, lambda: answer(body, arrays, context)

        record = ConfigRecord(guarded_reply(opened))
        return Message(RecordDict({RECORD: record}), reply_to=message)

    return act


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


def register_sizes(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> dict[str, int]:
    """How many calibration samples each node says it has, to be fixed before calibration."""
    return engines.register_sizes(engine_of(network, arrays, deadline=deadline, poll=poll))


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
    keys: Mapping[str, str] | None = None,
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
    keys: the public keys by which the reports must be signed, beside Flower's own authentication.
    invited: the names of all registered nodes, so that those offline now are listed as missing;
        Flower tells an app only of the nodes that are online.
    options: those of `robfcp.calibrate` (confidence_level, defence, malicious, guarantee, ...).
    The calibration's `provenance` holds the run and what every client did.
    """
    return engines.calibration_round(
        engine_of(network, arrays, deadline=deadline, poll=poll),
        score=score,
        grid=grid,
        sizes=sizes,
        quorum=quorum,
        check=check,
        keys=keys,
        round=round,
        run_id=run_id,
        invited=invited,
        **options,
    )


def send_letters(
    network: Network,
    calibration: Calibration,
    *,
    key: Any = None,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> list[Outcome[str]]:
    """Send every node its letter, which it keeps in `letter-folder` of its node config.

    key: the server's private key to sign the letters with, if any.
    """
    return engines.send_letters(engine_of(network, deadline=deadline, poll=poll), calibration, key)


def monitor_round(
    network: Network,
    calibration: Calibration,
    malicious: int,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
    **options: Any,
) -> Merged:
    """Ask all nodes for their alarms and merge them, when at most `malicious` of them lie.

    options: round (a name), step (the number of the date, fixed beforehand), level, floor, delta
        and independent, as the monitor has them; history, a file that keeps every date.
    A node that does not answer, or not as asked, counts as no evidence.
    """
    return engines.monitor_round(
        engine_of(network, arrays, deadline=deadline, poll=poll), calibration, malicious, **options
    )


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
