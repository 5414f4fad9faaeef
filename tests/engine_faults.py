"""What a misbehaving site does with a request, on any engine; the table of cases with outcomes.

A fault is a function of a `Turn`: one request that came to a site, and its honest reply.
"""

import threading
from operator import methodcaller

import msgspec

import robfcp


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

    def hold(self):
        """Reply honestly when the deadline is past and the threshold goes out."""
        self.stage.held.append(self.send)

    def spoil(self, hook):
        """Reply with what does this to whoever reads it."""
        self.stage.spoilt[self.number] = hook
        self.send()

    def later(self, seconds):
        """Reply honestly after a while."""
        threading.Timer(seconds, self.send).start()


honest, silent, late = methodcaller("send"), methodcaller("vanish"), methodcaller("hold")
raised, beside = methodcaller("fail"), methodcaller("beside")


def slow(seconds):
    """Takes its time."""
    return methodcaller("later", seconds)


def record(**fields):
    """A record of another shape."""
    return lambda turn: turn.send(fields)


def raw(body):
    """These bytes with the right nonce."""
    return lambda turn: turn.send({**turn.record, "body": body})


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


def negative(report):
    """The counts by class, the first one impossible."""
    strata = report["strata"]
    return {**strata, "counts": [-1, *strata["counts"][1:]]}


TEN = robfcp.Grid.uniform(10)
COARSE = {
    "grid": {"name": "uniform", "digest": TEN.digest, "parameters": dict(TEN.parameters)},
    "counts": lambda report: [report["n_samples"]] + [0] * 9,
    "strata": None,
}
LOUD = msgspec.structs.asdict(robfcp.Privacy(2e-5))
NOISY = {"counts": [100_000, *[0] * 998, 60 - 100_000], "privacy": LOUD, "strata": None}
BROKEN = b'{"schema":1,"kind":"report","client":"site-5"}'
NAN = b'{"schema":1,"kind":"report","client":"site-3","counts":[NaN]}'
CASES = {  # what is done, the status, what its reason holds, and how often the site was asked
    "an honest site": (honest, "ok", "", 1),
    "NaN for a count": (raw(NAN), "faulty", "not a valid report", 1),
    "not JSON": (raw(b"\xff\xfe"), "faulty", "not a valid report", 1),
    "a wrong grid": (altered(**COARSE), "faulty", "grid is", 1),
    "another round's report": (altered(round="yesterday"), "faulty", "round is yesterday", 1),
    "another model's report": (altered(model="abc"), "faulty", "model is abc", 1),
    "another score's report": (altered(score={"name": "cqr"}), "faulty", "score is", 1),
    "another client's name": (altered(client="site-5"), "faulty", "another name", 1),
    "a broken report in another's name": (raw(BROKEN), "faulty", "'grid' is missing", 1),
    "a size of its own": (altered(n_samples=61), "faulty", "n_samples says 61", 1),
    "negative counts": (altered(strata=negative), "faulty", "negative", 1),
    "noise that nobody agreed on": (altered(**NOISY), "faulty", "claims more noise than most", 1),
    "50 MB": (raw(bytes(50 * 2**20)), "rejected", "52428800 bytes", 2),
    "50 MB beside the reply": (beside, "rejected", "the reply ", 2),
    "an odd record": (record(nonce=7, body=b""), "rejected", "not of this protocol", 2),
    "an unknown code": (record(nonce="x", code=99), "rejected", "not of this protocol", 2),
    "a forged reply": (forged, "rejected", "nonce", 2),
    "a forged reply, then its own": (once(forged), "ok", "", 2),
    "a forged reply, then silence": (once(forged, silent), "rejected", "nonce", 2),
    "two replies": (twice, "ok", "", 1),
    "silence": (silent, "missing", "no answer within", 1),
    "an answer after the deadline": (late, "late", "after the deadline", 1),
    "an answer just in time": (slow(0.1), "ok", "", 1),
    "code that raised": (raised, "faulty", "failed (", 2),
    "code that raised once": (once(raised), "ok", "", 2),
}
