"""Calibration rounds on Flower. A thin adapter, no mathematics in it.

`add_calibration` teaches any ClientApp to answer, `calibration_round` asks after any strategy;
`client_app` and `server_app` are ready ones, and `InProcessNetwork` runs them without Ray.
Flower's own `Grid` is called `network` here, so that `grid` keeps one meaning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import RobfcpError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid as Network
    from flwr.serverapp import ServerApp
except ModuleNotFoundError as error:
    raise RobfcpError("flower: flwr is not installed; pip install 'robfcp[flower]'") from error

from robfcp.calibration import Calibration
from robfcp.engines import server
from robfcp.engines.flower_network import RUN_ID, TROUBLE, InProcessNetwork, nodes_of
from robfcp.engines.protocol import RECORD, Outcome, Participant, ReportRequest, read_request
from robfcp.engines.site import Part, Site, SiteRules, reply_to
from robfcp.federation import Federation
from robfcp.monitoring import Merged

__all__ = [
    "InProcessNetwork",
    "add_calibration",
    "calibrate_in_process",
    "calibration_round",
    "client_app",
    "monitor_round",
    "register_sizes",
    "run_in_process",
    "send_letters",
    "server_app",
]

NodeOutputs = Callable[[Part, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike, ArrayLike]]
NodeAttack = Callable[[NDArray[np.float64], Context], ArrayLike]

ARRAYS = "arrays"
GONE = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable
PAUSE = 0.5  # seconds between two tries to list the nodes
DEFAULTS: Mapping[str, Any] = {
    **server.DEFAULTS,
    "strategy": "fedavg",  # fedmedian, fedtrimmedavg, krum, multikrum
    "num-server-rounds": 3,
    "training-timeout": 600.0,
    "min-nodes": 2,  # wait for so many before the start, at most `deadline` seconds
}
STRATEGIES = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum")

log = logging.getLogger(__name__)


def add_calibration(
    app: ClientApp,
    outputs: NodeOutputs,
    *,
    fresh: FreshSamples | None = None,
    rng: int | None = None,
    attack: NodeAttack | None = None,
    **rules: Any,
) -> None:
    """Teach an app to take part in calibration rounds, and to watch calibrations.

    outputs(split, arrays, context): the model's predictions and the true targets on this node's
        "calibration" or "test" data; `arrays` is the received model, None for the local one.
    fresh(arrays, context): predictions, true targets and names of the samples labelled so far, for
        the monitor; those counted before are passed over.
    rng: a seed for randomised scores (joined with the node's id); fresh entropy without it.
    attack(scores, context): what a node reports instead of its scores, for simulations.
    rules: what the site allows, as `SiteRules` has it: privacy, ledger, grid, score, pooled, ...
        A site's own node config (`epsilon`, `delta`, ..., `privacy-ledger`, `privacy-grid`,
        `pooled`, `least`, `bins-per-sample`, `signing-key`, `letter-folder`, `monitor-folder`)
        goes before them. With privacy the same request is answered by the same noisy report,
        however often it comes, and questions outside the budget are not answered. What a score
        refuses counts in the top bin and every failure looks alike: let `outputs` give NaN for a
        sample, not raise.
    """
    said = SiteRules(**rules)

    @app.query(RECORD)
    def act(message: Message, context: Context) -> Message:
        arrays = message.content.get(ARRAYS)

        def site() -> Site:
            empty = ConfigRecord({"request": b"", "report": b""})
            return Site(
                said.with_config(context.node_config),
                lambda part: outputs(part, arrays, context),
                None if fresh is None else lambda: fresh(arrays, context),
                model=digest_of(arrays),
                memory=context.state.setdefault(RECORD, empty),
                seed=None if rng is None else [rng, context.node_id],
                attack=None if attack is None else lambda scores: attack(scores, context),
            )

        return _reply(message, reply_to(message.content.get(RECORD), site))


def _reply(message: Message, record: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(record)}), reply_to=message)


def digest_of(arrays: ArrayRecord | None) -> str | None:
    """The model's digest; None where there is none."""
    if arrays is None:
        return None
    return server.model_digest(
        (f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}", array.data)
        for name, array in arrays.items()
    )


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

        @app.train()
        def act(message: Message, context: Context) -> Message:
            try:
                return train(message, context)
            except Exception:
                log.exception("training failed")
            raise RuntimeError("training failed at the client")  # Flower sends the text

    add_calibration(app, outputs, **options)
    return app


def server_app(initial: Callable[[Context], ArrayRecord] | None = None) -> ServerApp:
    """A ServerApp that trains from `initial` arrays, or not at all without it, and calibrates.

    Its run config may hold any of `DEFAULTS`.
    """
    app = ServerApp()

    @app.main()
    def main(network: Network, context: Context) -> None:
        arrays = None if initial is None else initial(context)
        config = {**DEFAULTS, **context.run_config}
        options = server.round_options(config)
        waiting = {"deadline": float(config["deadline"]), "poll": float(config["poll"])}
        engine = Flower(network, arrays, **waiting)
        _wait_for_nodes(engine, int(config["min-nodes"]))
        options["sizes"] = server.sizes_as_configured(engine, config)
        rounds = int(config["num-server-rounds"])
        if arrays is not None and rounds > 0:
            result = named_strategy(config).start(
                grid=network,
                initial_arrays=arrays,
                num_rounds=rounds,
                timeout=float(config["training-timeout"]),
            )
            engine = Flower(network, result.arrays, **waiting)
        options["run_id"] = context.run_id
        server.calibrate_as_configured(engine, config, **options)

    return app


def named_strategy(config: Mapping[str, Any]) -> Any:
    """The strategy the run's config names, on all nodes that are there, without evaluation."""
    from flwr.serverapp import strategy

    name, known = str(config["strategy"]), {one.lower(): one for one in STRATEGIES}
    if name not in known:
        raise RobfcpError(f"strategy: {name!r} is unknown; use {', '.join(known)}")
    liars = config["liars"] if isinstance(config["liars"], int) else 0
    options = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    if "krum" in name:
        options["num_malicious_nodes"] = liars
    if name == "multikrum":
        options["num_nodes_to_select"] = max(1, int(config["min-nodes"]) - liars)
    return getattr(strategy, known[name])(**options)


def _wait_for_nodes(engine: Flower, wanted: int) -> None:
    """Return when enough nodes are there; go on with those there are when the time is up."""
    end = time.monotonic() + engine.deadline
    while (found := len(engine.present())) < wanted:
        if time.monotonic() >= end:
            log.warning("%d of %d nodes; going on without the rest", found, wanted)
            return
        time.sleep(PAUSE)


class Flower(server.Engine):
    """Flower during a round, with the model that goes with every request."""

    def __init__(
        self,
        network: Network,
        arrays: ArrayRecord | None = None,
        *,
        deadline: float = 60.0,
        poll: float = 1.0,
    ) -> None:
        name, signatures = f"flower {version('flwr')}", "node and nonce by Flower"
        super().__init__(name, signatures, digest_of(arrays), deadline, poll)
        self.network, self.arrays = network, arrays

    def present(self) -> list[Participant]:
        """The nodes that are there; a network in trouble is asked again until the deadline."""
        end = time.monotonic() + self.deadline
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                return server.named_participants(
                    server.bounded(lambda: nodes_of(self.network), left)
                )
            except Exception as error:
                if not isinstance(error, TROUBLE) or time.monotonic() + PAUSE >= end:
                    raise RobfcpError(
                        f"network: cannot list its nodes ({type(error).__name__}); "
                        "check that the SuperLink is running"
                    ) from error
            time.sleep(PAUSE)

    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """The message's id; None where it was not taken."""
        content = RecordDict({RECORD: ConfigRecord(record)})
        if self.arrays is not None:
            content[ARRAYS] = self.arrays
        message = Message(
            content, dst_node_id=participant.node_id, message_type=f"query.{RECORD}", ttl=ttl
        )
        return next(iter(self.network.push_messages([message])), None) or None

    def receive(self, identifier: str) -> Mapping[str, Any] | server.Failed | None:
        """The reply to one message; trouble on the way is tried again at the next turn."""
        try:
            replies = list(self.network.pull_messages([identifier]))
        except TROUBLE as error:
            log.warning("receiving failed (%s)", type(error).__name__)
            return None
        if not replies:
            return None
        if not replies[0].has_content():
            code = int(replies[0].error.code)
            if code in GONE:
                reason = f"the node is unavailable (Flower's code {code})"
                return server.Failed("missing", reason)
            return server.Failed("faulty", f"the client app failed (Flower's code {code})")
        content = replies[0].content
        if len(content) != 1:
            raise RobfcpError(f"the reply holds {len(content)} records instead of 1")
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            raise RobfcpError("the reply is not of this protocol")
        return record


def register_sizes(
    network: Network, arrays: ArrayRecord | None = None, **waiting: float
) -> dict[str, int]:
    """How many calibration samples each node says it has, to be fixed before calibration.

    waiting: deadline and poll, in seconds.
    """
    return server.register_sizes(Flower(network, arrays, **waiting))


def calibration_round(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
    **options: Any,
) -> Calibration:
    """Collect the nodes' reports, calibrate, and tell the nodes the threshold.

    arrays: the trained model the nodes score with, e.g. `result.arrays`; None for their own.
    deadline: seconds for the reports and again for the nodes' own check of the threshold.
    options: those of `robfcp.engines.calibration_round` (score, grid, sizes, quorum, check, keys,
        round, run_id, invited), and with them those of `robfcp.calibrate`.
    """
    return server.calibration_round(
        Flower(network, arrays, deadline=deadline, poll=poll), **options
    )


def send_letters(
    network: Network, calibration: Calibration, *, key: Any = None, **waiting: float
) -> list[Outcome[str]]:
    """Send every node its letter, which it keeps in `letter-folder` of its node config.

    key: the server's private key to sign the letters with, if any. waiting: deadline and poll.
    """
    return server.send_letters(Flower(network, **waiting), calibration, key)


def monitor_round(
    network: Network,
    calibration: Calibration,
    liars: int,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
    **options: Any,
) -> Merged:
    """Ask all nodes how strong their alarms are and merge them, when at most `liars` lie.

    options: those of `robfcp.engines.monitor_round`: round (a name), step (the number of the date,
        fixed beforehand), level, floor, delta, independent, history.
    """
    engine = Flower(network, arrays, deadline=deadline, poll=poll)
    return server.monitor_round(engine, calibration, liars, **options)


def run_in_process(
    app: ServerApp,
    client: ClientApp,
    node_configs: Sequence[Mapping[str, Any]],
    run_config: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Run a ServerApp with its ClientApps in this process, as `flwr run` would on many."""
    network = InProcessNetwork(client, node_configs, run_config, names)
    app(network, Context(RUN_ID, 0, {}, RecordDict(), dict(run_config or {})))


def calibrate_in_process(
    data: Mapping[str, tuple[ArrayLike, ArrayLike]] | Federation,
    *,
    rng: int | None = None,
    **options: Any,
) -> Calibration:
    """The calibration of clients' (predictions, targets), through the apps a deployment runs.

    data: or a federation, of which each report is sent again by a node of its own.
    options: those of `calibration_round`, and with them those of `robfcp.calibrate`.
    """
    if isinstance(data, Federation):
        names, reports = list(data.ids), list(data)
        options = {"grid": data.grid, "score": data.score, **options}
        app = ClientApp()

        @app.query(RECORD)
        def again(message: Message, context: Context) -> Message:
            record = message.content[RECORD]
            asked = read_request(record["body"])
            assert isinstance(asked, ReportRequest)
            report = replace(reports[context.node_id - 1], round=asked.round, model=asked.model)
            return _reply(message, {"nonce": record["nonce"], "body": report.to_json()})

    else:
        names = list(data)
        sizes = {name: len(np.asarray(targets)) for name, (_, targets) in data.items()}
        options = {"sizes": sizes, **options}
        app = client_app(lambda part, arrays, node: data[names[node.node_id - 1]], rng=rng)
    network: Any = InProcessNetwork(app, [{}] * len(names), names=names)
    return calibration_round(network, **{"check": False, **options})
