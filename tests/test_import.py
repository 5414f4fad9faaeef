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
    code = "import time; a = time.process_time(); import {}; print(time.process_time() - a)"
    pairs = [(run(code.format("numpy")), run(code.format("robfcp"))) for _ in range(7)]
    numpy, ours = (min(float(pair[side][0]) for pair in pairs) for side in (0, 1))
    assert ours <= 3 * numpy


def test_every_public_name_exists():
    for name in robfcp.__all__:
        assert getattr(robfcp, name) is not None
    assert set(robfcp.__all__) <= set(dir(robfcp))
    assert not hasattr(robfcp, "nonsense")
