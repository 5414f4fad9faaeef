"""The repository: no import hides a cycle, all texts are portable, nothing is left over."""

import ast
import re
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "robfcp"
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
MODULES = sorted(ROOT.rglob("*.py"))

# Commands import late in order to start fast; nothing imports them.
MAY_IMPORT_LATE = ("cli",)
# What a client that only predicts, or that reports, never asks for.
LATE_IMPORTS = {
    "calibration/_calibration.py imports robfcp.evaluation",
    "calibration/_calibration.py imports robfcp.local",
    "calibration/_storage.py imports robfcp.calibration._record",
    "calibration/_text.py imports robfcp.diagnosis",
    "federation/_federation.py imports robfcp.fleet",
}


def imports(path):
    """Every robfcp module that a file imports from, and whether it does so inside a function."""
    found = []

    def walk(node, is_inside):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "robfcp":
            found.append((node.module, is_inside))
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "robfcp"]
            found.extend((name, is_inside) for name in names)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            walk(child, is_inside or is_function)

    walk(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def package_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def test_no_late_import_hides_a_cycle():
    late = {
        f"{path.relative_to(ROOT).as_posix()} imports {module}"
        for path in MODULES
        for module, is_inside in imports(path)
        if is_inside and package_of(path) not in MAY_IMPORT_LATE
    }
    assert late == LATE_IMPORTS


def test_every_package_says_what_it_is_for():
    for name in PACKAGES:
        tree = ast.parse((ROOT / name / "__init__.py").read_text("utf-8"))
        assert len(ast.get_docstring(tree) or "") > 20, name


INSIDE = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # of a call's parentheses
NEEDED = {  # which calls must be told what Windows, macOS and Linux do not agree on
    "encoding": re.compile(rf"\.(?:read_text|write_text)\({INSIDE}"),
    "lineterminator": re.compile(rf"\.(?:writer|DictWriter)\({INSIDE}"),
}


def test_text_is_utf_8_and_lines_of_tables_end_alike_on_every_system():
    for folder in ("robfcp", "examples", "scripts", "benchmarks"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for option, call in NEEDED.items():
                assert [words for words in call.findall(text) if option not in words] == [], path


MENTIONED = re.compile(
    r"^(?:from \S+ )?import (?:\([^)]*\)|.*)$|^__all__ = \[[^]]*\]", re.MULTILINE
)
# The command line's, which typer calls; the calibration's file, which its module is about to read.
CALLED_BY_OTHERS = {"_root", "CalibrationDocument"}
USERS = ("docs/**/*.md", "README.md", "examples/*.py", "benchmarks/*.py", "scripts/*.py")


def test_nothing_is_there_for_tests_alone():
    """Every function and class is used or documented somewhere, beyond being handed on."""
    words: Counter[str] = Counter()
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        words.update(re.findall(r"\w+", MENTIONED.sub("", text)))
        words.subtract(re.findall(r"^(?:def|class) (?!\w*__)(\w+)", text, re.MULTILINE))
    for path in (path for pattern in USERS for path in REPOSITORY.glob(pattern)):
        words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    only_in_tests = {name for name, number in words.items() if number <= 0}
    assert only_in_tests - CALLED_BY_OTHERS == set()
