"""FCP's threshold: the edge at which the trusted clients' pooled counts reach the rank."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees.levels import Exchangeability, conformal_rank
from robfcp.guarantees.noisy import bounds_of


class FcpThreshold:
    """FCP's threshold on the trusted clients, at any level: the one place it is computed."""

    def __init__(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_] | None = None,
        exchangeability: Exchangeability = "partial",
    ) -> None:
        chosen = federation if trusted is None or trusted.all() else federation.subset(trusted)
        self._bounds = bounds_of(chosen)
        self._n_samples = max(1, int(self._bounds.sizes.sum()))
        self._n_clients = chosen.n_clients
        self._exchangeability = exchangeability
        self._unit = chosen.unit

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        rank = conformal_rank(
            level, self._n_samples, self._n_clients, self._exchangeability, self._unit
        )
        return self._bounds.first_reaching(rank)


def fcp_index(
    federation: Federation,
    level: Fraction,
    trusted: NDArray[np.bool_] | None = None,
    exchangeability: Exchangeability = "partial",
) -> int | None:
    """The edge of FCP's threshold on the trusted clients at one level; None = infinite."""
    return FcpThreshold(federation, trusted, exchangeability).index(level)
