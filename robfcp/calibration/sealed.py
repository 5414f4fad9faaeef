"""JSON with a kind, a schema number and a digest over the body: protection against accidents.

The digest shows damage, not forgery: whoever alters a file can compute it anew.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, ClassVar, TypeVar

import msgspec

from robfcp.errors import RobfcpError
from robfcp.files import read_limited, what_is_wrong, write_atomically

T = TypeVar("T")


class Envelope(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Kind, schema and digest around a body, whose bytes are digested exactly as they stand.

    A signed file has the server's public key and its signature beside.
    """

    kind: str
    schema: int
    digest: str
    body: msgspec.Raw
    key: str = ""
    signature: str = ""


_CALLED = {
    "alarms": "a record of alarms",
    "monitor": "a monitor's state",
    "chain": "a chain of rounds",
    "evidence": "a calibration's evidence",
    "report": "a site's report",
    "signed-report": "a site's signed report",
    "e-report": "a monitor's e-report",
    "privacy-ledger": "a privacy ledger",
    "letter": "a site's letter",
}
_KNOWN = {*_CALLED, "calibration"}


class _Label(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def digest_of(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def seal(kind: str, schema: int, body: Any) -> bytes:
    """The body as sealed JSON."""
    data = msgspec.json.encode(body)
    return msgspec.json.encode(Envelope(kind, schema, digest_of(data), msgspec.Raw(data)))


def kind_of(data: bytes | str) -> str:
    """What kind of file this says it is; empty where it says nothing."""
    try:
        return msgspec.json.decode(data, type=_Label).kind
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def envelope_of(data: bytes | str) -> Envelope:
    """The envelope of a sealed file, its contents unchecked."""
    try:
        return msgspec.json.decode(data, type=Envelope)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"not a sealed file ({what_is_wrong(error)}); pass one that robfcp wrote"
        ) from None


def unseal(
    data: bytes | str, kind: str, newest: int, source: str, remedy: str
) -> tuple[int, msgspec.Raw]:
    """Schema and body of a sealed file, or one line that says what is wrong with it."""
    try:
        header = msgspec.json.decode(data, type=_Label)
        if header.kind in _KNOWN and header.kind != kind:
            raise RobfcpError(f"{source}: is {_a(header.kind)}, not {_a(kind)}; {remedy}")
        if header.kind == kind and header.schema > newest:
            raise RobfcpError(
                f"{source}: {kind} schema {header.schema} is unknown to this version "
                f"(it reads 1 to {newest}); update robfcp"
            )
        envelope = msgspec.json.decode(data, type=Envelope)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(f"{source}: not {_a(kind)} ({what_is_wrong(error)}); {remedy}") from None
    if envelope.kind != kind or envelope.schema < 1:
        found = f"kind {envelope.kind!r}, schema {envelope.schema}"
        raise RobfcpError(f"{source}: not {_a(kind)} ({found}); {remedy}")
    if digest_of(bytes(envelope.body)) != envelope.digest:
        raise RobfcpError(
            f"{source}: the digest does not fit the contents: the file was altered or damaged; "
            "calibrate again from the reports"
        )
    return envelope.schema, envelope.body


def decode_body(body: msgspec.Raw, type: type[T], kind: str, source: str, remedy: str) -> T:
    """The body as a struct, or one line that says what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(f"{source}: not {_a(kind)} ({what_is_wrong(error)}); {remedy}") from None


F = TypeVar("F", bound="SealedFile")


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct that is a sealed file: its fields are the body, checked whenever it is read."""

    kind: ClassVar[str]
    remedy: ClassVar[str]
    most_bytes: ClassVar[int] = 2**28

    def problem(self) -> str:
        """What is wrong with it beyond the types of its fields; empty where nothing is."""
        return ""

    def to_json(self) -> bytes:
        """The file."""
        return seal(self.kind, 1, self)

    @classmethod
    def from_json(cls: type[F], data: bytes | str, source: str = "") -> F:
        """What the file holds, or one line that says what is wrong with it."""
        source = source or cls.kind
        _, raw = unseal(data, cls.kind, 1, source, cls.remedy)
        found = decode_body(raw, cls, cls.kind, source, cls.remedy)
        problem = found.problem()
        if problem:
            raise RobfcpError(f"{source}: {problem}; {cls.remedy}")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it whole or not at all, and never more than can be read back."""
        data = self.to_json()
        if len(data) > self.most_bytes:
            raise RobfcpError(f"{path}: would be too large to be read back; begin another file")
        write_atomically(path, data)

    @classmethod
    def load(cls: type[F], path: str | os.PathLike[str]) -> F:
        """What a file holds."""
        return cls.from_json(read_limited(path, cls.most_bytes), os.fspath(path))


def _a(kind: str) -> str:
    return _CALLED.get(kind) or (f"an {kind}" if kind[0] in "aeiou" else f"a {kind}")
