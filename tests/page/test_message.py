"""The first sentence of the page names who was left out and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from makers import beta_scores, reports_of

import robfcp
from robfcp import Diagnosis
from robfcp.page import About, render
from robfcp.page.sentences import diagnoses_data, message


def calibrated(odd: int = 0, promise: Any = None) -> robfcp.Calibration:
    """Twelve sites; the first `odd` report zeros."""
    return robfcp.calibrate(reports_of(beta_scores(0, 12, 90, odd)), promise=promise)


CALM = calibrated()


def one(client: str, trusted: bool = False, cause="labels mixed up", covered=0.4, other=""):
    seen = ("its labels look wrong", "check them", covered, 0.9)
    return Diagnosis(client, trusted, cause, *seen, other=other)


CAUSES = ("labels mixed up", "scores all equal", "another model", "other cases", "not told")
MANY = [one(c, cause="copy" if c > "e" else "not told", covered=0.4 - 0.3 * (c == "d"))
        for c in "abcdefg"]  # fmt: skip


LOOK = [one(c, trusted=True) for c in "pqrstuv"]


TWINS = [one("a", True, "copy", other="b"), one("b", True, "copy", other="a"), one("x", True)]


TOLD = [
    ([], "All 12 sites were used; nothing in their reports looks wrong."),
    (
        MANY,
        "7 of 12 sites were left out: cause unclear at 5 and copy at 2. The worst is d: only 10%",
    ),
    (MANY, "\na, b, c, d and e (cause unclear): check them.\nf and g (copy): check them."),
    ([one(c, covered=1.0) for c in "abcde"], "left out: labels mixed up at each of them.\n"),
    ([one(f"s{k}") for k in range(9)], "\ns0, s1, s2, s3, s4 and 4 more (labels mixed up): check"),
    (
        LOOK[:1],
        "All 12 sites were used, but look at p: only 40% of its own cases are covered where",
    ),
    (LOOK[:1], "; its labels look wrong.\nCheck them."),
    (
        [one("a"), *LOOK[:1]],
        "a was left out: only 40% of its own cases are covered where 90% should",
    ),
    ([one("a"), *LOOK[:1]], "\nCheck them. Also look at p, which was used."),
    (
        [one("a"), one("b")],
        "2 of 12 sites were left out: a (labels mixed up) and b (labels mixed up).",
    ),
    (
        [one("a"), one("b"), *LOOK[:1]],
        "): check them.\nAlso look at p, which was",
    ),
    ([one("a"), *LOOK], "Also look at p, q, r, s, t and 2 more, which were used."),
    (TWINS, "used, but look at a (copy of b), b (copy of a) and x (labels mixed up)."),
]


@pytest.mark.parametrize(("found", "words"), TOLD, ids=range(len(TOLD)))
def test_a_few_are_named_with_their_causes_and_many_are_counted(found, words) -> None:
    told = message(CALM, {each.client: each for each in found})
    assert words in f"{told['first']}\n{told['then']}"


def test_advice_of_many_groups_is_bounded() -> None:
    many = [one(f"{c}{k}", cause=CAUSES[k % 5]) for k, c in enumerate("abcdefg" * 3)]
    lines = message(CALM, {each.client: each for each in many})["then"].splitlines()
    assert len(lines) == 5
    assert lines[0] == "a0, f5, d10, b15 and g20 (labels mixed up): check them."
    assert lines[-1] == "e4, c9, a14 and f19: see below."


def test_a_real_site_is_named_with_what_is_seen_and_under_a_promise_it_is_flagged() -> None:
    for odd, promise, words in (
        (
            1,
            None,
            "site-00 was left out: all of its own cases are covered where 90% should be; all",
        ),
        (2, robfcp.Marginal(5), "2 of 12 sites were flagged: site-00 ("),
    ):
        calibration = calibrated(odd, promise)
        assert words in message(calibration, robfcp.diagnose(calibration))["first"]


def test_the_pages_data_holds_sentences_and_what_the_page_is_about() -> None:
    (found,) = diagnoses_data({"x": one("x", cause="not told")}).values()
    assert (found["cause"], found["advice"]) == ("cause unclear", "Check them.")
    assert found["fact"].startswith("Only 40% of")
    page = render(CALM, about=About("Outcome <after> stroke", study="IST", by="A. Analyst"))
    assert "Outcome \\u003cafter\\u003e stroke" in page
    assert "run by A. Analyst" in page
    with pytest.raises(robfcp.RobfcpError, match="study: more than 200 letters"):
        About(study="x" * 201)
