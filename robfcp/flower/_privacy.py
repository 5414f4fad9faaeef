"""What privacy a node's answers have: what its own site says, before what the app says."""

from __future__ import annotations

import os
from typing import Any, cast

from flwr.app import ConfigRecord, Context

from robfcp.errors import RobfcpError
from robfcp.flower._messages import RECORD
from robfcp.privacy import Ledger, Privacy

_KEYS = ("delta", "neighbours", "samples-per-patient", "rounds")

Path = str | os.PathLike[str] | None


def site_privacy(context: Context, privacy: Privacy | None, ledger: Path) -> tuple[Any, Path]:
    """The privacy and the ledger of this node: its own config's, if that states an epsilon.

    A site sets `epsilon`, `delta`, `neighbours`, `samples-per-patient`, `rounds` and
    `privacy-ledger` where it starts its node, out of the server's reach.
    """
    config = context.node_config
    if "epsilon" not in config:
        return privacy, ledger
    settings = {key.replace("-", "_"): config[key] for key in _KEYS if key in config}
    stated = Privacy(cast(Any, config["epsilon"]), **cast(Any, settings))
    return stated, cast(Path, config.get("privacy-ledger", ledger))


def answered_before(context: Context, body: bytes) -> bytes | None:
    """The report that this very request was given, so that asking again reveals nothing new."""
    before = context.state.get(RECORD)
    if isinstance(before, ConfigRecord) and before["request"] == body:
        return cast(bytes, before["report"])
    return None


def charge(context: Context, privacy: Privacy, ledger: Path, round: str | None) -> None:
    """Spend one of the rounds of the budget, in the ledger and in what the node remembers."""
    if released(context) >= privacy.rounds:
        raise RobfcpError(
            f"privacy: all {privacy.rounds} reports of the budget have been sent; "
            "state more rounds beforehand or use fresh calibration data"
        )
    if ledger is not None:
        Ledger(ledger).charge(privacy, round)


def released(context: Context) -> int:
    """How many private reports this node remembers to have sent."""
    before = context.state.get(RECORD)
    return cast(int, before["releases"]) if isinstance(before, ConfigRecord) else 0


def remember(context: Context, body: bytes, report: bytes) -> None:
    """Keep the last answer and count it."""
    entry = {"request": body, "report": report, "releases": released(context) + 1}
    context.state[RECORD] = ConfigRecord(cast(Any, entry))
