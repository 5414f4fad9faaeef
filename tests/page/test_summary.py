"""The summary names the excluded or suspicious clients, their probable causes and what to do."""

import pytest
from makers import beta_scores, reports_of

import robfcp
from robfcp import Diagnosis
from robfcp.page._text import summary_text

REPORTS = reports_of(beta_scores(0, 12, 90))
DEFENDED = robfcp.calibrate(REPORTS)
GUARANTEED = robfcp.calibrate(REPORTS, guarantee=robfcp.MarginalGuarantee(5))


def diagnosis(client, is_benign=False, cause="labels permuted", coverage=0.4, duplicate_of=""):
    return Diagnosis(
        client,
        is_benign,
        cause,
        description="its labels look wrong",
        recommendation="check them",
        coverage=coverage,
        target_coverage=0.9,
        duplicate_of=duplicate_of,
    )


MANY_CAUSES = [
    diagnosis("a", cause="unexplained"),
    diagnosis("b", cause="unexplained"),
    diagnosis("c", cause="unexplained"),
    diagnosis("d", cause="unexplained", coverage=0.1),
    diagnosis("e", cause="unexplained"),
    diagnosis("f", cause="duplicate report"),
    diagnosis("g", cause="duplicate report"),
]
SUSPICIOUS = diagnosis("p", is_benign=True)
DUPLICATES = [
    diagnosis("a", True, "duplicate report", duplicate_of="b"),
    diagnosis("b", True, "duplicate report", duplicate_of="a"),
    diagnosis("x", True),
]
SUMMARIES = [
    ([], "All 12 sites were included; nothing in their reports is suspicious."),
    (
        MANY_CAUSES,
        "were excluded: cause unclear at 5 and duplicate report at 2. The worst is d: only 10%",
    ),
    (
        [diagnosis(client, coverage=1.0) for client in "abcde"],
        "excluded: labels permuted at each of them.\n",
    ),
    (
        [SUSPICIOUS],
        "All 12 sites were included, but p is suspicious: only 40% of its own cases are covered "
        "where",
    ),
    ([SUSPICIOUS], "; its labels look wrong.\nCheck them."),
    (
        [diagnosis("a"), SUSPICIOUS],
        "a was excluded: only 40% of its own cases are covered where 90% should",
    ),
    (
        [diagnosis("a"), diagnosis("b")],
        "excluded: a (labels permuted) and b (labels permuted).\n",
    ),
    (
        DUPLICATES,
        "included, but a (copy of b), b (copy of a) and x (labels permuted) are suspicious.",
    ),
]


@pytest.mark.parametrize(("diagnoses", "expected"), SUMMARIES, ids=range(len(SUMMARIES)))
def test_few_clients_are_named_with_their_causes_and_many_are_counted(diagnoses, expected):
    diagnosis_of = {diagnosis.client: diagnosis for diagnosis in diagnoses}
    summary = summary_text(DEFENDED, diagnosis_of)
    assert expected in f"{summary['sentence']}\n{summary['recommendation']}"
    if "excluded" in expected:
        summary = summary_text(GUARANTEED, diagnosis_of)
        flagged = expected.replace("excluded", "flagged")
        assert flagged in f"{summary['sentence']}\n{summary['recommendation']}"
