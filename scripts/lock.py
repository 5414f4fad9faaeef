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


def resolved(extra: str) -> list[tuple[str, str, str]]:
    """(name, version, sha256) of everything an installation with the extra would fetch."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), f"{ROOT}[{extra}]"]
        subprocess.run(command, check=True)
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = []
    for entry in entries:
        hashes = entry["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            meta = entry["metadata"]
            found.append((meta["name"].lower(), meta["version"], hashes["sha256"]))
    return sorted(found)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "dev"
    print(
        f"# Written by scripts/lock.py {chosen}; for Python {sys.version_info[0]}."
        f"{sys.version_info[1]} on {sys.platform}."
    )
    for name, version, digest in resolved(chosen):
        print(f"{name}=={version} --hash=sha256:{digest}")
