"""The page of a history says what the files hold, to anybody, whatever sites call themselves."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from makers import beta_scores, embedded, refused, reports_of, said

import robfcp
from robfcp.monitoring import AlarmHistory, Chain, EReport
from robfcp.page import History, render, render_history
from robfcp.page.history import MOST_LINES, MOST_SITES

DIGEST = "ab" * 32


def looks(calibration: str = DIGEST, rising: int = 3, sites: int = 6) -> AlarmHistory:
    """Six sites over four steps: some rise, the last falls silent, one is refused at the end."""
    history = AlarmHistory(calibration, "spring", sites, 1, 0.05)
    for step in range(1, 5):
        sent = [
            EReport(
                f"site-{k:02d}", calibration, 0.9, 500 * step, 4.0 * step if k < rising else -0.5,
                "spring", step, 0.25 * step,
            )
            for k in range(sites)
            if not (k == sites - 1 and step > 2)
        ]  # fmt: skip
        if step == 4:
            sent[-1] = EReport(sent[-1].client, calibration, 0.9, 3, 0.0, "spring", step)
        _, history = history.looked(sent, step)
    return history


def calibrated(seed: int, **options: Any) -> robfcp.Calibration:
    reports = reports_of(beta_scores(seed, 6, 300))
    return robfcp.calibrate(reports, **{"defence": "none", **options})


def shown(history: History) -> dict[str, Any]:
    return embedded(render_history(history))["history"]


def test_the_page_shows_every_site_over_time_and_what_to_do() -> None:
    history = looks()
    data = shown(History(history))
    assert data["alarm"]
    assert data["claim"].startswith("Alarm: coverage has fallen below its floor (step 1")
    assert "Recalibrate now" in data["todo"]
    watch = data["watch"]
    coverage = watch["kinds"][0]
    assert coverage["limit"] == pytest.approx(-math.log10(0.05), abs=1e-4)
    lines = {line["name"]: line for line in coverage["lines"]}
    assert lines["site-00"]["state"] == "alarm"
    assert lines["site-00"]["y"] == [round(4 * s / math.log(10), 3) for s in range(1, 5)]
    assert lines["site-05"]["x"] == [1, 2]
    merged = [round(one.log_mean / math.log(10), 3) for one in history.merged]
    assert lines["all sites together"]["y"] == merged
    rows = {row["name"]: f"{row['word']}: {row['todo']}" for row in watch["sites"]}
    for name, words in (("site-00", "alarms: "), ("site-03", "no alarm: nothing"),
                        ("site-04", "counts 3 samples"), ("site-05", "silent since step 2: "),
                        ("site-05", "ask for its e-report")):  # fmt: skip
        assert words in rows[name]
    assert [look["heard"] for look in watch["looks"]] == [6, 6, 5, 4]
    assert {history.digest, DIGEST} <= set(dict(data["audit"]).values())


@pytest.mark.parametrize(
    ("rising", "claim", "todo"),
    [
        (0, "No alarm in 4 looks", "Nothing."),
        (1, "No common alarm in 4 looks", "told from 1 liars"),
    ],
)
def test_a_quiet_history_says_so(rising: int, claim: str, todo: str) -> None:
    data = shown(History(looks(rising=rising)))
    assert not data["alarm"]
    assert data["claim"].startswith(claim)
    assert todo in data["todo"]


def test_drift_alone_asks_for_a_check() -> None:
    history = AlarmHistory(DIGEST, None, 3, 0, 0.05, independent=True)
    sent = [EReport(f"s{k}", DIGEST, 0.9, 500, -1.0, None, 1, 9.0) for k in range(3)]
    data = shown(History(history.looked(sent, 1)[1]))
    assert data["claim"].startswith("Scores have drifted (step 1")
    assert "robfcp check" in data["todo"]
    assert data["watch"]["sites"][0]["word"] == "scores changed"
    assert "samples of different sites are independent" in data["assumptions"]


def monitor(name: str, missed: float, own: bool = True) -> robfcp.Monitor:
    calibration = calibrated(0)
    report = next(iter(calibration.federation)) if own else None
    found = robfcp.Monitor(calibration, report=report, client=name, floor=0.85, seed=0)
    rng = np.random.default_rng(1)
    scores = np.where(rng.random(400) < missed, 0.99, rng.choice([0.02, 0.1, 0.3], 400))
    probabilities = np.column_stack([1 - scores, scores])
    found.update(probabilities, np.zeros(400, int), batch="first")
    return found


SHARES = {"bad": 0.5, "good": 0.05}


def test_a_sites_own_monitors_have_a_page() -> None:
    states = [(name, monitor(name, missed).state) for name, missed in SHARES.items()]
    data = shown(History(monitors=tuple(states)))
    assert data["claim"] == "Alarm: coverage has fallen below its floor at bad"
    drawn = [kind["key"] for kind in data["watch"]["kinds"] if kind["lines"]]
    assert drawn == ["coverage", "drift"]
    bad = data["watch"]["sites"][0]
    assert bad["name"] == "bad"
    assert "coverage at sample" in bad["word"]
    assert bad["covered"] == pytest.approx(1 - states[0][1].misses / 400, abs=1e-5)
    drift_only = shown(History(monitors=(states[1],)))
    assert drift_only["claim"].startswith("Scores have drifted at good")
    assert not drift_only["alarm"]
    quiet = monitor("quiet", 0.05, own=False).state
    data = shown(History(monitors=(("quiet", quiet),)))
    assert data["claim"] == "No alarm after 400 fresh samples"
    assert data["watch"]["kinds"][1]["lines"] == []
    nothing = History(monitors=(("new", robfcp.Monitor(calibrated(0)).state),))
    assert "no samples yet" in shown(nothing)["watch"]["line"]


def chained() -> tuple[robfcp.Calibration, Chain]:
    first, second = calibrated(0), calibrated(1)
    chain = Chain.begin(first)
    admitted = chain.admit(second.federation, 1)
    return second, chain.extended(second, first, admitted, looks(first.identity))


def test_rounds_are_shown_with_the_alarms_before_them() -> None:
    calibration, chain = chained()
    page = render(calibration, History(looks(calibration.identity), (), chain))
    data = embedded(page)["history"]
    newest, oldest = data["rounds"]["links"]
    assert (newest["name"], oldest["name"]) == ("2", "1")
    assert newest["alarms"] == "coverage at step 1"
    assert oldest["alarms"] == "–"
    spoken = {row["name"] for row in data["rounds"]["reputations"]}
    assert spoken == {"site-00", "site-01", "site-02"}
    assert embedded(render(calibration))["history"] is None
    alone = shown(History(chain=chain))
    assert alone["claim"] == "2 rounds of calibration"
    assert alone["watch"] is None
    with pytest.raises(robfcp.RobfcpError, match="there is none"):
        render_history(History())


def test_hostile_names_and_many_sites_stay_inside() -> None:
    hostile = "</script><script>alert(1)</script>&"
    history = AlarmHistory(DIGEST, hostile, 700, 1, 0.05)
    sent = [EReport(f"s{k}", DIGEST, 0.9, 500, -1.0, None, 1) for k in range(699)]
    sent.append(EReport(hostile, DIGEST, 0.9, 500, 60.0, None, 1))
    page = render_history(History(history.looked(sent, 1)[1]))
    assert hostile not in page
    assert page.count("<script") == 2
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:|//)""", page)
    watch = embedded(page)["history"]["watch"]
    assert watch["sites"][0]["name"] == hostile
    assert len(watch["kinds"][0]["lines"]) == MOST_LINES + 1
    assert (len(watch["sites"]), watch["more"]) == (MOST_SITES, 700 - MOST_SITES)
    assert len(page) < 300_000


def test_the_commands_write_a_page_of_what_they_are_given(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calibration, chain = chained()
    calibration.save("c.json")
    chain.save("c.chain.json")
    looks(calibration.identity).save("alarms.json")
    looks().save("other.json")
    (tmp_path / "m.json").write_bytes(monitor("bad", 0.5).state.to_json())

    def go(*words: str) -> dict[str, Any]:
        told = json.loads(said("show", *words, "--html", "p.html", "--json"))
        page = (tmp_path / "p.html").read_text()
        assert told["bytes"] == len(page.encode())
        return embedded(page)

    assert go("c.json")["history"]["rounds"]["links"][0]["sites"] == 6  # the chain lies beside it
    assert go("c.json", "--history", "alarms.json")["history"]["alarm"]
    assert set(go("alarms.json")) == {"history"}
    assert go("m.json")["history"]["claim"].endswith("at bad")
    (tmp_path / "n.json").write_bytes(monitor("good", 0.05).state.to_json())
    assert len(go("m.json", "--history", "n.json")["history"]["watch"]["sites"]) == 2
    assert go("c.chain.json", "--history", "alarms.json")["history"]["watch"]
    (tmp_path / "junk.json").write_text('{"kind": "alarms", "schema": 1}')
    (tmp_path / "report.json").write_text("{}")
    for words, refusal in (
        (["c.json", "--history", "other.json"], "the history is that of another calibration"),
        (["c.json", "--history", "report.json"], "is no history"),
        (["alarms.json", "--history", "other.json"], "is the second alarms file"),
        (["alarms.json", "--history", "m.json"], "different pages"),
        (["junk.json"], "not a record of alarms"),
    ):
        assert refusal in refused("show", *words, "--html", "x.html")
    calibrated(3).save("c.json")
    assert "is not the chain of" in refused("show", "c.json", "--html", "x.html")
    assert not (tmp_path / "x.html").exists()
    sure = np.tile([0.98, 0.02], (60, 1))
    np.savez("d.npz", probabilities=sure, labels=np.zeros(60, int))
    said("monitor", "c.json", "d.npz", "--html", "m.html", "-c", "ward")
    data = embedded((tmp_path / "m.html").read_text())["history"]
    assert data["watch"]["sites"][0]["name"] == "ward"
