"""Who wrote a report file: Ed25519 signatures around its bytes, for federations without an engine.

A signed report is the report as it stands, with the site's public key and a signature over it. The
round's name lies inside what is signed, so a report cannot be used again in another round.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from robfcp._util.files import read_limited, write_atomically
from robfcp.errors import ReportError, RobfcpError
from robfcp.reports.checks import check_client
from robfcp.reports.registry import read_registry
from robfcp.reports.report import Report
from robfcp.reports.wire import claimed_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOMAIN = b"robfcp signed report 1\n"  # keeps a signature from meaning anything else
PREFIX = "ed25519:"


class SignedReport(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="signed-report"
):
    """A report's bytes exactly as they were signed."""

    key: str
    signature: str
    report: msgspec.Raw


class _Kind(msgspec.Struct):
    kind: str = ""


def generate_key(path: str | os.PathLike[str]) -> str:
    """Write a new private key that only its owner can read, and PATH.pub; the public key."""
    ed25519, serialization = _cryptography()
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RobfcpError(f"{path}: exists already; keep it or choose another name") from None
    except OSError as error:
        raise RobfcpError(f"{path}: cannot be written ({error.strerror})") from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(pem)
    write_atomically(f"{os.fspath(path)}.pub", public_text(key) + "\n")
    return public_text(key)


def load_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """The private key in a file written by `generate_key`."""
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(read_limited(path, 10_000), password=None)
    except (ValueError, TypeError) as error:
        if isinstance(error, RobfcpError):
            raise
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise RobfcpError(f"{path}: is not an Ed25519 private key; make one with robfcp keygen")
    return key


def public_text(key: Ed25519PrivateKey) -> str:
    """The public key as it stands in a registry."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign_bytes(key: Ed25519PrivateKey, domain: bytes, data: bytes) -> str:
    """The signature over data of one kind, as text."""
    return base64.b64encode(key.sign(domain + data)).decode()


def valid_signature(key: str, signature: str, domain: bytes, data: bytes) -> bool:
    """Whether the signature over data of one kind is by this public key."""
    from cryptography.exceptions import InvalidSignature

    try:
        public_key("key", key).verify(base64.b64decode(signature, validate=True), domain + data)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public_key(text: str) -> str:
    """A public key as it stands in a registry, from itself or from the file keygen wrote."""
    if not text.startswith(PREFIX):
        lines = read_limited(text, 10_000).decode("utf-8", "replace").split()
        text = next((line.strip('"') for line in lines if line.strip('"').startswith(PREFIX)), "")
    public_key("--server-key", text)
    return text


def sign(report: Report, key: Ed25519PrivateKey) -> bytes:
    """The signed report as JSON; it must name its round, or it could be used again."""
    if report.round is None:
        raise ReportError(
            report.client, "round", "a signed report must name its round", "give --round"
        )
    raw = report.to_json()
    signature = sign_bytes(key, DOMAIN, raw)
    return msgspec.json.encode(SignedReport(public_text(key), signature, msgspec.Raw(raw)))


def save_signed(report: Report, key: Ed25519PrivateKey, path: str | os.PathLike[str]) -> None:
    """Write the signed report whole or not at all."""
    write_atomically(path, sign(report, key))


def unwrap(data: bytes) -> bytes:
    """The report inside a signed one, its signature unchecked; anything else as it is."""
    try:
        if msgspec.json.decode(data, type=_Kind).kind == "signed-report":
            return bytes(msgspec.json.decode(data, type=SignedReport).report)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    return data


def read_keys(path: str | os.PathLike[str]) -> dict[str, str]:
    """Each registered client's public key."""
    registry = read_registry(path)
    for client, entry in registry.items():
        if "key" not in entry:
            raise RobfcpError(f"{path}: {client} has no key; add the line robfcp keygen printed")
        public_key(client, entry["key"])
    return {client: entry["key"] for client, entry in registry.items()}


def verify(data: bytes, keys: Mapping[str, str], round: str, source: str = "report") -> Report:
    """The report in a signed file of this round, or one line that says why it is refused."""
    client = _claimed(data, source)
    if client not in keys:
        raise ReportError(client, "client", "is not registered", "add its key to the registry")
    try:
        signed = msgspec.json.decode(data, type=SignedReport)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ReportError(
            client, "signature", "the report is not signed", "use robfcp sketch --sign"
        ) from None
    raw = bytes(signed.report)
    if signed.key != keys[client] or not valid_signature(
        keys[client], signed.signature, DOMAIN, raw
    ):
        raise ReportError(
            client,
            "signature",
            "the signature is not by its registered key",
            "sign the report as it is with the site's own key",
        )
    report = Report.from_json(raw, client)
    if report.round != round:
        raise ReportError(
            client,
            "round",
            f"signed for round {report.round}, not {round}: a replay",
            "make a report of this round",
        )
    return report


def _claimed(data: bytes, source: str) -> str:
    """The client a file names, signed or not."""
    client = claimed_name(unwrap(data))
    try:
        check_client(client)
    except RobfcpError:
        return source
    return str(client)


def public_key(client: str, text: str) -> Any:
    """The key a text spells, refused where it spells none."""
    ed25519, _ = _cryptography()
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        raw = base64.b64decode(text[len(PREFIX) :], validate=True)
        return ed25519.Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise RobfcpError(
            f"{client}: key is not an Ed25519 public key; paste the line robfcp keygen printed"
        ) from None


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise RobfcpError(
            "signatures: cryptography is not installed; install robfcp[signatures]"
        ) from None
    return ed25519, serialization
