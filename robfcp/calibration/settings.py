"""What `calibrate` was told, as the record keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from robfcp._util.numbers import share, whole
from robfcp.defence import Parameters
from robfcp.errors import RobfcpError
from robfcp.guarantees import Exchangeability, GuaranteeKind
from robfcp.reports import By

Guarantee = GuaranteeKind
WrittenMix = dict[str, float] | str | list[dict[str, float] | str | float | list[float]]
WrittenClusters = dict[str, str] | list[str]


@dataclass(frozen=True)
class Settings:
    """How a calibration was made: what `calibrate` was told, for the auditor.

    `defence` and `parameters` make the same defence again; one that cannot be written down is
    recorded as `custom:NAME`.
    """

    defence: str = "band"
    parameters: Parameters = field(default_factory=dict)  # the defence's own
    malicious: int | Literal["estimate"] = "estimate"
    exchangeability: Exchangeability = "partial"
    guarantee: Guarantee | None = None
    heterogeneity: float | None = None
    certificate_confidence: float = 0.95
    max_share: float | None = None
    size_budget: int | None = None
    by: By | None = None
    joint: bool = True
    label_shift: float | None = None
    mix: WrittenMix | None = None
    clusters: WrittenClusters | None = None

    def __post_init__(self) -> None:
        for option, words in _WORDS.items():
            if getattr(self, option) not in words:
                known = ", ".join(map(repr, words))
                raise RobfcpError(f"{option}: {getattr(self, option)!r} is unknown; use {known}")
        if not (isinstance(self.malicious, str) and self.malicious == "estimate"):
            self._set("malicious", whole, "state how many may lie, or 'estimate'")
        if self.heterogeneity is not None:
            self._set("heterogeneity", share, "give 0.02, say", zero=True, one=True)
        if self.label_shift is not None:
            self._set("label_shift", share, "give 0, or 0.02, say", zero=True, one=True)
        if self.max_share is not None:
            self._set("max_share", share, "give 0.2, say", one=True)
        if self.size_budget is not None:
            self._set("size_budget", whole, "give a number of samples")
        self._set("certificate_confidence", share, "give 0.95, say")

    def _set(self, option: str, kind: Callable[..., float], remedy: str, **ends: bool) -> None:
        """The option as a plain number, whatever library it came from."""
        object.__setattr__(self, option, kind(option, getattr(self, option), remedy, **ends))


_WORDS = {
    "by": (None, *get_args(By)),
    "exchangeability": get_args(Exchangeability),
    "guarantee": (None, *get_args(Guarantee)),
}
