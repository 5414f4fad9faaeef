"""One word for each thing: names that the field does not use are refused.

The words of this package are those of conformal prediction, of Byzantine-robust federated learning
and of the Rob-FCP paper; `docs/glossary.md` lists them. The lists here hold names that say too
little (`found`, `other`) and names for which the field has a better word.
"""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "robfcp"

# Whole names, without underscores at the ends, and what to write instead.
VAGUE_NAMES = {
    "the noun of the result": "found made taken gone meant thing things way ways both two",
    "the singular of the collection": "one ones each every",
    "the noun, or peers": "own owns oneself itself whoever nobody everybody anybody everyone "
    "others",
    "a number with its noun, n_..., index": "number numbers rest part parts unit at",
    "a header, message or option": "told tell tells said say says word words",
    "a mask is_..., or what was selected": "held kept known seen chosen named called used shown "
    "sent",
    "..._given, target_...": "given stated asked wanted",
    "bins, bounds, min_..., max_...": "ends edge below limit limits floor most least whole middle",
    "fraction, p_value, probability": "share shares chance",
    "benign_..., rejected_...": "trusted trusted_mask n_trusted faulty n_faulty",
    "notes": "remark remarks",
    "previous, updated": "before after again now",
    "method, reason, options": "how what where why who whom whose which here there",
    "is_...": "fine out same few some many alone plain drawn passed",
    "config": "setting",
    "defense, score, policy": "rule rules law laws",
    "inspect, inspection": "look looked looks",
}

# Parts of names, and what to write instead.
OLD_PARTS = {
    "malicious": "liar liars lie lies lying",
    "benign": "honest",
    "maliciousness, outlier": "odd odder oddest oddness",
    "feedback": "letter letters",
    "guarantee": "promise promises promised",
    "unseen_client": "stranger",
    "binning": "grid grids",
    "trusted_report": "anchor anchors",
    "heterogeneity": "alike",
    "is_coarsened": "fives",
    "American spelling": "defence defences neighbour neighbours normalise normalised characterise "
    "characterisation characterisations summarise localised behaviour colour labelled",
    "baseline": "rival rivals",
    "transport, integration": "engine engines",
    "experiments": "lab",
    "client": "site sites",
    "frame": "ghost",
    "small": "thin",
    "notes": "remarks",
}

# Right in one place: (part of a path, names).
ALLOWED = (
    ("integrations/flower", "grid"),  # Flower's message layer
    ("binning", "edge"),
    ("privacy/_budget", "edge"),
    ("page/", "site sites"),  # a reader of the page knows hospitals and sites
    ("local/", "site sites"),
    ("datasets", "site sites"),  # columns of data sets
    ("partitions", "site sites"),
    ("cli/experiments", "site"),
    ("data_faults", "fault faults site"),
    ("redteam", "site"),
    ("_martingales", "before"),
    ("", "part_of"),
)


def words(lists):
    """{word: what to write instead}."""
    return {word: use for use, text in lists.items() for word in text.split()}


def bound_names(tree):
    """Every name that a module binds."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def refused(name, path):
    """What to write in place of a name; empty where the name is right."""
    allowed = {word for part, text in ALLOWED if part in path for word in text.split()}
    bare = name.strip("_").lower()
    vague = words(VAGUE_NAMES)
    if bare in vague and bare not in allowed:
        return vague[bare]
    if name.startswith("__"):
        return ""
    old = words(OLD_PARTS)
    for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name):
        if part.lower() in old and part.lower() not in allowed:
            return old[part.lower()]
    return ""


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_names_are_words_of_the_field(path):
    place = path.relative_to(PACKAGE).as_posix()
    problems = []
    for name, line in [(path.stem, 1), *bound_names(ast.parse(path.read_text(encoding="utf-8")))]:
        use = refused(name, place)
        if use:
            problems.append(f"{place}:{line}: {name}; write {use}")
    assert problems == []


def test_a_refused_name_is_noticed():
    assert refused("found", "x.py") == "the noun of the result"
    assert refused("n_liars", "x.py") == "malicious"
    assert refused("site_names", "federation/x.py") == "client"
    assert refused("site_names", "page/x.py") == ""
    assert refused("n_malicious", "x.py") == ""
