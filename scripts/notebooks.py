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
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
NOT_RUN = "<!-- not run: tests/test_notebooks.py runs the notebook -->\n"
Output = dict[str, Any]  # of a cell, in the notebook's JSON


def missing(notebook: dict[str, Any]) -> list[str]:
    """Return the modules that a notebook needs and that are not installed."""
    needed = notebook["metadata"].get("robfcp", {}).get("needs", [])
    return [module for module in needed if importlib.util.find_spec(module) is None]


def run(notebook: dict[str, Any], *, pictures: bool = True) -> None:
    """Run all cells in one namespace and an empty folder; keep what they print, show and draw."""
    import matplotlib

    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    start_folder = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"robfcp|<cell")
        os.chdir(folder)
        try:
            for count, cell in enumerate(code_cells, 1):
                cell["execution_count"] = count
                cell["outputs"] = _run_cell("".join(cell["source"]), namespace, count, pictures)
        finally:
            os.chdir(start_folder)


def _run_cell(source: str, namespace: dict[str, Any], count: int, pictures: bool) -> list[Output]:
    """Run a cell; return what it prints, the value of its last line, and its figures."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    code = _compile_cell(source, count)
    printed = io.StringIO()
    namespace["_"] = None
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    value = None if source.rstrip().endswith(";") else namespace["_"]

    outputs: list[Output] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})

    figures = [plt.figure(k) for k in plt.get_fignums()]
    if isinstance(value, Figure) and value not in figures:
        figures.append(value)
    if value is not None and not figures:
        text = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append(_output("execute_result", text) | {"execution_count": count})
    if pictures:
        outputs += [_output("display_data", {"image/png": _to_png(figure)}) for figure in figures]
    plt.close("all")
    return outputs


def _compile_cell(source: str, count: int) -> CodeType:
    """Compile a cell so that the value of its last line is assigned to `_`."""
    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        assignment = ast.Assign([ast.Name("_", ast.Store())], tree.body[-1].value)
        tree.body[-1] = ast.copy_location(assignment, tree.body[-1])
    return compile(ast.fix_missing_locations(tree), f"<cell {count}>", "exec")


def _to_png(figure: Any) -> str:
    """Return a figure as a PNG in Base64."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=90, metadata={"Software": None})
    return base64.b64encode(stream.getvalue()).decode()


def _output(output_type: str, data: dict[str, Any]) -> Output:
    """Return an output of a cell in the notebook's JSON."""
    return {"output_type": output_type, "data": data, "metadata": {}}


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"{NOT_RUN}```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                text = "".join(output["text"]).rstrip()
                blocks.append(f"```text\n{text}\n```")
            elif "image/png" in output["data"]:
                filename = f"{name}-{len(pictures) + 1}.png"
                pictures[filename] = base64.b64decode(output["data"]["image/png"])
                blocks.append(f"![What the cell above draws]({filename})")
            else:
                text = "".join(output["data"]["text/plain"])
                blocks.append(f"```text\n{text}\n```")
    blocks.append(f"*This page is the notebook `notebooks/{name}.ipynb`, run from top to bottom.*")
    return "\n\n".join(blocks) + "\n", pictures


def main(names: list[str]) -> None:
    """Run and write the named notebooks, or all of them."""
    PAGES.mkdir(exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        missing_modules = missing(notebook)
        if missing_modules:
            print(f"{path.name}: kept as it is, {', '.join(missing_modules)} is not installed")
        else:
            run(notebook)
            content = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
            path.write_text(content, encoding="utf-8")
        text, pictures = page(notebook, path.stem)
        (PAGES / f"{path.stem}.md").write_text(text, encoding="utf-8")
        for filename, data in pictures.items():
            (PAGES / filename).write_bytes(data)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
