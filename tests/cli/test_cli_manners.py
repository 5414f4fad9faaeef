"""All commands behave alike: help with an example, 80 columns, JSON or silence as asked."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from in_process import run
from rich.console import Console
from typer.testing import CliRunner

import robfcp
from robfcp.cli import COMMANDS, _common, app

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
    robfcp.calibrate(reports, malicious=1).save(tmp_path / "c.json")
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
}


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


@pytest.mark.parametrize("command", QUICK)
def test_tables_fit_eighty_columns(command: str, folder: Path) -> None:
    text = output(QUICK[command])
    assert text.strip()
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", QUICK)
def test_json_prints_json_only(command: str, folder: Path) -> None:
    assert json.loads(output([*QUICK[command], "--json"]))


@pytest.mark.parametrize("command", QUICK)
def test_quiet_prints_nothing(command: str, folder: Path) -> None:
    assert output([*QUICK[command], "--quiet"]) == ""


@pytest.mark.parametrize(
    ("command", "option", "typed", "offered"),
    [
        ("calibrate", "guarantee", "pac", ["pac", "pac-homogeneous"]),
        ("calibrate", "defence", "", ["consensus", "band", "rob-fcp", "rob-fcp-released", "none"]),
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
