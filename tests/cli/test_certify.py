"""`robfcp certify` and the numbers it lays side by side."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from robfcp import LAC, Grid, Report, calibrate
from robfcp.calibration.what_if import default_budgets, what_if
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import certify, fcp_index, marginal_threshold, pac_threshold, tolerance
from robfcp.lab.published_bounds import bound_for

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
        assert row.homogeneous is None
        paper = bound_for(federation.sizes, 0.9, row.m)
        assert paper is not None
        assert paper.vacuous
    assert outcome.tolerance == tolerance(federation, index, LEVEL)


def test_default_budgets_of_a_hundred_clients():
    assert default_budgets(100) == (0, 1, 2, 5, 9, 20, 40)
    assert default_budgets(2) == (0, 1)


def test_reports_give_a_table_and_every_explanation(reports):
    result = run(*reports, "-m", "0,1", "-m", "4")
    assert result.exit_code == 0, result.output
    for word in (
        "undefended FCP's",
        "tolerance",
        "marginal",
        "vacuous",
        "not a bound",
        "whatever rule",
    ):
        assert word in result.output


def test_a_calibration_file_gives_its_own_threshold_and_what_if_levels(reports, tmp_path):
    calibration = calibrate([path.read_bytes() for path in reports], malicious=2)
    calibration.save(tmp_path / "calibration.json")
    result = run(
        tmp_path / "calibration.json",
        *("-m", "0,2,5", "--confidence", "0.9", "--confidence", "0.8", "--json"),
        *("--heterogeneity", "0.05", "-o", tmp_path / "out.json", "--plot", tmp_path / "c.svg"),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [level["confidence_level"] for level in data["levels"]] == [0.9, 0.8]
    assert data["levels"][0]["threshold"] == calibration.threshold
    assert data["levels"][0]["tolerance"] == calibration.tolerance
    assert [row["m"] for row in data["levels"][0]["budgets"]] == [0, 2, 5]
    assert data["levels"][0]["empty_from"] == calibration.levels[0].empty_from
    assert data["levels"][0]["budgets"][1]["certificate"]["statement"]
    assert "estimate" in data["heterogeneity_estimate"]["label"]
    assert json.loads((tmp_path / "out.json").read_text()) == data
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("exchangeability", ["partial", "full"])
@pytest.mark.parametrize("levels", [["0.8"], ["0.8", "0.95"]])
def test_certify_takes_thresholds_by_the_rule_of_the_calibration(
    reports, tmp_path, exchangeability, levels
):
    """Asked about other levels, certify says what calibrate would have said."""
    made = {"malicious": 2, "exchangeability": exchangeability}
    files = [path.read_bytes() for path in reports]
    calibrate(files, **made).save(tmp_path / "c.json")
    asked = [word for level in levels for word in ("--confidence", level)]
    data = json.loads(run(tmp_path / "c.json", "-m", "2", *asked, "--json").stdout)
    for found, level in zip(data["levels"], levels, strict=True):
        assert found["threshold"] == calibrate(files, confidence_level=level, **made).threshold


def test_evidence_elsewhere_is_named_and_belongs_to_a_calibration(reports, tmp_path):
    calibrate([path.read_bytes() for path in reports]).save(tmp_path / "c.json")
    (tmp_path / "c.evidence.json").rename(tmp_path / "e.json")
    assert "no such file" in str(run(tmp_path / "c.json").exception)
    assert run(tmp_path / "c.json", "--evidence", tmp_path / "e.json").exit_code == 0
    refused = run(*reports, "--evidence", tmp_path / "e.json")
    assert "belongs to a calibration" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["-m", "20"], "below the 20 clients"), (["-m", "x"], "not a number")],
)
def test_budgets_that_make_no_sense_are_refused_with_a_remedy(reports, arguments, words):
    result = run(*reports, *arguments)
    assert isinstance(result.exception, RobfcpError)
    assert words in str(result.exception)


def test_a_figure_of_an_unknown_kind_is_refused(reports, tmp_path):
    result = run(*reports, "--plot", tmp_path / "c.gif")
    assert isinstance(result.exception, RobfcpError)
    assert "use .png" in str(result.exception)
