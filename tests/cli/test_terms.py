"""What was agreed for a round binds the sites and the server."""

import pytest
from test_cli import invoke, write_csv
from test_verify_cli import refused

import robfcp

pytest.importorskip("cryptography")


@pytest.fixture
def place(tmp_path):
    for k in range(4):
        write_csv(tmp_path / f"{k}.csv", 60, k)
    invoke("keygen", "server", "-o", tmp_path / "server.key")
    (tmp_path / "round.toml").write_text(
        'round = "r1"\nmodel = "m1"\nscore = "lac"\ngrid = "uniform:50"\n'
    )
    invoke("terms", tmp_path / "round.toml", "--sign", tmp_path / "server.key")
    return tmp_path


def sketch(place, k, *options):
    words = "sketch", place / f"{k}.csv", "-c", f"s{k}", "-o", place / f"{k}.json", *options
    return words


def test_sites_and_server_keep_to_the_terms(place):
    terms = "--terms", place / "round.toml"
    pinned = *terms, "--server-key", place / "server.key.pub"
    for k in range(3):
        invoke(*sketch(place, k, *pinned))
    report = robfcp.Report.load(place / "0.json")
    assert (report.round, report.model, report.grid) == ("r1", "m1", robfcp.Grid.uniform(50))
    invoke(*sketch(place, 3, "--round", "r1", "--model", "m2", "--grid", "uniform:50"))
    paths = [place / f"{k}.json" for k in range(4)]
    invoke("calibrate", *paths, *terms, "--malicious", 0, "-o", place / "c.json")
    calibration = robfcp.Calibration.load(place / "c.json")
    assert calibration.trusted == ("s0", "s1", "s2")
    assert calibration.checked.model == calibration.checked.grid == "as stated"
    assert "is not what was agreed (r1)" in refused("calibrate", *paths, *terms, "--round", "r2")
    assert "is not what was agreed (lac)" in refused(*sketch(place, 0, *terms, "--score", "aps"))


def test_altered_terms_are_refused_by_whoever_pins_the_key(place):
    words = sketch(place, 0, "--terms", place / "round.toml")
    pinned = "--server-key", place / "server.key.pub"
    (place / "round.toml").write_text('round = "r1"\ngrid = "uniform:3"\n')
    invoke(*words)
    assert "not signed by the pinned key" in refused(*words, *pinned)
    (place / "round.toml.sig").unlink()
    assert "no such file" in refused(*words, *pinned)


@pytest.mark.parametrize(
    "text", ["x = 1", "round = 7", "epsilon = true", "round = ", "[[[", "\xff"]
)
def test_broken_terms_are_one_line(place, text):
    (place / "round.toml").write_text(text, encoding="latin-1")
    assert "\n" not in refused("terms", place / "round.toml")


def test_agreed_privacy_binds_too(place):
    pytest.importorskip("opendp")
    (place / "round.toml").write_text('round = "r1"\ngrid = "uniform:16"\nepsilon = 2.0\n')
    terms = "--terms", place / "round.toml"
    for k in range(3):
        invoke(*sketch(place, k, *terms, "--ledger", place / f"l{k}"))
    invoke(*sketch(place, 3, "--round", "r1", "--grid", "uniform:16"))
    paths = [place / f"{k}.json" for k in range(4)]
    invoke("calibrate", *paths, *terms, "--malicious", 0, "-o", place / "c.json")
    assert robfcp.Calibration.load(place / "c.json").federation.n_private == 3
