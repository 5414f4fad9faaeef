"""What all engines' tests share: sites, their misbehaviour, and the table of cases with outcomes.

A fault is a function of a `Turn`: one request that came to a site, and its honest reply.
"""

import threading
from dataclasses import asdict
from functools import partial
from operator import methodcaller

import msgspec
import numpy as np

import robfcp

QUICK = {"liars": 1, "deadline": 20.0, "poll": 0.02, "sizes": "none"}  # of a configuration


def client_data(n_clients, n_samples=60, seed=0):
    """Probabilities and labels of clients that are alike."""
    rng = np.random.default_rng(seed)
    data = {}
    for k in range(n_clients):
        p = rng.dirichlet(np.full(5, 0.4), n_samples)
        labels = (p.cumsum(axis=1) > rng.random((n_samples, 1))).argmax(axis=1)
        data[f"site-{k}"] = (p, labels)
    return data


DATA = client_data(8)


def core_reports(data, **context):
    """The same clients' reports made by the core alone."""
    return [robfcp.Report.from_predictions(name, p, y, **context) for name, (p, y) in data.items()]


def told(found):
    """What a site's own code gives: the value, or the exception it raises."""
    if isinstance(found, Exception):
        raise found
    return found


def drifting(rate, n=400, seed=0):
    """Fresh samples of which this share is missed at the threshold of `watched`."""
    y = (np.random.default_rng(seed).random(n) < rate).astype(int)
    return np.tile([0.9, 0.1], (n, 1)), y, np.arange(n)


def watched():
    """A calibration to be watched."""
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    return robfcp.calibrate(federation, defense="none")


def looked(merged):
    """A merged look, as the file of a workflow has it."""
    faulty = {fault.client for fault in merged.faulty}
    return {**asdict(merged), "alarm": merged.has_alarm, "line": merged.line, "faulty": faulty}


class Stage:
    """Who misbehaves when asked for one kind of reply, and the nonces everybody was asked with."""

    def __init__(self, names, faults=None, only="report"):
        self.faults, self.only, self.held = faults or {}, only, []
        self.asked, self.spoilt = {name: [] for name in names}, {}

    def act(self, turn, client, request):
        """Let the client have its turn, when held replies are out where the threshold is."""
        kind = msgspec.json.decode(request["body"])["kind"]
        while kind == "check" and self.held:
            self.held.pop()()
        if kind == self.only:
            self.asked[client].append(request["nonce"])
            turn.attempt = len(self.asked[client])
        fault = self.faults.get(client) if kind == self.only else None
        (fault or honest)(turn)


class Turn:
    """What an engine lets a site do: its `record` is the honest reply, `attempt` counts from 1.

    send(record): reply with this record; without one, honestly. beside(): the honest record with
    something large beside it. fail(code): the engine says that the site's code failed. number: of
    the message, for the engine.
    """

    def __init__(self, stage, record):
        self.stage, self.record, self.attempt = stage, dict(record), 0

    def vanish(self):
        """Never reply."""

    def hold(self, fault):
        """Reply like this when the deadline is past and the threshold goes out."""
        self.stage.held.append(lambda: fault(self))

    def spoil(self, hook):
        """Reply with what does this to whoever reads it."""
        self.stage.spoilt[self.number] = hook
        self.send()

    def later(self, seconds):
        """Reply honestly after a while."""
        threading.Timer(seconds, self.send).start()


honest, silent = methodcaller("send"), methodcaller("vanish")
raised, beside = methodcaller("fail"), methodcaller("beside")
slow = partial(methodcaller, "later")  # so many seconds
late = methodcaller("hold", honest)
unreadable = methodcaller("spoil", lambda: told(ValueError("patient 4711")))


def record(**fields):
    """A record of another shape."""
    return lambda turn: turn.send(fields)


def raw(body):
    """These bytes with the right nonce."""
    return lambda turn: turn.send({"nonce": turn.record["nonce"], "body": body})


def altered(**fields):
    """The report with other fields (where callable: made of the old one), and the right nonce."""

    def fault(turn):
        report = msgspec.json.decode(turn.record["body"])
        for name, value in fields.items():
            report[name] = value(report) if callable(value) else value
        turn.send({**turn.record, "body": msgspec.json.encode(report)})

    return fault


def forged(turn):
    """Somebody else answers who knows the message's number but not its nonce."""
    turn.send({**turn.record, "nonce": "0" * 32})


def once(fault, then=honest):
    """The fault the first time, the honest reply (or another fault) the second."""
    return lambda turn: (fault if turn.attempt == 1 else then)(turn)


def twice(turn):
    """The honest reply, then a forged one."""
    turn.send()
    forged(turn)


TEN = robfcp.Binning.uniform(10)
COARSE = {
    "grid": {"name": "uniform", "digest": TEN.digest, "parameters": dict(TEN.parameters)},
    "counts": lambda report: [report["n_samples"]] + [0] * 9,
    "strata": None,
}
BROKEN = b'{"schema":1,"kind":"report","client":"site-5"}'
CASES = {  # what is done, the status, what its reason holds, and how often the site was asked
    "an honest site": (honest, "ok", "", 1),
    "not JSON": (raw(b"\xff\xfe"), "faulty", "not a valid report", 1),
    "a wrong grid": (altered(**COARSE), "faulty", "grid is", 1),
    "another round's report": (altered(round="yesterday"), "faulty", "round is yesterday", 1),
    "another model's report": (altered(model="abc"), "faulty", "model is abc", 1),
    "another score's report": (altered(score={"name": "cqr"}), "faulty", "score is", 1),
    "another client's name": (altered(client="site-5"), "faulty", "another name", 1),
    "a broken report in another's name": (raw(BROKEN), "faulty", "'grid' is missing", 1),
    "50 MB": (raw(bytes(50 * 2**20)), "rejected", "52428800 bytes", 2),
    "50 MB beside the reply": (beside, "rejected", "the reply ", 2),
    "an odd record": (record(nonce=7, body=b""), "rejected", "not of this protocol", 2),
    "an unknown code": (record(nonce="x", code=99), "rejected", "not of this protocol", 2),
    "a reply that cannot be decoded": (unreadable, "rejected", "the reply cannot be read (", 2),
    "a forged reply": (forged, "rejected", "nonce", 2),
    "a forged reply, then its own": (once(forged), "ok", "", 2),
    "a forged reply, then silence": (once(forged, silent), "rejected", "nonce", 2),
    "two replies": (twice, "ok", "", 1),
    "silence": (silent, "missing", "no answer within", 1),
    "an answer after the deadline": (late, "late", "after the deadline", 1),
    "a forgery after it": (methodcaller("hold", forged), "missing", "no answer within", 1),
    "an answer just in time": (slow(0.1), "ok", "", 1),
    "code that raised": (raised, "faulty", "failed (", 2),
    "code that raised once": (once(raised), "ok", "", 2),
}
