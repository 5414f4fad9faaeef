"""Install a built wheel into clean environments and use it from an empty folder.

python scripts/try_wheel.py dist/robfcp-*.whl [python3.10 python3.11 ...]

Nothing of the clone is on the path: what works here works for somebody who has only the wheel.
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
USE = """
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


def runs(python: str) -> bool:
    """Whether an interpreter of this name is there; some names lead nowhere."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def check_contents(wheel: Path) -> None:
    """The wheel is typed, has its licences and page, and no tests."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "robfcp/py.typed" in names, "the wheel does not say that it is typed"
    assert any(name.endswith("licenses/LICENSE") for name in names), "no licence"
    assert any(name.startswith("robfcp/page/assets/") for name in names), "no page"
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in names)


def try_with(python: str, wheel: Path) -> None:
    """Everything a new user does first, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        bin_folder = Path(folder, "venv", "Scripts" if os.name == "nt" else "bin")
        pip = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
        work = Path(folder, "work")
        work.mkdir()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        subprocess.run([bin_folder / "python", "-c", USE], cwd=work, env=clean, check=True)
        for command in COMMANDS:
            words = command.split()
            done = subprocess.run(
                [bin_folder / words[0], *words[1:]],
                cwd=work,
                env=clean,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{python}: {command}\n{done.stdout}{done.stderr}"
        for made in ("page.html", "sets.csv", "demo/page.html"):
            assert (work / made).stat().st_size, f"{python}: {made} is empty"
    print(f"{python}: {len(COMMANDS)} commands work from {wheel.name}")


if __name__ == "__main__":
    built = Path(sys.argv[1]).resolve()
    check_contents(built)
    wanted = sys.argv[2:] or [name for name in PYTHONS if runs(name)] or [sys.executable]
    for name in wanted:
        try_with(name, built)
