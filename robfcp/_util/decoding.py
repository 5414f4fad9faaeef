"""What is wrong with a file that a decoder refuses, in our words and not the decoder's."""

from __future__ import annotations

import re

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]{1,60})")
_KIND = re.compile(r"Expected `([^`]{1,60})`, got `([^`]{1,60})`")
_PLACE = re.compile(r"- at `\$?\.?([^`]{1,60})`")
_LINE = re.compile(r"line (\d+),? column (\d+)")
_BYTE = re.compile(r"byte (\d+)")


def what_is_wrong(error: Exception) -> str:
    """One short phrase about an error of a JSON or TOML decoder."""
    if isinstance(error, UnicodeError):
        return "it is no UTF-8 text"
    if isinstance(error, RecursionError):
        return "it nests too deep"
    text = str(error)
    field, kind, place = _FIELD.search(text), _KIND.search(text), _PLACE.search(text)
    where = f" at {place[1]}" if place else ""
    if field:
        return f"{field[2]!r}{where} {'is missing' if field[1][0] == 'm' else 'is not known'}"
    if kind:
        return f"{_named(kind[2])} stands{where} where {_named(kind[1])} should"
    if place:
        return f"{place[1]} is not allowed"
    if "truncated" in text:
        return "it ends too early"
    line, byte = _LINE.search(text), _BYTE.search(text)
    if line:
        return f"see line {line[1]}, column {line[2]}"
    return f"see byte {byte[1]}" if byte else "it cannot be read"


def _named(kinds: str) -> str:
    """`int | null` as people say it."""
    return " or ".join(_WORDS.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))
