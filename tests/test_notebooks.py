"""Every notebook runs from top to bottom, and its page in the documentation is that notebook."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from effort import thorough

ROOT = Path(__file__).parents[1]


def script(name):
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = script("notebooks")
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebooks_page_is_up_to_date(path):
    notebook = json.loads(path.read_text())
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text())
    text, pictures = notebooks.page(notebook, path.stem)
    assert (ROOT / "docs" / "notebooks" / f"{path.stem}.md").read_text() == text
    for file, data in pictures.items():
        assert (ROOT / "docs" / "notebooks" / file).read_bytes() == data


@pytest.mark.filterwarnings("default")  # `run` makes errors of our own warnings
@pytest.mark.parametrize(
    "path", thorough(PATHS, ROOT / "notebooks" / "hospitals.ipynb"), ids=lambda path: path.stem
)
def test_a_notebook_runs(path):
    pytest.importorskip("matplotlib")
    notebook = json.loads(path.read_text())
    absent = notebooks.missing(notebook)
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed")
    notebooks.run(notebook, pictures=False)


def test_the_shipped_claims_are_what_our_model_says(tmp_path):
    claims = script("claims")
    shipped, claims.OUT = claims.OUT, tmp_path / "claims.csv"
    claims.main()
    assert claims.OUT.read_bytes() == shipped.read_bytes()
