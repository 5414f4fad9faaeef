"""What both engines share, over an engine of no more than two dictionaries."""

import time
from functools import partial
from operator import methodcaller

import msgspec
import numpy as np
import pytest
from integration_faults import DATA, client_data, raw, told, watched
from integration_loopback import Loopback, LoopbackDriver, sites_of
from integration_promises import *  # noqa: F403
from integration_promises import needs_opendp, reason, status

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
from robfcp.integrations._messages import FeedbackRequest, ReportRequest
from robfcp.integrations.client import ClientRequestHandler, handle_message, read_client_policy
from robfcp.local._feedback import ClientFeedback
from robfcp.privacy import PrivacyLedger
from robfcp.reports._wire import to_wire_binning, to_wire_score
from robfcp.reports.signing import generate_key, load_key

LAC = robfcp.LAC()
HANG = partial(time.sleep, 10**4)  # in threads that end with this process
UNHEARD = "its reply was not there as a whole after 1 s"


@pytest.fixture
def engine():
    return LoopbackDriver()


def loopback(data=DATA, **options):
    return Loopback(sites_of(data), **options)


def calibrated(engine, **options):
    options = {"defense": robfcp.Consensus(at_most=1), "evaluate": False, **options}
    return run_calibration_round(engine, **options)


def test_a_round_that_died_goes_on_with_the_reports_that_had_come(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("robfcp.fleet._replies.REPLIES_IN_MEMORY", 2)
    sites, names, place = sites_of(), list(DATA), tmp_path / "replies"
    with pytest.raises(robfcp.errors.QuorumError):
        calibrated(
            Loopback({name: sites[name] for name in names[:3]}), reply_folder=place, quorum=4
        )
    assert len(list(place.iterdir())) == 2
    dead = dict.fromkeys(names[:3], HANG)  # they are not asked again
    found = calibrated(Loopback({**sites, **dead}), reply_folder=place)
    assert status(found) == dict.fromkeys(sorted(names), "ok")
    assert list(found.federation.clients) == sorted(names)
    assert found.threshold == calibrated(loopback()).threshold
    assert list(place.iterdir()) == []


def test_a_reply_of_another_site_or_round_is_rejected():
    """site-1 knows the number of site-2's message, not its nonce."""
    kept, engine = [], loopback()
    calibrated(loopback(faults={"site-3": lambda turn: kept.append(turn.record) or turn.send()}))

    def intrude(turn):
        turn.send({**turn.record, "nonce": engine.stage.asked["site-1"][0]})

    engine.stage.faults |= {"site-2": intrude, "site-3": lambda turn: turn.send(kept[0])}
    found = list(status(calibrated(engine)).values())
    assert found[1:4] == ["ok", "rejected", "rejected"]


def test_what_hangs_at_one_site_costs_nobody_else_its_report():
    faults = dict.fromkeys(("site-0", "site-3", "site-7"), methodcaller("spoil", HANG))
    faults["site-4"], faults["site-5"] = lambda turn: HANG(), lambda turn: told(OSError("down"))
    started = time.monotonic()
    calibration = calibrated(loopback(faults=faults, deadline=1.0))
    assert time.monotonic() - started < 10
    unreached = {"site-4": "could not be reached within 1 s", "site-5": "could not be reached"}
    for client, words in {**dict.fromkeys(faults, UNHEARD), **unreached}.items():
        assert (status(calibration)[client], reason(calibration, client)) == ("missing", words)
    assert calibration.federation.clients == ("site-1", "site-2", "site-6")


def test_later_ones_were_not_asked_and_a_network_that_hangs_then_is_no_matter():
    class Joining(Loopback):
        gone = frozenset({"site-1", "site-2", "site-5"})

        def present(self):
            here = [one for one in super().present() if one.client not in self.gone]
            return here or told(OSError("down"))

        def send(self, *request):
            self.gone = later
            return super().send(*request)

    later = frozenset({"site-1"})
    calibration = calibrated(Joining(sites_of()), expected_clients=set(DATA) - {"site-5"})
    assert calibration.missing_clients == ("site-1", "site-2")
    assert reason(calibration, "site-1") == "registered but not connected"
    assert reason(calibration) == "joined after the round had begun"
    assert status(calibration)["site-5"] == "not asked"
    later = frozenset(DATA)
    assert set(status(calibrated(Joining(sites_of()))).values()) == {"ok"}


def test_an_alarm_about_something_else_is_refused():
    old = (
        robfcp.Monitor(watched(), client="site-0", min_coverage=0.9)
        .e_value_report("old", 0)
        .to_json()
    )
    engine = loopback(faults=dict.fromkeys(DATA, raw(old)), only="monitor")
    merged = run_monitoring_round(engine, watched(), 0, round="r", min_coverage=0.9)
    assert [fault.client for fault in merged.faulty] == list(DATA)
    assert "round is old, not r" in merged.faulty[0].reason


def asked(site, grid="uniform:16", score=None, round="r"):
    """What the site replies to a request for a report."""
    grid = robfcp.privacy.parse_binning(grid) if isinstance(grid, str) else grid
    what = {"grid": to_wire_binning(grid), "score": to_wire_score(score or LAC)}
    request = ReportRequest(client="site-0", round=round, model=None, **what)
    return handle_message({"nonce": "n", "body": msgspec.json.encode(request)}, site)


def private_site(folder, outputs=None, **config):
    """A site with a budget of its own."""
    own = {"epsilon": 0.1, "privacy-ledger": str(folder / "l.json"), **config}
    return ClientRequestHandler(
        ClientPolicy().with_config(own), outputs or (lambda part: client_data(1)["site-0"])
    )


@needs_opendp
def test_a_private_site_answers_the_same_request_alike_and_pays_once(tmp_path):
    site = private_site(tmp_path)
    first, again, other = (asked(lambda: site, round=name) for name in ("r", "r", "s"))
    assert first == again
    assert other == {"nonce": "n", "code": 6}  # the budget is spent
    assert len(PrivacyLedger(tmp_path / "l.json").releases()) == 1
    report = robfcp.Report.from_json(first["body"])
    assert not np.array_equal(report.counts, report.grid.counts(LAC(*client_data(1)["site-0"])))


@needs_opendp
@pytest.mark.parametrize("kind", ["ordinary", "NaN", "strange label"])
@pytest.mark.parametrize("grid", [(0.0, 1.0), (0.3, 0.4)])
def test_neighbouring_data_answer_alike_whatever_grid_the_server_chooses(tmp_path, kind, grid):
    """At epsilon 0.1 these were told apart every time, and for nothing."""
    rows, labels = client_data(1)["site-0"]
    rows[7] *= np.nan if kind == "NaN" else 1
    labels[7] += 99 * (kind == "strange label")
    site = private_site(tmp_path, lambda part: (rows, labels))
    assert "body" in asked(lambda: site, robfcp.Binning.uniform(8, *grid))
    assert len(PrivacyLedger(tmp_path / "l.json").releases()) == 1


@needs_opendp
def test_the_budget_is_spent_before_the_data_are_touched_and_every_failure_looks_alike(tmp_path):
    def outputs(part):
        seen.append(len(PrivacyLedger(tmp_path / "l.json").releases()))
        raise robfcp.RobfcpError("patient 4711")

    seen = []
    assert asked(lambda: private_site(tmp_path, outputs)) == {"nonce": "n", "code": 2}
    assert seen == [1]


@needs_opendp
@pytest.mark.parametrize(
    ("pins", "request_", "code"),
    [
        ({"privacy-grid": "uniform:16"}, {}, None),
        ({"privacy-grid": "uniform:16"}, {"grid": "uniform:17"}, 5),
        ({"privacy-score": "lac"}, {"score": robfcp.APS()}, 5),
        ({"privacy-score": "aps"}, {"score": robfcp.APS()}, None),
    ],
)
def test_a_site_pins_what_it_answers(tmp_path, pins, request_, code):
    assert asked(lambda: private_site(tmp_path, **pins), **request_).get("code") == code
    assert (code is None) == (tmp_path / "l.json").exists()
    with pytest.raises(robfcp.RobfcpError, match="privacy needs one"):
        ClientPolicy(privacy=robfcp.Privacy(1.0))


def test_a_stated_number_of_samples_is_given_without_looking(tmp_path):
    said = {"privacy-samples": 60}
    told = private_site(tmp_path, lambda part: 1 / 0, **said)
    hidden = private_site(tmp_path, neighbours="add-remove", **said)
    engine = Loopback({"site-0": lambda: told, "site-1": lambda: hidden})
    assert register_sample_sizes(engine) == {"site-0": 60}


OTHERWISE = [
    b"{", b'{"kind":"nothing","client":"a"}', b'{"kind":"size","client":"a","protocol":9}',
    b'{"kind":"size","client":"a","more":1}',
    b'{"kind":"monitor","client":"a","round":"r","step":0,"calibration":{}}',
]  # fmt: skip


@pytest.mark.parametrize("body", [None, 7, *OTHERWISE])
def test_what_is_not_of_the_protocol_gets_a_code(body):
    code = {"nonce": "n" if isinstance(body, bytes) else "", "code": 1}
    record = body and {"nonce": "n", "body": body}
    assert handle_message(record, lambda: ClientRequestHandler(ClientPolicy())) == code


def test_who_says_to_keep_another_letter_is_named(tmp_path):
    sites = sites_of(configs={name: {"letter-folder": str(tmp_path / name)} for name in DATA})
    engine = Loopback(sites, {"site-2": raw(b'"another"')}, "letter")
    public = generate_key(tmp_path / "server.key")
    outcomes = send_feedback(engine, calibrated(engine), load_key(tmp_path / "server.key"))
    assert [one.status for one in outcomes] == ["ok", "ok", "faulty", *["ok"] * 5]
    (file,) = (tmp_path / "site-3").iterdir()
    letter = ClientFeedback.load(file, public)
    request = FeedbackRequest(client="site-4", letter=msgspec.Raw(letter.to_json()))
    record = {"nonce": "n", "body": msgspec.json.encode(request)}
    assert handle_message(record, sites["site-4"])["code"] == 1  # a letter to another


def test_randomised_scores_and_regression_go_the_same_way():
    def rounds(score, data):
        sites = {
            name: lambda k=k, pair=pair: ClientRequestHandler(
                ClientPolicy(), lambda part: pair, seed=[3, k]
            )
            for k, (name, pair) in enumerate(data.items())
        }
        return [calibrated(Loopback(sites), score=score, evaluate=True) for _ in range(2)]

    first, again = rounds(robfcp.APS(), DATA)
    assert first.threshold == again.threshold
    assert first.provenance["clients"]["site-2"] == again.provenance["clients"]["site-2"]
    rng = np.random.default_rng(0)
    data = {f"site-{k}": rng.normal(size=(2, 80)) for k in range(6)}
    calibration, _ = rounds(robfcp.AbsoluteResidual(), data)
    claims = calibration.provenance["clients"]["site-2"]["claims"]
    ends = calibration.predict_interval(data["site-2"][0])
    assert claims["covered"][0] == 80 * robfcp.metrics.interval_coverage(ends, data["site-2"][1])
    assert claims["total_size"][0] == pytest.approx((ends[:, 1] - ends[:, 0]).sum())


@pytest.mark.parametrize("text", ["{", "[]", '{"epsilonn": 1}'])
def test_a_sites_file_that_is_not_clear_is_refused(text, tmp_path):
    """A misspelt epsilon must not mean a report without noise."""
    assert read_client_policy(tmp_path / "robfcp.json") == {}
    (tmp_path / "robfcp.json").write_text(text)
    with pytest.raises(robfcp.RobfcpError, match=r"robfcp\.json: "):
        read_client_policy(tmp_path / "robfcp.json")


def test_an_output_must_say_where():
    with pytest.raises(robfcp.RobfcpError, match="not absolute"):
        run_configured_round(loopback(), {**DEFAULTS, "output": "c.json"})
