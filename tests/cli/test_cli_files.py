"""Files that are missing, broken or cannot be written: one line with a remedy, nothing written.

Every command, every option that names a file: what the system or a library says never shows.
"""

import errno
import re
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from effort import thorough
from in_process import run
from typer.models import OptionInfo

from robfcp.cli import COMMANDS, EXPERIMENTS, _with_options

INPUTS = [  # calls, with the file under test in braces, by its ending
    "terms {.toml}",
    "terms round.toml --sign {.key}",
    "report {.csv} -c a -o o.json",
    "collect {.json} -o o.parquet",
    "calibrate reports -o o.json --sizes {.json}",
    "calibrate reports -o o.json --round r --keys {.toml}",
    "calibrate reports -o o.json --round r --keys registry.toml --revoked {.txt}",
    "calibrate reports -o o.json --terms {.toml}",
    "calibrate reports -o o.json --previous {.json}",
    "calibrate reports -o o.json --anchor {.csv}",
    "predict --letter letter.json --local {.npz}",
    "predict {.json} site.npz",
    "predict calibration.json {.csv} -o o.csv",
    "predict calibration.json site.npz --server-key {.pub}",
    "check {.json} site.npz",
    "check calibration.json {.parquet}",
    "monitor {.json} site.npz",
    "monitor calibration.json site.npz --own {.json}",
    "alarms {.json} -m 0",
    "show {.json}",
    "show calibration.json --html o.html --history {.json}",
    "verify {.json}",
    "verify calibration.json --report {.json}",
    "verify {.jsonl}",
    "lab train heart -o o.npz --data-dir {}",
    "lab simulate {.npz} --seeds 1 --clients 5 -o o.json",
    "lab redteam {.csv} --seeds 1 --clients 5 -o o.json",
]
OUTPUTS = [  # the same where a result would go
    "demo -o {}",
    "keygen site -o {.key}",
    "report site.npz -c a -o {.json}",
    "report site.npz -c a -o o.json --epsilon 1 --ledger {.json}",
    "calibrate reports -o {.json}",
    "calibrate reports --html {.html}",
    "calibrate reports --letters {}",
    "predict calibration.json site.npz -o {.csv}",
    "monitor calibration.json site.npz --state {.json}",
    "monitor calibration.json site.npz -c site-03 --report {.json}",
    "alarms e-0.json -m 0 --step 1 --history {.json}",
    "collect reports -o {.parquet}",
    "verify calibration.json --audit {.jsonl}",
    "lab train mnist --data-dir . -o o.npz --checkpoint {.st}",
    "lab reproduce main --seeds 1 --workers 1 -o out --page {.md}",
    "lab simulate site.npz --seeds 1 --clients 5 --plot {.png}",
    "lab rivals heart -o {.json}",
]
PLACE = re.compile(r"\{(.*?)\}")


def command_of(call):
    return call.removeprefix("lab ").split()[0]


ONE_EACH = {command_of(call): call for call in INPUTS}.values()


def named(call, name):
    """The words of a call with the file under test, and what that is called."""
    place = name + PLACE.search(call)[1]
    return PLACE.sub(lambda _: place, call), place


def contents(folder):
    """All files and folders with what they hold."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(words, folder):
    """The one line of a call that is refused and leaves everything as it was."""
    before = contents(folder)
    found = run(*words.split())
    assert found.returncode == 1, f"{words}: {found.returncode} {found.stderr}"
    (line,) = found.stderr.splitlines()
    assert line.startswith("robfcp: ")
    assert ";" in line, f"no remedy: {line}"
    for foreign in ("internal error", "Errno", "Traceback", "Error:", "magic", "utf-8 codec"):
        assert foreign not in line
    assert contents(folder) == before, f"{words}: something was written"
    return line


def test_every_command_and_every_option_that_names_a_place_is_tried():
    tried = " ".join([*INPUTS, *OUTPUTS]).split()
    assert {*map(command_of, [*INPUTS, *OUTPUTS]), "bench"} == {*COMMANDS, *EXPERIMENTS}
    for name, home in {**COMMANDS, **EXPERIMENTS}.items():
        module, _, function = home.partition(":")
        command = _with_options(getattr(import_module(f"robfcp.cli.{module}"), function))
        for one in signature(command).parameters.values():
            kind, info = get_args(one.annotation)
            if Path in (kind, *get_args(kind)) and isinstance(info, OptionInfo):
                option = f"--{one.name.replace('_', '-')}"
                assert option in (*tried, "--output"), (name, option)


@pytest.mark.parametrize("call", INPUTS)
def test_a_file_that_is_missing_or_broken_is_one_line(call, folder):
    words, name = named(call, "file")
    assert name in refused(words, folder)
    Path(name).write_bytes(np.random.default_rng(1).bytes(300))
    refused(words, folder)


@pytest.mark.parametrize("call", thorough(INPUTS, *ONE_EACH))
def test_a_folder_in_a_files_place_is_one_line(call, folder):
    Path("afolder").mkdir()
    assert "afolder" in refused(PLACE.sub("afolder", call), folder)


@pytest.mark.parametrize("call", OUTPUTS)
@pytest.mark.parametrize("place", thorough(["site.npz/x", "/proc/x"], "site.npz/x"))
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    call, place, folder, monkeypatch
):
    def work(*_, **__):
        raise AssertionError("the work has begun")

    # A module imported later would keep what is put in the place of a function here.
    for home in [*COMMANDS.values(), *EXPERIMENTS.values()]:
        import_module(f"robfcp.cli.{home.partition(':')[0]}")
    for name in (
        "cli.show.sensitivity",
        "cli.client.read_outputs",
        "cli.prediction.read_outputs",
        "cli.demo.stroke_fault_scenario",
        "cli.monitoring.read_e_value_reports",
        "cli.server.verify_calibration",
        "cli.server.run_round",
        "cli.show.write_html",
        "experiments.datasets.load",
        "experiments.paper.reproduce",
        "experiments.redteam.full_comparison",
        "experiments.redteam.redteam",
        "experiments.simulation.simulate",
        "federation.Federation.from_files",
    ):
        monkeypatch.setattr(f"robfcp.{name}", work)
    assert place.removesuffix("/x") in refused(named(call, place)[0], folder)


REPORT = "report {} -c a -o o.json".format
DENIED = PermissionError(errno.EACCES, "Permission denied", "a.json")
FULL = OSError(errno.ENOSPC, "No space")
DOWN = OSError(errno.EIO, "Input/output error", "share/x.json")


@pytest.mark.parametrize(
    ("words", "place", "error", "said"),
    [
        (REPORT("site.npz"), "os.fsync", FULL, "o.json: cannot be written (the disk is"),
        (
            REPORT("site.npz"),
            "robfcp.cli.client.read_outputs",
            DOWN,
            "(the disk does not answer); ",
        ),
        (REPORT("own.parquet"), "pyarrow.parquet.ParquetFile", DENIED, "you have no permission"),
        ("show calibration.json", "os.open", DENIED, "you have no permission"),
    ],
)
def test_what_the_system_refuses_is_one_line(words, place, error, said, folder, monkeypatch):
    def fails(*_, **__):
        raise error

    Path("own.parquet").write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(place, fails)
        found = run(*words.split())
    (line,) = found.stderr.splitlines()
    assert (found.returncode, line[:8]) == (1, "robfcp: ")
    assert said in line
    assert not Path("o.json").exists()


@pytest.mark.parametrize("words", [call for call in OUTPUTS if "--plot" in call or "--eps" in call])
def test_what_a_library_is_missing_for_is_refused_before_the_work(words, folder, monkeypatch):
    for library in ("matplotlib", "opendp"):
        monkeypatch.setitem(sys.modules, library, None)
    extra = "figures" if "--plot" in words else "privacy"
    assert f"pip install 'robfcp[{extra}]'" in refused(named(words, "o")[0], folder)


def test_broken_e_reports_alone_do_not_pass_for_silence(folder):
    Path("bad.json").write_text("{")
    line = refused("alarms bad.json -m 0", folder)
    assert "only 0 of 1 reports are valid but the quorum is 1 (first fault: " in line
    assert "the quorum is 2" in refused("alarms e-0.json bad.json -m 0 --quorum 2", folder)
    assert '"alarm": false' in run(*["alarms", "e-0.json", "bad.json", "-m", "0", "--json"]).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("calibrate site.npz", "is a table, not a report; make one of it first: robfcp report"),
        ("predict site-03.json site.npz", "is a site's report, not a calibration; pass a file"),
        ("predict site.npz --letter letter.json", "needs its samples; pass --local"),
        ("predict calibration.json site.npz --letter letter.json", "name no other one, only"),
        ("predict --local site.npz", "calibration: is missing; name one, or this"),
        ("verify e-0.json", "is a monitor's e-report, not a calibration"),
        ("show letter.json", "is a site's letter; robfcp verify says what it tells"),
        ("show RECORD", "is a calibration's record, not a calibration"),
        ("monitor calibration.json own.csv --state calibration.json", "not a monitor's state"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(words, said, folder):
    record = next(folder.glob("*.record.json")).name
    assert said in refused(words.replace("RECORD", record), folder)
