"""Every notebook runs from top to bottom, and its page in the documentation is that notebook."""

import json
import re
import sys
from pathlib import Path

import pytest
from effort import thorough

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import notebooks

ROOT = Path(__file__).parents[1]
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
