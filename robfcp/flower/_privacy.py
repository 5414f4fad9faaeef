"""What a private node remembers: its last answer, so that asking again reveals nothing new."""

from __future__ import annotations

from typing import cast

from flwr.app import ConfigRecord, Context

from robfcp.flower._messages import RECORD


def answered_before(context: Context, body: bytes) -> bytes | None:
    """The report that this very request was given."""
    before = context.state.get(RECORD)
    if isinstance(before, ConfigRecord) and before["request"] == body:
        return cast(bytes, before["report"])
    return None


def remember(context: Context, body: bytes, report: bytes) -> None:
    """Keep the last answer."""
    context.state[RECORD] = ConfigRecord({"request": body, "report": report})
