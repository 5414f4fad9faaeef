"""What a calibration rests on: the reports, the verdicts and what the defence found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation


@dataclass(frozen=True, eq=False)
class Evidence:
    """The validated reports and every client's verdict; kept by the server, for auditors.

    `remarks` are the defence's, with names; `provenance` is an engine's record of the round.
    """

    federation: Federation
    oddness: NDArray[np.float64]
    trusted_mask: NDArray[np.bool_]
    reasons: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trusted(self) -> tuple[str, ...]:
        """The clients the threshold rests on."""
        return self._chosen(self.trusted_mask)

    @property
    def flagged(self) -> tuple[str, ...]:
        """The clients whose valid reports the defence left out."""
        return self._chosen(~self.trusted_mask)

    def _chosen(self, mask: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(self.federation.ids[k] for k in np.flatnonzero(mask))


@dataclass(frozen=True)
class Summary:
    """How many clients became what, and the context they reported in: all a site may know."""

    n_clients: int
    n_samples: int
    n_trusted: int
    n_flagged: int
    n_faulty: int
    n_missing: int
    grid: str
    round: str | None
    model: str | None

    @staticmethod
    def of(evidence: Evidence) -> Summary:
        """The counts of the evidence."""
        federation = evidence.federation
        trusted = int(evidence.trusted_mask.sum())
        return Summary(
            n_clients=federation.n_clients,
            n_samples=federation.n_samples,
            n_trusted=trusted,
            n_flagged=federation.n_clients - trusted,
            n_faulty=len(federation.faulty),
            n_missing=len(federation.missing),
            grid=federation.grid.digest,
            round=federation.round,
            model=federation.model,
        )
