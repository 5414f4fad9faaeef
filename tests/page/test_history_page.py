"""The page of a history says what the files hold, to anybody, whatever sites call themselves."""

import math

import numpy as np
import pytest
from makers import beta_scores, embedded, refused, reports_of, said

import robfcp
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.page import PageHistory, render_html
from robfcp.page._watch import MAX_CLIENT_ROWS, MAX_CURVES

DIGEST = "ab" * 32


def looks(calibration=DIGEST, rising=3, drift=0.25):
    """Six sites over four steps: some rise, the last falls silent, one is refused at the end."""
    history = AlarmHistory(calibration, "spring", 6, 1, 0.05)
    for step in range(1, 5):
        logs = [4.0 * step if k < rising else -0.5 for k in range(6 if step < 3 else 5)]
        told = [500 * step] * 4 + [500 * step if step < 4 else 3] * 2
        sent = [
            EValueReport(
                f"site-{k:02d}", calibration, 0.9, told[k], log, "spring", step, drift * step
            )
            for k, log in enumerate(logs)
        ]
        _, history = history.with_inspection(sent, step)
    return history


def calibrated(seed):
    return robfcp.calibrate(reports_of(beta_scores(seed, 6, 300)), defense="none")


def test_who_was_never_heard_is_shown_by_name_where_that_is_known():
    heard = EValueReport("a", DIGEST, 0.9, 500, -1.0, None, 1)
    history = AlarmHistory(DIGEST, None, 3, 1, 0.05).with_inspection([heard], 1)[1]
    for names, silent in (((), ["2 of 3 sites"]), (("a", "b", "c"), ["b", "c"])):
        rows = shown(PageHistory(history, registered_clients=names))["watch"]["sites"]
        assert [row["name"] for row in rows if row["word"] == "never heard"] == silent


def shown(history):
    return embedded(render_html(history))["history"]


def test_the_page_shows_every_site_over_time_and_what_to_do():
    history = looks()
    data = shown(PageHistory(history))
    watch, coverage = data["watch"], data["watch"]["kinds"][0]
    assert coverage["limit"] == pytest.approx(math.log10(2 / 0.05), abs=1e-4)
    lines = {line["name"]: line for line in coverage["lines"]}
    assert lines["site-00"]["state"] == "alarm"
    assert lines["site-00"]["y"] == [round(4 * s / math.log(10), 3) for s in range(1, 5)]
    assert lines["site-05"]["x"] == [1, 2]
    merged = [round(one.log_e_coverage / math.log(10), 3) for one in history.merged]
    assert lines["all sites together"]["y"] == merged
    rows = {row["name"]: f"{row['word']}: {row['todo']}" for row in watch["sites"]}
    told = ("alarms: ", "no alarm: nothing", "counts 3 samples", "last heard at step 2: counts for")
    assert all(words in rows[f"site-0{k}"] for k, words in zip((0, 3, 4, 5), told, strict=True))
    assert [look[1] for look in watch["looks"]] == [6, 6, 5, 4]
    assert {history.digest, DIGEST} <= set(dict(data["audit"]).values())


RANG = [
    (0, 0.25, "No alarm in 4 looks", "Look at site-04 (last heard at step 3), site-05", "no alarm"),
    (1, 0.25, "No common alarm in 4 looks", "told from lies", "1 alarm by themselves"),
    (0, 9.0, "Scores have drifted (step 1", "robfcp check", "no alarm, but drift since step 1"),
    (3, 0.25, "Alarm: coverage has fallen below its floor (step 2", "Recalibrate now", "step 2"),
]


@pytest.mark.parametrize(("rising", "drift", "claim", "todo", "line"), RANG)
def test_the_claim_says_what_rang_and_what_to_do(rising, drift, claim, todo, line):
    data = shown(PageHistory(looks(rising=rising, drift=drift)))
    assert data["alarm"] is (rising == 3)
    assert data["claim"].startswith(claim)
    assert (todo in data["todo"], line in data["watch"]["line"]) == (True, True)


def monitor(name, missed, own=True):
    calibration = calibrated(0)
    report = next(iter(calibration.federation)) if own else None
    found = robfcp.Monitor(
        calibration, reference_report=report, client=name, min_coverage=0.85, seed=0
    )
    rng = np.random.default_rng(1)
    scores = np.where(rng.random(400) < missed, 0.99, rng.choice([0.02, 0.1, 0.3], 400))
    found.update(np.column_stack([1 - scores, scores]), np.zeros(400, int), batch="first")
    return found


def test_a_sites_own_monitors_have_a_page():
    bad, good = (monitor(name, m).state for name, m in (("bad", 0.5), ("good", 0.05)))
    quiet, new = monitor("quiet", 0.05, own=False).state, robfcp.Monitor(calibrated(0)).state
    for states, claim, drawn in (
        ({"bad": bad, "good": good}, "Alarm: coverage has fallen below its floor at bad", 2),
        ({"good": good}, "Scores have drifted at good", 2),
        ({"quiet": quiet}, "No alarm after 400 fresh samples", 1),
        ({"new": new}, "", 0),
    ):
        data = shown(PageHistory(monitors=tuple(states.items())))
        assert data["claim"].startswith(claim)
        assert len([kind for kind in data["watch"]["kinds"] if kind["lines"]]) == drawn
        assert ("no samples yet" in data["watch"]["line"]) is (drawn == 0)
    first = shown(PageHistory(monitors=(("bad", bad),)))["watch"]["sites"][0]
    assert "coverage at sample" in first["word"]
    assert first["covered"] == pytest.approx(1 - bad.misses / 400, abs=1e-5)


def test_a_page_of_nothing_is_refused_and_a_calibration_needs_no_history():
    assert embedded(render_html(calibrated(0)))["history"] is None
    with pytest.raises(robfcp.RobfcpError, match="there is none; pass alarms or a monitor's state"):
        render_html(PageHistory())


def test_hostile_names_and_many_sites_stay_inside():
    hostile, own = "</script><script>alert(1)</script>&", (DIGEST, 0.9, 500)
    history = AlarmHistory(DIGEST, hostile, 700, 1, 0.05)
    sent = [EValueReport(f"s{k}", *own, -1.0, None, 1) for k in range(699)]
    page = render_html(
        PageHistory(
            history.with_inspection([*sent, EValueReport(hostile, *own, 60.0, None, 1)], 1)[1]
        )
    )
    assert hostile not in page
    watch = embedded(page)["history"]["watch"]
    assert watch["sites"][0]["name"] == hostile
    assert len(watch["kinds"][0]["lines"]) == MAX_CURVES + 1
    assert (len(watch["sites"]), watch["more"]) == (MAX_CLIENT_ROWS, 700 - MAX_CLIENT_ROWS)
    assert len(page) < 300_000


def test_the_commands_write_a_page_of_what_they_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration = calibrated(0)
    calibration.save("c.json")
    looks(calibration.fingerprint).save("alarms.json")
    looks().save("other.json")
    monitor("m", 0.5).state.save("m.json")

    def go(*words):
        said("show", *words, "--html", "p.html")
        return embedded((tmp_path / "p.html").read_text())

    assert go("c.json")["history"] is None
    assert go("c.json", "--history", "alarms.json")["history"]["alarm"]
    assert set(go("alarms.json")) == {"history"}
    for words, refusal in (
        ("c.json --history other.json", "the history is that of another calibration"),
        ("alarms.json --history c.json", "is no history"),
        ("alarms.json --history other.json", "is the second alarms file"),
        ("alarms.json --history m.json", "different pages"),
    ):
        assert refusal in refused("show", *words.split(), "--html", "x.html")
