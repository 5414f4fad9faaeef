"""Break valid files: hostile values, missing fields, broken bytes."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from robfcp._sealed import sha256_of

T = TypeVar("T")

HOSTILE_NUMBERS: list[Any] = [
    True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63), 1e308, -1e308, 5e-324, 0.1,
]  # fmt: skip
HOSTILE_TEXTS = [
    "", "a", "\x00", "\n\x1b[2J", "\u202e", "x" * 300, "9" * 400, "ed25519:", "NaN", "1e999",
    "file:x",
]  # fmt: skip
HOSTILE_CONTAINERS: list[Any] = [
    [], [0], [[]], [1, 0], [0] * 2000, {}, {"a": 1}, {"bins": [0], "counts": [1]},
]  # fmt: skip
HOSTILE_BINNINGS = [
    {"name": "uniform", "digest": "0", "parameters": {"bins": 10**9, "low": 0, "high": 1}},
    {"name": "uniform", "digest": "0", "parameters": {"bins": 20000, "low": -1e308, "high": 1e308}},
]
HOSTILE_VALUES = [
    None,
    *HOSTILE_NUMBERS,
    *HOSTILE_TEXTS,
    *HOSTILE_CONTAINERS,
    *HOSTILE_BINNINGS,
]

JSON_CHANGES = ("drop", "add", "scale", "replace", "replace")  # replacing finds most
BYTE_CHANGES = ("overwrite", "cut", "insert bytes", "repeat", "insert value")

MAX_MUTATIONS_OF_JSON = 3
MAX_MUTATIONS_OF_BYTES = 5

# Files that are sealed by a digest are refused at once where it does not fit. Most mutants get one
# that does, as a forger would write, so that what lies behind this check is reached too.
RESEALED_FRACTION = 0.8
DEEPLY_NESTED_FRACTION = 0.03
STRUCTURED_FRACTION_OF_JSON = 0.8  # the others are broken as bytes
STRUCTURED_FRACTION_OF_ARCHIVES = 0.6


def mutate_file(kind: str, content: bytes, rng: np.random.Generator) -> bytes:
    """Break a valid file of this kind: its structure where it has one, or its bytes."""
    if kind == "npz" and rng.random() < STRUCTURED_FRACTION_OF_ARCHIVES:
        return mutate_archive(content, rng)

    is_json_object = content.startswith(b"{") and b"\n" not in content
    if is_json_object and rng.random() < STRUCTURED_FRACTION_OF_JSON:
        return mutate_json(content, rng)

    return mutate_bytes(content, rng)


def mutate_json(content: bytes, rng: np.random.Generator) -> bytes:
    """Change one to three values or fields of a JSON document."""
    document = json.loads(content)
    for _ in range(rng.integers(1, MAX_MUTATIONS_OF_JSON + 1)):
        path = choose(json_paths(document), rng)
        if path:  # the document as a whole stays
            _change_json_value(document, path, rng)

    is_sealed = isinstance(document, dict) and "body" in document
    if is_sealed and rng.random() < RESEALED_FRACTION:
        document["digest"] = sha256_of(_compact_json(document["body"]))

    mutated = _compact_json(document)
    if rng.random() < DEEPLY_NESTED_FRACTION:
        depth = int(rng.integers(10, 5000))
        mutated = mutated.replace(b"1", b"[" * depth, 1)
    return mutated


def mutate_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Overwrite, cut, repeat or insert bytes at one to five positions."""
    mutated = bytearray(content)
    for _ in range(rng.integers(1, MAX_MUTATIONS_OF_BYTES + 1)):
        position = int(rng.integers(len(mutated) + 1))
        change = choose(BYTE_CHANGES, rng)
        if change == "overwrite" and position < len(mutated):
            mutated[position] = int(rng.integers(256))
        elif change == "cut":
            del mutated[position:]
        elif change == "insert bytes":
            mutated[position:position] = rng.bytes(int(rng.integers(1, 9)))
        elif change == "repeat":
            mutated[position:position] = mutated[max(0, position - 40) : position]
        else:
            text = str(choose(HOSTILE_VALUES, rng))[:80]
            mutated[position:position] = text.encode("utf-8", "replace")
    return bytes(mutated)


def mutate_archive(content: bytes, rng: np.random.Generator) -> bytes:
    """Break the arrays inside a zip archive that itself stays whole."""
    source = zipfile.ZipFile(io.BytesIO(content))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, mutate_bytes(source.read(name), rng))
    return stream.getvalue()


def json_paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths (keys and positions) to a JSON value and to all that it contains.

    Of a list only the first, the middle and the last element are entered: histograms have a
    thousand, and all paths are equally likely to be chosen.
    """
    paths = [prefix]
    if isinstance(value, dict):
        for key in value:
            paths += json_paths(value[key], (*prefix, key))
    elif isinstance(value, list) and value:
        for position in sorted({0, len(value) // 2, len(value) - 1}):
            paths += json_paths(value[position], (*prefix, position))
    return paths


def choose(options: Sequence[T], rng: np.random.Generator) -> T:
    """Draw one of the options, all equally likely."""
    return options[int(rng.integers(len(options)))]


def _change_json_value(document: Any, path: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Change a JSON document in place, at the value that a non-empty path leads to."""
    container = document
    for key in path[:-1]:
        container = container[key]
    key = path[-1]
    is_object = isinstance(container, dict)
    is_number = isinstance(container[key], (int, float))

    change = choose(JSON_CHANGES, rng)
    if change == "drop" and is_object:
        del container[key]
    elif change == "add" and is_object:
        unknown_key = str(choose(HOSTILE_VALUES, rng))[:50]
        container[unknown_key] = 1
    elif change == "scale" and is_number:
        container[key] = container[key] * int(rng.integers(-3, 10**6)) + 1
    else:
        container[key] = copy.deepcopy(choose(HOSTILE_VALUES, rng))


def _compact_json(value: Any) -> bytes:
    """Write JSON without blanks, as the files of the package are."""
    return json.dumps(value, separators=(",", ":")).encode()
