"""The page names who was left out, what it looks like and what to do."""

import pytest
from makers import beta_scores, reports_of

import robfcp
from robfcp import Diagnosis
from robfcp.page._text import summary_text

SITES = reports_of(beta_scores(0, 12, 90))
CALM, PROMISED = (
    robfcp.calibrate(SITES),
    robfcp.calibrate(SITES, guarantee=robfcp.MarginalGuarantee(5)),
)


def one(client, trusted=False, cause="labels mixed up", covered=0.4, other=""):
    seen = ("its labels look wrong", "check them", covered, 0.9)
    return Diagnosis(client, trusted, cause, *seen, other=other)


MANY = [one(c, cause="copy" if c > "e" else "not told", covered=0.4 - 0.3 * (c == "d"))
        for c in "abcdefg"]  # fmt: skip
LOOK = one("p", trusted=True)
TWINS = [one("a", True, "copy", other="b"), one("b", True, "copy", other="a"), one("x", True)]
TOLD = [
    ([], "All 12 sites were used; nothing in their reports looks wrong."),
    (MANY, "were left out: cause unclear at 5 and copy at 2. The worst is d: only 10%"),
    ([one(c, covered=1.0) for c in "abcde"], "left out: labels mixed up at each of them.\n"),
    ([LOOK], "All 12 sites were used, but look at p: only 40% of its own cases are covered where"),
    ([LOOK], "; its labels look wrong.\nCheck them."),
    ([one("a"), LOOK], "a was left out: only 40% of its own cases are covered where 90% should"),
    ([one("a"), one("b")], "left out: a (labels mixed up) and b (labels mixed up).\n"),
    (TWINS, "used, but look at a (copy of b), b (copy of a) and x (labels mixed up)."),
]


@pytest.mark.parametrize(("found", "words"), TOLD, ids=range(len(TOLD)))
def test_a_few_are_named_with_their_causes_and_many_are_counted(found, words):
    told = summary_text(CALM, {each.client: each for each in found})
    assert words in f"{told['first']}\n{told['then']}"
    if "left out" in words:
        told = summary_text(PROMISED, {each.client: each for each in found})
        assert words.replace("left out", "flagged") in f"{told['first']}\n{told['then']}"
