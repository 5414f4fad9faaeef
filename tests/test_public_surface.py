"""The public surface, compared with tests/public_surface.txt: what others may rely on.

The file lists every public name with its signature, every command with its options, and every kind
of file. A change of it is a change for users. To renew it: `python tests/test_public_surface.py`.
"""

import difflib
import importlib
import inspect
import json
import re
from pathlib import Path

import robfcp
from robfcp.cli import COMMANDS, EXPERIMENTS, ExperimentCommands, LazyCommands
from robfcp.schemas import FILE_SCHEMAS, file_schema

SURFACE = Path(__file__).with_name("public_surface.txt")
RENEW = "python tests/test_public_surface.py"
PACKAGES = (
    "robfcp",
    "robfcp.audit",
    "robfcp.calibration",
    "robfcp.defense",
    "robfcp.diagnosis",
    "robfcp.evaluation",
    "robfcp.experiments",
    "robfcp.experiments.attacks",
    "robfcp.federation",
    "robfcp.figures",
    "robfcp.guarantees",
    "robfcp.local",
    "robfcp.metrics",
    "robfcp.monitoring",
    "robfcp.page",
    "robfcp.privacy",
    "robfcp.reports",
    "robfcp.rounds",
    "robfcp.schemas",
    "robfcp.scores",
)


def public_names(module):
    """The names that a package exports; of a module without a list, what it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names = []
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and is_own and (inspect.isclass(value) or callable(value)):
            names.append(name)
    return sorted(names)


def signature_text(function):
    """The parameters of a function with their defaults; empty where Python knows none.

    Types are left out: how they are printed depends on the versions of libraries.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def class_lines(name, public_class):
    """A class with its signature, and its public members with theirs."""
    lines = [f"class {name}{signature_text(public_class)}"]
    members = {}
    for base in reversed(public_class.__mro__):
        if base.__module__.startswith("robfcp"):
            members |= vars(base)
    for member, value in sorted(members.items()):
        if member.startswith("_"):
            continue
        if isinstance(value, (staticmethod, classmethod)):
            lines.append(f"    {member}{signature_text(value.__func__)}")
        elif inspect.isfunction(value):
            lines.append(f"    {member}{signature_text(value)}")
        else:
            lines.append(f"    {member}")
    return lines


def package_lines(package):
    """The public names of a package, one a line, classes with their members."""
    module = importlib.import_module(package)
    lines = [f"# {package}"]
    for name in public_names(module):
        value = getattr(module, name)
        is_ours = str(getattr(value, "__module__", "")).startswith("robfcp")
        if inspect.isclass(value) and is_ours:
            lines += class_lines(name, value)
        elif inspect.isfunction(value):
            lines.append(f"{name}{signature_text(value)}")
        elif name != "__version__":
            lines.append(name)
    return lines


def command_lines(group, name, prefix):
    """A command with its first line of help, its arguments and its options with their help."""
    command = group.get_command(None, name)
    first_line = (command.help or "").strip().splitlines()[0]
    lines = [f"{prefix} {name}: {first_line}"]
    for parameter in command.params:
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        lines.append(f"    {names}: {getattr(parameter, 'help', '') or ''}")
    return lines


def schema_lines(kind):
    """A kind of file with its keys, and those of the parts of its body."""
    schema = file_schema(kind)
    lines = [f"{kind}: {json.dumps(sorted(schema.get('properties', {})))}"]
    for name, definition in sorted(schema.get("$defs", {}).items()):
        lines.append(f"    {name}: {json.dumps(sorted(definition.get('properties', {})))}")
    return lines


def surface():
    """The public surface as text."""
    lines = []
    for package in PACKAGES:
        lines += [*package_lines(package), ""]
    lines.append("# commands")
    for name in COMMANDS:
        lines += command_lines(LazyCommands(name="robfcp"), name, "robfcp")
    for name in EXPERIMENTS:
        lines += command_lines(ExperimentCommands(name="experiments"), name, "robfcp experiments")
    lines += ["", "# files"]
    for kind in FILE_SCHEMAS:
        lines += schema_lines(kind)
    return "\n".join(lines) + "\n"


def test_the_public_surface_is_the_recorded_one():
    recorded = SURFACE.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        recorded.splitlines(), surface().splitlines(), "recorded", "now", lineterm="", n=0
    )
    assert not list(difference), f"the public surface changed; if that is meant, run {RENEW}"


def test_every_public_name_is_exported_by_the_package():
    for name in robfcp.__all__:
        assert hasattr(robfcp, name), name


if __name__ == "__main__":
    SURFACE.write_text(surface(), encoding="utf-8")
