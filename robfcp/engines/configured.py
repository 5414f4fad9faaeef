"""Rounds as a run's configuration says them, in the same words on every engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from robfcp.calibration import Calibration
from robfcp.defence import DEFAULT
from robfcp.engines.server import (
    Engine,
    calibration_round,
    monitor_round,
    register_sizes,
    send_letters,
)
from robfcp.errors import RobfcpError
from robfcp.files import write_atomically
from robfcp.monitoring import Merged
from robfcp.privacy import grid_from_text
from robfcp.report import agreement
from robfcp.scores import named_score

DEFAULTS: Mapping[str, Any] = {
    "score": "lac",
    "grid": "",  # the score's own; "uniform:100" and the like
    "confidence-level": 0.9,
    "defence": DEFAULT,
    "malicious": "estimate",  # or the most sites that may lie
    "guarantee": "",  # marginal, pac
    "sizes": "ask",  # beforehand; "none", or the absolute path of a registry
    "keys": "",  # absolute path of a registry of public keys; unsigned reports are refused
    "quorum": 0.5,
    "deadline": 60.0,
    "poll": 1.0,
    "invited": "",  # all registered sites' names, with blanks between: who is offline is missing
    "check": True,  # tell the sites the threshold and note what they claim to cover
    "letters": False,  # send each site its letter afterwards
    "output": "",  # absolute path of the calibration
}

MONITOR_DEFAULTS: Mapping[str, Any] = {
    "calibration": "",  # its absolute path
    "malicious": 0,  # the most sites that may lie
    "round": "",  # a name
    "step": 0,  # the number of the date, fixed beforehand
    "level": 0,
    "floor": None,
    "delta": 0.05,
    "independent": False,
    "deadline": 60.0,
    "poll": 1.0,
    "history": "",  # absolute path of a file that keeps every date
    "output": "",  # absolute path of what follows
}

log = logging.getLogger(__name__)


def known_words(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The same with hyphens for underscores, refused where a word is unknown.

    Examples
    --------
    >>> from robfcp.engines import DEFAULTS, known_words
    >>> known_words({"confidence_level": 0.8}, DEFAULTS)
    {'confidence-level': 0.8}
    """
    found = {word.replace("_", "-"): value for word, value in config.items()}
    for word in found:
        if word not in defaults:
            raise RobfcpError(f"{word}: is unknown; use {', '.join(defaults)}")
    return found


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse what cannot be meant before anybody is asked."""
    if config["output"] and not Path(str(config["output"])).is_absolute():
        raise RobfcpError(
            f"output: {config['output']} is not absolute; nobody knows where this app runs"
        )
    if config["malicious"] != "estimate" and not isinstance(config["malicious"], int):
        raise RobfcpError("malicious: neither a number nor 'estimate'; fix the run config")


def sizes_as_configured(engine: Engine, config: Mapping[str, Any]) -> Mapping[str, int] | None:
    """The numbers of samples: asked for, from a registry, or none."""
    if config["sizes"] == "ask":
        return register_sizes(engine)
    return None if config["sizes"] == "none" else agreement.read_sizes(Path(str(config["sizes"])))


def calibrate_as_configured(
    engine: Engine,
    config: Mapping[str, Any],
    sizes: Mapping[str, int] | None,
    run_id: int | str | None = None,
) -> Calibration:
    """The round, its calibration written, and the letters sent, all as configured."""
    calibration = calibration_round(
        engine,
        score=named_score(str(config["score"])),
        grid=grid_from_text(str(config["grid"])) if config["grid"] else None,
        sizes=sizes,
        keys=agreement.read_keys(str(config["keys"])) if config["keys"] else None,
        quorum=config["quorum"],
        check=bool(config["check"]),
        run_id=run_id,
        invited=str(config["invited"]).split(),
        confidence_level=config["confidence-level"],
        defence=config["defence"],
        malicious=config["malicious"],
        guarantee=config["guarantee"] or None,
    )
    if config["output"]:
        calibration.save(Path(str(config["output"])))
    for level in calibration.levels:
        log.warning("threshold %.6g: %s", level.threshold, level.certificate.statement)
    if config["letters"]:
        send_letters(engine, calibration)
    return calibration


def monitor_as_configured(engine: Engine, config: Mapping[str, Any]) -> Merged:
    """Ask for the sites' e-reports, merge them, and write what follows."""
    words = ("round", "step", "level", "floor", "delta", "independent")
    merged = monitor_round(
        engine,
        Calibration.load(str(config["calibration"])),
        int(config["malicious"]),
        **{word: config[word] for word in words},
        history=str(config["history"]) or None,
    )
    if config["output"]:
        found = {"alarm": merged.alarm, "drift": merged.drift, "line": merged.line}
        write_atomically(str(config["output"]), msgspec.json.encode({**found, **asdict(merged)}))
    log.warning("%s", merged.line)
    return merged
