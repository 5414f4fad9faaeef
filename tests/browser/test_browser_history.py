"""The history in a real browser: curves, alarms and advice, alone and on a calibration's page."""

from pathlib import Path

import numpy as np
import pytest
from makers import beta_scores, reports_of

import robfcp
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.page import PageHistory, write_html

pytestmark = pytest.mark.browser
IMAGES = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "<img src=x onerror=alert(2)>"


def calibration(seed=0):
    return robfcp.calibrate(reports_of(beta_scores(seed, 6, 300)), defense="none")


def watched(fingerprint, first="site-00"):
    """Twenty sites over ten weeks: from the fourth on seven drift; one falls silent, two lie."""
    history, rng = AlarmHistory(fingerprint, "spring", 20, 2, 0.05), np.random.default_rng(0)
    logs = np.cumsum(rng.normal(-0.1, 0.4, (2, 10, 20)), axis=1)
    logs[:, 3:, ::3] += np.linspace(1, 12, 7)[:, None]
    logs[0, :, 17:19] = [-30, 20]
    names = [first, *(f"site-{k:02d}" for k in range(1, 20))]
    for week, (log, drift) in enumerate(zip(*logs.tolist(), strict=True), start=1):
        sent = [
            EValueReport(name, fingerprint, 0.9, 20 * week, log[k], "spring", week, drift[k])
            for k, name in enumerate(names)
            if k != 10 or week < 7
        ]
        _, history = history.with_inspection(sent, week)
    return history


def test_the_page_of_a_history_draws_and_switches(show):
    history, size = PageHistory(watched("ab" * 32)), {"width": 1280, "height": 1000}
    opened = show(lambda path: write_html(history, path), viewport=size)
    opened.page.screenshot(path=IMAGES / "history.png")
    assert opened.text("claim").startswith("Alarm: coverage has fallen below its floor")
    assert "Recalibrate now" in opened.text("todo")
    for table, rows in (("sites", 20), ("looks", 10)):
        assert opened.page.locator(f"#history-{table} tbody tr").count() == rows
    words = opened.text("history-words")
    opened.page.locator("#history-kinds button", has_text="drift").click()
    assert opened.text("history-words") != words
    box = opened.page.locator("#history-chart .u-over").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    assert opened.page.locator("#history-chart .readout").inner_text().startswith("step 10: all")


def test_the_calibrations_page_warns_of_an_alarm(show):
    fresh = calibration(1)
    opened = show(fresh, history=PageHistory(watched(fresh.fingerprint, HOSTILE)))
    assert "coverage has fallen" in opened.text("since")
    assert HOSTILE in opened.text("history-sites")
    quiet = show(fresh)
    for part in ("since", "history-section"):
        assert not quiet.page.locator(f"#{part}").is_visible()
