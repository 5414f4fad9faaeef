"""The client's half: answers `query.size`, `query.sketch`, `query.threshold` and `query.letter`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray

from robfcp.engines import Kind, Part, Question, SiteRules, answer, check_ledger, guarded_reply
from robfcp.flower._messages import RECORD, digest_of, open_request
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.scores import Score

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
    privacy: a site that states a budget does not answer: wealth tells of its samples.
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
