"""Write a software bill of materials (CycloneDX 1.5 JSON) from what is installed, without network.

python scripts/sbom.py [EXTRA ...] > robfcp.cdx.json
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

ROOT = "robfcp"


def canonical(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(found: Distribution, extras: set[str]) -> set[str]:
    """The names a distribution requires, with these extras; other markers are not looked at."""
    names = set()
    for line in found.requires or ():
        text, _, marker = line.partition(";")
        wanted = re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if not wanted or extras & set(wanted):
            name = re.match(r"[A-Za-z0-9._-]+", text)
            if name:
                names.add(canonical(name.group()))
    return names


def closure(extras: set[str]) -> dict[str, tuple[Distribution, set[str]]]:
    """Every installed distribution that ROOT needs, with what each needs itself."""
    found: dict[str, tuple[Distribution, set[str]]] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
        needs = requirements(package, extras if name == ROOT else set())
        found[name] = (package, needs)
        waiting += needs
    return found


def component(name: str, package: Distribution) -> dict[str, Any]:
    """One entry of the bill."""
    meta = package.metadata
    licence = meta.get("License-Expression") or meta.get("License") or ""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}@{package.version}",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
    if licence and len(licence) < 80:
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def bill(extras: set[str]) -> dict[str, Any]:
    """The bill of materials, the vendored chart library included."""
    found = closure(extras)
    parts = {name: component(name, package) for name, (package, _) in sorted(found.items())}
    root = parts.pop(ROOT)
    chart = {
        "type": "library",
        "bom-ref": "uplot-vendored",
        "name": "uPlot",
        "description": "inside robfcp/page/assets/uplot",
        "licenses": [{"license": {"id": "MIT"}}],
    }
    needs = {
        name: sorted(parts[n]["bom-ref"] for n in wanted if n in parts)
        for name, (_, wanted) in found.items()
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**root, "type": "application"}},
        "components": [*parts.values(), chart],
        "dependencies": [
            {
                "ref": root["bom-ref"] if name == ROOT else parts[name]["bom-ref"],
                "dependsOn": needs[name] + (["uplot-vendored"] if name == ROOT else []),
            }
            for name in sorted(found)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(bill(set(sys.argv[1:])), indent=2))
