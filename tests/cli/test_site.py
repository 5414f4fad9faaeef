"""What a site makes: reports of every score, private ones, and under agreed terms."""

import json

import numpy as np
import pytest
from makers import outputs, refused, said, table

import robfcp


def report(folder, k, *options, n=300):
    """The words of a call that makes site k's report."""
    table(folder / f"{k}.csv", *outputs(k, n, 4, 0.3), ["p0", "p1", "p2", "p3"])
    return "report", folder / f"{k}.csv", "-c", f"s{k}", "-o", folder / f"{k}.json", *options


def test_regression_runs_from_files_too(tmp_path):
    drawn = np.random.default_rng(0).normal(size=(200, 2))
    a = table(tmp_path / "a.csv", drawn, names=["prediction", "target"])
    words = "report", a, "-c", "a", "-o", tmp_path / "r.json", "--score", "absolute-residual"
    assert "noise would drown" in refused(*words, "--epsilon", 1)
    assert "has no classes" in refused(*words, "--by-class")
    said(*words)
    said("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json", "-q")
    words = "predict", tmp_path / "c.json", a, "-o", tmp_path / "i.csv"
    assert 0.88 < json.loads(said(*words, "--json"))["coverage"] < 0.95
    two = table(tmp_path / "two.csv", drawn[:, [0, 0, 1]], names=["q1", "q2", "target"])
    for command in ("predict", "check", "monitor"):
        assert "two.csv: predictions: shape (200, 2)" in refused(command, tmp_path / "c.json", two)
    assert (tmp_path / "i.csv").read_text().startswith("row,low,high\n0,")


@pytest.mark.parametrize("score", ["aps", "raps", "lac", "saps", "ordinal-aps"])
def test_every_score_and_grid_can_be_chosen(tmp_path, score):
    grid = "extended" if score in ("raps", "saps") else "uniform:50"
    plain = ["--no-randomized"] if score != "lac" else []
    said(*report(tmp_path, 0, "--score", score, *plain, "--round", 3, "--grid", grid))
    made = robfcp.Report.load(tmp_path / "0.json")
    assert (made.round, made.score.name) == ("3", score)
    assert made.grid == robfcp.privacy.parse_binning(grid)


def test_words_that_do_not_fit_are_one_line(tmp_path):
    words = report(tmp_path, 0)
    for options, why in (
        (["--score", "x"], "unknown score 'x'"),
        (["--no-randomized"], "lac does not take randomized"),
        (["--grid", "x"], "grid: 'x' is unknown"),
        (["--groups", "a,b"], "pass --group COLUMN too"),
        (["--logits", "--normalise"], "sums to 1 already"),
        (["--delta", "1e-6"], "need --epsilon"),
        (["--ledger", tmp_path / "l.json"], "give --epsilon"),
        (["--epsilon", "1"], "needs --ledger"),
    ):
        assert why in refused(*words, *options)
        assert not (tmp_path / "0.json").exists()


def test_what_shows_of_a_class_with_one_sample_and_of_set_sizes_is_said(tmp_path):
    p, y = outputs(0, 300, 4, 0.3)
    kept = np.sort([*np.flatnonzero(y < 3), np.argmax(y == 3)])
    table(tmp_path / "a.csv", p[kept], y[kept], ["p0", "p1", "p2", "p3"])
    words = "report", tmp_path / "a.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert "no count is that of a single one" in " ".join(said(*words, "--pooled").split())
    printed = " ".join(said(*words, "--by-class").split())
    assert (
        "Fewer than 5 samples: class 3. A reader sees how many, and nothing of their scores"
        in printed
    )
    printed = " ".join(said(*words, "--set-sizes").split())
    assert "of --set-sizes at least 5 labels, which may be of one sample" in printed


# Private reports


def test_words_of_privacy_are_those_of_python(tmp_path):
    pytest.importorskip("opendp")
    ledger = "--ledger", tmp_path / "ledger.json", "--json"
    words = "--epsilon", 1, "--delta", 1e-6, "--neighbours", "add-remove", *ledger
    told = json.loads(said(*report(tmp_path, 0, *words, "--samples-per-patient", 2)))
    assert told["privacy"]["samples_per_patient"] == 2
    made = robfcp.Report.load(tmp_path / "0.json")
    held = robfcp.Privacy(1, 1e-6, "add-remove", samples_per_patient=2)
    assert (made.privacy, made.grid.n_bins) == (held, 32)


def test_a_ledger_stops_a_site_that_has_spent_its_budget_and_is_bound_to_its_data(tmp_path):
    pytest.importorskip("opendp")
    words = report(tmp_path, 0, "--epsilon", 1, "--ledger", tmp_path / "ledger.json")
    assert "(1, 0)-differentially private" in " ".join(said(*words).split())
    before = (tmp_path / "0.json").read_bytes()
    assert "have spent epsilon 1 of 1" in refused(*words)
    assert "is the ledger of '0.csv', not of 'b'" in refused(*words, "--dataset", "b")
    assert (tmp_path / "0.json").read_bytes() == before


# Terms


@pytest.fixture
def place(tmp_path):
    pytest.importorskip("cryptography")
    said("keygen", "server", "-o", tmp_path / "server.key")
    (tmp_path / "round.toml").write_text(
        'round = "r1"\nmodel = "m1"\nscore = "lac"\ngrid = "uniform:50"\n'
    )
    said("terms", tmp_path / "round.toml", "--sign", tmp_path / "server.key")
    return tmp_path


def test_sites_and_server_keep_to_the_terms(place):
    terms = "--terms", place / "round.toml"
    pinned = *terms, "--server-key", place / "server.key.pub"
    for k in range(3):
        said(*report(place, k, *pinned, n=60))
    made = robfcp.Report.load(place / "0.json")
    assert (made.round, made.model, made.grid) == ("r1", "m1", robfcp.Binning.uniform(50))
    said(*report(place, 3, "--round", "r1", "--model", "m2", "--grid", "uniform:50", n=60))
    paths = [place / f"{k}.json" for k in range(4)]
    said("calibrate", *paths, *terms, "--liars", 0, "-o", place / "c.json")
    calibration = robfcp.Calibration.load(place / "c.json", record=True)
    assert calibration.benign_clients == ("s0", "s1", "s2")
    assert calibration.verification.model == calibration.verification.grid == "as stated"
    assert "is not what was agreed (r1)" in refused("calibrate", *paths, *terms, "--round", "r2")
    words = report(place, 0, *terms)
    assert "is not what was agreed (lac)" in refused(*words, "--score", "aps")
    (place / "round.toml").write_text('round = "r1"\ngrid = "uniform:3"\n')
    said(*words)
    assert "not signed by the pinned key" in refused(*words, *pinned[2:])
    (place / "round.toml.sig").unlink()
    assert "no such file" in refused(*words, *pinned[2:])


def test_agreed_privacy_binds_too(place):
    pytest.importorskip("opendp")
    (place / "round.toml").write_text('round = "r1"\ngrid = "uniform:16"\nepsilon = 2.0\n')
    said(*report(place, 0, "--terms", place / "round.toml", "--ledger", place / "l"))
    assert robfcp.Report.load(place / "0.json").privacy == robfcp.Privacy(2.0)
