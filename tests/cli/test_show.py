"""`robfcp show` and the numbers it lays side by side."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from makers import LAC, refused, reports_of, said

from robfcp import Consensus, MarginalGuarantee, Report, calibrate
from robfcp.calibration import sensitivity
from robfcp.federation import Federation
from robfcp.guarantees import (
    certify_threshold,
    count_bounds,
    fcp_bin_index,
    marginal_threshold_bin,
)
from robfcp.guarantees._tail_bounds import pac_threshold

LEVEL = Fraction(9, 10)


@pytest.fixture(scope="module")
def reports():
    rng = np.random.default_rng(0)
    return reports_of([rng.beta(1, 5, int(rng.integers(100, 300))) for _ in range(20)])


@pytest.fixture(scope="module")
def classed():
    """Reports by fifteen classes; two of the ten sites hold the rarest, nobody the last."""
    rng = np.random.default_rng(3)
    found = []
    for k in range(10):
        labels = rng.integers(0, 14 if k < 2 else 13, 600)
        held = {"score": LAC, "labels": labels, "classes": 15}
        found.append(Report.from_scores(f"site-{k}", rng.random(600) ** (1 + labels % 3), **held))
    return found


@pytest.fixture
def shown(tmp_path):
    """What `show` prints of a calibration, or its JSON, or the error."""

    def run(calibration, *options, code=0):
        calibration.save(tmp_path / "c.json")
        found = (refused if code else said)("show", tmp_path / "c.json", *options)
        return json.loads(found) if "--json" in options else found

    return run


def test_each_row_holds_what_the_single_functions_return(reports):
    federation = Federation.from_reports(reports)
    index = fcp_bin_index(federation, LEVEL)
    (outcome,) = sensitivity(
        calibrate(reports, defense="none"), LEVEL, [0, 2, 9], certificate_confidence=0.9
    )
    upper = federation.binning.upper_edges
    for row in outcome.budgets:
        assert row.certificate == certify_threshold(federation, index, row.m, 0.9)
        assert row.marginal == upper[marginal_threshold_bin(federation, LEVEL, max_malicious=row.m)]
        assert row.pac == upper[pac_threshold(count_bounds(federation), LEVEL, row.m, 1 - 0.9)]
        assert row.alike is None


def test_a_calibration_gives_its_own_threshold_and_what_if_levels(reports, shown):
    made = {"defense": Consensus(at_most=2)}
    calibration = calibrate(reports, **made)
    words = "-m", "0,2,5", "--coverage", 0.9, "--coverage", 0.8, "--alike", 0.05, "--json"
    data = shown(calibration, *words)
    assert [level["coverage"] for level in data["levels"]] == [0.9, 0.8]
    whole = [level["parts"][0] for level in data["levels"]]
    would = calibrate(reports, 0.8, **made).threshold
    assert [outcome["threshold"] for outcome in whole] == [calibration.threshold, would]
    assert [row["m"] for row in whole[0]["budgets"]] == [0, 2, 5]
    assert whole[0]["empty_from"] == calibration.levels[0].vacuous_from
    assert "estimate" in data["alike"]["5"]["label"]
    text = " ".join(shown(calibration, "-m", "0,1", "-m", "4", "--alike", "0.1").split())
    for word in ("marginal", "alike", "not a bound", "confidence, every site"):
        assert word in text


def test_all_sites_are_named_by_cause_with_what_is_proved_and_assumed(shown, tmp_path):
    rng = np.random.default_rng(0)
    scores = [np.zeros(200) if k < 15 else rng.beta(0.6, 2.5, 200) for k in range(40)]
    others = ", ".join(f"site-{k:02d}" for k in range(1, 15))
    equal = f"left out site-00: .*all its scores are equal.*; likewise {others}"
    for text in (shown(calibrate(reports_of(scores))), said("verify", tmp_path / "c.json")):
        for part in (equal, "a number read off the reports", "sites left out", "more than 15 of"):
            assert re.search(part, " ".join(text.split()))


def test_what_makes_no_sense_is_refused_with_a_remedy(reports, shown):
    calibration = calibrate(reports)
    for option, value, words in (
        ("-m", "20", "below the 20 sites"), ("-m", "x", "not a number"),
        ("--coverage", "2", "coverage"),
    ):  # fmt: skip
        assert words in shown(calibration, option, value, code=1)


def test_a_calibration_by_class_is_judged_class_by_class_though_nobody_holds_one(classed, shown):
    promise = MarginalGuarantee(liars=1)
    calibration = calibrate(classed, [0.8, 0.9], by="class", defense="none", guarantee=promise)
    found = shown(calibration, "-m", "0,1,3", "--json")
    for level, stored in zip(found["levels"], calibration.levels, strict=True):
        nobody = level["parts"][14]
        assert (level["by"], nobody["holders"], nobody["budgets"]) == ("class", 0, [])
        for c, (told, one) in enumerate(zip(level["parts"][:14], stored.strata[:14], strict=True)):
            held = calibration.federation.select_stratum(c)
            assert told["name"] == one.name
            assert told["holders"] == one.n_clients
            assert told["threshold"] == one.threshold
            index = int(held.binning.bin_index_of_threshold(one.threshold))
            assert [x["m"] for x in told["budgets"]] == [m for m in (0, 1, 3) if m < one.n_clients]
            for row in told["budgets"]:
                exact = certify_threshold(held, index, row["m"], 1 - 0.05 / 15)
                ends = row["certificate"]["lower"], row["certificate"]["upper"]
                assert ends == pytest.approx((exact.lower, exact.upper))
                edge = marginal_threshold_bin(held, stored.coverage, row["m"])
                assert row["marginal"] == (None if edge is None else held.binning.upper_edges[edge])
    assert "by class at 0.9, the 10 weakest of 15" in shown(calibration, "-m", "0,1,3")
