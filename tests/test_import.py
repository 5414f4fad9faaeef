"""`import robfcp` is light, and the public surface is what it says."""

import subprocess
import sys

import robfcp

HEAVY = ("scipy.stats", "sklearn", "matplotlib", "torch", "flwr", "pandas", "typer", "rich")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_loads_nothing_heavy():
    names = run("import robfcp, sys; print(*sys.modules)")
    assert not [name for name in names if name.startswith(HEAVY)]


def test_calibrating_loads_nothing_heavy_either():
    names = run(
        "import robfcp, sys, numpy as np\n"
        "s = np.random.default_rng(0).random((9, 50))\n"
        "r = [robfcp.Report.from_scores(str(k), v, score=robfcp.LAC()) for k, v in enumerate(s)]\n"
        "robfcp.calibrate(r).predict_set(np.array([[0.3, 0.7]]))\n"
        "print(*sys.modules)"
    )
    assert not [name for name in names if name.startswith(HEAVY)]


def test_importing_costs_at_most_three_times_numpy():
    code = "import time; a = time.perf_counter(); import {}; print(time.perf_counter() - a)"
    numpy = min(float(run(code.format("numpy"))[0]) for _ in range(5))
    ours = min(float(run(code.format("robfcp"))[0]) for _ in range(5))
    assert ours <= 3 * numpy


def test_every_public_name_exists():
    for name in robfcp.__all__:
        assert getattr(robfcp, name) is not None
    assert set(robfcp.__all__) <= set(dir(robfcp))
    assert not hasattr(robfcp, "nonsense")
