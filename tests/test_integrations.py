"""What both integrations share, over a transport of two dictionaries."""

import logging
import time
from functools import partial
from operator import methodcaller

import msgspec
import numpy as np
import pytest
from integration_contract import *  # noqa: F403
from integration_contract import needs_opendp, reason, statuses
from integration_faults import DATA, client_data, raw, return_or_raise, watched
from integration_loopback import Loopback, LoopbackDriver, client_handlers

import robfcp
from robfcp.integrations import (
    DEFAULTS,
    ClientPolicy,
    register_sample_sizes,
    run_calibration_round,
    run_monitoring_round,
    send_feedback,
)
from robfcp.integrations._configuration import run_configured_round
from robfcp.integrations._keys import (
    CONFIG_SYNONYMS,
    POLICY_SYNONYMS,
    require_known_keys,
    warn_of_synonyms,
)
from robfcp.integrations._messages import FeedbackRequest, ReportRequest
from robfcp.integrations.client import (
    KNOWN_KEYS,
    ClientRequestHandler,
    handle_message,
    read_client_policy,
)
from robfcp.local._feedback import ClientFeedback
from robfcp.privacy import PrivacyLedger
from robfcp.reports._wire import to_wire_binning, to_wire_score
from robfcp.reports.signing import generate_key, load_key

LAC = robfcp.LAC()
HANG = partial(time.sleep, 10**4)  # in threads that end with this process
INCOMPLETE_REPLY = "its reply was incomplete after 1 s"


@pytest.fixture
def driver():
    return LoopbackDriver()


def loopback(data=DATA, **options):
    return Loopback(client_handlers(data), **options)


def calibrate_over(transport, **options):
    options = {"defense": robfcp.Consensus(max_malicious=1), "evaluate": False, **options}
    return run_calibration_round(transport, **options)


def test_a_round_that_died_is_resumed_with_the_reports_that_had_arrived(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("robfcp.fleet._replies.REPLIES_IN_MEMORY", 2)
    handlers = client_handlers()
    names = list(DATA)
    folder = tmp_path / "replies"
    with pytest.raises(robfcp.errors.QuorumError):
        calibrate_over(
            Loopback({name: handlers[name] for name in names[:3]}), reply_folder=folder, quorum=4
        )
    assert len(list(folder.iterdir())) == 2

    hanging = dict.fromkeys(names[:3], HANG)  # they are not asked again
    calibration = calibrate_over(Loopback({**handlers, **hanging}), reply_folder=folder)
    assert statuses(calibration) == dict.fromkeys(sorted(names), "ok")
    assert list(calibration.federation.clients) == sorted(names)
    assert calibration.threshold == calibrate_over(loopback()).threshold
    assert list(folder.iterdir()) == []


def test_a_reply_of_another_client_or_round_is_rejected():
    """site-1 knows the number of site-2's message, not its nonce."""
    earlier_replies = []

    def record_reply(turn):
        earlier_replies.append(turn.record)
        turn.send()

    calibrate_over(loopback(faults={"site-3": record_reply}))
    transport = loopback()

    def intrude(turn):
        turn.send({**turn.record, "nonce": transport.stage.nonces["site-1"][0]})

    transport.stage.faults |= {
        "site-2": intrude,
        "site-3": lambda turn: turn.send(earlier_replies[0]),
    }
    client_statuses = list(statuses(calibrate_over(transport)).values())
    assert client_statuses[1:4] == ["ok", "refused_by_client", "refused_by_client"]


def test_a_client_that_hangs_does_not_cost_others_their_reports():
    faults = dict.fromkeys(("site-0", "site-3", "site-7"), methodcaller("spoil", HANG))
    faults["site-4"] = lambda turn: HANG()
    faults["site-5"] = lambda turn: return_or_raise(OSError("down"))
    started = time.monotonic()
    calibration = calibrate_over(loopback(faults=faults, deadline=1.0))
    assert time.monotonic() - started < 10
    reasons = dict.fromkeys(faults, INCOMPLETE_REPLY)
    reasons |= {"site-4": "could not be reached within 1 s", "site-5": "could not be reached"}
    for client, reason_text in reasons.items():
        assert statuses(calibration)[client] == "missing"
        assert reason(calibration, client) == reason_text
    assert calibration.federation.clients == ("site-1", "site-2", "site-6")


def test_later_clients_are_not_contacted_and_a_network_that_hangs_then_is_harmless():
    class Joining(Loopback):
        absent = frozenset({"site-1", "site-2", "site-5"})

        def present(self):
            participants = [
                participant
                for participant in super().present()
                if participant.client not in self.absent
            ]
            return participants or return_or_raise(OSError("down"))

        def send(self, *request):
            self.absent = absent_later
            return super().send(*request)

    absent_later = frozenset({"site-1"})
    calibration = calibrate_over(
        Joining(client_handlers()), expected_clients=set(DATA) - {"site-5"}
    )
    assert calibration.missing_clients == ("site-1", "site-2")
    assert reason(calibration, "site-1") == "registered but not connected"
    assert reason(calibration) == "joined after the round had begun"
    assert statuses(calibration)["site-5"] == "not_contacted"
    absent_later = frozenset(DATA)
    calibration = calibrate_over(Joining(client_handlers()))
    assert set(statuses(calibration).values()) == {"ok"}


def test_e_values_of_another_round_are_refused():
    monitor = robfcp.Monitor(watched(), client="site-0", min_coverage=0.9)
    earlier_report = monitor.e_value_report("old", 0).to_json()
    transport = loopback(faults=dict.fromkeys(DATA, raw(earlier_report)), only="monitor")
    merged = run_monitoring_round(transport, watched(), 0, round="r", min_coverage=0.9)
    assert [rejected.client for rejected in merged.rejected_reports] == list(DATA)
    assert "round is old, not r" in merged.rejected_reports[0].reason


def reply_to_report_request(make_handler, binning="uniform:16", score=None, round="r"):
    """The client's reply to a request for a report."""
    if isinstance(binning, str):
        binning = robfcp.privacy.parse_binning(binning)
    request = ReportRequest(
        client="site-0",
        round=round,
        model=None,
        binning=to_wire_binning(binning),
        score=to_wire_score(score or LAC),
    )
    record = {"nonce": "n", "body": msgspec.json.encode(request)}
    return handle_message(record, make_handler)


def private_client(folder, predict_fn=None, **config):
    """The request handler of a client with a privacy budget."""
    config = {"dp-epsilon": 0.1, "privacy-ledger": str(folder / "l.json"), **config}
    if predict_fn is None:
        predict_fn = lambda split: client_data(1)["site-0"]  # noqa: E731
    return ClientRequestHandler(ClientPolicy().with_config(config), predict_fn)


@needs_opendp
def test_a_private_client_gives_one_answer_to_one_request_and_pays_once(tmp_path):
    client = private_client(tmp_path)
    first, repeated, next_round = (
        reply_to_report_request(lambda: client, round=name) for name in ("r", "r", "s")
    )
    assert first == repeated
    assert next_round == {"nonce": "n", "code": 6}  # the budget is spent
    assert len(PrivacyLedger(tmp_path / "l.json").releases()) == 1
    report = robfcp.Report.from_json(first["body"])
    exact_counts = report.binning.counts(LAC(*client_data(1)["site-0"]))
    assert not np.array_equal(report.counts, exact_counts)


@needs_opendp
@pytest.mark.parametrize("kind", ["ordinary", "NaN", "unknown label"])
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.3, 0.4)])
def test_neighboring_data_give_the_same_kind_of_answer_on_any_binning(tmp_path, kind, interval):
    """Else a server could distinguish them without spending the budget of epsilon 0.1."""
    probabilities, labels = client_data(1)["site-0"]
    if kind == "NaN":
        probabilities[7] *= np.nan
    if kind == "unknown label":
        labels[7] += 99
    client = private_client(tmp_path, lambda split: (probabilities, labels))
    binning = robfcp.Binning.uniform(8, *interval)
    assert "body" in reply_to_report_request(lambda: client, binning)
    assert len(PrivacyLedger(tmp_path / "l.json").releases()) == 1


@needs_opendp
def test_the_budget_is_spent_before_the_data_are_read_and_all_failures_give_one_code(tmp_path):
    n_releases = []

    def predict_fn(split):
        n_releases.append(len(PrivacyLedger(tmp_path / "l.json").releases()))
        raise robfcp.RobfcpError("patient 4711")

    reply = reply_to_report_request(lambda: private_client(tmp_path, predict_fn))
    assert reply == {"nonce": "n", "code": 2}
    assert n_releases == [1]


@needs_opendp
@pytest.mark.parametrize(
    ("policy", "request_options", "code"),
    [
        ({"privacy-binning": "uniform:16"}, {}, None),
        ({"privacy-binning": "uniform:16"}, {"binning": "uniform:17"}, 5),
        ({"privacy-score": "lac"}, {"score": robfcp.APS()}, 5),
        ({"privacy-score": "aps"}, {"score": robfcp.APS()}, None),
    ],
)
def test_a_client_fixes_binning_and_score(tmp_path, policy, request_options, code):
    reply = reply_to_report_request(lambda: private_client(tmp_path, **policy), **request_options)
    assert reply.get("code") == code
    assert (code is None) == (tmp_path / "l.json").exists()


def test_privacy_needs_a_ledger():
    with pytest.raises(robfcp.RobfcpError, match="privacy needs a file"):
        ClientPolicy(privacy=robfcp.Privacy(1.0))


def test_a_declared_number_of_samples_is_sent_without_reading_data(tmp_path):
    policy = {"declared-samples": 60}
    substitution = private_client(tmp_path, lambda split: 1 / 0, **policy)
    add_remove = private_client(tmp_path, neighbors="add-remove", **policy)
    transport = Loopback({"site-0": lambda: substitution, "site-1": lambda: add_remove})
    assert register_sample_sizes(transport) == {"site-0": 60}


INVALID_REQUESTS = [
    b"{",
    b'{"kind":"nothing","client":"a"}',
    b'{"kind":"size","client":"a","protocol":9}',
    b'{"kind":"size","client":"a","more":1}',
    b'{"kind":"monitor","client":"a","round":"r","step":0,"calibration":{}}',
]


@pytest.mark.parametrize("body", [None, 7, *INVALID_REQUESTS])
def test_an_invalid_request_gets_a_code(body):
    reply = {"nonce": "n" if isinstance(body, bytes) else "", "code": 1}
    record = body and {"nonce": "n", "body": body}
    assert handle_message(record, lambda: ClientRequestHandler(ClientPolicy())) == reply


def test_a_client_that_claims_to_store_other_feedback_is_named(tmp_path):
    configs = {name: {"feedback-dir": str(tmp_path / name)} for name in DATA}
    handlers = client_handlers(configs=configs)
    transport = Loopback(handlers, {"site-2": raw(b'"another"')}, "feedback")
    public_key = generate_key(tmp_path / "server.key")
    calibration = calibrate_over(transport)
    outcomes = send_feedback(transport, calibration, load_key(tmp_path / "server.key"))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok", "invalid", *["ok"] * 5]

    (path,) = (tmp_path / "site-3").iterdir()
    feedback = ClientFeedback.load(path, public_key)
    request = FeedbackRequest(client="site-4", feedback=msgspec.Raw(feedback.to_json()))
    record = {"nonce": "n", "body": msgspec.json.encode(request)}
    assert handle_message(record, handlers["site-4"])["code"] == 1  # feedback for another client


def test_randomized_scores_and_regression_are_reproducible():
    def run_twice(score, data):
        handlers = {
            name: lambda k=k, samples=samples: ClientRequestHandler(
                ClientPolicy(), lambda split: samples, seed=[3, k]
            )
            for k, (name, samples) in enumerate(data.items())
        }
        return [calibrate_over(Loopback(handlers), score=score, evaluate=True) for _ in range(2)]

    first, second = run_twice(robfcp.APS(), DATA)
    assert first.threshold == second.threshold
    assert first.provenance["clients"]["site-2"] == second.provenance["clients"]["site-2"]

    rng = np.random.default_rng(0)
    data = {f"site-{k}": rng.normal(size=(2, 80)) for k in range(6)}
    calibration, _ = run_twice(robfcp.AbsoluteResidual(), data)
    claims = calibration.provenance["clients"]["site-2"]["claims"]
    predictions, targets = data["site-2"]
    intervals = calibration.predict_interval(predictions)
    coverage = robfcp.metrics.interval_coverage(intervals, targets)
    assert claims["n_covered"][0] == 80 * coverage
    assert claims["total_set_size"][0] == pytest.approx((intervals[:, 1] - intervals[:, 0]).sum())


@pytest.mark.parametrize("text", ["{", "[]", '{"dp-epsilonn": 1}'])
def test_an_invalid_policy_file_is_refused(text, tmp_path):
    """A misspelled epsilon must not mean a report without noise."""
    assert read_client_policy(tmp_path / "robfcp.json") == {}
    (tmp_path / "robfcp.json").write_text(text)
    with pytest.raises(robfcp.RobfcpError, match=r"robfcp\.json: "):
        read_client_policy(tmp_path / "robfcp.json")


def test_a_budget_under_a_wrong_key_is_refused_where_other_keys_are_allowed():
    with pytest.raises(robfcp.RobfcpError, match="did you mean dp-epsilon"):
        ClientPolicy().with_config({"partition-id": 0, "epsilon": 1.0})


def test_all_synonyms_lead_to_known_keys():
    known_keys = {*DEFAULTS, *KNOWN_KEYS, "min-coverage"}
    meanings = [*CONFIG_SYNONYMS.values(), *POLICY_SYNONYMS.values()]
    assert known_keys >= {key for keys in meanings for key in keys}
    assert not set(CONFIG_SYNONYMS) & set(DEFAULTS)
    assert not set(POLICY_SYNONYMS) & set(KNOWN_KEYS)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("defence", "defense"),
        ("liars", "max-malicious"),
        ("grid", "binning"),
        ("letters", "send-feedback"),
        ("max_malicous", "max-malicious"),
        ("zzz", None),
    ],
)
def test_an_unknown_key_of_a_configuration_names_the_right_key(key, suggestion, caplog):
    problem = "use score, " if suggestion is None else f"did you mean {suggestion}"
    with pytest.raises(robfcp.RobfcpError, match=f"^{key}: is unknown; {problem}"):
        require_known_keys({key: 1}, list(DEFAULTS), CONFIG_SYNONYMS)
    with caplog.at_level(logging.WARNING):
        warn_of_synonyms({key: 1, "max-malicious": 1}, list(DEFAULTS), CONFIG_SYNONYMS)
    is_synonym = key in CONFIG_SYNONYMS
    assert len(caplog.messages) == is_synonym
    assert all(f"did you mean {suggestion}?" in message for message in caplog.messages)


def test_an_output_must_be_an_absolute_path():
    with pytest.raises(robfcp.RobfcpError, match="not absolute"):
        run_configured_round(loopback(), {**DEFAULTS, "output": "c.json"})
