"""Hostile files, rounds and requests end in an answer or in one line; no escape, no costly case."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize(
    ("what", "cases", "seed"),
    [
        ("files", 25, 7),
        ("loopback", 10, 3),
        pytest.param("files", 30_000, 0, marks=pytest.mark.slow),
        pytest.param("flower", 16, 3, marks=pytest.mark.flower),
        pytest.param("nvflare", 10, 3, marks=pytest.mark.nvflare),
    ],
)
def test_nothing_escapes(what, cases, seed):
    """In a process of its own, which limits its memory; `make fuzz` does the same for longer."""
    pytest.importorskip({"flower": "flwr", "nvflare": "nvflare.apis"}.get(what, "robfcp"))
    words = [sys.executable, str(SCRIPT), what, "--cases", str(cases), "--seed", str(seed)]
    limits = {"timeout": 120 if cases < 100 else 1800, "check": False, "cwd": SCRIPT.parents[1]}
    done = subprocess.run(words, capture_output=True, text=True, **limits)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{cases} cases, seed {seed}: 0 escapes" in done.stdout
