"""A whole run from its configuration, in the same words on every engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from robfcp.calibration import Calibration
from robfcp.defense import Consensus, get_defense
from robfcp.errors import RobfcpError
from robfcp.guarantees import get_guarantee
from robfcp.integrations._requests import POLL_PAUSE_SECONDS, Transport
from robfcp.integrations._round import (
    CollectionSettings,
    register_sample_sizes,
    run_transport_round,
    send_feedback,
)
from robfcp.privacy import parse_binning
from robfcp.reports import terms
from robfcp.rounds import RoundFiles, RoundSettings
from robfcp.scores import get_score

UNKNOWN = "unknown"  # what `liars` says where no number is stated
PATH_KEYS = ("output", "replies")  # must be absolute
GUARANTEE_KEYS = ("liars", "alike", "mix")

DEFAULTS: Mapping[str, Any] = {  # of a run's configuration, in the same words on every engine
    "score": "lac",
    "grid": "",  # the score's own; "uniform:100" and the like
    "coverage": 0.9,
    "defence": Consensus.name,
    "liars": UNKNOWN,  # or the most sites that may lie
    "promise": "",  # marginal, pac, label-shift
    "alike": "",  # by how much sites may differ, where that is promised
    "mix": "",  # of labels, where they may shift: uniform, any
    "confidence": 0.95,  # with which certificates hold
    "sizes": "ask",  # beforehand; "none", or the absolute path of a registry
    "keys": "",  # absolute path of a registry of public keys; unsigned reports are refused
    "quorum": 0.5,
    "deadline": 60.0,
    "poll": 1.0,
    "min-nodes": 2,  # wait for so many before the start, at most `deadline` seconds
    "invited": "",  # all registered sites' names, with blanks between: who is offline is missing
    "check": True,  # tell the sites the threshold and note what they claim to cover
    "letters": False,  # send each site its letter afterwards
    "replies": "",  # absolute path of a folder: many sites' reports wait there, also for a crash
    "output": "",  # absolute path of the calibration
}

log = logging.getLogger(__name__)


def run_configured_round(
    engine: Transport,
    config: Mapping[str, Any],
    run_id: int | str | None = None,
    train: Callable[[], object] | None = None,
) -> Calibration:
    """Run what a configuration describes: sizes, training, the round, its file and the feedback.

    Parameters
    ----------
    engine : Transport
        Carries the requests.
    config : mapping
        All of `DEFAULTS`; what it cannot mean is refused before anybody is asked.
    run_id : int or str, optional
        The number of the engine's run, for the record.
    train : callable, optional
        Trains the model between the sizes, which are fixed before, and the reports.

    Returns
    -------
    Calibration
    """
    _check_configuration(config)
    guarantee_options = _stated_guarantee_options(config)
    guarantee = None
    if config["promise"]:
        guarantee = get_guarantee(str(config["promise"]), **guarantee_options)
    collection = _collection_settings(config)

    # The number of malicious clients is an option of the guarantee, or else of the defense.
    max_malicious = None
    if guarantee is None:
        max_malicious = guarantee_options.get("liars")
    settings = RoundSettings(
        coverage=config["coverage"],
        defense=get_defense(str(config["defence"]), max_malicious),
        guarantee=guarantee,
        certificate_confidence=config["confidence"],
    )
    files = RoundFiles()
    if config["output"]:
        files = RoundFiles(calibration=Path(str(config["output"])))

    _wait_for_clients(engine, int(config["min-nodes"]))
    registered_sizes = _registered_sizes(engine, str(config["sizes"]))
    if train is not None:
        train()
    collection = replace(collection, registered_sizes=registered_sizes, run_id=run_id)
    calibration = run_transport_round(engine, collection, settings, files).calibration

    for level in calibration.levels:
        log.warning("threshold %.6g: %s", level.threshold, level.certificate.statement)
    if config["letters"]:
        send_feedback(engine, calibration)
    return calibration


def _check_configuration(config: Mapping[str, Any]) -> None:
    """Refuse paths that are not absolute, and a number of malicious clients that is none."""
    for key in PATH_KEYS:
        path = str(config[key])
        if path and not Path(path).is_absolute():
            raise RobfcpError(f"{key}: {path} is not absolute; nobody knows where this app runs")
    if config["liars"] != UNKNOWN and not isinstance(config["liars"], int):
        raise RobfcpError("liars: neither a number nor 'unknown'; fix the run config")


def _stated_guarantee_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a guarantee that the configuration states."""
    return {key: config[key] for key in GUARANTEE_KEYS if config[key] not in ("", UNKNOWN)}


def _collection_settings(config: Mapping[str, Any]) -> CollectionSettings:
    """Return whose reports are collected, but for what the clients are asked beforehand."""
    return CollectionSettings(
        score=get_score(str(config["score"])),
        binning=parse_binning(str(config["grid"])) if config["grid"] else None,
        keys=terms.read_keys(str(config["keys"])) if config["keys"] else None,
        expected_clients=str(config["invited"]).split(),
        reply_folder=str(config["replies"]) or None,
        quorum=config["quorum"],
        evaluate=config["check"],
    )


def _wait_for_clients(engine: Transport, n_wanted: int) -> None:
    """Wait until so many clients are there, or the deadline is over."""
    end = monotonic() + engine.deadline
    n_present = len(engine.present())
    while n_present < n_wanted and monotonic() < end:
        sleep(min(POLL_PAUSE_SECONDS, engine.poll))
        n_present = len(engine.present())
    if n_present < n_wanted:
        log.warning("%d of %d sites; going on without the rest", n_present, n_wanted)


def _registered_sizes(engine: Transport, source: str) -> Mapping[str, int] | None:
    """Return who may report with how many samples: nobody said, what the clients say, a file."""
    if source == "none":
        return None
    if source == "ask":
        return register_sample_sizes(engine)
    return terms.read_registered_sizes(Path(source))
