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
_SCHEMA = 1
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
_NAMES_OF_KINDS = {
    "alarm-history": "a record of alarms",
    "monitor": "a monitor's state",
    "record": "a calibration's record",
    "report": "a site's report",
    "signed-report": "a site's signed report",
    "e-value-report": "a monitor's e-value report",
    "privacy-ledger": "a privacy ledger",
    "client-feedback": "a site's letter",
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
    """What a file says that it is; other fields are not looked at."""

    kind: str = ""
    schema: int = 0


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _as_json(value: object) -> object:
    """Return what stands in a file for what JSON does not know."""
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{type(value)} cannot be written")


def file_kind(data: bytes | str) -> str:
    """Return what kind of file this says it is; empty where it says nothing."""
    try:
        return msgspec.json.decode(data, type=_FileHeader).kind
    except _DECODE_ERRORS:
        return ""


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct that is a sealed file: its fields are the body, checked whenever it is read."""

    kind: ClassVar[str]
    hint: ClassVar[str]
    max_bytes: ClassVar[int] = 2**28
    is_private: ClassVar[bool] = True  # for its owner's eyes alone

    def find_contradiction(self) -> str:
        """Return what is wrong with it beyond the types of its fields; empty where nothing is."""
        return ""

    def body(self) -> Any:
        """Return what the file holds: the fields, unless some are written otherwise."""
        return self

    def to_json(self, key: Any = None) -> bytes:
        """Return the file: one JSON object, sealed by a digest.

        Parameters
        ----------
        key : object
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.

        Returns
        -------
        bytes
            What `from_json` reads.
        """
        data = msgspec.json.encode(self.body(), enc_hook=_as_json)
        envelope = Envelope(self.kind, _SCHEMA, sha256_of(data), msgspec.Raw(data))
        if key is not None:
            envelope.key = signing.encode_public_key(key)
            envelope.signature = signing.sign_bytes(key, _signature_domain(envelope), data)
        return msgspec.json.encode(envelope)

    @classmethod
    def from_json(cls: type[F], data: bytes | str, source: str = "") -> F:
        """Return what the file holds, or raise one line that says what is wrong with it.

        Parameters
        ----------
        data : bytes or str
            The file's contents.
        source : str
            How errors name it.
        """
        source = source or cls.kind
        try:
            cls._check_header(data, source)
            envelope = msgspec.json.decode(data, type=Envelope)
            if sha256_of(bytes(envelope.body)) != envelope.digest:
                raise RobfcpError(
                    f"{source}: the digest does not fit the contents: the file was altered or "
                    "damaged; calibrate again from the reports"
                )
            instance = msgspec.json.decode(envelope.body, type=cls)
        except (*_DECODE_ERRORS, OverflowError) as error:
            # A constructor's refusal is the cause of the decoder's error.
            is_refusal = isinstance(error.__cause__, RobfcpError)
            reason = decode_error_reason(error, cls.__struct_encode_fields__)
            if is_refusal:
                reason = str(error.__cause__)
            raise cls.unreadable(source, reason) from None

        problem = instance.find_contradiction()
        if problem:
            raise RobfcpError(f"{source}: {problem}; {cls.hint}")
        return instance

    @classmethod
    def _check_header(cls, data: bytes | str, source: str) -> None:
        """Refuse a file of another kind or of an unknown schema."""
        header = msgspec.json.decode(data, type=_FileHeader)
        if header.kind != cls.kind:
            expected = _NAMES_OF_KINDS[cls.kind]
            actual = _NAMES_OF_KINDS.get(header.kind, "another kind of file")
            raise RobfcpError(f"{source}: is {actual}, not {expected}; {cls.hint}")
        if header.schema != _SCHEMA:
            raise RobfcpError(
                f"{source}: {cls.kind} schema {header.schema} is unknown to this version "
                "(it reads 1); update robfcp"
            )

    @classmethod
    def unreadable(cls, source: str, reason: str) -> RobfcpError:
        """Return the error for a file of this kind whose contents cannot be understood.

        Parameters
        ----------
        source : str
            How errors name the file.
        reason : str
            What is wrong with its contents.
        """
        expected = _NAMES_OF_KINDS[cls.kind]
        return RobfcpError(f"{source or cls.kind}: not {expected} ({reason}); {cls.hint}")

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write it whole or not at all, and never more than can be read back.

        Parameters
        ----------
        path : path
            The file; an old one is replaced.
        key : object
            The server's private key, as `robfcp.reports.signing.load_key` reads it, to sign with.
        """
        data = self.to_json(key)
        if len(data) > self.max_bytes:
            raise RobfcpError(f"{path}: would be too large to be read back; begin another file")
        write_atomically(path, data, private=self.is_private)

    @classmethod
    def load(cls: type[F], path: FilePath, server_key: str | None = None) -> F:
        """Return what a file holds.

        Parameters
        ----------
        path : path
            A file that `save` wrote.
        server_key : str, optional
            The server's public key: a file that it has not signed is refused. Without it whoever
            can write the file can make it say anything; its digest shows accidents only.
        """
        data = read_bounded(path, cls.max_bytes)
        if server_key is not None:
            check_signer(data, server_key, os.fspath(path))
        return cls.from_json(data, os.fspath(path))


def check_signer(data: bytes | str, server_key: str, source: str) -> None:
    """Refuse a sealed file that is not signed by this public key.

    Parameters
    ----------
    data : bytes or str
        The file's contents.
    server_key : str
        The public key, as text.
    source : str
        How errors name the file.
    """
    try:
        envelope = msgspec.json.decode(data, type=Envelope)
    except _DECODE_ERRORS as error:
        raise RobfcpError(
            f"not a sealed file ({decode_error_reason(error)}); use one of robfcp's"
        ) from None
    if not envelope.signature:
        raise RobfcpError(f"{source}: is not signed; ask the server to calibrate --sign")
    is_valid = signing.valid_signature(
        server_key, envelope.signature, _signature_domain(envelope), bytes(envelope.body)
    )
    if not is_valid:
        raise RobfcpError(
            f"{source}: is not signed by the pinned key {server_key}; do not use it, and ask the "
            "server over a channel you trust"
        )


def _signature_domain(envelope: Envelope) -> bytes:
    """Return what keeps a signature of one kind of file from meaning anything about another."""
    return f"robfcp signed {envelope.kind} {envelope.schema}\n".encode()
