"""The validated stack: who is in, who is faulty and why, and when the round fails."""

import json

import numpy as np
import pytest

from robfcp.errors import QuorumError, RobfcpError
from robfcp.federation import Federation, counts
from robfcp.federation import federation as module
from robfcp.grid import Grid
from robfcp.report import Report
from robfcp.report.agreement import Terms
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


def test_passes_do_not_depend_on_the_number_of_blocks(monkeypatch):
    rng = np.random.default_rng(4)
    reports = []
    for k in range(30):
        scores, name = rng.random(20), f"s{k:02d}"
        more = {"labels": rng.integers(0, 3, 20), "classes": 3} if k % 3 else {}
        more |= {"label_scores": rng.random((20, 3))} if k % 2 else {}
        reports.append(Report.from_scores(name, scores, Grid.uniform(50), score=LAC(), **more))
    monkeypatch.setattr(counts, "DENSE_BYTES", 0)
    federation = Federation.from_reports(reports)
    weights = rng.random(30)

    def answers():
        return (
            federation.fold(lambda block: block.pooled()).tolist(),
            federation.fold(lambda block: block.n_samples),
            federation.fold(lambda block: set(block.ids), add=set.union),
            federation.fold(lambda block: block.strata.sizes.sum(axis=0)).tolist(),
            federation.map(lambda block: block.below(20)).tolist(),
            federation.map(lambda block, own: own * block.sizes, weights).tolist(),
            federation.map(lambda block: block.cumulative(np.array([3, 40]))).tolist(),
            [report for block in federation.blocks() for report in block] == reports,
        )

    whole = answers()
    assert whole[4] == federation.below(20).tolist()
    assert whole[-1]
    for entries in (1, 50, 333):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", entries)
        assert len(list(federation.blocks())) > 1
        assert answers() == whole
    np.testing.assert_allclose(
        federation.fold(lambda block, own: block.weighted(own), weights),
        weights @ federation.counts,
    )


def test_a_federation_of_nobody_is_one_empty_block():
    reports = [Report.from_scores("a", [0.5], Grid.uniform(4), labels=[0], classes=2)]
    nobody = Federation.from_reports(reports).stratum(1)
    assert nobody.fold(lambda block: block.pooled()).tolist() == [0, 0, 0, 0]
    assert nobody.map(lambda block: block.below(1)).tolist() == []


def test_terms_state_what_was_agreed_and_contradict_what_was_not(tmp_path):
    reports = [site("a", round="r"), site("b", round="old"), site("c", round="r", score=APS())]
    (tmp_path / "terms.toml").write_text('round = "r"\nscore = "lac"\ngrid = "default"\n')
    for terms in (Terms(round="r", score="lac"), tmp_path / "terms.toml"):
        federation = Federation.from_reports(reports, terms=terms)
        assert federation.ids == ("a",)
        assert federation.checked.round == federation.checked.score == "as stated"
        assert Federation.from_reports(reports, terms=terms, round="r", score=LAC()).ids == ("a",)
    with pytest.raises(RobfcpError, match=r"round: old is not what was agreed \(r\)"):
        Federation.from_reports(reports, terms=terms, round="old")
    with pytest.raises(RobfcpError, match="score"):
        Federation.from_reports(reports, terms=terms, score=APS())


def test_a_folder_stands_for_its_reports(tmp_path):
    for name in ("b", "a"):
        site(name).save(tmp_path / f"{name}.json")
    for other in (".hidden.json", "c.record.json", "notes.txt"):
        (tmp_path / other).write_text("no report")
    for where in (tmp_path, str(tmp_path), [tmp_path], sorted(tmp_path.glob("?.json"))):
        federation = Federation.read(where)
        assert (federation.ids, federation.faulty) == (("a", "b"), ())
    (tmp_path / "d.json").write_text("{")
    assert [f.client for f in Federation.read(tmp_path).faulty] == [f"file:{tmp_path}/d.json"]


def test_sites_with_more_than_their_share_of_the_samples_are_refused():
    reports = [site(f"s{k}", seed=k) for k in range(5)] + [site("huge", n=500)]
    federation = Federation.from_reports(reports, max_share=0.5)
    assert "huge" not in federation.ids
    assert reasons(federation)["huge"] == (
        "n_samples",
        "huge: claims 66.7% of all samples but the cap is 50.0%; check its size or raise max_share",
    )
    assert Federation.from_reports(reports, max_share=0.9).n_clients == 6
    for wrong in (0.01, 2, "half"):
        with pytest.raises(RobfcpError, match="max_share"):
            Federation.from_reports(reports, max_share=wrong)
