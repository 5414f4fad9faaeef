"""The validated stack: who is in, who is faulty and why, and when the round fails."""

import json

import numpy as np
import pytest

from robfcp.errors import QuorumError, RobfcpError
from robfcp.federation.federation import Federation
from robfcp.grid import Grid
from robfcp.report.report import Report
from robfcp.scores import APS, LAC


def site(name, n=50, grid=None, score=None, seed=0, **context):
    scores = np.random.default_rng([seed, n]).random(n)
    return Report.from_scores(name, scores, grid, score=score or LAC(), **context)


def reasons(federation):
    return {fault.client: (fault.field, fault.reason) for fault in federation.faulty}


def test_the_order_of_the_reports_does_not_matter():
    reports = [site(f"s{k}", n=10 + k, seed=k) for k in range(20)]
    one, other = Federation.from_reports(reports), Federation.from_reports(reports[::-1])
    assert one.ids == other.ids == tuple(sorted(one.ids))
    np.testing.assert_array_equal(one.counts, other.counts)
    assert [report.client for report in one] == list(one.ids)
    assert list(one) == sorted(reports, key=lambda report: report.client)


def test_the_round_goes_on_without_the_faulty():
    good = [site(f"good-{k}", seed=k) for k in range(6)]
    message = json.loads(good[0].to_json())
    federation = Federation.from_reports(
        [
            *good,
            site("twice"),
            site("twice", seed=1),
            site("thrice"),
            site("thrice"),
            site("thrice"),
            site("other-grid", grid=Grid.uniform(10)),
            site("other-score", score=APS(randomized=False)),
            site("late", round="6"),
            site("old-model", model="abc"),
            b"{broken",
            json.dumps({**message, "client": "negative", "n_samples": -3}),
            {**message, "client": "as-mapping"},
            {"client": object()},
            17,
        ]
    )
    assert set(federation.ids) == {"as-mapping", "thrice"} | {f"good-{k}" for k in range(6)}
    faults = reasons(federation)
    words = "twice: sent 2 different reports for this round; send one"
    assert faults["twice"] == ("client", words)
    assert faults["other-grid"][0] == "grid"
    assert faults["other-score"][0] == "score"
    assert faults["late"][0] == "round"
    assert faults["old-model"][0] == "model"
    assert faults["negative"][0] == "n_samples"
    assert faults["report #16"][0] == "report"
    assert len(faults) == 9
    assert all("\n" not in reason for _, reason in faults.values())


def test_a_faulty_report_does_not_silence_the_good_one_of_the_same_name():
    bad = json.dumps({**json.loads(site("a").to_json()), "n_samples": 3})
    for reports in ([site("a"), bad], [bad, site("a")]):
        federation = Federation.from_reports([*reports, site("b"), site("c")])
        assert federation.ids == ("a", "b", "c")
        assert set(reasons(federation)) <= {"report #1", "report #2"}
        assert len(federation.faulty) == 1


def test_registered_sizes_decide_who_may_report():
    federation = Federation.from_reports(
        [site("site-1"), site("site-7", n=49), site("stranger")],
        sizes={"site-1": 50, "site-7": 50, "silent": 10},
    )
    assert federation.ids == ("site-1",)
    assert federation.registered
    assert federation.missing == ("silent",)
    assert reasons(federation)["site-7"][1] == (
        "site-7: counts sum to 49 but 50 samples were registered; "
        "rebuild the report or fix the registry"
    )
    assert reasons(federation)["stranger"][0] == "client"


def test_a_missed_quorum_is_an_error():
    with pytest.raises(QuorumError, match="only 2 of 2 reports are valid but the quorum is 3"):
        Federation.from_reports([site("a"), site("b")], quorum=3)
    with pytest.raises(QuorumError, match="first fault: report #1"):
        Federation.from_reports([b"", b""])
    with pytest.raises(QuorumError):
        Federation.from_reports([])
    sizes = dict.fromkeys("abcd", 50)
    Federation.from_reports([site("a"), site("b")], sizes=sizes, quorum=0.5)
    with pytest.raises(QuorumError, match="quorum is 3"):
        Federation.from_reports([site("a"), site("b")], sizes=sizes, quorum=0.6)


def test_an_even_split_of_context_is_an_error_unless_the_expected_one_is_given():
    reports = [site("a", round="1"), site("b", round="2")]
    with pytest.raises(RobfcpError, match="round: the reports are split evenly"):
        Federation.from_reports(reports)
    assert Federation.from_reports(reports, round="2").ids == ("b",)


def test_expected_context_beats_the_majority():
    reports = [site("a", grid=Grid.uniform(5)), site("b", grid=Grid.uniform(5)), site("c")]
    assert Federation.from_reports(reports).ids == ("a", "b")
    assert Federation.from_reports(reports, grid=Grid.default()).ids == ("c",)


def test_views_of_the_counts_agree_with_each_other():
    counts = np.random.default_rng(0).integers(0, 5, (7, 12)) + np.eye(7, 12, dtype=int)
    federation = Federation.from_counts(counts)
    np.testing.assert_array_equal(federation.cumulative(), np.cumsum(counts, axis=1))
    for edge in (0, 5, 11):
        np.testing.assert_array_equal(federation.below(edge), federation.cumulative()[:, edge])
    np.testing.assert_array_equal(federation.pooled(), counts.sum(axis=0))
    mask = np.arange(7) % 2 == 0
    np.testing.assert_array_equal(federation.pooled(mask), counts[mask].sum(axis=0))
    merged = federation.merged(np.array([3, 4, 11]))
    expected = [counts[:, :4].sum(1), counts[:, 4], counts[:, 5:].sum(1)]
    np.testing.assert_array_equal(merged, np.transpose(expected))
    part = federation.subset(mask)
    assert part.ids == ("client-0", "client-2", "client-4", "client-6")
    assert part.n_samples == counts[mask].sum()
    assert federation.n_clients == 7


@pytest.mark.parametrize(
    ("counts", "arguments"),
    [
        ([1, 2], {}),
        ([[1.0, 2]], {}),
        ([[-1, 2]], {}),
        ([[0, 0]], {}),
        ([[1, 2]], {"grid": Grid.uniform(3)}),
        ([[1, 2], [1, 2]], {"ids": ["a", "a"]}),
        ([[1, 2], [1, 2]], {"ids": ["a"]}),
    ],
)
def test_impossible_counts_are_refused(counts, arguments):
    with pytest.raises(RobfcpError):
        Federation.from_counts(counts, **arguments)
