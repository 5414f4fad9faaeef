"""`robfcp certify` and the numbers it lays side by side."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from robfcp import LAC, Consensus, Grid, Marginal, Report, calibrate
from robfcp.calibration.what_if import default_budgets, what_if
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import certify, fcp_index, marginal_threshold, pac_threshold
from robfcp.lab.published import bound_for

LEVEL = Fraction(9, 10)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    paths = []
    for k in range(20):
        scores = rng.beta(1, 5, int(rng.integers(100, 300)))
        paths.append(folder / f"{k}.json")
        Report.from_scores(f"site-{k:02d}", scores, Grid.default(), score=LAC()).save(paths[-1])
    return paths


@pytest.fixture(scope="module")
def federation(reports):
    return Federation.from_reports([path.read_bytes() for path in reports])


def run(*arguments):
    return CliRunner().invoke(app, ["certify", *map(str, arguments)])


def test_each_row_holds_what_the_single_functions_return(federation):
    index = fcp_index(federation, LEVEL)
    outcome = what_if(federation, LEVEL, index, [0, 2, 9], confidence=0.9)
    upper = federation.grid.upper
    for row in outcome.budgets:
        assert row.certificate == certify(federation, index, row.m, 0.9)
        assert row.marginal == upper[marginal_threshold(federation, LEVEL, m=row.m)]
        assert row.pac == upper[pac_threshold(federation, LEVEL, row.m, 1 - 0.9)]
        assert row.alike is None
        paper = bound_for(federation.sizes, 0.9, row.m)
        assert paper is not None
        assert paper.vacuous


def test_default_budgets_of_a_hundred_clients():
    assert default_budgets(100) == (0, 1, 2, 5, 9, 20, 40)
    assert default_budgets(2) == (0, 1)


def test_reports_give_a_table_and_every_explanation(reports):
    result = run(*reports, "-m", "0,1", "-m", "4")
    assert result.exit_code == 0, result.output
    for word in (
        "undefended FCP's",
        "marginal",
        "vacuous",
        "not a bound",
        "whatever rule",
    ):
        assert word in result.output


def test_a_calibration_file_gives_its_own_threshold_and_what_if_levels(reports, tmp_path):
    calibration = calibrate([path.read_bytes() for path in reports], defence=Consensus(at_most=2))
    calibration.save(tmp_path / "calibration.json")
    result = run(
        tmp_path / "calibration.json",
        *("-m", "0,2,5", "--confidence", "0.9", "--confidence", "0.8", "--json"),
        *("--heterogeneity", "0.05", "-o", tmp_path / "out.json", "--plot", tmp_path / "c.svg"),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [level["coverage"] for level in data["levels"]] == [0.9, 0.8]
    assert data["levels"][0]["threshold"] == calibration.threshold
    assert [row["m"] for row in data["levels"][0]["budgets"]] == [0, 2, 5]
    assert data["levels"][0]["empty_from"] == calibration.levels[0].empty_from
    assert data["levels"][0]["budgets"][1]["certificate"]["statement"]
    assert "estimate" in data["heterogeneity_estimate"]["label"]
    assert json.loads((tmp_path / "out.json").read_text()) == data
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("levels", [["0.8"], ["0.8", "0.95"]])
def test_certify_takes_thresholds_by_the_rule_of_the_calibration(reports, tmp_path, levels):
    """Asked about other levels, certify says what calibrate would have said."""
    made = {"defence": Consensus(at_most=2)}
    files = [path.read_bytes() for path in reports]
    calibrate(files, **made).save(tmp_path / "c.json")
    asked = [word for level in levels for word in ("--confidence", level)]
    data = json.loads(run(tmp_path / "c.json", "-m", "2", *asked, "--json").stdout)
    for found, level in zip(data["levels"], levels, strict=True):
        assert found["threshold"] == calibrate(files, level, **made).threshold


def test_evidence_elsewhere_is_named_and_belongs_to_a_calibration(reports, tmp_path):
    calibrate([path.read_bytes() for path in reports]).save(tmp_path / "c.json")
    (tmp_path / "c.evidence.json").rename(tmp_path / "e.json")
    assert "no such file" in str(run(tmp_path / "c.json").exception)
    assert run(tmp_path / "c.json", "--evidence", tmp_path / "e.json").exit_code == 0
    refused = run(*reports, "--evidence", tmp_path / "e.json")
    assert "belongs to a calibration" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["-m", "20"], "below the 20 sites"), (["-m", "x"], "not a number")],
)
def test_budgets_that_make_no_sense_are_refused_with_a_remedy(reports, arguments, words):
    result = run(*reports, *arguments)
    assert isinstance(result.exception, RobfcpError)
    assert words in str(result.exception)


def test_a_figure_of_an_unknown_kind_is_refused(reports, tmp_path):
    result = run(*reports, "--plot", tmp_path / "c.gif")
    assert isinstance(result.exception, RobfcpError)
    assert "use .png" in str(result.exception)


# By class


NAMES = ["easy", "hard", "rare"]


@pytest.fixture(scope="module")
def classed(tmp_path_factory):
    """Report files by class; two of the ten sites hold the rare class."""
    folder = tmp_path_factory.mktemp("classed")
    rng = np.random.default_rng(3)
    paths = []
    for k in range(10):
        mix = [0.5, 0.3, 0.2] if k < 2 else [0.6, 0.4, 0.0]
        labels = rng.choice(3, 200, p=mix)
        scores = rng.random(200) ** np.array([3.0, 1.0, 1.5])[labels]
        paths.append(folder / f"{k}.json")
        Report.from_scores(f"site-{k}", scores, score=LAC(), labels=labels, classes=NAMES).save(
            paths[-1]
        )
    return paths


def test_a_calibration_by_class_is_judged_class_by_class(classed, tmp_path):
    calibration = calibrate(
        Federation.from_reports([path.read_bytes() for path in classed]),
        [0.8, 0.9],
        by="class",
        defence="none",
        promise=Marginal(liars=1),
    )
    calibration.save(tmp_path / "c.json")
    found = json.loads(run(tmp_path / "c.json", "-m", "0,1,3", "--json").stdout)
    federation = calibration.federation
    for level, stored in zip(found["levels"], calibration.levels, strict=True):
        assert level["by"] == "class"
        for c, (told, one) in enumerate(zip(level["strata"], stored.strata, strict=True)):
            held = federation.stratum(c)
            assert (told["name"], told["sites"], told["samples"]) == (
                one.name,
                one.holders,
                one.samples,
            )
            assert told["threshold"] == one.threshold
            index = int(held.grid.edge_at(one.threshold))
            assert [row["m"] for row in told["budgets"]] == [
                m for m in (0, 1, 3) if m < one.holders
            ]
            for row in told["budgets"]:
                wanted = certify(held, index, row["m"], 1 - 0.05 / 3)
                assert row["certificate"]["lower"] == pytest.approx(wanted.lower)
                assert row["certificate"]["upper"] == pytest.approx(wanted.upper)
                edge = marginal_threshold(held, stored.coverage, row["m"])
                assert row["marginal"] == (None if edge is None else held.grid.upper[edge])
    text = run(tmp_path / "c.json", "-m", "0,1,3").stdout
    assert "by class at 0.8" in text
    assert "by class at 0.9" in text
    assert "95% sure at once" in text
    assert "largest of them" not in text


def test_reports_can_be_judged_class_by_class_and_for_other_levels(classed, tmp_path):
    found = json.loads(run(*classed, "--by", "class", "-m", "1", "--json").stdout)
    federation = Federation.from_reports([path.read_bytes() for path in classed])
    for c, told in enumerate(found["levels"][0]["strata"]):
        held = federation.stratum(c)
        index = fcp_index(held, LEVEL)
        assert told["threshold"] == held.grid.upper[index]
    calibration = calibrate(federation, by="class", defence="none")
    calibration.save(tmp_path / "c.json")
    other = json.loads(run(tmp_path / "c.json", "--confidence", "0.7", "-m", "1", "--json").stdout)
    for c, told in enumerate(other["levels"][0]["strata"]):
        held = federation.stratum(c)
        assert told["threshold"] == held.grid.upper[fcp_index(held, Fraction(7, 10))]


def test_a_class_that_nobody_holds_and_very_many_classes_are_shown_in_words(tmp_path):
    rng = np.random.default_rng(4)
    paths = []
    for k in range(4):
        labels = rng.integers(0, 14, 300)
        paths.append(tmp_path / f"{k}.json")
        Report.from_scores(f"s{k}", rng.random(300), labels=labels, classes=15).save(paths[-1])
    text = run(*paths, "--by", "class", "-m", "0").stdout
    assert "the 10 weakest of 15" in text
    assert "nothing" in text
    found = json.loads(run(*paths, "--by", "class", "-m", "0", "--json").stdout)
    nobody = found["levels"][0]["strata"][14]
    assert nobody == {
        "name": "14",
        "sites": 0,
        "samples": 0,
        "threshold": None,
        "budgets": [],
    }


def test_classes_are_drawn_where_a_calibration_has_them(classed, tmp_path):
    calibrate([Report.load(path) for path in classed], by="class").save(tmp_path / "c.json")
    assert run(tmp_path / "c.json", "-m", "0,1", "--plot", tmp_path / "c.png").exit_code == 0
    assert (tmp_path / "c.png").stat().st_size > 5000
    for arguments in (classed, [tmp_path / "c.json", "--confidence", "0.8"]):
        refused = run(*arguments, "--by", "class", "-m", "0", "--plot", tmp_path / "d.png")
        assert isinstance(refused.exception, RobfcpError)
        assert "own thresholds are drawn" in str(refused.exception)
        assert not (tmp_path / "d.png").exists()


def test_clusters_are_judged_as_such(classed, tmp_path):
    joined = {"easy": "common", "hard": "serious", "rare": "serious"}
    reports = [Report.load(path) for path in classed]
    calibration = calibrate(reports, by=joined, defence="none")
    calibration.save(tmp_path / "c.json")
    found = json.loads(run(tmp_path / "c.json", "-m", "0", "--json").stdout)
    told = found["levels"][0]["strata"]
    assert [one["name"] for one in told] == ["common", "serious"]
    assert [one["threshold"] for one in told] == [
        calibration.threshold[0],
        calibration.threshold[1],
    ]


def test_another_grouping_than_the_reports_keep_is_refused(classed):
    refused = run(*classed, "--by", "group")
    assert refused.exit_code != 0
    assert "not by group" in str(refused.exception)
