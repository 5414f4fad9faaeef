"""Ed25519 signatures of reports, for federations without a framework that checks identities.

A signed file holds the report's bytes as they are, the client's public key and a signature over the
bytes, in a domain for each kind of report. The round's name is in the report, so that it cannot be
used again in another round.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from robfcp._files import os_error_reason, read_bounded, write_atomically
from robfcp._validation import are_client_names
from robfcp.errors import ReportError, RobfcpError
from robfcp.reports._wire import claimed_client

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"
MAX_KEY_BYTES = 10_000  # of a file that holds a key

# The points of small order on the curve, by their y coordinate: anybody can sign for such a key.
_PRIME = 2**255 - 19
_Y_OF_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_Y_OF_SMALL_ORDER = (0, 1, _PRIME - 1, _Y_OF_ORDER_8, _PRIME - _Y_OF_ORDER_8)


class SignableReport(Protocol):
    """What a client signs: a report, or the report of a monitor.

    Attributes
    ----------
    KIND : str
        The kind of report, in whose domain it is signed.
    client : str
        The client it is of.
    round : str or None
        The round it is for; it must have one to be signed.
    """

    KIND: ClassVar[str]

    @property
    def client(self) -> str:
        """The client's name."""

    @property
    def round(self) -> str | None:
        """The round's name."""

    def to_json(self) -> bytes:
        """Return the report as JSON."""

    @staticmethod
    def from_json(data: bytes | str, source: str = "") -> Any:
        """Return the report in untrusted JSON; raise ReportError where it is not valid."""


R = TypeVar("R", bound=SignableReport)


class SignedMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A file that holds a signed report; its fields are the keys of the file.

    Attributes
    ----------
    kind : str
        "signed-report", say.
    key : str
        The public key that signed it, as the file states it.
    signature : str
        In base64.
    body : msgspec.Raw
        The report's bytes exactly as they were signed.
    """

    kind: str
    key: str
    signature: str
    body: msgspec.Raw

    @property
    def is_valid(self) -> bool:
        """Whether the signature is by the key that the file states, in the domain of the kind."""
        domain = signature_domain(self.kind)
        try:
            return valid_signature(self.key, self.signature, domain, bytes(self.body))
        except RobfcpError:
            return False


def generate_key(path: str | os.PathLike[str]) -> str:
    """Write a new private key that only its owner can read, and PATH.pub.

    Parameters
    ----------
    path : path-like
        Where the private key goes; no file may be there.

    Returns
    -------
    str
        The public key.
    """
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
        raise RobfcpError(
            f"{path}: cannot be written ({os_error_reason(error)}); choose another place"
        ) from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(pem)
    write_atomically(f"{os.fspath(path)}.pub", encode_public_key(key) + "\n")
    return encode_public_key(key)


def load_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """Return the private key in a file written by `generate_key`."""
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(read_bounded(path, MAX_KEY_BYTES), password=None)
    except RobfcpError:
        raise
    except Exception:  # of kinds that differ between versions of cryptography
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise RobfcpError(f"{path}: is not an Ed25519 private key; make one with robfcp keygen")
    if os.name != "nt" and os.stat(path).st_mode & 0o077:
        raise RobfcpError(f"{path}: others can read this private key; run chmod 600 {path}")
    return key


def encode_public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key as it stands in a registry."""
    return PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign_bytes(key: Ed25519PrivateKey, domain: bytes, data: bytes) -> str:
    """Return the signature over data in a domain, in base64."""
    return base64.b64encode(key.sign(domain + data)).decode()


def valid_signature(key: str, signature: str, domain: bytes, data: bytes) -> bool:
    """Return whether a signature over data in a domain is by this public key."""
    from cryptography.exceptions import InvalidSignature

    try:
        raw_signature = base64.b64decode(signature, validate=True)
        public_key("key", key).verify(raw_signature, domain + data)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public_key(text: str) -> str:
    """Return a public key as it stands in a registry.

    Parameters
    ----------
    text : str
        The key, or the path of the file that keygen wrote.
    """
    if not text.startswith(PREFIX):
        content = read_bounded(text, MAX_KEY_BYTES).decode("utf-8", "replace")
        text = _first_key(content)
    public_key("--server-key", text)
    return text


def _first_key(content: str) -> str:
    """Return the first token of a file that begins like a public key; empty where none does."""
    for token in content.split():
        candidate = token.strip('"')
        if candidate.startswith(PREFIX):
            return candidate
    return ""


def signature_domain(kind: str) -> bytes:
    """Return what is signed before the data, so that a signature is valid for one kind only."""
    return f"robfcp {kind} 1\n".encode()


def sign(report: SignableReport, key: Ed25519PrivateKey) -> bytes:
    """Return the signed report as JSON; it must name its round, or it could be used again."""
    if report.round is None:
        problem = f"a signed {report.KIND} must name its round"
        raise ReportError(report.client, "round", problem, "give round (--round)")
    kind = f"signed-{report.KIND}"
    data = report.to_json()
    signature = sign_bytes(key, signature_domain(kind), data)
    message = SignedMessage(kind, encode_public_key(key), signature, msgspec.Raw(data))
    return msgspec.json.encode(message)


def looks_signed(data: bytes) -> bool:
    """Return whether a file could be a signed report; where not, nothing needs to be decoded."""
    return b"signed-report" in data or b"\\u" in data  # the kind may be spelled in escapes


def check_embedded_key(data: bytes, source: str) -> bool:
    """Return whether a file is signed; refuse one whose signature is not by the key it states."""
    signed = _signed(data)
    if signed is not None and not signed.is_valid:
        problem = "the signature is not by the key the report names"
        raise ReportError(_claimed(data, source), "signature", problem, "sign the report as it is")
    return signed is not None


def unwrap(data: bytes) -> bytes:
    """Return the report in a signed file, its signature unchecked; any other file as it is."""
    signed = _signed(data)
    return data if signed is None else bytes(signed.body)


def verify(
    data: bytes, report_type: type[R], keys: Mapping[str, str], round: str, source: str = ""
) -> R:
    """Read the report in a signed file of this round.

    Parameters
    ----------
    data : bytes
        The file.
    report_type : type
        Of which kind it must be: a report, or the report of a monitor.
    keys : mapping of str to str
        The registered public key of every client; "" where it is no longer valid.
    round : str
        The round it must be for.
    source : str
        How errors name the file until its client is known.

    Returns
    -------
    SignableReport
        The report, of that type.

    Raises
    ------
    ReportError
        Where it is not signed by its client's registered key, or not for this round.
    """
    client = _claimed(data, source or report_type.KIND)
    signed = _signed(data)

    # Who claims to have signed it, and whether that client may.
    if client not in keys:
        raise ReportError(client, "client", "is not registered", "add its key to the registry")
    if signed is None or signed.kind != f"signed-{report_type.KIND}":
        problem = f"the {report_type.KIND} is not signed"
        raise ReportError(client, "signature", problem, "sign it with --sign")
    if not keys[client]:
        problem = "its key has expired or was revoked"
        raise ReportError(client, "signature", problem, "register a new one")

    # Whether it is that client's signature, over a report of this round.
    if signed.key != keys[client] or not signed.is_valid:
        problem = "the signature is not by its registered key"
        raise ReportError(client, "signature", problem, "sign it with the site's own key")
    report: R = report_type.from_json(bytes(signed.body), client)
    if report.round != round:
        problem = f"signed for round {report.round}, not {round}: a replay"
        raise ReportError(client, "round", problem, "make one of this round")
    return report


def _signed(data: bytes) -> SignedMessage | None:
    """Return a file as a signed message; None where it is none."""
    try:
        return msgspec.json.decode(data, type=SignedMessage)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _claimed(data: bytes, source: str) -> str:
    """Return the client that a file states, signed or not; `source` where it states none."""
    client = claimed_client(unwrap(data))
    if client is not None and are_client_names([client])[0]:
        return client
    return source


def public_key(client: str, text: str) -> Any:
    """Return a public key of the type of cryptography; refuse a text that is none.

    Parameters
    ----------
    client : str
        How errors name its owner.
    text : str
        The key as it stands in a registry.
    """
    ed25519, _ = _cryptography()
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        encoded = text[len(PREFIX) :]
        raw = base64.b64decode(encoded, validate=True)
        is_canonical = base64.b64encode(raw).decode() == encoded

        # The highest bit is the sign of x; the others are y, little-endian (RFC 8032, 5.1.2).
        y = int.from_bytes(raw, "little") % 2**255 % _PRIME
        if not is_canonical or y in _Y_OF_SMALL_ORDER:
            raise ValueError
        return ed25519.Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise RobfcpError(
            f"{client}: key is not an Ed25519 public key; paste the line robfcp keygen printed"
        ) from None


def _cryptography() -> tuple[Any, Any]:
    """Import the modules for Ed25519 keys and for their files."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise RobfcpError(
            "signatures: cryptography is not installed; pip install 'robfcp[signatures]'"
        ) from None
    return ed25519, serialization
