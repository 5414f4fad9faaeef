"""The history in a real browser: curves, alarms and what to do, with and without a calibration."""

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


def calibrate(seed=0):
    return robfcp.calibrate(reports_of(beta_scores(seed, 6, 300)), defense="none")


def ten_weeks(fingerprint, first_client="site-00"):
    """Return the history of twenty clients over ten weeks.

    From the fourth week on seven drift; one falls silent, and two report made-up e-values.
    """
    rng = np.random.default_rng(0)
    log_e_values = np.cumsum(rng.normal(-0.1, 0.4, (2, 10, 20)), axis=1)
    log_e_values[:, 3:, ::3] += np.linspace(1, 12, 7)[:, None]
    log_e_values[0, :, 17:19] = [-30, 20]
    log_e_coverage, log_e_exchangeability = log_e_values.tolist()

    clients = [first_client, *(f"site-{k:02d}" for k in range(1, 20))]
    history = AlarmHistory(fingerprint, "spring", 20, 2, 0.05)
    for week in range(1, 11):
        reports = [
            EValueReport(
                client,
                fingerprint,
                min_coverage=0.9,
                n_samples=20 * week,
                log_e_coverage=log_e_coverage[week - 1][k],
                round="spring",
                step=week,
                log_e_exchangeability=log_e_exchangeability[week - 1][k],
            )
            for k, client in enumerate(clients)
            if k != 10 or week < 7
        ]
        _, history = history.with_inspection(reports, week)
    return history


def test_the_page_of_a_history_draws_and_switches(show):
    history = PageHistory(ten_weeks("ab" * 32))
    viewport = {"width": 1280, "height": 1000}
    opened = show(lambda path: write_html(history, path), viewport=viewport)
    opened.page.screenshot(path=IMAGES / "history.png")
    assert opened.text("claim").startswith("Alarm: coverage has fallen below its minimum")
    assert "Recalibrate now" in opened.text("recommendation")
    for table, n_rows in (("clients", 20), ("inspections", 10)):
        assert opened.page.locator(f"#history-{table} tbody tr").count() == n_rows
    text_of_coverage = opened.text("history-text")
    opened.page.locator("#history-kinds button", has_text="drift").click()
    assert opened.text("history-text") != text_of_coverage
    box = opened.page.locator("#history-chart .u-over").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    readout = opened.page.locator("#history-chart .readout").inner_text()
    assert readout.startswith("step 10: all")


def test_the_calibrations_page_warns_of_an_alarm(show):
    calibration = calibrate(1)
    history = PageHistory(ten_weeks(calibration.fingerprint, HOSTILE))
    opened = show(calibration, history=history)
    assert "coverage has fallen" in opened.text("alarm")
    assert HOSTILE in opened.text("history-clients")
    without_history = show(calibration)
    for element in ("alarm", "history-section"):
        assert not without_history.page.locator(f"#{element}").is_visible()


def test_steps_are_names_on_the_calibrations_page_too(show):
    calibration = calibrate(1)
    opened = show(calibration, history=PageHistory(ten_weeks(calibration.fingerprint)))
    opened.page.locator("#history-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#history-chart .u-over").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    readout = opened.page.locator("#history-chart .readout").inner_text()
    assert readout.startswith("step 10: all")
