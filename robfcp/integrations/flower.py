"""Calibration rounds on Flower. A thin adapter, no mathematics in it.

`add_calibration` teaches any ClientApp to answer; `robfcp.integrations.run_calibration_round` asks
over a `FlowerTransport` after any strategy. `make_client_app` and `make_server_app` make
ready ones, and `InProcessGrid` runs them without Ray.
Flower's own `Grid` is called `network` here, so that `grid` keeps one meaning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import RobfcpError

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid as Network
    from flwr.serverapp import ServerApp
except ModuleNotFoundError as error:
    raise RobfcpError("flower: flwr is not installed; pip install 'robfcp[flower]'") from error

from robfcp.calibration import Calibration
from robfcp.federation import Federation
from robfcp.integrations import _server
from robfcp.integrations._messages import RECORD, Participant, read_request
from robfcp.integrations.client import ClientPolicy, ClientRequestHandler, Part, handle_message

__all__ = [
    "FlowerTransport",
    "InProcessGrid",
    "add_calibration",
    "make_client_app",
    "make_server_app",
    "run_in_process",
    "simulate_round",
]

NodeOutputs = Callable[[Part, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike, ArrayLike]]
NodeAttack = Callable[[NDArray[np.float64], Context], ArrayLike]

ARRAYS = "arrays"
NODE_GONE_CODES = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable
DEFAULTS: Mapping[str, Any] = {
    **_server.DEFAULTS,
    "strategy": "fedavg",  # fedmedian, fedtrimmedavg, krum, multikrum
    "num-server-rounds": 3,
    "training-timeout": 600.0,
}
STRATEGIES = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum")

APP_RAISED = 2  # Flower's code for a ClientApp that raised
RUN_ID = 1
TRANSPORT_ERRORS: tuple[type[Exception], ...] = (
    OSError,
)  # a network that may work again a moment later
for _module, _error in (("httpx", "HTTPError"), ("grpc", "RpcError")):
    with suppress(ModuleNotFoundError):
        TRANSPORT_ERRORS += (getattr(import_module(_module), _error),)

log = logging.getLogger(__name__)


def add_calibration(
    app: ClientApp,
    predict_fn: NodeOutputs,
    *,
    fresh_data_fn: FreshSamples | None = None,
    rng: int | None = None,
    attack: NodeAttack | None = None,
    **rules: Any,
) -> None:
    """Teach an app to take part in calibration rounds, and to watch calibrations.

    predict_fn(split, arrays, context): the model's predictions and the true targets on this node's
        "calibration" or "test" data; `arrays` is the received model, None for the local one.
    fresh_data_fn(arrays, context): predictions, true targets and names of the samples labelled so
        far, for the monitor; those counted before are passed over.
    rng: a seed for randomised scores (joined with the node's id); fresh entropy without it.
    attack(scores, context): what a node reports instead of its scores, for simulations.
    rules: what the site allows, as `ClientPolicy` has it: privacy, ledger, grid, score, pooled, ...
        A site's own node config (`epsilon`, `delta`, ..., `privacy-ledger`, `privacy-grid`,
        `pooled`, `least`, `fine`, `signing-key`, `letter-folder`, `monitor-folder`)
        goes before them. With privacy the same request is answered by the same noisy report,
        however often it comes, and questions outside the budget are not answered. What a score
        refuses counts in the top bin and every failure looks alike: let `predict_fn` give NaN for a
        sample, not raise.
    """
    said = ClientPolicy(**rules)

    @app.query(RECORD)
    def act(message: Message, context: Context) -> Message:
        arrays = message.content.get(ARRAYS)

        def site() -> ClientRequestHandler:
            empty = ConfigRecord({"request": b"", "report": b""})
            return ClientRequestHandler(
                said.with_config(context.node_config),
                predict_fn,
                fresh_data_fn,
                (arrays, context),
                model=model_digest(arrays),
                cache=context.state.setdefault(RECORD, empty),
                seed=None if rng is None else [rng, context.node_id],
                attack=None if attack is None else lambda scores: attack(scores, context),
            )

        return _reply(message, handle_message(message.content.get(RECORD), site))


def _reply(message: Message, record: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(record)}), reply_to=message)


def model_digest(arrays: ArrayRecord | None) -> str | None:
    """The model's digest; None where there is none."""
    if arrays is None:
        return None
    return _server.model_digest(
        (f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}", array.data)
        for name, array in arrays.items()
    )


def make_client_app(
    predict_fn: NodeOutputs,
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

    add_calibration(app, predict_fn, **options)
    return app


def make_server_app(initial: Callable[[Context], ArrayRecord] | None = None) -> ServerApp:
    """A ServerApp that trains from `initial` arrays, or not at all without it, and calibrates.

    Its run config may hold any of `DEFAULTS`.
    """
    app = ServerApp()

    @app.main()
    def main(network: Network, context: Context) -> None:
        arrays = None if initial is None else initial(context)
        config = {**DEFAULTS, **context.run_config}
        rounds = int(config["num-server-rounds"])
        waiting = {word: float(config[word]) for word in ("deadline", "poll")}
        engine = FlowerTransport(network, arrays, **waiting)

        def train() -> None:
            if arrays is not None and rounds > 0:
                result = get_strategy(config).start(
                    grid=network,
                    initial_arrays=arrays,
                    num_rounds=rounds,
                    timeout=float(config["training-timeout"]),
                )
                engine.load(result.arrays)

        _server.run_configured_round(engine, config, context.run_id, train)

    return app


def get_strategy(config: Mapping[str, Any]) -> Any:
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


class FlowerTransport(_server.Transport):
    """Flower during a round; `network` is what Flower calls `grid`.

    arrays: the model the nodes score with, e.g. `result.arrays` of a strategy; None for their own.
    deadline: seconds for every question to all of them. poll: seconds between two looks.
    """

    def __init__(
        self,
        network: Network,
        arrays: ArrayRecord | None = None,
        *,
        deadline: float = 60.0,
        poll: float = 1.0,
    ) -> None:
        name, signatures = f"flower {version('flwr')}", "node and nonce by Flower"
        super().__init__(name, signatures, deadline, poll)
        self.grid = network
        self.load(arrays)

    def load(self, arrays: ArrayRecord | None) -> None:
        """Let this model go with the requests from now on."""
        self.arrays, self.model = arrays, model_digest(arrays)

    def present(self) -> list[Participant]:
        """The nodes that are there; a network in trouble is asked again until the deadline."""
        end = time.monotonic() + self.deadline
        while True:
            try:
                left = max(0.1, end - time.monotonic())
                return _server.resolve_participants(_server.call_with_timeout(self._nodes, left))
            except Exception as error:
                if (
                    not isinstance(error, TRANSPORT_ERRORS)
                    or time.monotonic() + _server.POLL_PAUSE_SECONDS >= end
                ):
                    raise RobfcpError(
                        f"network: cannot list its nodes ({type(error).__name__}); "
                        "check that the SuperLink is running"
                    ) from error
            time.sleep(_server.POLL_PAUSE_SECONDS)

    def _nodes(self) -> list[tuple[int, str, bytes]]:
        """Number, registered name and public key, as far as this version of flwr tells."""
        if not hasattr(self.grid, "get_nodes"):
            return [(int(node_id), "", b"") for node_id in self.grid.get_node_ids()]
        found = []
        for node in self.grid.get_nodes():
            key = getattr(node, "public_key", b"")
            key = key.encode() if isinstance(key, str) else bytes(key)
            found.append((int(node.node_id), str(getattr(node, "name", "") or ""), key))
        return found

    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """The message's id; None where it was not taken."""
        content = RecordDict({RECORD: ConfigRecord(record)})
        if self.arrays is not None:
            content[ARRAYS] = self.arrays
        message = Message(
            content, dst_node_id=participant.node_id, message_type=f"query.{RECORD}", ttl=ttl
        )
        return next(iter(self.grid.push_messages([message])), None) or None

    def receive(self, identifier: str) -> Mapping[str, Any] | _server.FailedReply | None:
        """The reply to one message; trouble on the way is tried again at the next turn."""
        try:
            replies = list(self.grid.pull_messages([identifier]))
        except TRANSPORT_ERRORS as error:
            log.warning("receiving failed (%s)", type(error).__name__)
            return None
        if not replies:
            return None
        if not replies[0].has_content():
            code = int(replies[0].error.code)
            if code in NODE_GONE_CODES:
                return _server.FailedReply(
                    "missing", f"the node is unavailable (Flower's code {code})"
                )
            return _server.FailedReply("faulty", f"the client app failed (Flower's code {code})")
        content = replies[0].content
        if len(content) != 1 or not isinstance(record := content.get(RECORD), ConfigRecord):
            raise RobfcpError(f"the reply of {len(content)} records is not of this protocol")
        return record


class InProcessGrid:
    """Runs one ClientApp for every node in this process; messages are answered when pushed.

    node_configs: what each node's `context.node_config` holds. names: the registered names; if None
    those of the partitions, where configs name them.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        parts = (config.get("partition-id", "") for config in node_configs)
        own = [f"partition-{part}" if part != "" else "" for part in parts]
        self._names = own if names is None else list(names)
        self._contexts = {
            node_id: Context(RUN_ID, node_id, dict(config), RecordDict(), dict(run_config or {}))
            for node_id, config in enumerate(node_configs, start=1)
        }
        self._replies: dict[str, Message] = {}
        self._numbers = count(1)  # two rounds at once do not share one
        self.run = import_module("flwr.supercore.run").Run.create_empty(RUN_ID)
        with suppress(ModuleNotFoundError):  # flwr from 1.34 on wants to know whose process it is
            identity = import_module("flwr.supercore.task_identity").TaskIdentity
            if identity._run_id is None:
                identity.run_id, identity.task_id, identity.node_id = RUN_ID, 1, 1

    def set_run(self, run: Any) -> None:
        """Set the run information."""
        self.run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, **ttl: Any
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, **ttl)

    def get_node_ids(self) -> list[int]:
        """All nodes' ids."""
        return list(self._contexts)

    def get_nodes(self) -> list[SimpleNamespace]:
        """All nodes, with the names they were registered under."""
        return [SimpleNamespace(node_id=k, name=one) for k, one in enumerate(self._names, 1)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer each message; the ids to pull the replies by."""
        identifiers = []
        for message in messages:
            identifier = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identifier
            identifiers.append(identifier)
            self.deliver(message)
        return identifiers

    def deliver(self, message: Message) -> None:
        """Run the app on a message and keep its reply."""
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(APP_RAISED, str(error)), reply_to=message)
        self.answer(message.metadata.message_id, reply)

    def answer(self, message_id: str, reply: Message) -> None:
        """Keep a reply; a second one is dropped."""
        self._replies.setdefault(message_id, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that are there."""
        found = (self._replies.pop(message_id, None) for message_id in list(message_ids))
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push and pull: everybody answers at once."""
        return self.pull_messages(self.push_messages(messages))


def run_in_process(
    app: ServerApp,
    client: ClientApp,
    node_configs: Sequence[Mapping[str, Any]],
    run_config: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Run a ServerApp with its ClientApps in this process, as `flwr run` would on many."""
    network = InProcessGrid(client, node_configs, run_config, names)
    app(network, Context(RUN_ID, 0, {}, RecordDict(), dict(run_config or {})))


def simulate_round(federation: Federation, **options: Any) -> Calibration:
    """The calibration of a federation of which each report is sent again by a node of its own.

    options: those of `robfcp.integrations.run_calibration_round`, and with them those of
    `robfcp.calibrate`.
    """
    reports, app = list(federation), ClientApp()

    @app.query(RECORD)
    def again(message: Message, context: Context) -> Message:
        record = message.content[RECORD]
        asked: Any = read_request(record["body"])
        report = replace(reports[context.node_id - 1], round=asked.round, model=asked.model)
        return _reply(message, {"nonce": record["nonce"], "body": report.to_json()})

    network: Any = InProcessGrid(app, [{}] * len(reports), names=federation.clients)
    known = {"binning": federation.binning, "score": federation.score, "evaluate": False}
    return _server.run_calibration_round(FlowerTransport(network), **{**known, **options})
