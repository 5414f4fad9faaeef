"""One table of counts, by class too: whatever order, number or strata the clients report in."""

import json
import warnings
from itertools import combinations, pairwise

import numpy as np
import pytest
from makers import LAC, peak_memory

import robfcp
from robfcp import Consensus, MarginalGuarantee, calibrate
from robfcp.binning import Binning
from robfcp.defense._duplicates import find_duplicate_reports
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, SparseTable
from robfcp.privacy import Privacy
from robfcp.reports import OTHER_STRATUM, Report, StratifiedCounts
from robfcp.reports._coarsening import coarsen_counts
from robfcp.reports._strata import MAX_STRATA

UNIFORM_10, UNIFORM_1000, DEFAULT = Binning.uniform(10), Binning.uniform(1000), Binning.default()
NAMES = ("cat", "dog", "eel")


def make_report(client, names=NAMES, n=40, binning=UNIFORM_10, by="class", **more):
    """A report whose scores and labels depend on the client alone, not on the order of names."""
    rng = np.random.default_rng(sum(client.encode()))
    class_values = np.arange(names) if isinstance(names, int) else np.array(sorted(names))
    labels = class_values[rng.integers(0, len(class_values), n)]
    more |= {"labels": labels, "classes": names} if by == "class" else {"groups": labels}
    return Report.from_scores(client, rng.random(n), binning, **more)


def stratum_counts(report):
    """The counts of a report as {stratum: counts}."""
    names = report.strata.names
    labels = map(str, range(names)) if isinstance(names, int) else names
    tables = zip(labels, report.strata.dense(), strict=True)
    return {name: table.tolist() for name, table in tables if table.any()}


def by_name(reports):
    """The counts of all reports by class, or of a federation's clients, by client."""
    return {r.client: stratum_counts(r) for r in reports if r.strata is not None}


def test_the_table_holds_every_report_by_class_and_its_sums():
    orders = [NAMES, NAMES, ("eel", "cat", "dog"), NAMES, ("dog", "eel", "cat")]
    reports = [make_report(f"s{k}") for k in range(5)]
    mixed = Federation.from_reports([make_report(f"s{k}", names) for k, names in enumerate(orders)])
    federation = Federation.from_reports(reports)
    np.testing.assert_array_equal(mixed.strata.table.dense(), federation.strata.table.dense())
    outvoted = [
        make_report(f"x{k}", ("x", "y")) for k in range(4)
    ]  # two orders outvote them together
    assert set(Federation.from_reports([*mixed, *outvoted]).clients) == set(mixed.clients)
    assert list(federation) == list(mixed) == reports
    assert (federation.strata.by, federation.strata.names) == ("class", NAMES)
    assert by_name(federation) == by_name(reports)
    sizes = np.array([r.strata.stratum_sizes for r in reports])
    np.testing.assert_array_equal(federation.strata.stratum_sizes, sizes)
    np.testing.assert_array_equal(federation.counts, [r.counts for r in reports])


def test_a_number_alone_means_the_order_of_the_names_most_have():
    scores, labels = np.linspace(0, 1, 9), [0, 0, 0, 1, 1, 1, 2, 2, 2]
    reports = [make_report("a"), make_report("b"), make_report("c", ("eel", "cat", "dog"))]
    with_number, with_names = (
        Federation.from_reports(
            [*reports, Report.from_scores("n", scores, UNIFORM_10, labels=labels, classes=classes)]
        )
        for classes in (3, NAMES)
    )
    assert with_number.rejected_reports == ()
    assert by_name(with_number) == by_name(with_names)


WRONG_CLASSES = [4, (*NAMES, "fox"), NAMES[:2], ("cat", "dog", "fox")]


def test_the_reason_says_how_classes_differ():
    differences = {NAMES[:2]: "it lacks 'eel'", (*NAMES, "fox"): "it adds 'fox'"}
    differences |= {("Cat", *NAMES[1:]): "they differ in upper and lower case only"}
    for names, difference in differences.items():
        (rejected,) = Federation.from_reports(
            [make_report("other", names), *map(make_report, "ab")]
        ).rejected_reports
        assert f"3 ({difference}); use this round's classes" in rejected.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda k: make_report(f"s{k}"),
        lambda k: make_report(f"s{k}", min_class_count=8),
        lambda k: make_report(f"s{k}", 3),
        lambda k: make_report(f"s{k}", 3, min_class_count=8),
        lambda k: make_report(f"s{k}", ("cat", "dog", "eel") if k % 2 else ("eel", "dog", "cat")),
        lambda k: make_report(f"s{k}", 3 if k % 2 else NAMES, min_class_count=1 if k % 2 else 30),
    ],
    ids=["names", "merged", "numbers", "merged numbers", "two orders", "mixed"],
)
def test_a_client_with_other_classes_is_rejected_in_one_line_and_cannot_outvote_the_others(make):
    reports = [make(k) for k in range(6)]
    for other_report in [make_report("other", names) for names in WRONG_CLASSES]:
        federation = Federation.from_reports([other_report, *reports])
        (rejected,) = federation.rejected_reports
        assert (rejected.client, rejected.field) == ("other", "classes")
        assert rejected.reason.startswith("other: its ")
        assert set(by_name(federation)) == {r.client for r in reports}


def test_groups_of_different_clients_are_united_by_name():
    groups = {"a": ["m", "f"], "b": ["f"], "c": ["x", "m", "10", "9"]}
    reports = [make_report(client, names, by="group") for client, names in groups.items()]
    federation = Federation.from_reports(reports)
    assert federation.strata.names == ("10", "9", "f", "m", "x")
    assert by_name(federation) == by_name(reports)
    assert federation.select_stratum(3).clients == ("a", "c")


def test_clients_that_bring_more_groups_than_a_round_can_have_are_rejected():
    benign = [make_report(f"s{k}", ["f", "m"], by="group") for k in range(3)]
    n = MAX_STRATA - 10
    flood = [
        Report.from_scores(
            f"many-{j}", np.zeros(n), UNIFORM_10, groups=[f"{j}-{i}" for i in range(n)]
        )
        for j in range(2)
    ]
    federation = Federation.from_reports([*benign, *flood])
    assert [rejected.client for rejected in federation.rejected_reports] == ["many-1"]
    assert "groups there are too many" in federation.rejected_reports[0].reason
    assert federation.strata.n_strata == MAX_STRATA - 8
    benign_federation = federation.select(np.array([c.startswith("s") for c in federation.clients]))
    assert by_name(benign_federation) == by_name(benign)


MANY_CLASSES = {"labels": [0, 19_999], "classes": 20_000}


def test_one_report_of_many_classes_costs_a_round_of_pooled_ones_nothing():
    pooled = [Report.from_scores(f"s{k}", np.linspace(0, 1, 50), UNIFORM_1000) for k in range(9)]
    large_report = Report.from_scores("many", [0.1, 0.2], UNIFORM_1000, **MANY_CLASSES)
    assert len(large_report.to_json()) < 330
    assert peak_memory(lambda: robfcp.calibrate([*pooled, large_report])) < 2**24
    federation = Federation.from_reports([*pooled, large_report])
    assert (federation.n_clients, federation.strata) == (10, None)
    with pytest.raises(RobfcpError, match="the reports hold no counts by class"):
        robfcp.calibrate([*pooled, large_report], by="class")


def test_classes_times_bins_of_a_round_are_bounded():
    reports = [
        Report.from_scores(f"s{k}", [0.1, 0.2], UNIFORM_1000, **MANY_CLASSES) for k in range(3)
    ]
    with pytest.raises(RobfcpError, match="20000 of them on this binning are too many for a round"):
        Federation.from_reports(reports)


def test_noise_on_every_class_is_refused_where_most_report_none():
    privacy = {"n_samples": 2, "privacy": Privacy(9.0)}
    pooled = [Report(f"s{k}", [1, 1], Binning.uniform(2), **privacy) for k in range(3)]
    split = StratifiedCounts("class", 3, np.arange(6), np.array([1, 0, 0, 1, 0, 0]), 2)
    stratified = Report("x", None, Binning.uniform(2), strata=split, **privacy)
    for privacy_given in (None, Privacy(9.0)):
        federation = Federation.from_reports([*pooled, stratified], privacy=privacy_given)
        assert federation.noise_draws == 1
        assert "holds noise for every class" in federation.rejected_reports[0].reason


def test_feedback_for_many_classes_holds_no_table_of_classes_by_classes():
    n = 4_000
    reports = [make_report(f"s{k}", n, n=n) for k in range(3)]
    calibration = robfcp.calibrate(
        reports, guarantee=robfcp.LabelShiftGuarantee(0, label_distribution="any")
    )
    assert peak_memory(lambda: calibration.feedback("s1")) < n * n * 8 / 4


def test_the_grouping_of_the_minority_is_refused():
    classes = [make_report(f"c{k}") for k in range(3)]
    groups = [make_report(f"g{k}", ["f"], by="group") for k in range(2)]
    for majority, by, rejected_clients in (
        (classes, "class", ["g0", "g1"]),
        (classes[:1], "group", ["c0"]),
    ):
        federation = Federation.from_reports([*majority, *groups])
        assert federation.strata.by == by
        assert [rejected.client for rejected in federation.rejected_reports] == rejected_clients
        assert f"not by {by} as most reports'" in federation.rejected_reports[0].reason


def test_merged_classes_of_one_client_do_not_affect_the_others():
    reports = [make_report(f"s{k}") for k in range(4)]
    small_report = make_report("small", min_class_count=14)
    assert 0 in small_report.strata.stratum_sizes[:3]
    federation = Federation.from_reports([*reports, small_report])
    assert federation.strata.names == (*NAMES, OTHER_STRATUM)
    assert by_name(federation) == by_name([*reports, small_report])
    without_small = calibrate(reports, by="class", defense="none")
    with_small = calibrate(federation, by="class", defense="none")
    assert with_small.strata == without_small.strata == NAMES
    empty = [c for c in range(3) if small_report.strata.stratum_sizes[c] == 0]
    np.testing.assert_array_equal(with_small.threshold[empty], without_small.threshold[empty])


def renamed(report, names):
    """A report's JSON with other names of its classes."""
    data = json.loads(report.to_json())
    return data | {"strata": data["strata"] | {"names": names}}


def test_other_may_stand_anywhere_among_the_names():
    message = renamed(make_report("small", ("a", *NAMES)), [OTHER_STRATUM, *NAMES])
    federation = Federation.from_reports(
        [make_report("a", 3), make_report("b", 3), make_report("c"), message]
    )
    assert federation.strata.names == (*NAMES, OTHER_STRATUM)
    tables = by_name(federation)
    assert tables["a"] == dict(
        zip(NAMES, stratum_counts(make_report("a", 3)).values(), strict=True)
    )
    assert tables["small"] == stratum_counts(Report.from_json(json.dumps(message)))
    with pytest.raises(RobfcpError, match="every site merged all of them"):
        calibrate(
            [renamed(make_report("a", ("x",)), [OTHER_STRATUM])],
            by="class",
            defense=Consensus(max_malicious=0),
        )


def test_private_reports_by_class_come_back_from_iteration():
    pytest.importorskip("opendp")
    reports = [make_report(f"s{k}", n=300, privacy=Privacy(1.0)) for k in range(4)]
    federation = Federation.from_reports(reports)
    assert list(federation) == reports
    assert federation.noise_draws == 3  # a pooled count holds the noise of every class
    stratum = federation.select_stratum(1)
    assert (stratum.noise_draws, stratum.sizes_known) == (1, False)
    np.testing.assert_array_equal(stratum.counts, [r.strata.dense()[1] for r in reports])


def test_a_private_report_without_a_single_cell_does_not_stop_the_round():
    pytest.importorskip("opendp")
    privacy = Privacy(1.0, neighbors="add-remove")
    reports = [make_report(f"s{k}", n=300, privacy=privacy) for k in range(4)]
    data = json.loads(reports[0].to_json())
    data["strata"] |= {"cell_steps": [], "counts": []}
    for client in ("a", "s2x", "z"):  # first, in the middle, last
        federation = Federation.from_reports([*reports, data | {"client": client}])
        assert client in federation.clients
        for c in range(3):
            assert federation.select_stratum(c).clients == federation.clients  # also without a cell
        assert (
            calibrate(federation, by="class", guarantee=MarginalGuarantee(max_malicious=1)).strata
            == NAMES
        )


def test_pooled_reports_join_the_pooled_counts_only_and_subsets_keep_their_classes():
    pooled = Report.from_scores("b", np.linspace(0, 1, 30), UNIFORM_10)
    reports = [make_report("a"), pooled, make_report("c"), make_report("d"), make_report("e")]
    federation = Federation.from_reports(reports)
    assert federation.rejected_reports == ()
    assert set(by_name(federation)) == set("acde")
    for mask in ([1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1] * 5):
        selected = federation.select(np.array(mask, dtype=bool))
        assert list(selected) == [r for r, keep in zip(reports, mask, strict=True) if keep]


def test_a_stratum_is_the_federation_of_its_holders():
    rng = np.random.default_rng(3)
    reports = []
    for k in range(6):
        labels = rng.choice(4, size=15, p=[0.5, 0.3, 0.2, 0.0] if k else [0, 0, 0, 1.0])
        reports.append(
            Report.from_scores(f"s{k}", rng.random(15), UNIFORM_10, labels=labels, classes=5)
        )
    federation = Federation.from_reports(reports)
    for c in range(5):  # no client has the last one
        stratum = federation.select_stratum(c)
        holders = [r for r in reports if r.strata.stratum_sizes[c]]
        assert stratum.clients == tuple(r.client for r in holders)
        assert stratum.sample_sizes.tolist() == [r.strata.stratum_sizes[c] for r in holders]
        assert stratum.counts.tolist() == [r.strata.dense()[c].tolist() for r in holders]
        assert stratum.strata is None


def test_a_table_of_many_strata_answers_as_its_reports_do():
    names = tuple(f"c{i:03d}" for i in range(60))
    reports = []
    for k in range(8):
        order = names[::-1] if k == 3 else names
        reports.append(make_report(f"s{k}", order, n=50))
    reports.append(Report.from_scores("p", [0.1, 0.7], UNIFORM_10))  # comes first by its name
    federation = Federation.from_reports(reports)
    strata = federation.strata
    assert strata.rows.tolist() == list(range(1, 9))

    counts = np.stack([report.strata.dense() for report in reports[:8]])
    counts[3] = counts[3, ::-1]  # in the common order
    np.testing.assert_array_equal(strata.table.dense(), counts.reshape(8, -1))
    np.testing.assert_array_equal(strata.stratum_sizes, counts.sum(axis=2))

    for stratum_index in range(60):
        stratum = federation.select_stratum(stratum_index)
        holders = np.flatnonzero(counts[:, stratum_index].any(axis=1))
        assert stratum.clients == tuple(f"s{k}" for k in holders)
        np.testing.assert_array_equal(stratum.counts, counts[holders, stratum_index])

    cluster = np.arange(60) % 7
    merged = strata.merge_strata(cluster, 7).table.dense().reshape(8, 7, 10)
    expected = [counts[:, cluster == cluster_index].sum(axis=1) for cluster_index in range(7)]
    np.testing.assert_array_equal(merged, np.stack(expected, axis=1))


# Many clients: the same answers from sparse tables and blocks, within stated memory


def scores(n_clients, zeros=0, seed=0):
    """(K, 50) scores of clients that differ; the first `zeros` clients report zeros only."""
    rng = np.random.default_rng([n_clients, seed])
    sampled_scores = rng.beta(rng.uniform(0.3, 0.9, n_clients)[:, None], 2, (n_clients, 50))
    sampled_scores[:zeros] = 0
    return sampled_scores


def stacked(score_rows):
    return Federation.from_counts(
        np.array([DEFAULT.counts(row) for row in score_rows]), DEFAULT, score=LAC
    )


def test_a_federation_answers_as_its_counts_do():
    federation = stacked(scores(60))
    counts = np.array([DEFAULT.counts(row) for row in scores(60)])
    cumulative = np.cumsum(counts, axis=1)
    last = DEFAULT.n_bins - 1
    np.testing.assert_array_equal(federation.counts, counts)
    np.testing.assert_array_equal(federation.cumulative_counts(), cumulative)

    edges = np.array([3, 500, last])
    for bin_indices in (edges, edges[:2], edges[:0]):
        cumulative_at = federation.cumulative_counts(bin_indices)
        np.testing.assert_array_equal(cumulative_at, cumulative[:, bin_indices])
    for index in (0, 400, last):
        np.testing.assert_array_equal(federation.cumulative_count(index), cumulative[:, index])

    bin_ends = np.array([10, 11, 700, last])
    merged = np.diff(cumulative[:, bin_ends], axis=1, prepend=0)
    np.testing.assert_array_equal(federation.merge_bins(bin_ends), merged)

    mask = np.arange(60) % 3 > 0
    np.testing.assert_array_equal(federation.pooled_counts(), counts.sum(axis=0))
    np.testing.assert_array_equal(federation.pooled_counts(mask), counts[mask].sum(axis=0))

    rows, bins = np.nonzero(counts)
    starts, entry_bins, entry_counts = federation.table.entries()
    np.testing.assert_array_equal(np.repeat(np.arange(60), np.diff(starts)), rows)
    np.testing.assert_array_equal(entry_bins, bins)
    np.testing.assert_array_equal(entry_counts, counts[rows, bins])

    selected = federation.select(mask)
    assert selected.clients == tuple(np.array(federation.clients)[mask])
    assert (selected.n_clients, selected.n_samples) == (40, counts[mask].sum())
    np.testing.assert_array_equal(selected.counts, counts[mask])


def test_a_table_is_narrow_in_memory_and_its_answers_are_wide():
    bins = np.array([0, 2, 1], dtype=np.uint16)
    counts = np.array([255, 1, 0], dtype=np.uint8)
    table = SparseTable.from_entries(np.array([0, 2, 3]), bins, counts, 3)
    assert table.csr.indices.dtype == table.csr.indptr.dtype == np.int32
    assert table.csr.dtype == np.int32
    answers = (
        table.dense(),
        *table.entries(),
        table.cumulative_count(1),
        table.pooled_counts(None),
    )
    assert {answer.dtype for answer in answers} == {np.dtype(np.int64)}
    assert table.dense().tolist() == [[255, 0, 1], [0, 0, 0]]
    assert table.is_nonempty.tolist() == [True, False]  # entries of 0 are none
    assert counts.tolist() == [255, 1, 0]  # the caller's arrays stay as they were


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_beyond_32_bits_are_exact(sign):
    counts = sign * np.full((3, 4), 2**30, dtype=np.int32)
    table = SparseTable.from_dense(counts)
    assert table.cumulative_count(3).tolist() == [sign * 2**32] * 3
    assert table.merge_bins(np.array([1, 3])).tolist() == [[sign * 2**31] * 2] * 3
    assert table.pooled_counts(None).tolist() == [sign * 3 * 2**30] * 4


def test_entries_of_the_same_cell_are_added_up_in_any_order():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, 200)
    bins = rng.integers(0, 7, 200)
    counts = rng.integers(1, 9, 200)
    expected = np.zeros((5, 7), dtype=np.int64)
    np.add.at(expected, (rows, bins), counts)
    table = SparseTable.from_cells(rows, bins, counts, (5, 7))
    np.testing.assert_array_equal(table.dense(), expected)
    _, entry_bins, _ = table.entries()
    assert entry_bins.tolist() == np.nonzero(expected)[1].tolist()


def test_reports_are_read_one_by_one():
    score_rows = scores(600)

    def stream():
        for k, client_scores in enumerate(score_rows):
            yield robfcp.Report.from_scores(f"site-{k:04d}", client_scores, DEFAULT, score=LAC)

    dense_bytes = 8 * 600 * DEFAULT.n_bins
    assert peak_memory(lambda: Federation.from_reports(stream())) < dense_bytes / 3
    assert peak_memory(lambda: Federation.from_reports(list(stream()))) > dense_bytes


def test_only_equal_reports_are_duplicates():
    score_rows = scores(400)
    score_rows[10:14] = score_rows[3]  # exact
    score_rows[20:30] = score_rows[4]
    score_rows[np.arange(20, 30), np.arange(10)] = 0.5  # one sample moved
    assert [len(group.clients) for group in find_duplicate_reports(stacked(score_rows))] == [5]


@pytest.mark.parametrize("n_clients", [1000, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_client_is_flagged_among_many_benign_ones(n_clients):
    assert robfcp.defense.estimate_n_malicious(stacked(scores(n_clients, seed=1))) == 0


def test_prediction_sets_are_built_a_block_at_a_time(tmp_path):
    p = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", np.float32, (20_000, 200))
    p[:] = np.random.default_rng(0).dirichlet(np.ones(200), 20_000)
    blocks, sizes = robfcp.APS().iter_prediction_sets(p, [0.9], rng=1), []
    peak_bytes = peak_memory(lambda: sizes.extend(members.sum() for _, members in blocks))
    assert peak_bytes < 80 * 2**20  # blocks of 2 MiB and what an argsort of them takes
    assert len(sizes) > 5


def test_counts_with_noise_are_not_coarsened():
    privacies = [Privacy(1.0), None]
    federation = Federation.from_counts(
        [[10, 5, 0, 5]] * 2, privacy=privacies, sample_sizes=[20, 20], min_cell_count=5
    )
    assert federation.is_coarsened.tolist() == [False, True]
    assert federation.counts_in_lowest_bins().counts.tolist() == [[10, 5, 0, 5], [15, 5, 0, 0]]
    midpoints = federation.at_midpoints(lambda bounded: bounded.counts)
    assert midpoints.tolist() == [[10, 5, 0, 5], [12.5, 5, 0, 2.5]]


def test_bounds_of_clients_do_not_depend_on_the_others_of_the_round():
    """Clients with counts by class, with class totals and with exact counts, in any proportion."""
    rng = np.random.default_rng(5)
    for n_stratified in range(5):
        reports = []
        for k in range(4):
            options = {"labels": rng.integers(0, 2, 40), "classes": 2}
            if k < n_stratified:
                options["stratify_by_class"] = True
            options["min_cell_count"] = (1, 2, 3, 5)[(k + n_stratified) % 4]
            with warnings.catch_warnings(action="ignore"):
                report = Report.from_scores(f"s{k}", rng.random(40), Binning.uniform(20), **options)
            reports.append(report)
        together = Federation.from_reports(reports).counts_in_lowest_bins()
        assert together.sample_sizes.tolist() == together.counts.sum(axis=1).tolist()
        for k, report in enumerate(reports):
            single = Federation.from_reports([report]).counts_in_lowest_bins()
            assert single.counts[0].tolist() == together.counts[k].tolist()


def test_counts_are_spread_evenly_over_the_merged_bins_that_may_hold_the_samples():
    """By plain loops; of clients with counts by class, with class totals and with exact counts."""
    rng = np.random.default_rng(6)
    bin_ends = np.array([2, 3, 9, 14, 19])
    reports = []
    for k in range(6):
        options = {"labels": rng.integers(0, 2, 60), "classes": 2}
        options["stratify_by_class"] = k < 2 or None
        options["min_cell_count"] = 1 if k == 5 else 4
        reports.append(Report.from_scores(f"s{k}", rng.random(60), Binning.uniform(20), **options))
    federation = Federation.from_reports(reports)
    spread = federation.spread_counts(bin_ends)

    expected = np.zeros((6, 5))
    for k, report in enumerate(reports):
        tables = [report.counts] if report.strata is None else report.strata.dense()
        for table in tables:
            previous_bin = 0
            for bin_index in np.flatnonzero(table).tolist():
                count = int(table[bin_index])
                n_spread = count if count < 8 else 4 + count % 4
                n_spread = 0 if report.min_cell_count == 1 else n_spread
                first, last = np.searchsorted(bin_ends, [previous_bin, bin_index])
                expected[k, last] += count - n_spread
                expected[k, first : last + 1] += n_spread / (last - first + 1)
                previous_bin = bin_index
    assert spread == pytest.approx(expected)
    assert spread[5].tolist() == federation.merge_bins(bin_ends)[5].tolist()


def test_all_clients_selected_are_the_federation():
    federation = Federation.from_counts([[1, 2, 3], [4, 0, 0]])
    assert federation.select_rows(np.arange(2)) is federation
    assert federation.select([True, True]) is federation


def test_lowest_counts_are_those_of_some_report_that_is_coarsened_to_the_given_one():
    """Up to one sample; by trying every histogram of 17 samples in four bins."""
    highest = {}
    for bars in combinations(range(20), 3):
        bar_positions = (-1, *bars, 20)
        counts = np.array([stop - start - 1 for start, stop in pairwise(bar_positions)])
        coarse = tuple(coarsen_counts(counts, 5).tolist())
        cumulative = np.cumsum(counts)
        highest[coarse] = np.maximum(highest.get(coarse, cumulative), cumulative)
    assert len(highest) > 10
    federation = Federation.from_counts(list(highest), min_cell_count=5)
    beyond = federation.counts_in_lowest_bins().cumulative_counts() - np.array(
        list(highest.values())
    )
    assert beyond.min() == 0
    assert beyond.max() == 1
