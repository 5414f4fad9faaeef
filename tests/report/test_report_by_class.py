"""Reports by class or group: counts that add up, a small wire, and refusals in words."""

import json

import numpy as np
import pytest
from msgspec import structs

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report import OTHER, Report, Strata
from robfcp.report.by_class import DENSE, MAX_COUNT, MAX_STRATA

GRID = Grid.uniform(10)
NAMES = ("cat", "dog", "eel")


def sample(n=60, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random(n), rng.integers(0, n_classes, n)


SCORES, LABELS = sample()


def report(client="a", n=60, classes=3, grid=GRID, seed=0, **more):
    number = classes if isinstance(classes, int) else len(classes)
    scores, labels = sample(n, number, seed)
    return Report.from_scores(client, scores, grid, labels=labels, classes=classes, **more)


def of(**options):
    return Report.from_scores("a", SCORES, GRID, **options)


@pytest.mark.parametrize(
    ("n", "n_classes", "bins"),
    [
        (60, 3, 10),
        (9003, 2, 50),  # a full table
        (500, DENSE, 500),
        (500, DENSE, 501),  # only the cells in use, sorted
        (500, 300, 10_000),
        (500, 20_000, 200_000),  # more cells than 32 bits can number
        (1, 1, 50),
    ],
)
def test_every_way_of_counting_gives_the_table_of_a_loop(n, n_classes, bins):
    scores, labels = sample(n, n_classes)
    grid = Grid.uniform(bins)
    found = Strata.of("class", scores, labels, n_classes, grid)
    table: dict[int, int] = {}
    for value, label in zip(scores, labels, strict=True):
        cell = int(label) * bins + int(np.sum(grid.upper < value))
        table[cell] = table.get(cell, 0) + 1
    assert dict(zip(found.cells.tolist(), found.counts.tolist(), strict=True)) == table
    assert found == Strata(
        "class", n_classes, sorted(table), [table[c] for c in sorted(table)], bins
    )
    np.testing.assert_array_equal(found.sizes, np.bincount(labels, minlength=n_classes))
    np.testing.assert_array_equal(found.pooled, grid.counts(scores))
    if n_classes * bins < 10**6:
        np.testing.assert_array_equal(found.dense().ravel().nonzero()[0], sorted(table))
    made = Report.from_scores("a", scores, grid, labels=labels, classes=n_classes)
    assert made.strata == found
    np.testing.assert_array_equal(made.counts, Report.from_scores("a", scores, grid).counts)


def test_labels_given_as_names_are_those_given_as_numbers():
    numbered = of(labels=LABELS, classes=NAMES)
    words = [NAMES[label] for label in LABELS]
    for named in (words, np.array(words), np.array(words, dtype=object), np.array(words, "S")):
        assert of(labels=named, classes=NAMES) == numbered
    for classes in (list(NAMES), np.array(NAMES)):
        assert of(labels=LABELS, classes=classes) == numbered
    assert of(labels=LABELS.astype(np.uint8), classes=np.int8(3)) == report()


def test_groups_stand_in_the_order_of_their_names_whatever_type_they_have():
    found = of(groups=LABELS + 10)
    assert (found.strata.by, found.strata.names) == ("group", ("10", "11", "12"))
    np.testing.assert_array_equal(found.strata.dense(), report().strata.dense())
    words = np.array(["young", "old", "middle"])[LABELS]
    assert of(groups=words).strata.names == ("middle", "old", "young")


def test_thin_classes_are_merged_into_one_more_and_nothing_is_lost():
    scores = np.linspace(0.05, 0.95, 10)
    labels = [0] * 6 + [1] * 3 + [2]
    given = {"scores": scores, "grid": GRID, "labels": labels}
    plain = Report.from_scores("a", **given, classes=NAMES)
    for classes, names in ((NAMES, NAMES), (3, ("0", "1", "2"))):
        for least, sizes in ((4, [6, 0, 0, 4]), (6, [6, 0, 0, 4]), (7, [0, 0, 0, 10])):
            found = Report.from_scores("a", **given, classes=classes, least=least)
            assert found.strata.names == (*names, OTHER)
            assert found.strata.sizes.tolist() == sizes
            np.testing.assert_array_equal(found.counts, plain.counts)
            kept = plain.strata.dense() * (plain.strata.sizes >= least)[:, None]
            np.testing.assert_array_equal(found.strata.dense()[:3], kept)
            assert Report.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "made",
    [
        report(),
        report(classes=NAMES),
        report(n=5, classes=20_000),
        report(score=robfcp.LAC(), round="r", model="m"),
        Report.from_scores("a", [0.1, 0.5, 0.5], GRID, groups=["x", "y", "x"]),
        report(grid=Grid.open_ended([0.0, 0.5, 1.0])),
    ],
    ids=["number", "names", "many", "context", "groups", "edges"],
)
def test_a_report_by_class_crosses_the_wire_unchanged(made, tmp_path):
    data = json.loads(made.to_json())
    assert "counts" not in data
    assert len(data["strata"]["steps"]) == len(made.strata.cells)
    again = Report.from_json(made.to_json())
    assert again == made
    assert again.to_json() == made.to_json()
    made.save(tmp_path / "a.json")
    assert Report.load(tmp_path / "a.json") == made


def test_the_size_grows_with_samples_and_not_with_classes_or_bins():
    assert len(report(n=1000, classes=1000, grid=Grid.default()).to_json()) < 20_000
    small = len(report(n=100, classes=100, grid=Grid.uniform(100)).to_json())
    large = len(report(n=100, classes=10_000, grid=Grid.uniform(10_000)).to_json())
    assert large < 1.8 * small  # numbers of more digits, but no more of them


def test_reports_differ_when_only_their_labels_do():
    one, other = (of(labels=(LABELS + more) % 3, classes=3) for more in (0, 1))
    assert (one.counts == other.counts).all()
    assert one != other
    assert one != of()
    assert one.strata != "strata"


S = [0.1, 0.2, 0.3]
PRIVATE = Privacy(epsilon=1.0)
HIDING = Privacy(epsilon=1.0, neighbours="add-remove")
AT_THE_SITE = {
    "label too large": ({"labels": [0, 1, 3], "classes": 3}, r"labels: 0\.\.3 leaves 0\.\.2"),
    "label negative": ({"labels": [0, 1, -1], "classes": 3}, r"labels: -1\.\.1 leaves"),
    "unknown name": ({"labels": ["cat", "cow", "cat"], "classes": NAMES}, "'cow' is none of"),
    "names for a number": ({"labels": ["cat", "dog", "cat"], "classes": 3}, "not integer"),
    "labels of floats": ({"labels": [0.0, 1.0, 2.0], "classes": 3}, "not integer"),
    "labels of truth": ({"labels": [True, False, True], "classes": 3}, "not integer"),
    "labels of anything": ({"labels": ["cat", None, "cat"], "classes": NAMES}, "row 1 is missing"),
    "too few labels": ({"labels": [0, 1], "classes": 3}, "2 of them do not fit scores"),
    "labels one-hot": ({"labels": np.eye(3, dtype=int), "classes": 3}, r"shape \(3, 3\)"),
    "labels ragged": ({"labels": [[0], [1, 2], [0]], "classes": 3}, "labels: rows differ"),
    "no classes": ({"labels": [0, 1, 2]}, "classes: state their names"),
    "no labels": ({"classes": 3}, "classes: counts by class need the labels"),
    "both": ({"labels": [0, 1, 2], "classes": 3, "groups": list("abc")}, "one grouping"),
    "the name of what is merged": ({"labels": [0, 1, 0], "classes": ["a", OTHER]}, "is kept for"),
    "too few groups": ({"groups": ["a", "b"]}, "2 of them do not fit scores"),
    "groups in rows": ({"groups": [["a"], ["b"], ["c"]]}, r"groups: shape \(3, 1\)"),
    "group of that name": ({"groups": [OTHER, "b", "c"]}, "is kept for"),
    "too many groups": (
        {"scores": np.zeros(MAX_STRATA + 1), "groups": np.arange(MAX_STRATA + 1)},
        f"group: {MAX_STRATA + 1} of them",
    ),
    "scores of NaN": ({"scores": [np.nan, 0, 0], "labels": [0] * 3, "classes": 2}, "scores: row"),
    "group not stated": ({"groups": ["a", "b", "c"], "classes": ["a", "b"]}, "none of those"),
    "groups hidden": ({"groups": ["a", "b", "c"], "privacy": PRIVATE}, "state them all in cla"),
    "thin ones hidden": (
        {"labels": [0] * 3, "classes": 2, "least": 5, "privacy": PRIVATE},
        "least: which classes are merged",
    ),
    "cells that drown": (
        {"labels": [0] * 3, "classes": 1000, "grid": Grid.uniform(500), "privacy": PRIVATE},
        "1000 x 500 cells would drown in noise; use a coarse",
    ),
}


NO_NAMES = {
    "of them; give 1 to": (10**6, 0, []),
    "is no list": (2.5, "cat", True),
    "is no name": (["a", "b\x1b[2J", "c"], ["a", "", "c"], ["a", "b" * 10**6, "c"], ["a", 1, "c"]),
    "a name comes twice": (["a", "b", "a"],),
}
for words, some in NO_NAMES.items():
    for number, names in enumerate(some):
        AT_THE_SITE[f"{words} {number}"] = ({"labels": [0, 1, 2], "classes": names}, words)
for name in ("a\n", ""):
    AT_THE_SITE[f"group {name!r}"] = ({"groups": [name, "b", "c"]}, "is no name")


@pytest.mark.parametrize("case", AT_THE_SITE)
def test_what_a_site_gets_wrong_is_said_in_one_line_that_names_it(case):
    options, words = AT_THE_SITE[case]
    with pytest.raises(RobfcpError, match=words) as refused:
        Report.from_scores("site-7", **({"scores": S, "grid": GRID} | options))
    line = str(refused.value)
    assert line.startswith("site-7: ")
    assert line.isprintable()
    assert len(line) < 300


LOSSES = Report.from_losses("a", [[1.0, 0.5], [1.0, 0.0]], [0.1, 0.5], risk="fnr")
GOOD = {"by": "class", "names": 2, "cells": [0, 11], "counts": [1, 2], "n_bins": 10}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"by": "ward"}, "neither 'class' nor 'group'"),
        ({"cells": [0.5, 1.5]}, "whole numbers"),
        ({"counts": [[1, 2]]}, "counts are not whole"),
        ({"counts": [1]}, "differ in length"),
        ({"cells": [11, 0]}, "rise strictly"),
        ({"cells": [0, 20]}, "within 0..19"),
        ({"counts": [1, MAX_COUNT + 1]}, "exceeds"),
        ({"counts": [1, -MAX_COUNT - 1]}, "exceeds"),
        ({"by": "group"}, "no list of names"),
        ({"cells": [0, 2**62 + 1, -(2**62) - 1, 11], "counts": [1] * 4}, "rise strictly"),
    ],
)
def test_strata_made_by_hand_are_checked(change, words):
    assert Strata(**GOOD).sizes.tolist() == [1, 2]
    with pytest.raises(RobfcpError, match=words):
        Strata(**(GOOD | change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": np.roll(report().counts, 1)}, "counts by class do not add up"),
        ({"grid": Grid.uniform(20)}, "10 counts do not fit the grid's 20 bins"),
        (
            {"counts": np.repeat(report().counts, 2), "grid": Grid.uniform(20)},
            "are for 10 bins, not the grid's",
        ),
        ({"n_samples": 61}, "n_samples says 61"),
        ({"counts": report().counts, "strata": "strata"}, "go with scores, not with losses"),
        (
            {
                "counts": LOSSES.counts,
                "grid": LOSSES.grid,
                "n_samples": 2,
                "risk": LOSSES.risk,
                "strata": Strata("class", 1, [0], [1], LOSSES.grid.n_bins),
            },
            "go with scores, not with losses",
        ),
        ({"strata": Strata("class", 2, [0, 11], [0, 2], 10)}, "a count by class is not positive"),
    ],
)
def test_a_report_refuses_strata_that_are_not_of_its_counts(change, words):
    made = report()
    assert Report("a", made.counts, GRID, strata=made.strata) == made
    with pytest.raises(ReportError, match=f"a: .*{words}"):
        Report(**({"client": "a", "counts": None, "grid": GRID, "strata": made.strata} | change))


def test_another_grids_bins_do_not_fit():
    data, other = (json.loads(report(n=6, grid=grid).to_json()) for grid in (GRID, Grid.uniform(5)))
    with pytest.raises(ReportError, match="rise strictly"):
        Report.from_json(json.dumps(data | {"grid": other["grid"]}))
    wrong = data["grid"] | {"parameters": other["grid"]["parameters"]}
    with pytest.raises(ReportError, match="digest does not fit"):
        Report.from_json(json.dumps(data | {"grid": wrong}))


# Privacy


@pytest.mark.parametrize("privacy", [PRIVATE, HIDING, Privacy(1.0, 1e-6, mechanism="gaussian")])
def test_a_private_report_has_the_stated_noise_on_every_cell_and_crosses_the_wire(privacy):
    pytest.importorskip("opendp")
    grid = Grid.uniform(40)
    exact = report(n=400, classes=100, grid=grid).strata.dense()
    made = report(n=400, classes=100, grid=grid, privacy=privacy)
    assert len(made.strata.cells) == 4000  # used or not: which labels occur is protected too
    noise = made.strata.dense() - exact
    assert noise.var() == pytest.approx(privacy.noise.variance, rel=0.25)  # sd 3.5%
    assert abs(noise.mean()) < 6 * np.sqrt(privacy.noise.variance / 4000)
    np.testing.assert_array_equal(made.counts, made.strata.dense().sum(axis=0))
    assert Report.from_json(made.to_json()) == made
    hidden = privacy.hides_size
    assert ("n_samples" in json.loads(made.to_json())) is not hidden
    assert hidden or made.n_samples == 400


@pytest.mark.parametrize(
    ("privacy", "change", "words"),
    [
        (PRIVATE, {"n_samples": 90_000}, "which noise cannot make of 90000 samples"),
        (HIDING, {"n_samples": 400}, "n_samples is stated though add-remove"),
        (HIDING, {"steps": [5, 10], "counts": [2**62, -(2**62)]}, "strata: a count exceeds"),
    ],
)
def test_what_noise_cannot_make_of_the_samples_is_refused(privacy, change, words):
    pytest.importorskip("opendp")
    data = json.loads(report("site-7", n=400, privacy=privacy).to_json())
    (data if "n_samples" in change else data["strata"]).update(change)
    with pytest.raises(ReportError, match=f"site-7: .*{words}"):
        Report.from_json(json.dumps(data))


def test_a_private_cell_that_its_noise_cannot_have_made_is_refused():
    pytest.importorskip("opendp")
    genuine = report(classes=2, privacy=PRIVATE)
    for moved, fine in ((0, True), (75, False), (10_000, False)):
        counts = genuine.strata.counts.copy()
        counts[0], counts[GRID.n_bins] = -moved, genuine.counts[0] + moved
        forged = Strata("class", 2, genuine.strata.cells, counts, GRID.n_bins)
        if fine:
            structs.replace(genuine, counts=forged.pooled, strata=forged)
            continue
        with pytest.raises(ReportError, match="a count by class is beyond what the stated noise"):
            structs.replace(genuine, counts=forged.pooled, strata=forged)


def test_groups_may_be_stated_so_that_privacy_can_hide_who_occurs():
    pytest.importorskip("opendp")
    stated = of(groups=LABELS % 2, classes=["0", "1", "2"], privacy=PRIVATE)
    assert stated.strata.names == ("0", "1", "2")
