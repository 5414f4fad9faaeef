"""Private reports by files alone: `robfcp sketch --epsilon` to a guaranteed threshold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_cli import RUNNER, invoke, write_csv

import robfcp
from robfcp.cli import app

pytest.importorskip("opendp")


def sketch(folder, k, *options):
    write_csv(folder / f"{k}.csv", 300, k)
    path = folder / f"{k}.json"
    if "--ledger" not in options:
        options = *options, "--ledger", folder / f"{k}-{len(list(folder.iterdir()))}.ledger"
    words = "sketch", folder / f"{k}.csv", "-c", f"site-{k}", "-o", path, *options
    return path, invoke(*words)


def refused(*words):
    """The one line of a refused call."""
    result = RUNNER.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, robfcp.RobfcpError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.parametrize("neighbours", ["substitution", "add-remove"])
def test_private_files_give_a_guaranteed_threshold(tmp_path, neighbours):
    options = "--epsilon", 1, "--delta", 1e-6, "--neighbours", neighbours
    paths = [sketch(tmp_path, k, *options)[0] for k in range(8)]
    report = robfcp.Report.load(paths[0])
    assert report.privacy == robfcp.Privacy(1, 1e-6, neighbours)
    assert report.grid.n_bins == 32
    data = json.loads(
        invoke("calibrate", *paths, "--malicious", 1, "--guarantee", "marginal", "--json")
    )
    certificate = data["levels"][0]["certificate"]
    assert certificate["lower"] == 0.9
    assert "noise of 8 private reports is allowed for" in certificate["statement"]
    invoke("certify", *paths)
    page = tmp_path / "page.html"
    invoke("calibrate", *paths, "-o", tmp_path / "c.json", "--html", page)
    assert page.stat().st_size > 1000


def test_the_statement_of_privacy_is_printed_and_in_the_json(tmp_path):
    _, printed = sketch(tmp_path, 0, "--epsilon", 2)
    assert "(2, 0)-differentially private under substituting one sample" in " ".join(
        printed.split()
    )
    _, printed = sketch(tmp_path, 0, "--epsilon", 2, "--json", "--samples-per-patient", 5)
    assert json.loads(printed)["privacy"]["samples_per_patient"] == 5


def test_a_ledger_stops_a_site_that_has_spent_its_budget(tmp_path):
    ledger = tmp_path / "ledger.json"
    options = "--epsilon", 1, "--rounds", 2, "--ledger", ledger
    for _ in range(2):
        path, _ = sketch(tmp_path, 0, *options)
    before = path.read_bytes()
    words = "sketch", tmp_path / "0.csv", "-c", "site-0", "-o", path, *options
    assert "have spent epsilon 1 of 1" in refused(*words)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--delta", "1e-6"), "need --epsilon"),
        (("--ledger", "l.json"), "give --epsilon"),
        (("--epsilon", "1"), "needs --ledger"),
        (("--epsilon", "0"), "epsilon is 0"),
        (("--epsilon", "1", "--grid", "logistic:2"), "8 to 10000 bins"),
    ],
)
def test_wrong_privacy_options_are_one_line(tmp_path, options, words):
    write_csv(tmp_path / "0.csv", 50, 0)
    data, output = tmp_path / "0.csv", tmp_path / "r"
    assert words in refused("sketch", data, "-c", "a", "-o", output, *options)
    assert not (tmp_path / "r").exists()


def test_a_ledger_is_bound_to_the_files_name_or_the_stated_one(tmp_path):
    ledger = tmp_path / "l"
    sketch(tmp_path, 0, "--epsilon", 1, "--rounds", 9, "--ledger", ledger)
    write_csv(tmp_path / "1.csv", 300, 1)
    words = "sketch", tmp_path / "1.csv", "-c", "a", "-o", tmp_path / "r"
    words = *words, "--epsilon", 1, "--rounds", 9, "--ledger", ledger
    assert "is the ledger of '0.csv', not of '1.csv'" in refused(*words)
    invoke(*words, "--dataset", "0.csv")


def test_unbounded_scores_need_a_named_grid(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=50), rng.normal(size=50)])
    np.savetxt(tmp_path / "r.csv", rows, delimiter=",", header="prediction,target", comments="")
    words = "sketch", tmp_path / "r.csv", "-c", "a", "-o", tmp_path / "r.json", "--epsilon", 1
    assert "noise would drown" in refused(*words, "--score", "absolute-residual")
