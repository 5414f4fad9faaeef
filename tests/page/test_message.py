"""The first sentence of the page names who was left out and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import robfcp
from robfcp import Diagnosis, Federation, Grid, Report
from robfcp.page import About, render
from robfcp.page.sentences import diagnoses_data, message


def calibrated(odd: int = 0, promise: Any = None) -> robfcp.Calibration:
    """Twelve sites; the last `odd` report zeros."""
    rng = np.random.default_rng(0)
    reports = [
        Report.from_scores(
            f"site-{k:02d}", np.zeros(90) if k >= 12 - odd else rng.beta(1, 3, 90), Grid.default()
        )
        for k in range(12)
    ]
    return robfcp.calibrate(Federation.from_reports(reports), promise=promise)


def one(client: str, *, trusted: bool = False, cause="labels mixed up", covered=0.4) -> Diagnosis:
    return Diagnosis(client, trusted, cause, "its labels look wrong", "check them", covered, 0.9)


def test_one_site_is_named_with_what_is_seen_and_what_to_do() -> None:
    calibration = calibrated(1)
    found = message(calibration, robfcp.diagnose(calibration))
    assert found.first == (
        "site-11 was left out: all of its own cases are covered where 90% should be; "
        "all its scores are equal (the smallest there is)."
    )
    assert found.then == "Check that the file holds real probabilities and labels."


def test_a_few_are_named_with_their_causes_and_many_are_counted() -> None:
    calibration = calibrated(0)
    few = message(calibration, {c: one(c) for c in "abc"})
    assert few.first == (
        "3 of 12 sites were left out: a (labels mixed up), b (labels mixed up) and "
        "c (labels mixed up)."
    )
    many = {c: one(c, cause="copy" if c > "e" else "not told") for c in "abcdefg"}
    many["d"] = one("d", cause="not told", covered=0.1)
    found = message(calibration, many)
    assert found.first == (
        "7 of 12 sites were left out: cause unclear at 5 and copy at 2. The worst is d: only 10% "
        "of its own cases are covered where 90% should be."
    )
    assert (
        found.then == "a, b, c, d and e (cause unclear): check them.\nf and g (copy): check them."
    )
    mild = {c: one(c, cause="scores all equal", covered=1.0) for c in "abcde"}
    assert (
        message(calibration, mild).first
        == "5 of 12 sites were left out: scores all equal at each of them."
    )


def test_advice_of_many_groups_is_bounded() -> None:
    causes = ("labels mixed up", "scores all equal", "another model", "other cases", "not told")
    many = {f"{c}{k}": one(f"{c}{k}", cause=causes[k % 5]) for k, c in enumerate("abcdefg" * 3)}
    lines = message(calibrated(0), many).then.splitlines()
    assert len(lines) == 5
    assert lines[0] == "a0, f5, d10, b15 and g20 (labels mixed up): check them."
    assert lines[-1] == "e4, c9, a14 and f19: see below."
    wide = message(calibrated(0), {f"s{k}": one(f"s{k}") for k in range(9)}).then
    assert wide == "s0, s1, s2, s3, s4 and 4 more (labels mixed up): check them."


def test_two_copies_of_each_other_are_named_once() -> None:
    twins = {
        c: replace(one(c, cause="copy", trusted=True), other=other)
        for c, other in (("a", "b"), ("b", "a"))
    }
    words = message(calibrated(0), {**twins, "x": one("x", trusted=True)}).first
    assert "look at a with b (the same report) and x (labels mixed up)." in words


def test_trusted_sites_to_look_at_come_first_where_nobody_was_left_out() -> None:
    calibration = calibrated(0)
    alone = message(calibration, {"x": one("x", trusted=True)})
    assert alone.first == (
        "All 12 sites were used, but look at x: only 40% of its own cases are covered where 90% "
        "should be; its labels look wrong."
    )
    assert alone.then == "Check them."
    both = {c: one(c, trusted=True) for c in "xy"}
    assert "but look at x (labels mixed up) and y (labels mixed up)." in (
        message(calibration, both).first
    )
    beside = message(calibration, {"a": one("a"), "x": one("x", trusted=True)})
    assert beside.then == "Check them. Also look at x (labels mixed up), which was used."


def test_nothing_wrong_and_guarantees_have_their_words() -> None:
    calm = calibrated(0)
    assert message(calm, {}).first == (
        "All 12 sites were used; nothing in their reports looks wrong."
    )
    stated = calibrated(2, robfcp.Marginal(5))
    words = message(stated, robfcp.diagnose(stated)).first
    assert words.startswith("2 of 12 sites were flagged: site-10 (")


def test_the_pages_data_holds_sentences() -> None:
    (found,) = diagnoses_data({"x": one("x", cause="not told")}).values()
    assert found["cause"] == "cause unclear"
    assert found["advice"] == "Check them."
    assert found["fact"].startswith("Only 40% of")


def test_about_stands_on_the_page_and_is_bounded() -> None:
    about = About("Outcome <after> stroke", study="IST", by="A. Analyst", date="1 May 2026")
    page = render(calibrated(0), about=about)
    assert "Outcome \\u003cafter\\u003e stroke" in page
    assert "run by A. Analyst" in page
    with pytest.raises(robfcp.RobfcpError, match="study: more than 200 letters"):
        About(study="x" * 201)
