"""The validated stack: who is in, who is faulty and why, and when the round fails."""

import json
import os

import numpy as np
import pytest
from makers import peak
from noises import draw
from scipy.optimize import nnls

from robfcp import Privacy
from robfcp._validation import check_client_name
from robfcp.binning import Binning
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation import Federation
from robfcp.federation._comparison import losses_as_samples, project_to_simplex
from robfcp.guarantees._count_bounds import isotonic_fit
from robfcp.reports import Report, _wire
from robfcp.reports.terms import RoundTerms
from robfcp.scores import APS, LAC, AbsoluteResidual


def site(name, n=50, grid=None, score=None, seed=0, **context):
    scores = np.random.default_rng([seed, n]).random(n)
    return Report.from_scores(name, scores, grid, score=score or LAC(), **context)


def reasons(federation):
    return {fault.client: (fault.field, fault.reason) for fault in federation.rejected_reports}


def test_the_order_of_the_reports_does_not_matter():
    reports = [site(f"s{k}", n=10 + k, seed=k) for k in range(20)]
    one, other = Federation.from_reports(reports), Federation.from_reports(reports[::-1])
    assert list(one) == list(other) == sorted(reports, key=lambda report: report.client)


def test_the_round_goes_on_without_the_faulty():
    good = [site(f"good-{k}", seed=k) for k in range(6)]
    message = json.loads(good[0].to_json())
    federation = Federation.from_reports(
        [
            *good,
            *(site("twice", seed=seed) for seed in range(2)),
            *(site("thrice") for _ in range(3)),
            site("other-grid", grid=Binning.uniform(10)),
            site("other-score", score=APS(randomized=False)),
            site("numbers", score=AbsoluteResidual(), grid=Binning.open_ended()),
            site("late", round="6"),
            site("old-model", model="abc"),
            b"{broken",
            json.dumps({**message, "client": "negative", "n_samples": -3}),
            {**message, "client": "as-mapping"},
            {"client": object()},
            17,
        ]
    )
    assert set(federation.clients) == {"as-mapping", "thrice"} | {f"good-{k}" for k in range(6)}
    assert federation.resubmitted_clients == ("thrice",)
    faults = reasons(federation)
    words = "twice: sent 2 different reports for this round; send one"
    assert faults["twice"] == ("client", words)
    fields = {"other-grid": "grid", "other-score": "score", "late": "round", "old-model": "model"}
    fields |= {"negative": "n_samples", "report #17": "report", "numbers": "score"}
    assert {client: faults[client][0] for client in fields} == fields
    assert len(faults) == 10
    assert all("\n" not in reason for _, reason in faults.values())


def test_a_faulty_report_does_not_silence_the_good_one_of_the_same_name():
    bad = json.dumps({**json.loads(site("a").to_json()), "n_samples": 3})
    for place, reports in ((2, [site("a"), bad]), (1, [bad, site("a")])):
        federation = Federation.from_reports([*reports, site("b"), site("c")])
        assert federation.clients == ("a", "b", "c")
        assert set(reasons(federation)) == {f"report #{place}"}


def test_registered_sizes_decide_who_may_report():
    federation = Federation.from_reports(
        [site("site-1"), site("site-7", n=49), site("stranger")],
        registered_sizes={"site-1": 50, "site-7": 50, "silent": 10},
    )
    assert (federation.clients, federation.missing_clients) == (("site-1",), ("silent",))
    assert federation.sizes_registered
    assert reasons(federation)["site-7"][1] == (
        "site-7: counts sum to 49 but 50 samples were registered; "
        "rebuild the report or fix the registry"
    )
    assert reasons(federation)["stranger"][0] == "client"


PAIR = [site("a", round="1"), site("b", round="1")]


@pytest.mark.parametrize(
    ("reports", "options", "words"),
    [
        (PAIR, {"quorum": 3}, "only 2 of 2 reports are valid but the quorum is 3"),
        (PAIR, {"registered_sizes": dict.fromkeys("abcd", 50), "quorum": 0.6}, "quorum is 3"),
        ([b"", b""], {}, "first fault: report #1"),
        ([], {}, "0 of 0"),
    ],
)
def test_a_missed_quorum_is_an_error(reports, options, words):
    with pytest.raises(QuorumError, match=words):
        Federation.from_reports(reports, **options)
    Federation.from_reports(PAIR, registered_sizes=dict.fromkeys("abcd", 50), quorum=0.5)


def test_expected_context_beats_the_majority_and_an_even_split_needs_it():
    split = [PAIR[0], site("c", round="2")]
    with pytest.raises(RobfcpError, match="round: the reports are split evenly"):
        Federation.from_reports(split)
    assert Federation.from_reports(split, round="2").clients == ("c",)
    reports = [*(site(name, grid=Binning.uniform(5)) for name in "ab"), site("c")]
    assert Federation.from_reports(reports).clients == ("a", "b")
    assert Federation.from_reports(reports, binning=Binning.default()).clients == ("c",)


@pytest.mark.parametrize(
    ("counts", "arguments"),
    [
        *((bad, {}) for bad in ([1, 2], [[1.0, 2]], [[-1, 2]], [[0, 0]])),
        ([[1, 2]], {"binning": Binning.uniform(3)}),
        *(([[1, 2], [1, 2]], {"clients": clients}) for clients in (["a", "a"], ["a"])),
    ],
)
def test_impossible_counts_are_refused(counts, arguments):
    with pytest.raises(RobfcpError):
        Federation.from_counts(counts, **arguments)


def test_a_federation_of_nobody_is_one_empty_block():
    reports = [Report.from_scores("a", [0.5], Binning.uniform(4), labels=[0], classes=2)]
    nobody = Federation.from_reports(reports).select_stratum(1)
    assert nobody.reduce_blocks(lambda block: block.pooled_counts()).tolist() == [0, 0, 0, 0]
    assert nobody.map_blocks(lambda block: block.cumulative_count(1)).tolist() == []


def test_terms_state_what_was_agreed_and_contradict_what_was_not(tmp_path):
    reports = [site("a", round="r"), site("b", round="old"), site("c", round="r", score=APS())]
    (tmp_path / "terms.toml").write_text('round = "r"\nscore = "lac"\ngrid = "default"\n')
    for terms in (RoundTerms(round="r", score="lac"), tmp_path / "terms.toml"):
        federation = Federation.from_reports(reports, terms=terms)
        assert federation.clients == ("a",)
        assert federation.verification.round == federation.verification.score == "as stated"
        assert Federation.from_reports(reports, terms=terms, round="r", score=LAC()).clients == (
            "a",
        )
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
        federation = Federation.from_files(where)
        assert (federation.clients, federation.rejected_reports) == (("a", "b"), ())
    (tmp_path / "d.json").write_text("{")
    assert [f.client for f in Federation.from_files(tmp_path).rejected_reports] == [
        f"file:{tmp_path}/d.json"
    ]


def test_sites_with_more_than_their_share_of_the_samples_are_refused():
    reports = [site(f"s{k}", seed=k) for k in range(5)] + [site("huge", n=500)]
    (fault,) = Federation.from_reports(reports, max_client_share=0.5).rejected_reports
    assert (fault.client, fault.field) == ("huge", "n_samples")
    assert "claims 66.7% of all samples but the cap is 50.0%; check its size" in fault.reason
    assert Federation.from_reports(reports, max_client_share=0.9).n_clients == 6
    for wrong in (0.01, 2, "half"):
        with pytest.raises(RobfcpError, match="max_share"):
            Federation.from_reports(reports, max_client_share=wrong)


# One stray, repeated, forged or huge file removes no genuine site, nor costs the others


def test_a_file_called_like_a_client_takes_nothing_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for client, name in (("a", "a"), ("b", "b"), ("site-3", "real")):
        site(client).save(name)
    (tmp_path / "site-3").write_text("{broken")
    federation = Federation.from_files(["site-3", "nobody", "real", "a", "b"])
    assert federation.clients == ("a", "b", "site-3")
    assert [fault.client for fault in federation.rejected_reports] == ["file:nobody", "file:site-3"]


def test_a_report_of_another_round_is_set_aside_before_duplicates_are_judged():
    reports = [site(f"s{k}", seed=k, round="now") for k in range(4)]
    old = site("s1", seed=9, round="before")
    for mixed in ([old, *reports], [*reports, old]):
        federation = Federation.from_reports(mixed)
        assert federation.clients == ("s0", "s1", "s2", "s3")
        assert "round is before" in federation.rejected_reports[0].reason
        assert federation.rejected_reports[0].client.startswith("report #")
    strays = [site("x", seed=k, round="before") for k in range(9)]  # who sends many has no vote
    assert Federation.from_reports([*strays, *reports]).round == "now"


def big(name, bins):
    parameters = {"bins": bins, "low": 0.0, "high": 1.0}
    grid = {"name": "uniform", "digest": Binning.uniform(bins).digest, "parameters": parameters}
    counts = {"bins": [1], "counts": [50]}
    return json.dumps(json.loads(site(name).to_json()) | {"grid": grid, "counts": counts})


@pytest.mark.parametrize("bins", [9_000, 19_000])
def test_of_grids_only_digests_are_kept_until_the_vote(bins):
    sent = [big(f"x{k}", bins + k) for k in range(180)]
    sent += [site(f"s{k}", seed=k).to_json() for k in range(70)]
    assert peak(lambda: Federation.from_reports(sent)) < 10e6
    assert Federation.from_reports(sent).n_clients == 70


def test_a_fine_grid_may_be_the_rounds_own_for_few_clients():
    reports = [big(f"s{k}", 20_000) for k in range(3)]
    assert Federation.from_reports(reports).binning == Binning.uniform(20_000)
    with pytest.raises(RobfcpError, match="more than 20000 bins"):
        Report.from_json(big("x", 20_001))
    many = Federation.from_counts(np.eye(900, 20_000, dtype=np.int8), Binning.uniform(20_000))
    with pytest.raises(RobfcpError, match="20000 bins are too many for 900 sites"):
        Federation.from_reports(iter(many))


def test_where_the_grid_is_stated_no_other_is_built(monkeypatch):
    hostile, honest = big("x", 19_000), site("s").to_json()
    monkeypatch.setattr(_wire, "named_binning", lambda *_: pytest.fail("was built"))
    federation = Federation.from_reports([hostile, honest], binning=Binning.default())
    assert federation.clients == ("s",)
    assert "grid is uniform" in federation.rejected_reports[0].reason


LOOKALIKES = [" a", "a ", "a\u00a0", "sit\u0435-3", "ѕite", "si\u3164te", "ｓite", "a\ufe0f"]
LOOKALIKES += ["file:x", "report #3", "\u2800", "e\u0301"]


@pytest.mark.parametrize("name", LOOKALIKES, ids=ascii)
def test_names_that_look_like_others_are_refused(name):
    for plain in ("site-3", "Zürich", "Αθήνα", "Москва 2", "東京大学病院 A", "a/b c"):
        check_client_name(plain)
    with pytest.raises(ReportError) as error:
        check_client_name(name)
    assert str(error.value).isascii() or "letters" in str(error.value)


@pytest.mark.parametrize("special", ["pipe", "/dev/zero", "/proc/self/status"])
def test_specials_never_hang(tmp_path, special):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x").symlink_to(special)
    site("a").save(tmp_path / "a")
    federation = Federation.from_files([tmp_path / "x", tmp_path / "a"])
    assert (federation.clients, len(federation.rejected_reports)) == (("a",), 1)


# Private counts as the closest histograms, for comparing sites


def test_projections_are_the_closest_histograms():
    rng = np.random.default_rng(5)
    values, totals = rng.normal(2, 5, (30, 8)), rng.uniform(5, 30, 30)
    heavy = 1e5  # the sum as a heavily weighted equation: non-negative least squares
    system = np.vstack([np.eye(8), heavy * np.ones(8)])
    for row, total, found in zip(values, totals, project_to_simplex(values, totals), strict=True):
        expected = nnls(system, np.append(row, heavy * total))[0]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(isotonic_fit(np.array([1.0, 3.0, 2.0, 4.0])), [1, 2.5, 2.5, 4])


def test_only_private_rows_are_projected():
    rng = np.random.default_rng(6)
    shares = np.linspace(2, 0.1, 24) / np.linspace(2, 0.1, 24).sum()
    counts, marks = rng.multinomial(100, shares, 40), [None, *[Privacy(0.2)] * 39]
    counts[1:] += draw(rng, Privacy(0.2).noise, (39, 24))
    sent = Federation.from_counts(counts, privacy=marks, sample_sizes=np.full(40, 100))
    shown = sent.projected_to_simplex()
    assert (shown.counts[0] == sent.counts[0]).all()
    assert shown.counts.min() >= 0 > sent.counts.min()
    np.testing.assert_allclose(shown.counts.sum(axis=1), 100)
    assert sent.with_integer_counts().counts.dtype == np.int64
    plain = sent.select(np.arange(40) == 0)
    assert plain.projected_to_simplex() is plain is plain.with_integer_counts()
    errors = [np.abs(held.counts - 100 * shares).sum() for held in (shown, sent)]
    assert errors[0] < errors[1]  # noise moves the shares less after the projection


def test_where_few_tell_classes_liars_who_outnumber_them_have_nobody_refused():
    scores, labels = [0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]
    large = [Report.from_scores(f"l{k}", scores, labels=labels, classes=2) for k in range(2)]
    liars = [Report.from_scores(f"x{k}", scores, labels=labels, classes=3) for k in range(3)]
    small = [Report.from_scores(f"s{k}", scores) for k in range(6)]
    assert Federation.from_reports([*large, *small]).strata is not None
    federation = Federation.from_reports([*large, *liars, *small])
    assert federation.strata is None
    assert federation.n_clients == 11


def test_losses_are_counted_as_the_nearest_numbers_of_samples():
    """By plain loops: counts up to an edge never fall, and what is missing is in the last bin."""
    rng = np.random.default_rng(0)
    cumulative = np.cumsum(rng.integers(-3, 12, (20, 6)), axis=1)
    sizes = rng.integers(1, 8, 20)
    found = losses_as_samples(cumulative, sizes, 7)
    for row, size, counts in zip(cumulative.tolist(), sizes.tolist(), found.tolist(), strict=True):
        reached = 0
        expected = []
        for parts in row:
            rising = max(reached, round(parts / 7))
            expected.append(rising - reached)
            reached = rising
        expected[-1] += max(size - reached, 0)
        assert counts == expected
    assert (found.sum(axis=1) > sizes).any()
    assert (found.sum(axis=1) == sizes).any()


def totals_report(name, classes, seed=0):
    rng = np.random.default_rng(seed)
    n_classes = classes if isinstance(classes, int) else len(classes)
    labels = rng.integers(0, n_classes, 60)
    return Report.from_scores(
        name, rng.random(60), labels=labels, classes=classes, min_cell_count=5
    )


def test_class_totals_must_be_of_the_rounds_classes_in_any_order():
    sent = [totals_report(f"s{k}", ["a", "b", "c"], k) for k in range(4)]
    sent.append(totals_report("s4", ["c", "a", "b"], 4))
    sent.append(totals_report("s5", 3, 5))
    sent.append(totals_report("s6", ["a", "b"], 6))
    federation = Federation.from_reports(sent)
    assert [rejected.client for rejected in federation.rejected_reports] == ["s6"]
    assert "its 2 classes are not the round's 3 (it lacks 'c')" in (
        federation.rejected_reports[0].reason
    )
    totals = federation.class_totals
    assert totals.names == ("a", "b", "c")
    assert totals.rows.tolist() == list(range(6))
    c, a, b = sent[4].class_totals.totals.tolist()
    assert totals.table.dense()[4].tolist() == [a, b, c]
    assert totals.table.dense()[5].tolist() == sent[5].class_totals.totals.tolist()


def test_where_few_state_class_totals_liars_who_outnumber_them_have_nobody_rejected():
    pooled = [Report.from_scores(f"p{k}", [0.1, 0.4]) for k in range(6)]
    benign = [totals_report(f"s{k}", ["a", "b"], k) for k in range(2)]
    liars = [totals_report(f"x{k}", ["a", "b", "c"], k) for k in range(3)]
    federation = Federation.from_reports([*pooled, *benign, *liars])
    assert federation.rejected_reports == ()
    assert federation.class_totals is None
    federation = Federation.from_reports([*pooled, *benign])
    assert federation.class_totals.rows.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("stated", "asked", "limit"),
    [
        ((5, 5, 10), None, 5),
        ((10, 10, 5), None, 10),
        ((5, 3), 3, 3),
        ((5, 5, 12, 1000), None, 5),  # a report that is rejected itself lets no other one in
    ],
)
def test_a_round_takes_no_larger_cells_than_its_own(stated, asked, limit):
    reports = [
        Report.from_scores(f"s{k}", np.linspace(0, 1, 60), min_cell_count=least)
        for k, least in enumerate(stated)
    ]
    federation = Federation.from_reports(reports, min_cell_count=asked)
    expected = {f"s{k}" for k, least in enumerate(stated) if least > limit}
    assert {rejected.client for rejected in federation.rejected_reports} == expected
    for rejected in federation.rejected_reports:
        assert f"and the round's is {limit}; make the report with the round's" in rejected.reason


@pytest.mark.parametrize("wrong", [0, -1, 5.5, "5", True, float("nan"), 1001, 10**30])
def test_a_minimum_cell_count_that_no_report_may_state_is_refused(wrong):
    with pytest.raises(RobfcpError, match=r"^min_cell_count: "):
        Federation.from_reports([Report.from_scores("a", [0.1])], min_cell_count=wrong)
    with pytest.raises(RobfcpError, match=r"^min_cell_count: "):
        Federation.from_counts([[1, 2]], min_cell_count=wrong)


def test_names_of_class_totals_that_are_null_are_refused_beside_reports_without_totals():
    plain = Report.from_scores("a", [0.1, 0.2, 0.3])
    for names in (None, {"a": 1, "b": 2}):
        message = json.loads(plain.to_json())
        message |= {"client": "b", "class_totals": {"names": names, "totals": [3]}}
        federation = Federation.from_reports([plain.to_json(), json.dumps(message)])
        (rejected,) = federation.rejected_reports
        assert (rejected.client, rejected.field) == ("b", "class_totals")
        assert federation.clients == ("a",)


@pytest.mark.filterwarnings("ignore:.*are rough")
def test_counts_coarsened_by_class_are_not_pooled_in_a_round_without_classes():
    """Their pooled cells would not tell where samples may lie."""
    rng = np.random.default_rng(0)
    pooled = [Report.from_scores(f"p{k}", rng.random(60)) for k in range(3)]
    options = {"labels": rng.integers(0, 2, 60), "stratify_by_class": True}
    exact = Report.from_scores("x", rng.random(60), classes=2, **options)
    coarse = Report.from_scores("c", rng.random(60), classes=3, min_cell_count=2, **options)
    federation = Federation.from_reports([*pooled, exact, coarse])
    assert federation.strata is None
    (rejected,) = federation.rejected_reports
    assert rejected.reason == (
        "c: its counts are coarsened by class, and the round has no class in common; "
        "send a default report, of all classes together"
    )
    assert "x" in federation.clients


def test_reports_are_unequal_where_they_are_not_equal():
    report = Report.from_scores("a", [0.1, 0.2, 0.3])
    again = Report.from_json(report.to_json())
    assert report == again
    assert not report != again  # noqa: SIM202
    assert report != Report.from_scores("b", [0.1, 0.2, 0.3])
