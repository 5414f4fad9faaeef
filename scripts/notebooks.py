"""Run the notebooks, keep their outputs, and write them as pages: `python scripts/notebooks.py`.

Cells run in this process, in a temporary folder, without a kernel; our own warnings are errors. A
notebook whose `robfcp.needs` names a module that is not installed keeps the outputs it has.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, PAGES = ROOT / "notebooks", ROOT / "docs" / "notebooks"
Cell = dict[str, Any]


def missing(notebook: dict[str, Any]) -> list[str]:
    """The modules a notebook needs that are not installed."""
    needs = notebook["metadata"].get("robfcp", {}).get("needs", [])
    return [name for name in needs if importlib.util.find_spec(name) is None]


def run(notebook: dict[str, Any], *, pictures: bool = True) -> None:
    """Run all cells in one namespace and an empty folder; keep what they print, show and draw."""
    import matplotlib

    matplotlib.use("Agg")
    space: dict[str, Any] = {"__name__": "__main__"}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"robfcp|<cell")
        os.chdir(folder)
        try:
            number = 0
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    number += 1
                    cell["execution_count"] = number
                    cell["outputs"] = _outputs("".join(cell["source"]), space, number, pictures)
        finally:
            os.chdir(here)


def _outputs(source: str, space: dict[str, Any], number: int, pictures: bool) -> list[Cell]:
    """What one cell prints, the value of its last line, and its figures."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        keep = ast.Assign([ast.Name("_", ast.Store())], tree.body[-1].value)
        tree.body[-1] = ast.copy_location(keep, tree.body[-1])
    printed = io.StringIO()
    space["_"] = None
    with contextlib.redirect_stdout(printed):
        code = compile(ast.fix_missing_locations(tree), f"<cell {number}>", "exec")
        exec(code, space)
    value = None if source.rstrip().endswith(";") else space["_"]
    found: list[Cell] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": lines})
    drawn = [plt.figure(k) for k in plt.get_fignums()]
    drawn += [value] if isinstance(value, Figure) and value not in drawn else []
    if value is not None and not drawn:
        plain = {"text/plain": repr(value).splitlines(keepends=True)}
        found.append(_result("execute_result", plain) | {"execution_count": number})
    for figure in drawn if pictures else []:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=90, metadata={"Software": None})
        picture = base64.b64encode(stream.getvalue()).decode()
        found.append(_result("display_data", {"image/png": picture}))
    plt.close("all")
    return found


def _result(kind: str, data: dict[str, Any]) -> Cell:
    return {"output_type": kind, "data": data, "metadata": {}}


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    skip = "<!-- not run: tests/test_notebooks.py runs the notebook -->\n"
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"{skip}```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output["data"]:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What the cell above draws]({file})")
            else:
                parts.append(f"```text\n{''.join(output['data']['text/plain'])}\n```")
    parts.append(f"*This page is the notebook `notebooks/{name}.ipynb`, run from top to bottom.*")
    return "\n\n".join(parts) + "\n", pictures


def main(names: list[str]) -> None:
    """Run and write the named notebooks, or all."""
    PAGES.mkdir(exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        absent = missing(notebook)
        if absent:
            print(f"{path.name}: kept as it is, {', '.join(absent)} is not installed")
        else:
            run(notebook)
            path.write_text(
                json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        text, pictures = page(notebook, path.stem)
        (PAGES / f"{path.stem}.md").write_text(text, encoding="utf-8")
        for file, data in pictures.items():
            (PAGES / file).write_bytes(data)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
