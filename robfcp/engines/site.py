"""What a site allows and answers, whatever a server asks: its privacy, its ledger, its grid.

A site writes its rules where it starts its node, out of the server's reach.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.calibration import Calibration, letters
from robfcp.engines import protocol
from robfcp.engines.protocol import Refused
from robfcp.errors import RobfcpError
from robfcp.files import make_folder, read_limited, what_is_wrong, write_atomically
from robfcp.grid import Grid
from robfcp.monitoring import Monitor
from robfcp.privacy import Ledger, Privacy, grid_from_text
from robfcp.report import Report, Strata, signing, wire
from robfcp.scores import ClassificationScore, Score, base

FilePath = str | os.PathLike[str]
Part = Literal["calibration", "test"]
Attack = Callable[[NDArray[np.float64]], ArrayLike]

BUDGET = ("delta", "neighbours", "samples-per-patient", "rounds")  # beside epsilon
OF_PRIVACY = ("ledger", "dataset", "grid", "score", "samples")  # rules called privacy-...
RULES = ("pooled", "least", "fine", "signing-key", "letter-folder", "monitor-folder")
CODE = ("outputs", "fresh")  # the site's own functions, as module:function
WORDS = ("epsilon", *BUDGET, *(f"privacy-{rule}" for rule in OF_PRIVACY), *RULES, *CODE)
WORDS += ("output-folder",)  # a server's

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteRules:
    """What one site allows.

    privacy: the noise of its reports. ledger: where it records what is spent; a private site has
    one. dataset: the name of the data the ledger speaks of. grid, score: what it reports on; any
    where None. samples: the number it states when asked, without looking at its data. pooled:
    whether it withholds its labels; where None as `Report.of` does. least, fine: how small the
    cells are that it shows, as there. signing_key: the private key its reports are signed with.
    letter_folder, monitor_folder: where it keeps letters, and what it has counted.
    """

    privacy: Privacy | None = None
    ledger: FilePath | None = None
    dataset: str = "calibration data"
    grid: Grid | None = None
    score: Score | None = None
    samples: int | None = None
    pooled: bool | None = None
    least: int = 1
    fine: bool = False
    signing_key: FilePath | None = None
    letter_folder: FilePath | None = None
    monitor_folder: FilePath | None = None

    def __post_init__(self) -> None:
        if self.privacy is not None and not self.ledger:
            raise Refused(6, "ledger: privacy needs one; name a file that stays across runs")

    def with_config(self, config: Mapping[str, Any]) -> SiteRules:
        """The same with what the site's own configuration says, which goes before."""
        said = {rule.replace("-", "_"): config[rule] for rule in RULES if rule in config}
        own = [rule for rule in OF_PRIVACY if f"privacy-{rule}" in config]
        said |= {rule: config[f"privacy-{rule}"] for rule in own}
        if "grid" in own:
            said["grid"] = grid_from_text(said["grid"])
        if "score" in own:
            said["score"] = base.named_score(said["score"])
        if "epsilon" in config:
            budget = {word.replace("-", "_"): config[word] for word in BUDGET if word in config}
            said["privacy"] = Privacy(config["epsilon"], **budget)
        return replace(self, **said)

    def protect(self, what: str) -> None:
        """Refuse what tells of protected samples outside the budget."""
        if self.privacy is not None:
            raise Refused(4, what)


def read_site(path: Path) -> dict[str, Any]:
    """What the site's file says; empty where there is none, refused where it is not clear."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_limited(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RobfcpError(f"{path}: not a JSON object ({what_is_wrong(error)}); fix it") from None
    for word in found:
        if word not in WORDS:
            raise RobfcpError(f"{path}: {word!r} is unknown; use {', '.join(WORDS)}")
    return found


@dataclass(frozen=True)
class Site:
    """A site while it answers one request.

    outputs(part, *given): predictions and targets of its calibration or test data, by the model
    that came with the request or its own. fresh(*given): predictions, targets and names of the
    samples labelled since. given: what the engine hands to both, the model among it. model: its
    digest; None where none came. memory: kept between requests. seed: of randomised scores; fresh
    entropy where None. attack(scores): what is reported instead, in simulations.
    """

    rules: SiteRules
    outputs: Callable[..., tuple[ArrayLike, ArrayLike]] | None = None
    fresh: Callable[..., tuple[ArrayLike, ArrayLike, ArrayLike]] | None = None
    given: tuple[Any, ...] = ()
    model: str | None = None
    memory: MutableMapping[str, Any] = field(default_factory=dict)
    seed: Sequence[int] | None = None
    attack: Attack | None = None

    def answer(self, body: bytes) -> bytes:
        """The answer by the method of the request's kind; raises where the site gives none."""
        request = protocol.read_request(body)
        found = getattr(self, f"_{request.__struct_config__.tag}")(request)
        return found if isinstance(found, bytes) else msgspec.json.encode(found)

    def _data(self, part: Part) -> tuple[ArrayLike, ArrayLike]:
        if self.outputs is None:
            raise RobfcpError("outputs: this site has none; say where they come from")
        return self.outputs(part, *self.given)

    def _size(self, request: protocol.SizeRequest) -> int:
        if self.rules.privacy is not None and self.rules.privacy.hides_size:
            raise Refused(4, "the number of samples is protected")
        if self.rules.samples is not None:
            return self.rules.samples
        return len(np.asarray(self._data("calibration")[1]))

    def _report(self, request: protocol.ReportRequest) -> bytes:
        """A report; of a private site the one it gave before, or one that is paid for first."""
        rules = self.rules
        if rules.grid is not None and request.grid.digest != rules.grid.digest:
            raise Refused(5, "another grid than this site takes was asked for")
        score = wire.read_score(request.score)
        if score is None or rules.score not in (None, score):
            raise Refused(5, "another score than this site takes was asked for")
        body = msgspec.json.encode(request)
        if rules.privacy is not None:
            if self.memory.get("request") == body:
                return bytes(self.memory["report"])
            try:
                Ledger(str(rules.ledger), rules.dataset).charge(rules.privacy, request.round)
            except RobfcpError as error:
                raise Refused(6, str(error)) from error
        predictions, targets = self._data("calibration")
        scored = score if rules.privacy is None else partial(base.scores_or_nan, score)
        scores = scored(predictions, targets, np.random.default_rng(self.seed))
        if self.attack is not None:
            scores = np.asarray(self.attack(scores), dtype=np.float64)
        by_class: dict[str, Any] = {}
        pooled = rules.pooled or rules.privacy is not None  # whose noise would be on every cell
        classes = int(np.shape(predictions)[1]) if isinstance(score, ClassificationScore) else 0
        if rules.pooled is None and not rules.fine:
            pooled = pooled or len(scores) < Strata.CROWD * classes
        if classes and not pooled:
            by_class = {"labels": targets, "classes": classes, "least": rules.least}
        report = Report.from_scores(
            request.client,
            scores,
            rules.grid or wire.read_grid(request.grid),
            score=score,
            round=request.round,
            model=request.model if self.model is None else self.model,
            privacy=rules.privacy,
            fine=rules.fine,
            **by_class,
        )
        key = rules.signing_key
        found = report.to_json() if key is None else signing.sign(report, signing.load_key(key))
        if rules.privacy is not None:
            self.memory["request"], self.memory["report"] = body, found
        return found

    def _check(self, request: protocol.CheckRequest) -> protocol.Claims:
        """Covered samples and total set size (labels, or width of intervals) at every level."""
        self.rules.protect("test data are protected")
        calibration = Calibration.from_json(bytes(request.calibration))
        predictions, targets = self._data("test")
        check = partial(calibration.check, predictions, targets)
        numbers = range(len(calibration.levels))
        seen = [check(level=k, rng=np.random.default_rng(self.seed)) for k in numbers]
        n = seen[0].overall.n
        return protocol.Claims(
            n, [one.overall.covered for one in seen], [one.set_size * n for one in seen]
        )

    def _letter(self, request: protocol.LetterRequest) -> str:
        data = bytes(request.letter)
        letter = letters.Letter.from_json(data)
        if letter.client != request.client:
            raise Refused(1, "a letter to another site")
        identity = letter.calibration.identity
        place = _folder("letter-folder", self.rules.letter_folder)
        write_atomically(place / f"letter-{identity[:16]}.json", data, private=True)
        return identity

    def _monitor(self, request: protocol.MonitorRequest) -> bytes:
        if self.fresh is None:
            raise Refused(1, "this site does not watch calibrations")
        self.rules.protect("alarms tell of protected samples")
        calibration = Calibration.from_json(bytes(request.calibration))
        name = f"monitor-{calibration.identity[:16]}-{request.level}.json"
        monitor = Monitor(
            calibration,
            client=request.client,
            level=request.level,
            floor=request.floor,
            delta=request.delta,
            path=_folder("monitor-folder", self.rules.monitor_folder) / name,
        )
        predictions, targets, ids = self.fresh(*self.given)
        monitor.update(predictions, targets, ids=ids)
        return monitor.e_report(request.round, request.step).to_json()


def _folder(word: str, place: FilePath | None) -> Path:
    if not place:
        raise RobfcpError(f"{word}: the site has no place for this; configure it")
    return Path(make_folder(str(place)))


def reply_to(record: Any, site: Callable[[], Site]) -> dict[str, Any]:
    """What goes back: the nonce of the request, and the answer or a code.

    No exception leaves the site: its text might hold data, and stays in the site's log.
    """
    nonce, private = "", False
    try:
        found, body = (record.get("nonce"), record.get("body")) if record else (None, None)
        if not isinstance(found, str) or not isinstance(body, bytes):
            raise Refused(1, "the request is not of this protocol; update robfcp")
        nonce = found
        asked = site()
        private = asked.rules.privacy is not None
        return {"nonce": nonce, "body": asked.answer(body)}
    except Refused as refusal:
        log.warning("robfcp: %s", refusal)
        code = refusal.code
    except Exception as error:  # of a private site, which one it was might tell of the data
        log.exception("robfcp: no answer")
        code = 3 if isinstance(error, RobfcpError) and not private else 2
    return {"nonce": nonce, "code": code}
