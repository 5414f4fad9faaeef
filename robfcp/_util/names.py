"""Names that look like others: blanks at the ends, invisible letters, alphabets mixed."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

RESERVED = ("file:", "report #")  # how sources without a client's name are called
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_ALIKE = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE", "COPTIC")  # share shapes


def deceptive(name: str) -> str:
    """Why a name could be taken for another one; empty where it could not."""
    if name.isascii() and name == name.strip() and not name.startswith(RESERVED):
        return ""
    if name != name.strip():
        return "begins or ends with a blank"
    if name.startswith(RESERVED):
        return "begins like the name of a file or of a report without a name"
    if any(letter in _INVISIBLE or "\ufe00" <= letter <= "\ufe0f" for letter in name):
        return "holds a letter that cannot be seen"
    if unicodedata.normalize("NFKC", name) != name:
        return "holds letters that have a plainer form"
    found = {
        script
        for letter in name
        if letter.isalpha()
        for script in _ALIKE
        if unicodedata.name(letter, "").startswith(script)
    }
    if len(found) > 1:
        return f"mixes {' and '.join(sorted(word.title() for word in found))} letters"
    return ""


def a_few(names: Sequence[str], most: int = 5) -> str:
    """The first names in one line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
