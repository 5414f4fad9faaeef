"""Hostile files of every kind, hostile rounds and requests on every engine that is installed.

python benchmarks/fuzz.py [WHAT ...] [--cases N | --seconds T] [--seed S]   1 on escape

WHAT: files (valid ones, broken where it hurts, read and used as people do), loopback, flower,
nvflare (see fuzz_engines.py). Printed: outcomes, the slowest case, the most memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import robfcp
from robfcp.calibration.audit import AuditLog, log_round, verify_calibration
from robfcp.calibration.file_format import digest_of
from robfcp.calibration.letters import Letter
from robfcp.calibration.record import Record
from robfcp.cli.input_tables import read_outputs
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.monitoring import AlarmHistory, EReport, merge
from robfcp.page import History, write_page
from robfcp.privacy import Ledger, Privacy
from robfcp.report.agreement import read_keys, read_sizes, read_terms
from robfcp.report.signing import generate_key, load_key, read_public_key, sign

BYTES = 2**30
Reader = Callable[[Path], object]


class TooSlow(BaseException):
    """A case took too long; no reader may swallow it."""


class Files:
    """Valid files of every kind, and what people do with each."""

    seconds, clock = 2.0, staticmethod(time.process_time)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        score = robfcp.LAC()
        self.reports = [
            robfcp.Report.from_scores(f"s{k}", rng.random(30), score=score, round="r", model="m")
            for k in range(6)
        ]
        noisy = {"n_samples": 120, "privacy": Privacy(1.0), "round": "r"}
        grid = robfcp.Grid.uniform(8)
        self.private = [
            robfcp.Report(f"p{k}", rng.integers(0, 30, 8), grid, score, **noisy) for k in range(3)
        ]
        for report in self.private:
            report.save(folder / report.client)
        self.calibration = robfcp.calibrate(self.reports, defence=robfcp.Consensus(at_most=1))
        self.calibration.save(folder / "honest.json")
        generate_key(folder / "k")
        self.key = load_key(folder / "k")
        self.public = read_public_key(str(folder / "k.pub"))
        for k, report in enumerate(self.reports):
            (folder / f"r{k}").write_bytes(sign(report, self.key))
        (folder / "reg.toml").write_text(f'["s1"]\nkey = "{self.public}"\n', encoding="utf-8")
        labels = rng.integers(0, 3, 60)
        self.own = rng.dirichlet(np.ones(3), 60), labels
        split = [robfcp.Report.of(f"s{k}", *self.own, by_class=True, fine=True) for k in range(6)]
        self.split = robfcp.calibrate(split, promise=robfcp.LabelShift(liars=1))
        self.split.save(folder / "split.json")
        self.watching = {"floor": 0.9, "report": split[1], "client": "s1", "seed": 1}
        self.all = self.kinds()
        self.names = list(self.all)
        for name, data, use in self.all.values():  # as they are, all of them pass
            (folder / name).write_bytes(data)
            use(folder / name)

    def case(self, number: int, rng: np.random.Generator) -> str:
        """Break a file and use it; its kind."""
        kind = self.names[number % len(self.names)]
        name, data, use = self.all[kind]
        (self.folder / name).write_bytes(mutated(kind, data, rng))
        use(self.folder / name)
        return kind

    def kinds(self) -> dict[str, tuple[str, bytes, Reader]]:
        """Each kind's file name, a valid file, and what is done with it."""
        letter = self.split.letter("s1").to_json()
        state = self.folder / "state"
        watch = robfcp.Monitor(self.split, path=state, **self.watching)
        watch.update(*self.own, ids=range(60))
        history = AlarmHistory(self.split.identity, "r", 6, 1, 0.05)
        for step in (1, 2):
            _, history = history.looked([watch.e_report("r", step)], step)
        Ledger(self.folder / "ledger", "d").charge(Privacy(1.0, rounds=3), "r")
        log_round(AuditLog(self.folder / "log"), self.calibration, {})
        keys = f'["s1"]\nsamples = 30\nkey = "{self.public}"\nnot-after = "2099-01-01"\n'
        signed = self.calibration.to_json(self.key)
        sizes = json.dumps({f"s{k}": 30 for k in range(6)})
        terms = 'round = "r"\nmodel = "m"\nscore = "lac"\ngrid = "uniform:9"\nepsilon = 1.0\n'
        revoked, log = f"{self.public} # old\n".encode(), (self.folder / "log").read_bytes()
        public = (self.folder / "k.pub").read_bytes()
        rows = np.random.default_rng(1).dirichlet(np.ones(3), 20)
        npz, npy = io.BytesIO(), io.BytesIO()
        np.savez_compressed(npz, probabilities=rows, labels=np.arange(20) % 3)
        np.save(npy, rows)
        csv = "a,b,label\n" + "".join(f"{a},{1 - a},{k % 2}\n" for k, a in enumerate(rows[:, 0]))
        return {
            "report": ("x.json", self.reports[1].to_json(), self.use_report),
            "private report": ("x.json", self.private[1].to_json(), self.use_private),
            "signed report": ("x.json", sign(self.reports[1], self.key), self.use_signed),
            "calibration": ("x.json", self.calibration.to_json(), self.use_calibration),
            "signed calibration": (
                "x.json",
                signed,
                partial(robfcp.Calibration.load, server_key=self.public),
            ),
            "record": ("x.json", self.calibration.record.to_json(), self.use_record),
            "letter": ("x.json", letter, self.use_letter),
            "calibration by class": (
                "x.json",
                self.split.to_json(),
                partial(self.use_calibration, honest="split"),
            ),
            "report by class": (
                "x.json",
                list(self.split.federation)[1].to_json(),
                self.use_report,
            ),
            "history": ("x.json", history.to_json(), self.use_history),
            "monitor state": ("x", state.read_bytes(), self.use_state),
            "e-report": ("x.json", watch.e_report("r", 3).to_json(), self.use_e_report),
            "sizes": ("x.json", sizes.encode(), read_sizes),
            "keys": ("x.toml", keys.encode(), read_keys),
            "terms": ("x.toml", terms.encode(), self.use_terms),
            "revoked": ("x", revoked, lambda path: read_keys(self.folder / "reg.toml", path)),
            "private key": ("x", (self.folder / "k").read_bytes(), load_key),
            "public key": ("x", public, lambda path: read_public_key(str(path))),
            "ledger": ("x", (self.folder / "ledger").read_bytes(), self.use_ledger),
            "audit log": ("x", log, lambda path: list(AuditLog(path).events())),
            "npz": ("x.npz", npz.getvalue(), self.use_outputs),
            "npy": ("x.npy", npy.getvalue(), self.use_outputs),
            "csv": ("x.csv", csv.encode(), self.use_outputs),
        }

    def use_report(self, path: Path) -> None:
        """In a round with honest ones, to the end."""
        sent = [*self.reports[:1], path.read_bytes(), *self.reports[2:]]
        robfcp.calibrate(robfcp.Federation.from_reports(sent))

    def use_private(self, path: Path) -> None:
        """In a round of private ones, with a guarantee."""
        federation = Federation.read([path, self.folder / "p0", self.folder / "p2"])
        robfcp.calibrate(federation, promise=robfcp.Marginal(liars=1))

    def use_terms(self, path: Path) -> None:
        """All that they say."""
        terms = read_terms(path)
        _ = terms.agreed

    def use_signed(self, path: Path) -> None:
        """With and without registered keys."""
        others = [self.folder / f"r{k}" for k in (0, 2, 3)]
        Federation.read([path, *others])
        Federation.read([path, others[0]], keys={"s0": self.public, "s1": self.public}, round="r")

    def use_calibration(self, path: Path, honest: str = "honest") -> None:
        """Load, predict, verify and draw."""
        loaded = robfcp.Calibration.load(path)
        with contextlib.suppress(RobfcpError):
            loaded.predict_set(np.full((4, 3), 1 / 3), 0)
        loaded = loaded.with_record(next(self.folder.glob(f"{honest}.*.record.json")))
        verify_calibration(loaded)
        write_page(loaded, self.folder / "page.html")

    def use_record(self, path: Path) -> None:
        """As the record of the honest calibration, whose digest a forger would write anew."""
        record = Record.from_json(path.read_bytes(), "record")
        again = robfcp.calibrate(record.federation, defence=robfcp.Consensus(at_most=0))
        write_page(again, self.folder / "page.html")

    def use_letter(self, path: Path) -> None:
        """As a site would."""
        letter = Letter.load(path)
        letter.at_site(*self.own)
        letter.calibration.predict_set(self.own[0], 0)

    def use_history(self, path: Path) -> None:
        """One more look, and draw it."""
        alarms = AlarmHistory.load(path)
        with contextlib.suppress(RobfcpError):
            sent = [EReport("s2", alarms.calibration, 0.9, 9, 0.5, alarms.round, 9)]
            _, alarms = alarms.looked(sent, 9)
        write_page(History(alarms=alarms), self.folder / "page.html")

    def use_state(self, path: Path) -> None:
        """Go on from it."""
        watch = robfcp.Monitor(self.split, path=path, **self.watching)
        watch.update(*self.own, ids=range(30, 90))
        watch.e_report("r", 9)

    def use_e_report(self, path: Path) -> None:
        """Merge it with others."""
        report = EReport.load(path)
        merge([report, *(replace(report, client=f"o{k}") for k in range(3))], 1)

    def use_ledger(self, path: Path) -> None:
        """Charge it."""
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}.lock").unlink()
        Ledger(path, "d").charge(Privacy(1.0, rounds=3))

    def use_outputs(self, path: Path) -> None:
        """Score and predict."""
        found = read_outputs(path, needs_targets=False)
        self.calibration.predict_set(found.predictions, 0)
        if found.targets is not None:
            robfcp.LAC()(found.predictions, found.targets)


HOSTILE: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63), 1e308, -1e308, 5e-324, 0.1,
    "", "a", "\x00", "\n\x1b[2J", "\u202e", "x" * 300, "9" * 400, "ed25519:", "NaN", "1e999",
    "file:x",    [], [0], [[]], [1, 0], [0] * 2000, {}, {"a": 1}, {"bins": [0], "counts": [1]},
    {"name": "uniform", "digest": "0", "parameters": {"bins": 10**9, "low": 0, "high": 1}},
    {"name": "uniform", "digest": "0", "parameters": {"bins": 20000, "low": -1e308, "high": 1e308}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a JSON value; long lists by a few of theirs."""
    found = [path]
    if isinstance(value, dict):
        for key in value:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for k in sorted({0, len(value) // 2, len(value) - 1} & set(range(len(value)))):
            found += places(value[k], (*path, k))
    return found


def mutate_json(data: bytes, rng: np.random.Generator) -> bytes:
    """Another value, a dropped or added field at one to three places; digests made to fit."""
    value = json.loads(data)
    for _ in range(rng.integers(1, 4)):
        spots = places(value)
        spot = spots[rng.integers(len(spots))]
        if not spot:
            continue
        holder = value
        for key in spot[:-1]:
            holder = holder[key]
        action = rng.integers(5)
        if action == 0 and isinstance(holder, dict):
            holder.pop(spot[-1], None)
        elif action == 1 and isinstance(holder, dict):
            holder[str(HOSTILE[rng.integers(len(HOSTILE))])[:50]] = 1
        elif action == 2 and isinstance(holder[spot[-1]], (int, float)):
            holder[spot[-1]] = holder[spot[-1]] * int(rng.integers(-3, 10**6)) + 1
        else:
            holder[spot[-1]] = copy.deepcopy(HOSTILE[rng.integers(len(HOSTILE))])
    if isinstance(value, dict) and "body" in value and rng.random() < 0.8:
        body = json.dumps(value["body"], separators=(",", ":")).encode()
        value = {**value, "digest": digest_of(body)}
    text = json.dumps(value, separators=(",", ":"))
    if rng.random() < 0.03:
        text = text.replace("1", "[" * int(rng.integers(10, 5000)), 1)
    return text.encode()


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Flipped, cut, repeated or inserted bytes."""
    found = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(len(found) + 1))
        action = rng.integers(5)
        if action == 0 and place < len(found):
            found[place] = int(rng.integers(256))
        elif action == 1:
            found = found[:place]
        elif action == 2:
            found[place:place] = rng.bytes(int(rng.integers(1, 9)))
        elif action == 3:
            found[place:place] = found[max(0, place - 40) : place]
        else:
            word = str(HOSTILE[rng.integers(len(HOSTILE))])[:80].encode("utf-8", "replace")
            found[place:place] = word
    return bytes(found)


def mutate_archive(data: bytes, rng: np.random.Generator) -> bytes:
    """Broken arrays inside a whole archive."""
    source = zipfile.ZipFile(io.BytesIO(data))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name in source.namelist():
            file.writestr(name, mutate_bytes(source.read(name), rng))
    return target.getvalue()


def mutated(kind: str, data: bytes, rng: np.random.Generator) -> bytes:
    """A hostile file of the kind."""
    if kind == "npz" and rng.random() < 0.6:
        return mutate_archive(data, rng)
    if data[:1] == b"{" and b"\n" not in data and rng.random() < 0.8:
        return mutate_json(data, rng)
    return mutate_bytes(data, rng)


def memory() -> int:
    """The most this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alarm(*_: object) -> None:
    """What ends a case that hangs."""
    raise TooSlow


def attempt(part: Any, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """What came of one case: its kind, and read, refused or what escaped."""
    before, started = memory(), part.clock()
    signal.setitimer(signal.ITIMER_REAL, 30)
    kind, outcome = "", "read"
    try:
        kind = part.case(number, rng)
    except RobfcpError as error:
        outcome = "refused" if str(error).isprintable() else "unprintable"
    except BaseException as error:
        outcome = f"ESCAPE {type(error).__name__}: {str(error)[:200]}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    seconds, grown = part.clock() - started, memory() - before
    if seconds > part.seconds or grown > BYTES:
        outcome = f"COST {seconds:.1f} s, {grown / 2**20:.0f} MiB"
    return kind or part.names[number % len(part.names)], outcome


def play(what: str, part: Any, cases: int, limit: float, seed: int) -> int:
    """Run a part's cases, or as many as the seconds allow; how many escaped."""
    outcomes: Counter[tuple[str, str]] = Counter()
    escapes, slowest, start, number = [], (0.0, ""), memory(), 0
    end = time.monotonic() + limit
    while number < cases if not limit else time.monotonic() < end:
        started = time.monotonic()
        kind, outcome = attempt(part, number, np.random.default_rng([seed, number]))
        slowest = max(slowest, (time.monotonic() - started, f"{kind} {number}"))
        outcomes[kind, outcome.split(" ")[0]] += 1
        if outcome not in ("read", "refused"):
            escapes.append(f"{what} {kind} {number}, seed {seed}: {outcome}")
        number += 1
    for kind in sorted({kind for kind, _ in outcomes}):
        found = {word: count for (k, word), count in outcomes.items() if k == kind}
        print(f"{kind:24s} {found}")
    print(
        f"{what}: {number} cases, seed {seed}: {len(escapes)} escapes; slowest {slowest[0]:.2f} s "
        f"({slowest[1]}); memory grew by {(memory() - start) / 2**20:.0f} MiB"
    )
    print(*escapes[:10], sep="\n")
    return len(escapes)


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", default=["files"])
    parser.add_argument("--cases", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    signal.signal(signal.SIGALRM, alarm)
    os.umask(0o077)  # private keys that others can read are refused
    escapes = 0
    for what in told.what:
        with tempfile.TemporaryDirectory() as place:
            part: Any
            if what == "files":
                resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
                part = Files(Path(place))
            else:
                part = importlib.import_module("fuzz_engines").Hostile(what, Path(place))
            escapes += play(what, part, told.cases, told.seconds / len(told.what), told.seed)
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
