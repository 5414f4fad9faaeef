"""Every command's help ends with two examples, and they run as printed."""

from __future__ import annotations

import glob
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from effort import thorough
from typer.testing import CliRunner

import robfcp
from robfcp.cli import COMMANDS, app

SLOW = (  # minutes; the other example of each does the same on less
    "robfcp bench --clients 1000 --samples 500",
    "robfcp redteam mnist --share 0.4 --plot redteam.png",
    "robfcp reproduce main benign -o out/paper",
)
ELSEWHERE = {"train": "needs the official data and torch; tests/lab/test_training.py runs it"}


LONG = {"demo", "simulate", "reproduce", "calibrate", "certify", "page"}  # their own tests run too
QUICK = set(COMMANDS) - LONG


def shown(name: str) -> list[str]:
    """The examples in a command's help."""
    command: Any = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    return re.findall(r"\[dim\]Example: (.+?)\[/dim\]", command.help)


def table(path: Path, probabilities: Any, labels: Any, **columns: Any) -> None:
    """Model outputs as a site would export them."""
    names = [*(f"p{c}" for c in range(probabilities.shape[1])), "label", *columns]
    rows = np.column_stack([probabilities, labels, *columns.values()])
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whatever the examples name: reports, a calibration, a letter, tables, keys, a log."""
    here = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(4, 0.3), 3000)
    y = (p.cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    (here / "reports").mkdir()
    score, reports = robfcp.LAC(), []
    for k, rows in enumerate(np.array_split(np.arange(2000), 20)):
        report = robfcp.Report.from_scores(
            f"site-{k + 1:02d}", score(p[rows], y[rows]), score=score, labels=y[rows], classes=4
        )
        report.save(here / "reports" / f"{report.client}.json")
        reports.append(report)
    calibration = robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=1))
    calibration.save(here / "calibration.json")
    calibration.letter("site-03").save(here / "letter.json")
    own = slice(200, 300)
    for name in ("own", "site-3"):
        table(here / f"{name}.csv", p[own], y[own])
    table(here / "fresh.csv", p[2000:2400], y[2000:2400], night=np.arange(400) % 2)
    for name, start in (("test", 2400), ("new", 2600), ("monday", 2800)):
        table(here / f"{name}.csv", p[start : start + 200], y[start : start + 200])
    (here / "round.toml").write_text('round = "r1"\nmodel = "v3"\n')
    run(here, "keygen server -o server.key")
    run(here, "calibrate reports/*.json --audit audit.jsonl")
    for k in (1, 2, 3):
        words = f"--client site-{k:02d} --round r1 --step 1 --report e-{k}.json --state m{k}.json"
        run(here, f"monitor calibration.json monday.csv {words}")
    run(here, "alarms e-*.json -m 1 --step 1 --history alarms.json")
    return here


def run(here: Path, words: str) -> Any:
    """One command line in a folder, wildcards expanded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        split = shlex.split(words)
        arguments = [match for word in split for match in (sorted(glob.glob(word)) or [word])]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{words}: {result.output}{result.exception}"
    return result


@pytest.mark.parametrize("name", thorough(COMMANDS, *QUICK))
def test_a_commands_examples_run(name: str, folder: Path, tmp_path: Path) -> None:
    examples = shown(name)
    assert len(examples) == 2
    assert all(example.startswith(f"robfcp {name} ") for example in examples)
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    for made in (
        ("server.key", "server.key.pub", "alarms.json") if name in ("keygen", "alarms") else ()
    ):
        (here / made).unlink(missing_ok=True)
    for example in examples:
        if example not in SLOW:
            run(here, example.removeprefix("robfcp "))
