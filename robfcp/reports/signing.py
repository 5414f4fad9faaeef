"""Who wrote a file: Ed25519 signatures around its bytes, for federations without an engine.

What is signed stands as it is, with the site's public key and a signature over it, each kind in a
domain of its own. The round's name lies inside, so nothing can be used again in another round.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


class SignedMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A body's bytes exactly as they were signed."""

    kind: str
    key: str
    signature: str
    body: msgspec.Raw

    @property
    def is_valid(self) -> bool:
        """Whether the signature is by the key that is named, in the domain of the kind."""
        domain = signature_domain(self.kind)
        try:
            return valid_signature(self.key, self.signature, domain, bytes(self.body))
        except RobfcpError:
            return False


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
        raise RobfcpError(
            f"{path}: cannot be written ({os_error_reason(error)}); choose another place"
        ) from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(pem)
    write_atomically(f"{os.fspath(path)}.pub", encode_public_key(key) + "\n")
    return encode_public_key(key)


def load_key(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """The private key in a file written by `generate_key`."""
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
        words = read_bounded(text, MAX_KEY_BYTES).decode("utf-8", "replace").split()
        text = _first_key([word.strip('"') for word in words])
    public_key("--server-key", text)
    return text


def _first_key(words: list[str]) -> str:
    """Return the first word that begins like a public key; empty where none does."""
    for word in words:
        if word.startswith(PREFIX):
            return word
    return ""


def signature_domain(kind: str) -> bytes:
    """What keeps a signature over one kind from meaning anything else."""
    return f"robfcp {kind} 1\n".encode()


def sign(report: Any, key: Ed25519PrivateKey) -> bytes:
    """The signed report as JSON; it must name its round, or it could be used again."""
    if report.round is None:
        problem = f"a signed {report.KIND} must name its round"
        raise ReportError(report.client, "round", problem, "give --round")
    kind = f"signed-{report.KIND}"
    data = report.to_json()
    signature = sign_bytes(key, signature_domain(kind), data)
    message = SignedMessage(kind, encode_public_key(key), signature, msgspec.Raw(data))
    return msgspec.json.encode(message)


def looks_signed(data: bytes) -> bool:
    """Whether a file could be a signed report; where it is not, nothing needs to be decoded."""
    return b"signed-report" in data or b"\\u" in data  # the word may be spelled in escapes


def check_embedded_key(data: bytes, source: str) -> bool:
    """Whether a file is signed; refused where the signature is not by the key it names itself."""
    signed = _signed(data)
    if signed is not None and not signed.is_valid:
        problem = "the signature is not by the key the report names"
        raise ReportError(_claimed(data, source), "signature", problem, "sign the report as it is")
    return signed is not None


def unwrap(data: bytes) -> bytes:
    """What is inside a signed file, its signature unchecked; anything else as it is."""
    signed = _signed(data)
    return data if signed is None else bytes(signed.body)


def verify(data: bytes, what: Any, keys: Mapping[str, str], round: str, source: str = "") -> Any:
    """Read the report in a signed file of this round.

    Parameters
    ----------
    data : bytes
        The file.
    what : type
        Of which kind it must be: a report, or the report of a monitor.
    keys : mapping of str to str
        The registered public key of every client; "" where it counts no more.
    round : str
        The round it must be for.
    source : str
        How errors name the file until its client is known.

    Returns
    -------
    object
        The report, of the kind asked for.

    Raises
    ------
    ReportError
        Where it is not signed by its client's registered key, or not for this round.
    """
    client = _claimed(data, source or what.KIND)
    signed = _signed(data)

    # Who claims to have signed it, and whether that client may.
    if client not in keys:
        raise ReportError(client, "client", "is not registered", "add its key to the registry")
    if signed is None or signed.kind != f"signed-{what.KIND}":
        problem = f"the {what.KIND} is not signed"
        raise ReportError(client, "signature", problem, "sign it with --sign")
    if not keys[client]:
        problem = "its key has expired or was revoked"
        raise ReportError(client, "signature", problem, "register a new one")

    # Whether it is that client's signature, over a report of this round.
    if signed.key != keys[client] or not signed.is_valid:
        problem = "the signature is not by its registered key"
        raise ReportError(client, "signature", problem, "sign it with the site's own key")
    report = what.from_json(bytes(signed.body), client)
    if report.round != round:
        problem = f"signed for round {report.round}, not {round}: a replay"
        raise ReportError(client, "round", problem, "make one of this round")
    return report


def _signed(data: bytes) -> SignedMessage | None:
    """Return the signed message that a file is; None where it is none."""
    try:
        return msgspec.json.decode(data, type=SignedMessage)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _claimed(data: bytes, source: str) -> str:
    """The client a file names, signed or not."""
    client = claimed_client(unwrap(data))
    if client is not None and are_client_names([client])[0]:
        return client
    return source


def public_key(client: str, text: str) -> Any:
    """The key a text spells, refused where it spells none."""
    ed25519, _ = _cryptography()
    try:
        if not text.startswith(PREFIX):
            raise ValueError
        raw = base64.b64decode(text[len(PREFIX) :], validate=True)
        is_canonical = base64.b64encode(raw).decode() == text[len(PREFIX) :]
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
