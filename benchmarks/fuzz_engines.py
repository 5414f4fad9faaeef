"""Hostile rounds and requests, on an engine in this process; `fuzz.py` runs them.

Every round ends in time with everybody who answered; every request gets an answer or a code.
"""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
import time
from operator import methodcaller
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "nvflare"))
import engine_faults as faults
from engine_faults import client_data, core_reports, drifting, told, watched
from fuzz import mutate_bytes, mutate_json

import robfcp
from robfcp.engines import protocol
from robfcp.report.wire import wire_grid, wire_score

SITES = 6
DRIVERS = {  # where each engine's driver is, and for how long a round of it waits
    "loopback": ("engine_loopback", "LoopbackDriver", 0.15),
    "flower": ("flower_faults", "FlowerDriver", 0.15),
    "nvflare": ("nvflare_faults", "NVFlareDriver", 2.0),
}
ERRORS = (ValueError, TypeError, KeyError, MemoryError, RecursionError, UnicodeError, OSError)


def choice(rng: np.random.Generator, options: Any) -> Any:
    """One of them."""
    return options[int(rng.integers(len(options)))]


def odd_record(rng: np.random.Generator, nonce: str) -> dict[str, Any]:
    """A record of another shape."""
    return choice(rng, [
        {}, {"nonce": nonce}, {"nonce": nonce, "code": 2**40}, {"nonce": nonce, "code": True},
        {"nonce": nonce, "body": "text"}, {"nonce": "\ud800", "body": b""},
        {"nonce": [nonce], "body": b"{}"}, {"nonce": nonce, "body": b"{}", "code": 1},
        {"nonce": nonce, "body": b"[" * 5000}, {"nonce": nonce, "body": rng.bytes(300)},
    ])  # fmt: skip


def mangled(rng: np.random.Generator, change: Any) -> Any:
    """The honest report, broken."""
    return lambda turn: turn.send({**turn.record, "body": change(turn.record["body"], rng)})


class Hostile:
    """Rounds in which most sites misbehave, and what a site answers to a hostile server."""

    names: tuple[str, ...] = ("round", "request", "request", "request")
    clock = staticmethod(time.monotonic)

    def __init__(self, engine: str, folder: Path) -> None:
        logging.disable(logging.CRITICAL)
        module, driver, self.deadline = DRIVERS[engine]
        self.driver, self.folder = getattr(importlib.import_module(module), driver)(), folder
        self.seconds = 2 * self.deadline + 8  # reports and check, with their graces
        self.data = client_data(SITES, 20)
        self.requests = self.honest_requests()
        if not hasattr(self.driver, "answer"):  # sites answer alike on every engine
            self.names = ("round",)
            return
        for record in self.requests:
            reply = self.driver.answer(folder, {"nonce": "n", "body": record}, drifting(0.1))
            assert "body" in reply, (record[:80], reply)

    def honest_requests(self) -> list[bytes]:
        """One of every kind, all of which the site `site-0` answers."""
        calibration = robfcp.calibrate(core_reports(self.data), defence="none")
        text = msgspec.Raw(calibration.to_json())
        letter = msgspec.Raw(calibration.letter("site-0").to_json())
        grid, score = wire_grid(robfcp.Grid.uniform(16)), wire_score(robfcp.LAC())
        whole, to = msgspec.Raw(watched().to_json()), {"client": "site-0"}
        return [
            msgspec.json.encode(request)
            for request in (
                protocol.SizeRequest(**to),
                protocol.ReportRequest(**to, round="r", model=None, grid=grid, score=score),
                protocol.CheckRequest(**to, calibration=text),
                protocol.LetterRequest(**to, letter=letter),
                protocol.MonitorRequest(**to, round="r", step=0, calibration=whole, floor=0.9),
            )
        ]

    def case(self, number: int, rng: np.random.Generator) -> str:
        """A round every fourth time, else a request."""
        kind = self.names[number % len(self.names)]
        self.round(rng) if kind == "round" else self.request(rng)
        return kind

    def request(self, rng: np.random.Generator) -> None:
        """The site answers, or gives a code, and says no more."""
        record = {"nonce": "n", "body": choice(rng, [mutate_json, mutate_bytes])(
            choice(rng, self.requests), rng)}  # fmt: skip
        if rng.random() < 0.2:
            record = odd_record(rng, "n")
        reply = self.driver.answer(self.folder, record, drifting(0.1))
        assert set(reply) in ({"nonce", "body"}, {"nonce", "code"}), reply
        assert reply.get("code", 1) in protocol.FAILURES, reply

    def round(self, rng: np.random.Generator) -> None:
        """Whoever is honest is heard, and no exception's text travels."""
        liars = rng.choice(SITES, int(rng.integers(1, SITES - 1)), replace=False)
        chosen = {f"site-{k}": choice(rng, self.arsenal(rng)) for k in liars}
        options = {"deadline": self.deadline, "liars": "unknown", "quorum": 0.1}
        with tempfile.TemporaryDirectory() as place:
            try:
                found, _, _ = self.driver.play(
                    Path(place), data=self.data, faults=chosen, check=rng.random() < 0.3, **options
                )
            except robfcp.RobfcpError as error:
                raise AssertionError(f"the round ended: {error}") from error
            clients = found.provenance["clients"]
        assert set(clients) == set(self.data)
        lost = [c for c in self.data if c not in chosen and clients[c]["status"] != "ok"]
        assert not lost, f"honest sites lost: {lost}"
        assert b"4711" not in msgspec.json.encode(clients), "an exception's text travelled"

    def arsenal(self, rng: np.random.Generator) -> list[Any]:
        """What a site may do."""
        error = choice(rng, ERRORS)("patient 4711")
        spoilt = methodcaller("spoil", lambda: told(error))
        odd = odd_record(rng, "n")
        return [
            faults.silent, faults.forged, faults.twice, faults.late, faults.slow(self.deadline / 2),
            faults.slow(2 * self.deadline), methodcaller("fail", int(rng.integers(400))), spoilt,
            faults.once(faults.forged), faults.once(spoilt), faults.raw(b"[" * 5000),
            lambda turn: turn.send({**odd, "nonce": turn.record["nonce"]}), faults.record(**odd),
            mangled(rng, mutate_json), mangled(rng, mutate_json), mangled(rng, mutate_bytes),
        ]  # fmt: skip
