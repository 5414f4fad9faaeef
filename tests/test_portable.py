"""The same on Windows, macOS and Linux; what ruff sees of it is in pyproject.toml."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("robfcp", "examples", "scripts", "benchmarks")
NEEDED = {  # which methods must be told what no two systems agree on
    "read_text": "encoding",
    "write_text": "encoding",
    "writer": "lineterminator",
    "DictWriter": "lineterminator",
}


def test_text_is_utf_8_and_lines_of_tables_end_alike():
    careless = [
        f"{path.relative_to(ROOT)}:{node.lineno} says no {NEEDED[node.func.attr]}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in NEEDED
        and NEEDED[node.func.attr] not in {keyword.arg for keyword in node.keywords}
    ]
    assert careless == []
