"""Whatever nodes do, the round ends by its deadline and says of everyone what it did."""

import time

import numpy as np
import pytest

import robfcp

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

from engine_data import client_data, core_reports  # noqa: E402
from flower_faults import (  # noqa: E402
    FaultyNetwork,
    altered,
    body_of,
    error,
    forged,
    huge,
    huge_record,
    late,
    odd,
    once,
    raw,
    send,
    silent,
    slow,
    twice,
)

from robfcp.engines.flower import calibration_round, register_sizes  # noqa: E402
from robfcp.engines.flower_network import RECORD, participants, reply_content  # noqa: E402

DATA = client_data(8)


def play(faults, data=DATA, **options):
    network = FaultyNetwork(data, faults)
    options = {"malicious": 1, "deadline": 20.0, "poll": 0.02, "check": False, **options}
    started = time.monotonic()
    calibration = calibration_round(network, **options)
    return calibration, network, time.monotonic() - started


def status(calibration):
    return {c: entry["status"] for c, entry in calibration.provenance["clients"].items()}


def set_grid(report):
    report["grid"] = {
        "name": "uniform",
        "digest": robfcp.Grid.uniform(10).digest,
        "parameters": {"bins": 10, "low": 0.0, "high": 1.0},
    }
    report["counts"] = [report["n_samples"]] + [0] * 9
    report.pop("strata", None)


CASES = {
    "an honest node": (None, "ok", "", 1),
    "NaN for a count": (
        raw(b'{"schema":1,"kind":"report","client":"site-3","counts":[NaN]}'),
        "faulty",
        "not a valid report",
        1,
    ),
    "not JSON": (raw(b"\xff\xfe"), "faulty", "not a valid report", 1),
    "a wrong grid": (altered(set_grid), "faulty", "grid is", 1),
    "another round's report": (
        altered(lambda report: report.update(round="yesterday")),
        "faulty",
        "round is yesterday",
        1,
    ),
    "another model's report": (
        altered(lambda report: report.update(model="abc")),
        "faulty",
        "model is abc",
        1,
    ),
    "another score's report": (
        altered(lambda report: report.update(score={"name": "cqr"})),
        "faulty",
        "score is",
        1,
    ),
    "another client's name": (
        altered(lambda report: report.update(client="site-5")),
        "faulty",
        "another name",
        1,
    ),
    "a broken report in another's name": (
        raw(b'{"schema":1,"kind":"report","client":"site-5"}'),
        "faulty",
        "not a valid report",
        1,
    ),
    "a size of its own": (
        altered(lambda report: report.update(n_samples=61)),
        "faulty",
        "n_samples says 61",
        1,
    ),
    "negative counts": (
        altered(lambda report: report["strata"]["counts"].__setitem__(0, -1)),
        "faulty",
        "negative",
        1,
    ),
    "50 MB": (huge, "rejected", "52428800 bytes", 2),
    "50 MB beside the reply": (huge_record, "rejected", "2 records", 2),
    "an odd record": (odd({"nonce": 7, "body": b""}), "rejected", "not of this protocol", 2),
    "an unknown code": (odd({"nonce": "x", "code": 99}), "rejected", "not of this protocol", 2),
    "a forged reply": (forged, "rejected", "nonce", 2),
    "a forged reply, then its own": (once(forged), "ok", "", 2),
    "two replies": (twice, "ok", "", 1),
    "a forged reply, then silence": (once(forged, silent), "rejected", "nonce", 2),
    "silence": (silent, "missing", "no answer within", 1),
    "an answer after the deadline": (late, "late", "after the deadline", 1),
    "an answer just in time": (slow(0.1), "ok", "", 1),
    "an app that raised": (error(2), "faulty", "Flower's code 2", 2),
    "a killed node": (error(5), "missing", "Flower's code 5", 2),
    "an app that raised once": (once(error(2)), "ok", "", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_every_node_is_classified_and_the_rest_calibrates(case):
    fault, expected, reason, attempts = CASES[case]
    sizes = {name: len(y) for name, (_, y) in DATA.items()}
    deadline = 0.6 if "silence" in case or fault is late else 20.0
    calibration, network, seconds = play(
        {} if fault is None else {"site-3": fault},
        sizes=sizes,
        check=case.startswith("an answer"),
        deadline=deadline,
    )
    clients = calibration.provenance["clients"]
    entry = clients["site-3"]
    assert (entry["status"], entry["attempts"]) == (expected, attempts)
    assert reason in entry["reason"]
    assert network.asked.count("site-3") == attempts
    assert {c: s for c, s in status(calibration).items() if c != "site-3"} == {
        f"site-{k}": "ok" for k in range(8) if k != 3
    }
    assert seconds < deadline + 5
    kept = {name: pair for name, pair in DATA.items() if expected == "ok" or name != "site-3"}
    core = robfcp.calibrate(core_reports(kept), malicious=1)
    assert calibration.threshold == core.threshold
    assert calibration.federation.ids == tuple(kept)
    assert np.array_equal(calibration.federation.counts, core.federation.counts)
    outside = calibration.certificate.outside
    assert outside == (() if expected == "ok" else ("site-3",))
    assert "patient" not in calibration.to_json().decode()


def test_a_reply_replayed_from_an_earlier_round_is_rejected():
    kept = {}

    def keep(network, message, reply):
        kept["reply"] = reply
        network.answer(message.metadata.message_id, reply)

    def replay(network, message, reply):
        send(network, message, kept["reply"].content)

    assert status(play({"site-3": keep})[0])["site-3"] == "ok"
    assert status(play({"site-3": replay})[0])["site-3"] == "rejected"


def test_nonces_are_fresh_for_every_node_and_attempt():
    _, network, _ = play({"site-3": forged})
    nonces = [m.content[RECORD]["nonce"] for messages in network.seen.values() for m in messages]
    assert len(nonces) == len(set(nonces)) == 9
    assert min(map(len, nonces)) == 32


def test_messages_live_little_longer_than_the_deadline():
    _, network, _ = play({}, deadline=7.0)
    for (message,) in network.seen.values():
        assert 7 < message.metadata.ttl < 13


def test_a_node_that_answers_anothers_message_cannot_speak_for_it():
    """site-1 knows the id of site-2's message, not its nonce, and answers first with its own."""

    def intrude(network, message, reply):
        own = next(iter(network.seen["site-1"])).content[RECORD]["nonce"]
        body = reply.content[RECORD]["body"].replace(b'"counts":[', b'"counts":[ ')
        send(network, message, reply_content(own, body))

    calibration, _, _ = play({"site-2": intrude})
    assert status(calibration)["site-2"] == "rejected"
    assert status(calibration)["site-1"] == "ok"


def test_registered_sizes_are_binding():
    sizes = {name: len(y) for name, (_, y) in DATA.items()}
    calibration, _, _ = play({}, sizes={**sizes, "site-3": 59, "site-9": 60})
    entry = calibration.provenance["clients"]["site-3"]
    assert entry["status"] == "faulty"
    assert "60 but 59 samples were registered" in entry["reason"]
    assert calibration.provenance["clients"]["site-9"]["status"] == "missing"
    assert calibration.missing == ("site-9",)
    assert set(calibration.certificate.outside) == {"site-3", "site-9"}
    calibration, _, _ = play({}, sizes={k: v for k, v in sizes.items() if k != "site-3"})
    assert "is not registered" in calibration.provenance["clients"]["site-3"]["reason"]


def test_sizes_are_asked_for_before_training():
    network = FaultyNetwork(DATA, {"site-3": silent}, only="query.size")
    sizes = register_sizes(network, deadline=1.0, poll=0.01)
    assert sizes == {f"site-{k}": 60 for k in range(8) if k != 3}
    network = FaultyNetwork(DATA, {"site-3": raw(b'{"n_samples":0}')}, only="query.size")
    assert "site-3" not in register_sizes(network, deadline=1.0)


@pytest.mark.parametrize("quorum", [6, 0.75])
def test_a_missed_quorum_counts_the_silent_too(quorum):
    faults = {"site-1": silent, "site-2": forged, "site-3": huge}
    with pytest.raises(robfcp.QuorumError, match="only 5"):
        play(faults, quorum=quorum, deadline=2.0)
    play({"site-1": silent, "site-2": forged}, quorum=quorum, deadline=2.0)


def test_exceptions_at_the_client_become_codes():
    data = {**DATA, "site-3": (np.full((60, 5), np.nan), np.zeros(60, dtype=int))}
    assert play({}, data=data)[0].provenance["clients"]["site-3"]["reason"] == (
        "robfcp refused the client's data"
    )
    data["site-3"] = None
    calibration, _, _ = play({}, data=data)
    assert calibration.provenance["clients"]["site-3"]["reason"] == "scoring failed at the client"
    assert status(calibration)["site-3"] == "faulty"


def test_a_restarted_superlink_only_delays_the_round():
    class Restarting(FaultyNetwork):
        pulls = 0

        def pull_messages(self, message_ids):
            self.pulls += 1
            if self.pulls <= 20:
                raise ConnectionRefusedError("restarting")
            return super().pull_messages(message_ids)

    calibration = calibration_round(
        Restarting(DATA), malicious=1, deadline=20.0, poll=0.01, check=False
    )
    assert set(status(calibration).values()) == {"ok"}


def test_a_network_that_cannot_send_leaves_the_node_missing():
    class Broken(FaultyNetwork):
        def push_messages(self, messages):
            if self.by_node[messages[0].metadata.dst_node_id] == "site-3":
                raise ConnectionRefusedError("down")
            return super().push_messages(messages)

    calibration = calibration_round(Broken(DATA), malicious=1, deadline=20.0, check=False)
    assert status(calibration)["site-3"] == "missing"


def test_names_that_cannot_serve_are_replaced_by_node_numbers():
    network = FaultyNetwork(DATA)
    network._names[0] = network._names[1]
    network._names[2], network._names[3] = "", "x\n"
    names = [participant.client for participant in participants(network)]
    assert names == ["node-1", "node-2", "node-3", "node-4"] + [f"site-{k}" for k in range(4, 8)]


def test_lying_claims_about_coverage_are_left_out():
    lies = [b'{"n_samples":5,"covered":[6],"total_size":[1]}', b'{"n_samples":5}', b"[]"]
    faults = {f"site-{k}": raw(lie) for k, lie in enumerate(lies)}
    network = FaultyNetwork(DATA, faults, only="query.threshold")
    calibration = calibration_round(network, malicious=1, deadline=20.0, poll=0.01)
    clients = calibration.provenance["clients"]
    assert [clients[f"site-{k}"]["claims"] for k in range(3)] == [None] * 3
    sets = calibration.predict_set(DATA["site-5"][0])
    claims = clients["site-5"]["claims"]
    assert claims["n_samples"] == 60
    assert claims["covered"] == [robfcp.metrics.covered(sets, DATA["site-5"][1]).sum()]
    assert claims["total_size"] == [sets.sum()]


def test_a_report_travels_as_it_would_in_a_file():
    calibration, network, _ = play({"site-3": silent}, round="r1", deadline=1.0)
    message = network.seen["site-1"][0]
    reply = network._app(message, network._contexts[2])
    assert (
        robfcp.Report.from_json(reply.content[RECORD]["body"])
        == core_reports({"site-1": DATA["site-1"]}, round="r1")[0]
    )
    assert body_of(reply)["client"] == "site-1"
    assert calibration.federation.round == "r1"


class Hooked(FaultyNetwork):
    """site-3's reply does something to whoever pulls it."""

    def __init__(self, data, hook, victims=("site-3",)):
        super().__init__(data)
        self.hook, self.victims, self.hooked = hook, victims, set()

    def deliver(self, message):
        super().deliver(message)
        if self.by_node[message.metadata.dst_node_id] in self.victims:
            self.hooked.add(message.metadata.message_id)

    def pull_messages(self, message_ids):
        if self.hooked & set(message_ids):
            self.hook()
        return super().pull_messages(message_ids)


def raises(error):
    def hook():
        raise error

    return hook


ESCAPES = [
    ValueError("patient 4711"),
    TypeError(),
    KeyError("x"),
    MemoryError(),
    RecursionError(),
    UnicodeDecodeError("utf-8", b"", 0, 1, "bad"),
    RuntimeError("\x1b[31m"),
    AssertionError(),
]


@pytest.mark.parametrize("error", ESCAPES, ids=lambda error: type(error).__name__)
def test_a_reply_that_cannot_be_decoded_is_its_own_nodes_trouble(error):
    network = Hooked(DATA, raises(error))
    calibration = calibration_round(network, malicious=1, deadline=20.0, poll=0.01, check=False)
    entry = calibration.provenance["clients"]["site-3"]
    assert (entry["status"], entry["attempts"]) == ("rejected", 2)
    assert entry["reason"] == f"the reply cannot be read ({type(error).__name__})"
    assert calibration.federation.n_clients == 7


@pytest.mark.parametrize("victims", [("site-0",), ("site-0", "site-3", "site-7")])
def test_nodes_that_withhold_part_of_a_reply_cost_nobody_else_its_report(victims):
    network = Hooked(DATA, lambda: time.sleep(60), victims)
    started = time.monotonic()
    calibration = calibration_round(network, malicious=1, deadline=2.0, poll=0.05, check=False)
    assert time.monotonic() - started < 8
    for client in victims:
        entry = calibration.provenance["clients"][client]
        assert (entry["status"], entry["reason"]) == (
            "missing",
            "its reply was not there as a whole after 2 s",
        )
    assert calibration.federation.n_clients == 8 - len(victims)


def test_everybody_is_heard_once_more_at_the_deadline():
    """All replies arrive while nobody looks, just before the deadline."""
    calibration, _, _ = play(
        {f"site-{k}": slow(0.8) for k in range(8)}, deadline=1.0, poll=0.7, malicious=1
    )
    assert set(status(calibration).values()) == {"ok"}


def test_a_push_that_hangs_ends_with_the_round():
    class Hanging(FaultyNetwork):
        def push_messages(self, messages):
            if self.by_node[messages[0].metadata.dst_node_id] == "site-3":
                time.sleep(60)
            return super().push_messages(messages)

    started = time.monotonic()
    calibration = calibration_round(Hanging(DATA), malicious=1, deadline=2.0, poll=0.1, check=False)
    assert time.monotonic() - started < 8
    entry = calibration.provenance["clients"]["site-3"]
    assert (entry["status"], entry["reason"]) == ("missing", "could not be reached within 2 s")
    assert calibration.federation.n_clients == 7


def test_offline_nodes_are_missing_and_later_ones_were_not_asked():
    class Joining(FaultyNetwork):
        gone = frozenset({"site-1", "site-2", "site-5"})

        def get_nodes(self):
            return [node for node in super().get_nodes() if node.name not in self.gone]

        def deliver(self, message):
            super().deliver(message)
            self.gone = frozenset({"site-1"})

    calibration = calibration_round(
        Joining(DATA),
        malicious=1,
        deadline=20.0,
        poll=0.01,
        check=False,
        invited=[name for name in DATA if name != "site-5"],
    )
    clients = calibration.provenance["clients"]
    assert calibration.missing == ("site-1", "site-2")
    assert clients["site-1"]["reason"] == "registered but not connected"
    assert clients["site-2"]["reason"] == "joined after the round had begun"
    assert (clients["site-5"]["status"], clients["site-5"]["attempts"]) == ("not asked", 0)
    assert set(calibration.certificate.outside) == {"site-1", "site-2"}
    assert calibration.federation.n_clients == 5


def test_rounds_at_once_do_not_take_each_others_replies():
    from concurrent.futures import ThreadPoolExecutor

    network = FaultyNetwork(client_data(40), {f"site-{k}": slow(0.05) for k in range(40)})

    def one(number):
        return calibration_round(
            network, malicious=1, deadline=30.0, poll=0.01, check=False, round=f"r{number}"
        )

    with ThreadPoolExecutor(4) as pool:
        for number, calibration in enumerate(pool.map(one, range(4))):
            assert calibration.federation.n_clients == 40
            assert calibration.federation.round == f"r{number}"


def test_a_network_in_trouble_is_asked_again_for_its_nodes():
    class Waking(FaultyNetwork):
        tries = 0

        def get_nodes(self):
            self.tries += 1
            if self.tries == 1:
                raise ConnectionRefusedError("starting")
            return super().get_nodes()

    assert calibration_round(Waking(DATA), malicious=1, deadline=20.0, check=False)
    network = Waking(DATA)
    network.get_nodes = raises(ValueError("no"))
    with pytest.raises(robfcp.RobfcpError, match="cannot list its nodes"):
        calibration_round(network, malicious=1, deadline=1.0)
