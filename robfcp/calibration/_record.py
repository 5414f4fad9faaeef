"""The record of a calibration: reports and verdicts, kept by the server for auditors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from robfcp._sealed import SealedFile
from robfcp._validation import MAX_SAMPLES, check_client_name
from robfcp.calibration._calibration import RoundSummary
from robfcp.federation import Federation, RejectedReport, rebuild_from_record
from robfcp.guarantees import Guarantee, LabelShiftGuarantee
from robfcp.reports import Report, StratumKind, StratumNames, check_stratum_names, terms


class RecordedReports(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted reports as they stand in the file, and what became of the others.

    `sizes` are the registered ones of those who hide theirs; `strata` are the round's classes.
    """

    reports: tuple[msgspec.Raw, ...]
    checked: terms.Verification
    faulty: tuple[RejectedReport, ...] = ()
    missing: tuple[str, ...] = ()
    registered: bool = False
    sizes_known: bool = True
    sizes: dict[str, int] = {}
    strata: tuple[StratumKind, StratumNames] | None = None

    @staticmethod
    def of(federation: Federation) -> RecordedReports:
        """What stands in a file for a federation."""
        hidden = {
            client: int(size)
            for client, size in zip(federation.clients, federation.sample_sizes, strict=True)
            if federation.has_private_reports and federation.sizes_known
        }
        by = federation.strata
        return RecordedReports(
            **{key: getattr(federation, name) for key, name in _AS_THEY_ARE.items()},
            reports=msgspec.Raw(b"[" + b",".join(federation.to_json()) + b"]"),  # type: ignore[arg-type]
            sizes=hidden,
            strata=None if by is None else (by.by, by.names),
        )

    def read(self) -> Federation:
        """The federation, every report checked as when it came."""
        for name in self.missing:
            check_client_name(name)
        common = self.strata and (self.strata[0], check_stratum_names(*self.strata))
        told = {name: getattr(self, key) for key, name in _AS_THEY_ARE.items()}
        return Federation(
            **rebuild_from_record(map(bytes, self.reports), self.sizes, common), **told
        )


_AS_THEY_ARE = {  # the file's keys, and the attributes of a federation
    "checked": "verification",
    "faulty": "rejected_reports",
    "missing": "missing_clients",
    "registered": "sizes_registered",
    "sizes_known": "sizes_known",
}

if TYPE_CHECKING:
    Held: TypeAlias = Federation
    Numbers: TypeAlias = NDArray[np.float64]
    Words: TypeAlias = Mapping[str, str]
else:  # what stands in a file for them: the record reads it when it is made
    Held, Numbers, Words = RecordedReports, dict[str, float], dict[str, str]


class Record(SealedFile, frozen=True, eq=False, dict=True, forbid_unknown_fields=True):
    """What a calibration rests on.

    Attributes
    ----------
    federation
        The validated reports.
    oddness
        (K,) how odd the defence finds each site.
    flagged
        The sites whose valid reports it left out, each with the reason.
    remarks
        What the defence has to say, with names.
    defence, parameters
        They make the same defence again; one that cannot be written down is `custom:NAME`.
    promise
        What was promised, if anything was.
    clusters
        Which classes or groups share thresholds, where some do.
    anchor
        The server's report of trusted samples, where there was one.
    provenance
        An engine's account of the round.
    """

    kind: ClassVar[str] = "record"
    hint: ClassVar[str] = "pass the file that robfcp calibrate wrote beside the calibration"
    max_bytes: ClassVar[int] = 2**32

    federation: Held
    oddness: Numbers
    flagged: Words
    remarks: tuple[str, ...]
    defence: str
    parameters: dict[str, bool | int | float | str | None]
    promise: Guarantee | None = None
    clusters: dict[str, str] | None = None
    anchor: dict[str, Any] | None = None
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.federation, RecordedReports):
            force_setattr(self, "federation", self.federation.read())
        if isinstance(self.oddness, dict):
            said, ids = self.oddness, self.federation.clients
            each = [said.get(client, np.nan) for client in ids]
            force_setattr(self, "oddness", np.array(each if len(said) == len(ids) else [np.nan]))

    @cached_property
    def benign_mask(self) -> NDArray[np.bool_]:
        """(K,) whom the threshold rests on."""
        if (rows := getattr(self.flagged, "rows", None)) is None:
            return np.array(
                [name not in self.flagged for name in self.federation.clients], dtype=bool
            )
        mask = np.ones(self.federation.n_clients, dtype=bool)
        mask[rows] = False
        return mask

    @property
    def heterogeneity_within_classes(self) -> float:
        """How far honest sites' scores may differ within a class, as declared; 0 if nothing was."""
        return self.promise.alike if isinstance(self.promise, LabelShiftGuarantee) else 0.0

    @property
    def trusted_samples(self) -> Report | None:
        """The report of trusted samples that held the threshold."""
        return None if self.anchor is None else Report.from_json(msgspec.json.encode(self.anchor))

    @property
    def summary(self) -> RoundSummary:
        """How many sites became what."""
        federation = self.federation
        return RoundSummary(
            n_clients=federation.n_clients,
            n_samples=federation.n_samples,
            n_trusted=federation.n_clients - len(self.flagged),
            n_flagged=len(self.flagged),
            n_faulty=len(federation.rejected_reports),
            n_missing=len(federation.missing_clients),
            grid=federation.binning.digest,
            round=federation.round,
            model=federation.model,
        )

    def find_contradiction(self) -> str:
        """Verdicts that cannot belong to the reports beside them."""
        federation, sizes = self.federation, self.federation.sample_sizes
        wrong = {
            "a size is impossible": not ((sizes > 0) & (sizes <= MAX_SAMPLES)).all(),
            "oddness is not one a site": np.isnan(self.oddness).any(),
            "a flagged site did not report": not set(self.flagged) <= set(federation.clients),
            "nobody is trusted": not self.benign_mask.any(),
        }
        found = next((words for words, holds in wrong.items() if holds), "")
        return found and f"the parts of the file contradict each other ({found})"

    def body(self) -> dict[str, Any]:
        """What the file holds: the reports themselves."""
        oddness = dict(zip(self.federation.clients, self.oddness.tolist(), strict=True))
        told = {"federation": RecordedReports.of(self.federation), "oddness": oddness}
        told["flagged"] = dict(self.flagged.items())
        return {**msgspec.structs.asdict(self), **told}
