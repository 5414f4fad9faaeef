"""What stands in the JSON files of reports, schema by schema: shapes alone, read by `wire`."""

from __future__ import annotations

import msgspec

from robfcp.reports.disclosure import WirePrivacy
from robfcp.reports.strata import By

MAX_WIRE_BINS = 20_000  # of a report: twenty times the default grid

Parameter = bool | int | float | str


class WireGrid(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A grid by name and parameters, or by its finite edges; always with its digest."""

    name: str
    digest: str
    parameters: dict[str, Parameter] = {}
    edges: list[float] | None = None
    open_below: bool = False
    open_above: bool = False


class WireScore(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A score by name and parameters."""

    name: str
    parameters: dict[str, Parameter] = {}


class WireCounts(msgspec.Struct, forbid_unknown_fields=True):
    """Only the bins that are not empty, in rising order."""

    bins: list[int]
    counts: list[int]


class WireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 1 of a report."""

    schema: int
    client: str
    n_samples: int
    grid: WireGrid
    counts: list[int] | WireCounts
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class PrivateWireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 2 of a report: noisy counts and the privacy they have; n_samples unless hidden."""

    schema: int
    client: str
    grid: WireGrid
    counts: list[int] | WireCounts
    privacy: WirePrivacy
    n_samples: int | None = None
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class WireRisk(msgspec.Struct, forbid_unknown_fields=True):
    """A risk by name, bound and parts."""

    name: str
    bound: float
    resolution: int


class WireStrata(msgspec.Struct, forbid_unknown_fields=True):
    """Counts by class or group: the first cell in use, then how far each is from the one before."""

    by: By
    names: list[str] | int
    steps: list[int]
    counts: list[int]


class ExtendedWireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 3 of a report: falls of a loss; counts by class, whose sums are the counts; sizes."""

    schema: int
    client: str
    grid: WireGrid
    n_samples: int | None = None
    counts: list[int] | WireCounts | None = None
    risk: WireRisk | None = None
    strata: WireStrata | None = None
    score: WireScore | None = None
    privacy: WirePrivacy | None = None
    round: str | None = None
    model: str | None = None
    set_sizes: list[int] | WireCounts | None = None


class WireContext(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What many reports share, said once for all of them."""

    grid: WireGrid
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None
    risk: WireRisk | None = None
    privacy: WirePrivacy | None = None
    by: By | None = None
    names: list[str] | int = 0

    @property
    def exact(self) -> bool:
        """Whether counts are as they are, without noise."""
        return self.privacy is None
