"""`robfcp show`: thresholds and certificates for several numbers of malicious clients."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from makers import LAC, command_error, command_output, reports_of

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
def class_reports():
    """Return reports by fifteen classes; two of ten clients hold the rarest, none the last."""
    rng = np.random.default_rng(3)
    reports_ = []
    for k in range(10):
        labels = rng.integers(0, 14 if k < 2 else 13, 600)
        options = {"score": LAC, "labels": labels, "classes": 15}
        reports_.append(
            Report.from_scores(f"site-{k}", rng.random(600) ** (1 + labels % 3), **options)
        )
    return reports_


@pytest.fixture
def show(tmp_path):
    """Return a function that returns the output of `show`, or its JSON, or the error."""

    def run(calibration, *options, code=0):
        calibration.save(tmp_path / "c.json")
        printed = (command_error if code else command_output)("show", tmp_path / "c.json", *options)
        return json.loads(printed) if "--json" in options else printed

    return run


def test_each_row_holds_the_results_of_the_single_functions(reports):
    federation = Federation.from_reports(reports)
    index = fcp_bin_index(federation, LEVEL)
    (outcome,) = sensitivity(
        calibrate(reports, defense="none"), LEVEL, [0, 2, 9], certificate_confidence=0.9
    )
    upper_edges = federation.binning.upper_edges
    for row in outcome.rows:
        assert row.certificate == certify_threshold(federation, index, row.max_malicious, 0.9)
        assert (
            row.marginal
            == upper_edges[
                marginal_threshold_bin(federation, LEVEL, max_malicious=row.max_malicious)
            ]
        )
        assert (
            row.pac
            == upper_edges[
                pac_threshold(count_bounds(federation), LEVEL, row.max_malicious, 1 - 0.9)
            ]
        )
        assert row.heterogeneity_guarantee is None


def test_levels_have_the_calibrated_threshold_or_a_hypothetical_one(reports, show):
    options = {"defense": Consensus(max_malicious=2)}
    calibration = calibrate(reports, **options)
    arguments = (
        "-m",
        "0,2,5",
        "--coverage",
        0.9,
        "--coverage",
        0.8,
        "--heterogeneity",
        0.05,
        "--json",
    )
    result = show(calibration, *arguments)
    assert [level["coverage"] for level in result["levels"]] == [0.9, 0.8]
    strata = [level["strata"][0] for level in result["levels"]]
    hypothetical = calibrate(reports, coverage=0.8, **options).threshold
    assert [outcome["threshold"] for outcome in strata] == [calibration.threshold, hypothetical]
    assert [row["max_malicious"] for row in strata[0]["rows"]] == [0, 2, 5]
    assert strata[0]["vacuous_from"] == calibration.levels[0].vacuous_from
    assert "estimate" in result["heterogeneity"]["5"]["label"]
    text = " ".join(show(calibration, "-m", "0,1", "-m", "4", "--heterogeneity", "0.1").split())
    for expected in ("marginal", "alike", "not a bound", "confidence, every site"):
        assert expected in text


def test_excluded_clients_are_listed_by_cause_with_certificate_and_assumptions(show, tmp_path):
    rng = np.random.default_rng(0)
    scores = [np.zeros(200) if k < 15 else rng.beta(0.6, 2.5, 200) for k in range(40)]
    other_clients = ", ".join(f"site-{k:02d}" for k in range(1, 15))
    all_equal = f"excluded site-00: .*all its scores are equal.*; likewise {other_clients}"
    for text in (
        show(calibrate(reports_of(scores))),
        command_output("verify", tmp_path / "c.json"),
    ):
        for pattern in (
            all_equal,
            "a number read off the reports",
            "clients excluded",
            "more than 15 of",
        ):
            assert re.search(pattern, " ".join(text.split()))


def test_impossible_options_are_refused(reports, show):
    calibration = calibrate(reports)
    for option, value, message in (
        ("-m", "20", "below the 20 sites"), ("-m", "x", "not a number"),
        ("--coverage", "2", "coverage"),
    ):  # fmt: skip
        assert message in show(calibration, option, value, code=1)


def test_each_class_is_certified_also_where_no_client_holds_one(class_reports, show):
    guarantee = MarginalGuarantee(max_malicious=1)
    calibration = calibrate(
        class_reports, coverage=[0.8, 0.9], by="class", defense="none", guarantee=guarantee
    )
    result = show(calibration, "-m", "0,1,3", "--json")
    for level, stored in zip(result["levels"], calibration.levels, strict=True):
        without_holders = level["strata"][14]
        assert level["by"] == "class"
        assert without_holders["n_clients"] == 0
        assert without_holders["rows"] == []
        for c, (stratum, stored_stratum) in enumerate(
            zip(level["strata"][:14], stored.strata[:14], strict=True)
        ):
            of_class = calibration.federation.select_stratum(c)
            assert stratum["name"] == stored_stratum.name
            assert stratum["n_clients"] == stored_stratum.n_clients
            assert stratum["threshold"] == stored_stratum.threshold
            index = int(of_class.binning.bin_index_of_threshold(stored_stratum.threshold))
            assert [x["max_malicious"] for x in stratum["rows"]] == [
                m for m in (0, 1, 3) if m < stored_stratum.n_clients
            ]
            for row in stratum["rows"]:
                certificate = certify_threshold(
                    of_class, index, row["max_malicious"], 1 - 0.05 / 15
                )
                bounds = row["certificate"]["lower"], row["certificate"]["upper"]
                assert bounds == pytest.approx((certificate.lower, certificate.upper))
                marginal_bin = marginal_threshold_bin(
                    of_class, stored.coverage, row["max_malicious"]
                )
                assert row["marginal"] == (
                    None if marginal_bin is None else of_class.binning.upper_edges[marginal_bin]
                )
    assert "by class at 0.9, the 10 weakest of 15" in show(calibration, "-m", "0,1,3")
