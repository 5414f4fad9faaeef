"""`import robfcp` is light, and the public surface is what it says."""

import subprocess
import sys

import pytest
from makers import beta_scores, outputs, reports_of, table

import robfcp

HEAVY = ("scipy.stats", "sklearn", "matplotlib", "torch", "flwr", "pandas", "typer", "rich")


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_neither_importing_nor_calibrating_loads_anything_heavy():
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
    pairs = [(run(code.format("numpy")), run(code.format("robfcp"))) for _ in range(3)]
    numpy, ours = (min(float(pair[side][0]) for pair in pairs) for side in (0, 1))
    assert ours <= 3 * numpy


def test_every_public_name_exists():
    for name in robfcp.__all__:
        assert getattr(robfcp, name) is not None
    assert set(robfcp.__all__) <= set(dir(robfcp))
    assert not hasattr(robfcp, "nonsense")


SITE = (
    "import sys\n"
    "before = set(sys.modules)\n"
    "from robfcp.cli import app\n"
    "app({!r}, standalone_mode=False)\n"
    "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    table(folder / "site.csv", *outputs(0, 1000, 4), names="abcd")
    robfcp.calibrate(reports_of(beta_scores(0, 3))).save(folder / "c.json")
    return folder


EXTRAS = {"scipy", "pandas", "sklearn", "matplotlib", "opendp", "cryptography", "pyarrow", "torch"}
AT_A_SITE = {"arguments", "cli", "errors", "files", "grid", "privacy", "report", "scores"}
TO_READ_A_CALIBRATION = {"calibration", "certificate", "metrics", "prediction"}


@pytest.mark.parametrize(
    ("arguments", "rooms"),
    [
        (["report", "site.csv", "--client", "a", "-o", "a.json"], AT_A_SITE),
        (["predict", "c.json", "site.csv", "-o", "s.csv"], AT_A_SITE | TO_READ_A_CALIBRATION),
    ],
    ids=["report", "predict"],
)
def test_a_site_loads_nothing_heavy_and_the_rooms_it_needs(arguments, rooms, site):
    done = subprocess.run(
        [sys.executable, "-c", SITE.format(arguments)], capture_output=True, text=True, cwd=site
    )
    assert done.returncode == 0, done.stderr
    names = done.stderr.split()
    assert not EXTRAS & {name.split(".")[0] for name in names}
    own = {name.split(".")[1] for name in names if name.startswith("robfcp.")}
    assert {room for room in own if not room.startswith("_")} == rooms
