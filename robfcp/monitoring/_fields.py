"""What the fields of monitoring's files may hold."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from robfcp._validation import MAX_SAMPLES

OpenFraction = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAMPLES)]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]  # SHA-256
HalfDigest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # first 128 bits of a SHA-256
RowDigest = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]  # first 64 bits of a SHA-256
