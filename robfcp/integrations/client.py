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

from robfcp._files import decode_error_reason, make_folder, read_bounded, write_atomically
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.integrations import _messages
from robfcp.integrations._messages import ClientRefusal
from robfcp.local import ClientFeedback
from robfcp.monitoring import Monitor
from robfcp.privacy import Privacy, PrivacyLedger, parse_binning
from robfcp.reports import (
    Report,
    StratifiedCounts,
    from_wire_binning,
    from_wire_score,
    signing,
)
from robfcp.scores import ClassificationScore, Score, get_score, scores_with_nan

FilePath = str | os.PathLike[str]
Part = Literal["calibration", "test"]
Attack = Callable[[NDArray[np.float64]], ArrayLike]

BUDGET_KEYS = ("delta", "neighbours", "samples-per-patient", "rounds")  # beside epsilon
PRIVACY_KEYS = ("ledger", "dataset", "grid", "score", "samples")  # rules called privacy-...
POLICY_KEYS = ("pooled", "least", "fine", "signing-key", "letter-folder", "monitor-folder")
FUNCTION_KEYS = ("outputs", "fresh")  # the site's own functions, as module:function
KNOWN_KEYS = (
    "epsilon",
    *BUDGET_KEYS,
    *(f"privacy-{rule}" for rule in PRIVACY_KEYS),
    *POLICY_KEYS,
    *FUNCTION_KEYS,
)
KNOWN_KEYS += ("output-folder",)  # a server's

_ATTRIBUTES_OF_POLICY_KEYS = {
    "least": "min_class_count",
    "letter_folder": "feedback_dir",
    "monitor_folder": "monitor_dir",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientPolicy:
    """What one site allows.

    privacy: the noise of its reports. ledger: where it records what is spent; a private site has
    one. dataset: the name of the data the ledger speaks of. grid, score: what it reports on; any
    where None. samples: the number it states when asked, without looking at its data. pooled:
    whether it withholds its labels; where None as `Report.from_predictions` does. least, fine: how
    small the cells are that it shows, as there. signing_key: the private key its reports are signed
    with. letter_folder, monitor_folder: where it keeps letters, and what it has counted.
    """

    privacy: Privacy | None = None
    ledger: FilePath | None = None
    dataset: str = "calibration data"
    binning: Binning | None = None
    score: Score | None = None
    declared_samples: int | None = None
    pooled: bool | None = None
    min_class_count: int = 1
    fine: bool = False
    signing_key: FilePath | None = None
    feedback_dir: FilePath | None = None
    monitor_dir: FilePath | None = None

    def __post_init__(self) -> None:
        if self.privacy is not None and not self.ledger:
            raise ClientRefusal(6, "ledger: privacy needs one; name a file that stays across runs")

    def with_config(self, config: Mapping[str, Any]) -> ClientPolicy:
        """The same with what the site's own configuration says, which goes before."""
        said = {rule.replace("-", "_"): config[rule] for rule in POLICY_KEYS if rule in config}
        own = [rule for rule in PRIVACY_KEYS if f"privacy-{rule}" in config]
        said |= {rule: config[f"privacy-{rule}"] for rule in own}
        if "grid" in own:
            said["binning"] = parse_binning(said.pop("grid"))
        if "samples" in own:
            said["declared_samples"] = said.pop("samples")
        for old, new in _ATTRIBUTES_OF_POLICY_KEYS.items():
            if old in said:
                said[new] = said.pop(old)
        if "score" in own:
            said["score"] = get_score(said["score"])
        if "epsilon" in config:
            budget = {
                word.replace("-", "_"): config[word] for word in BUDGET_KEYS if word in config
            }
            said["privacy"] = Privacy(config["epsilon"], **budget)
        return replace(self, **said)

    def refuse_if_private(self, what: str) -> None:
        """Refuse what tells of protected samples outside the budget."""
        if self.privacy is not None:
            raise ClientRefusal(4, what)


def read_client_policy(path: Path) -> dict[str, Any]:
    """What the site's file says; empty where there is none, refused where it is not clear."""
    if not path.exists():
        return {}
    try:
        found = msgspec.json.decode(read_bounded(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RobfcpError(
            f"{path}: not a JSON object ({decode_error_reason(error)}); fix it"
        ) from None
    for word in found:
        if word not in KNOWN_KEYS:
            raise RobfcpError(f"{path}: {word!r} is unknown; use {', '.join(KNOWN_KEYS)}")
    return found


@dataclass(frozen=True)
class ClientRequestHandler:
    """A site while it answers one request.

    outputs(part, *given): predictions and targets of its calibration or test data, by the model
    that came with the request or its own. fresh(*given): predictions, targets and names of the
    samples labelled since. given: what the engine hands to both, the model among it. model: its
    digest; None where none came. memory: kept between requests. seed: of randomised scores; fresh
    entropy where None. attack(scores): what is reported instead, in simulations.
    """

    policy: ClientPolicy
    predict_fn: Callable[..., tuple[ArrayLike, ArrayLike]] | None = None
    fresh_data_fn: Callable[..., tuple[ArrayLike, ArrayLike, ArrayLike]] | None = None
    model_inputs: tuple[Any, ...] = ()
    model: str | None = None
    cache: MutableMapping[str, Any] = field(default_factory=dict)
    seed: Sequence[int] | None = None
    attack: Attack | None = None

    def handle_request(self, body: bytes) -> bytes:
        """The answer by the method of the request's kind; raises where the site gives none."""
        request = _messages.read_request(body)
        methods: dict[type[_messages.Request], Callable[[Any], Any]] = {
            _messages.SizeRequest: self._size,
            _messages.ReportRequest: self._report,
            _messages.EvaluateRequest: self._evaluate,
            _messages.FeedbackRequest: self._feedback,
            _messages.MonitorRequest: self._monitor,
        }
        answer = methods[type(request)](request)
        return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)

    def _data(self, part: Part) -> tuple[ArrayLike, ArrayLike]:
        if self.predict_fn is None:
            raise RobfcpError("outputs: this site has none; say where they come from")
        return self.predict_fn(part, *self.model_inputs)

    def _size(self, request: _messages.SizeRequest) -> int:
        if self.policy.privacy is not None and self.policy.privacy.protects_sample_size:
            raise ClientRefusal(4, "the number of samples is protected")
        if self.policy.declared_samples is not None:
            return self.policy.declared_samples
        return len(np.asarray(self._data("calibration")[1]))

    def _report(self, request: _messages.ReportRequest) -> bytes:
        """A report; of a private site the one it gave before, or one that is paid for first."""
        rules = self.policy
        if rules.binning is not None and request.grid.digest != rules.binning.digest:
            raise ClientRefusal(5, "another grid than this site takes was asked for")
        score = from_wire_score(request.score)
        if score is None or rules.score not in (None, score):
            raise ClientRefusal(5, "another score than this site takes was asked for")
        body = msgspec.json.encode(request)
        if rules.privacy is not None:
            if self.cache.get("request") == body:
                return bytes(self.cache["report"])
            try:
                PrivacyLedger(str(rules.ledger), rules.dataset).charge(rules.privacy, request.round)
            except RobfcpError as error:
                raise ClientRefusal(6, str(error)) from error
        predictions, targets = self._data("calibration")
        scored = score if rules.privacy is None else partial(scores_with_nan, score)
        scores = scored(predictions, targets, np.random.default_rng(self.seed))
        if self.attack is not None:
            scores = np.asarray(self.attack(scores), dtype=np.float64)
        by_class: dict[str, Any] = {}
        pooled = rules.pooled or rules.privacy is not None  # whose noise would be on every cell
        classes = int(np.shape(predictions)[1]) if isinstance(score, ClassificationScore) else 0
        if rules.pooled is None and not rules.fine:
            pooled = pooled or len(scores) < StratifiedCounts.MIN_SAMPLES_PER_CLASS * classes
        if classes and not pooled:
            by_class = {
                "labels": targets,
                "classes": classes,
                "min_class_count": rules.min_class_count,
            }
        report = Report.from_scores(
            request.client,
            scores,
            rules.binning or from_wire_binning(request.grid),
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
            self.cache["request"], self.cache["report"] = body, found
        return found

    def _evaluate(self, request: _messages.EvaluateRequest) -> _messages.CoverageClaims:
        """Covered samples and total set size (labels, or width of intervals) at every level."""
        self.policy.refuse_if_private("test data are protected")
        calibration = Calibration.from_json(bytes(request.calibration))
        predictions, targets = self._data("test")
        check = partial(calibration.evaluate, predictions, targets)
        numbers = range(len(calibration.levels))
        seen = [check(level=k, rng=np.random.default_rng(self.seed)) for k in numbers]
        n = seen[0].overall.n
        return _messages.CoverageClaims(
            n, [one.overall.covered for one in seen], [one.set_size * n for one in seen]
        )

    def _feedback(self, request: _messages.FeedbackRequest) -> str:
        data = bytes(request.letter)
        letter = ClientFeedback.from_json(data)
        if letter.client != request.client:
            raise ClientRefusal(1, "a letter to another site")
        identity = letter.calibration.fingerprint
        place = _folder("letter-folder", self.policy.feedback_dir)
        write_atomically(place / f"letter-{identity[:16]}.json", data, private=True)
        return identity

    def _monitor(self, request: _messages.MonitorRequest) -> bytes:
        if self.fresh_data_fn is None:
            raise ClientRefusal(1, "this site does not watch calibrations")
        self.policy.refuse_if_private("alarms tell of protected samples")
        calibration = Calibration.from_json(bytes(request.calibration))
        name = f"monitor-{calibration.fingerprint[:16]}-{request.level}.json"
        monitor = Monitor(
            calibration,
            client=request.client,
            level=request.level,
            min_coverage=request.floor,
            delta=request.delta,
            path=_folder("monitor-folder", self.policy.monitor_dir) / name,
        )
        predictions, targets, ids = self.fresh_data_fn(*self.model_inputs)
        monitor.update(predictions, targets, ids=ids)
        return monitor.e_value_report(request.round, request.step).to_json()


def _folder(word: str, place: FilePath | None) -> Path:
    if not place:
        raise RobfcpError(f"{word}: the site has no place for this; configure it")
    return Path(make_folder(str(place)))


def handle_message(record: Any, site: Callable[[], ClientRequestHandler]) -> dict[str, Any]:
    """What goes back: the nonce of the request, and the answer or a code.

    No exception leaves the site: its text might hold data, and stays in the site's log.
    """
    nonce, private = "", False
    try:
        found, body = (record.get("nonce"), record.get("body")) if record else (None, None)
        if not isinstance(found, str) or not isinstance(body, bytes):
            raise ClientRefusal(1, "the request is not of this protocol; update robfcp")
        nonce = found
        asked = site()
        private = asked.policy.privacy is not None
        return {"nonce": nonce, "body": asked.handle_request(body)}
    except ClientRefusal as refusal:
        log.warning("robfcp: %s", refusal)
        code = refusal.code
    except Exception as error:  # of a private site, which one it was might tell of the data
        log.exception("robfcp: no answer")
        code = 3 if isinstance(error, RobfcpError) and not private else 2
    return {"nonce": nonce, "code": code}
