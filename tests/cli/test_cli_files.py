"""Files that are missing, broken or cannot be written: one line with a remedy, nothing written.

All commands and options of a file; messages of the system or of libraries are never printed.
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
    "calibrate reports -o o.json --registered-sizes {.json}",
    "calibrate reports -o o.json --round r --keys {.toml}",
    "calibrate reports -o o.json --round r --keys registry.toml --revoked {.txt}",
    "calibrate reports -o o.json --terms {.toml}",
    "calibrate reports -o o.json --previous {.json}",
    "calibrate reports -o o.json --trusted-data {.csv}",
    "predict --feedback feedback.json --local-data {.npz}",
    "predict {.json} site.npz",
    "predict calibration.json {.csv} -o o.csv",
    "predict calibration.json site.npz --server-key {.pub}",
    "evaluate {.json} site.npz",
    "evaluate calibration.json {.parquet}",
    "monitor {.json} site.npz",
    "monitor calibration.json site.npz --reference-report {.json}",
    "merge-alarms {.json} -m 0",
    "show {.json}",
    "show calibration.json --html o.html --history {.json}",
    "verify {.json}",
    "verify calibration.json --report {.json}",
    "verify {.jsonl}",
    "experiments train heart -o o.npz --data-dir {}",
    "experiments simulate {.npz} --n-runs 1 --n-clients 5 -o o.json",
    "experiments redteam {.csv} --n-runs 1 --n-clients 5 -o o.json",
]
OUTPUTS = [  # the same where a result would go
    "demo -o {}",
    "keygen site -o {.key}",
    "report site.npz -c a -o {.json}",
    "report site.npz -c a -o o.json --dp-epsilon 1 --ledger {.json}",
    "calibrate reports -o {.json}",
    "calibrate reports --html {.html}",
    "calibrate reports --feedback {}",
    "predict calibration.json site.npz -o {.csv}",
    "monitor calibration.json site.npz --state {.json}",
    "monitor calibration.json site.npz -c site-03 --report {.json}",
    "merge-alarms e-0.json -m 0 --step 1 --history {.json}",
    "collect reports -o {.parquet}",
    "verify calibration.json --audit {.jsonl}",
    "experiments train mnist --data-dir . -o o.npz --checkpoint {.st}",
    "experiments reproduce main --n-runs 1 --workers 1 -o out --page {.md}",
    "experiments simulate site.npz --n-runs 1 --n-clients 5 --plot {.png}",
    "experiments compare heart -o {.json}",
]
PATH_PATTERN = re.compile(r"\{(.*?)\}")


def command_of(call):
    return call.removeprefix("experiments ").split()[0]


ONE_CALL_EACH = {command_of(call): call for call in INPUTS}.values()


def call_with_path(call, filename):
    """Return a call with the path of the file under test, and that path."""
    path = filename + PATH_PATTERN.search(call)[1]
    return PATH_PATTERN.sub(lambda _: path, call), path


def contents(folder):
    """Return all files and folders with their contents."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def error_line(arguments, folder):
    """Return the error line of a call, which changes no file."""
    previous_contents = contents(folder)
    completed = run(*arguments.split())
    assert completed.returncode == 1, f"{arguments}: {completed.returncode} {completed.stderr}"
    (line,) = completed.stderr.splitlines()
    assert line.startswith("robfcp: ")
    assert ";" in line, f"no remedy: {line}"
    for foreign_text in ("internal error", "Errno", "Traceback", "Error:", "magic", "utf-8 codec"):
        assert foreign_text not in line
    assert contents(folder) == previous_contents, f"{arguments}: something was written"
    return line


def test_every_command_and_every_option_of_a_path_is_tested():
    tested = " ".join([*INPUTS, *OUTPUTS]).split()
    assert {*map(command_of, [*INPUTS, *OUTPUTS]), "bench"} == {*COMMANDS, *EXPERIMENTS}
    for name, path in {**COMMANDS, **EXPERIMENTS}.items():
        module, _, function = path.partition(":")
        command = _with_options(getattr(import_module(f"robfcp.cli.{module}"), function))
        for parameter in signature(command).parameters.values():
            kind, info = get_args(parameter.annotation)
            if Path in (kind, *get_args(kind)) and isinstance(info, OptionInfo):
                option = f"--{parameter.name.replace('_', '-')}"
                assert option in (*tested, "--output"), (name, option)


@pytest.mark.parametrize("call", INPUTS)
def test_a_missing_or_broken_file_is_an_error_of_one_line(call, folder):
    arguments, name = call_with_path(call, "file")
    assert name in error_line(arguments, folder)
    Path(name).write_bytes(np.random.default_rng(1).bytes(300))
    error_line(arguments, folder)


@pytest.mark.parametrize("call", thorough(INPUTS, *ONE_CALL_EACH))
def test_a_folder_instead_of_a_file_is_an_error_of_one_line(call, folder):
    Path("afolder").mkdir()
    assert "afolder" in error_line(PATH_PATTERN.sub("afolder", call), folder)


@pytest.mark.parametrize("call", OUTPUTS)
@pytest.mark.parametrize("path", thorough(["site.npz/x", "/proc/x"], "site.npz/x"))
def test_a_path_that_cannot_be_written_is_refused_before_the_work(call, path, folder, monkeypatch):
    def unexpected_work(*_, **__):
        raise AssertionError("the work has begun")

    # A module imported later would keep the function that replaces another here.
    for function_path in [*COMMANDS.values(), *EXPERIMENTS.values()]:
        import_module(f"robfcp.cli.{function_path.partition(':')[0]}")
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
        monkeypatch.setattr(f"robfcp.{name}", unexpected_work)
    assert path.removesuffix("/x") in error_line(call_with_path(call, path)[0], folder)


REPORT = "report {} -c a -o o.json".format
PERMISSION_DENIED = PermissionError(errno.EACCES, "Permission denied", "a.json")
DISK_FULL = OSError(errno.ENOSPC, "No space")
DISK_FAILED = OSError(errno.EIO, "Input/output error", "share/x.json")


@pytest.mark.parametrize(
    ("arguments", "function_path", "error", "message"),
    [
        (REPORT("site.npz"), "os.fsync", DISK_FULL, "o.json: cannot be written (the disk is"),
        (
            REPORT("site.npz"),
            "robfcp.cli.client.read_outputs",
            DISK_FAILED,
            "(the disk does not answer); ",
        ),
        (
            REPORT("own.parquet"),
            "pyarrow.parquet.ParquetFile",
            PERMISSION_DENIED,
            "you have no permission",
        ),
        ("show calibration.json", "os.open", PERMISSION_DENIED, "you have no permission"),
    ],
)
def test_errors_of_the_system_are_one_line(
    arguments, function_path, error, message, folder, monkeypatch
):
    def raise_error(*_, **__):
        raise error

    Path("own.parquet").write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(function_path, raise_error)
        completed = run(*arguments.split())
    (line,) = completed.stderr.splitlines()
    assert (completed.returncode, line[:8]) == (1, "robfcp: ")
    assert message in line
    assert not Path("o.json").exists()


@pytest.mark.parametrize(
    "arguments", [call for call in OUTPUTS if "--plot" in call or "--eps" in call]
)
def test_a_missing_library_is_an_error_before_the_work(arguments, folder, monkeypatch):
    for library in ("matplotlib", "opendp"):
        monkeypatch.setitem(sys.modules, library, None)
    extra = "figures" if "--plot" in arguments else "privacy"
    assert f"pip install 'robfcp[{extra}]'" in error_line(call_with_path(arguments, "o")[0], folder)


def test_broken_e_value_reports_are_not_counted_as_silent(folder):
    Path("bad.json").write_text("{")
    line = error_line("merge-alarms bad.json -m 0", folder)
    assert "only 0 of 1 reports are valid but the quorum is 1 (first fault: " in line
    assert "the quorum is 2" in error_line("merge-alarms e-0.json bad.json -m 0 --quorum 2", folder)
    assert (
        '"has_alarm": false'
        in run(*["merge-alarms", "e-0.json", "bad.json", "-m", "0", "--json"]).stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("calibrate site.npz", "is a table, not a report; make one of it first: robfcp report"),
        ("predict site-03.json site.npz", "is a site's report, not a calibration; pass a file"),
        (
            "predict site.npz --feedback feedback.json",
            "needs the client's samples; pass --local-data",
        ),
        (
            "predict calibration.json site.npz --feedback feedback.json",
            "contains its calibration; pass the outputs alone",
        ),
        ("predict --local-data site.npz", "calibration: is missing; name one, or this"),
        ("verify e-0.json", "is a monitor's e-value report, not a calibration"),
        ("show feedback.json", "is a site's letter; robfcp verify says what it tells"),
        ("show RECORD", "is a calibration's record, not a calibration"),
        ("monitor calibration.json own.csv --state calibration.json", "not a monitor's state"),
    ],
)
def test_the_error_names_the_kind_of_a_wrong_file(arguments, message, folder):
    record = next(folder.glob("*.record.json")).name
    assert message in error_line(arguments.replace("RECORD", record), folder)
