"""Reports by class or group: counts that add up, a small wire, and refusals in words."""

import json
import re
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from makers import by_class, outputs, said
from msgspec import structs

import robfcp
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Federation
from robfcp.privacy import Privacy
from robfcp.reports import OTHER_STRATUM, Report, StratifiedCounts
from robfcp.reports._strata import _MAX_DENSE_RATIO, MAX_COUNT, MAX_STRATA

GRID = Binning.uniform(10)
NAMES = ("cat", "dog", "eel")
PRIVATE = Privacy(epsilon=1.0)
HIDING = Privacy(epsilon=1.0, neighbours="add-remove")


def sample(n=60, n_classes=3):
    rng = np.random.default_rng(0)
    return rng.random(n), rng.integers(0, n_classes, n)


SCORES, LABELS = sample()


def report(n=60, classes=3, grid=GRID, **more):
    scores, labels = sample(n, classes)
    return Report.from_scores("site-7", scores, grid, labels=labels, classes=classes, **more)


def of(**options):
    return Report.from_scores("site-7", SCORES, GRID, **options)


@pytest.mark.parametrize(
    ("n", "n_classes", "bins"),
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
def test_every_way_of_counting_gives_the_table_of_a_loop(n, n_classes, bins):
    scores, labels = sample(n, n_classes)
    grid = Binning.uniform(bins)
    told = zip(scores, labels, strict=True)
    table = Counter(
        int(label) * bins + int(np.sum(grid.upper_edges < value)) for value, label in told
    )
    found = report(n, n_classes, grid)
    held = dict(zip(found.strata.cells.tolist(), found.strata.counts.tolist(), strict=True))
    assert held == table
    np.testing.assert_array_equal(
        found.strata.stratum_sizes, np.bincount(labels, minlength=n_classes)
    )
    np.testing.assert_array_equal(found.counts, Report.from_scores("a", scores, grid).counts)


def test_labels_given_as_names_are_those_given_as_numbers():
    numbered = of(labels=LABELS, classes=NAMES)
    words = [NAMES[label] for label in LABELS]
    for named in (words, np.array(words), np.array(words, dtype=object), np.array(words, "S")):
        assert of(labels=named, classes=NAMES) == numbered
    for classes in (list(NAMES), np.array(NAMES)):
        assert of(labels=LABELS, classes=classes) == numbered
    assert of(labels=LABELS.astype(np.uint8), classes=np.int8(3)) == report()
    assert report() not in (of(labels=(LABELS + 1) % 3, classes=3), of(), numbered)


def test_groups_stand_in_the_order_of_their_names_whatever_type_they_have():
    found = of(groups=LABELS + 10)
    assert (found.strata.by, found.strata.names) == ("group", ("10", "11", "12"))
    np.testing.assert_array_equal(found.strata.dense(), report().strata.dense())
    words = np.array(["young", "old", "middle"])[LABELS]
    assert of(groups=words).strata.names == ("middle", "old", "young")


@pytest.mark.parametrize(("classes", "names"), [(NAMES, NAMES), (3, ("0", "1", "2"))])
def test_thin_classes_are_merged_into_one_more_and_nothing_is_lost(classes, names):
    given = {"scores": np.linspace(0.05, 0.95, 10), "binning": GRID, "classes": classes}
    given["labels"] = [0] * 6 + [1] * 3 + [2]
    plain = Report.from_scores("a", **given)
    for least, sizes in ((4, [6, 0, 0, 4]), (6, [6, 0, 0, 4]), (7, [0, 0, 0, 10])):
        found = Report.from_scores("a", **given, min_class_count=least)
        assert found.strata.names == (*names, OTHER_STRATUM)
        assert found.strata.stratum_sizes.tolist() == sizes
        np.testing.assert_array_equal(found.counts, plain.counts)
        kept = plain.strata.dense() * (plain.strata.stratum_sizes >= least)[:, None]
        np.testing.assert_array_equal(found.strata.dense()[:3], kept)
        assert Report.from_json(found.to_json()) == found


def test_the_size_grows_with_samples_and_not_with_classes_or_bins():
    sizes = [len(report(100, n, Binning.uniform(n)).to_json()) for n in (100, 10_000)]
    assert sizes[1] < 1.8 * sizes[0]  # numbers of more digits, but no more of them


GIVEN = {"scores": [0.1, 0.2, 0.3], "binning": GRID, "client": "site-7"}
LABELLED = {"labels": [0, 1, 2], "classes": 3}
TOO_MANY = np.arange(MAX_STRATA + 1)
AT_THE_SITE = [
    ({"labels": [0, 1, 3], "classes": 3}, r"labels: 0\.\.3 leaves 0\.\.2"),
    ({"labels": ["cat", "cow", "cat"], "classes": NAMES}, "'cow' is none of"),
    ({"labels": ["cat", "dog", "cat"], "classes": 3}, "not integer"),
    ({"labels": ["cat", None, "cat"], "classes": NAMES}, "row 1 is missing"),
    ({"labels": [0, 1], "classes": 3}, "2 do not fit scores"),
    ({"labels": np.eye(3, dtype=int), "classes": 3}, r"shape \(3, 3\)"),
    ({"labels": [0, 1, 2]}, "classes: state their names"),
    ({"classes": 3}, "classes: counts by class need the labels"),
    (LABELLED | {"groups": list("abc")}, "one grouping"),
    ({"labels": [0, 1, 0], "classes": ["a", OTHER_STRATUM]}, "is kept for"),
    ({"scores": 0.0 * TOO_MANY, "groups": TOO_MANY}, f"group: {MAX_STRATA + 1} of them"),
    ({"groups": ["a", "b", "c"], "classes": ["a", "b"]}, "none of those"),
    ({"groups": ["a", "b", "c"], "privacy": PRIVATE}, "state them all in cla"),
    (LABELLED | {"min_class_count": 5, "privacy": PRIVATE}, "least: which classes are merged"),
    (LABELLED | {"classes": 1000, "binning": Binning.uniform(500), "privacy": PRIVATE},
     "1000 x 500 cells would drown in noise; use a coarse"),
    *((LABELLED | {"classes": names}, "of them; give 1 to") for names in (10**6, 0, [])),
    *((LABELLED | {"classes": names}, "is no list") for names in (2.5, "cat", True)),
    *((LABELLED | {"classes": ["a", name, "c"]}, "is no name")
      for name in ("b\x1b[2J", "", "b" * 10**6, 1)),
    (LABELLED | {"classes": ["a", "b", "a"]}, "a name comes twice"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), AT_THE_SITE, ids=[row[1] for row in AT_THE_SITE])
def test_what_a_site_gets_wrong_is_said_in_one_line_that_names_it(options, words):
    with pytest.raises(RobfcpError, match=words) as refused:
        Report.from_scores(**(GIVEN | options))
    line = str(refused.value)
    assert line.startswith("site-7: ")
    assert line.isprintable()
    assert len(line) < 300


GOOD = {"by": "class", "names": 2, "cells": [0, 11], "counts": [1, 2], "n_bins": 10}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"by": "ward"}, "neither 'class' nor 'group'"),
        ({"by": "group"}, "no list of names"),
        *(({"cells": cells}, "rise strictly") for cells in ([11, 0], [0, 20], [-1, 11])),
        ({"cells": [0, 2**62 + 1, -(2**62) - 1, 11], "counts": [1] * 4}, "rise strictly"),
        *(({"counts": counts}, "counts are not whole") for counts in ([[1, 2]], [0.5, 1.5])),
        ({"counts": [1]}, "differ in length"),
        *(({"counts": [1, n]}, "exceeds") for n in (MAX_COUNT + 1, -MAX_COUNT - 1)),
    ],
)
def test_strata_made_by_hand_are_checked(change, words):
    assert StratifiedCounts(**GOOD).stratum_sizes.tolist() == [1, 2]
    with pytest.raises(RobfcpError, match=words):
        StratifiedCounts(**(GOOD | change))


PLAIN, FINER = report(), Binning.uniform(20)
LOSSES = Report.from_losses("a", [[1.0, 0.5], [1.0, 0.0]], [0.1, 0.5], risk="fnr")
OF_LOSSES = {"counts": LOSSES.counts, "grid": LOSSES.grid, "n_samples": 2, "risk": LOSSES.risk}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": np.roll(PLAIN.counts, 1)}, "counts by class do not add up"),
        ({"grid": FINER}, "10 counts do not fit the grid's 20 bins"),
        ({"counts": np.repeat(PLAIN.counts, 2), "grid": FINER}, "for 10 bins, not the grid's"),
        ({"n_samples": 61}, "n_samples says 61"),
        ({"counts": PLAIN.counts, "strata": "strata"}, "go with scores, not with losses"),
        (
            OF_LOSSES | {"strata": StratifiedCounts("class", 1, [0], [1], LOSSES.grid.n_bins)},
            "not with loss",
        ),
        (
            {"strata": StratifiedCounts("class", 2, [0, 11], [0, 2], 10)},
            "a count by class is not positive",
        ),
    ],
)
def test_a_report_refuses_strata_that_are_not_of_its_counts(change, words):
    assert Report("site-7", PLAIN.counts, GRID, strata=PLAIN.strata) == PLAIN
    with pytest.raises(ReportError, match=f"a: .*{words}"):
        Report(**({"client": "a", "counts": None, "grid": GRID, "strata": PLAIN.strata} | change))


# In fives


ROUGH = "ignore:.*coarsened counts by class are rough"


@pytest.mark.filterwarnings(ROUGH)
@pytest.mark.parametrize("seed", range(24))
def test_in_fives_no_cell_holds_fewer_no_count_exceeds_the_true_one_and_both_bounds_hold(seed):
    rng = np.random.default_rng(seed)
    sites, bins = [], int(rng.choice([1, 7, 100, 1000]))
    for n in rng.integers(1, 400, 6):
        p, y = outputs(rng, n, concentration=0.3)
        sites.append((p if seed % 3 else np.eye(3)[rng.integers(0, 3, n)], y))  # many ties
    more = {"binning": Binning.uniform(bins), "stratify_by_class": bool(seed % 2)}
    true, shown = (by_class(sites, min_cell_count=least, **more) for least in (1, 5))
    for one, other in zip(true, shown, strict=True):
        have, want = ((r.strata.dense() if r.strata else r.counts[None]) for r in (other, one))
        assert not ((have[:, :-1] > 0) & (have[:, :-1] < 5)).any()
        assert ((have[:, -1] >= 5) | (have[:, -1] == 0) | (have.sum(axis=1) < 5)).all()
        assert (have.sum(axis=1) == want.sum(axis=1)).all()
        assert (have.cumsum(axis=1) <= want.cumsum(axis=1)).all()
        assert other.min_cell_count == 5
    exact, found = (Federation.from_reports(reports) for reports in (true, shown))
    least, most = found.cumulative_counts(), found.counts_in_lowest_bins().cumulative_counts()
    assert ((least <= exact.cumulative_counts()) & (exact.cumulative_counts() <= most)).all()
    if more["stratify_by_class"]:
        tables = (one.strata.table.dense() for one in (exact, found.counts_in_lowest_bins()))
        below = [np.cumsum(table.reshape(6, 3, -1), axis=2) for table in tables]
        assert (below[0] <= below[1]).all()
    assert list(found) == shown


def mixed(seed, liars=0):
    """Outputs of small, medium and large honest sites; liars are sure of the right label."""
    rng = np.random.default_rng(seed)
    found = [outputs(rng, n) for n in (37, 45, 60, 200, 250, 300, 800, 1000, 1500, 40, 220, 900)]
    return [(np.eye(3)[y], y) if k < liars else (p, y) for k, (p, y) in enumerate(found)]


PROMISES = [
    {"guarantee": robfcp.MarginalGuarantee(2), "defense": "none"},
    {"guarantee": robfcp.PACGuarantee(2), "defense": "none"},
    {"guarantee": robfcp.PACGuarantee(2, alike=0.05), "defense": "none"},
    {"guarantee": robfcp.LabelShiftGuarantee(2, alike=0.02), "defense": "none"},
    {"by": "class", "guarantee": robfcp.MarginalGuarantee(2), "defense": "none"},
]


@pytest.mark.parametrize("options", PROMISES, ids=str)
@pytest.mark.filterwarnings(ROUGH)
def test_in_fives_no_guaranteed_threshold_falls_and_nobody_honest_is_left_out(options):
    rose = []
    for seed in range(4):
        sent = (
            by_class(mixed(seed), min_cell_count=least, stratify_by_class=True) for least in (1, 5)
        )
        fine, fives = (robfcp.calibrate(reports, **options) for reports in sent)
        old, new = ([one, *one.strata] for one in (fine.levels[0], fives.levels[0]))
        rose += [b.threshold - a.threshold for a, b in zip(old, new, strict=True)]
        assert not fives.flagged_clients
    assert np.min(rose) >= 0
    assert np.max(rose) > 0  # the price


@pytest.mark.filterwarnings(ROUGH)
def test_in_fives_thresholds_without_a_guarantee_are_about_those_of_exact_counts():
    for stratify_by_class in (True, None):
        options = {"stratify_by_class": stratify_by_class}
        moved = []
        for seed in range(6):
            exact, coarse = (
                robfcp.calibrate(by_class(mixed(seed), min_cell_count=least, **options))
                for least in (1, 5)
            )
            cdf = np.cumsum(exact.federation.pooled_counts()) / exact.federation.n_samples
            bins = exact.federation.binning.bin_index_of_threshold(
                [exact.threshold, coarse.threshold]
            )
            moved.append(np.diff(cdf[bins])[0])
        # By class a second plausible reference raises one of them.
        assert np.min(moved) > -0.01
        assert np.max(moved) < (0.01 if stratify_by_class is None else 0.05)


def test_in_fives_liars_are_found_as_before():
    for seed in range(3):
        found = robfcp.calibrate(by_class(mixed(seed, liars=3), min_cell_count=5))
        assert set(found.flagged_clients) == {"site-00", "site-01", "site-02"}


def test_few_samples_by_class_are_rough():
    p, y = outputs(0, 74, 3)
    with pytest.warns(UserWarning, match="a: 74 samples of 3 classes are fewer than 25 of each"):
        robfcp.Report.from_predictions("a", p, y, stratify_by_class=True)
    robfcp.Report.from_predictions("a", p, y)
    robfcp.Report.from_predictions("a", p, y, stratify_by_class=True, min_cell_count=1)


def test_37_patients_show_neither_label_nor_score_unless_told(tmp_path):
    p, y = outputs(0, 37, 4)
    np.savez(tmp_path / "o.npz", probabilities=p, labels=y)
    words = "report", tmp_path / "o.npz", "-c", "a", "-o", tmp_path / "a.json"
    printed = " ".join(said(*words).split())
    assert "The samples of each class are stated to the nearest 5" in printed
    assert "holds at least 5 samples: no count is that of a single one" in printed
    assert re.search(r"holds (8|9)\d\.\d% of them, where exact counts would give 9\d\.\d%", printed)
    made = Report.load(tmp_path / "a.json")
    assert (made.strata, made.n_samples, made.min_cell_count) == (None, 37, 5)
    assert np.count_nonzero(made.counts) == 7
    assert (made.class_totals.totals % 5 == 0).all()
    printed = " ".join(said(*words, "--min-cell-count", "1").split())
    assert "The counts are exact: a reader sees labels and scores of single samples" in printed
    assert np.count_nonzero(Report.load(tmp_path / "a.json").counts) > 30
    assert "Labels are withheld" in said(*words, "--pooled")
    assert Report.load(tmp_path / "a.json").class_totals is None
    assert "fewer than 25 of each" in " ".join(said(*words, "--by-class").split())
    assert Report.load(tmp_path / "a.json").strata.stratum_sizes.sum() == 37
    assert json.loads(said(*words, "--json"))["min_cell_count"] == 5
    assert "The cost of a grid of only 3 bins" in " ".join(
        said(*words, "--grid", "uniform:3").split()
    )


# Privacy


@pytest.mark.parametrize("privacy", [PRIVATE, HIDING, Privacy(1.0, 1e-6, mechanism="gaussian")])
def test_a_private_report_has_the_stated_noise_on_every_cell_and_crosses_the_wire(privacy):
    pytest.importorskip("opendp")
    exact, made = (report(400, 100, Binning.uniform(40), privacy=p) for p in (None, privacy))
    assert len(made.strata.cells) == 4000  # used or not: which labels occur is protected too
    noise = made.strata.dense() - exact.strata.dense()
    assert noise.var() == pytest.approx(privacy.noise.variance, rel=0.25)  # sd 3.5%
    assert abs(noise.mean()) < 6 * np.sqrt(privacy.noise.variance / 4000)
    np.testing.assert_array_equal(made.counts, made.strata.dense().sum(axis=0))
    assert Report.from_json(made.to_json()) == made
    hidden = privacy.protects_sample_size
    assert ("n_samples" in json.loads(made.to_json())) is not hidden
    assert hidden or made.n_samples == 400
    stated = of(groups=LABELS % 2, classes=["0", "1", "2"], privacy=privacy)
    assert stated.strata.names == ("0", "1", "2")  # so that privacy can hide who occurs


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
        counts[0], counts[GRID.n_bins] = -moved, genuine.counts[0] + moved
        forged = StratifiedCounts("class", 2, genuine.strata.cells, counts, GRID.n_bins)
        beyond = pytest.raises(ReportError, match="a count by class is beyond what the stated")
        with beyond if moved else nullcontext():
            structs.replace(genuine, counts=forged.pooled_counts, strata=forged)
