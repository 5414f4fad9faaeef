"""What was agreed for a round, in one small TOML file that the server signs and the sites check.

round = "2026-05"
model = "sha256:..."
score = "lac"
grid = "logistic:16"
epsilon = 1.0
delta = 1e-6
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from robfcp.errors import RobfcpError
from robfcp.files import read_limited, write_atomically
from robfcp.grid import Grid
from robfcp.privacy import Privacy, grid_from_text, stated_privacy
from robfcp.report.agreement import read_toml
from robfcp.report.signing import sign_bytes, valid_signature
from robfcp.scores import Score, named_score

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOMAIN = b"robfcp signed terms 1\n"
MAX_BYTES = 100_000


@dataclass(frozen=True)
class Terms:
    """The terms of a round; what is None was not agreed."""

    round: str | None = None
    model: str | None = None
    score: str | None = None
    grid: str | None = None
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = field.name in ("epsilon", "delta")
            fine = isinstance(value, (int, float)) if number else isinstance(value, str)
            if value is not None and (not fine or isinstance(value, bool)):
                raise RobfcpError(f"terms: {field.name} cannot be {value!r}; fix the file")

    @property
    def agreed_grid(self) -> Grid | None:
        """The grid, built."""
        return None if self.grid is None else grid_from_text(self.grid)

    @property
    def agreed_score(self) -> Score | None:
        """The score."""
        return None if self.score is None else named_score(self.score)

    @property
    def privacy(self) -> Privacy | None:
        """The privacy every report has."""
        return stated_privacy(self.epsilon, self.delta or 0.0)

    def joined(self, **options: Any) -> Terms:
        """The terms with what a call states besides, refused where it states something else."""
        stated = {name: value for name, value in options.items() if value is not None}
        for name, value in stated.items():
            agreed = getattr(self, name)
            if agreed is not None and agreed != value:
                raise RobfcpError(
                    f"--{name}: {value} is not what was agreed ({agreed}); drop one of them"
                )
        return replace(self, **stated)


def read_terms(path: str | os.PathLike[str], server_key: str | None = None) -> Terms:
    """The terms in a file, which must be signed by the server's key where one is given."""
    data = read_limited(path, MAX_BYTES)
    if server_key is not None:
        signature = read_limited(f"{os.fspath(path)}.sig", 1000).decode("ascii", "replace").strip()
        if not valid_signature(server_key, signature, DOMAIN, data):
            raise RobfcpError(
                f"{os.fspath(path)}: is not signed by the pinned key {server_key}; ask the server"
            )
    table = read_toml(path, data)
    unknown = set(table) - {field.name for field in fields(Terms)}
    if unknown:
        known = ", ".join(field.name for field in fields(Terms))
        raise RobfcpError(f"{os.fspath(path)}: {min(unknown)!r} is unknown; use {known}")
    return Terms(**table)


def sign_terms(path: str | os.PathLike[str], key: Ed25519PrivateKey) -> str:
    """Write PATH.sig, the server's signature over the file as it is; its place."""
    read_terms(path)
    target = f"{os.fspath(path)}.sig"
    write_atomically(target, sign_bytes(key, DOMAIN, read_limited(path, MAX_BYTES)) + "\n")
    return target
