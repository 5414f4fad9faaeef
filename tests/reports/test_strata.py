"""Reports by class or group: counts that add up, a small wire, and refusals in words."""

import json

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
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


def report(client="a", n=60, classes=3, grid=GRID, seed=0, **more):
    number = classes if isinstance(classes, int) else len(classes)
    scores, labels = sample(n, number, seed)
    return Report.from_scores(client, scores, grid, labels=labels, classes=classes, **more)


def by_hand(scores, numbers, n_strata, grid=GRID):
    """(C, H) the table by a loop."""
    table = np.zeros((n_strata, grid.n_bins), dtype=int)
    for value, number in zip(scores, numbers, strict=True):
        table[number, int(grid.index(np.array([value]))[0])] += 1
    return table


# Counting


def test_counts_by_class_are_those_of_a_loop_and_add_up_to_the_pooled_report():
    scores, labels = sample()
    found = Report.from_scores("a", scores, GRID, labels=labels, classes=3)
    pooled = Report.from_scores("a", scores, GRID)
    table = by_hand(scores, labels, 3)
    np.testing.assert_array_equal(found.strata.dense(), table)
    np.testing.assert_array_equal(found.strata.sizes, table.sum(axis=1))
    np.testing.assert_array_equal(found.strata.pooled, pooled.counts)
    np.testing.assert_array_equal(found.counts, pooled.counts)
    assert found.n_samples == pooled.n_samples
    assert (found.strata.counts > 0).all()


@pytest.mark.parametrize(
    ("n", "n_classes", "bins"),
    [
        (9003, 2, 50),  # a full table
        (500, DENSE, 500),
        (500, DENSE, 501),  # only the cells in use, sorted
        (500, 300, 10_000),
        (500, 20_000, 200_000),  # more cells than 32 bits can number
        (1, 1, 50),
    ],
)
def test_every_way_of_counting_gives_the_same_table(n, n_classes, bins):
    scores, labels = sample(n, n_classes)
    grid = Grid.uniform(bins)
    found = Strata.of_classes(scores, labels, n_classes, grid)
    cells, counts = np.unique(labels * bins + grid.index(scores), return_counts=True)
    np.testing.assert_array_equal(found.cells, cells)
    np.testing.assert_array_equal(found.counts, counts)
    assert found == Strata("class", n_classes, cells, counts, bins)


def test_a_class_nobody_has_keeps_its_place():
    found = Strata.of_classes([0.1, 0.2], [3, 3], 5, GRID)
    assert found.sizes.tolist() == [0, 0, 0, 2, 0]


def test_labels_given_as_names_are_those_given_as_numbers():
    scores, labels = sample()
    numbered = Report.from_scores("a", scores, GRID, labels=labels, classes=NAMES)
    words = [NAMES[label] for label in labels]
    for named in (words, np.array(words), np.array(words, dtype=object), np.array(words, "S")):
        assert Report.from_scores("a", scores, GRID, labels=named, classes=NAMES) == numbered
    for classes in (list(NAMES), np.array(NAMES)):
        assert Report.from_scores("a", scores, GRID, labels=labels, classes=classes) == numbered
    small = {"labels": labels.astype(np.uint8), "classes": np.int8(3)}
    assert Report.from_scores("a", scores, GRID, **small) == report()


def test_groups_stand_in_the_order_of_their_names_whatever_type_they_have():
    scores, labels = sample()
    found = Report.from_scores("a", scores, GRID, groups=labels + 10)
    assert (found.strata.by, found.strata.names) == ("group", ("10", "11", "12"))
    np.testing.assert_array_equal(found.strata.dense(), by_hand(scores, labels, 3))
    words = np.array(["young", "old", "middle"])[labels]
    assert Report.from_scores("a", scores, GRID, groups=words).strata.names == (
        "middle",
        "old",
        "young",
    )


# Thin classes


def test_thin_classes_are_merged_into_one_more_and_nothing_is_lost():
    scores = np.linspace(0.05, 0.95, 10)
    labels = [0] * 6 + [1] * 3 + [2]
    found = Report.from_scores("a", scores, GRID, labels=labels, classes=NAMES, least=4)
    assert found.strata.names == (*NAMES, OTHER)
    assert found.strata.sizes.tolist() == [6, 0, 0, 4]
    plain = Report.from_scores("a", scores, GRID, labels=labels, classes=NAMES)
    np.testing.assert_array_equal(found.counts, plain.counts)
    kept, other = found.strata.dense()[[0, 3]]
    np.testing.assert_array_equal(kept, plain.strata.dense()[0])
    np.testing.assert_array_equal(other, plain.strata.dense()[1:].sum(axis=0))
    assert Report.from_json(found.to_json()) == found


def test_merged_classes_given_by_number_are_named_by_it():
    found = Report.from_scores("a", [0.1, 0.2, 0.3], GRID, labels=[0, 0, 1], classes=2, least=2)
    assert found.strata.names == ("0", "1", OTHER)
    assert found.strata.sizes.tolist() == [2, 0, 1]


# The wire


@pytest.mark.parametrize(
    "made",
    [
        report(),
        report(classes=NAMES),
        report(classes=NAMES, least=30),
        report(n=5, classes=20_000),
        report(score=robfcp.LAC(), round="r", model="m"),
        Report.from_scores("a", [0.1, 0.5, 0.5], GRID, groups=["x", "y", "x"]),
        report(grid=Grid.open_ended([0.0, 0.5, 1.0])),
    ],
    ids=["number", "names", "merged", "many", "context", "groups", "edges"],
)
def test_a_report_by_class_crosses_the_wire_unchanged(made, tmp_path):
    data = json.loads(made.to_json())
    assert data["schema"] == 1
    assert "counts" not in data
    assert len(data["strata"]["steps"]) == len(made.strata.cells)
    again = Report.from_json(made.to_json())
    assert again == made
    assert again.strata == made.strata
    assert again.to_json() == made.to_json()
    made.save(tmp_path / "a.json")
    assert Report.load(tmp_path / "a.json") == made


def test_a_thousand_samples_and_a_thousand_classes_take_less_than_20_kb():
    scores, labels = sample(1000, 1000)
    for score in (None, robfcp.LAC()):
        made = Report.from_scores("hospital-01", scores, score=score, labels=labels, classes=1000)
        assert len(made.to_json()) < 20_000
        assert Report.from_json(made.to_json()) == made


def test_the_size_grows_with_samples_and_not_with_classes_or_bins():
    small = len(report(n=100, classes=100, grid=Grid.uniform(100)).to_json())
    large = len(report(n=100, classes=10_000, grid=Grid.uniform(10_000)).to_json())
    assert large < 1.8 * small  # numbers of more digits, but no more of them


def test_reports_differ_when_only_their_labels_do():
    scores, labels = sample()
    one = Report.from_scores("a", scores, GRID, labels=labels, classes=3)
    other = Report.from_scores("a", scores, GRID, labels=(labels + 1) % 3, classes=3)
    assert (one.counts == other.counts).all()
    assert one != other
    assert one != Report.from_scores("a", scores, GRID)
    assert one.strata != "strata"


# Bad input at the site

S = [0.1, 0.2, 0.3]
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
    "a million classes": ({"labels": [0, 1, 2], "classes": 10**6}, "1000000 of them; give 1 to"),
    "no class at all": ({"labels": [0, 1, 2], "classes": 0}, "0 of them"),
    "no names": ({"labels": [0, 1, 2], "classes": []}, "0 of them"),
    "half a class": ({"labels": [0, 1, 2], "classes": 2.5}, "2.5 is no list of names"),
    "one text": ({"labels": [0, 1, 2], "classes": "cat"}, "'cat' is no list of names"),
    "truth": ({"labels": [0, 1, 2], "classes": True}, "True is no list"),
    "repeated name": ({"labels": [0, 1, 2], "classes": ["a", "b", "a"]}, "a name comes twice"),
    "unprintable name": ({"labels": [0, 1, 2], "classes": ["a", "b\x1b[2J", "c"]}, "is no name"),
    "empty name": ({"labels": [0, 1, 2], "classes": ["a", "", "c"]}, "is no name"),
    "endless name": ({"labels": [0, 1, 2], "classes": ["a", "b" * 10**6, "c"]}, "is no name"),
    "name of no text": ({"labels": [0, 1, 2], "classes": ["a", 1, "c"]}, "is no name"),
    "the name of what is merged": ({"labels": [0, 1, 0], "classes": ["a", OTHER]}, "is kept for"),
    "too few groups": ({"groups": ["a", "b"]}, "2 of them do not fit scores"),
    "groups in rows": ({"groups": [["a"], ["b"], ["c"]]}, r"groups: shape \(3, 1\)"),
    "unprintable group": ({"groups": ["a\n", "b", "c"]}, "is no name"),
    "empty group": ({"groups": ["", "b", "c"]}, "is no name"),
    "group of that name": ({"groups": [OTHER, "b", "c"]}, "is kept for"),
}


@pytest.mark.parametrize("case", AT_THE_SITE)
def test_what_a_site_gets_wrong_is_said_in_one_line_that_names_it(case):
    options, words = AT_THE_SITE[case]
    with pytest.raises(RobfcpError, match=words) as refused:
        Report.from_scores("site-7", S, GRID, **options)
    line = str(refused.value)
    assert line.startswith("site-7: ")
    assert line.isprintable()
    assert len(line) < 300


def test_more_groups_than_a_round_can_have_are_refused_at_the_site():
    n = MAX_STRATA + 1
    with pytest.raises(RobfcpError, match=f"site-7: group: {n} of them"):
        Report.from_scores("site-7", np.zeros(n), GRID, groups=np.arange(n))


def test_nan_scores_are_refused_by_class_as_they_are_pooled():
    with pytest.raises(RobfcpError, match="site-7: scores: row"):
        Report.from_scores("site-7", [np.nan, 0.1], GRID, labels=[0, 1], classes=2)


def test_strata_made_by_hand_are_checked():
    good = {"by": "class", "names": 2, "cells": [0, 11], "counts": [1, 2], "n_bins": 10}
    assert Strata(**good).sizes.tolist() == [1, 2]
    bad = {
        "neither 'class' nor 'group'": {"by": "ward"},
        "whole numbers": {"cells": [0.5, 1.5]},
        "counts are not whole": {"counts": [[1, 2]]},
        "differ in length": {"counts": [1]},
        "rise strictly": {"cells": [11, 0]},
        "within 0..19": {"cells": [0, 20]},
        "exceeds": {"counts": [1, MAX_COUNT + 1]},
        "no list of names": {"by": "group"},
    }
    for words, change in bad.items():
        with pytest.raises(RobfcpError, match=words):
            Strata(**(good | change))
    wrapping = [0, 2**62 + 1, -(2**62) - 1, 11]  # whose differences overflow to rising ones
    with pytest.raises(RobfcpError, match="rise strictly"):
        Strata(**(good | {"cells": wrapping, "counts": [1] * 4}))


def test_a_report_refuses_strata_that_are_not_of_its_counts():
    made = report()
    shifted = np.roll(made.counts, 1)
    with pytest.raises(ReportError, match="a: counts by class do not add up") as refused:
        Report("a", shifted, GRID, strata=made.strata)
    assert refused.value.field == "strata"
    assert Report("a", made.counts, GRID, strata=made.strata) == made
    with pytest.raises(ReportError, match="10 counts do not fit the grid's 20 bins"):
        Report("a", None, Grid.uniform(20), strata=made.strata)
    with pytest.raises(ReportError, match="are for 10 bins, not the grid's"):
        Report("a", np.repeat(made.counts, 2), Grid.uniform(20), strata=made.strata)
    with pytest.raises(ReportError, match="n_samples says 61"):
        Report("a", None, GRID, strata=made.strata, n_samples=61)
    with pytest.raises(ReportError, match="go with scores, not with losses"):
        Report("a", made.counts, GRID, n_samples=60, strata="strata")
    losses = Report.from_losses("a", [[1.0, 0.5], [1.0, 0.0]], [0.1, 0.5], risk="fnr")
    small = Strata("class", 1, np.flatnonzero(losses.counts), losses.counts[losses.counts > 0], 3)
    with pytest.raises(ReportError, match="go with scores, not with losses"):
        Report("a", losses.counts, losses.grid, n_samples=2, risk=losses.risk, strata=small)
    zero = Strata("class", 2, [0, 11], [0, 2], 10)
    with pytest.raises(ReportError, match="a count by class is not positive"):
        Report("a", None, GRID, strata=zero)


# Bad input on the wire


def base(**more):
    return json.loads(report("site-7", n=6, **more).to_json())


def changed(strata=None, **top):
    data = base()
    data["strata"] |= strata or {}
    return json.dumps(data | top)


ON_THE_WIRE = {
    "cell beyond the table": ({"steps": [0, 0, 30], "counts": [2, 2, 2]}, "rise strictly"),
    "cell far beyond": ({"steps": [2**62], "counts": [6]}, "beyond the table"),
    "cell negative": ({"steps": [-1, 2], "counts": [3, 3]}, "rise strictly"),
    "cells that repeat": ({"steps": [3, 0], "counts": [3, 3]}, "rise strictly"),
    "cells that fall": ({"steps": [3, -2], "counts": [3, 3]}, "rise strictly"),
    "cells that fall far": ({"steps": [3, -(2**63)], "counts": [3, 3]}, "rise strictly"),
    "step of 64 bits": ({"steps": [2**63], "counts": [6]}, "exceeds 64 bits"),
    "step of 100 bits": ({"steps": [2**100], "counts": [6]}, "exceeds 64 bits"),
    "count negative": ({"steps": [3, 1], "counts": [7, -1]}, "is negative"),
    "counts that cancel": ({"steps": [3, 10], "counts": [7, -1]}, "not positive"),
    "count of zero": ({"steps": [3, 1], "counts": [6, 0]}, "not positive"),
    "count of 64 bits": ({"steps": [3], "counts": [2**63]}, "exceeds 64 bits"),
    "counts whose sum overflows": ({"steps": [3, 10, 10], "counts": [2**62] * 3}, "exceeds"),
    "counts of floats": ({"counts": [1.5] * 6}, "not a valid report"),
    "too few counts": ({"counts": [6]}, "differ in length"),
    "counts that do not add up": ({"steps": [3], "counts": [7]}, "sum to 7 but n_samples says 6"),
    "nothing": ({"steps": [], "counts": []}, "all zero"),
    "fewer classes than cells": ({"names": 1}, "rise strictly"),
    "a million classes": ({"names": 10**6}, "1000000 of them"),
    "minus one class": ({"names": -1}, "-1 of them"),
    "endless classes": ({"names": 10**30}, "not a valid report|of them"),
    "repeated names": ({"names": ["a", "a", "b"]}, "comes twice"),
    "unprintable names": ({"names": ["a", "\u001b[2J", "b"]}, "is no name"),
    "groups without names": ({"by": "group"}, "no list of names"),
    "another grouping": ({"by": "ward"}, "not a valid report"),
    "unknown field": ({"more": 1}, "not a valid report"),
}


@pytest.mark.parametrize("case", ON_THE_WIRE)
def test_a_broken_report_by_class_is_refused_in_one_line_that_names_its_client(case):
    change, words = ON_THE_WIRE[case]
    with pytest.raises(ReportError, match=words) as refused:
        Report.from_json(changed(change))
    assert refused.value.client == "site-7"
    assert str(refused.value).startswith("site-7: ")
    assert str(refused.value).isprintable()


def test_another_grids_bins_do_not_fit():
    other = json.loads(report(n=6, grid=Grid.uniform(5)).to_json())["grid"]
    with pytest.raises(ReportError, match="rise strictly"):
        Report.from_json(changed(grid=other))
    wrong = base()["grid"] | {"parameters": other["parameters"]}
    with pytest.raises(ReportError, match="digest does not fit"):
        Report.from_json(changed(grid=wrong))


def test_a_report_has_counts_or_counts_by_class_or_losses_and_never_two_or_none():
    with pytest.raises(ReportError, match="counts or counts by class"):
        Report.from_json(changed(counts=[6] + [0] * 9))
    with pytest.raises(ReportError, match="counts or counts by class"):
        Report.from_json(json.dumps(base() | {"strata": None}))
    risk = {"name": "fnr", "bound": 1.0, "resolution": 360}
    with pytest.raises(ReportError, match="not with losses"):
        Report.from_json(changed(risk=risk))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**40, 2**53, 2**62, 2**63, -(2**63), 2**64, 2**200, 1.5, -0.0, 1e300]),
    st.text(max_size=4),
    st.lists(st.integers(-2, 3), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-1, 1), max_size=2),
)
VALID = report("site-7", n=30, classes=NAMES, seed=4)


@pytest.mark.effort
@settings(max_examples=cases(50), deadline=None, derandomize=True)
@given(data=st.data())
def test_no_change_to_a_valid_report_crashes_or_is_accepted_with_a_wrong_sum(data):
    tree = json.loads(VALID.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        inside = tree["strata"] if isinstance(tree.get("strata"), dict) else tree
        place = inside if data.draw(st.booleans()) else tree
        if not place:
            continue
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], list) and place[key] and data.draw(st.booleans()):
            spot = data.draw(st.integers(0, len(place[key]) - 1))
            place[key][spot] = data.draw(JUNK)
        elif data.draw(st.booleans()):
            place[key] = data.draw(JUNK)
        else:
            del place[key]
    try:
        found = Report.from_json(json.dumps(tree), "source")
    except ReportError:  # and nothing else
        return
    assert found.counts.sum() == found.n_samples
    if found.strata is not None:
        np.testing.assert_array_equal(found.strata.dense().sum(axis=0), found.counts)
        assert found.strata.sizes.sum() == found.n_samples
        assert found.strata.counts.min() > 0
    assert Report.from_json(found.to_json()) == found


@pytest.mark.effort
@settings(max_examples=cases(40), deadline=None, derandomize=True)
@given(cut=st.integers(0, 300), byte=st.integers(0, 255), place=st.integers(0, 300))
def test_no_damage_to_the_bytes_of_a_report_crashes(cut, byte, place):
    data = bytearray(VALID.to_json())
    data[place % len(data)] = byte
    for damaged in (bytes(data), bytes(data[: cut % len(data)])):
        try:
            found = Report.from_json(damaged)
        except ReportError:
            continue
        assert found.counts.sum() == found.n_samples == 30


# Privacy

PRIVATE = Privacy(epsilon=1.0)
HIDING = Privacy(epsilon=1.0, neighbours="add-remove")


@pytest.mark.parametrize("privacy", [PRIVATE, HIDING, Privacy(1.0, 1e-6, mechanism="gaussian")])
def test_a_private_report_has_noise_on_every_cell_and_crosses_the_wire(privacy):
    pytest.importorskip("opendp")
    made = report(n=400, privacy=privacy)
    assert len(made.strata.cells) == 30  # used or not: which labels occur is protected too
    noise = made.strata.dense() - report(n=400).strata.dense()
    assert (noise != 0).sum() > 2  # fewer in one run of ten million
    assert abs(noise.mean()) < 6 * np.sqrt(privacy.noise.variance / 30)
    np.testing.assert_array_equal(made.counts, made.strata.dense().sum(axis=0))
    assert json.loads(made.to_json())["schema"] == 1
    assert Report.from_json(made.to_json()) == made


def test_a_private_report_hides_its_size_only_under_add_remove():
    pytest.importorskip("opendp")
    assert "n_samples" in json.loads(report(n=400, privacy=PRIVATE).to_json())
    assert "n_samples" not in json.loads(report(n=400, privacy=HIDING).to_json())
    assert report(n=400, privacy=PRIVATE).n_samples == 400


def test_the_noise_on_the_cells_has_the_stated_spread():
    pytest.importorskip("opendp")
    exact = report(n=400, classes=100, grid=Grid.uniform(40)).strata.dense()
    noise = report(n=400, classes=100, grid=Grid.uniform(40), privacy=PRIVATE).strata.dense()
    spread = (noise - exact).var()
    assert spread == pytest.approx(PRIVATE.noise.variance, rel=0.2)  # 4000 draws: sd 3.5%


def test_too_many_cells_to_be_private_are_refused_in_words():
    pytest.importorskip("opendp")
    with pytest.raises(RobfcpError, match="1000 x 500 cells would drown in noise; use a coarse"):
        report(classes=1000, grid=Grid.uniform(500), privacy=PRIVATE)


def test_sums_that_noise_cannot_make_of_the_samples_are_refused():
    pytest.importorskip("opendp")
    data = json.loads(report("site-7", n=400, privacy=PRIVATE).to_json())
    with pytest.raises(ReportError, match="which noise cannot make of 90000 samples"):
        Report.from_json(json.dumps(data | {"n_samples": 90_000}))
    hidden = json.loads(report("site-7", n=400, privacy=HIDING).to_json())
    with pytest.raises(ReportError, match="n_samples is stated though add-remove"):
        Report.from_json(json.dumps(hidden | {"n_samples": 400}))

    data = hidden
    data["strata"] |= {"steps": [5, 10], "counts": [2**62, -(2**62)]}
    with pytest.raises(ReportError, match="site-7: strata: a count exceeds"):
        Report.from_json(json.dumps(data))


def test_privacy_hides_which_classes_are_thin_and_which_groups_occur():
    scores, labels = np.linspace(0.1, 0.9, 20), np.repeat([0, 1], [18, 2])
    private = Privacy(epsilon=1.0)
    with pytest.raises(RobfcpError, match="least: which classes are merged"):
        Report.from_scores("a", scores, GRID, labels=labels, classes=2, least=5, privacy=private)
    with pytest.raises(RobfcpError, match="state them all in classes="):
        Report.from_scores("a", scores, GRID, groups=labels, privacy=private)
    stated = Report.from_scores(
        "a", scores, GRID, groups=labels, classes=["0", "1", "2"], privacy=private
    )
    assert stated.strata.names == ("0", "1", "2")
    with pytest.raises(RobfcpError, match="none of those stated"):
        Report.from_scores("a", scores, GRID, groups=labels, classes=["0", "2"])


def test_a_private_cell_that_its_noise_cannot_have_made_is_refused():
    scores, labels = np.linspace(0.1, 0.9, 20), np.repeat([0, 1], [18, 2])
    genuine = Report.from_scores(
        "a", scores, GRID, labels=labels, classes=2, privacy=Privacy(epsilon=1.0)
    )
    counts = genuine.strata.counts.copy()
    counts[0] += 10_000  # the pooled count stays as it was: the other class takes it away
    counts[GRID.n_bins] -= 10_000
    forged = Strata("class", 2, genuine.strata.cells, counts, GRID.n_bins)
    with pytest.raises(ReportError, match="beyond what the stated noise"):
        structs.replace(genuine, counts=forged.pooled, strata=forged)


def test_a_site_may_refuse_a_grid_that_shows_single_scores():
    scores = np.linspace(0.1, 0.9, 4)
    with pytest.raises(RobfcpError, match="10 bins for 4 samples are more than 2 a sample"):
        Report.from_scores("a", scores, GRID, bins_per_sample=2)
    assert Report.from_scores("a", scores, GRID, bins_per_sample=2.5).n_samples == 4
    with pytest.raises(RobfcpError, match="more than nan a sample"):
        Report.from_scores("a", scores, GRID, bins_per_sample=float("nan"))
