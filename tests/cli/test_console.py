"""All commands behave alike: help with examples that run, 80 columns, JSON or silence as asked."""

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
from makers import said
from typer.main import get_command

import robfcp
from robfcp.cli import COMMANDS, EXPERIMENTS, app, console

CALLS = {  # one of each command, and of what it does besides
    "demo": "demo -o out",
    "keygen": "keygen site-1 -o site-1.key",
    "terms": "terms round.toml",
    "report": "report site.npz --client site -o r.json",
    "collect": "collect reports -o clean.parquet",
    "calibrate": "calibrate reports --exactly 2",
    "predict": "predict calibration.json site.npz",
    "predict --letter": "predict --letter letter.json --local site.npz",
    "check": "check calibration.json site.npz",
    "monitor": "monitor calibration.json site.npz -c site --report e.json",
    "alarms": "alarms e-0.json -m 0",
    "show": "show calibration.json",
    "show --html": "show calibration.json --html page.html",
    "verify": "verify calibration.json",
    "verify log": "verify audit.jsonl",
    "train": "lab train heart --data-dir . --no-verify -o heart.npz",
    "reproduce": "lab reproduce",
    "simulate": "lab simulate site.npz --clients 10 --seeds 1",
    "redteam": "lab redteam site.npz --clients 10 --seeds 1 --attack coverage",
    "rivals": "lab rivals heart --workers 1 --attack coverage",
    "bench": "lab bench --clients 20 --samples 50 --repeat 1",
}
EVERY = {**COMMANDS, **EXPERIMENTS}
AT_ONCE = set(CALLS) - {"demo", "train", "redteam", "rivals", "show --html"}  # half a second


def output(words, *more):
    split = [m for word in shlex.split(words) for m in (sorted(glob.glob(word)) or [word])]
    printed: str = said(*split, *more)
    return printed


def of(name):
    """A command as it is typed."""
    return f"lab {name}" if name in EXPERIMENTS else name


def click_command(name):
    """A command with its options, as the shell sees it."""
    group: Any = get_command(app)
    return (group.get_command(None, "lab") if name in EXPERIMENTS else group).get_command(
        None, name
    )


assert {name.split()[0] for name in CALLS} == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_help_shows_examples_shared_options_and_at_most_ten_basics(name):
    text = output(f"{of(name)} --help")
    for words in (f"Example: robfcp {of(name)}", "--json", "--quiet", "-q"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
    panels = Counter(getattr(one, "rich_help_panel", None) for one in click_command(name).params)
    assert panels["Basics"] <= 10


LONG = {"demo", "simulate", "reproduce", "calibrate", "show", "redteam", "rivals"}  # tested too
SLOW = (  # minutes; the other example of each does the same on less
    "robfcp lab bench --clients 1000 --samples 500",
    "robfcp lab redteam mnist --share 0.4 --plot redteam.png",
    "robfcp lab redteam mnist --search 400 --clients 10 --beta 0.1 --share 0.4",
    "robfcp lab reproduce main benign -o out/paper",
    "robfcp lab rivals cifar10 pathmnist --clients 5 --seeds 50 -o field.csv",
)


@pytest.mark.parametrize("name", thorough(EVERY, *(set(EVERY) - LONG)))
def test_a_commands_examples_run(name, folder):
    examples = re.findall(r"\[dim\]Example: (.+?)\[/dim\]", click_command(name).help)
    assert len(examples) >= 2
    assert all(example.startswith(f"robfcp {of(name)} ") for example in examples)
    if name == "train":
        pytest.skip("needs the official data and torch; tests/experiments/test_training.py runs it")
    if name == "terms":
        output("keygen server -o server.key")
    for example in examples:
        if example not in SLOW:
            output(example.removeprefix("robfcp "))


@pytest.mark.parametrize("call", thorough(CALLS, *AT_ONCE))
def test_tables_fit_eighty_columns_json_is_json_and_quiet_is_silent(call, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output(CALLS[call])
    assert text.strip()
    assert max(len(line) for line in text.splitlines() if " " in line) <= 80
    again = [CALLS[call].replace("site-1", other) for other in ("site-2", "site-3")]
    assert json.loads(output(again[0], "--json"))
    assert output(again[1], "--quiet") == ""


def test_shells_complete_words():
    words = {"COMP_WORDS": "robfcp lab simulate --attack mimic-h", "COMP_CWORD": "4"}
    assert run(_ROBFCP_COMPLETE="complete_bash", **words).stdout.split() == ["mimic-high"]


def test_users_errors_are_one_line_with_their_exit_code_and_debug_shows_where():
    plain = run("show", "nowhere.json")
    assert plain.returncode == 1
    assert plain.stderr == "robfcp: nowhere.json: no such file; check the path\n"
    with pytest.raises(robfcp.RobfcpError, match="no such file"):
        run("--debug", "show", "nowhere.json")
    for words in (["show", "c.json", "--no-such-option"], ["unknown"], ["lab", "unknown"]):
        assert run(*words).returncode == 2
    assert robfcp.__version__ in run("--version").stdout


def test_the_installed_command_gives_a_shell_what_it_can_take(folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = "PYTHONIOENCODING=ascii robfcp report site.npz -c Žilina -o r.json"
    for words, first in (("robfcp calibrate --help | true", ""), (line, r"\u017dilina: 1200")):
        told: Any = {"capture_output": True, "text": True, "env": {**os.environ, "PATH": path}}
        done = subprocess.run(["sh", "-c", words], **told)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(first)


def test_what_is_wrong_inside_is_not_somebody_elses_text(monkeypatch):
    def broken(*_, **__):
        raise KeyError("some library's own words")

    monkeypatch.setattr("robfcp.cli.console.Printer.json", broken)
    line = run("lab", "reproduce").stderr
    assert line == "robfcp: internal error (KeyError); run with --debug to see where\n"


def test_json_holds_arrays_fractions_and_infinities_as_every_parser_reads_them():
    value = {"a": np.arange(2), "b": [np.float64("inf"), np.int64(3)], 4: "Ž"}
    assert console.json_text(value).isascii()
    assert json.loads(console.json_text(value)) == {"a": [0, 1], "b": [None, 3], "4": "Ž"}
