"""Who may report, and under which terms: the registry of clients and the terms of a round."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from robfcp._files import decode_error_reason, read_bounded, write_atomically
from robfcp._validation import MAX_SAMPLES, check_client_name
from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy, parse_binning
from robfcp.reports._coarsening import MAX_MIN_CELL_COUNT
from robfcp.reports.signing import public_key, sign_bytes, signature_domain, valid_signature
from robfcp.scores import get_score

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FilePath = str | os.PathLike[str]
MAX_TERMS_BYTES = 100_000
_DOMAIN = signature_domain("signed terms")


class RegisteredClient(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="kebab"):
    """A client's entry in a registry.

    Attributes
    ----------
    n_samples : int or None
        How many calibration samples it has.
    key : str or None
        Its public key.
    not_after : date or None
        The last day on which its key is valid.
    """

    n_samples: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLES)] | None = None
    key: str | None = None
    not_after: date | None = None


def read_registry(path: FilePath) -> dict[str, RegisteredClient]:
    """Return each client's entry, from JSON or TOML; a number alone is its samples."""
    path = Path(path)
    is_toml = path.suffix == ".toml"
    remedy = 'write ["site-1"] and key = "ed25519:..."' if is_toml else "write {site: samples}"
    table = _decode_file(path, read_bounded(path), remedy, is_toml=is_toml)
    if not isinstance(table, dict) or not table:
        raise RobfcpError(f"{path}: registers nobody; map site names to samples or keys")
    registry = {}
    for client, entry in table.items():
        check_client_name(client)
        registry[client] = _read_entry(path, client, entry)
    return registry


def _read_entry(path: Path, client: str, entry: Any) -> RegisteredClient:
    """Return what a registry states of one client: a table, or its number of samples alone."""
    if not isinstance(entry, dict):
        entry = {"n-samples": entry}
    if isinstance(entry.get("not-after"), datetime):
        entry = {**entry, "not-after": str(entry["not-after"])}  # which is no date, and refused
    try:
        return msgspec.convert(entry, RegisteredClient)
    except msgspec.ValidationError as error:
        raise RobfcpError(
            f"{path}: {client}: "
            f"{decode_error_reason(error, RegisteredClient.__struct_encode_fields__)}; "
            "use n-samples = 500 (an integer), "
            'key = "ed25519:..." as robfcp keygen wrote it, not-after = "2027-12-31"'
        ) from None


def read_registered_sizes(path: FilePath) -> dict[str, int]:
    """Return how many samples each registered client has."""
    sizes = {}
    for client, entry in read_registry(path).items():
        if entry.n_samples is None:
            raise RobfcpError(f"{path}: {client} has no number of samples; add n-samples = ...")
        sizes[client] = entry.n_samples
    return sizes


def read_keys(
    path: FilePath, revoked: FilePath | None = None, today: date | None = None
) -> dict[str, str]:
    """Return each registered client's public key.

    Parameters
    ----------
    path : path-like
        The registry.
    revoked : path-like, optional
        A file of public keys that are no longer valid, one a line.
    today : date, optional
        The day on which keys may have expired; today in UTC if None.

    Returns
    -------
    dict of str to str
        The key of every client; "" where it has expired or is on the revoked list.
    """
    if today is None:
        today = datetime.now(timezone.utc).date()
    revoked_keys = set() if revoked is None else read_revoked_keys(revoked)

    owners: dict[str, str] = {}
    keys = {}
    for client, entry in read_registry(path).items():
        if entry.key is None:
            raise RobfcpError(f"{path}: {client} has no key; add the line robfcp keygen printed")
        public_key(client, entry.key)
        owner = owners.setdefault(entry.key, client)
        if owner != client:
            raise RobfcpError(
                f"{path}: {client} has the key of {owner}; one of them must make "
                "its own with robfcp keygen"
            )
        has_expired = entry.not_after is not None and today > entry.not_after
        is_void = has_expired or entry.key in revoked_keys
        keys[client] = "" if is_void else entry.key
    return keys


def read_revoked_keys(path: FilePath) -> set[str]:
    """Return the public keys that are no longer valid.

    Parameters
    ----------
    path : path-like
        A list of them, one a line; # begins a comment.
    """
    lines = read_bounded(path, 10**6).decode("utf-8", "replace").splitlines()
    keys = {line.split("#")[0].strip() for line in lines} - {""}
    for key in keys:
        public_key(str(path), key)
    return keys


class RoundTerms(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="kebab"):
    """The terms of a round, a small TOML file that the server signs; None was not agreed.

    round = "2026-05"
    model = "sha256:..."
    score = "lac"
    binning = "logistic:16"
    epsilon = 1.0
    delta = 1e-6
    min_cell_count = 5
    """

    round: str | None = None
    model: str | None = None
    score: str | None = None
    binning: str | None = None
    dp_epsilon: float | None = None
    dp_delta: float | None = None
    min_cell_count: int | None = None

    @property
    def expected_context(self) -> dict[str, Any]:
        """What every report must have, by name; None where nothing was agreed.

        The names are "binning", "score", "round", "model", "privacy" and "min_cell_count".
        """
        privacy = None
        if self.dp_epsilon is not None:
            privacy = Privacy(self.dp_epsilon, self.dp_delta or 0.0)
        elif self.dp_delta is not None:
            raise RobfcpError("dp-delta: belongs to dp-epsilon; give both (--dp-epsilon)")
        return {
            "binning": None if self.binning is None else parse_binning(self.binning),
            "score": None if self.score is None else get_score(self.score),
            "round": self.round,
            "model": self.model,
            "privacy": privacy,
            "min_cell_count": self.min_cell_count,
        }

    def complete(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the caller expects of every report, completed by what was agreed.

        Parameters
        ----------
        expected : mapping of str to object
            The keys of `expected_context`; None where the caller expects nothing.

        Raises
        ------
        RobfcpError
            Where the caller expects something else than what was agreed.
        """
        completed = dict(expected)
        for name, agreed in self.expected_context.items():
            if agreed is None:
                continue
            value = expected[name]
            if value is not None and value != agreed:
                raise RobfcpError(f"{name}: {value} is not what was agreed ({agreed}); drop it")
            completed[name] = agreed
        return completed

    def with_options(self, **options: Any) -> RoundTerms:
        """Return the terms with the options of a call, refused where these contradict the terms."""
        given_options = {name: value for name, value in options.items() if value is not None}
        for name, value in given_options.items():
            agreed = getattr(self, name)
            if agreed is not None and agreed != value:
                option = name.replace("_", "-")
                raise RobfcpError(
                    f"--{option}: {value} is not what was agreed ({agreed}); drop one"
                )
        return msgspec.structs.replace(self, **given_options)


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each field of the reports was checked, in words that stand in the record.

    Attributes
    ----------
    signatures : str
        "not checked", "by registered keys", or what a federated-learning framework checks.
    sample_sizes : str
        "registered" beforehand, or "claimed" by the clients.
    binning, score, round, model : str
        "given" by the server, or "majority of reports".
    """

    signatures: str = "not checked"
    sample_sizes: str = "claimed"
    binning: str = "majority of reports"
    score: str = "majority of reports"
    round: str = "majority of reports"
    model: str = "majority of reports"


def read_terms(path: FilePath, server_key: str | None = None) -> RoundTerms:
    """Return the terms in a file.

    Parameters
    ----------
    path : path-like
        The file.
    server_key : str, optional
        The public key by which PATH.sig must be a signature of the file; not checked if None.
    """
    data = read_bounded(path, MAX_TERMS_BYTES)
    if server_key is not None:
        signature = read_bounded(f"{os.fspath(path)}.sig", 1000).decode("ascii", "replace").strip()
        if not valid_signature(server_key, signature, _DOMAIN, data):
            raise RobfcpError(
                f"{os.fspath(path)}: is not signed by the pinned key {server_key}; ask the server"
            )
    fields = f"use {', '.join(RoundTerms.__struct_encode_fields__)}"
    table = _decode_file(path, data, f"write name = value; {fields}")
    try:
        terms = msgspec.convert(table, RoundTerms)
    except msgspec.ValidationError as error:
        reason = decode_error_reason(error, RoundTerms.__struct_encode_fields__)
        raise RobfcpError(f"{os.fspath(path)}: {reason}; {fields}") from None
    min_cell_count = terms.min_cell_count
    if min_cell_count is not None and not 1 <= min_cell_count <= MAX_MIN_CELL_COUNT:
        raise RobfcpError(
            f"{os.fspath(path)}: min-cell-count is {min_cell_count}; give 1 to {MAX_MIN_CELL_COUNT}"
        )
    return terms


def sign_terms(path: FilePath, key: Ed25519PrivateKey) -> str:
    """Write PATH.sig, the server's signature over the file as it is; return its path."""
    read_terms(path)  # which refuses a file that is none
    target = f"{os.fspath(path)}.sig"
    signature = sign_bytes(key, _DOMAIN, read_bounded(path, MAX_TERMS_BYTES))
    write_atomically(target, signature + "\n")
    return target


def _decode_file(path: FilePath, data: bytes, remedy: str, is_toml: bool = True) -> Any:
    """Return the value of a TOML or JSON file; refuse with one line a file that is neither."""
    try:
        if not is_toml:
            return json.loads(data, object_pairs_hook=_as_distinct)
        return msgspec.toml.decode(data.decode())  # by tomllib, or tomli on Python 3.10
    except ImportError:
        raise RobfcpError("toml: needs tomli; pip install 'robfcp[signatures]'") from None
    except (ValueError, RecursionError, OverflowError) as error:
        language = "TOML" if is_toml else "JSON"
        problem = f"not {language} ({decode_error_reason(error)})"
        raise RobfcpError(f"{os.fspath(path)}: {problem}; {remedy}") from None


def _as_distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose names are all different: the last of two would win unseen."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name comes twice")
    return table
