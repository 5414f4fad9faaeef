"""What `calibrate` was told, as the record keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from robfcp.arguments import share, whole
from robfcp.defence import Parameters
from robfcp.errors import RobfcpError
from robfcp.guarantees import Exchangeability, GuaranteeKind
from robfcp.report import By

Guarantee = GuaranteeKind
WrittenMix = dict[str, float] | str | list[dict[str, float] | str | float | list[float]]
WrittenClusters = dict[str, str] | list[str]


@dataclass(frozen=True)
class Settings:
    """How a calibration was made: what `calibrate` was told, for the auditor.

    `defence` and `parameters` make the same defence again; one that cannot be written down is
    recorded as `custom:NAME`.
    """

    defence: str = "consensus"
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

    def check_guarantee(self) -> None:
        """Refuse options that do not go together."""
        if self.size_budget is not None and self.guarantee != "marginal":
            raise RobfcpError("size_budget: only guarantee='marginal' takes one; set it or drop it")
        if self.mix is not None and self.guarantee not in (None, "pac"):
            raise RobfcpError("mix: is a PAC guarantee of its own; leave guarantee out")
        if self.mix is not None and self.label_shift is None:
            raise RobfcpError(
                "label_shift: a threshold for a mix needs it declared; pass label_shift=0 if "
                "honest sites agree within classes"
            )
        if self.label_shift is not None and self.guarantee != "pac" and self.mix is None:
            raise RobfcpError("label_shift: goes with guarantee='pac' or mix=; set one or drop it")
        if self.by is not None and (self.mix or self.label_shift is not None):
            raise RobfcpError("by: thresholds by class need neither mix nor label_shift; drop them")
        if self.label_shift is not None and self.heterogeneity is not None:
            raise RobfcpError("heterogeneity: label_shift prunes by class in its place; drop one")
        bounded = self.malicious != "estimate" or self.size_budget is not None
        if (self.guarantee or self.mix) is not None and not bounded:
            raise RobfcpError(
                "malicious: a guarantee needs a number stated beforehand, not an estimate; "
                "pass malicious=m (--malicious M), the most sites you think could lie"
            )

    def _set(self, option: str, kind: Callable[..., float], remedy: str, **ends: bool) -> None:
        """The option as a plain number, whatever library it came from."""
        object.__setattr__(self, option, kind(option, getattr(self, option), remedy, **ends))


_WORDS = {
    "by": (None, *get_args(By)),
    "exchangeability": get_args(Exchangeability),
    "guarantee": (None, *get_args(Guarantee)),
}


def plain_mix(mix: Any) -> Any:
    """A label mix in plain numbers, so that it is the same once written and read."""
    if isinstance(mix, Mapping):
        return {str(name): plain_mix(share) for name, share in mix.items()}
    if isinstance(mix, np.ndarray):
        return plain_mix(mix.tolist())
    if isinstance(mix, Sequence) and not isinstance(mix, str):
        return [plain_mix(one) for one in mix]
    if isinstance(mix, (int, float, np.number)) and not isinstance(mix, bool):
        return float(mix)
    return mix


def plain_clusters(clusters: Mapping[str, str] | Sequence[str] | None) -> WrittenClusters | None:
    """The clusters as a calibration's settings keep them."""
    if clusters is None:
        return None
    if isinstance(clusters, Mapping):
        return {str(name): str(cluster) for name, cluster in clusters.items()}
    return [str(name) for name in clusters]
