"""The package is plain code: what a reader of one function sees is all that it does.

Each rule is read off the syntax trees.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "robfcp"
MODULES = sorted(ROOT.rglob("*.py"))
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in MODULES
}

# The one function that writes fields of frozen objects; only their constructors may call it.
SETTER = ("_validation.py", "set_fields")
DEFENSES = {"Consensus", "FCP", "RobFCP", "RobFCPReleased"}

# Private modules that every package may use.
SHARED_MODULES = {
    "robfcp._files",
    "robfcp._probabilities",
    "robfcp._sealed",
    "robfcp._typing",
    "robfcp._validation",
}

# {module: function: why it may remember its results}. What it returns follows from its arguments
# alone, and nobody changes it.
ALLOWED_CACHES = {
    "experiments/baselines.py: quantile_orders": "orders that follow from sizes and level alone",
    "_files.py: _remove_stale_temporaries": "each folder is tidied once in a process",
    "binning.py: _open_ended_default": "a constant",
    "binning.py: default": "a constant",
    "binning.py: extended": "a constant",
    "cli/__init__.py: _command": "a command is loaded when it is first called",
    "experiments/outputs/__init__.py: entries": "the list of a data set that ships",
    "experiments/outputs/__init__.py: load": "a data set that ships",
    "experiments/paper/paper_tables.py: read_published_results": "a table that ships",
    "experiments/paper/runner.py: fine_binning": "a constant",
    "privacy/_budget.py: zcdp_rho": "the root of an equation of two numbers",
    "privacy/_noise.py: _characteristic_function": "numbers that follow from the noise alone",
    "privacy/_noise.py: noise_bound": "an exact quantile that follows from the noise alone",
    "reports/_wire.py: _built": "the binning of a name and its parameters",
}


def package_of(module):
    """The package, or the single module, that a file belongs to."""
    return module.split("/")[0].removesuffix(".py")


def dotted_name(node):
    """The dotted name that an expression is; empty where it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = dotted_name(node.value)
        return f"{prefix}.{node.attr}" if prefix else ""
    return ""


def called_name(node):
    """The dotted name of a function that is called; empty where it is none."""
    return dotted_name(node.func) if isinstance(node, ast.Call) else ""


def functions_with_caches():
    """Functions decorated to remember their results."""
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for decorator in node.decorator_list:
                name = called_name(decorator) or dotted_name(decorator)
                is_cache = name.split(".")[-1] in ("cache", "lru_cache")
                if is_cache:
                    found.add(f"{module}: {node.name}")
    return found - set(ALLOWED_CACHES)


def calls_that_set_frozen_fields():
    """Places that write a field of a frozen object, but for `set_fields` in a constructor."""
    found = set()
    for module, tree in TREES.items():
        allowed = set()
        for node in ast.walk(tree):
            is_function = isinstance(node, ast.FunctionDef)
            if is_function and (module, node.name) == SETTER:
                allowed.update(ast.walk(node))
            if is_function and node.name == "__post_init__":
                calls = (call for call in ast.walk(node) if called_name(call) == SETTER[1])
                allowed.update(calls)
        for node in ast.walk(tree):
            name = called_name(node)
            sets_field = name.endswith(".__setattr__")
            sets_field |= name.split(".")[-1] in ("force_setattr", SETTER[1])
            if sets_field and node not in allowed:
                found.add(f"{module}:{node.lineno}")
    return found


def is_namespace(node):
    """Whether an expression is the namespace of an object: x.__dict__ or vars(x)."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    return called_name(node) == "vars"


def writes_to_namespaces():
    """Modules that write into x.__dict__ or vars(x)."""
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            is_write = False
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                is_write = is_namespace(node.value)
            elif isinstance(node, ast.Attribute) and node.attr == "__dict__":
                is_write = not isinstance(node.ctx, ast.Load)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changes = node.func.attr in ("update", "pop", "setdefault", "clear")
                is_write = changes and is_namespace(node.func.value)
            if is_write:
                found.add(module)
    return found


def types_that_depend_on_the_checker():
    """Modules where something else runs than what the type checker sees."""
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.If):
                continue
            if "TYPE_CHECKING" in ast.unparse(node.test):
                is_plain = dotted_name(node.test).split(".")[-1] == "TYPE_CHECKING"
                if node.orelse or not is_plain:
                    found.add(module)
    return found


def imported_modules(node):
    """The modules that an import statement may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def is_module(name):
    """Whether a dotted name of the package is a module."""
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports_of_private_modules():
    """Imports of a private module by another package."""
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            for name in imported_modules(node):
                parts = name.split(".")
                if parts[0] != "robfcp" or name in SHARED_MODULES or len(parts) < 3:
                    continue
                is_private = any(part.startswith("_") for part in parts[1:])
                is_elsewhere = parts[1] != package_of(module)
                if is_private and is_elsewhere and is_module(name) and module != "__init__.py":
                    found.add(f"{module}: {name}")
    return found


def questions_which_defense_it_is():
    """Functions of `calibration` that ask which defense they were given."""
    found = set()
    for module, tree in TREES.items():
        if package_of(module) != "calibration":
            continue
        for node in ast.walk(tree):
            if called_name(node) != "isinstance":
                continue
            names = {dotted_name(kind) for kind in ast.walk(node.args[1])}
            if names & DEFENSES:
                found.add(f"{module}:{ast.unparse(node)}")
    return found


def global_statements():
    """Modules where a function changes a global variable."""
    return {
        module
        for module, tree in TREES.items()
        if any(isinstance(node, ast.Global) for node in ast.walk(tree))
    }


RULES = {
    "no function remembers results": functions_with_caches,
    "frozen objects are normalized only by their constructors": calls_that_set_frozen_fields,
    "nobody writes into a namespace": writes_to_namespaces,
    "types do not depend on the checker": types_that_depend_on_the_checker,
    "private modules stay in their package": imports_of_private_modules,
    "calibration knows no particular defense": questions_which_defense_it_is,
    "no global variable changes": global_statements,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_plain_code_holds(rule):
    assert sorted(RULES[rule]()) == []
