"""Files that are missing, broken or cannot be written: one line with a remedy, nothing written.

Every command, every option that names a file: what the system or a library says never shows.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from effort import thorough
from in_process import Done, run
from typer.models import OptionInfo

from robfcp.cli import COMMANDS, LAB, _with_options

INPUTS = {  # the words of a call with {} where the file under test stands, and its ending
    "terms": ("terms {}", ".toml"),
    "terms --sign": ("terms round.toml --sign {}", ".key"),
    "terms --server-key": ("terms round.toml --server-key {}", ".pub"),
    "report csv": ("report {} -c a -o o.json", ".csv"),
    "report npz": ("report {} -c a -o o.json", ".npz"),
    "report npy": ("report {} -c a -o o.json", ".npy"),
    "report parquet": ("report {} -c a -o o.json", ".parquet"),
    "report --terms": ("report s0.npz -c a -o o.json --terms {}", ".toml"),
    "report --sign": ("report s0.npz -c a -o o.json --round r --sign {}", ".key"),
    "collect": ("collect {} -o reports", ".json"),
    "calibrate": ("calibrate {} -o o.json", ".json"),
    "calibrate --sizes": ("calibrate reports -o o.json --sizes {}", ".json"),
    "calibrate --keys": ("calibrate reports -o o.json --round r --keys {}", ".toml"),
    "calibrate --revoked": (
        "calibrate reports -o o.json --round r --keys registry.toml --revoked {}",
        ".txt",
    ),
    "calibrate --terms": ("calibrate reports -o o.json --terms {}", ".toml"),
    "calibrate --previous": ("calibrate reports -o o.json --previous {}", ".json"),
    "calibrate --alarms": ("calibrate reports -o o.json --previous c.json --alarms {}", ".json"),
    "calibrate --sign": ("calibrate reports -o o.json --sign {}", ".key"),
    "predict --letter": ("predict s0.npz --letter {} --local s0.npz", ".json"),
    "predict --local": ("predict --letter letters/s0.json --local {}", ".npz"),
    "predict letter": ("predict {} --letter letters/s0.json --local s0.npz -o o.csv", ".csv"),
    "predict": ("predict {} s0.npz", ".json"),
    "predict data": ("predict c.json {} -o o.csv", ".csv"),
    "predict --server-key": ("predict c.json s0.npz --server-key {}", ".pub"),
    "check": ("check {} s0.npz", ".json"),
    "check data": ("check c.json {} -o o.json", ".parquet"),
    "check --local": ("check letters/s0.json s0.npz --local {}", ".npz"),
    "monitor": ("monitor {} s0.npz", ".json"),
    "monitor data": ("monitor c.json {}", ".csv"),
    "monitor --own": ("monitor c.json s0.npz --own {}", ".json"),
    "monitor --sign": ("monitor c.json s0.npz -c s0 --round r --report o.json --sign {}", ".key"),
    "alarms": ("alarms {} -m 0", ".json"),
    "alarms --keys": ("alarms e.json -m 0 --round r --keys {}", ".toml"),
    "show": ("show {}", ".json"),
    "show --html": ("show {} --html o.html", ".json"),
    "show --history": ("show c.json --html o.html --history {}", ".json"),
    "show --record": ("show c.json --record {}", ".json"),
    "verify": ("verify {}", ".json"),
    "verify record": ("verify c.json {}", ".json"),
    "verify --report": ("verify c.json --report {}", ".json"),
    "verify log": ("verify {}", ".jsonl"),
    "train": ("lab train heart -o o.npz --data-dir {}", ""),
    "simulate": ("lab simulate {} --seeds 1 --clients 5 -o o.json", ".npz"),
    "redteam": ("lab redteam {} --seeds 1 --clients 5 -o o.json", ".csv"),
}
OUTPUTS = {  # the same with {} where a result would go
    "demo": ("demo -o {}", ""),
    "keygen": ("keygen site -o {}", ".key"),
    "report": ("report s0.npz -c a -o {}", ".json"),
    "report --ledger": ("report s0.npz -c a -o o.json --epsilon 1 --ledger {}", ".json"),
    "calibrate": ("calibrate reports -o {}", ".json"),
    "calibrate --html": ("calibrate reports --html {}", ".html"),
    "calibrate --letters": ("calibrate reports --letters {}", ""),
    "calibrate --audit": ("calibrate reports --audit {}", ".jsonl"),
    "predict --local": ("predict s0.npz --letter letters/s0.json --local s0.npz -o {}", ".csv"),
    "predict": ("predict c.json s0.npz -o {}", ".csv"),
    "check": ("check c.json s0.npz -o {}", ".json"),
    "monitor --state": ("monitor c.json s0.npz --state {}", ".json"),
    "monitor --report": ("monitor c.json s0.npz -c s0 --report {}", ".json"),
    "monitor --plot": ("monitor c.json s0.npz --plot {}", ".png"),
    "monitor --html": ("monitor c.json s0.npz --html {}", ".html"),
    "alarms": ("alarms e.json -m 0 -o {}", ".json"),
    "alarms --history": ("alarms e.json -m 0 --step 1 --history {}", ".json"),
    "alarms --html": ("alarms e.json -m 0 --step 1 --history o.json --html {}", ".html"),
    "collect": ("collect reports -o {}", ""),
    "show": ("show c.json -o {}", ".json"),
    "show --html": ("show c.json --html {}", ".html"),
    "show --plot": ("show c.json --plot {}", ".png"),
    "verify --audit": ("verify c.json --audit {}", ".jsonl"),
    "train": ("lab train heart --data-dir . -o {}", ".npz"),
    "train --checkpoint": ("lab train mnist --data-dir . -o o.npz --checkpoint {}", ".st"),
    "reproduce": ("lab reproduce main --seeds 1 --workers 1 -o {}", ""),
    "reproduce --page": ("lab reproduce main --seeds 1 --workers 1 -o out --page {}", ".md"),
    "simulate": ("lab simulate s0.npz --seeds 1 --clients 5 -o {}", ".json"),
    "simulate --plot": ("lab simulate s0.npz --seeds 1 --clients 5 --plot {}", ".png"),
    "redteam": ("lab redteam s0.npz --seeds 1 --clients 5 -o {}", ".json"),
    "redteam --plot": ("lab redteam s0.npz --seeds 1 --clients 5 --plot {}", ".png"),
}
WITHOUT_FILES = {"bench"}


def command_of(words: str) -> str:
    return words.removeprefix("lab ").split()[0]


ONE_EACH = {command_of(words): call for call, (words, _) in INPUTS.items()}.values()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A whole federation in files, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("federation")
    before = Path.cwd()
    os.chdir(folder)
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(4, 0.3), 1200)
    labels = (probabilities.cumsum(axis=1) > rng.random((1200, 1))).argmax(axis=1)
    for k, rows in enumerate(np.array_split(np.arange(1200), 6)):
        np.savez(f"s{k}.npz", probabilities=probabilities[rows], labels=labels[rows])
        done(f"report s{k}.npz -c s{k} --round r -o reports/s{k}.json")
    done("calibrate reports -o c.json --letters letters --promise pac --liars 1")
    done("monitor c.json s0.npz -s m.json -c s0 --report e.json --round r --step 1")
    registry = done("keygen s0 -o s0.key").stdout
    Path("registry.toml").write_text(registry, encoding="utf-8")
    Path("round.toml").write_text('round = "r"\n', encoding="utf-8")
    yield folder
    os.chdir(before)


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may change, as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def done(words: str) -> Done:
    found = run(*words.split())
    assert found.returncode == 0, found.stderr
    return found


def contents(folder: Path) -> dict[str, bytes | None]:
    """All files and folders with what they hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(words: str, name: str, folder: Path) -> str:
    """The one line of a call that is refused and leaves everything as it was."""
    before = contents(folder)
    found = run(*(word.replace("{}", name) for word in words.split()))
    assert found.returncode == 1, f"{words} {name}: {found.returncode} {found.stderr}"
    (line,) = found.stderr.splitlines()
    assert line.startswith("robfcp: ")
    assert ";" in line, f"no remedy: {line}"
    for foreign in ("internal error", "Errno", "Traceback", "Error:", "magic", "utf-8 codec"):
        assert foreign not in line
    assert contents(folder) == before, f"{words} {name}: something was written"
    return line


def test_every_command_that_takes_files_is_tried() -> None:
    tried = {command_of(words) for words, _ in [*INPUTS.values(), *OUTPUTS.values()]}
    assert tried | WITHOUT_FILES == {*COMMANDS, *LAB}


def test_every_option_that_names_a_place_is_tried() -> None:
    tried = " ".join(words for words, _ in [*INPUTS.values(), *OUTPUTS.values()]).split()
    for name, home in {**COMMANDS, **LAB}.items():
        command = _with_options(getattr(import_module(f"robfcp.cli.{home}"), name))
        for one in signature(command).parameters.values():
            kind, info = get_args(one.annotation)
            if Path in (kind, *get_args(kind)) and isinstance(info, OptionInfo):
                option = f"--{one.name.replace('_', '-')}"
                assert option in (*tried, "--output", "--record"), (name, option)


@pytest.mark.parametrize("call", INPUTS)
def test_a_file_that_is_not_there_is_one_line(call: str, folder: Path) -> None:
    words, ending = INPUTS[call]
    line = refused(words, f"nowhere{ending}", folder)
    assert f"nowhere{ending}" in line


@pytest.mark.parametrize("call", thorough(INPUTS, *ONE_EACH))
def test_a_folder_in_place_of_a_file_is_one_line(call: str, folder: Path) -> None:
    words, _ = INPUTS[call]
    (folder / "afolder").mkdir()
    assert "afolder" in refused(words, "afolder", folder)


@pytest.mark.parametrize("call", INPUTS)
def test_a_broken_file_is_one_line(call: str, folder: Path) -> None:
    words, ending = INPUTS[call]
    noise = np.random.default_rng(1).integers(0, 256, 300, dtype=np.uint8).tobytes()
    (folder / f"bad{ending}").write_bytes(noise)
    refused(words, f"bad{ending}", folder)


@pytest.mark.parametrize("call", thorough(INPUTS, *ONE_EACH))
def test_a_file_that_may_not_be_read_is_one_line(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, ending = INPUTS[call]
    if not ending:
        pytest.skip("a folder of data")
    locked = folder / f"locked{ending}"
    locked.write_bytes(b"x" * 40)
    before = contents(folder)
    deny_reading(monkeypatch, locked.name)
    found = run(*(word.replace("{}", locked.name) for word in words.split()))
    monkeypatch.undo()
    assert found.returncode == 1, found.stderr
    (line,) = found.stderr.splitlines()
    assert "you have no permission" in line
    assert locked.name in line
    assert contents(folder) == before


def deny_reading(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The system refuses this file, as it would anybody but root."""
    real_open, real_io = os.open, Path.open

    def os_open(path: object, *words: object, **options: object) -> int:
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *words, **options)  # type: ignore[arg-type]

    def path_open(self: Path, *words: object, **options: object) -> object:
        if self.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_io(self, *words, **options)  # type: ignore[call-overload]

    def parquet(path: Path) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", os_open)
    monkeypatch.setattr(Path, "open", path_open)
    monkeypatch.setattr(Path, "read_bytes", lambda self: path_open(self, "rb").read())  # type: ignore[attr-defined]
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", parquet)


@pytest.mark.parametrize("call", OUTPUTS)
@pytest.mark.parametrize("place", thorough(["s0.npz/x", "/proc/x"], "s0.npz/x"))
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    call: str, place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    for name in (
        "cli.site.read_outputs",
        "cli.server.run",
        "federation.Federation.read",
        "cli.server.verify_calibration",
        "cli.watch.read_alarms",
        "cli.show.write_page",
        "calibration.what_if.what_if",
        "cli.demo.stroke_story",
        "lab.simulation.simulate",
        "lab.redteam.redteam",
        "lab.paper.reproduce",
        "lab.datasets.load_sites",
        "lab.datasets.load",
    ):
        monkeypatch.setattr(f"robfcp.{name}", work)
    words, ending = OUTPUTS[call]
    assert place.removesuffix("/x") in refused(words, f"{place}{ending}", folder)


def test_a_full_disk_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    line = refused("report s0.npz -c a -o {}", "o.json", folder)
    assert line == "robfcp: o.json: cannot be written (the disk is full); choose another place"


def test_what_the_system_refuses_anywhere_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "share/x.json")

    monkeypatch.setattr("robfcp.cli.watch.ThresholdOptions.read", gone)
    line = refused("check {} s0.npz", "c.json", folder)
    assert line.startswith("robfcp: share/x.json: cannot be used (the disk does not answer); ")


def test_broken_e_reports_alone_do_not_pass_for_silence(folder: Path) -> None:
    (folder / "bad.json").write_text("{", encoding="utf-8")
    line = refused("alarms {} -m 0", "bad.json", folder)
    assert "only 0 of 1 e-reports are valid but the quorum is 1 (first fault: " in line
    assert "the quorum is 2" in refused("alarms e.json {} -m 0 --quorum 2", "bad.json", folder)
    assert "faulty" in done("alarms e.json bad.json -m 0").stdout
    assert json.loads(done("alarms e.json bad.json -m 0 --json").stdout)["alarm"] is False


def test_revoked_keys_without_a_registry_are_refused(folder: Path) -> None:
    (folder / "revoked.txt").write_text("", encoding="utf-8")
    assert "--keys" in refused("calibrate reports --revoked {}", "revoked.txt", folder)


@pytest.mark.parametrize(
    "call", ["monitor --plot", "show --plot", "simulate --plot", "redteam --plot"]
)
def test_a_figure_without_matplotlib_is_refused_before_the_work(
    call: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words, _ = OUTPUTS[call]
    assert "pip install 'robfcp[figures]'" in refused(words, "figure.png", folder)


def test_a_private_report_that_cannot_be_made_is_not_paid_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opendp", None)
    words, _ = OUTPUTS["report --ledger"]
    assert "pip install 'robfcp[privacy]'" in refused(words, "spent.json", folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "calibrate s0.npz",
            "s0.npz: is a table, not a report; make one of it first: robfcp report",
        ),
        ("alarms s0.npz -m 0", "s0.npz: is a table, not a report"),
        ("predict reports/s0.json s0.npz", "is a site's report, not a calibration; pass a file"),
        ("show reports/s0.json", "is a site's report, not a calibration"),
        ("verify e.json", "is a monitor's e-report, not a calibration"),
        ("show c.record.json", "is a calibration's record, not a calibration"),
        ("monitor c.json s0.npz --state c.json", "is a calibration, not a monitor's state"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(words: str, said: str, folder: Path) -> None:
    assert said in refused(words, "", folder)
