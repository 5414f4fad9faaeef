"""Old import paths work for one release, and each says where its names are now."""

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from robfcp import _moved

OLD: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "data" / "names-0.1.json").read_text()
)
HEAVY = ("training", "gpu")  # need torch


@pytest.mark.parametrize("module", sorted(set(OLD) - set(HEAVY)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_name_of_the_first_release_is_found_by_its_old_path(module):
    sys.modules.pop(f"robfcp.{module}", None) if module in _moved.MODULES else None
    old = importlib.import_module(f"robfcp.{module}")
    assert [name for name in OLD[module] if not hasattr(old, name)] == []


@pytest.mark.parametrize("module", sorted(_moved.MODULES))
def test_every_new_place_exists(module):
    if module in HEAVY:
        pytest.importorskip("torch")
    for place in _moved.MODULES[module]:
        importlib.import_module(f"robfcp.{place}")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("from robfcp.band import Band", "robfcp.band has moved to robfcp.defence"),
        ("import robfcp.attacks.simple", "robfcp.attacks.simple has moved to robfcp.lab.attacks"),
        ("from robfcp.reports import Header", "Header is now in robfcp.federation.marks"),
        ("from robfcp.band import Standing", "robfcp.band has moved"),
        ("from robfcp.band import stand_out", "robfcp.band has moved"),
    ],
)
def test_an_old_path_warns_and_names_the_new_one(code, words):
    for name in list(sys.modules):  # as if nobody had asked for them before
        if name.startswith(("robfcp.band", "robfcp.attacks")):
            del sys.modules[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(code, {})
    assert {one.category for one in caught} == {DeprecationWarning}
    assert any(words in str(one.message) for one in caught)


@pytest.mark.slow
def test_the_public_names_do_not_warn():
    code = "import robfcp; [getattr(robfcp, n) for n in robfcp.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_unknown_names_are_unknown():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("robfcp.nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = importlib.import_module("robfcp.reports").nonsense
