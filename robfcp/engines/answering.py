"""A site's half of a round: what it answers to each kind of request, under its own rules.

An engine's adapter turns what reached the site into a `Question` and sends back the answer, or the
code that stands for every kind of failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.files import make_folder, write_atomically
from robfcp.calibration import Calibration, Letter, Monitor
from robfcp.engines.monitoring import MonitorRequest
from robfcp.engines.requests import (
    Kind,
    LetterReply,
    LetterRequest,
    Refused,
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    read_request,
    reply_record,
)
from robfcp.engines.site import SiteRules
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets, predict_intervals
from robfcp.reports import Report, disclosure_of, read_score
from robfcp.scores import ClassificationScore, Score

Part = Literal["calibration", "test"]
Scores = NDArray[np.float64]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """One request as it reached a site, and what the engine knows there.

    body: the request. outputs(part): predictions and targets of the site's calibration or test
    data, by the model that came with the request or the site's own. fresh(): predictions, targets
    and names of the samples labelled since. config: what the site itself has configured. model:
    the digest of the model that came; None where none did. memory: kept at the site between
    requests. seed: of randomised scores; fresh entropy where None. attack(scores): what is
    sketched instead, in simulations.
    """

    body: bytes
    outputs: Callable[[Part], tuple[ArrayLike, ArrayLike]] | None = None
    fresh: Callable[[], tuple[ArrayLike, ArrayLike, ArrayLike]] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    memory: MutableMapping[str, Any] = field(default_factory=dict)
    seed: Sequence[int] | None = None
    attack: Callable[[Scores], ArrayLike] | None = None

    def data(self, part: Part) -> tuple[ArrayLike, ArrayLike]:
        """Predictions and targets of one part of the site's data."""
        if self.outputs is None:
            raise RobfcpError("outputs: this site has none; say where they come from")
        return self.outputs(part)

    def rng(self) -> np.random.Generator:
        """A generator for randomised scores."""
        return np.random.default_rng(self.seed)


def answer(kind: Kind, site: SiteRules, question: Question) -> bytes:
    """The site's answer to one kind of request; raises where it gives none."""
    if kind not in _ANSWERS:
        raise Refused(1, "a request of an unknown kind; update robfcp")
    return _ANSWERS[kind](site.with_config(question.config), question)


def guarded_reply(opened: Callable[[], tuple[str, Callable[[], bytes]]]) -> dict[str, Any]:
    """What goes back: the nonce of the request, and the answer or a code.

    opened(): the nonce, and what makes the answer. No exception of either leaves the site.
    """
    nonce = ""

    def make() -> bytes:
        nonlocal nonce
        nonce, make_answer = opened()
        return make_answer()

    found = _guarded(make)  # first: it learns the nonce
    return reply_record(nonce, found)


def _guarded(make: Callable[[], bytes]) -> bytes | int:
    """The answer, every exception turned into a generic code; its text stays in the site's log."""
    try:
        return make()
    except Refused as refusal:
        log.warning("robfcp: %s", refusal)
        return refusal.code
    except RobfcpError:
        log.exception("robfcp: refused")
        return 3
    except Exception:
        log.exception("robfcp: the outputs failed")
        return 2


def _size(rules: SiteRules, question: Question) -> bytes:
    read_request(question.body, SizeRequest)
    rules.discretion.check_size()
    if rules.samples is not None:
        return msgspec.json.encode(SizeReply(rules.samples))
    with rules.discretion.on_its_data():
        _, targets = question.data("calibration")
        return msgspec.json.encode(SizeReply(len(np.asarray(targets))))


def _sketch(rules: SiteRules, question: Question) -> bytes:
    request = read_request(question.body, SketchRequest)
    bins, rule = rules.accepted(request)

    def make() -> bytes:
        with rules.discretion.on_its_data():
            report = _report(rules, question, request, bins, rule)
        return rules.sealed(report)

    return rules.discretion.report(question.body, request.round, question.memory, make)


def _report(
    rules: SiteRules, question: Question, request: SketchRequest, grid: Grid, score: Score
) -> Report:
    how = disclosure_of(rules.privacy)
    predictions, targets = question.data("calibration")
    scores = how.scores(score, predictions, targets, question.rng())
    if question.attack is not None:
        scores = np.asarray(question.attack(scores), dtype=np.float64)
    by_class = how.keeps_classes and not rules.pooled and isinstance(score, ClassificationScore)
    return Report.from_scores(
        request.client,
        scores,
        grid,
        score=score,
        round=request.round,
        model=request.model if question.model is None else question.model,
        privacy=rules.privacy,
        bins_per_sample=rules.bins_per_sample,
        **(_classes(rules, predictions, targets) if by_class else {}),
    )


def _threshold(rules: SiteRules, question: Question) -> bytes:
    request = read_request(question.body, ThresholdRequest)
    rules.discretion.check_protected("test data are protected")
    score = read_score(request.score)
    assert score is not None
    predictions, targets = question.data("test")
    limits = _limits(request.thresholds)
    return msgspec.json.encode(_check(score, predictions, targets, limits, question.rng()))


def _letter(rules: SiteRules, question: Question) -> bytes:
    request: LetterRequest = read_request(question.body, LetterRequest)
    data = bytes(request.letter)
    letter = Letter.from_json(data)
    if letter.client != request.client:
        raise Refused(1, "a letter to another site")
    identity = letter.calibration.identity
    place = _place(question.config, "letter-folder")
    write_atomically(place / f"letter-{identity[:16]}.json", data)
    return msgspec.json.encode(LetterReply(identity))


def _monitor(rules: SiteRules, question: Question) -> bytes:
    request: MonitorRequest = read_request(question.body, MonitorRequest)
    if question.fresh is None:
        raise Refused(1, "this site does not watch calibrations")
    rules.discretion.check_protected("wealth tells of protected samples")
    calibration = Calibration.from_json(bytes(request.calibration))
    name = f"monitor-{calibration.identity[:16]}-{request.level}.json"
    monitor = Monitor(
        calibration,
        client=request.client,
        level=request.level,
        floor=request.floor,
        delta=request.delta,
        path=_place(question.config, "monitor-folder") / name,
    )
    predictions, targets, ids = question.fresh()
    monitor.update(predictions, targets, ids=ids)
    return monitor.e_report(request.round, request.step).to_json()


_ANSWERS: dict[Kind, Callable[[SiteRules, Question], bytes]] = {
    "size": _size,
    "sketch": _sketch,
    "threshold": _threshold,
    "letter": _letter,
    "monitor": _monitor,
}


def _place(config: Mapping[str, Any], key: str) -> Path:
    """A folder that the site has named."""
    if not config.get(key):
        raise RobfcpError(f"{key}: the site has no place for this; configure it")
    return Path(make_folder(str(config[key])))


def _classes(rules: SiteRules, predictions: ArrayLike, targets: ArrayLike) -> dict[str, Any]:
    """Labels, number of classes, and how few samples of one are shown."""
    return {"labels": targets, "classes": int(np.shape(predictions)[1]), "least": rules.least}


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
