"""Structs that are files: JSON with a kind, a schema, a digest over the body, and a signature.

The digest shows damage, not forgery: whoever alters a file can compute it anew. A signature by the
server's key shows both.
"""

from __future__ import annotations

import hashlib
import os
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np

from robfcp._files import decode_error_reason, read_bounded, write_atomically
from robfcp.errors import RobfcpError
from robfcp.reports import signing

F = TypeVar("F", bound="SealedFile")
FilePath = str | os.PathLike[str]
_CALLED = {
    "alarms": "a record of alarms",
    "monitor": "a monitor's state",
    "record": "a calibration's record",
    "report": "a site's report",
    "signed-report": "a site's signed report",
    "e-report": "a monitor's e-report",
    "privacy-ledger": "a privacy ledger",
    "letter": "a site's letter",
    "calibration": "a calibration",
}


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


class _FileHeader(msgspec.Struct):
    kind: str = ""
    schema: int = 0


def sha256_of(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _written(value: object) -> object:
    """What stands in a file for what JSON does not know."""
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} cannot be written")


def file_kind(data: bytes | str) -> str:
    """What kind of file this says it is; empty where it says nothing."""
    try:
        return msgspec.json.decode(data, type=_FileHeader).kind
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct that is a sealed file: its fields are the body, checked whenever it is read."""

    kind: ClassVar[str]
    hint: ClassVar[str]
    max_bytes: ClassVar[int] = 2**28
    is_private: ClassVar[bool] = True  # for its owner's eyes alone

    def find_contradiction(self) -> str:
        """What is wrong with it beyond the types of its fields; empty where nothing is."""
        return ""

    def body(self) -> Any:
        """What the file holds: the fields, where some are not written otherwise."""
        return self

    def to_json(self, key: Any = None) -> bytes:
        """The file: one JSON object, sealed by a digest.

        Parameters
        ----------
        key
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.

        Returns
        -------
        bytes
            What `from_json` reads.
        """
        data = msgspec.json.encode(self.body(), enc_hook=_written)
        file = Envelope(self.kind, 1, sha256_of(data), msgspec.Raw(data))
        if key is not None:
            file.key = signing.encode_public_key(key)
            file.signature = signing.sign_bytes(key, _signature_domain(file), data)
        return msgspec.json.encode(file)

    @classmethod
    def from_json(cls: type[F], data: bytes | str, source: str = "") -> F:
        """What the file holds, or one line that says what is wrong with it.

        Parameters
        ----------
        data
            The file's contents.
        source
            How errors name it.
        """
        source, kind, called = source or cls.kind, cls.kind, _CALLED[cls.kind]
        try:
            header = msgspec.json.decode(data, type=_FileHeader)
            if header.kind != kind:
                other = _CALLED.get(header.kind, "another kind of file")
                raise RobfcpError(f"{source}: is {other}, not {called}; {cls.hint}")
            if header.schema != 1:
                raise RobfcpError(
                    f"{source}: {kind} schema {header.schema} is unknown to this version "
                    "(it reads 1); update robfcp"
                )
            envelope = msgspec.json.decode(data, type=Envelope)
            if sha256_of(bytes(envelope.body)) != envelope.digest:
                raise RobfcpError(
                    f"{source}: the digest does not fit the contents: the file was altered or "
                    "damaged; calibrate again from the reports"
                )
            read = msgspec.json.decode(envelope.body, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as error:
            cause = error.__cause__
            why = str(cause) if isinstance(cause, RobfcpError) else decode_error_reason(error)
            raise cls.unreadable(source, why) from None
        problem = read.find_contradiction()
        if problem:
            raise RobfcpError(f"{source}: {problem}; {cls.hint}")
        return read

    @classmethod
    def unreadable(cls, source: str, why: str) -> RobfcpError:
        """Return the error for a file of this kind whose contents cannot be understood.

        Parameters
        ----------
        source : str
            How errors name the file.
        why : str
            What is wrong with its contents.
        """
        return RobfcpError(f"{source or cls.kind}: not {_CALLED[cls.kind]} ({why}); {cls.hint}")

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write it whole or not at all, and never more than can be read back.

        Parameters
        ----------
        path
            The file; an old one is replaced.
        key
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        data = self.to_json(key)
        if len(data) > self.max_bytes:
            raise RobfcpError(f"{path}: would be too large to be read back; begin another file")
        write_atomically(path, data, private=self.is_private)

    @classmethod
    def load(cls: type[F], path: FilePath, server_key: str | None = None) -> F:
        """What a file holds.

        Parameters
        ----------
        path
            A file that `save` wrote.
        server_key
            The server's public key: a file that it has not signed is refused. Without it whoever
            can write the file can make it say anything; its digest shows accidents only.
        """
        data = read_bounded(path, cls.max_bytes)
        if server_key is not None:
            check_signer(data, server_key, os.fspath(path))
        return cls.from_json(data, os.fspath(path))


def check_signer(data: bytes | str, server_key: str, source: str) -> None:
    """Refuse a sealed file that is not signed by this public key."""
    try:
        found = msgspec.json.decode(data, type=Envelope)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"not a sealed file ({decode_error_reason(error)}); use one of robfcp's"
        ) from None
    if not found.signature:
        raise RobfcpError(f"{source}: is not signed; ask the server to calibrate --sign")
    signed = found.signature, _signature_domain(found), bytes(found.body)
    if not signing.valid_signature(server_key, *signed):
        raise RobfcpError(
            f"{source}: is not signed by the pinned key {server_key}; do not use it, and ask the "
            "server over a channel you trust"
        )


def _signature_domain(found: Envelope) -> bytes:
    """What keeps a signature over one kind of file from meaning anything about another."""
    return f"robfcp signed {found.kind} {found.schema}\n".encode()
