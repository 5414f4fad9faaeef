"""What a report states besides its client and its numbers; most of a round's are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from robfcp.binning import Binning, named_binning
from robfcp.privacy import Privacy
from robfcp.reports._strata import StratumKind, StratumNames, n_strata
from robfcp.scores import Risk, Score


@dataclass(frozen=True)
class BinningDigest:
    """What is kept of a binning until the vote: a few bytes can name thousands of edges.

    Parameters
    ----------
    digest
        What the edges make; equal digests are one binning.
    n_bins
        H.
    name, parameters
        How the binning is built again.
    explicit
        The binning itself where nothing but its edges tells it.
    """

    digest: str
    n_bins: int = field(compare=False)
    name: str = field(compare=False)
    parameters: Mapping[str, Any] = field(compare=False)
    explicit: Binning | None = field(compare=False)

    def __str__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"

    @staticmethod
    def of(binning: Binning) -> BinningDigest:
        """Return the digest of a binning."""
        parameters = binning.parameters
        explicit = None if parameters else binning
        return BinningDigest(binning.digest, binning.n_bins, binning.name, parameters, explicit)

    def binning(self) -> Binning:
        """Build the binning."""
        if self.explicit is not None:
            return self.explicit
        return named_binning(self.name, self.parameters)


class Header(NamedTuple):
    """What a report states besides its client and its numbers."""

    binning: BinningDigest
    score: Score | None
    round: str | None
    model: str | None
    risk: Risk | None
    privacy: Privacy | None = None
    strata: tuple[StratumKind, StratumNames] | None = None

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups; 1 without them."""
        return 1 if self.strata is None else n_strata(self.strata[1])

    @property
    def counts_per_sample(self) -> int:
        """How many counts one sample makes; 1 but for losses."""
        return 1 if self.risk is None else self.risk.resolution

    @property
    def noise_variance(self) -> float:
        """The variance of the noise on each count."""
        return 0.0 if self.privacy is None else self.privacy.noise.variance

    @property
    def protects_sample_size(self) -> bool:
        """Whether n_k is protected too."""
        return self.privacy is not None and self.privacy.protects_sample_size
