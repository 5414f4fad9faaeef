"""Signatures around any JSON of a site, each kind in a domain of its own."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from robfcp.errors import ReportError, RobfcpError
from robfcp.report.checks import check_client
from robfcp.report.signing import public_text, valid_signature
from robfcp.report.wire import claimed_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Signed(msgspec.Struct, forbid_unknown_fields=True):
    """A body's bytes exactly as they were signed."""

    kind: str
    key: str
    signature: str
    body: msgspec.Raw


def sign_raw(raw: bytes, key: Ed25519PrivateKey, domain: bytes, kind: str) -> bytes:
    """The JSON with a signature over domain and bytes."""
    signature = base64.b64encode(key.sign(domain + raw)).decode()
    return msgspec.json.encode(Signed(kind, public_text(key), signature, msgspec.Raw(raw)))


def inside(data: bytes, kind: str) -> bytes:
    """The body of a signed file of this kind, its signature unchecked; anything else as it is."""
    try:
        found = msgspec.json.decode(data, type=Signed)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return data
    return bytes(found.body) if found.kind == kind else data


def verify_raw(
    data: bytes, keys: Mapping[str, str], domain: bytes, kind: str, source: str
) -> bytes:
    """The body, signed by the registered key of the client it names, or one line why not."""
    raw = inside(data, kind)
    client = _claimed_client(raw, source)
    if client not in keys:
        raise ReportError(client, "client", "is not registered", "add its key to the registry")
    if raw is data:
        raise ReportError(client, "signature", f"is no {kind}", "sign it with --sign")
    signed = msgspec.json.decode(data, type=Signed)
    right = signed.key == keys[client]
    if not right or not valid_signature(keys[client], signed.signature, domain, raw):
        raise ReportError(
            client,
            "signature",
            "the signature is not by its registered key",
            "sign it as it is with the site's own key",
        )
    return raw


def _claimed_client(raw: bytes, source: str) -> str:
    client = claimed_name(raw)
    try:
        check_client(client)
    except RobfcpError:
        return source
    return str(client)
