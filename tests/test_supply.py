"""What is shipped and installed is what was looked at."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robfcp

ROOT = Path(__file__).parents[1]
CHARTS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", CHARTS)
def test_the_vendored_chart_library_is_the_one_that_was_looked_at(name):
    data = (ROOT / "robfcp" / "page" / "assets" / "uplot" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == CHARTS[name]


def test_development_dependencies_have_hashes():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()[1:]
    assert len(lines) > 30
    for line in lines:
        assert re.fullmatch(r"[a-z0-9._-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line), line
    names = {line.split("==")[0] for line in lines}
    assert {"numpy", "scipy", "msgspec", "typer", "rich", "pytest", "cryptography"} <= names


def test_the_bill_of_materials_lists_what_is_installed():
    script = ROOT / "scripts" / "sbom.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "robfcp")
    parts = {part["bom-ref"]: part["name"] for part in bill["components"]}
    assert {"numpy", "scipy", "msgspec", "typer", "rich", "uPlot"} <= set(parts.values())
    assert {one for entry in bill["dependencies"] for one in entry["dependsOn"]} <= set(parts)


def test_badges_say_what_the_project_says():
    project = (ROOT / "pyproject.toml").read_text()
    badges = ROOT / "docs" / "images" / "badges"
    versions = re.findall(r"Python :: (3\.\d+)", project)
    assert " | ".join(versions) in (badges / "python.svg").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert ", ".join(f'"{version}"' for version in versions) in workflow
    floor = re.findall(r"--cov-fail-under=(\d+)", (ROOT / "Makefile").read_text())[0]
    assert f"at least {floor}%" in (badges / "coverage.svg").read_text()


def test_recipe_and_citation_say_what_the_project_does():
    yaml, tomllib = pytest.importorskip("yaml"), pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    assert list(recipe) == [
        *("schema_version", "context", "package", "source", "build", "requirements", "tests"),
        "about",
    ]
    assert recipe["context"]["version"] == robfcp.__version__
    assert project["requires-python"] == f">={recipe['context']['python_min']}"
    names = [one.replace(" ", "") for one in recipe["requirements"]["run"]]
    assert names[1:] == project["dependencies"]
    allowed = {part for group in project["optional-dependencies"].values() for part in group}
    for one in recipe["requirements"]["run_constraints"]:
        assert one.replace(" ", "").replace("-base", "") in allowed
    (command,) = recipe["build"]["python"]["entry_points"]
    assert command == f"robfcp = {project['scripts']['robfcp']}"
    about = recipe["about"]
    assert (about["license"], about["license_file"]) == (
        project["license"],
        project["license-files"],
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert robfcp.__version__.startswith(citation["version"])
    cited = set(re.findall(r"@(\w+)", (ROOT / "paper.md").read_text().split("---")[2]))
    assert cited == set(re.findall(r"^@\w+{(\w+),", (ROOT / "paper.bib").read_text(), re.MULTILINE))
