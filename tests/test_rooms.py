"""The house: rooms import rooms by their door, and no late import hides a cycle."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

HOME = Path(__file__).parents[1]
ROOT = HOME / "robfcp"
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
MODULES = sorted(ROOT.rglob("*.py"))


@cache
def imports(path):
    """Every robfcp module that a file imports from, and whether it does so inside a function."""
    found, functions = [], [0]  # how far what is inside them is indented
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"( *)(def |(?:from|import) (robfcp[\w.]*)|[^ )])", line):
            indent = len(match[1])
            functions = [one for one in functions if one <= indent]
            functions += [indent + 1] * (match[2] == "def ")
            found += [(match[3], len(functions) > 1)] * (match[3] is not None)
    return found


def room(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def test_a_module_imports_other_rooms_by_their_door():
    """Everything of lab and engines is at hand; other rooms have one door each."""
    reaching = []
    for path in MODULES:
        for module, _ in imports(path):
            parts = module.split(".")[1:]
            if len(parts) < 2 or parts[0] in (room(path), "lab", "engines"):
                continue
            if parts[0] in ROOMS and room(path) not in ("lab", "monitoring", "__init__"):
                reaching.append(f"{path.relative_to(ROOT)} reaches into {module}")
    assert reaching == []  # import from the room


def test_no_late_import_hides_a_cycle():
    """Only commands import late (to start fast), and they are the end of every arrow; and a
    calibration, whose record and letters a site that only predicts never asks for."""
    late = [
        f"{path.relative_to(ROOT)} imports {module} inside a function"
        for path in MODULES
        for module, inside in imports(path)
        if inside and room(path) not in ("cli",) and path != ROOT / "calibration/calibration.py"
    ]
    assert late == []


def test_every_room_says_what_it_is_for():
    for name in ROOMS:
        assert (
            len(
                ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text("utf-8"))) or ""
            )
            > 20
        ), name


def test_no_file_is_too_long_to_be_read_at_once():
    long = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: lines for path, lines in long.items() if lines > 1000} == {}


INSIDE = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # of a call's parentheses
NEEDED = {  # which calls must be told what Windows, macOS and Linux do not agree on
    "encoding": re.compile(rf"\.(?:read_text|write_text)\({INSIDE}"),
    "lineterminator": re.compile(rf"\.(?:writer|DictWriter)\({INSIDE}"),
}


def test_text_is_utf_8_and_lines_of_tables_end_alike_on_every_system():
    for place in ("robfcp", "examples", "scripts", "benchmarks"):
        for path in (HOME / place).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for word, call in NEEDED.items():
                assert [found for found in call.findall(text) if word not in found] == [], path


MENTIONED = re.compile(
    r"^(?:from \S+ )?import (?:\([^)]*\)|.*)$|^__all__ = \[[^]]*\]", re.MULTILINE
)
USERS = ("docs/**/*.md", "README.md", "examples/*.py", "benchmarks/*.py", "scripts/*.py")


def test_nothing_is_there_for_tests_alone():
    """Every function and class is used or documented somewhere, beyond being handed on."""
    words: Counter[str] = Counter()
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        words.update(re.findall(r"\w+", MENTIONED.sub("", text)))
        words.subtract(re.findall(r"^(?:def|class) (?!\w*__)(\w+)", text, re.MULTILINE))
    for path in (path for pattern in USERS for path in HOME.glob(pattern)):
        words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    alone = {name for name, number in words.items() if number <= 0}
    assert alone == {"_root"}  # the command line's, which typer calls
