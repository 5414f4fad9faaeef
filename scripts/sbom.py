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
MAX_LICENSE_LENGTH = 80  # longer ones are whole texts, not names
UPLOT = {  # the vendored chart library
    "type": "library",
    "bom-ref": "uplot-vendored",
    "name": "uPlot",
    "description": "inside robfcp/page/assets/uplot",
    "licenses": [{"license": {"id": "MIT"}}],
}


def canonical_name(name: str) -> str:
    """Return a package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_names(package: Distribution, extras: set[str]) -> set[str]:
    """Return the names that a package requires with these extras; other markers are ignored."""
    names = set()
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        marker_extras = re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        is_required = not marker_extras or extras & set(marker_extras)
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if is_required and name:
            names.add(canonical_name(name.group()))
    return names


def installed_packages(extras: set[str]) -> dict[str, tuple[Distribution, set[str]]]:
    """Return every installed distribution that ROOT needs, with the names that each requires."""
    packages: dict[str, tuple[Distribution, set[str]]] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in packages:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
        required = required_names(package, extras if name == ROOT else set())
        packages[name] = (package, required)
        waiting += required
    return packages


def component(name: str, package: Distribution) -> dict[str, Any]:
    """Return the entry of one package."""
    metadata = package.metadata
    license_name = metadata.get("License-Expression") or metadata.get("License") or ""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}@{package.version}",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
    if license_name and len(license_name) < MAX_LICENSE_LENGTH:
        entry["licenses"] = [{"license": {"name": license_name}}]
    return entry


def bill_of_materials(extras: set[str]) -> dict[str, Any]:
    """Return the bill of materials, with the vendored chart library."""
    packages = installed_packages(extras)
    components = {}
    for name in sorted(packages):
        package, _ = packages[name]
        components[name] = component(name, package)

    dependencies = []
    for name, entry in components.items():
        _, required = packages[name]
        references = sorted(
            components[other_name]["bom-ref"]
            for other_name in required
            if other_name in components and other_name != ROOT
        )
        if name == ROOT:
            references.append(UPLOT["bom-ref"])
        dependencies.append({"ref": entry["bom-ref"], "dependsOn": references})

    root_component = components.pop(ROOT)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**root_component, "type": "application"}},
        "components": [*components.values(), UPLOT],
        "dependencies": dependencies,
    }


if __name__ == "__main__":
    print(json.dumps(bill_of_materials(set(sys.argv[1:])), indent=2))
