"""The client's half: answers `query.size`, `query.sketch` and `query.threshold`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray

from robfcp.engines import (
    Refused,
    SiteRules,
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    read_request,
)
from robfcp.errors import RobfcpError
from robfcp.flower._messages import failure_content, model_digest, open_request, reply_content
from robfcp.flower._privacy import answered_before, remember
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets, predict_intervals
from robfcp.privacy import Privacy
from robfcp.reports import Report, read_score
from robfcp.scores import ClassificationScore, Score, scores_or_nan

Part = Literal["calibration", "test"]
NodeOutputs = Callable[[Part, ArrayRecord | None, Context], tuple[ArrayLike, ArrayLike]]
Attack = Callable[[NDArray[np.float64], Context], ArrayLike]
Answer = Callable[[bytes, ArrayRecord | None, Context], bytes]

log = logging.getLogger(__name__)


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
    merged, and with `bins-per-sample` too fine a grid is refused.
    """

    site = SiteRules(privacy, ledger, dataset, grid, score)
    if privacy is not None and ledger is None:
        raise RobfcpError("ledger: privacy needs one; name a file that stays across runs")

    def size(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        read_request(body, SizeRequest)
        rules = site.with_config(context.node_config)
        if rules.privacy is not None and rules.privacy.hides_size:
            raise Refused(4, "the number of samples is protected")
        if rules.samples is not None:
            return msgspec.json.encode(SizeReply(rules.samples))
        with _discreet(rules):
            _, targets = outputs("calibration", arrays, context)
            return msgspec.json.encode(SizeReply(len(np.asarray(targets))))

    def sketch(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request = read_request(body, SketchRequest)
        rules = site.with_config(context.node_config)
        bins, rule = rules.accepted(request)
        model = request.model if arrays is None else model_digest(arrays)
        context_of = {"score": rule, "round": request.round, "model": model}
        if rules.privacy is not None:
            before = answered_before(context, body)
            if before is not None:
                return before
            rules.charge(request.round)
        score_all = rule if rules.privacy is None else partial(scores_or_nan, rule)
        with _discreet(rules):
            predictions, targets = outputs("calibration", arrays, context)
            scores = score_all(predictions, targets, _generator(rng, context))
            if attack is not None:
                scores = np.asarray(attack(scores, context), dtype=np.float64)
            report = Report.from_scores(
                request.client,
                scores,
                bins,
                privacy=rules.privacy,
                bins_per_sample=rules.bins_per_sample,
                **_by_class(rules, rule, predictions, targets),
                **context_of,
            )
        answer = report.to_json()
        if rules.privacy is not None:
            remember(context, body, answer)
        return answer

    def threshold(body: bytes, arrays: ArrayRecord | None, context: Context) -> bytes:
        request = read_request(body, ThresholdRequest)
        if site.with_config(context.node_config).privacy is not None:
            raise Refused(4, "test data are protected")
        limits = _limits(request.thresholds)
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
        except Refused as refusal:
            log.warning("robfcp: %s", refusal)
            content = failure_content(nonce, refusal.code)
        except RobfcpError:
            log.exception("robfcp: refused")
            content = failure_content(nonce, 3)
        except Exception:
            log.exception("robfcp: the outputs failed")
            content = failure_content(nonce, 2)
        return Message(content, reply_to=message)

    return act


@contextmanager
def _discreet(rules: SiteRules) -> Iterator[None]:
    """At a private site every failure looks alike: which it was might tell of the data."""
    try:
        yield
    except Exception as error:
        if rules.privacy is None:
            raise
        log.exception("robfcp: failed on the site's data")
        raise Refused(2, "failed on the site's data") from error


def _by_class(
    rules: SiteRules, rule: Score, predictions: ArrayLike, targets: ArrayLike
) -> dict[str, Any]:
    """Labels and number of classes, where there are any and the site does not keep them back.

    A private site reports pooled counts: noise on every cell would drown the classes.
    """
    if rules.pooled or rules.privacy is not None or not isinstance(rule, ClassificationScore):
        return {}
    return {"labels": targets, "classes": int(np.shape(predictions)[1]), "least": rules.least}


def _score(wire: Any) -> Score:
    score = read_score(wire)
    assert score is not None
    return score


def _generator(rng: int | None, context: Context) -> np.random.Generator:
    return np.random.default_rng(None if rng is None else [rng, context.node_id])


def _limits(thresholds: list[Any]) -> NDArray[np.float64]:
    """(L,) the thresholds, or (C, L) by class."""
    found = np.array(thresholds, dtype=np.float64)  # None becomes NaN
    return np.where(np.isnan(found), np.inf, found).T


def _check(
    score: Score,
    predictions: ArrayLike,
    targets: ArrayLike,
    limits: NDArray[np.float64],
    rng: np.random.Generator,
) -> ThresholdReply:
    """Covered samples and total set size (labels, or width of intervals) at every threshold."""
    truth = np.asarray(targets)
    number = limits.shape[-1]
    covered, total = np.zeros(number, dtype=np.int64), np.zeros(number)
    if isinstance(score, ClassificationScore):
        for rows, members in iterate_sets(score, predictions, limits, rng):
            label = truth[rows]
            covered += members[np.arange(len(label)), label].sum(axis=0)
            total += members.sum(axis=(0, 1))
    else:
        ends = predict_intervals(score, predictions, limits.tolist())
        inside = (ends[:, 0] <= truth[:, None]) & (truth[:, None] <= ends[:, 1])
        covered, total = inside.sum(axis=0), np.maximum(ends[:, 1] - ends[:, 0], 0).sum(axis=0)
    return ThresholdReply(len(truth), covered.tolist(), total.tolist())
