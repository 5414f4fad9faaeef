"""Validation of a round: which reports are accepted or rejected, why, and when it fails."""

import json
import os

import numpy as np
import pytest
from makers import peak_memory
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


def make_report(name, n=50, binning=None, score=None, seed=0, **context):
    scores = np.random.default_rng([seed, n]).random(n)
    return Report.from_scores(name, scores, binning, score=score or LAC(), **context)


def reasons(federation):
    return {
        rejected.client: (rejected.field, rejected.reason)
        for rejected in federation.rejected_reports
    }


def test_the_order_of_the_reports_does_not_matter():
    reports = [make_report(f"s{k}", n=10 + k, seed=k) for k in range(20)]
    forward, reverse = Federation.from_reports(reports), Federation.from_reports(reports[::-1])
    assert list(forward) == list(reverse) == sorted(reports, key=lambda report: report.client)


def test_the_round_goes_on_without_the_faulty():
    valid = [make_report(f"good-{k}", seed=k) for k in range(6)]
    message = json.loads(valid[0].to_json())
    federation = Federation.from_reports(
        [
            *valid,
            *(make_report("twice", seed=seed) for seed in range(2)),
            *(make_report("thrice") for _ in range(3)),
            make_report("other-binning", binning=Binning.uniform(10)),
            make_report("other-score", score=APS(randomized=False)),
            make_report("numbers", score=AbsoluteResidual(), binning=Binning.open_ended()),
            make_report("late", round="6"),
            make_report("degraded-model", model="abc"),
            b"{broken",
            json.dumps({**message, "client": "negative", "n_samples": -3}),
            {**message, "client": "as-mapping"},
            {"client": object()},
            17,
        ]
    )
    assert set(federation.clients) == {"as-mapping", "thrice"} | {f"good-{k}" for k in range(6)}
    assert federation.resubmitted_clients == ("thrice",)
    rejections = reasons(federation)
    reason_twice = "twice: sent 2 different reports for this round; send one"
    assert rejections["twice"] == ("client", reason_twice)
    fields = {
        "other-binning": "binning",
        "other-score": "score",
        "late": "round",
        "degraded-model": "model",
    }
    fields |= {"negative": "n_samples", "report #17": "report", "numbers": "score"}
    assert {client: rejections[client][0] for client in fields} == fields
    assert len(rejections) == 10
    assert all("\n" not in reason for _, reason in rejections.values())


def test_a_faulty_report_does_not_silence_the_good_one_of_the_same_name():
    invalid = json.dumps({**json.loads(make_report("a").to_json()), "n_samples": 3})
    for position, reports in ((2, [make_report("a"), invalid]), (1, [invalid, make_report("a")])):
        federation = Federation.from_reports([*reports, make_report("b"), make_report("c")])
        assert federation.clients == ("a", "b", "c")
        assert set(reasons(federation)) == {f"report #{position}"}


def test_registered_sizes_decide_who_may_report():
    federation = Federation.from_reports(
        [make_report("site-1"), make_report("site-7", n=49), make_report("stranger")],
        registered_sizes={"site-1": 50, "site-7": 50, "silent": 10},
    )
    assert (federation.clients, federation.missing_clients) == (("site-1",), ("silent",))
    assert federation.sizes_registered
    assert reasons(federation)["site-7"][1] == (
        "site-7: counts sum to 49 but 50 samples were registered; "
        "rebuild the report or fix the registry"
    )
    assert reasons(federation)["stranger"][0] == "client"


PAIR = [make_report("a", round="1"), make_report("b", round="1")]


@pytest.mark.parametrize(
    ("reports", "options", "message"),
    [
        (PAIR, {"quorum": 3}, "only 2 of 2 reports are valid but the quorum is 3"),
        (PAIR, {"registered_sizes": dict.fromkeys("abcd", 50), "quorum": 0.6}, "quorum is 3"),
        ([b"", b""], {}, "first fault: report #1"),
        ([], {}, "0 of 0"),
    ],
)
def test_a_missed_quorum_is_an_error(reports, options, message):
    with pytest.raises(QuorumError, match=message):
        Federation.from_reports(reports, **options)
    Federation.from_reports(PAIR, registered_sizes=dict.fromkeys("abcd", 50), quorum=0.5)


def test_expected_context_beats_the_majority_and_an_even_split_needs_it():
    split = [PAIR[0], make_report("c", round="2")]
    with pytest.raises(RobfcpError, match="round: the reports are split evenly"):
        Federation.from_reports(split)
    assert Federation.from_reports(split, round="2").clients == ("c",)
    reports = [*(make_report(name, binning=Binning.uniform(5)) for name in "ab"), make_report("c")]
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


def test_a_federation_without_clients_is_one_empty_block():
    reports = [Report.from_scores("a", [0.5], Binning.uniform(4), labels=[0], classes=2)]
    empty = Federation.from_reports(reports).select_stratum(1)
    assert empty.reduce_blocks(lambda block: block.pooled_counts()).tolist() == [0, 0, 0, 0]
    assert empty.map_blocks(lambda block: block.cumulative_count(1)).tolist() == []


def test_terms_state_what_was_agreed_and_contradict_what_was_not(tmp_path):
    reports = [
        make_report("a", round="r"),
        make_report("b", round="old"),
        make_report("c", round="r", score=APS()),
    ]
    (tmp_path / "terms.toml").write_text('round = "r"\nscore = "lac"\nbinning = "default"\n')
    for terms in (RoundTerms(round="r", score="lac"), tmp_path / "terms.toml"):
        federation = Federation.from_reports(reports, terms=terms)
        assert federation.clients == ("a",)
        assert federation.verification.round == federation.verification.score == "given"
        assert Federation.from_reports(reports, terms=terms, round="r", score=LAC()).clients == (
            "a",
        )
    with pytest.raises(RobfcpError, match=r"round: old is not what was agreed \(r\)"):
        Federation.from_reports(reports, terms=terms, round="old")
    with pytest.raises(RobfcpError, match="score"):
        Federation.from_reports(reports, terms=terms, score=APS())


def test_a_folder_gives_the_reports_in_it(tmp_path):
    for name in ("b", "a"):
        make_report(name).save(tmp_path / f"{name}.json")
    for ignored_name in (".hidden.json", "c.record.json", "notes.txt"):
        (tmp_path / ignored_name).write_text("no report")
    for paths in (tmp_path, str(tmp_path), [tmp_path], sorted(tmp_path.glob("?.json"))):
        federation = Federation.from_files(paths)
        assert (federation.clients, federation.rejected_reports) == (("a", "b"), ())
    (tmp_path / "d.json").write_text("{")
    assert [f.client for f in Federation.from_files(tmp_path).rejected_reports] == [
        f"file:{tmp_path}/d.json"
    ]


def test_clients_that_claim_too_large_a_fraction_of_the_samples_are_rejected():
    reports = [make_report(f"s{k}", seed=k) for k in range(5)] + [make_report("huge", n=500)]
    (rejected,) = Federation.from_reports(reports, max_client_share=0.5).rejected_reports
    assert (rejected.client, rejected.field) == ("huge", "n_samples")
    assert "claims 66.7% of all samples but the cap is 50.0%; check its size" in rejected.reason
    assert Federation.from_reports(reports, max_client_share=0.9).n_clients == 6
    for invalid in (0.01, 2, "half"):
        with pytest.raises(RobfcpError, match="max_client_share"):
            Federation.from_reports(reports, max_client_share=invalid)


# One stray, repeated, forged or huge file removes no genuine client, nor costs the others


def test_a_file_called_like_a_client_takes_nothing_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for client, name in (("a", "a"), ("b", "b"), ("site-3", "real")):
        make_report(client).save(name)
    (tmp_path / "site-3").write_text("{broken")
    federation = Federation.from_files(["site-3", "nobody", "real", "a", "b"])
    assert federation.clients == ("a", "b", "site-3")
    assert [rejected.client for rejected in federation.rejected_reports] == [
        "file:nobody",
        "file:site-3",
    ]


def test_a_report_of_another_round_is_set_aside_before_duplicates_are_judged():
    reports = [make_report(f"s{k}", seed=k, round="now") for k in range(4)]
    old = make_report("s1", seed=9, round="before")
    for mixed in ([old, *reports], [*reports, old]):
        federation = Federation.from_reports(mixed)
        assert federation.clients == ("s0", "s1", "s2", "s3")
        assert "round is before" in federation.rejected_reports[0].reason
        assert federation.rejected_reports[0].client.startswith("report #")
    strays = [
        make_report("x", seed=k, round="before") for k in range(9)
    ]  # who sends many has no vote
    assert Federation.from_reports([*strays, *reports]).round == "now"


def big(name, n_bins):
    parameters = {"bins": n_bins, "low": 0.0, "high": 1.0}
    binning = {
        "name": "uniform",
        "digest": Binning.uniform(n_bins).digest,
        "parameters": parameters,
    }
    counts = {"bins": [1], "counts": [50]}
    return json.dumps(
        json.loads(make_report(name).to_json()) | {"binning": binning, "counts": counts}
    )


@pytest.mark.parametrize("n_bins", [9_000, 19_000])
def test_only_digests_of_binnings_are_kept_until_the_vote(n_bins):
    messages = [big(f"x{k}", n_bins + k) for k in range(180)]
    messages += [make_report(f"s{k}", seed=k).to_json() for k in range(70)]
    assert peak_memory(lambda: Federation.from_reports(messages)) < 10e6
    assert Federation.from_reports(messages).n_clients == 70


def test_a_fine_binning_is_accepted_from_few_clients():
    reports = [big(f"s{k}", 20_000) for k in range(3)]
    assert Federation.from_reports(reports).binning == Binning.uniform(20_000)
    with pytest.raises(RobfcpError, match="more than 20000 bins"):
        Report.from_json(big("x", 20_001))
    large = Federation.from_counts(np.eye(900, 20_000, dtype=np.int8), Binning.uniform(20_000))
    with pytest.raises(RobfcpError, match="20000 bins are too many for 900 sites"):
        Federation.from_reports(iter(large))


def test_no_other_binning_is_built_where_one_is_given(monkeypatch):
    hostile, benign = big("x", 19_000), make_report("s").to_json()
    monkeypatch.setattr(_wire, "named_binning", lambda *_: pytest.fail("was built"))
    federation = Federation.from_reports([hostile, benign], binning=Binning.default())
    assert federation.clients == ("s",)
    assert "binning: is uniform" in federation.rejected_reports[0].reason


LOOKALIKES = [" a", "a ", "a\u00a0", "sit\u0435-3", "ѕite", "si\u3164te", "ｓite", "a\ufe0f"]
LOOKALIKES += ["file:x", "report #3", "\u2800", "e\u0301"]


@pytest.mark.parametrize("name", LOOKALIKES, ids=ascii)
def test_names_that_look_like_others_are_refused(name):
    for valid_name in ("site-3", "Zürich", "Αθήνα", "Москва 2", "東京大学病院 A", "a/b c"):
        check_client_name(valid_name)
    with pytest.raises(ReportError) as error:
        check_client_name(name)
    assert str(error.value).isascii() or "letters" in str(error.value)


@pytest.mark.parametrize("special", ["pipe", "/dev/zero", "/proc/self/status"])
def test_specials_never_hang(tmp_path, special):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x").symlink_to(special)
    make_report("a").save(tmp_path / "a")
    federation = Federation.from_files([tmp_path / "x", tmp_path / "a"])
    assert (federation.clients, len(federation.rejected_reports)) == (("a",), 1)


# Private counts as the closest histograms, for comparing sites


def test_projections_are_the_closest_histograms():
    rng = np.random.default_rng(5)
    values, totals = rng.normal(2, 5, (30, 8)), rng.uniform(5, 30, 30)
    heavy = 1e5  # the sum as a heavily weighted equation: non-negative least squares
    system = np.vstack([np.eye(8), heavy * np.ones(8)])
    for row, total, projected in zip(
        values, totals, project_to_simplex(values, totals), strict=True
    ):
        expected = nnls(system, np.append(row, heavy * total))[0]
        np.testing.assert_allclose(projected, expected, atol=1e-5)
    np.testing.assert_allclose(isotonic_fit(np.array([1.0, 3.0, 2.0, 4.0])), [1, 2.5, 2.5, 4])


def test_only_private_rows_are_projected():
    rng = np.random.default_rng(6)
    fractions = np.linspace(2, 0.1, 24) / np.linspace(2, 0.1, 24).sum()
    counts, privacies = rng.multinomial(100, fractions, 40), [None, *[Privacy(0.2)] * 39]
    counts[1:] += draw(rng, Privacy(0.2).noise, (39, 24))
    federation = Federation.from_counts(counts, privacy=privacies, sample_sizes=np.full(40, 100))
    projected = federation.projected_to_simplex()
    assert (projected.counts[0] == federation.counts[0]).all()
    assert projected.counts.min() >= 0 > federation.counts.min()
    np.testing.assert_allclose(projected.counts.sum(axis=1), 100)
    assert federation.with_integer_counts().counts.dtype == np.int64
    exact = federation.select(np.arange(40) == 0)
    assert exact.projected_to_simplex() is exact is exact.with_integer_counts()
    errors = [np.abs(counted.counts - 100 * fractions).sum() for counted in (projected, federation)]
    assert errors[0] < errors[1]  # noise moves the shares less after the projection


def test_malicious_clients_that_outnumber_few_that_report_classes_have_no_client_rejected():
    scores, labels = [0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]
    large = [Report.from_scores(f"l{k}", scores, labels=labels, classes=2) for k in range(2)]
    malicious = [Report.from_scores(f"x{k}", scores, labels=labels, classes=3) for k in range(3)]
    small = [Report.from_scores(f"s{k}", scores) for k in range(6)]
    assert Federation.from_reports([*large, *small]).strata is not None
    federation = Federation.from_reports([*large, *malicious, *small])
    assert federation.strata is None
    assert federation.n_clients == 11


def test_losses_are_counted_as_the_nearest_numbers_of_samples():
    """By plain loops: counts up to an edge never fall, and what is missing is in the last bin."""
    rng = np.random.default_rng(0)
    cumulative = np.cumsum(rng.integers(-3, 12, (20, 6)), axis=1)
    sizes = rng.integers(1, 8, 20)
    sample_counts = losses_as_samples(cumulative, sizes, 7)
    for row, size, counts in zip(
        cumulative.tolist(), sizes.tolist(), sample_counts.tolist(), strict=True
    ):
        reached = 0
        expected = []
        for total in row:
            rising = max(reached, round(total / 7))
            expected.append(rising - reached)
            reached = rising
        expected[-1] += max(size - reached, 0)
        assert counts == expected
    assert (sample_counts.sum(axis=1) > sizes).any()
    assert (sample_counts.sum(axis=1) == sizes).any()


def totals_report(name, classes, seed=0):
    rng = np.random.default_rng(seed)
    n_classes = classes if isinstance(classes, int) else len(classes)
    labels = rng.integers(0, n_classes, 60)
    return Report.from_scores(
        name, rng.random(60), labels=labels, classes=classes, min_cell_count=5
    )


def test_class_totals_must_be_of_the_rounds_classes_in_any_order():
    reports = [totals_report(f"s{k}", ["a", "b", "c"], k) for k in range(4)]
    reports.append(totals_report("s4", ["c", "a", "b"], 4))
    reports.append(totals_report("s5", 3, 5))
    reports.append(totals_report("s6", ["a", "b"], 6))
    federation = Federation.from_reports(reports)
    assert [rejected.client for rejected in federation.rejected_reports] == ["s6"]
    assert "its 2 classes are not the round's 3 (it lacks 'c')" in (
        federation.rejected_reports[0].reason
    )
    totals = federation.class_totals
    assert totals.names == ("a", "b", "c")
    assert totals.rows.tolist() == list(range(6))
    c, a, b = reports[4].class_totals.totals.tolist()
    assert totals.table.dense()[4].tolist() == [a, b, c]
    assert totals.table.dense()[5].tolist() == reports[5].class_totals.totals.tolist()


def test_malicious_clients_that_outnumber_few_with_class_totals_have_no_client_rejected():
    pooled = [Report.from_scores(f"p{k}", [0.1, 0.4]) for k in range(6)]
    benign = [totals_report(f"s{k}", ["a", "b"], k) for k in range(2)]
    malicious = [totals_report(f"x{k}", ["a", "b", "c"], k) for k in range(3)]
    federation = Federation.from_reports([*pooled, *benign, *malicious])
    assert federation.rejected_reports == ()
    assert federation.class_totals is None
    federation = Federation.from_reports([*pooled, *benign])
    assert federation.class_totals.rows.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("cell_counts", "min_cell_count", "max_cell_count"),
    [
        ((5, 5, 10), None, 5),
        ((10, 10, 5), None, 10),
        ((5, 3), 3, 3),
        ((5, 5, 12, 1000), None, 5),  # a report that is rejected itself lets no other one in
    ],
)
def test_a_round_takes_no_larger_cells_than_its_own(cell_counts, min_cell_count, max_cell_count):
    reports = [
        Report.from_scores(f"s{k}", np.linspace(0, 1, 60), min_cell_count=cell_count)
        for k, cell_count in enumerate(cell_counts)
    ]
    federation = Federation.from_reports(reports, min_cell_count=min_cell_count)
    expected = {f"s{k}" for k, cell_count in enumerate(cell_counts) if cell_count > max_cell_count}
    assert {rejected.client for rejected in federation.rejected_reports} == expected
    for rejected in federation.rejected_reports:
        assert (
            f"and the round's is {max_cell_count}; make the report with the round's"
            in rejected.reason
        )


@pytest.mark.parametrize("invalid", [0, -1, 5.5, "5", True, float("nan"), 1001, 10**30])
def test_a_minimum_cell_count_that_no_report_may_state_is_refused(invalid):
    with pytest.raises(RobfcpError, match=r"^min_cell_count: "):
        Federation.from_reports([Report.from_scores("a", [0.1])], min_cell_count=invalid)
    with pytest.raises(RobfcpError, match=r"^min_cell_count: "):
        Federation.from_counts([[1, 2]], min_cell_count=invalid)


def test_class_totals_without_names_are_rejected_even_if_no_other_report_has_totals():
    report = Report.from_scores("a", [0.1, 0.2, 0.3])
    for names in (None, {"a": 1, "b": 2}):
        message = json.loads(report.to_json())
        message |= {"client": "b", "class_totals": {"names": names, "totals": [3]}}
        federation = Federation.from_reports([report.to_json(), json.dumps(message)])
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
    parsed = Report.from_json(report.to_json())
    assert report == parsed
    assert not report != parsed  # noqa: SIM202
    assert report != Report.from_scores("b", [0.1, 0.2, 0.3])
