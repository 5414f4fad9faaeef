"""The history in a real browser: curves, alarms and advice, alone and on a calibration's page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from makers import LAC, beta_scores, reports_of
from msgspec.structs import replace

import robfcp
from robfcp.lab import outputs
from robfcp.monitoring import AlarmHistory, Chain, EReport
from robfcp.page import History, write_page

pytestmark = pytest.mark.browser
IMAGES = Path(__file__).parents[2] / "docs" / "images"
HOSTILE = "<img src=x onerror=alert(2)>"


def calibration(seed: int = 0) -> robfcp.Calibration:
    return robfcp.calibrate(reports_of(beta_scores(seed, 6, 300)), defence="none")


def watched(identity: str) -> AlarmHistory:
    history = AlarmHistory(identity, "spring", 6, 1, 0.05)
    for step in range(1, 6):
        logs = {HOSTILE: 2.0, "site-1": 2.0, "site-2": 2.0, "a": -0.4, "b": -0.4, "c": -0.4}
        sent = [
            EReport(name, identity, 0.9, 100 * step, log * step, "spring", step, 0.1 * step)
            for name, log in logs.items()
        ]
        _, history = history.looked(sent, step)
    return history


def test_the_calibrations_page_warns_of_an_alarm_and_shows_its_rounds(
    show: Callable[..., Any],
) -> None:
    first, fresh = calibration(0), calibration(1)
    chain = Chain.begin(first)
    admitted = chain.admit(fresh.federation, 1)
    chain = chain.extended(fresh, first, admitted, watched(first.identity))
    opened = show(fresh, history=History(watched(fresh.identity), (), chain))
    assert "coverage has fallen" in opened.text("since")
    assert HOSTILE in opened.text("history-sites")
    assert opened.page.locator("#rounds tbody tr").count() == 2
    assert "coverage at step" in opened.text("rounds")
    quiet = show(fresh)
    for part in ("since", "history-section", "rounds-section"):
        assert not quiet.page.locator(f"#{part}").is_visible()


def new_scanner() -> History:
    """Twenty pathology sites; from the fourth week on seven of them see flatter probabilities and
    other labels, one falls silent, two report what they like."""
    data, rng = outputs.load("pathmnist"), np.random.default_rng(0)
    parts = np.array_split(rng.permutation(len(data.labels)), 20)
    firsts = (part[:150] for part in parts)
    reports = reports_of(LAC(data.probabilities[rows], data.labels[rows]) for rows in firsts)
    calibration = robfcp.calibrate(reports, defence="none")
    monitors = [robfcp.Monitor(calibration, report=one, seed=0) for one in reports]
    history = AlarmHistory(calibration.identity, "spring", 20, 2, 0.05)
    for week in range(1, 11):
        sent = []
        for k, (part, monitor) in enumerate(zip(parts, monitors, strict=True)):
            rows = part[130 + 20 * week : 150 + 20 * week]
            p, y = data.probabilities[rows].astype(float), data.labels[rows]
            if week > 3 and k % 3 == 0:
                y = np.where(rng.random(len(y)) < 0.7, rng.permutation(y), y)
            monitor.update(p, y, ids=rows)
            one = monitor.e_report("spring", week)
            if k in (17, 18):
                one = replace(one, log_coverage=-30.0 if k == 17 else 1.0 * one.n_samples)
            if k != 10 or week < 7:
                sent.append(one)
        _, history = history.looked(sent, week)
    return History(history)


def test_the_page_of_a_history_draws_and_switches(show: Callable[..., Any]) -> None:
    history, size = new_scanner(), {"width": 1280, "height": 1000}
    opened = show(lambda path: write_page(history, path), viewport=size)
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
    assert not opened.page.locator("#rounds-section").is_visible()
