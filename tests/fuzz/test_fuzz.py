"""Hostile files, rounds and requests end in an answer or in one line; no escape, no costly case."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")
import robfcp
from fuzz.cases import run_case

RUN = Path(__file__).with_name("run.py")
FRAMEWORKS = {"flower": "flwr", "nvflare": "nvflare.apis"}  # which other targets do not need


@pytest.mark.parametrize(
    ("target", "n_cases", "seed"),
    [
        ("files", 25, 7),
        ("loopback", 10, 3),
        pytest.param("files", 30_000, 0, marks=pytest.mark.slow),
        pytest.param("flower", 16, 3, marks=pytest.mark.flower),
        pytest.param("nvflare", 10, 3, marks=pytest.mark.nvflare),
    ],
)
def test_nothing_escapes(target, n_cases, seed):
    """In a process of its own, which limits its memory; `make fuzz` does the same for longer."""
    if target in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[target])
    command = [sys.executable, RUN, target, "--cases", str(n_cases), "--seed", str(seed)]
    timeout = 120 if n_cases < 100 else 1800
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{n_cases} cases, seed {seed}: 0 escapes" in done.stdout


class OneKind:
    """A target whose cases all do the same."""

    case_kinds = ("only",)
    max_seconds = 5.0
    clock = staticmethod(time.monotonic)

    def __init__(self, action):
        self.action = action

    def run_case(self, kind, rng):
        self.action()


def accept():
    pass


def refuse():
    raise robfcp.RobfcpError("site-1: counts: is missing; send it")


def fail():
    raise KeyError("counts")


@pytest.mark.parametrize(
    ("action", "outcome", "escaped"),
    [
        (accept, "read", False),
        (refuse, "refused", False),
        (fail, "ESCAPE KeyError: 'counts'", True),
    ],
)
def test_what_is_neither_an_answer_nor_a_refusal_escapes(action, outcome, escaped):
    result = run_case(OneKind(action), 0, np.random.default_rng(0))
    assert (result.outcome, result.escaped) == (outcome, escaped)


def test_a_case_that_takes_too_long_escapes():
    target = OneKind(lambda: time.sleep(0.1))
    target.max_seconds = 0.05
    result = run_case(target, 0, np.random.default_rng(0))
    assert result.outcome.startswith("COST")
    assert result.escaped
