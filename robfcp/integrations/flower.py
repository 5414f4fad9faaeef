"""Calibration rounds on Flower. A thin adapter, no mathematics in it.

`add_calibration` makes any ClientApp answer; `robfcp.integrations.run_calibration_round` asks
over a `FlowerTransport` after any strategy. `make_client_app` and `make_server_app` make complete
apps, and `InProcessGrid` runs them without Ray. A `Grid` is Flower's message layer.
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
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError as error:
    raise RobfcpError("flower: flwr is not installed; pip install 'robfcp[flower]'") from error

from robfcp.calibration import Calibration
from robfcp.federation import Federation
from robfcp.integrations import _configuration
from robfcp.integrations._configuration import run_configured_round
from robfcp.integrations._keys import CONFIG_SYNONYMS, warn_of_synonyms
from robfcp.integrations._messages import RECORD, Participant, read_request
from robfcp.integrations._requests import (
    POLL_PAUSE_SECONDS,
    FailedReply,
    Transport,
    resolve_participants,
)
from robfcp.integrations._requests import model_digest as digest_of_arrays
from robfcp.integrations._round import run_calibration_round
from robfcp.integrations._workers import call_with_timeout
from robfcp.integrations.client import (
    Attack,
    ClientPolicy,
    ClientRequestHandler,
    DataSplit,
    handle_message,
)

__all__ = [
    "FlowerTransport",
    "InProcessGrid",
    "add_calibration",
    "make_client_app",
    "make_server_app",
    "run_in_process",
    "simulate_round",
]

NodeOutputs = Callable[[DataSplit, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike, ArrayLike]]
NodeAttack = Callable[[NDArray[np.float64], Context], ArrayLike]

ARRAYS = "arrays"
NODE_GONE_CODES = (3, 4, 5)  # Flower's codes for messages and nodes that are unavailable
DEFAULTS: Mapping[str, Any] = {
    **_configuration.DEFAULTS,
    "strategy": "fedavg",  # fedmedian, fedtrimmedavg, krum, multikrum
    "num-server-rounds": 3,
    "training-timeout": 600.0,
}
STRATEGIES = ("FedAvg", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum")

APP_RAISED = 2  # Flower's code for a ClientApp that raised
RUN_ID = 1
MIN_LISTING_SECONDS = 0.1  # seconds that a grid always has to list its nodes

log = logging.getLogger(__name__)


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a network failure that may be temporary."""
    errors: list[type[Exception]] = [OSError]
    for library, name in (("httpx", "HTTPError"), ("grpc", "RpcError")):
        with suppress(ModuleNotFoundError):
            errors.append(getattr(import_module(library), name))
    return tuple(errors)


TRANSPORT_ERRORS = _transport_errors()


def add_calibration(
    app: ClientApp,
    predict_fn: NodeOutputs,
    *,
    fresh_data_fn: FreshSamples | None = None,
    rng: int | None = None,
    attack: NodeAttack | None = None,
    **policy_fields: Any,
) -> None:
    """Make an app take part in calibration rounds, and monitor calibrations.

    Parameters
    ----------
    app : ClientApp
        Any client app of Flower.
    predict_fn : callable
        ``predict_fn(split, arrays, context)`` is the model's predictions and the true targets on
        this node's "calibration" or "test" data; `arrays` is the received model, None for the local
        one.
    fresh_data_fn : callable, optional
        ``fresh_data_fn(arrays, context)`` is predictions, true targets and names of the samples
        labeled so far, for the monitor; samples that it has counted already are skipped.
    rng : int, optional
        A seed for randomized scores (combined with the node's id); random if None.
    attack : callable, optional
        ``attack(scores, context)`` is what a node reports instead of its scores, for simulations.
    **policy_fields
        Fields of `ClientPolicy`: privacy, ledger, binning, score, stratify_by_class, ...

    Notes
    -----
    The client's node config (`dp-epsilon`, `dp-delta`, ..., `privacy-ledger`, `privacy-binning`,
    `stratify-by-class`, `min-class-count`, `min-cell-count`, `signing-key`, `feedback-dir`,
    `monitor-dir`) takes precedence over `policy_fields`. With privacy a repeated request is
    answered by the same noisy report, and requests outside the budget are not answered. Samples
    that a score refuses count in the top bin, and all failures give the same code: let `predict_fn`
    return NaN for such a sample and not raise.
    """
    policy = ClientPolicy(**policy_fields)

    @app.query(RECORD)
    def answer(message: Message, context: Context) -> Message:
        arrays = message.content.get(ARRAYS)

        def make_handler() -> ClientRequestHandler:
            empty_cache = ConfigRecord({"request": b"", "report": b""})
            return ClientRequestHandler(
                policy.with_config(context.node_config),
                predict_fn,
                fresh_data_fn,
                (arrays, context),
                model=model_digest(arrays),
                cache=context.state.setdefault(RECORD, empty_cache),
                seed=None if rng is None else [rng, context.node_id],
                attack=_attack_at_node(attack, context),
            )

        return _reply(message, handle_message(message.content.get(RECORD), make_handler))


def _attack_at_node(attack: NodeAttack | None, context: Context) -> Attack | None:
    """Return the attack as a function of a node's scores only."""
    if attack is None:
        return None

    def attack_scores(scores: NDArray[np.float64]) -> ArrayLike:
        return attack(scores, context)

    return attack_scores


def _reply(message: Message, record: dict[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(record)}), reply_to=message)


def model_digest(arrays: ArrayRecord | None) -> str | None:
    """Return the model's digest; None if there is no model."""
    if arrays is None:
        return None
    described_arrays = []
    for name, array in arrays.items():
        description = f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}"
        described_arrays.append((description, array.data))
    return digest_of_arrays(described_arrays)


def make_client_app(
    predict_fn: NodeOutputs,
    train: Callable[[Message, Context], Message] | None = None,
    **options: Any,
) -> ClientApp:
    """Make a ClientApp that trains (if `train` is given) and takes part in calibration rounds.

    Parameters
    ----------
    predict_fn : callable
        As `add_calibration` takes it.
    train : callable, optional
        Answers a training message.
    **options
        Those of `add_calibration`.

    Returns
    -------
    ClientApp
    """
    app = ClientApp()
    if train is not None:

        @app.train()
        def train_safely(message: Message, context: Context) -> Message:
            try:
                return train(message, context)
            except Exception:
                log.exception("training failed")
            # Flower sends the text of an exception: it must not hold any of the client's data.
            raise RuntimeError("training failed at the client")

    add_calibration(app, predict_fn, **options)
    return app


def make_server_app(initial: Callable[[Context], ArrayRecord] | None = None) -> ServerApp:
    """Make a ServerApp that trains and calibrates.

    Its run config may hold any of `DEFAULTS`.

    Parameters
    ----------
    initial : callable, optional
        ``initial(context)`` is the model that training begins with; no training if None.

    Returns
    -------
    ServerApp
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = None if initial is None else initial(context)
        warn_of_synonyms(context.run_config, list(DEFAULTS), CONFIG_SYNONYMS)
        config = {**DEFAULTS, **context.run_config}
        n_rounds = int(config["num-server-rounds"])
        transport = FlowerTransport(
            grid, arrays, deadline=float(config["deadline"]), poll=float(config["poll"])
        )

        def train() -> None:
            if arrays is None or n_rounds <= 0:
                return
            result = get_strategy(config).start(
                grid=grid,
                initial_arrays=arrays,
                num_rounds=n_rounds,
                timeout=float(config["training-timeout"]),
            )
            transport.load(result.arrays)

        run_configured_round(transport, config, context.run_id, train)

    return app


def get_strategy(config: Mapping[str, Any]) -> Any:
    """Return the strategy that the run config names, on all connected nodes, without evaluation."""
    from flwr.serverapp import strategy

    name = str(config["strategy"])
    class_names = {class_name.lower(): class_name for class_name in STRATEGIES}
    if name not in class_names:
        raise RobfcpError(f"strategy: {name!r} is unknown; use {', '.join(class_names)}")

    max_malicious = config["max-malicious"] if isinstance(config["max-malicious"], int) else 0
    options = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    if "krum" in name:
        options["num_malicious_nodes"] = max_malicious
    if name == "multikrum":
        options["num_nodes_to_select"] = max(1, int(config["min-clients"]) - max_malicious)
    return getattr(strategy, class_names[name])(**options)


class FlowerTransport(Transport):
    """Flower during a round.

    Parameters
    ----------
    grid : Grid
        Flower's message layer.
    arrays : ArrayRecord, optional
        The model that the nodes score with, e.g. `result.arrays` of a strategy; None for theirs.
    deadline : float
        Seconds that all nodes together have for every request.
    poll : float
        Seconds between two polls.
    """

    def __init__(
        self,
        grid: Grid,
        arrays: ArrayRecord | None = None,
        *,
        deadline: float = 60.0,
        poll: float = 1.0,
    ) -> None:
        super().__init__(f"flower {version('flwr')}", "node and nonce by Flower", deadline, poll)
        self.grid = grid
        self.load(arrays)

    def load(self, arrays: ArrayRecord | None) -> None:
        """Send this model with all later requests."""
        self.arrays = arrays
        self.model = model_digest(arrays)

    def present(self) -> list[Participant]:
        """Return the connected nodes; a network that fails is asked again until the deadline."""
        end = time.monotonic() + self.deadline
        while True:
            try:
                seconds_left = max(MIN_LISTING_SECONDS, end - time.monotonic())
                return resolve_participants(call_with_timeout(self._nodes, seconds_left))
            except Exception as error:
                may_work_again = isinstance(error, TRANSPORT_ERRORS)
                if not may_work_again or time.monotonic() + POLL_PAUSE_SECONDS >= end:
                    raise RobfcpError(
                        f"network: cannot list its nodes ({type(error).__name__}); "
                        "check that the SuperLink is running"
                    ) from error
            time.sleep(POLL_PAUSE_SECONDS)

    def _nodes(self) -> list[tuple[int, str, bytes]]:
        """Return number, registered name and public key, as far as this flwr has them."""
        if not hasattr(self.grid, "get_nodes"):
            return [(int(node_id), "", b"") for node_id in self.grid.get_node_ids()]
        nodes = []
        for node in self.grid.get_nodes():
            name = str(getattr(node, "name", "") or "")
            public_key = getattr(node, "public_key", b"")
            if isinstance(public_key, str):
                public_key = public_key.encode()
            nodes.append((int(node.node_id), name, bytes(public_key)))
        return nodes

    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """Return the message's id; None if it was not accepted."""
        content = RecordDict({RECORD: ConfigRecord(record)})
        if self.arrays is not None:
            content[ARRAYS] = self.arrays
        message = Message(
            content, dst_node_id=participant.node_id, message_type=f"query.{RECORD}", ttl=ttl
        )
        message_ids = list(self.grid.push_messages([message]))
        if not message_ids:
            return None
        return message_ids[0] or None

    def receive(self, identifier: str) -> Mapping[str, Any] | FailedReply | None:
        """Return the reply to one message; a network failure is retried at the next poll."""
        try:
            replies = list(self.grid.pull_messages([identifier]))
        except TRANSPORT_ERRORS as error:
            log.warning("receiving failed (%s)", type(error).__name__)
            return None
        if not replies:
            return None

        reply = replies[0]
        if not reply.has_content():
            code = int(reply.error.code)
            if code in NODE_GONE_CODES:
                return FailedReply("missing", f"the node is unavailable (Flower's code {code})")
            return FailedReply("invalid", f"the client app failed (Flower's code {code})")

        record = reply.content.get(RECORD)
        if len(reply.content) != 1 or not isinstance(record, ConfigRecord):
            raise RobfcpError(f"the reply of {len(reply.content)} records is not of this protocol")
        return record


class InProcessGrid:
    """Runs one ClientApp for every node in this process; messages are answered when pushed.

    Parameters
    ----------
    app : ClientApp
        What every node runs.
    node_configs : sequence of mapping
        What each node's `context.node_config` holds.
    run_config : mapping, optional
        What every node's `context.run_config` holds.
    names : sequence of str, optional
        The registered names; if None those of the partitions, where configs name them.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        if names is None:
            names = [_partition_name(config) for config in node_configs]
        self._names = list(names)
        self._contexts = {
            node_id: Context(RUN_ID, node_id, dict(config), RecordDict(), dict(run_config or {}))
            for node_id, config in enumerate(node_configs, start=1)
        }
        self._replies: dict[str, Message] = {}
        self._message_numbers = count(1)  # two rounds at once do not share one
        self.run = import_module("flwr.supercore.run").Run.create_empty(RUN_ID)

        # flwr from 1.34 on needs to know which task runs in this process.
        with suppress(ModuleNotFoundError):
            identity = import_module("flwr.supercore.task_identity").TaskIdentity
            if identity._run_id is None:
                identity.run_id = RUN_ID
                identity.task_id = 1
                identity.node_id = 1

    def set_run(self, run: Any) -> None:
        """Set the run information."""
        self.run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, **ttl: Any
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, **ttl)

    def get_node_ids(self) -> list[int]:
        """Return all nodes' ids."""
        return list(self._contexts)

    def get_nodes(self) -> list[SimpleNamespace]:
        """Return all nodes, with their registered names."""
        nodes = []
        for node_id, name in enumerate(self._names, start=1):
            nodes.append(SimpleNamespace(node_id=node_id, name=name))
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer each message; return the ids to pull the replies by."""
        message_ids = []
        for message in messages:
            message_id = f"message-{next(self._message_numbers)}"
            message.metadata._message_id = message_id  # as Flower does where a message is stored
            message_ids.append(message_id)
            self.deliver(message)
        return message_ids

    def deliver(self, message: Message) -> None:
        """Run the app on a message and store its reply."""
        try:
            reply = self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reply = Message(Error(APP_RAISED, str(error)), reply_to=message)
        self.answer(message.metadata.message_id, reply)

    def answer(self, message_id: str, reply: Message) -> None:
        """Store a reply; a second one is dropped."""
        self._replies.setdefault(message_id, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have arrived."""
        replies = []
        for message_id in list(message_ids):
            reply = self._replies.pop(message_id, None)
            if reply is not None:
                replies.append(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push and pull: all nodes answer immediately."""
        return self.pull_messages(self.push_messages(messages))


def _partition_name(node_config: Mapping[str, Any]) -> str:
    """Return the name of a node by its partition; empty if its config names none."""
    partition = node_config.get("partition-id", "")
    return "" if partition == "" else f"partition-{partition}"


def run_in_process(
    app: ServerApp,
    client: ClientApp,
    node_configs: Sequence[Mapping[str, Any]],
    run_config: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Run a ServerApp with its ClientApps in this process, as `flwr run` does with many."""
    grid: Any = InProcessGrid(client, node_configs, run_config, names)
    app(grid, Context(RUN_ID, 0, {}, RecordDict(), dict(run_config or {})))


def simulate_round(federation: Federation, **options: Any) -> Calibration:
    """Calibrate a federation whose reports are each sent by a separate node.

    Parameters
    ----------
    federation : Federation
        The reports that are sent.
    **options
        Those of `robfcp.integrations.run_calibration_round`, including those of
        `robfcp.calibrate`.

    Returns
    -------
    Calibration
    """
    reports = list(federation)
    app = ClientApp()

    @app.query(RECORD)
    def send_report(message: Message, context: Context) -> Message:
        record = message.content[RECORD]
        request: Any = read_request(record["body"])
        report = reports[context.node_id - 1]
        report = replace(report, round=request.round, model=request.model)
        return _reply(message, {"nonce": record["nonce"], "body": report.to_json()})

    grid: Any = InProcessGrid(app, [{}] * len(reports), names=federation.clients)
    round_options = {"binning": federation.binning, "score": federation.score, "evaluate": False}
    return run_calibration_round(FlowerTransport(grid), **{**round_options, **options})
