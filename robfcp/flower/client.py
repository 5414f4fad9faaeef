"""The client's half: answers `query.size`, `query.sketch` and `query.threshold`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray

from robfcp.engines import (
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    read_request,
)
from robfcp.errors import RobfcpError
from robfcp.flower._messages import failure_content, model_digest, open_request, reply_content
from robfcp.flower._privacy import answered_before, charge, remember, site_privacy
from robfcp.prediction import iterate_sets, predict_intervals
from robfcp.privacy import Privacy
from robfcp.reports import Report, read_grid, read_score
from robfcp.scores import ClassificationScore, Score

Part = Literal["calibration", "test"]
NodeOutputs = Callable[[Part, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
Attack = Callable[[NDArray[np.float64], Context], ArrayLike]
Answer = Callable[[bytes, ArrayRecord | None, Context], bytes]

log = logging.getLogger(__name__)


class _PrivateError(Exception):
    """The answer would tell more than the site's privacy allows."""


def add_calibration(
    app: ClientApp,
    outputs: NodeOutputs,
    *,
    rng: int | None = None,
    attack: Attack | None = None,
    privacy: Privacy | None = None,
    ledger: str | os.PathLike[str] | None = None,
) -> None:
    """Teach an app to take part in calibration rounds.

    outputs(split, arrays, context): the model's predictions and the true targets on this node's
        "calibration" or "test" data; `arrays` is the received model, None for the local one.
    rng: a seed for randomised scores (joined with the node's id); fresh entropy without it.
    attack(scores, context): what a node sketches instead of its scores, for simulations.
    privacy: adds noise to the sketch; the same request is then answered by the same noisy report,
        however often it comes, and questions outside the budget are not answered. A site's own
        node config (`epsilon`, `delta`, ..., `privacy-ledger`) goes before it.
    ledger: the file in which this site records what it has spent.
    """

    def size(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        read_request(body, SizeRequest)
        own, _ = site_privacy(context, privacy, ledger)
        if own is not None and own.hides_size:
            raise _PrivateError
        _, targets = outputs("calibration", arrays, context)
        return msgspec.json.encode(SizeReply(len(np.asarray(targets))))

    def sketch(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request = read_request(body, SketchRequest)
        before = answered_before(context, body)
        if before is not None:
            return before
        score, grid = _score(request.score), read_grid(request.grid)
        predictions, targets = outputs("calibration", arrays, context)
        scores = score(predictions, targets, _generator(rng, context))
        if attack is not None:
            scores = np.asarray(attack(scores, context), dtype=np.float64)
        model = request.model if arrays is None else model_digest(arrays)
        context_of = {"score": score, "round": request.round, "model": model}
        own, record = site_privacy(context, privacy, ledger)
        if own is None:
            return Report.from_scores(request.client, scores, grid, **context_of).to_json()
        charge(context, own, record, request.round)
        report = Report.from_scores(request.client, scores, grid, privacy=own, **context_of)
        answer = report.to_json()
        remember(context, body, answer)
        return answer

    def threshold(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request = read_request(body, ThresholdRequest)
        if site_privacy(context, privacy, ledger)[0] is not None:
            raise _PrivateError
        limits = [np.inf if limit is None else limit for limit in request.thresholds]
        predictions, targets = outputs("test", arrays, context)
        return msgspec.json.encode(
            _check(_score(request.score), predictions, targets, limits, _generator(rng, context))
        )

    for action, answer in (("size", size), ("sketch", sketch), ("threshold", threshold)):
        app.query(action)(guarded(answer))


def guarded(answer: Answer) -> Callable[[Message, Context], Message]:
    """An action that echoes the nonce and turns every exception into a generic code."""

    def act(message: Message, context: Context) -> Message:
        nonce = ""
        try:
            nonce, body, arrays = open_request(message.content)
            content = reply_content(nonce, answer(body, arrays, context))
        except (msgspec.MsgspecError, KeyError, UnicodeError):
            log.exception("robfcp: a request was not understood")
            content = failure_content(nonce, 1)
        except _PrivateError:
            content = failure_content(nonce, 4)
        except RobfcpError:
            log.exception("robfcp: refused")
            content = failure_content(nonce, 3)
        except Exception:
            log.exception("robfcp: the outputs failed")
            content = failure_content(nonce, 2)
        return Message(content, reply_to=message)

    return act


def _score(wire: Any) -> Score:
    score = read_score(wire)
    assert score is not None
    return score


def _generator(rng: int | None, context: Context) -> np.random.Generator:
    return np.random.default_rng(None if rng is None else [rng, context.node_id])


def _check(
    score: Score,
    predictions: ArrayLike,
    targets: ArrayLike,
    limits: list[float],
    rng: np.random.Generator,
) -> ThresholdReply:
    """Covered samples and total set size (labels, or width of intervals) at every threshold."""
    truth = np.asarray(targets)
    covered, total = np.zeros(len(limits), dtype=np.int64), np.zeros(len(limits))
    if isinstance(score, ClassificationScore):
        for rows, members in iterate_sets(score, predictions, limits, rng):
            label = truth[rows]
            covered += members[np.arange(len(label)), label].sum(axis=0)
            total += members.sum(axis=(0, 1))
    else:
        ends = predict_intervals(score, predictions, limits)
        inside = (ends[:, 0] <= truth[:, None]) & (truth[:, None] <= ends[:, 1])
        covered, total = inside.sum(axis=0), np.maximum(ends[:, 1] - ends[:, 0], 0).sum(axis=0)
    return ThresholdReply(len(truth), covered.tolist(), total.tolist())
