"""All commands have help with examples that run, fit 80 columns, and print JSON or nothing."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import thorough
from in_process import run
from makers import command_output
from typer.main import get_command

import robfcp
from robfcp.cli import COMMANDS, EXPERIMENTS, app, console

CALLS = {  # of each command, and of its variants
    "demo": "demo -o out",
    "keygen": "keygen site-1 -o site-1.key",
    "terms": "terms round.toml",
    "report": "report site.npz --client site -o r.json",
    "collect": "collect reports -o clean.parquet",
    "calibrate": "calibrate reports --n-malicious 2",
    "predict": "predict calibration.json site.npz",
    "predict --feedback": "predict --feedback feedback.json --local-data site.npz",
    "evaluate": "evaluate calibration.json site.npz",
    "monitor": "monitor calibration.json site.npz -c site --report e.json",
    "merge-alarms": "merge-alarms e-0.json -m 0",
    "show": "show calibration.json",
    "show --html": "show calibration.json --html page.html",
    "verify": "verify calibration.json",
    "verify log": "verify audit.jsonl",
    "train": "experiments train heart --data-dir . --no-verify -o heart.npz",
    "reproduce": "experiments reproduce",
    "simulate": "experiments simulate site.npz --n-clients 10 --n-runs 1",
    "redteam": "experiments redteam site.npz --n-clients 10 --n-runs 1 --attack coverage",
    "compare": "experiments compare heart --workers 1 --attack coverage",
    "bench": "experiments bench --n-clients 20 --n-samples 50 --repeat 1",
}
ALL_COMMANDS = {**COMMANDS, **EXPERIMENTS}
QUICK_CALLS = set(CALLS) - {
    "demo",
    "train",
    "redteam",
    "compare",
    "show --html",
}  # take half a second


def output_of(call, *options):
    arguments = [
        path
        for argument in shlex.split(call)
        for path in (sorted(glob.glob(argument)) or [argument])
    ]
    printed: str = command_output(*arguments, *options)
    return printed


def typed_name(name):
    """Return a command as it is typed."""
    return f"experiments {name}" if name in EXPERIMENTS else name


def click_command(name):
    """Return a command with its options."""
    group: Any = get_command(app)
    return (group.get_command(None, "experiments") if name in EXPERIMENTS else group).get_command(
        None, name
    )


assert {name.split()[0] for name in CALLS} == set(ALL_COMMANDS)


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_help_shows_examples_shared_options_and_at_most_ten_basics(name):
    text = output_of(f"{typed_name(name)} --help")
    for expected in (f"Example: robfcp {typed_name(name)}", "--json", "--quiet", "-q"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80
    panels = Counter(
        getattr(parameter, "rich_help_panel", None) for parameter in click_command(name).params
    )
    assert panels["Basics"] <= 10


LONG_EXAMPLES = {
    "demo",
    "simulate",
    "reproduce",
    "calibrate",
    "show",
    "redteam",
    "compare",
}  # tested otherwise
SLOW_EXAMPLES = (  # take minutes; the other example of each command is similar
    "robfcp experiments bench --n-clients 1000 --n-samples 500",
    "robfcp experiments redteam mnist --malicious-fraction 0.4 --plot redteam.png",
    "robfcp experiments redteam mnist --search 400 --n-clients 10 --beta 0.1",
    "robfcp experiments reproduce main benign -o out/paper",
    "robfcp experiments compare cifar10 --n-clients 5 --n-runs 50 -o all.csv",
)


@pytest.mark.parametrize("name", thorough(ALL_COMMANDS, *(set(ALL_COMMANDS) - LONG_EXAMPLES)))
def test_the_examples_of_a_command_run(name, folder):
    examples = re.findall(r"\[dim\]Example: (.+?)\[/dim\]", click_command(name).help)
    assert len(examples) >= 2
    assert all(example.startswith(f"robfcp {typed_name(name)} ") for example in examples)
    if name == "train":
        pytest.skip("needs the official data and torch; tests/experiments/test_training.py runs it")
    if name == "terms":
        output_of("keygen server -o server.key")
    for example in examples:
        if example not in SLOW_EXAMPLES:
            output_of(example.removeprefix("robfcp "))


@pytest.mark.parametrize("call", thorough(CALLS, *QUICK_CALLS))
def test_tables_fit_eighty_columns_json_is_json_and_quiet_is_silent(call, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output_of(CALLS[call])
    assert text.strip()
    assert max(len(line) for line in text.splitlines() if " " in line) <= 80
    repeated_calls = [CALLS[call].replace("site-1", client) for client in ("site-2", "site-3")]
    assert json.loads(output_of(repeated_calls[0], "--json"))
    assert output_of(repeated_calls[1], "--quiet") == ""


def test_shells_complete_values():
    environment = {"COMP_WORDS": "robfcp experiments simulate --attack mimic-h", "COMP_CWORD": "4"}
    assert run(_ROBFCP_COMPLETE="complete_bash", **environment).stdout.split() == ["mimic-high"]


def test_user_errors_are_one_line_with_an_exit_code_and_debug_raises_them():
    completed = run("show", "nowhere.json")
    assert completed.returncode == 1
    assert completed.stderr == "robfcp: nowhere.json: no such file; check the path\n"
    with pytest.raises(robfcp.RobfcpError, match="no such file"):
        run("--debug", "show", "nowhere.json")
    for arguments in (
        ["show", "c.json", "--no-such-option"],
        ["unknown"],
        ["experiments", "unknown"],
    ):
        assert run(*arguments).returncode == 2
    assert robfcp.__version__ in run("--version").stdout


def test_the_installed_command_works_in_pipes_and_ascii_terminals(folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = "PYTHONIOENCODING=ascii robfcp report site.npz -c Žilina -o r.json"
    for command, expected_start in (
        ("robfcp calibrate --help | true", ""),
        (line, r"\u017dilina: 1200"),
    ):
        options: Any = {"capture_output": True, "text": True, "env": {**os.environ, "PATH": path}}
        completed = subprocess.run(["sh", "-c", command], **options)
        assert (completed.returncode, completed.stderr) == (0, "")
        assert completed.stdout.startswith(expected_start)


def test_internal_errors_show_no_foreign_message(monkeypatch):
    def raise_key_error(*_, **__):
        raise KeyError("a message of some library")

    monkeypatch.setattr("robfcp.cli.console.Printer.json", raise_key_error)
    error_line = run("experiments", "reproduce").stderr
    assert error_line == "robfcp: internal error (KeyError); run with --debug to see where\n"


def test_json_holds_arrays_fractions_and_infinities_as_every_parser_reads_them():
    value = {"a": np.arange(2), "b": [np.float64("inf"), np.int64(3)], 4: "Ž"}
    assert console.json_text(value).isascii()
    assert json.loads(console.json_text(value)) == {"a": [0, 1], "b": [None, 3], "4": "Ž"}
