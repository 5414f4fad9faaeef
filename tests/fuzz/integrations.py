"""Hostile rounds and requests, on an integration that runs in this process.

Every round ends in time with everybody who answered; every request gets an answer or a code.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import integration_faults as faults
import msgspec
import numpy as np

import robfcp
from fuzz.mutations import choose, mutate_bytes, mutate_json
from robfcp.integrations import _messages
from robfcp.reports._wire import to_wire_binning, to_wire_score

TESTS = Path(__file__).resolve().parents[1]
N_CLIENTS = 6
N_SAMPLES = 20  # of each client
NONCE = "n"
SECRET = "patient 4711"  # in exceptions at a client, here and in the drivers; must stay there
GRACE_SECONDS = 8.0  # that the server and this machine may take beyond the deadlines of a round
MALFORMED_FRACTION = 0.2  # of requests; the others have a broken body
EVALUATED_FRACTION = 0.3  # of rounds, in which clients also evaluate the coverage
CLIENT_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    MemoryError,
    RecursionError,
    UnicodeError,
    OSError,
)

Fault = Callable[[faults.Turn], object]  # a client's misbehavior when its turn comes


class Driver(NamedTuple):
    """Where the driver of an integration's tests is, and how long its rounds wait for reports."""

    folder: str  # of the tests
    module: str
    class_name: str
    deadline_seconds: float


DRIVERS = {
    "loopback": Driver(".", "integration_loopback", "LoopbackDriver", 0.15),
    "flower": Driver("flower", "flower_faults", "FlowerDriver", 0.15),
    "nvflare": Driver("nvflare", "nvflare_faults", "NVFlareDriver", 2.0),  # its clients poll
}


class HostileIntegration:
    """Runs rounds in which most clients misbehave, and sends clients hostile requests.

    `case_kinds`, `max_seconds`, `clock` and `run_case` are what `cases.Target` asks for.

    Parameters
    ----------
    integration : str
        A key of DRIVERS.
    folder : Path
        Where a client keeps its files.
    """

    clock = staticmethod(time.monotonic)  # most of a round is waiting

    def __init__(self, integration: str, folder: Path) -> None:
        logging.disable(logging.CRITICAL)
        self._folder = folder
        driver = DRIVERS[integration]
        sys.path.append(str(TESTS / driver.folder))
        self._driver = getattr(importlib.import_module(driver.module), driver.class_name)()
        self._deadline_seconds = driver.deadline_seconds
        self._data = faults.client_data(N_CLIENTS, N_SAMPLES)

        # Two deadlines: that of the reports and that of the evaluation.
        self.max_seconds = 2 * self._deadline_seconds + GRACE_SECONDS

        # Clients answer requests alike on every integration; only the loopback's driver asks them.
        self.case_kinds = ["round"]
        if hasattr(self._driver, "answer"):
            self.case_kinds += ["request"] * 3  # a round takes longer
            self._valid_requests = valid_requests(self._data)
            self._check_valid_requests()

    def run_case(self, kind: str, rng: np.random.Generator) -> None:
        """Run a hostile round, or send a hostile request."""
        if kind == "round":
            self._run_round(rng)
        else:
            self._send_request(rng)

    def _check_valid_requests(self) -> None:
        """Check that what is not broken is answered, or the cases would say nothing."""
        for body in self._valid_requests:
            reply = self._ask({"nonce": NONCE, "body": body})
            assert "body" in reply, (body[:80], reply)

    def _send_request(self, rng: np.random.Generator) -> None:
        """Send a client a broken request: it answers, or gives a code, and says no more."""
        mutate = choose((mutate_json, mutate_bytes), rng)
        body = mutate(choose(self._valid_requests, rng), rng)
        record = {"nonce": NONCE, "body": body}
        if rng.random() < MALFORMED_FRACTION:
            record = malformed_record(rng)

        reply = self._ask(record)
        assert set(reply) in ({"nonce", "body"}, {"nonce", "code"}), reply
        if "code" in reply:
            assert reply["code"] in _messages.FAILURES, reply

    def _ask(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a client's reply to a record, with fresh samples to monitor."""
        return self._driver.answer(self._folder, record, faults.drifting(0.1))

    def _run_round(self, rng: np.random.Generator) -> None:
        """Run a round: benign clients are heard, and no exception's text leaves a client."""
        n_malicious = int(rng.integers(1, N_CLIENTS - 1))
        client_faults = {}
        for k in rng.choice(N_CLIENTS, n_malicious, replace=False):
            possible_faults = hostile_faults(self._deadline_seconds, rng)
            client_faults[f"site-{k}"] = choose(possible_faults, rng)
        has_evaluation = rng.random() < EVALUATED_FRACTION

        outcomes = self._play(client_faults, has_evaluation)
        assert set(outcomes) == set(self._data)
        for client, outcome in outcomes.items():
            assert client in client_faults or outcome["status"] == "ok", f"{client} was not heard"
        assert SECRET.encode() not in msgspec.json.encode(outcomes), "an exception's text left"

    def _play(self, client_faults: dict[str, Fault], has_evaluation: bool) -> dict[str, Any]:
        """Run a round with these faults, and return what it notes of every client."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                calibration, _, _ = self._driver.play(
                    Path(folder),
                    data=self._data,
                    faults=client_faults,
                    evaluate=has_evaluation,
                    deadline=self._deadline_seconds,
                    max_malicious="unknown",
                    quorum=0.1,
                )
            except robfcp.RobfcpError as error:
                # Files may be refused, but a round must not end because of a client.
                raise AssertionError(f"the round ended: {error}") from error
            return calibration.provenance["clients"]


def valid_requests(data: dict[str, Any]) -> list[bytes]:
    """Make a request of every kind, all of which the client `site-0` answers.

    Parameters
    ----------
    data : dict
        Probabilities and labels of the clients of a round.
    """
    client = "site-0"
    calibration = robfcp.calibrate(faults.core_reports(data), defense="none")
    feedback = calibration.feedback(client)
    calibration_json = msgspec.Raw(calibration.to_json())
    feedback_json = msgspec.Raw(feedback.to_json())
    monitored_json = msgspec.Raw(faults.watched().to_json())
    binning = to_wire_binning(robfcp.Binning.uniform(16))
    score = to_wire_score(robfcp.LAC())

    requests = [
        _messages.SizeRequest(client=client),
        _messages.ReportRequest(client=client, round="r", model=None, binning=binning, score=score),
        _messages.EvaluateRequest(client=client, calibration=calibration_json),
        _messages.FeedbackRequest(client=client, feedback=feedback_json),
        _messages.MonitorRequest(
            client=client, round="r", step=0, calibration=monitored_json, min_coverage=0.9
        ),
    ]
    return [msgspec.json.encode(request) for request in requests]


def malformed_record(rng: np.random.Generator) -> dict[str, Any]:
    """Make a record of a shape that no request and no reply has."""
    records: list[dict[str, Any]] = [
        {},
        {"nonce": NONCE},
        {"nonce": NONCE, "code": 2**40},
        {"nonce": NONCE, "code": True},
        {"nonce": NONCE, "body": "text"},
        {"nonce": "\ud800", "body": b""},
        {"nonce": [NONCE], "body": b"{}"},
        {"nonce": NONCE, "body": b"{}", "code": 1},
        {"nonce": NONCE, "body": b"[" * 5000},
        {"nonce": NONCE, "body": rng.bytes(300)},
    ]
    return choose(records, rng)


def hostile_faults(deadline_seconds: float, rng: np.random.Generator) -> list[Fault]:
    """List what a client may do in place of a benign reply."""
    unreadable = unreadable_reply(choose(CLIENT_ERRORS, rng)(SECRET))
    malformed = malformed_record(rng)
    failing = methodcaller("fail", int(rng.integers(400)))
    mutated_json = mutated_reply(mutate_json, rng)
    return [
        faults.silent,
        faults.forged,
        faults.twice,
        faults.late,
        faults.slow(deadline_seconds / 2),
        faults.slow(2 * deadline_seconds),
        failing,
        unreadable,
        faults.once(faults.forged),
        faults.once(unreadable),
        faults.raw(b"[" * 5000),
        with_right_nonce(malformed),
        faults.record(**malformed),
        mutated_json,
        mutated_json,  # twice as likely as broken bytes, since it reaches further
        mutated_reply(mutate_bytes, rng),
    ]


def unreadable_reply(error: Exception) -> Fault:
    """Reply with what raises this error where it is read."""

    def raise_error() -> None:
        raise error

    return methodcaller("spoil", raise_error)


def with_right_nonce(record: dict[str, Any]) -> Fault:
    """Reply with this record and the nonce that the server expects."""

    def fault(turn: faults.Turn) -> None:
        turn.send({**record, "nonce": turn.record["nonce"]})

    return fault


def mutated_reply(
    mutate: Callable[[bytes, np.random.Generator], bytes], rng: np.random.Generator
) -> Fault:
    """Reply with the client's own report, broken."""

    def fault(turn: faults.Turn) -> None:
        turn.send({**turn.record, "body": mutate(turn.record["body"], rng)})

    return fault
