"""What a server does in a round, on any framework."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from robfcp._validation import MAX_SAMPLES
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.errors import ReportError
from robfcp.federation import Federation, RejectedReport
from robfcp.fleet import ReplyStore
from robfcp.integrations._messages import (
    CoverageClaims,
    EvaluateRequest,
    FeedbackRequest,
    MonitorRequest,
    Participant,
    ReplyOutcome,
    ReplyStatus,
    ReportRequest,
    SizeRequest,
    read_body,
)
from robfcp.integrations._requests import MAX_REPLY_BYTES, RequestRound, Transport
from robfcp.integrations._workers import call_with_timeout
from robfcp.local import iter_feedback
from robfcp.monitoring import EValueReport, MergedEValue, merge_e_values, record_inspection
from robfcp.reports import Report, signing, to_wire_binning, to_wire_score
from robfcp.rounds import RoundFiles, RoundResult, RoundSettings, run_round
from robfcp.scores import LAC, Score

BYTES_PER_BIN = 48  # bytes of a report's bin: two numbers of at most 20 digits, with room to spare
LAST_LISTING_SECONDS = 2.0  # seconds that a network has to list who joined during the round
ROUND_NAME_BYTES = 8  # random bytes of the name of an unnamed round


def register_sample_sizes(transport: Transport) -> dict[str, int]:
    """Ask every client how many calibration samples it has.

    Parameters
    ----------
    transport : Transport
        Carries the requests.

    Returns
    -------
    dict of str to int
        The numbers of the clients whose answer is possible.
    """

    def read(body: bytes, client: str) -> int:
        n_samples: int = read_body(body, int)
        if not 0 < n_samples <= MAX_SAMPLES:
            raise ReportError(
                client, "n_samples", f"{n_samples} samples are impossible", "fix the data"
            )
        return n_samples

    return RequestRound(transport, SizeRequest, read).run(transport.present()).answers


@dataclass(frozen=True)
class CollectionSettings:
    """Whose reports a round collects, and of what; the fields are those of `run_calibration_round`.

    Parameters
    ----------
    score, binning
        What is reported; LAC and the default binning of the score if None.
    """

    score: Score | None = None
    binning: Binning | None = None
    registered_sizes: Mapping[str, int] | None = None
    quorum: int | float | None = None
    evaluate: bool = True
    keys: Mapping[str, str] | None = None
    round: str | None = None
    run_id: int | str | None = None
    expected_clients: Iterable[str] = ()
    reply_folder: str | os.PathLike[str] | None = None


def run_calibration_round(
    transport: Transport,
    *,
    score: Score | None = None,
    binning: Binning | None = None,
    registered_sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    evaluate: bool = True,
    keys: Mapping[str, str] | None = None,
    round: str | None = None,
    run_id: int | str | None = None,
    expected_clients: Iterable[str] = (),
    reply_folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Calibration:
    """Collect the clients' reports, calibrate, and send the clients the threshold.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    score : Score, optional
        The score that is reported; LAC if None.
    binning : Binning, optional
        The binning of the reports; the default of the score if None.
    registered_sizes : mapping of str to int, optional
        Which clients may report and with how many samples, fixed before the round; see
        `register_sample_sizes`.
    quorum : int or float, optional
        The smallest number of valid reports, or their fraction.
    evaluate : bool
        Whether to send the threshold and record the coverage and set size that each client claims.
    keys : mapping of str to str, optional
        Each client's public key, by which its report must be signed; a registry holds them
        (`reports.terms.read_keys`). Without keys a signature must be by the key that it names.
    round : str, optional
        The name of the round; random if None.
    run_id : int or str, optional
        The number of the framework's run, for the record.
    expected_clients : iterable of str
        The names of all registered clients, so that those offline now are listed as missing.
    reply_folder : path, optional
        A folder that stores reports in Parquet as they arrive, so that memory holds only some. A
        round that died is resumed from it without asking these clients again. It is empty after a
        round.
    **options
        Those of `robfcp.calibrate`.

    Returns
    -------
    Calibration
        Its `provenance` holds the run and what every client did.
    """
    collection = CollectionSettings(
        score,
        binning,
        registered_sizes,
        quorum,
        evaluate,
        keys,
        round,
        run_id,
        expected_clients,
        reply_folder,
    )
    return run_transport_round(transport, collection, RoundSettings(**options)).calibration


def run_transport_round(
    transport: Transport,
    collection: CollectionSettings,
    settings: RoundSettings,
    files: RoundFiles | None = None,
) -> RoundResult:
    """Collect the clients' reports and run the round on them, with its provenance in the record.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    collection : CollectionSettings
        Whose reports are collected.
    settings : RoundSettings
        What the round is asked for.
    files : RoundFiles, optional
        Where results go.

    Returns
    -------
    RoundResult
    """
    collector = _Collector(transport, collection)
    return run_round(collector.collect(), settings, files, complete=collector.complete)


class _Collector:
    """Collects the reports of one round, and records how they arrived."""

    def __init__(self, transport: Transport, settings: CollectionSettings) -> None:
        self.transport = transport
        self.settings = settings
        self.score = settings.score or LAC()
        self.binning = settings.binning or self.score.default_binning()
        self.store: ReplyStore | None = None
        if settings.reply_folder is not None:
            self.store = ReplyStore(settings.reply_folder)
        self.round = self._round_name()
        self.started = datetime.now(timezone.utc)
        self.participants = transport.present()

    def _round_name(self) -> str:
        """Return the name given, that of the round which died, or a new one."""
        if self.settings.round:
            return self.settings.round
        if self.store is not None and self.store.round:
            return self.store.round
        return secrets.token_hex(ROUND_NAME_BYTES)

    def collect(self) -> Federation:
        """Ask the clients without a stored report for theirs; return the valid reports."""
        wire_score: Any = to_wire_score(self.score)
        request = partial(
            ReportRequest,
            round=self.round,
            model=self.transport.model,
            binning=to_wire_binning(self.binning),
            score=wire_score,
        )
        max_bytes = BYTES_PER_BIN * self.binning.n_bins + MAX_REPLY_BYTES
        self.requests: RequestRound[Any] = RequestRound(
            self.transport, request, self._read_report, max_bytes
        )

        # The round that died has stored the reports of these clients.
        stored_clients: set[str] = set()
        if self.store is not None:
            stored_clients = {client for client, _ in self.store}
        for participant in self.participants:
            if participant.client in stored_clients:
                outcome = ReplyOutcome(participant, "ok", "", participant.client)
                self.requests.done[participant] = outcome
        self.requests.run(
            participant
            for participant in self.participants
            if participant.client not in stored_clients
        )
        return self._federation()

    def _read_report(self, body: bytes, client: str) -> Report | str:
        """Return the report in a reply, or the receipt of the store it was put into."""
        keys = self.settings.keys
        if keys is None:
            signing.check_embedded_key(body, client)
            report = Report.from_json(signing.unwrap(body), client)
        else:
            report = signing.verify(body, Report, keys, self.round, client)
        if report.client != client:
            raise ReportError(client, "client", "reports under another name", "use the given name")
        if self.store is None:
            return report
        return self.store.add(client, body, self.round)

    def _federation(self) -> Federation:
        """Return the valid reports of the clients that answered."""
        reports: Iterable[Any] = self.requests.answers.values()
        if self.store is not None:
            reports = (report for _, report in self.store)
        rejected = [
            _rejection(outcome)
            for outcome in self.requests.outcomes
            if outcome.status in ("invalid", "refused_by_client")
        ]
        signatures = self.transport.signatures
        if self.settings.keys:
            signatures += ", reports by registered keys"
        present = [participant.client for participant in self.participants]
        return Federation.from_reports(
            reports,
            registered_sizes=self.settings.registered_sizes,
            quorum=self.settings.quorum,
            binning=self.binning,
            score=self.score,
            round=self.round,
            model=self.transport.model,
            rejected=rejected,
            expected_clients=[*self.settings.expected_clients, *present],
            signatures=signatures,
        )

    def complete(self, calibration: Calibration) -> Calibration:
        """Send the clients the threshold; return the calibration with its provenance."""
        # A round that dies from here on has its calibration: the store must not resume it.
        if self.store is not None:
            self.store.clear()

        claims: Mapping[str, CoverageClaims] = {}
        if self.settings.evaluate:
            claims = _collect_claims(self.transport, self.participants, calibration)
        self.requests.note_late()

        run_id = self.settings.run_id
        finished = datetime.now(timezone.utc)
        provenance = {
            "framework": self.transport.name,
            "run_id": None if run_id is None else str(run_id),
            "started": self.started.isoformat(timespec="seconds"),
            "finished": finished.isoformat(timespec="seconds"),
            "deadline": self.transport.deadline,
            "clients": _client_entries(self.transport, self.requests.outcomes, calibration, claims),
        }
        record = replace(calibration.require_record(), provenance=provenance)
        return calibration.with_record(record)


def _collect_claims(
    transport: Transport, participants: list[Participant], calibration: Calibration
) -> dict[str, CoverageClaims]:
    """Return what the clients with valid reports claim about their test data."""

    def read(body: bytes, client: str) -> CoverageClaims:
        claims: CoverageClaims = read_body(body, CoverageClaims)
        n_levels = len(calibration.levels)
        has_all_levels = len(claims.n_covered) == len(claims.total_set_size) == n_levels
        is_possible = all(0 <= n_covered <= claims.n_samples for n_covered in claims.n_covered)
        if not has_all_levels or not is_possible:
            raise ReportError(client, "n_covered", "impossible counts", "update robfcp")
        return claims

    request = partial(EvaluateRequest, calibration=msgspec.Raw(calibration.to_json()))
    reported = set(calibration.federation.clients)
    requests = RequestRound(transport, request, read)
    addressed = [participant for participant in participants if participant.client in reported]
    return requests.run(addressed).answers


def _client_entry(
    participant: Participant | None,
    status: ReplyStatus,
    reason: str,
    attempts: int = 0,
    claims: CoverageClaims | None = None,
) -> dict[str, Any]:
    """Return the entry of one client in the record; `participant` is None if it has no node."""
    return {
        "node_id": None if participant is None else str(participant.node_id),
        "public_key": None if participant is None else participant.public_key.hex(),
        "status": status,
        "reason": reason,
        "attempts": attempts,
        "claims": msgspec.to_builtins(claims),
    }


def _client_entries(
    transport: Transport,
    outcomes: list[ReplyOutcome[Any]],
    calibration: Calibration,
    claims: Mapping[str, CoverageClaims],
) -> dict[str, dict[str, Any]]:
    """Return node, public key, status and claims of all clients, also of later ones."""
    missing = set(calibration.missing_clients)
    entries = {}
    for client in missing:
        entries[client] = _client_entry(None, "missing", "registered but not connected")

    # Clients that are connected now and were not asked; a network that hangs is not waited for.
    addressed_nodes = {outcome.participant.node_id for outcome in outcomes}
    try:
        present_now = call_with_timeout(transport.present, LAST_LISTING_SECONDS)
    except Exception:
        present_now = []
    for participant in present_now:
        if participant.node_id not in addressed_nodes:
            client = participant.client
            status: ReplyStatus = "missing" if client in missing else "not_contacted"
            entries[client] = _client_entry(
                participant,
                status,
                "joined after the round had begun",
                claims=claims.get(client),
            )

    # The report in a valid reply can be rejected in comparison with the others.
    reason_of_rejected = {
        rejected.client: rejected.reason for rejected in calibration.rejected_reports
    }
    for outcome in outcomes:
        client = outcome.participant.client
        status = outcome.status
        reason = outcome.reason
        if status == "ok" and client in reason_of_rejected:
            status = "invalid"
            reason = reason_of_rejected[client]
        entries[client] = _client_entry(
            outcome.participant, status, reason, outcome.attempts, claims.get(client)
        )
    return dict(sorted(entries.items()))


def send_feedback(
    transport: Transport, calibration: Calibration, key: Any = None
) -> list[ReplyOutcome[str]]:
    """Send every connected client its feedback.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    calibration : Calibration
        With its record.
    key : Ed25519PrivateKey, optional
        The server's private key that the feedback is signed with.

    Returns
    -------
    list of ReplyOutcome
        Which clients have stored it, and which have not.
    """

    def read(body: bytes, client: str) -> str:
        fingerprint: str = read_body(body, str)
        if fingerprint != calibration.fingerprint:
            raise ReportError(client, "calibration", "stores other feedback", "update robfcp")
        return fingerprint

    def request(client: str) -> FeedbackRequest:
        return FeedbackRequest(client=client, feedback=feedback_of[client])

    participants = transport.present()
    present = {participant.client for participant in participants}
    feedback_of = {}
    for feedback in iter_feedback(calibration, present):
        feedback_of[feedback.client] = msgspec.Raw(feedback.to_json(key))
    requests = RequestRound(transport, request, read)
    addressed = [participant for participant in participants if participant.client in feedback_of]
    return requests.run(addressed).outcomes


def run_monitoring_round(
    transport: Transport,
    calibration: Calibration,
    max_malicious: int,
    *,
    round: str,
    step: int = 0,
    level: int = 0,
    min_coverage: float | None = None,
    delta: float = 0.05,
    independent: bool = False,
    history: str | os.PathLike[str] | None = None,
) -> MergedEValue:
    """Ask all clients for their e-values, and merge them.

    A client without a valid answer counts as no alarm.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    calibration : Calibration
        The calibration that is monitored.
    max_malicious : int
        The largest number of malicious clients.
    round : str
        The name of the round.
    step : int
        The number of the inspection; the times of inspections are fixed before the first.
    level : int
        The index of the calibration's level that is monitored.
    min_coverage : float, optional
        The coverage that must hold; the certified lower bound if None.
    delta : float
        The probability of a false alarm, at any inspection.
    independent : bool
        Whether the clients are independent.
    history : path, optional
        A file that stores every inspection, for the page. The number of clients asked at the first
        inspection is the number of monitored clients.

    Returns
    -------
    MergedEValue
    """
    expected = {"round": round, "step": step, "calibration": calibration.fingerprint}

    def read(body: bytes, client: str) -> EValueReport:
        report = EValueReport.from_json(body, client)
        for field, expected_value in {"client": client, **expected}.items():
            value = getattr(report, field)
            if value != expected_value:
                problem = f"{field} is {value}, not {expected_value}"
                raise ReportError(client, field, problem, "answer the request")
        return report

    request = partial(
        MonitorRequest,
        round=round,
        step=step,
        calibration=msgspec.Raw(calibration.to_json()),
        level=level,
        min_coverage=min_coverage,
        delta=delta,
    )
    requests = RequestRound(transport, request, read).run(transport.present())
    reports = list(requests.answers.values())
    n_clients = len(requests.outcomes)
    rejected = [_rejection(outcome) for outcome in requests.outcomes if outcome.answer is None]

    # Each client was asked separately, so every answer is authentic.
    if history is None or not reports:
        return merge_e_values(
            reports,
            max_malicious,
            n_clients=n_clients,
            delta=delta,
            independent=independent,
            rejected=rejected,
            signatures_checked=True,
        )
    merged, _ = record_inspection(
        history,
        reports,
        max_malicious,
        step=step,
        round=round,
        n_clients=None if Path(history).exists() else n_clients,
        delta=delta,
        independent=independent,
        rejected=rejected,
        signatures_checked=True,
    )
    return merged


def _rejection(outcome: ReplyOutcome[Any]) -> RejectedReport:
    return RejectedReport(outcome.participant.client, outcome.status, outcome.line)
