"""What an unknown name probably meant: of an option, or of a key of a file or configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

MIN_SIMILARITY = 0.7  # of a known name, from 0 to 1, to be suggested for an unknown one
MAX_SUGGESTIONS = 3


def suggest_names(
    name: str, known_names: Iterable[str], synonyms: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the known names that an unknown one probably meant, the most likely first.

    Parameters
    ----------
    name : str
        The unknown name.
    known_names : iterable of str
        The names that could have been meant.
    synonyms : mapping of str to tuple of str
        What other words for known names mean; meanings that are not known here are left out.

    Returns
    -------
    list of str
        Empty where no known name is close.

    Examples
    --------
    >>> from robfcp._suggestions import suggest_names
    >>> suggest_names("liars", ["max-malicious", "binning"], {"liars": ("max-malicious",)})
    ['max-malicious']
    >>> suggest_names("max-malicous", ["max-malicious", "binning"], {})
    ['max-malicious']
    """
    candidates = list(known_names)
    meanings = [meaning for meaning in synonyms.get(name, ()) if meaning in candidates]
    if meanings:
        return meanings
    return get_close_matches(name, candidates, n=MAX_SUGGESTIONS, cutoff=MIN_SIMILARITY)
