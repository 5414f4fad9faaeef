"""Every example in a docstring runs as printed, and every public name has one.

Examples are collected from the source, so that decorated functions and cached properties count
too; each docstring runs without earlier imports in an empty folder.
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
# These need flwr or torch, or are no library.
EXCLUDED_PATHS = ("integrations/flower", "integrations/nvflare", "experiments/training", "cli")
EXTRAS = {"estimators.py": "sklearn", "figures": "matplotlib"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def examples_in(path):
    """Return the examples of a file, a test for each docstring."""
    parser, tests = doctest.DocTestParser(), []

    def collect_examples(node, name):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring and ">>>" in docstring:
                line = node.body[0].lineno - 1
                test = parser.get_doctest(
                    docstring, {"__name__": "__main__"}, name, str(path), line
                )
                tests.append(test)
        for child in ast.iter_child_nodes(node):
            collect_examples(child, f"{name}.{getattr(child, 'name', '')}".rstrip("."))

    collect_examples(ast.parse(path.read_text()), path.stem)
    return tests


PATHS = [
    module_path
    for path in sorted(ROOT.rglob("*.py"))
    if not (module_path := path.relative_to(ROOT).as_posix()).startswith(EXCLUDED_PATHS)
    and ">>>" in path.read_text()
]


@pytest.mark.parametrize("module_path", thorough(PATHS, *(set(PATHS) - {"figures.py"})))
def test_examples_run_as_printed(module_path, tmp_path, monkeypatch):
    for prefix, extra in EXTRAS.items():
        if module_path.startswith(prefix):
            pytest.importorskip(extra)
    runner, output = doctest.DocTestRunner(optionflags=OPTIONS), []
    for index, test in enumerate(examples_in(ROOT / module_path)):
        folder = tmp_path / str(index)
        folder.mkdir()
        monkeypatch.chdir(folder)
        runner.run(test, out=output.append)
    assert runner.failures == 0, "".join(output)


def public_objects():
    """Yield all public classes and functions, also those of public modules."""
    objects = [getattr(robfcp, name) for name in robfcp.__all__]
    for module in (robfcp.metrics, partitions, figures):
        names = getattr(module, "__all__", [name for name in vars(module) if name[0] != "_"])
        of_module = [getattr(module, name) for name in names]
        objects += [
            candidate
            for candidate in of_module
            if getattr(candidate, "__module__", "").startswith(module.__name__)
        ]
    for public_object in (simulation.simulate, *objects):
        if inspect.isclass(public_object) or inspect.isfunction(public_object):
            yield public_object.__qualname__, public_object


PUBLIC_OBJECTS = dict(public_objects())


def methods(class_):
    """Yield the public methods of a class, inherited ones and `__call__` included."""
    for base in class_.__mro__:
        if not base.__module__.startswith("robfcp"):
            continue
        for name, attribute in vars(base).items():
            function = (
                attribute.__func__
                if isinstance(attribute, (staticmethod, classmethod))
                else attribute
            )
            if inspect.isfunction(function) and (name == "__call__" or not name.startswith("_")):
                yield f"{base.__name__}.{name}", function


def sections(docstring):
    """Return the sections of a docstring by their titles."""
    _, *titles_and_texts = SECTION.split(inspect.cleandoc(docstring or ""))
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def undocumented_parameters(function, documented):
    """Return the parameters that a section does not document; types may follow after a colon."""
    documented_names = set()
    for line in re.findall(r"^\w.*$", documented, re.MULTILINE):
        names = line.partition(" : ")[0]
        documented_names.update(name.strip() for name in names.split(","))
    variadic_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters
    parameter_names = {
        name for name, parameter in parameters.items() if parameter.kind not in variadic_kinds
    }
    return parameter_names - documented_names - {"self", "cls"}


@pytest.mark.parametrize("name", PUBLIC_OBJECTS)
def test_every_public_name_is_documented_with_an_example_and_its_parameters(name):
    public_object = PUBLIC_OBJECTS[name]
    titled = sections(public_object.__doc__)
    assert ">>>" in titled.get("Examples", ""), f"{name}: give an example"
    documented = titled.get("Parameters", "")
    if inspect.isclass(public_object):
        documented += titled.get("Attributes", "")  # attributes of what others construct
        for method, function in methods(public_object):
            docstring = inspect.getdoc(function)  # also that of an overridden function
            assert docstring, f"{method}: write a docstring"
            parameters = sections(docstring).get("Parameters", "")
            missing = undocumented_parameters(function, parameters)
            assert not missing, f"{method}: document {sorted(missing)}"
    missing = undocumented_parameters(public_object, documented)
    assert not missing, f"{name}: document {sorted(missing)}"
