"""Every example in a docstring runs as printed, and every public name has one.

Examples are looked for in the source, so that decorated functions and cached properties count too;
each docstring starts with nothing imported, as its reader does, in an empty folder.
"""

import ast
import doctest
import inspect
import re
from pathlib import Path

import pytest
from effort import thorough

import robfcp
from robfcp import figures
from robfcp.experiments import partitions, simulation

ROOT = Path(robfcp.__file__).parent
# What needs flwr or torch, or is no library.
LEFT_OUT = ("integrations/flower", "integrations/nvflare", "experiments/training", "cli")
EXTRAS = {"estimators.py": "sklearn", "figures": "matplotlib"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def examples(path):
    """The examples of a file, one test a docstring."""
    parser, found = doctest.DocTestParser(), []

    def walk(node, name):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = ast.get_docstring(node, clean=False)
            if words and ">>>" in words:
                line = node.body[0].lineno - 1
                test = parser.get_doctest(words, {"__name__": "__main__"}, name, str(path), line)
                found.append(test)
        for child in ast.iter_child_nodes(node):
            walk(child, f"{name}.{getattr(child, 'name', '')}".rstrip("."))

    walk(ast.parse(path.read_text()), path.stem)
    return found


PLACES = [
    place
    for path in sorted(ROOT.rglob("*.py"))
    if not (place := path.relative_to(ROOT).as_posix()).startswith(LEFT_OUT)
    and ">>>" in path.read_text()
]


@pytest.mark.parametrize("place", thorough(PLACES, *(set(PLACES) - {"figures.py"})))
def test_examples_run_as_printed(place, tmp_path, monkeypatch):
    for prefix, extra in EXTRAS.items():
        if place.startswith(prefix):
            pytest.importorskip(extra)
    runner, said = doctest.DocTestRunner(optionflags=OPTIONS), []
    for number, test in enumerate(examples(ROOT / place)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def public():
    """Every public class and function, those of modules that are public as a whole included."""
    things = [getattr(robfcp, name) for name in robfcp.__all__]
    for module in (robfcp.metrics, partitions, figures):
        names = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
        found = [getattr(module, name) for name in names]
        things += [x for x in found if getattr(x, "__module__", "").startswith(module.__name__)]
    for thing in (simulation.simulate, *things):
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield thing.__qualname__, thing


PUBLIC = dict(public())


def methods(kind):
    """The public methods of a class, its own and those of our bases; calling it counts."""
    for base in kind.__mro__:
        if not base.__module__.startswith("robfcp"):
            continue
        for name, thing in vars(base).items():
            found = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
            if inspect.isfunction(found) and (name == "__call__" or not name.startswith("_")):
                yield f"{base.__name__}.{name}", found


def sections(words):
    """A docstring's sections by their titles."""
    _, *parts = SECTION.split(inspect.cleandoc(words or ""))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def unnamed(function, documented):
    """The parameters that the section leaves out; it may give each one's type after a colon."""
    named = set()
    for line in re.findall(r"^\w.*$", documented, re.MULTILINE):
        names = line.partition(" : ")[0]
        named.update(name.strip() for name in names.split(","))
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    taken = {name for name, parameter in parameters.items() if parameter.kind not in kinds}
    return taken - named - {"self", "cls"}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented_with_an_example_and_its_parameters(name):
    thing = PUBLIC[name]
    found = sections(thing.__doc__)
    assert ">>>" in found.get("Examples", ""), f"{name}: give an example"
    documented = found.get("Parameters", "")
    if inspect.isclass(thing):
        documented += found.get("Attributes", "")  # what others construct
        for method, function in methods(thing):
            words = inspect.getdoc(function)  # its own, or that of what it overrides
            assert words, f"{method}: say what it does"
            left_out = unnamed(function, sections(words).get("Parameters", ""))
            assert not left_out, f"{method}: document {sorted(left_out)}"
    left_out = unnamed(thing, documented)
    assert not left_out, f"{name}: document {sorted(left_out)}"
