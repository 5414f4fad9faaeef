"""A whole run from its configuration, with the same keys on every framework."""

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

UNKNOWN = "unknown"  # value of `max-malicious` where no number is given
PATH_KEYS = ("output", "reply-folder")  # must be absolute
GUARANTEE_KEYS = ("max-malicious", "heterogeneity", "label-distribution")

DEFAULTS: Mapping[str, Any] = {  # of a run's configuration, the same on every framework
    "score": "lac",
    "binning": "",  # the score's own; "uniform:100" and the like
    "coverage": 0.9,
    "defense": Consensus.name,
    "max-malicious": UNKNOWN,  # or the largest number of malicious clients
    "guarantee": "",  # marginal, pac, label-shift
    "heterogeneity": "",  # largest difference between benign clients, for guarantees that need it
    "label-distribution": "",  # of the guarantee label-shift: uniform, any
    "certificate-confidence": 0.95,  # with which certificates hold
    "registered-sizes": "request",  # before the round; "none", or the absolute path of a registry
    "keys": "",  # absolute path of a registry of public keys; unsigned reports are refused
    "quorum": 0.5,
    "deadline": 60.0,
    "poll": 1.0,
    "min-clients": 2,  # wait for this many before the start, at most `deadline` seconds
    "expected-clients": "",  # names of all registered clients, separated by spaces
    "evaluate": True,  # send the clients the threshold and record the coverage they claim
    "send-feedback": False,  # send each client its feedback after the round
    "reply-folder": "",  # absolute path of a folder that stores reports of a round until it ends
    "output": "",  # absolute path of the calibration
}

log = logging.getLogger(__name__)


def run_configured_round(
    transport: Transport,
    config: Mapping[str, Any],
    run_id: int | str | None = None,
    train: Callable[[], object] | None = None,
) -> Calibration:
    """Run what a configuration describes: sizes, training, the round, its file and the feedback.

    Parameters
    ----------
    transport : Transport
        Carries the requests.
    config : mapping
        All of `DEFAULTS`; an invalid value is refused before any client is asked.
    run_id : int or str, optional
        The number of the framework's run, for the record.
    train : callable, optional
        Trains the model between the sizes, which are fixed before, and the reports.

    Returns
    -------
    Calibration
    """
    _check_configuration(config)
    guarantee_options = _guarantee_options(config)
    guarantee = None
    if config["guarantee"]:
        guarantee = get_guarantee(str(config["guarantee"]), **guarantee_options)
    collection = _collection_settings(config)

    # The number of malicious clients is an option of the guarantee, or else of the defense.
    max_malicious = None
    if guarantee is None:
        max_malicious = guarantee_options.get("max_malicious")
    settings = RoundSettings(
        coverage=config["coverage"],
        defense=get_defense(str(config["defense"]), max_malicious),
        guarantee=guarantee,
        certificate_confidence=config["certificate-confidence"],
    )
    files = RoundFiles()
    if config["output"]:
        files = RoundFiles(calibration=Path(str(config["output"])))

    _wait_for_clients(transport, int(config["min-clients"]))
    registered_sizes = _registered_sizes(transport, str(config["registered-sizes"]))
    if train is not None:
        train()
    collection = replace(collection, registered_sizes=registered_sizes, run_id=run_id)
    calibration = run_transport_round(transport, collection, settings, files).calibration

    for level in calibration.levels:
        log.warning("threshold %.6g: %s", level.threshold, level.certificate.statement)
    if config["send-feedback"]:
        send_feedback(transport, calibration)
    return calibration


def _check_configuration(config: Mapping[str, Any]) -> None:
    """Refuse paths that are not absolute and a `max-malicious` that is not a number."""
    for key in PATH_KEYS:
        path = str(config[key])
        if path and not Path(path).is_absolute():
            raise RobfcpError(f"{key}: {path} is not absolute; give an absolute path")
    if config["max-malicious"] != UNKNOWN and not isinstance(config["max-malicious"], int):
        raise RobfcpError(
            "max-malicious: neither a number nor 'unknown'; fix the run configuration"
        )


def _guarantee_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a guarantee that the configuration holds."""
    options = {}
    for key in GUARANTEE_KEYS:
        if config[key] not in ("", UNKNOWN):
            options[key.replace("-", "_")] = config[key]
    return options


def _collection_settings(config: Mapping[str, Any]) -> CollectionSettings:
    """Return whose reports are collected, without what clients are asked before the round."""
    return CollectionSettings(
        score=get_score(str(config["score"])),
        binning=parse_binning(str(config["binning"])) if config["binning"] else None,
        keys=terms.read_keys(str(config["keys"])) if config["keys"] else None,
        expected_clients=str(config["expected-clients"]).split(),
        reply_folder=str(config["reply-folder"]) or None,
        quorum=config["quorum"],
        evaluate=config["evaluate"],
    )


def _wait_for_clients(transport: Transport, min_clients: int) -> None:
    """Wait until this many clients are present, at most until the deadline."""
    end = monotonic() + transport.deadline
    n_present = len(transport.present())
    while n_present < min_clients and monotonic() < end:
        sleep(min(POLL_PAUSE_SECONDS, transport.poll))
        n_present = len(transport.present())
    if n_present < min_clients:
        log.warning("%d of %d clients; starting without the others", n_present, min_clients)


def _registered_sizes(transport: Transport, source: str) -> Mapping[str, int] | None:
    """Return the sample sizes from a file or from the clients; None if they are not fixed."""
    if source == "none":
        return None
    if source == "request":
        return register_sample_sizes(transport)
    return terms.read_registered_sizes(Path(source))
