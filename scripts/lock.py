"""Write requirements with hashes from what pip's own resolver chooses on this platform.

python scripts/lock.py "dev" > requirements-dev.txt
pip install --require-hashes --no-deps -r requirements-dev.txt
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def resolve(extra: str) -> list[tuple[str, str, str]]:
    """Return (name, version, sha256) of all that an installation with the extra would fetch."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), f"{ROOT}[{extra}]"]
        subprocess.run(command, check=True)
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]

    packages = []
    for entry in entries:
        hashes = entry["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            metadata = entry["metadata"]
            packages.append((metadata["name"].lower(), metadata["version"], hashes["sha256"]))
    return sorted(packages)


if __name__ == "__main__":
    extra = sys.argv[1] if len(sys.argv) > 1 else "dev"
    python_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    print(f"# Written by scripts/lock.py {extra}; for Python {python_version} on {sys.platform}.")
    for name, version, digest in resolve(extra):
        print(f"{name}=={version} --hash=sha256:{digest}")
