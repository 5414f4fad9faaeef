"""All commands behave alike: help with an example, 80 columns, JSON or silence as asked."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import thorough
from in_process import run
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import robfcp
from robfcp.calibration import AuditLog, log_round
from robfcp.cli import COMMANDS, LazyCommands, _common, app, main
from robfcp.defence.rob_fcp import METRICS
from robfcp.lab.attacks import ATTACKS

RUNNER = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports with long names, a calibration and a table to predict from, made once."""
    tmp_path = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(4, 0.3), 1200)
    labels = (probabilities.cumsum(axis=1) > rng.random((1200, 1))).argmax(axis=1)
    np.savez(tmp_path / "site.npz", probabilities=probabilities, labels=labels)
    score = robfcp.LAC()
    reports = []
    for k, rows in enumerate(np.array_split(np.arange(1200), 12)):
        scores = np.zeros(100) if k == 3 else score(probabilities[rows], labels[rows])
        name = f"the-hospital-with-the-very-long-name-{k}"
        reports.append(robfcp.Report.from_scores(name, scores, score=score))
        reports[-1].save(tmp_path / f"report-{k}.json")
    calibration = robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=1))
    calibration.save(tmp_path / "c.json")
    robfcp.calibration.save_letters(calibration, tmp_path / "letters")
    log_round(AuditLog(tmp_path / "audit.jsonl"), calibration, {})
    watch = robfcp.Monitor(calibration, client=reports[0].client)
    watch.update(probabilities, labels)
    watch.e_report("spring", 1).save(tmp_path / "e-0.json")
    (tmp_path / "round.toml").write_text('round = "spring"\n', encoding="utf-8")
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        table = rng.integers(0, 5, (60, 14))
        rows = "\n".join(",".join(map(str, row)) for row in table.tolist())
        (tmp_path / f"processed.{name}.data").write_text(rows, encoding="utf-8")
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change, as the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


QUICK = {
    "keygen": ["keygen", "site-1", "-o", "site-1.key"],
    "sketch": ["sketch", "site.npz", "--client", "site", "-o", "r.json"],
    "calibrate": [
        "calibrate",
        *(f"report-{k}.json" for k in range(12)),
        *("--malicious", "2", "--exclude", "exactly"),
    ],
    "predict": ["predict", "c.json", "site.npz"],
    "check": ["check", "c.json", "site.npz"],
    "monitor": ["monitor", "c.json", "site.npz", "-c", "site", "--report", "e.json"],
    "report": ["report", "c.json", "-o", "page.html"],
    "certify": ["certify", "c.json"],
    "simulate": ["simulate", "site.npz", "--clients", "10", "--seeds", "1"],
    "redteam": ["redteam", "site.npz", "--clients", "10", "--seeds", "1", "--attack", "coverage"],
    "bench": ["bench", "--clients", "20", "--samples", "50", "--repeat", "1"],
    "reproduce": ["reproduce"],
    "demo": ["demo", "-o", "out"],
    "terms": ["terms", "round.toml"],
    "localise": ["localise", "letters/the-hospital-with-the-very-long-name-1.json", "site.npz"],
    "alarms": ["alarms", "e-0.json", "-m", "0"],
    "page": ["page", "c.json", "-o", "page.html"],
    "verify": ["verify", "c.json"],
    "audit": ["audit", "audit.jsonl"],
    "train": ["train", "heart", "--data-dir", ".", "--no-verify", "-o", "heart.npz"],
}


AT_ONCE = set(QUICK) - {"demo", "train", "redteam", "report"}  # half a second and more each time


def test_every_command_has_its_manners_tested() -> None:
    assert set(QUICK) - {"report"} == set(COMMANDS)


def click_command(name: str) -> Any:
    """A command with its options, as the shell sees it."""
    group = get_command(app)
    assert isinstance(group, LazyCommands)
    return group.get_command(None, name)


def output(arguments: list[str]) -> str:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_the_options_all_commands_share(command: str) -> None:
    text = output([command, "--help"])
    assert f"Example: robfcp {command}" in text
    for option in ("--json", "--quiet", "-q"):
        assert option in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", thorough(QUICK, *AT_ONCE))
def test_tables_fit_eighty_columns(command: str, folder: Path) -> None:
    text = output(QUICK[command])
    assert text.strip()
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", thorough(QUICK, *AT_ONCE))
def test_tables_fit_sixty_columns_and_break_no_word(
    command: str, made: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = CliRunner(env={"COLUMNS": "60", "TERM": "dumb"}).invoke(app, QUICK[command])
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if " " in line) <= 60  # a digest is one word
    assert "…" not in result.stdout
    monkeypatch.chdir(shutil.copytree(made, folder / "again"))
    wide = CliRunner(env={"COLUMNS": "250", "TERM": "dumb"}).invoke(app, QUICK[command])
    assert wide.exit_code == 0
    broken = words_of(wide.stdout) - words_of(result.stdout)
    assert broken == set(), "words are broken at sixty columns"


def words_of(text: str) -> set[str]:
    """The words of an output, without lines and figures; those of more than a line left out."""
    plain = re.sub(r"ed25519:\S+", "", text)
    return {word for word in re.findall(r"[A-Za-z]{3,}", plain) if len(word) < 20}


@pytest.mark.parametrize("command", thorough(QUICK, *AT_ONCE))
def test_json_prints_json_only(command: str, folder: Path) -> None:
    assert json.loads(output([*QUICK[command], "--json"]))


@pytest.mark.parametrize("command", thorough(QUICK, *AT_ONCE))
def test_quiet_prints_nothing(command: str, folder: Path) -> None:
    assert output([*QUICK[command], "--quiet"]) == ""


@pytest.mark.parametrize(
    ("command", "option", "typed", "offered"),
    [
        ("calibrate", "guarantee", "pa", ["pac"]),
        ("calibrate", "defence", "", ["consensus", "rob-fcp", "rob-fcp-released", "none"]),
        ("simulate", "attack", "mimic-h", ["mimic-high"]),
        ("sketch", "score", "la", ["lac"]),
    ],
)
def test_shells_complete_words(command: str, option: str, typed: str, offered: list[str]) -> None:
    words = f"robfcp {command} --{option} {typed}"
    asked = {"_ROBFCP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    assert run(**asked).stdout.split() == offered


def test_the_installed_command_completes_words_too() -> None:
    asked = {"_ROBFCP_COMPLETE": "complete_bash", "COMP_WORDS": "robfcp sketch --score la"}
    done = subprocess.run(
        [Path(sys.executable).parent / "robfcp"],
        capture_output=True,
        text=True,
        env={**os.environ, **asked, "COMP_CWORD": "3"},
    )
    assert done.stdout.split() == ["lac"]


def test_user_errors_are_one_line_and_debug_shows_where() -> None:
    plain = run("page", "nowhere.json")
    assert plain.returncode == 1
    assert plain.stderr == "robfcp: nowhere.json: no such file; check the path\n"
    with pytest.raises(robfcp.RobfcpError, match="no such file"):
        run("--debug", "page", "nowhere.json")


def test_the_old_name_of_a_command_works_and_names_the_new_one() -> None:
    old = run("report", "nowhere.json")
    assert old.returncode == 1
    assert old.stderr.splitlines()[0].startswith("robfcp: the command report is now called page")
    commands = run("--help").stdout.partition("Commands")[2]
    assert not [line for line in commands.splitlines() if line.split()[1:2] == ["report"]]


def test_wrong_usage_exits_with_two() -> None:
    assert run("page", "c.json", "--no-such-option").returncode == 2


def test_a_closed_pipe_is_no_error_message() -> None:
    command = f"{sys.executable} -m robfcp calibrate --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_names_in_other_letters_are_said_where_the_pipe_has_only_ascii(folder: Path) -> None:
    words = ["-m", "robfcp", "sketch", "site.npz", "--client", "Žilina", "-o", "r.json"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\\u017dilina: 1200 scores")


class Terminal(io.StringIO):
    """A stream that says somebody looks."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("wait", "seen"), [(0.0, False), (0.3, True)])
def test_a_bar_shows_only_when_it_takes_long(
    wait: float, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_common, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(sys, "stderr", Terminal())
    printer = _common.Printer()
    printer.errors = Console(file=Terminal(), force_terminal=True)
    with printer.busy("working"):
        time.sleep(wait)
    assert ("working" in printer.errors.file.getvalue()) is seen  # type: ignore[attr-defined]
    assert os.environ.get("ROBFCP_DEBUG") is None


def test_tables_too_wide_for_a_terminal_lie_on_their_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = ["defence", "coverage", "set size", "worst class", "false alarms"]
    _common.Printer().table("figures", names, [["undefended", 0.9, 2, 0.8, 1]])
    said = capsys.readouterr().out
    for word in ("undefended", "coverage", "alarms"):
        assert word in said
    assert max(map(len, said.splitlines())) <= 40
    words = ["incomprehensibilities", "uncharacteristically", "x"]
    _common.Printer().table("words", words, [["a", "b", "c"]])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_what_is_wrong_inside_is_not_somebody_elses_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise KeyError("some library's own words")

    monkeypatch.setattr("robfcp.cli.app", broken)
    with pytest.raises(SystemExit, match="1"):
        main()
    said = capsys.readouterr().err
    assert said == "robfcp: internal error (KeyError); run with --debug to see where\n"


OUTPUTS = {
    "sketch": [*QUICK["sketch"][:-1]],
    "predict": [*QUICK["predict"], "-o"],
    "check": [*QUICK["check"], "-o"],
    "certify": [*QUICK["certify"], "-o"],
    "page": ["page", "c.json", "-o"],
    "calibrate": [*QUICK["calibrate"], "--html"],
    "monitor": ["monitor", "c.json", "site.npz", "-c", "site", "--report"],
    "keygen": ["keygen", "site-1", "-o"],
    "simulate": [*QUICK["simulate"], "-o"],
    "redteam": [*QUICK["redteam"], "-o"],
}
ENDING = {"predict": ".csv", "keygen": ".key", "page": ".html", "calibrate": ".html"}


@pytest.mark.parametrize("command", OUTPUTS)
def test_output_folders_are_made(command: str, folder: Path) -> None:
    name = "r" + ENDING.get(command, ".json")
    output([*OUTPUTS[command], f"new/deep/{name}"])
    assert (folder / "new" / "deep" / name).stat().st_size


@pytest.mark.parametrize("command", OUTPUTS)
def test_outputs_that_cannot_be_written_are_refused_before_the_work(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    for place in ("_data.read_outputs", "_local.read_outputs", "sketch.read_outputs"):
        monkeypatch.setattr(f"robfcp.cli.{place}", work)
    for place in ("predict.read_outputs", "redteam.run", "simulate.run", "calibrate.run"):
        monkeypatch.setattr(f"robfcp.cli.{place}", work)
    name = "r" + ENDING.get(command, ".json")
    result = RUNNER.invoke(app, [*OUTPUTS[command], f"site.npz/{name}"])
    assert isinstance(result.exception, robfcp.RobfcpError), result.exception
    assert "site.npz" in str(result.exception)


def test_figures_of_an_unknown_kind_are_refused_before_the_work(folder: Path) -> None:
    for words in (QUICK["redteam"], QUICK["simulate"], QUICK["certify"]):
        result = RUNNER.invoke(app, [*words, "--plot", "figure.doc"])
        assert isinstance(result.exception, robfcp.RobfcpError)
        assert str(result.exception) == "figure.doc: cannot write .doc; use .png, .svg or .pdf"
    result = RUNNER.invoke(app, [*QUICK["predict"], "-o", str(folder)])
    assert "cannot write this; use .csv or .npy" in str(result.exception)
    (folder / "sets.csv").mkdir()
    result = RUNNER.invoke(app, [*QUICK["predict"], "-o", "sets.csv"])
    assert str(result.exception) == "sets.csv: is a folder; name a file in it"


def test_ctrl_c_keeps_what_redteam_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from robfcp.lab import redteam as lab

    real, calls = lab.verdicts, []

    def interrupted(*words: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(lab, "verdicts", interrupted)
    words = ["redteam", "site.npz", "--clients", "10", "--seeds", "1", "--share", "0.2"]
    for attack in ("coverage", "efficiency", "gaussian"):
        words += ["--attack", attack]
    result = RUNNER.invoke(app, [*words, "-o", "cells.json"])
    assert result.exit_code == 130
    kept = json.loads((folder / "cells.json").read_text())
    assert {cell["attack"] for cell in kept} == {"coverage", "efficiency"}
    assert "the 2 of 3 attacks that had a run" in " ".join(result.output.split())
    calls[:] = [1, 1]
    assert RUNNER.invoke(app, words).exit_code == 130


CHOICES = {
    ("sketch", "--score"): (
        "lac",
        "aps",
        "raps",
        "saps",
        "ordinal-aps",
        "absolute-residual",
        "cqr",
    ),
    ("sketch", "--grid"): ("default", "extended", "open-ended", "uniform:BINS", "logistic:BINS"),
    ("sketch", "--neighbours"): ("substitution", "add-remove"),
    ("sketch", "--risk"): ("fnr", "miss-rate"),
    ("calibrate", "--defence"): ("rob-fcp", "none"),
    ("calibrate", "--exclude"): ("outstanding", "exactly"),
    ("calibrate", "--guarantee"): ("marginal", "pac"),
    ("calibrate", "--by"): ("class", "group"),
    ("calibrate", "--mix"): ("uniform", "any"),
    ("calibrate", "--distance"): METRICS,
    ("simulate", "--attack"): tuple(ATTACKS),
    ("simulate", "--score"): ("lac", "aps", "raps", "saps", "ordinal-aps"),
    ("simulate", "--malicious"): ("known", "estimate"),
    ("simulate", "--exclude"): ("outstanding", "exactly"),
    ("simulate", "--sites"): ("artificial", "natural"),
    ("redteam", "--attack"): tuple(ATTACKS),
    ("redteam", "--defence"): ("none", "rob-fcp"),
    ("simulate", "--defence"): ("none", "rob-fcp"),
    ("train", "--aggregation"): ("mean", "median", "trimmed-mean", "multi-krum"),
    ("train", "--device"): ("auto", "cpu", "cuda"),
    ("demo", "--engine"): ("none", "flower"),
    ("demo", "--data"): ("pathmnist", "mnist"),
}


@pytest.mark.parametrize(("command", "option"), CHOICES)
def test_help_lists_what_an_option_accepts(command: str, option: str) -> None:
    single = click_command(command)
    (found,) = [one for one in single.params if option in one.opts]
    said = set(re.findall(r"[\w-]+(?::BINS)?", found.help or ""))
    assert set(CHOICES[command, option]) <= said, found.help
