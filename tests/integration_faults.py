"""What the tests of all integrations share: clients, their faults, and the cases with outcomes.

A fault is a function of a `Turn`: one request that came to a client, and its benign reply.
"""

import threading
from dataclasses import asdict
from functools import partial
from operator import methodcaller

import msgspec
import numpy as np

import robfcp

QUICK = {  # of a run configuration
    "max-malicious": 1,
    "deadline": 20.0,
    "poll": 0.02,
    "registered-sizes": "none",
}


def config_keys(options):
    """Keyword arguments as a configuration spells its keys: max_malicious as max-malicious."""
    return {name.replace("_", "-"): value for name, value in options.items()}


def client_data(n_clients, n_samples=60, seed=0):
    """Probabilities and labels of clients with the same distribution."""
    rng = np.random.default_rng(seed)
    data = {}
    for k in range(n_clients):
        probabilities = rng.dirichlet(np.full(5, 0.4), n_samples)
        uniforms = rng.random((n_samples, 1))
        labels = (probabilities.cumsum(axis=1) > uniforms).argmax(axis=1)
        data[f"site-{k}"] = (probabilities, labels)
    return data


DATA = client_data(8)


def core_reports(data, **context):
    """The same clients' reports, made without a framework."""
    return [
        robfcp.Report.from_predictions(name, probabilities, labels, **context)
        for name, (probabilities, labels) in data.items()
    ]


def return_or_raise(value):
    """What a client's code gives: the value, or the exception that it raises."""
    if isinstance(value, Exception):
        raise value
    return value


def drifting(miss_rate, n_samples=400, seed=0):
    """Fresh samples of which this fraction is missed at the threshold of `watched`."""
    labels = (np.random.default_rng(seed).random(n_samples) < miss_rate).astype(int)
    return np.tile([0.9, 0.1], (n_samples, 1)), labels, np.arange(n_samples)


def watched():
    """A calibration to be monitored."""
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    return robfcp.calibrate(federation, defense="none")


def merged_values(merged):
    """Merged e-values, as the file of a workflow has them."""
    rejected_clients = {rejected.client for rejected in merged.rejected_reports}
    return {
        **asdict(merged),
        "has_alarm": merged.has_alarm,
        "line": merged.line,
        "rejected_reports": rejected_clients,
    }


class Stage:
    """The faults in answers to one kind of request, and the nonces that each client received."""

    def __init__(self, names, faults=None, only="report"):
        self.faults = faults or {}
        self.only = only
        self.delayed_replies = []
        self.nonces = {name: [] for name in names}
        self.read_hooks = {}

    def act(self, turn, client, request):
        """Let the client reply; delayed replies are sent when the threshold goes out."""
        kind = msgspec.json.decode(request["body"])["kind"]
        while kind == "evaluate" and self.delayed_replies:
            send_reply = self.delayed_replies.pop()
            send_reply()

        fault = None
        if kind == self.only:
            self.nonces[client].append(request["nonce"])
            turn.attempt = len(self.nonces[client])
            fault = self.faults.get(client)
        (fault or benign)(turn)


class Turn:
    """What a transport lets a client do: `record` is the benign reply, `attempt` counts from 1.

    send(record): reply with this record; without one, with the benign reply.
    send_with_arrays(): the benign record with a large second one.
    fail(code): the framework reports that the client's code failed.
    message_id: of the message, for the transport.
    """

    def __init__(self, stage, record):
        self.stage = stage
        self.record = dict(record)
        self.attempt = 0

    def vanish(self):
        """Never reply."""

    def hold(self, fault):
        """Reply with this fault when the deadline has passed and the threshold goes out."""
        self.stage.delayed_replies.append(lambda: fault(self))

    def spoil(self, hook):
        """Reply so that reading the reply calls the hook."""
        self.stage.read_hooks[self.message_id] = hook
        self.send()

    def later(self, seconds):
        """Send the benign reply after some seconds."""
        threading.Timer(seconds, self.send).start()


benign = methodcaller("send")
silent = methodcaller("vanish")
raised = methodcaller("fail")
oversized = methodcaller("send_with_arrays")
slow = partial(methodcaller, "later")  # seconds
late = methodcaller("hold", benign)
unreadable = methodcaller("spoil", lambda: return_or_raise(ValueError("patient 4711")))


def record(**fields):
    """A record of another shape."""
    return lambda turn: turn.send(fields)


def raw(body):
    """These bytes with the right nonce."""
    return lambda turn: turn.send({"nonce": turn.record["nonce"], "body": body})


def altered(**fields):
    """The report with other fields (a callable is given the report), and the right nonce."""

    def fault(turn):
        report = msgspec.json.decode(turn.record["body"])
        for name, value in fields.items():
            report[name] = value(report) if callable(value) else value
        turn.send({**turn.record, "body": msgspec.json.encode(report)})

    return fault


def forged(turn):
    """A reply by a client that knows the message's number but not its nonce."""
    turn.send({**turn.record, "nonce": "0" * 32})


def once(fault, then=benign):
    """The fault the first time, the benign reply (or another fault) the second."""
    return lambda turn: (fault if turn.attempt == 1 else then)(turn)


def twice(turn):
    """The benign reply, then a forged one."""
    turn.send()
    forged(turn)


UNIFORM_10 = robfcp.Binning.uniform(10)
OTHER_BINNING = {
    "binning": {
        "name": "uniform",
        "digest": UNIFORM_10.digest,
        "parameters": dict(UNIFORM_10.parameters),
    },
    "counts": lambda report: [report["n_samples"]] + [0] * 9,
    "strata": None,
}
INCOMPLETE = b'{"schema":1,"kind":"report","client":"site-5"}'
CASES = {  # the fault, the status, what its reason contains, and how often the client was asked
    "a benign client": (benign, "ok", "", 1),
    "not JSON": (raw(b"\xff\xfe"), "invalid", "not a valid report", 1),
    "a wrong binning": (altered(**OTHER_BINNING), "invalid", "not the round's", 1),
    "another round's report": (altered(round="yesterday"), "invalid", "round is yesterday", 1),
    "another model's report": (altered(model="abc"), "invalid", "model is abc", 1),
    "another score's report": (altered(score={"name": "cqr"}), "invalid", "score is", 1),
    "another client's name": (altered(client="site-5"), "invalid", "another name", 1),
    "an incomplete report under another's name": (
        raw(INCOMPLETE),
        "invalid",
        "'binning' is missing",
        1,
    ),
    "50 MB": (raw(bytes(50 * 2**20)), "refused_by_client", "52428800 bytes", 2),
    "50 MB beside the reply": (oversized, "refused_by_client", "the reply ", 2),
    "a malformed record": (
        record(nonce=7, body=b""),
        "refused_by_client",
        "not of this protocol",
        2,
    ),
    "an unknown code": (
        record(nonce="x", code=99),
        "refused_by_client",
        "not of this protocol",
        2,
    ),
    "a reply that cannot be decoded": (
        unreadable,
        "refused_by_client",
        "the reply cannot be read (",
        2,
    ),
    "a forged reply": (forged, "refused_by_client", "nonce", 2),
    "a forged reply, then the benign one": (once(forged), "ok", "", 2),
    "a forged reply, then silence": (once(forged, silent), "refused_by_client", "nonce", 2),
    "two replies": (twice, "ok", "", 1),
    "silence": (silent, "missing", "no answer within", 1),
    "an answer after the deadline": (late, "late", "after the deadline", 1),
    "a forgery after it": (methodcaller("hold", forged), "missing", "no answer within", 1),
    "an answer before the deadline": (slow(0.1), "ok", "", 1),
    "code that raised": (raised, "invalid", "failed (", 2),
    "code that raised once": (once(raised), "ok", "", 2),
}
