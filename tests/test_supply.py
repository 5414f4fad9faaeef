"""Vendored, installed and packaged files are the reviewed ones."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robfcp

ROOT = Path(__file__).parents[1]
CHART_LIBRARY_DIGESTS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", CHART_LIBRARY_DIGESTS)
def test_the_vendored_chart_library_is_the_reviewed_one(name):
    data = (ROOT / "robfcp" / "page" / "assets" / "uplot" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == CHART_LIBRARY_DIGESTS[name]


def test_development_dependencies_have_hashes():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()[1:]
    assert len(lines) > 30
    for line in lines:
        assert re.fullmatch(r"[a-z0-9._-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line), line
    names = {line.split("==")[0] for line in lines}
    assert {"numpy", "scipy", "msgspec", "typer", "rich", "pytest", "cryptography"} <= names


def test_the_bill_of_materials_lists_what_is_installed():
    script = ROOT / "scripts" / "sbom.py"
    completed = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    bill_of_materials = json.loads(completed.stdout)
    assert bill_of_materials["bomFormat"] == "CycloneDX"
    assert bill_of_materials["metadata"]["component"]["name"] == "robfcp"
    components = {
        component["bom-ref"]: component["name"] for component in bill_of_materials["components"]
    }
    assert {"numpy", "scipy", "msgspec", "typer", "rich", "uPlot"} <= set(components.values())
    assert {
        reference for entry in bill_of_materials["dependencies"] for reference in entry["dependsOn"]
    } <= set(components)


def test_badges_agree_with_the_project():
    project = (ROOT / "pyproject.toml").read_text()
    badges = ROOT / "docs" / "images" / "badges"
    versions = re.findall(r"Python :: (3\.\d+)", project)
    assert " | ".join(versions) in (badges / "python.svg").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert ", ".join(f'"{version}"' for version in versions) in workflow
    min_coverage = re.findall(r"--cov-fail-under=(\d+)", (ROOT / "Makefile").read_text())[0]
    assert f"at least {min_coverage}%" in (badges / "coverage.svg").read_text()


def test_recipe_and_citation_agree_with_the_project():
    yaml, tomllib = pytest.importorskip("yaml"), pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    assert list(recipe) == [
        *("schema_version", "context", "package", "source", "build", "requirements", "tests"),
        "about",
    ]
    assert recipe["context"]["version"] == robfcp.__version__
    assert project["requires-python"] == f">={recipe['context']['python_min']}"
    names = [requirement.replace(" ", "") for requirement in recipe["requirements"]["run"]]
    assert names[1:] == project["dependencies"]
    allowed = {
        dependency for group in project["optional-dependencies"].values() for dependency in group
    }
    for requirement in recipe["requirements"]["run_constraints"]:
        assert requirement.replace(" ", "").replace("-base", "") in allowed
    (command,) = recipe["build"]["python"]["entry_points"]
    assert command == f"robfcp = {project['scripts']['robfcp']}"
    about = recipe["about"]
    assert about["license"] == project["license"]
    assert about["license_file"] == project["license-files"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert robfcp.__version__.startswith(citation["version"])
    cited = set(re.findall(r"@(\w+)", (ROOT / "paper.md").read_text().split("---")[2]))
    assert cited == set(re.findall(r"^@\w+{(\w+),", (ROOT / "paper.bib").read_text(), re.MULTILINE))
