"""Hostile rounds on Flower in this process: every round ends in time with everybody who answered.

python benchmarks/fuzz_flower.py [ROUNDS] [SEED]      needs flwr; 1 on an escape
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from operator import methodcaller
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))
import engine_faults as faults
from engine_data import client_data
from flower_faults import FaultyNetwork
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from fuzz import mutate_bytes, mutate_json

from robfcp.engines import calibration_round
from robfcp.engines.flower import Flower
from robfcp.engines.protocol import RECORD
from robfcp.errors import RobfcpError

NODES, DEADLINE = 6, 0.15
ERRORS = [
    ValueError,
    TypeError,
    KeyError,
    MemoryError,
    RecursionError,
    UnicodeError,
    AssertionError,
]


class Hostile(FaultyNetwork):
    """Some replies raise when they are pulled, some take their time."""

    def __init__(self, data: Any, chosen: Any, rng: np.random.Generator) -> None:
        super().__init__(data, chosen)
        self.rng, self.raising, self.hanging = rng, set(), set()

    def pull_messages(self, message_ids: Any) -> Any:
        """Raise or hang for the messages it was told to."""
        for message_id in message_ids:
            if message_id in self.raising:
                raise ERRORS[int(self.rng.integers(len(ERRORS)))]("patient 4711")
            if message_id in self.hanging:
                time.sleep(DEADLINE)
        return super().pull_messages(message_ids)


def raising(turn: Any) -> None:
    """A reply that cannot be decoded."""
    turn.network.raising.add(turn.message.metadata.message_id)


def hanging(turn: Any) -> None:
    """A reply of which a part is withheld for a while."""
    turn.network.hanging.add(turn.message.metadata.message_id)


def mangled(rng: np.random.Generator, change: Any) -> Any:
    """The honest report, broken."""
    return lambda turn: turn.send({**turn.record, "body": change(turn.record["body"], rng)})


def records(rng: np.random.Generator) -> Any:
    """Records of other shapes and kinds."""

    def fault(turn: Any) -> None:
        nonce = turn.record["nonce"]
        options = [
            RecordDict({}),
            RecordDict({"x": ConfigRecord({})}),
            RecordDict({RECORD: MetricRecord({"nonce": 1})}),
            RecordDict({RECORD: ConfigRecord({"nonce": nonce})}),
            RecordDict({RECORD: ConfigRecord({"nonce": nonce, "code": 2**40})}),
            RecordDict({RECORD: ConfigRecord({"nonce": nonce, "code": True})}),
            RecordDict({RECORD: ConfigRecord({"nonce": nonce, "body": "text"})}),
            RecordDict({RECORD: ConfigRecord({"nonce": "\ud800", "body": b""})}),
            RecordDict({RECORD: ConfigRecord({"nonce": [nonce], "body": b"{}"})}),
        ]
        turn.content(options[int(rng.integers(len(options)))])

    return fault


def arsenal(rng: np.random.Generator) -> list[Any]:
    """What a node may do."""
    return [
        faults.silent, faults.forged, faults.twice, faults.slow(DEADLINE / 2), raising, hanging,
        faults.slow(2 * DEADLINE), methodcaller("fail", int(rng.integers(-5, 400))), records(rng),
        faults.once(faults.forged), faults.once(raising), faults.late,
        faults.raw(rng.bytes(int(rng.integers(0, 300)))), faults.raw(b"[" * 5000),
        mangled(rng, mutate_json), mangled(rng, mutate_json), mangled(rng, mutate_bytes),
    ]  # fmt: skip


def main(rounds: int, seed: int) -> int:
    """Play the rounds; the exit status."""
    data = client_data(NODES, 20)
    seen: Counter[str] = Counter()
    longest, escapes = 0.0, []
    for number in range(rounds):
        rng = np.random.default_rng([seed, number])
        liars = rng.choice(NODES, int(rng.integers(1, NODES - 1)), replace=False)
        tools = arsenal(rng)
        chosen = {f"site-{k}": tools[int(rng.integers(len(tools)))] for k in liars}
        network = Hostile(data, chosen, rng)
        honest = set(data) - set(chosen)
        started = time.monotonic()
        try:
            engine = Flower(network, deadline=DEADLINE, poll=0.02)
            found = calibration_round(engine, check=bool(number % 4 == 0))
            statuses = {c: e["status"] for c, e in found.provenance["clients"].items()}
            seen.update(statuses.values())
            lost = [client for client in honest if statuses.get(client) != "ok"]
            if lost or not set(data) <= set(statuses):
                escapes.append((number, f"honest sites lost: {lost}"))
            if b"4711" in msgspec.json.encode(found.provenance):
                escapes.append((number, "an exception's text travelled"))
        except RobfcpError as error:
            seen["round refused"] += 1
            if not str(error).isprintable():
                escapes.append((number, "unprintable"))
        except Exception as error:
            escapes.append((number, f"{type(error).__name__}: {error}"))
        longest = max(longest, time.monotonic() - started)
    print(f"{rounds} hostile rounds, seed {seed}: {len(escapes)} escapes; longest {longest:.2f} s")
    print(dict(seen))
    for escape in escapes[:10]:
        print(*escape)
    return 1 if escapes else 0


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    sys.exit(main(words[0] if words else 2_500, words[1] if len(words) > 1 else 0))
