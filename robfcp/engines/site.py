"""What a site allows, whatever a server asks: its privacy, its ledger, the grid and score it takes.

A site writes this where it starts its node, out of the server's reach.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.calibration import Calibration, Letter
from robfcp.engines.protocol import (
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
from robfcp.engines.server import MonitorRequest
from robfcp.errors import RobfcpError
from robfcp.files import make_folder, read_limited, what_is_wrong, write_atomically
from robfcp.grid import Grid
from robfcp.monitoring import Monitor
from robfcp.prediction import iterate_sets, predict_intervals
from robfcp.privacy import Ledger, Privacy, grid_from_text
from robfcp.report import Report, load_key, signing, wire
from robfcp.scores import ClassificationScore, Score, named_score, scores_or_nan

FilePath = str | os.PathLike[str]


class Open:
    """A site without a budget: every question is answered, and failures say what they are."""

    def check_size(self) -> None:
        """Refuse to state n_k where it is protected."""

    def check_protected(self, what: str) -> None:
        """Refuse what tells of protected samples outside the budget."""

    def report(
        self,
        body: bytes,
        round: str | None,
        memory: MutableMapping[str, Any],
        make: Callable[[], bytes],
    ) -> bytes:
        """The report that answers a request."""
        return make()

    @contextmanager
    def on_its_data(self) -> Iterator[None]:
        """What happens while the site's data are looked at."""
        yield


class Discreet(Open):
    """A site with a budget and a ledger of what it has spent."""

    def __init__(self, privacy: Privacy, ledger: FilePath | None, dataset: str) -> None:
        self.privacy, self.ledger, self.dataset = privacy, ledger, dataset

    def check_size(self) -> None:
        """Refuse where the budget protects that a sample is there at all."""
        if self.privacy.hides_size:
            raise Refused(4, "the number of samples is protected")

    def check_protected(self, what: str) -> None:
        """Refuse."""
        raise Refused(4, what)

    def report(
        self,
        body: bytes,
        round: str | None,
        memory: MutableMapping[str, Any],
        make: Callable[[], bytes],
    ) -> bytes:
        """The one it gave before, which reveals nothing new, or one that is paid for."""
        if memory.get("request") == body:
            return bytes(memory["report"])
        self.charge(round)
        found = make()
        memory["request"], memory["report"] = body, found
        return found

    def charge(self, round: str | None) -> None:
        """Spend one report of the budget before anything is computed from the data."""
        if self.ledger is None:
            raise Refused(
                6, "privacy-ledger: a private site needs one; name a file that stays across runs"
            )
        try:
            Ledger(self.ledger, self.dataset).charge(self.privacy, round)
        except RobfcpError as error:
            raise Refused(6, str(error)) from error

    @contextmanager
    def on_its_data(self) -> Iterator[None]:
        """Every failure looks alike: which it was might tell of the data."""
        try:
            yield
        except Exception as error:
            log.exception("robfcp: failed on the site's data")
            raise Refused(2, "failed on the site's data") from error


def discretion_of(privacy: Privacy | None, ledger: FilePath | None, dataset: str) -> Open:
    """What a site with this budget, or without one, keeps to itself."""
    return Open() if privacy is None else Discreet(privacy, ledger, dataset)


def check_ledger(privacy: Privacy | None, ledger: FilePath | None) -> None:
    """Refuse a budget without a place where it is recorded what was spent."""
    if privacy is not None and ledger is None:
        raise RobfcpError("ledger: privacy needs one; name a file that stays across runs")


BUDGET_KEYS = ("delta", "neighbours", "samples-per-patient", "rounds")
DATASET = "calibration data"
SITE_WORDS = (  # all that a site's own configuration may hold
    "epsilon",
    *BUDGET_KEYS,
    *("privacy-ledger", "privacy-dataset", "privacy-grid", "privacy-score", "privacy-samples"),
    *("pooled", "least", "bins-per-sample", "signing-key", "letter-folder", "monitor-folder"),
    "output-folder",  # of a server: where results go instead of the job's own folder
)


@dataclass(frozen=True)
class SiteRules:
    """What one site allows.

    privacy: the noise of its reports. ledger: where it records what is spent; a private site has
    one. dataset: the name of the data the ledger speaks of. grid, score: what it reports on; any
    where None. samples: the number it states when asked, without looking at its data. pooled:
    whether it withholds its labels. least, bins_per_sample: how small the cells are that it shows,
    as `Report.from_scores` has it. signing_key: the private key its reports are signed with.
    """

    privacy: Privacy | None = None
    ledger: FilePath | None = None
    dataset: str | None = None
    grid: Grid | None = None
    score: Score | None = None
    samples: int | None = None
    pooled: bool = False
    least: int = 1
    bins_per_sample: float | None = None
    signing_key: FilePath | None = None

    def with_config(self, config: Mapping[str, Any]) -> SiteRules:
        """The same with what the site's own configuration says, which goes before."""
        rules = self
        if "epsilon" in config:
            budget = {key.replace("-", "_"): config[key] for key in BUDGET_KEYS if key in config}
            rules = replace(rules, privacy=Privacy(config["epsilon"], **cast(Any, budget)))
        if "privacy-ledger" in config:
            rules = replace(rules, ledger=str(config["privacy-ledger"]))
        if "privacy-dataset" in config:
            rules = replace(rules, dataset=str(config["privacy-dataset"]))
        if "privacy-grid" in config:
            rules = replace(rules, grid=grid_from_text(str(config["privacy-grid"])))
        if "privacy-score" in config:
            rules = replace(rules, score=named_score(str(config["privacy-score"])))
        if "pooled" in config:
            rules = replace(rules, pooled=bool(config["pooled"]))
        if "least" in config:
            rules = replace(rules, least=int(config["least"]))
        if "bins-per-sample" in config:
            rules = replace(rules, bins_per_sample=float(config["bins-per-sample"]))
        if "signing-key" in config:
            rules = replace(rules, signing_key=str(config["signing-key"]))
        if "privacy-samples" in config:
            rules = replace(rules, samples=int(config["privacy-samples"]))
        return rules

    def accepted(self, request: SketchRequest) -> tuple[Grid, Score]:
        """The grid and score of a request, refused where the site takes others."""
        if self.grid is not None and request.grid.digest != self.grid.digest:
            raise Refused(5, "another grid than this site takes was asked for")
        score = wire.read_score(request.score)
        if score is None or (self.score is not None and score != self.score):
            raise Refused(5, "another score than this site takes was asked for")
        return wire.read_grid(request.grid) if self.grid is None else self.grid, score

    def sealed(self, report: Report) -> bytes:
        """The report as it leaves the site, signed where the site has a key."""
        if self.signing_key is None:
            return report.to_json()
        return signing.sign(report, load_key(self.signing_key))

    @property
    def discretion(self) -> Open:
        """What the site keeps to itself."""
        return discretion_of(self.privacy, self.ledger, self.dataset or DATASET)


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
    predictions, targets = question.data("calibration")
    scored = score if rules.privacy is None else partial(scores_or_nan, score)
    scores = scored(predictions, targets, question.rng())
    if question.attack is not None:
        scores = np.asarray(question.attack(scores), dtype=np.float64)
    pooled = rules.pooled or rules.privacy is not None  # whose noise would be on every cell
    by_class = not pooled and isinstance(score, ClassificationScore)
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
    score = wire.read_score(request.score)
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
    rules.discretion.check_protected("alarms tell of protected samples")
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


CODE_WORDS = ("outputs", "fresh")  # the site's own functions, as module:function


def read_site(path: Path) -> dict[str, Any]:
    """What the file says; empty where there is none, refused where it is not clear."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_limited(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RobfcpError(f"{path}: not a JSON object ({what_is_wrong(error)}); fix it") from None
    for word in found:
        if word not in (*SITE_WORDS, *CODE_WORDS):
            known = ", ".join((*SITE_WORDS, *CODE_WORDS))
            raise RobfcpError(f"{path}: {word!r} is unknown; use {known}")
    return found


def own_code(place: str | None, folder: Path) -> Callable[..., Any] | None:
    """The function that a site names, of an installed module or one in the folder."""
    if place is None:
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
