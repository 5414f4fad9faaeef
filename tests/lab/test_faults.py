"""The demo's story: real hospitals, what is wrong at some, and what it costs the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from makers import said

import robfcp
from robfcp.lab.faults import FAULTS, HONEST, LIE, compared, stroke_story


def test_every_fault_happens_once_and_the_rest_is_honest() -> None:
    story = stroke_story(liars=3, seed=4)
    assert sorted(story.faults.values()) == sorted([*FAULTS, *[LIE] * 3])
    assert len(story.honest) == len(story.reports) - 8
    for report in story.reports:
        wrong = story.faults.get(report.client)
        assert (report.counts[0] == report.n_samples) == (wrong == LIE)
        if wrong is None:
            assert abs(report.n_samples - 2 * len(story.tests[report.client][1])) <= 2


def test_lines_are_what_the_thresholds_give_on_the_test_patients() -> None:
    story = stroke_story(seed=2)
    lines = {line["defence"]: line for line in compared(story, ("none", "rob-fcp"))}
    pooled = robfcp.calibrate(story.reports, defence="none")
    score = robfcp.LAC()
    own = [score(*story.tests[report.client]) for report in story.honest]
    everybody = np.concatenate(own) <= pooled.threshold
    assert lines["none"]["coverage"] == pytest.approx(everybody.mean())
    assert lines["none"]["worst_site"] == min((part <= pooled.threshold).mean() for part in own)
    label = np.concatenate([story.tests[report.client][1] for report in story.honest])
    assert lines["none"]["worst_class"] == min(everybody[label == c].mean() for c in range(4))
    assert lines["none"]["coverage"] < lines[HONEST]["coverage"] - 0.02
    assert lines["rob-fcp"]["found"] >= 14
    assert lines[HONEST]["found"] == lines[HONEST]["false_alarms"] == 0


@pytest.mark.slow
def test_demo_ends_with_a_page_and_the_reports(tmp_path) -> None:
    out = tmp_path / "out"
    told = json.loads(said("demo", "-o", out, "--json"))
    assert [line["defence"] for line in told["lines"]][:2] == [HONEST, "none"]
    liars = [name for name, fault in told["faults"].items() if fault == LIE]
    assert all(told["said"][name] == "scores all equal" for name in liars)
    recovered = [1 - told["lines"][k]["by_class"][3] for k in (0, 1, -1)]  # honest, none, ours
    assert recovered[1] > 1.5 * recovered[0] > recovered[2]
    assert {"calibration.json", "demo.json", "page.html"} <= {path.name for path in out.iterdir()}
    again = robfcp.calibrate([robfcp.Report.load(path) for path in (out / "reports").iterdir()])
    assert len(again.federation.ids) == 49
    assert again.threshold == robfcp.Calibration.load(out / "calibration.json").threshold
