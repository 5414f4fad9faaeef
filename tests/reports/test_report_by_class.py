"""Reports by class or group: counts that add up, short files, and refusals with a reason."""

import json
import re
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from makers import command_output, outputs, reports_by_class
from msgspec import structs

import robfcp
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Federation
from robfcp.privacy import Privacy
from robfcp.reports import OTHER_STRATUM, Report, StratifiedCounts
from robfcp.reports._strata import _MAX_DENSE_RATIO, MAX_COUNT, MAX_STRATA

UNIFORM_10 = Binning.uniform(10)
NAMES = ("cat", "dog", "eel")
PRIVATE = Privacy(epsilon=1.0)
HIDING = Privacy(epsilon=1.0, neighbors="add-remove")


def draw_sample(n=60, n_classes=3):
    rng = np.random.default_rng(0)
    return rng.random(n), rng.integers(0, n_classes, n)


SCORES, LABELS = draw_sample()


def report(n=60, classes=3, binning=UNIFORM_10, **more):
    scores, labels = draw_sample(n, classes)
    return Report.from_scores("site-7", scores, binning, labels=labels, classes=classes, **more)


def make_report(**options):
    return Report.from_scores("site-7", SCORES, UNIFORM_10, **options)


@pytest.mark.parametrize(
    ("n", "n_classes", "n_bins"),
    [
        (60, 3, 10),
        (9003, 2, 50),  # a full table
        (500, _MAX_DENSE_RATIO, 500),
        (500, _MAX_DENSE_RATIO, 501),  # only the cells in use, sorted
        (500, 300, 10_000),
        (500, 20_000, 200_000),  # more cells than 32 bits can number
        (1, 1, 50),
    ],
)
def test_every_way_of_counting_gives_the_table_of_a_loop(n, n_classes, n_bins):
    scores, labels = draw_sample(n, n_classes)
    binning = Binning.uniform(n_bins)
    pairs = zip(scores, labels, strict=True)
    table = Counter(
        int(label) * n_bins + int(np.sum(binning.upper_edges < value)) for value, label in pairs
    )
    counted = report(n, n_classes, binning)
    cells = dict(zip(counted.strata.cells.tolist(), counted.strata.counts.tolist(), strict=True))
    assert cells == table
    np.testing.assert_array_equal(
        counted.strata.stratum_sizes, np.bincount(labels, minlength=n_classes)
    )
    np.testing.assert_array_equal(counted.counts, Report.from_scores("a", scores, binning).counts)


def test_labels_given_as_names_are_those_given_as_numbers():
    numbered = make_report(labels=LABELS, classes=NAMES)
    names = [NAMES[label] for label in LABELS]
    for label_names in (
        names,
        np.array(names),
        np.array(names, dtype=object),
        np.array(names, "S"),
    ):
        assert make_report(labels=label_names, classes=NAMES) == numbered
    for classes in (list(NAMES), np.array(NAMES)):
        assert make_report(labels=LABELS, classes=classes) == numbered
    assert make_report(labels=LABELS.astype(np.uint8), classes=np.int8(3)) == report()
    assert report() not in (
        make_report(labels=(LABELS + 1) % 3, classes=3),
        make_report(),
        numbered,
    )


def test_groups_are_in_the_order_of_their_names_whatever_their_type():
    grouped = make_report(groups=LABELS + 10)
    assert (grouped.strata.by, grouped.strata.names) == ("group", ("10", "11", "12"))
    np.testing.assert_array_equal(grouped.strata.dense(), report().strata.dense())
    groups = np.array(["young", "old", "middle"])[LABELS]
    assert make_report(groups=groups).strata.names == ("middle", "old", "young")


@pytest.mark.parametrize(("classes", "names"), [(NAMES, NAMES), (3, ("0", "1", "2"))])
def test_small_classes_are_merged_into_one_more_and_no_sample_is_lost(classes, names):
    options = {"scores": np.linspace(0.05, 0.95, 10), "binning": UNIFORM_10, "classes": classes}
    options["labels"] = [0] * 6 + [1] * 3 + [2]
    unmerged = Report.from_scores("a", **options)
    for min_class_count, sizes in ((4, [6, 0, 0, 4]), (6, [6, 0, 0, 4]), (7, [0, 0, 0, 10])):
        merged = Report.from_scores("a", **options, min_class_count=min_class_count)
        assert merged.strata.names == (*names, OTHER_STRATUM)
        assert merged.strata.stratum_sizes.tolist() == sizes
        np.testing.assert_array_equal(merged.counts, unmerged.counts)
        large_classes = (
            unmerged.strata.dense() * (unmerged.strata.stratum_sizes >= min_class_count)[:, None]
        )
        np.testing.assert_array_equal(merged.strata.dense()[:3], large_classes)
        assert Report.from_json(merged.to_json()) == merged


def test_the_size_grows_with_samples_and_not_with_classes_or_bins():
    sizes = [len(report(100, n, Binning.uniform(n)).to_json()) for n in (100, 10_000)]
    assert sizes[1] < 1.8 * sizes[0]  # numbers of more digits, but no more of them


SCORES_GIVEN = {"scores": [0.1, 0.2, 0.3], "binning": UNIFORM_10, "client": "site-7"}
LABELED = {"labels": [0, 1, 2], "classes": 3}
TOO_MANY = np.arange(MAX_STRATA + 1)
INVALID_OPTIONS = [
    ({"labels": [0, 1, 3], "classes": 3}, r"labels: 0\.\.3 leaves 0\.\.2"),
    ({"labels": ["cat", "cow", "cat"], "classes": NAMES}, "'cow' is none of"),
    ({"labels": ["cat", "dog", "cat"], "classes": 3}, "not integer"),
    ({"labels": ["cat", None, "cat"], "classes": NAMES}, "row 1 is missing"),
    ({"labels": [0, 1], "classes": 3}, "2 do not fit scores"),
    ({"labels": np.eye(3, dtype=int), "classes": 3}, r"shape \(3, 3\)"),
    ({"labels": [0, 1, 2]}, "classes: state their names"),
    ({"classes": 3}, "classes: counts by class need the labels"),
    (LABELED | {"groups": list("abc")}, "one grouping"),
    ({"labels": [0, 1, 0], "classes": ["a", OTHER_STRATUM]}, "is reserved for"),
    ({"scores": 0.0 * TOO_MANY, "groups": TOO_MANY}, f"groups: {MAX_STRATA + 1} of them"),
    ({"groups": ["a", "b", "c"], "classes": ["a", "b"]}, "none of those"),
    ({"groups": ["a", "b", "c"], "privacy": PRIVATE}, "state them all in cla"),
    (
        LABELED | {"min_class_count": 5, "privacy": PRIVATE},
        "min_class_count: which classes are merged",
    ),
    (
        LABELED | {"classes": 1000, "binning": Binning.uniform(500), "privacy": PRIVATE},
        "1000 x 500 cells would drown in noise; use a coarse",
    ),
    *((LABELED | {"classes": names}, "of them; give 1 to") for names in (10**6, 0, [])),
    *((LABELED | {"classes": names}, "is not a list") for names in (2.5, "cat", True)),
    *(
        (LABELED | {"classes": ["a", name, "c"]}, "is not a name")
        for name in ("b\x1b[2J", "", "b" * 10**6, 1)
    ),
    (LABELED | {"classes": ["a", "b", "a"]}, "a name comes twice"),
]


@pytest.mark.parametrize(
    ("options", "message"), INVALID_OPTIONS, ids=[row[1] for row in INVALID_OPTIONS]
)
def test_invalid_options_are_refused_in_one_line_that_names_the_client(options, message):
    with pytest.raises(RobfcpError, match=message) as refused:
        Report.from_scores(**(SCORES_GIVEN | options))
    line = str(refused.value)
    assert line.startswith("site-7: ")
    assert line.isprintable()
    assert len(line) < 300


GOOD = {"by": "class", "names": 2, "cells": [0, 11], "counts": [1, 2], "n_bins": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"by": "ward"}, "neither 'class' nor 'group'"),
        ({"by": "group"}, "not a list of names"),
        *(({"cells": cells}, "rise strictly") for cells in ([11, 0], [0, 20], [-1, 11])),
        ({"cells": [0, 2**62 + 1, -(2**62) - 1, 11], "counts": [1] * 4}, "rise strictly"),
        *(({"counts": counts}, "counts are not whole") for counts in ([[1, 2]], [0.5, 1.5])),
        ({"counts": [1]}, "differ in length"),
        *(({"counts": [1, n]}, "exceeds") for n in (MAX_COUNT + 1, -MAX_COUNT - 1)),
    ],
)
def test_strata_made_by_hand_are_checked(change, message):
    assert StratifiedCounts(**GOOD).stratum_sizes.tolist() == [1, 2]
    with pytest.raises(RobfcpError, match=message):
        StratifiedCounts(**(GOOD | change))


BY_CLASS, UNIFORM_20 = report(), Binning.uniform(20)
LOSSES = Report.from_losses("a", [[1.0, 0.5], [1.0, 0.0]], [0.1, 0.5], risk="fnr")
OF_LOSSES = {
    "counts": LOSSES.counts,
    "binning": LOSSES.binning,
    "n_samples": 2,
    "risk": LOSSES.risk,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.roll(BY_CLASS.counts, 1)}, "counts by class do not add up"),
        ({"binning": UNIFORM_20}, "10 counts do not fit the binning's 20 bins"),
        (
            {"counts": np.repeat(BY_CLASS.counts, 2), "binning": UNIFORM_20},
            "for 10 bins, not the binning's",
        ),
        ({"n_samples": 61}, "n_samples says 61"),
        ({"counts": BY_CLASS.counts, "strata": "strata"}, "go with scores, not with losses"),
        (
            OF_LOSSES | {"strata": StratifiedCounts("class", 1, [0], [1], LOSSES.binning.n_bins)},
            "not with loss",
        ),
        (
            {"strata": StratifiedCounts("class", 2, [0, 11], [0, 2], 10)},
            "a count by class is not positive",
        ),
    ],
)
def test_a_report_refuses_strata_that_are_not_of_its_counts(change, message):
    assert Report("site-7", BY_CLASS.counts, UNIFORM_10, strata=BY_CLASS.strata) == BY_CLASS
    with pytest.raises(ReportError, match=f"a: .*{message}"):
        Report(
            **(
                {"client": "a", "counts": None, "binning": UNIFORM_10, "strata": BY_CLASS.strata}
                | change
            )
        )


# Coarsened counts


ROUGH = "ignore:.*coarsened counts by class are rough"


@pytest.mark.filterwarnings(ROUGH)
@pytest.mark.parametrize("seed", range(24))
def test_coarsened_cells_hold_five_samples_no_count_exceeds_the_true_one_and_both_bounds_hold(seed):
    rng = np.random.default_rng(seed)
    clients, n_bins = [], int(rng.choice([1, 7, 100, 1000]))
    for n in rng.integers(1, 400, 6):
        p, y = outputs(rng, n, concentration=0.3)
        clients.append((p if seed % 3 else np.eye(3)[rng.integers(0, 3, n)], y))  # many ties
    options = {"binning": Binning.uniform(n_bins), "stratify_by_class": bool(seed % 2)}
    exact_reports, coarse_reports = (
        reports_by_class(clients, min_cell_count=lower, **options) for lower in (1, 5)
    )
    for exact_report, coarse_report in zip(exact_reports, coarse_reports, strict=True):
        coarse_counts, exact_counts = (
            (r.strata.dense() if r.strata else r.counts[None])
            for r in (coarse_report, exact_report)
        )
        assert not ((coarse_counts[:, :-1] > 0) & (coarse_counts[:, :-1] < 5)).any()
        assert (
            (coarse_counts[:, -1] >= 5)
            | (coarse_counts[:, -1] == 0)
            | (coarse_counts.sum(axis=1) < 5)
        ).all()
        assert (coarse_counts.sum(axis=1) == exact_counts.sum(axis=1)).all()
        assert (coarse_counts.cumsum(axis=1) <= exact_counts.cumsum(axis=1)).all()
        assert coarse_report.min_cell_count == 5
    exact, coarse_federation = (
        Federation.from_reports(reports) for reports in (exact_reports, coarse_reports)
    )
    lower, upper = (
        coarse_federation.cumulative_counts(),
        coarse_federation.counts_in_lowest_bins().cumulative_counts(),
    )
    assert ((lower <= exact.cumulative_counts()) & (exact.cumulative_counts() <= upper)).all()
    if options["stratify_by_class"]:
        tables = (
            exact_report.strata.table.dense()
            for exact_report in (exact, coarse_federation.counts_in_lowest_bins())
        )
        cumulative = [np.cumsum(table.reshape(6, 3, -1), axis=2) for table in tables]
        assert (cumulative[0] <= cumulative[1]).all()
    assert list(coarse_federation) == coarse_reports


def mixed(seed, n_malicious=0):
    """Outputs of small, medium and large clients; malicious ones are certain of the labels."""
    rng = np.random.default_rng(seed)
    outputs_of_clients = [
        outputs(rng, n) for n in (37, 45, 60, 200, 250, 300, 800, 1000, 1500, 40, 220, 900)
    ]
    return [
        (np.eye(3)[y], y) if k < n_malicious else (p, y)
        for k, (p, y) in enumerate(outputs_of_clients)
    ]


GUARANTEES = [
    {"guarantee": robfcp.MarginalGuarantee(2), "defense": "none"},
    {"guarantee": robfcp.PACGuarantee(2), "defense": "none"},
    {"guarantee": robfcp.PACGuarantee(2, heterogeneity=0.05), "defense": "none"},
    {"guarantee": robfcp.LabelShiftGuarantee(2, heterogeneity=0.02), "defense": "none"},
    {"by": "class", "guarantee": robfcp.MarginalGuarantee(2), "defense": "none"},
]


@pytest.mark.parametrize("options", GUARANTEES, ids=str)
@pytest.mark.filterwarnings(ROUGH)
def test_coarsening_lowers_no_guaranteed_threshold_and_excludes_no_benign_client(options):
    rose = []
    for seed in range(4):
        reports_of_kinds = (
            reports_by_class(mixed(seed), min_cell_count=min_cell_count, stratify_by_class=True)
            for min_cell_count in (1, 5)
        )
        exact, coarse = (robfcp.calibrate(reports, **options) for reports in reports_of_kinds)
        old, new = ([level, *level.strata] for level in (exact.levels[0], coarse.levels[0]))
        rose += [b.threshold - a.threshold for a, b in zip(old, new, strict=True)]
        assert not coarse.flagged_clients
    assert np.min(rose) >= 0
    assert np.max(rose) > 0  # the cost of coarsening


@pytest.mark.filterwarnings(ROUGH)
def test_thresholds_of_coarsened_counts_without_a_guarantee_are_near_those_of_exact_counts():
    for stratify_by_class in (True, None):
        options = {"stratify_by_class": stratify_by_class}
        moved = []
        for seed in range(6):
            exact, coarse = (
                robfcp.calibrate(
                    reports_by_class(mixed(seed), min_cell_count=min_cell_count, **options)
                )
                for min_cell_count in (1, 5)
            )
            cdf = np.cumsum(exact.federation.pooled_counts()) / exact.federation.n_samples
            bins = exact.federation.binning.bin_index_of_threshold(
                [exact.threshold, coarse.threshold]
            )
            moved.append(np.diff(cdf[bins])[0])
        # By class a second plausible reference raises one of them.
        assert np.min(moved) > -0.01
        assert np.max(moved) < (0.01 if stratify_by_class is None else 0.05)


def test_malicious_clients_are_detected_in_coarsened_reports_too():
    for seed in range(3):
        calibration = robfcp.calibrate(
            reports_by_class(mixed(seed, n_malicious=3), min_cell_count=5)
        )
        assert set(calibration.flagged_clients) == {"site-00", "site-01", "site-02"}


def test_few_samples_by_class_are_rough():
    p, y = outputs(0, 74, 3)
    with pytest.warns(
        robfcp.RobfcpWarning, match="a: 74 samples of 3 classes are fewer than 25 of each"
    ):
        robfcp.Report.from_predictions("a", p, y, stratify_by_class=True)
    robfcp.Report.from_predictions("a", p, y)
    robfcp.Report.from_predictions("a", p, y, stratify_by_class=True, min_cell_count=1)


def test_37_patients_show_neither_label_nor_score_unless_requested(tmp_path):
    p, y = outputs(0, 37, 4)
    np.savez(tmp_path / "o.npz", probabilities=p, labels=y)
    arguments = "report", tmp_path / "o.npz", "-c", "a", "-o", tmp_path / "a.json"
    printed = " ".join(command_output(*arguments).split())
    assert "The number of samples of each class is reported to the nearest 5" in printed
    assert "holds at least 5 samples: no count is that of a single one" in printed
    assert re.search(r"holds (8|9)\d\.\d% of them, where exact counts would give 9\d\.\d%", printed)
    report = Report.load(tmp_path / "a.json")
    assert (report.strata, report.n_samples, report.min_cell_count) == (None, 37, 5)
    assert np.count_nonzero(report.counts) == 7
    assert (report.class_totals.totals % 5 == 0).all()
    printed = " ".join(command_output(*arguments, "--min-cell-count", "1").split())
    assert "The counts are exact: a reader sees labels and scores of single samples" in printed
    assert np.count_nonzero(Report.load(tmp_path / "a.json").counts) > 30
    assert "Labels are withheld" in command_output(*arguments, "--withhold-labels")
    assert Report.load(tmp_path / "a.json").class_totals is None
    assert "fewer than 25 of each" in " ".join(
        command_output(*arguments, "--stratify-by-class").split()
    )
    assert Report.load(tmp_path / "a.json").strata.stratum_sizes.sum() == 37
    assert json.loads(command_output(*arguments, "--json"))["min_cell_count"] == 5
    assert "The cost of a binning of only 3 bins" in " ".join(
        command_output(*arguments, "--binning", "uniform:3").split()
    )


# Privacy


@pytest.mark.parametrize("privacy", [PRIVATE, HIDING, Privacy(1.0, 1e-6, mechanism="gaussian")])
def test_a_private_report_has_the_stated_noise_on_every_cell_and_crosses_the_wire(privacy):
    pytest.importorskip("opendp")
    exact, noisy = (report(400, 100, Binning.uniform(40), privacy=p) for p in (None, privacy))
    assert len(noisy.strata.cells) == 4000  # used or not: which labels occur is protected too
    noise = noisy.strata.dense() - exact.strata.dense()
    assert noise.var() == pytest.approx(privacy.noise.variance, rel=0.25)  # sd 3.5%
    assert abs(noise.mean()) < 6 * np.sqrt(privacy.noise.variance / 4000)
    np.testing.assert_array_equal(noisy.counts, noisy.strata.dense().sum(axis=0))
    assert Report.from_json(noisy.to_json()) == noisy
    hidden = privacy.protects_sample_size
    assert ("n_samples" in json.loads(noisy.to_json())) is not hidden
    assert hidden or noisy.n_samples == 400
    with_names = make_report(groups=LABELS % 2, classes=["0", "1", "2"], privacy=privacy)
    assert with_names.strata.names == ("0", "1", "2")  # so that privacy can hide who occurs


def test_a_size_that_privacy_hides_is_not_stated():
    pytest.importorskip("opendp")
    data = json.loads(report(400, privacy=HIDING).to_json()) | {"n_samples": 400}
    with pytest.raises(ReportError, match="site-7: n_samples is stated though add-remove"):
        Report.from_json(json.dumps(data))


def test_a_private_cell_that_its_noise_cannot_have_made_is_refused():
    pytest.importorskip("opendp")
    genuine = report(classes=2, privacy=PRIVATE)
    for moved in (0, 75, 10_000):
        counts = genuine.strata.counts.copy()
        counts[0], counts[UNIFORM_10.n_bins] = -moved, genuine.counts[0] + moved
        forged = StratifiedCounts("class", 2, genuine.strata.cells, counts, UNIFORM_10.n_bins)
        beyond = pytest.raises(ReportError, match="a count by class is beyond what the stated")
        with beyond if moved else nullcontext():
            structs.replace(genuine, counts=forged.pooled_counts, strata=forged)
