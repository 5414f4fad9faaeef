"""Hostile files of every kind are read or refused in one line; no escape, no costly case."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


def fuzz(cases, seed, script=SCRIPT, seconds=60):
    """What the script prints, in a process of its own: it limits its memory."""
    done = subprocess.run(
        [sys.executable, str(script), str(cases), str(seed)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=SCRIPT.parents[1],
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert ": 0 escapes" in done.stdout


def test_some_hostile_files_of_every_kind():
    fuzz(60, 7)


@pytest.mark.slow
def test_thirty_thousand_hostile_files_of_every_kind():
    fuzz(30_000, 0, seconds=900)


@pytest.mark.flower
def test_some_hostile_rounds():
    if importlib.util.find_spec("flwr") is None:
        pytest.skip("needs flwr")
    fuzz(60, 3, SCRIPT.with_name("fuzz_flower.py"), 120)
