"""What a client allows and answers, whatever a server asks: its privacy, its ledger, its binning.

A client writes its policy where it starts its node, out of the server's reach.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._files import decode_error_reason, make_folder, read_bounded, write_atomically
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError, RobfcpWarning
from robfcp.integrations import _messages
from robfcp.integrations._keys import POLICY_SYNONYMS, require_known_keys, warn_of_synonyms
from robfcp.integrations._messages import ClientRefusal
from robfcp.local import ClientFeedback
from robfcp.monitoring import Monitor
from robfcp.privacy import Privacy, PrivacyLedger, parse_binning
from robfcp.reports import (
    DEFAULT_MIN_CELL_COUNT,
    Report,
    from_wire_binning,
    from_wire_score,
    signing,
)
from robfcp.scores import ClassificationScore, Score, get_score, scores_with_nan

FilePath = str | os.PathLike[str]
DataSplit = Literal["calibration", "test"]
Attack = Callable[[NDArray[np.float64]], ArrayLike]

BUDGET_ATTRIBUTES = {  # key: attribute of `Privacy`, beside dp-epsilon
    "dp-delta": "delta",
    "neighbors": "neighbors",
    "max-samples-per-patient": "max_samples_per_patient",
    "n-rounds": "n_rounds",
}
PRIVACY_ATTRIBUTES = {  # key: attribute of `ClientPolicy`
    "privacy-ledger": "ledger",
    "privacy-dataset": "dataset",
    "privacy-binning": "binning",
    "privacy-score": "score",
    "declared-samples": "declared_samples",
}
POLICY_ATTRIBUTES = {
    "stratify-by-class": "stratify_by_class",
    "min-class-count": "min_class_count",
    "min-cell-count": "min_cell_count",
    "signing-key": "signing_key",
    "feedback-dir": "feedback_dir",
    "monitor-dir": "monitor_dir",
}
FUNCTION_KEYS = ("predict-fn", "fresh-data-fn")  # functions of the client, as module:function


class ClientPolicyFile(
    msgspec.Struct, forbid_unknown_fields=True, rename="kebab", omit_defaults=True, kw_only=True
):
    """The file of a client's policy, `robfcp.json`; every key may be left out.

    Attributes
    ----------
    dp_epsilon, dp_delta : float
        The privacy budget of a report.
    neighbors : {"substitution", "add-remove"}
        What the noise protects.
    max_samples_per_patient, n_rounds : int
        The largest number of samples of one patient; the number of reports that share the budget.
    privacy_ledger, privacy_dataset : str
        The file of the privacy ledger; the name of the data in it.
    privacy_binning, privacy_score : str
        The only binning and score that are reported on.
    declared_samples : int
        The number of samples that is stated, without counting the data.
    stratify_by_class : bool
        True for counts by class, False to report no labels.
    min_class_count, min_cell_count : int
        How small the cells of reports may be.
    signing_key : str
        The file of the private key that signs reports.
    feedback_dir, monitor_dir : str
        Where feedback and the states of monitors are stored.
    predict_fn, fresh_data_fn : str
        Functions of the client, as module:function.
    output_dir : str
        Of a server: where results are written.
    """

    dp_epsilon: float | None = None
    dp_delta: float | None = None
    neighbors: Literal["substitution", "add-remove"] | None = None
    max_samples_per_patient: int | None = None
    n_rounds: int | None = None
    privacy_ledger: str | None = None
    privacy_dataset: str | None = None
    privacy_binning: str | None = None
    privacy_score: str | None = None
    declared_samples: int | None = None
    stratify_by_class: bool | None = None
    min_class_count: int | None = None
    min_cell_count: int | None = None
    signing_key: str | None = None
    feedback_dir: str | None = None
    monitor_dir: str | None = None
    predict_fn: str | None = None
    fresh_data_fn: str | None = None
    output_dir: str | None = None


KNOWN_KEYS = ClientPolicyFile.__struct_encode_fields__

log = logging.getLogger(__name__)

# The filters of warnings belong to the process, in which a simulator runs clients in threads.
_WARNINGS_LOCK = threading.Lock()


@dataclass(frozen=True)
class ClientPolicy:
    """What one client allows.

    Parameters
    ----------
    privacy : Privacy, optional
        The noise of its reports.
    ledger : path, optional
        Where it records the budget spent; a private client needs one.
    dataset : str
        The name of the data in the ledger.
    binning, score : Binning, Score, optional
        The binning and score that it reports; any if None.
    declared_samples : int, optional
        The number of samples that it declares, without counting its data.
    stratify_by_class : bool, optional
        As `Report.from_predictions` takes it: True for counts by class, False to withhold the
        labels, None for its default.
    min_class_count, min_cell_count : int
        How small the cells of its reports may be, as there.
    signing_key : path, optional
        The private key that its reports are signed with.
    feedback_dir, monitor_dir : path, optional
        Where it stores feedback, and the states of monitors.
    """

    privacy: Privacy | None = None
    ledger: FilePath | None = None
    dataset: str = "calibration data"
    binning: Binning | None = None
    score: Score | None = None
    declared_samples: int | None = None
    stratify_by_class: bool | None = None
    min_class_count: int = 1
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT
    signing_key: FilePath | None = None
    feedback_dir: FilePath | None = None
    monitor_dir: FilePath | None = None

    def __post_init__(self) -> None:
        if self.privacy is not None and not self.ledger:
            raise ClientRefusal(6, "ledger: privacy needs a file that stays across runs; name it")

    def with_config(self, config: Mapping[str, Any]) -> ClientPolicy:
        """Return the policy, in which the values of the client's configuration take precedence."""
        warn_of_synonyms(config, KNOWN_KEYS, POLICY_SYNONYMS)
        if "epsilon" in config and "dp-epsilon" not in config:
            # Without this, a budget under a wrong key would mean a report without noise.
            raise RobfcpError("epsilon: is unknown; did you mean dp-epsilon?")

        attributes: dict[str, Any] = {}
        for key, attribute in (POLICY_ATTRIBUTES | PRIVACY_ATTRIBUTES).items():
            if key in config:
                attributes[attribute] = config[key]
        if "binning" in attributes:
            attributes["binning"] = parse_binning(attributes["binning"])
        if "score" in attributes:
            attributes["score"] = get_score(attributes["score"])

        if "dp-epsilon" in config:
            budget = {}
            for key, attribute in BUDGET_ATTRIBUTES.items():
                if key in config:
                    budget[attribute] = config[key]
            attributes["privacy"] = Privacy(config["dp-epsilon"], **budget)
        return replace(self, **attributes)

    def refuse_if_private(self, subject: str) -> None:
        """Refuse a request whose answer depends on protected samples, outside the budget."""
        if self.privacy is not None:
            raise ClientRefusal(4, subject)


def read_client_policy(path: Path) -> dict[str, Any]:
    """Read the configuration of a client; empty if there is no file; refuse unknown keys."""
    if not path.exists():
        return {}
    try:
        config = msgspec.json.decode(read_bounded(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RobfcpError(
            f"{path}: not a JSON object ({decode_error_reason(error)}); fix it"
        ) from None
    require_known_keys(config, KNOWN_KEYS, POLICY_SYNONYMS, source=path)
    try:
        msgspec.convert(config, ClientPolicyFile)
    except msgspec.ValidationError as error:
        raise RobfcpError(f"{path}: {decode_error_reason(error)}; correct it") from None
    return config


@dataclass(frozen=True)
class ClientRequestHandler:
    """A client while it answers one request.

    Parameters
    ----------
    policy : ClientPolicy
        What the client allows.
    predict_fn : callable, optional
        ``predict_fn(split, *model_inputs)`` returns predictions and targets of the calibration or
        test data, by the model that came with the request or the client's model.
    fresh_data_fn : callable, optional
        ``fresh_data_fn(*model_inputs)`` returns predictions, targets and names of the samples
        labeled since.
    model_inputs : tuple
        What the framework passes to both, with the model.
    model : str, optional
        The digest of the model, if one came with the request.
    cache : mapping
        What is stored between requests.
    seed : sequence of int, optional
        The seed of randomized scores; random if None.
    attack : callable, optional
        ``attack(scores)`` returns what is reported instead, in simulations.
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
        """Return the answer to a request; raise if the client gives none."""
        request = _messages.read_request(body)
        methods: dict[type[_messages.Request], Callable[[Any], Any]] = {
            _messages.SizeRequest: self._size,
            _messages.ReportRequest: self._report,
            _messages.EvaluateRequest: self._evaluate,
            _messages.FeedbackRequest: self._feedback,
            _messages.MonitorRequest: self._monitor,
        }
        answer_request = methods[type(request)]
        answer = answer_request(request)
        if isinstance(answer, bytes):
            return answer
        return msgspec.json.encode(answer)

    def _outputs(self, split: DataSplit) -> tuple[ArrayLike, ArrayLike]:
        """Return predictions and targets of the calibration or test data."""
        if self.predict_fn is None:
            raise RobfcpError("predict_fn: this client has none; configure predict-fn")
        return self.predict_fn(split, *self.model_inputs)

    def _size(self, request: _messages.SizeRequest) -> int:
        """Return the number of calibration samples."""
        if self.policy.privacy is not None and self.policy.privacy.protects_sample_size:
            raise ClientRefusal(4, "the number of samples is protected")
        if self.policy.declared_samples is not None:
            return self.policy.declared_samples
        _, targets = self._outputs("calibration")
        return len(np.asarray(targets))

    def _report(self, request: _messages.ReportRequest) -> bytes:
        """Return a report; of a private client the cached one, or one that is charged first."""
        policy = self.policy
        score = self._agreed_score(request)
        request_body = msgspec.json.encode(request)
        if policy.privacy is not None:
            if self.cache.get("request") == request_body:
                return bytes(self.cache["report"])
            try:
                ledger = PrivacyLedger(str(policy.ledger), policy.dataset)
                ledger.charge(policy.privacy, request.round)
            except RobfcpError as error:
                raise ClientRefusal(6, str(error)) from error

        report = self._make_report(request, score)
        if policy.signing_key is None:
            report_body = report.to_json()
        else:
            report_body = signing.sign(report, signing.load_key(policy.signing_key))
        if policy.privacy is not None:
            self.cache["request"] = request_body
            self.cache["report"] = report_body
        return report_body

    def _agreed_score(self, request: _messages.ReportRequest) -> Score:
        """Return the score of the request; refuse a binning or score that is not the policy's."""
        policy = self.policy
        if policy.binning is not None and request.binning.digest != policy.binning.digest:
            raise ClientRefusal(5, "this client does not report on the requested binning")
        score = from_wire_score(request.score)
        if score is None or policy.score not in (None, score):
            raise ClientRefusal(5, "this client does not report the requested score")
        return score

    def _make_report(self, request: _messages.ReportRequest, score: Score) -> Report:
        """Score the calibration data and make the report that the policy allows."""
        policy = self.policy
        predictions, targets = self._outputs("calibration")
        rng = np.random.default_rng(self.seed)
        if policy.privacy is None:
            scores = score(predictions, targets, rng)
        else:
            scores = scores_with_nan(score, predictions, targets, rng)
        if self.attack is not None:
            scores = np.asarray(self.attack(scores), dtype=np.float64)

        n_classes = 0
        if isinstance(score, ClassificationScore):
            n_classes = int(np.shape(predictions)[1])
        strata: dict[str, Any] = {}
        if n_classes and policy.privacy is None and policy.stratify_by_class is not False:
            strata = {
                "labels": targets,
                "classes": n_classes,
                "min_class_count": policy.min_class_count,
                "stratify_by_class": policy.stratify_by_class,
            }
        with _WARNINGS_LOCK, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RobfcpWarning)
            report = Report.from_scores(
                request.client,
                scores,
                policy.binning or from_wire_binning(request.binning),
                score=score,
                round=request.round,
                model=request.model if self.model is None else self.model,
                privacy=policy.privacy,
                min_cell_count=policy.min_cell_count,
                **strata,
            )
        for warning in caught:  # which stay in the client's log
            log.warning("robfcp: %s", warning.message)
        return report

    def _evaluate(self, request: _messages.EvaluateRequest) -> _messages.CoverageClaims:
        """Return covered samples and total set size (labels, or width of intervals) by level."""
        self.policy.refuse_if_private("test data are protected")
        calibration = Calibration.from_json(bytes(request.calibration))
        predictions, targets = self._outputs("test")
        evaluations = []
        for level in range(len(calibration.levels)):
            rng = np.random.default_rng(self.seed)
            evaluations.append(calibration.evaluate(predictions, targets, level=level, rng=rng))
        n_samples = evaluations[0].overall.n_samples
        return _messages.CoverageClaims(
            n_samples=n_samples,
            n_covered=[evaluation.overall.n_covered for evaluation in evaluations],
            total_set_size=[evaluation.mean_set_size * n_samples for evaluation in evaluations],
        )

    def _feedback(self, request: _messages.FeedbackRequest) -> str:
        """Store feedback; return the fingerprint of its calibration."""
        data = bytes(request.feedback)
        feedback = ClientFeedback.from_json(data)
        if feedback.client != request.client:
            raise ClientRefusal(1, "the feedback is for another client")
        fingerprint = feedback.calibration.fingerprint
        folder = _make_configured_folder("feedback-dir", self.policy.feedback_dir)
        write_atomically(folder / f"feedback-{fingerprint[:16]}.json", data, private=True)
        return fingerprint

    def _monitor(self, request: _messages.MonitorRequest) -> bytes:
        """Count the fresh samples; return the report of the e-values."""
        if self.fresh_data_fn is None:
            raise ClientRefusal(1, "this client does not monitor calibrations")
        self.policy.refuse_if_private("e-values depend on protected samples")
        calibration = Calibration.from_json(bytes(request.calibration))
        filename = f"monitor-{calibration.fingerprint[:16]}-{request.level}.json"
        folder = _make_configured_folder("monitor-dir", self.policy.monitor_dir)
        monitor = Monitor(
            calibration,
            client=request.client,
            level=request.level,
            min_coverage=request.min_coverage,
            delta=request.delta,
            path=folder / filename,
        )
        predictions, targets, ids = self.fresh_data_fn(*self.model_inputs)
        monitor.update(predictions, targets, ids=ids)
        return monitor.e_value_report(request.round, request.step).to_json()


def _make_configured_folder(key: str, path: FilePath | None) -> Path:
    """Create the folder of a configuration key; refuse if none is configured."""
    if not path:
        raise RobfcpError(f"{key}: the client has no folder for this; configure it")
    return Path(make_folder(str(path)))


def handle_message(record: Any, make_handler: Callable[[], ClientRequestHandler]) -> dict[str, Any]:
    """Return the nonce of a request with the answer, or with a code.

    No exception leaves the client: its text might hold data, and stays in the client's log.
    """
    nonce = ""
    is_private = False
    try:
        nonce, body = _open_request(record)
        handler = make_handler()
        is_private = handler.policy.privacy is not None
        return {"nonce": nonce, "body": handler.handle_request(body)}
    except ClientRefusal as refusal:
        log.warning("robfcp: %s", refusal)
        code = refusal.code
    except Exception as error:
        log.exception("robfcp: no answer")
        # The kind of a private client's error might depend on its data.
        is_robfcp_error = isinstance(error, RobfcpError) and not is_private
        code = 3 if is_robfcp_error else 2
    return {"nonce": nonce, "code": code}


def _open_request(record: Any) -> tuple[str, bytes]:
    """Return the nonce and the body of a request; refuse another record."""
    nonce = record.get("nonce") if record else None
    body = record.get("body") if record else None
    if not isinstance(nonce, str) or not isinstance(body, bytes):
        raise ClientRefusal(1, "the request is not of this protocol; update robfcp")
    return nonce, body
