"""Who made a calibration or letter: the server's Ed25519 signature around the sealed file's bytes.

The digest inside every file shows accidents; only a signature by a key the reader has pinned shows
that nobody else made the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from robfcp.calibration.sealed import Envelope, envelope_of
from robfcp.errors import RobfcpError
from robfcp.reports import public_text, sign_bytes, valid_signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign_sealed(data: bytes, key: Ed25519PrivateKey) -> bytes:
    """The same sealed file with the key's signature over its kind, schema and body."""
    found = envelope_of(data)
    signature = sign_bytes(key, _domain(found), bytes(found.body))
    return msgspec.json.encode(
        msgspec.structs.replace(found, key=public_text(key), signature=signature)
    )


def check_signer(data: bytes | str, server_key: str, source: str) -> None:
    """Refuse a sealed file that is not signed by this public key."""
    found = envelope_of(data)
    if not found.signature:
        raise RobfcpError(
            f"{source}: is not signed; ask the server for one made with calibrate --sign"
        )
    genuine = valid_signature(server_key, found.signature, _domain(found), bytes(found.body))
    if found.key != server_key or not genuine:
        raise RobfcpError(
            f"{source}: is not signed by the pinned key {server_key}; do not use it, and ask the "
            "server over a channel you trust"
        )


def _domain(found: Envelope) -> bytes:
    """What keeps a signature over one kind of file from meaning anything about another."""
    return f"robfcp signed {found.kind} {found.schema}\n".encode()
