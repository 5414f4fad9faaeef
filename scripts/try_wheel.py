"""Install a built wheel into clean environments and use it from an empty folder.

python scripts/try_wheel.py dist/robfcp-*.whl [python3.10 python3.11 ...]

Nothing of the clone is on the path, so that this is what a user gets who has only the wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")
SCRIPT = """
import sys
import numpy as np
import robfcp
assert not {"sklearn", "matplotlib", "torch", "flwr", "scipy.stats"} & set(sys.modules)
rng = np.random.default_rng(0)
p = rng.dirichlet(np.full(3, 0.5), 900)
y = (p.cumsum(axis=1) > rng.random((900, 1))).argmax(axis=1)
for k in range(3):
    rows = np.column_stack([p[k::3], y[k::3]])
    np.savetxt(f"site-{k}.csv", rows, delimiter=",", header="p0,p1,p2,label", comments="")
print(robfcp.__version__, robfcp.LAC()(p, y).mean())
"""
COMMANDS = (
    "robfcp --version",
    "robfcp report site-0.csv -c a -o reports/a.json",
    "robfcp report site-1.csv -c b -o reports/b.json",
    "robfcp report site-2.csv -c c -o reports/c.json",
    "robfcp calibrate reports -o calibration.json --html page.html",
    "robfcp predict calibration.json site-0.csv -o sets.csv",
    "robfcp show calibration.json --json",
    "robfcp demo -o demo",
)
WRITTEN_FILES = ("page.html", "sets.csv", "demo/page.html")


def is_interpreter(python: str) -> bool:
    """Return whether an interpreter of this name runs; some names are links to nothing."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def check_contents(wheel: Path) -> None:
    """Check that the wheel is typed, has its licenses and page, and no tests."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "robfcp/py.typed" in names, "the wheel does not say that it is typed"
    assert any(name.endswith("licenses/LICENSE") for name in names), "no license"
    assert any(name.startswith("robfcp/page/assets/") for name in names), "no page"
    assert "robfcp/json_schemas/report.json" in names, "no JSON Schemas"
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in names)


def try_wheel(python: str, wheel: Path) -> None:
    """Install the wheel and run a user's first commands in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        bin_folder = Path(folder, "venv", "Scripts" if os.name == "nt" else "bin")
        pip = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
        work = Path(folder, "work")
        work.mkdir()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        subprocess.run([bin_folder / "python", "-c", SCRIPT], cwd=work, env=environment, check=True)
        for command in COMMANDS:
            program, *arguments = command.split()
            result = subprocess.run(
                [bin_folder / program, *arguments],
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert result.returncode == 0, f"{python}: {command}\n{result.stdout}{result.stderr}"
        for name in WRITTEN_FILES:
            assert (work / name).stat().st_size, f"{python}: {name} is empty"
    print(f"{python}: {len(COMMANDS)} commands work from {wheel.name}")


if __name__ == "__main__":
    wheel = Path(sys.argv[1]).resolve()
    check_contents(wheel)
    pythons = sys.argv[2:]
    if not pythons:
        pythons = [python for python in PYTHONS if is_interpreter(python)]
    for python in pythons or [sys.executable]:
        try_wheel(python, wheel)
