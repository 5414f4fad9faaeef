"""Unknown keys of a configuration: which known key was probably meant."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from robfcp._suggestions import suggest_names
from robfcp.errors import RobfcpError

# Words that other tools, other spellings and robfcp's command line use for a key.
CONFIG_SYNONYMS: Mapping[str, tuple[str, ...]] = {  # of a run configuration
    "alike": ("heterogeneity",),
    "check": ("evaluate",),
    "clients": ("expected-clients",),
    "confidence": ("certificate-confidence",),
    "confidence-level": ("coverage",),
    "defence": ("defense",),
    "feedback": ("send-feedback",),
    "floor": ("min-coverage",),
    "grid": ("binning",),
    "invited": ("expected-clients",),
    "letters": ("send-feedback",),
    "liars": ("max-malicious",),
    "min-nodes": ("min-clients",),
    "mix": ("label-distribution",),
    "n-malicious": ("max-malicious",),
    "promise": ("guarantee",),
    "replies": ("reply-folder",),
    "sizes": ("registered-sizes",),
}
POLICY_SYNONYMS: Mapping[str, tuple[str, ...]] = {  # of a client's policy
    "by-class": ("stratify-by-class",),
    "dataset": ("privacy-dataset",),
    "delta": ("dp-delta",),
    "epsilon": ("dp-epsilon",),
    "fine": ("min-cell-count",),
    "fresh": ("fresh-data-fn",),
    "grid": ("privacy-binning",),
    "least": ("min-class-count",),
    "ledger": ("privacy-ledger",),
    "letter-folder": ("feedback-dir",),
    "letters": ("feedback-dir",),
    "monitor-folder": ("monitor-dir",),
    "neighbours": ("neighbors",),
    "output-folder": ("output-dir",),
    "outputs": ("predict-fn",),
    "pooled": ("stratify-by-class",),
    "privacy-grid": ("privacy-binning",),
    "privacy-samples": ("declared-samples",),
    "rounds": ("n-rounds",),
    "samples": ("declared-samples",),
    "samples-per-patient": ("max-samples-per-patient",),
    "score": ("privacy-score",),
    "withhold-labels": ("stratify-by-class",),
}

log = logging.getLogger(__name__)


def suggest_key(
    key: str, known_keys: Sequence[str], synonyms: Mapping[str, tuple[str, ...]]
) -> str | None:
    """Return the known key that was probably meant; None if none is close.

    Parameters
    ----------
    key : str
        An unknown key.
    known_keys : sequence of str
        The keys that could have been meant.
    synonyms : mapping of str to tuple of str
        Known keys by other words for them.

    Examples
    --------
    >>> from robfcp.integrations._keys import CONFIG_SYNONYMS, suggest_key
    >>> suggest_key("liars", ["max-malicious", "binning"], CONFIG_SYNONYMS)
    'max-malicious'
    >>> suggest_key("max_malicous", ["max-malicious", "binning"], {})
    'max-malicious'
    """
    meant_keys = suggest_names(key.lower().replace("_", "-"), known_keys, synonyms)
    return meant_keys[0] if meant_keys else None


def require_known_keys(
    config: Iterable[str],
    known_keys: Sequence[str],
    synonyms: Mapping[str, tuple[str, ...]],
    source: str | os.PathLike[str] = "",
) -> None:
    """Refuse an unknown key, with the known key that was probably meant.

    Parameters
    ----------
    config : iterable of str
        The keys of a configuration.
    known_keys : sequence of str
        All keys that it may have.
    synonyms : mapping of str to tuple of str
        Known keys by other words for them.
    source : path, optional
        The file of the configuration.
    """
    for key in config:
        if key in known_keys:
            continue
        subject = f"{os.fspath(source)}: {key!r}" if source else f"{key}:"
        suggestion = suggest_key(key, known_keys, synonyms)
        if suggestion is not None:
            raise RobfcpError(f"{subject} is unknown; did you mean {suggestion}?")
        raise RobfcpError(f"{subject} is unknown; use {', '.join(known_keys)}")


def warn_of_synonyms(
    config: Iterable[str], known_keys: Sequence[str], synonyms: Mapping[str, tuple[str, ...]]
) -> None:
    """Log a warning for each other word for a known key, where other programs add keys too.

    Parameters
    ----------
    config : iterable of str
        The keys of a configuration.
    known_keys : sequence of str
        The keys of robfcp.
    synonyms : mapping of str to tuple of str
        Known keys by other words for them.
    """
    for key in config:
        meant_keys = synonyms.get(key.lower().replace("_", "-"), ())
        if key not in known_keys and meant_keys and meant_keys[0] in known_keys:
            log.warning("%s: robfcp does not read this key; did you mean %s?", key, meant_keys[0])
