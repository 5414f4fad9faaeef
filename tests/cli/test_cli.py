"""Files alone carry a federation; user errors are one line and exit code 1."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from in_process import run
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app, main

RUNNER = CliRunner()


def write_csv(path, n, seed, c=4, broken=False):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(c, 0.3), n)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    if broken:  # a site that claims to be certain and always right
        p = np.eye(c)[y]
    header = ",".join([f"p{j}" for j in range(c)] + ["label"])
    np.savetxt(path, np.column_stack([p, y]), delimiter=",", header=header, comments="")
    return p, y


def call(*words, code=0):
    """Run as `main` does: the exit code, stdout and the one line on stderr."""
    done = run(*words)
    assert done.returncode == code, done.stderr
    if code == 1:
        assert done.stderr.startswith("robfcp: ")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def invoke(*words):
    result = RUNNER.invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def sketched(tmp_path_factory):
    """Seven sites' tables and their reports, made once."""
    folder = tmp_path_factory.mktemp("sites")
    (folder / "reports").mkdir()
    for k in range(7):
        table, report = folder / f"site-{k}.csv", folder / "reports" / f"{k}.json"
        write_csv(table, 300, k, broken=k == 2)
        invoke("sketch", table, "--client", f"site-{k}", "-o", report)
    return folder


@pytest.fixture
def sites(sketched, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(sketched, tmp_path, dirs_exist_ok=True)


def reports(folder):
    return sorted((folder / "reports").glob("*.json"))


def test_sites_sketch_the_server_calibrates_a_site_predicts(sites):
    out = invoke("calibrate", *reports(sites), "-o", sites / "c.json")
    assert "left out  site-2" in out
    _, y = write_csv(sites / "test.csv", 500, 99)
    out = invoke(
        "predict", sites / "c.json", sites / "test.csv", "-o", sites / "sets.csv", "--json"
    )
    figures = json.loads(out)
    calibration = robfcp.Calibration.load(sites / "c.json")
    sets = calibration.predict_set(np.loadtxt(sites / "test.csv", delimiter=",", skiprows=1)[:, :4])
    assert figures["coverage"] == robfcp.metrics.coverage(sets, y)
    assert figures["set_size"] == robfcp.metrics.set_size(sets)
    lines = (sites / "sets.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[2]) for line in lines] == sets.sum(axis=1).tolist()
    assert [line.split(",")[0] for line in lines] == [str(row) for row in range(2, 502)]
    invoke("predict", sites / "c.json", sites / "test.csv", "-o", sites / "sets.npy", "-q")
    np.testing.assert_array_equal(np.load(sites / "sets.npy"), sets)


def test_json_says_what_the_file_says(sites):
    words = ["--malicious", "2", "--guarantee", "marginal", "--confidence", "0.8"]
    out = invoke(
        "calibrate",
        *reports(sites),
        *words,
        "--confidence",
        "0.9",
        "--json",
        "-o",
        sites / "c.json",
    )
    data = json.loads(out)
    calibration = robfcp.Calibration.load(sites / "c.json")
    assert [level["threshold"] for level in data["levels"]] == list(calibration.threshold)
    assert data["levels"][0]["certificate"]["lower"] == 0.8
    assert data["trusted"] == list(calibration.trusted)
    out = invoke("predict", sites / "c.json", sites / "site-0.csv", "--level", "1", "--json")
    assert json.loads(out)["coverage"] > 0.8


def test_faulty_reports_are_listed_and_the_round_goes_on(sites):
    (sites / "reports" / "x.json").write_text("{broken")
    with open(sites / "reports" / "y.json", "wb") as stream:
        stream.truncate(400 * 2**20)
    (sites / "reports" / "z.json").write_bytes((sites / "reports" / "0.json").read_bytes())
    out, _ = call("calibrate", *reports(sites), sites / "reports" / "absent.json", "--json")
    data = json.loads(out)
    assert len(data["faulty"]) == 3  # the copy of a report is that report
    assert data["n_clients"] == 7
    assert {fault["field"] for fault in data["faulty"]} == {"report", "file"}


def test_a_registry_decides_who_may_report(sites):
    (sites / "sizes.json").write_text(json.dumps({f"site-{k}": 300 for k in range(1, 9)}))
    out = invoke("calibrate", *reports(sites), "--sizes", sites / "sizes.json", "--json")
    data = json.loads(out)
    assert data["missing"] == ["site-7", "site-8"]
    assert [fault["client"] for fault in data["faulty"]] == ["site-0"]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": "x"}', '{"a": -1}'])
def test_a_broken_registry_is_refused(sites, text):
    (sites / "sizes.json").write_text(text)
    call("calibrate", *reports(sites), "--sizes", sites / "sizes.json", code=1)


def test_regression_runs_from_files_too(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(200, 2))
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", header="prediction,target", comments="")
    invoke(
        "sketch",
        tmp_path / "a.csv",
        "-c",
        "a",
        "-o",
        tmp_path / "r.json",
        "--score",
        "absolute-residual",
    )
    invoke("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json", "-q")
    out = invoke(
        "predict", tmp_path / "c.json", tmp_path / "a.csv", "-o", tmp_path / "i.csv", "--json"
    )
    assert 0.88 < json.loads(out)["coverage"] < 0.95
    assert (tmp_path / "i.csv").read_text().startswith("id,low,high\n2,")


@pytest.mark.parametrize("score", ["aps", "raps", "lac", "saps", "ordinal-aps"])
def test_every_score_and_grid_can_be_chosen(tmp_path, score):
    p, y = write_csv(tmp_path / "a.csv", 50, 0)
    np.savez(tmp_path / "a.npz", probabilities=p.astype(np.float16), labels=y)
    for grid in ([], ["--grid", "extended" if score in ("raps", "saps") else "uniform:50"]):
        for name in ("a.csv", "a.npz"):
            invoke(
                "sketch",
                tmp_path / name,
                "-c",
                "a",
                "-o",
                tmp_path / "r.json",
                "--score",
                score,
                *(["--no-randomized"] if score != "lac" else []),
                "--round",
                "3",
                "--model",
                "m",
                *grid,
            )
            assert robfcp.Report.load(tmp_path / "r.json").round == "3"


def test_wrong_input_is_one_line_and_exit_code_1(tmp_path):
    p, _ = write_csv(tmp_path / "good.csv", 5, 0)
    (tmp_path / "bad.csv").write_text("a,b,label\n0.5,0.6,0\n")
    (tmp_path / "ragged.csv").write_text("a,b,label\n0.5,0.5\n")
    (tmp_path / "words.csv").write_text("a,b,label\nx,y,z\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("a,b,label\n")
    (tmp_path / "nolabel.csv").write_text("a,b\n0.5,0.5\n")
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "bad.npz").write_text("no zip")
    np.savez(tmp_path / "odd.npz", stuff=p)
    for name in (
        "bad.csv",
        "ragged.csv",
        "words.csv",
        "empty.csv",
        "header.csv",
        "nolabel.csv",
        "x.txt",
        "bad.npz",
        "odd.npz",
        "absent.csv",
    ):
        result = RUNNER.invoke(
            app, ["sketch", str(tmp_path / name), "-c", "a", "-o", str(tmp_path / "r.json")]
        )
        assert isinstance(result.exception, robfcp.RobfcpError), name
        assert not (tmp_path / "r.json").exists()
    good = str(tmp_path / "good.csv")
    for words in (
        ["sketch", good, "-c", "a", "-o", str(tmp_path / "good.csv" / "r.json")],
        ["sketch", good, "-c", "a", "-o", str(tmp_path / "r.json"), "--score", "x"],
        ["sketch", good, "-c", "a", "-o", str(tmp_path / "r.json"), "--grid", "x"],
        ["calibrate", good, "--malicious", "x"],
        ["calibrate", good],
        ["predict", good, good],
    ):
        result = RUNNER.invoke(app, words)
        assert isinstance(result.exception, robfcp.RobfcpError), words


def test_predict_refuses_what_it_cannot_do(sites):
    invoke("calibrate", *reports(sites), "-o", sites / "c.json", "-q")
    np.save(sites / "p.npy", np.array([[0.5, 0.25, 0.25, 0.0]]))
    out = invoke("predict", sites / "c.json", sites / "p.npy", "--json")
    assert "coverage" not in json.loads(out)
    call("predict", sites / "c.json", sites / "p.npy", "-o", sites / "sets.doc", code=1)
    call("predict", sites / "c.json", sites / "p.npy", "--level", "3", code=1)


def test_wrong_usage_exits_2_and_help_shows_examples():
    call("calibrate", "--nonsense", code=2)
    call("unknown", code=2)
    assert "Example" in invoke("calibrate", "--help")
    assert robfcp.__version__ in invoke("--version")


def test_debug_shows_where_and_unexpected_errors_are_one_line(monkeypatch, capsys, tmp_path):
    call("--version")
    done = subprocess.run(
        [sys.executable, "-m", "robfcp", "--debug", "calibrate", "absent.json"],
        capture_output=True,
        text=True,
    )
    assert "Traceback" in done.stderr
    monkeypatch.setattr("robfcp.cli.app", lambda: 1 / 0)
    monkeypatch.delenv("ROBFCP_DEBUG", raising=False)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert "internal error (ZeroDivisionError" in capsys.readouterr().err


def test_bench_times_every_stage():
    out = invoke("bench", "--clients", 20, "--samples", 30, "--repeat", 1, "--json")
    seconds = json.loads(out)["seconds"]
    assert len(seconds) == 11
    assert min(seconds.values()) > 0
    call("bench", "--clients", 0, code=1)
