"""The same on Windows, macOS and Linux: text is UTF-8 everywhere, files are replaced whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("robfcp", "examples", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
READS_TEXT = ("read_text", "write_text")
ONLY_HERE = {"fcntl", "msvcrt", "pwd", "grp", "resource", "termios"}  # systems that have no such
NO_FILES = {"os", "webbrowser", "Image", "zipfile", "archive", "tarfile"}  # whose open is another
WORDS = (*READS_TEXT, "open(", "csv", "rename", *ONLY_HERE)


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file, parsed once; nothing where no word stands that is looked for."""
    text = path.read_text(encoding="utf-8")
    return list(ast.walk(ast.parse(text))) if any(word in text for word in WORDS) else []


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in nodes(path) if isinstance(node, ast.Call))


def without_encoding(call: ast.Call) -> bool:
    """Whether the call opens text in whatever encoding the system has."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in (*READS_TEXT, "open") or any(k.arg == "encoding" for k in call.keywords):
        return False
    if name in READS_TEXT:
        return True
    if isinstance(call.func, ast.Attribute):
        if getattr(call.func.value, "id", "") in (*NO_FILES, "gzip"):
            return False
        modes = call.args[:1]
    else:
        modes = call.args[1:2]
    modes += [k.value for k in call.keywords if k.arg == "mode"]
    return not any("b" in str(getattr(mode, "value", "")) for mode in modes)


def test_text_files_state_their_encoding() -> None:
    found = [
        (path, call.lineno) for path in FILES for call in calls(path) if without_encoding(call)
    ]
    assert found == []


def test_nothing_of_one_system_only() -> None:
    for path in FILES:
        ours = path.parts[len(ROOT.parts)] == "robfcp"
        for node in nodes(path):
            if isinstance(node, ast.Import) and ours:
                assert not ONLY_HERE & {name.name for name in node.names}, (path, node.lineno)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                moves = (node.value.id, node.attr) == ("os", "rename")
                assert not moves, f"{path}:{node.lineno} fails over a file on Windows"


def test_tables_end_their_lines_alike_on_every_system() -> None:
    for path in FILES:
        for call in calls(path):
            name = getattr(call.func, "attr", "")
            owner = getattr(getattr(call.func, "value", None), "id", "")
            if owner == "csv" and name in ("writer", "DictWriter"):
                assert "lineterminator" in {k.arg for k in call.keywords}, (path, call.lineno)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((text, True) for text in ("p.read_text()", "p.write_text(t)", "open(p)", "p.open('w')")),
        *((text, False) for text in ("p.open('rb')", "open(p, 'w', encoding='utf-8')")),
        ("open(p, 'wb')", False),
    ],
)
def test_the_check_sees_what_it_should(text: str, found: bool) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert without_encoding(call) is found
