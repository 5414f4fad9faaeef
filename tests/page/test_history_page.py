"""The page of a history shows what the files hold, whatever the names of the clients."""

import math

import numpy as np
import pytest
from makers import beta_scores, command_error, command_output, embedded_data, reports_of

import robfcp
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.page import PageHistory, render_html
from robfcp.page._alarm_panel import MAX_CLIENT_ROWS, MAX_CURVES

DIGEST = "ab" * 32


def e_value_report(client, *, calibration=DIGEST, n_samples=500, log_e_coverage=-1.0, **options):
    """Return an e-value report at the first step, unless options state another one."""
    return EValueReport(
        client,
        calibration,
        min_coverage=0.9,
        n_samples=n_samples,
        log_e_coverage=log_e_coverage,
        **{"round": None, "step": 1, **options},
    )


def inspect_four_steps(calibration=DIGEST, n_rising=3, drift=0.25):
    """Return the history of six clients over four steps.

    The e-values of the first ones rise, the last client falls silent, and the report of the one
    before it is rejected at the end.
    """
    history = AlarmHistory(calibration, "spring", 6, 1, 0.05)
    for step in range(1, 5):
        n_reporting = 6 if step < 3 else 5
        reports = []
        for k in range(n_reporting):
            is_rejected = k >= 4 and step == 4
            report = e_value_report(
                f"site-{k:02d}",
                calibration=calibration,
                n_samples=3 if is_rejected else 500 * step,
                log_e_coverage=4.0 * step if k < n_rising else -0.5,
                round="spring",
                step=step,
                log_e_exchangeability=drift * step,
            )
            reports.append(report)
        _, history = history.with_inspection(reports, step)
    return history


def calibrate(seed):
    return robfcp.calibrate(reports_of(beta_scores(seed, 6, 300)), defense="none")


def history_of(page_history):
    """Return the data of a history's page."""
    return embedded_data(render_html(page_history))["history"]


@pytest.mark.parametrize(
    ("registered", "silent"), [((), ["2 of 3 sites"]), (("a", "b", "c"), ["b", "c"])]
)
def test_clients_without_a_report_are_shown_by_name_if_names_are_known(registered, silent):
    history = AlarmHistory(DIGEST, None, 3, 1, 0.05)
    _, history = history.with_inspection([e_value_report("a")], 1)
    panel = history_of(PageHistory(history, registered_clients=registered))["alarm_panel"]
    without_report = [row for row in panel["clients"] if row["state_text"] == "no report yet"]
    assert [row["name"] for row in without_report] == silent


def test_the_page_shows_every_client_over_time_and_what_to_do():
    history = inspect_four_steps()
    data = history_of(PageHistory(history))
    panel = data["alarm_panel"]
    coverage_chart = panel["charts"][0]
    threshold = pytest.approx(math.log10(2 / 0.05), abs=1e-4)
    assert coverage_chart["log10_alarm_threshold"] == threshold

    curves = {curve["name"]: curve for curve in coverage_chart["curves"]}
    assert curves["site-00"]["state"] == "alarm"
    assert curves["site-00"]["y"] == [round(4 * step / math.log(10), 3) for step in range(1, 5)]
    assert curves["site-05"]["x"] == [1, 2]
    merged = [round(e_values.log_e_coverage / math.log(10), 3) for e_values in history.merged]
    assert curves["all sites together"]["y"] == merged

    rows = {
        row["name"]: f"{row['state_text']}: {row['recommendation']}" for row in panel["clients"]
    }
    assert "alarms: " in rows["site-00"]
    assert "no alarm: nothing" in rows["site-03"]
    assert "counts 3 samples" in rows["site-04"]
    assert "last report at step 2: counts for" in rows["site-05"]
    assert [row[1] for row in panel["inspections"]] == [6, 6, 5, 4]
    assert {history.digest, DIGEST} <= set(dict(data["audit"]).values())


CONCLUSIONS = [
    (
        0,
        0.25,
        "No alarm in 4 inspections",
        "Check site-04 (last report at step 3), site-05",
        "no alarm",
    ),
    (
        1,
        0.25,
        "No common alarm in 4 inspections",
        "distinguished from malicious reports",
        "1 alarm by themselves",
    ),
    (
        0,
        9.0,
        "Scores have drifted (step 1",
        "robfcp evaluate",
        "no alarm, but drift since step 1",
    ),
    (
        3,
        0.25,
        "Alarm: coverage has fallen below its minimum (step 2",
        "Recalibrate now",
        "step 2",
    ),
]


@pytest.mark.parametrize(("n_rising", "drift", "claim", "recommendation", "line"), CONCLUSIONS)
def test_the_claim_names_the_alarm_and_what_to_do(n_rising, drift, claim, recommendation, line):
    data = history_of(PageHistory(inspect_four_steps(n_rising=n_rising, drift=drift)))
    assert data["is_alarm"] is (n_rising == 3)
    assert data["claim"].startswith(claim)
    assert recommendation in data["recommendation"]
    assert line in data["alarm_panel"]["line"]


def monitor(client, miss_rate, has_reference=True):
    """Return a monitor of 400 samples, of which about a fraction is missed."""
    calibration = calibrate(0)
    reference_report = next(iter(calibration.federation)) if has_reference else None
    client_monitor = robfcp.Monitor(
        calibration,
        reference_report=reference_report,
        client=client,
        min_coverage=0.85,
        seed=0,
    )
    rng = np.random.default_rng(1)
    is_missed = rng.random(400) < miss_rate
    scores = np.where(is_missed, 0.99, rng.choice([0.02, 0.1, 0.3], 400))
    probabilities = np.column_stack([1 - scores, scores])
    client_monitor.update(probabilities, np.zeros(400, int), batch="first")
    return client_monitor


def test_clients_own_monitors_have_a_page():
    bad = monitor("bad", 0.5).state
    good = monitor("good", 0.05).state
    quiet = monitor("quiet", 0.05, has_reference=False).state
    empty = robfcp.Monitor(calibrate(0)).state
    for states, claim, n_charts in (
        ({"bad": bad, "good": good}, "Alarm: coverage has fallen below its minimum at bad", 2),
        ({"good": good}, "Scores have drifted at good", 2),
        ({"quiet": quiet}, "No alarm after 400 fresh samples", 1),
        ({"new": empty}, "", 0),
    ):
        data = history_of(PageHistory(monitors=tuple(states.items())))
        assert data["claim"].startswith(claim)
        charts = data["alarm_panel"]["charts"]
        assert len([chart for chart in charts if chart["curves"]]) == n_charts
        assert ("no samples yet" in data["alarm_panel"]["line"]) is (n_charts == 0)

    row = history_of(PageHistory(monitors=(("bad", bad),)))["alarm_panel"]["clients"][0]
    assert "coverage at sample" in row["state_text"]
    assert row["coverage"] == pytest.approx(1 - bad.n_missed / 400, abs=1e-5)


def test_an_empty_history_is_refused_and_a_calibration_needs_no_history():
    assert embedded_data(render_html(calibrate(0)))["history"] is None
    with pytest.raises(
        robfcp.RobfcpError, match="there is none; pass an alarm history or monitor states"
    ):
        render_html(PageHistory())


def test_hostile_names_and_many_clients_stay_inside():
    hostile = "</script><script>alert(1)</script>&"
    reports = [e_value_report(f"s{k}") for k in range(699)]
    reports.append(e_value_report(hostile, log_e_coverage=60.0))
    history = AlarmHistory(DIGEST, hostile, 700, 1, 0.05)
    _, history = history.with_inspection(reports, 1)
    page = render_html(PageHistory(history))
    assert hostile not in page
    panel = embedded_data(page)["history"]["alarm_panel"]
    assert panel["clients"][0]["name"] == hostile
    assert len(panel["charts"][0]["curves"]) == MAX_CURVES + 1
    assert len(panel["clients"]) == MAX_CLIENT_ROWS
    assert panel["n_clients_not_shown"] == 700 - MAX_CLIENT_ROWS
    assert len(page) < 300_000


def test_the_command_writes_a_page_of_its_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration = calibrate(0)
    calibration.save("c.json")
    inspect_four_steps(calibration.fingerprint).save("alarms.json")
    inspect_four_steps().save("other.json")
    monitor("m", 0.5).state.save("m.json")

    def show(*arguments):
        command_output("show", *arguments, "--html", "p.html")
        return embedded_data((tmp_path / "p.html").read_text())

    assert show("c.json")["history"] is None
    assert show("c.json", "--history", "alarms.json")["history"]["is_alarm"]
    assert set(show("alarms.json")) == {"history"}
    for arguments, refusal in (
        ("c.json --history other.json", "the history is that of another calibration"),
        ("alarms.json --history c.json", "is no history"),
        ("alarms.json --history other.json", "is the second alarm-history file"),
        ("alarms.json --history m.json", "different pages"),
    ):
        assert refusal in command_error("show", *arguments.split(), "--html", "x.html")
