"""Every code block of the documentation and the README runs as printed.

Blocks of one page share a folder and a namespace, in the order of the page. They find there what
`prepared` puts into it: reports, clients' CSV files and a calibration; what they use they import.
In shell blocks the lines that call robfcp are run. `<!-- not run: reason -->` before a block leaves
it out, and so does a framework of federated learning: its blocks are parts of an app, and whole
apps are run by the tests of `robfcp.integrations`.
"""

import ast
import glob
import re
import shlex
import shutil
from copy import deepcopy
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path

import numpy as np
import pytest
from click import Context
from effort import thorough
from makers import LAC, outputs, reports_of, save_reports, write_table
from typer.main import get_command
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^>]+-->\s*)?^```(?P<kind>\w+)[^\n]*\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
RUN = ("python", "sh", "bash", "console")
FRAMEWORKS = ("flower", "nvflare")
MAPIE_EXAMPLE = ROOT / "examples" / "from_mapie.py"  # prints what it shows; the others draw it
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FIGURE_EXAMPLES = [example for example in EXAMPLES if example != MAPIE_EXAMPLE]
LONG = ("start", "monitoring", "page", "files", "beyond-one-threshold")  # half a second each


def blocks(page):
    """Kind, code and line number of every block that is to be run."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        needs_framework = any(f"robfcp.integrations.{name}" in found["code"] for name in FRAMEWORKS)
        if found["kind"] in RUN and not found["skip"] and not needs_framework:
            yield found["kind"], found["code"], text[: found.start("code")].count("\n") + 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Forty clients of one model, one of which is malicious, as objects and as files."""
    folder = tmp_path_factory.mktemp("prepared")
    p, y = outputs(0, 2400, 4, 0.3)
    scores = np.split(LAC(p[:2000], y[:2000]), 40)
    scores[3] = np.zeros(50)
    reports = reports_of(scores)
    save_reports(folder / "reports", reports)
    names = [f"p{c}" for c in range(4)]
    for k, rows in enumerate((slice(0, 100), slice(100, 200), slice(200, 300)), start=1):
        write_table(folder / f"site-{k}.csv", p[rows], y[rows], names)
    write_table(folder / "test.csv", p[2000:], y[2000:], names)
    robfcp.calibrate(reports).save(folder / "calibration.json")
    given = {"reports": reports, "probabilities": p[:2000], "labels": y[:2000]}
    given |= {"test_probabilities": p[2000:], "test_labels": y[2000:]}
    return folder, given


def commands(code):
    """The arguments of every robfcp call in a shell block, wildcards expanded."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["robfcp"]:
            yield [match for word in words[1:] for match in (sorted(glob.glob(word)) or [word])]


RUNNING = [page for page in PAGES if any(blocks(page))]


@pytest.mark.parametrize(
    "page",
    thorough(RUNNING, *(page for page in RUNNING if page.stem not in LONG)),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_every_block_runs_as_printed(page, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    folder, given = prepared
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    namespace = {"__name__": "__main__", **deepcopy(given)}
    for kind, code, line in blocks(page):
        if kind == "python":
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
            continue
        for arguments in commands(code):
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code in (0, 3), (page.name, line, result.output, result.exception)
            assert max(map(len, result.output.splitlines()), default=0) <= 80, (page.name, line)


@pytest.mark.parametrize(
    "example",
    thorough(FIGURE_EXAMPLES, ROOT / "examples" / "certificates.py"),
    ids=lambda path: path.name,
)
def test_every_example_makes_its_figure(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_path(str(example), run_name="__main__")
    assert (tmp_path / f"{example.stem}.png").stat().st_size > 5_000


def test_the_mapie_example_shows_the_same_sets_and_leaves_the_wrong_client_out(capsys):
    pytest.importorskip("mapie")
    example = run_path(str(MAPIE_EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out

    # One client: bins only ever add labels, and with 20,000 of them hardly any.
    assert printed.count("labels in MAPIE's sets only: 0,") == 2
    n_added_labels = (example["robfcp_sets"] & ~example["mapie_sets"]).sum()
    assert n_added_labels <= 0.001 * example["robfcp_sets"].size

    # Nine clients: the wrong one, and nobody else.
    assert example["calibration"].flagged_clients == ("client-4",)
    assert "client-4 was left out" in printed


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), (page, target)


def test_the_navigation_holds_every_page_and_at_most_a_dozen_at_once():
    listed = (ROOT / "mkdocs.yml").read_text().split("nav:\n")[1]
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", listed)) == pages
    sections = re.split(r"^  - .*\n", listed, flags=re.MULTILINE)[1:]
    assert max(len(sections), *(section.count("- ") for section in sections)) <= 12


ARCHITECTURE = ROOT / "docs" / "architecture.md"
FORMULA_TABLES = 4  # of the page on architecture: formula, names, module


def test_the_layers_on_the_page_are_those_of_the_contract():
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[\n(.*?)^\]", contract, re.DOTALL | re.MULTILINE)[1]
    page = ARCHITECTURE.read_text(encoding="utf-8")
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    assert [line.strip() for line in shown.splitlines()] == re.findall(r'"(.*)"', layers)

    # The first column of the table of packages, which may name several.
    table = page.split("## Packages")[1].split("## Modules")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    packages = re.findall(r"`(\w+)`", "\n".join(rows))
    assert sorted(packages) == sorted(re.findall(r"\w+", shown))


def test_every_path_on_the_architecture_page_exists():
    paths = re.findall(r"`([\w/.]+/\w+\.\w+)`", ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(paths) > 100
    missing = [
        path
        for path in paths
        if not (ROOT / path).exists() and not (ROOT / "robfcp" / path).exists()
    ]
    assert missing == []


def test_every_module_of_a_package_is_on_the_architecture_page():
    page = ARCHITECTURE.read_text(encoding="utf-8")
    modules = (path.relative_to(ROOT / "robfcp") for path in (ROOT / "robfcp").glob("*/**/*.py"))
    names = [module.as_posix() for module in modules if module.name != "__init__.py"]
    assert [name for name in names if f"`{name}`" not in page] == []


def defined_names(path):
    """Functions, classes and methods that a module defines; methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


def test_every_formula_is_in_the_module_that_the_architecture_page_names():
    page = ARCHITECTURE.read_text(encoding="utf-8")
    tables = re.findall(r"\| names \| module \|\n\|---.*\n((?:\|.*\n)+)", page)
    assert len(tables) == FORMULA_TABLES
    for row in "".join(tables).splitlines():
        *_, names, module, _ = row.split(" |")
        defined = defined_names(ROOT / "robfcp" / module.strip(" `"))
        assert set(re.findall(r"`([\w.]+)`", names)) - defined == set(), row


OTHERS = {  # options of flwr, pip and our own scripts
    "--docs", "--help", "--name", "--no-deps", "--node-config", "--port", "--require-hashes",
    "--spec", "--stream", "--write",
}  # fmt: skip


def options(command):
    """Every option that a command or one below it takes."""
    found = {word for one in command.params for word in (*one.opts, *one.secondary_opts)}
    if hasattr(command, "list_commands"):
        context = Context(command)
        for name in command.list_commands(context):
            found |= options(command.get_command(context, name))
    return found


def exists(name):
    """Whether a dotted name leads to something; of a framework it is looked for in its file."""
    *packages, last = name.split(".")
    if packages[1:2] == ["integrations"] and len(packages) > 2:
        return last in (ROOT / "robfcp" / "integrations" / f"{packages[2]}.py").read_text()
    try:
        resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_only_what_there_is(page):
    text = page.read_text()
    names = set(re.findall(r"\brobfcp(?:\.[A-Za-z_]\w*)+(?!\w*\.(?:json|toml))", text))
    names -= {"robfcp.json", "robfcp.integrations.flower", "robfcp.integrations.nvflare"}
    assert [name for name in names if not exists(name)] == []
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert said - OTHERS <= options(get_command(app))
    for place in re.findall(r"\b(?:tests|benchmarks|scripts|examples|robfcp)/[\w/]+\.\w\w\b", text):
        assert (ROOT / place).exists(), place
    targets = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)", text):
        assert f"\n{target}:" in targets, target


def test_every_line_of_the_security_page_names_tests_that_there_are():
    _, *tables = (ROOT / "docs" / "security.md").read_text().split("| tests |\n|---|---|---|\n")
    assert len(tables) == 5
    there = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("*.py"))
    for row in (row for rows in tables for row in rows.split("\n\n")[0].splitlines()):
        named = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert named, row
        assert [name for name in named if f"def {name}(" not in there] == []
