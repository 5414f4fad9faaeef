"""The record of a calibration: reports and verdicts, kept by the server for auditors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from robfcp.arguments import MAX_SAMPLES, check_client
from robfcp.calibration.calibration import Summary
from robfcp.calibration.file_format import SealedFile
from robfcp.federation import Fault, Federation, taken_before
from robfcp.guarantees import LabelShift, Promise
from robfcp.report import By, Names, Report, agreement, check_strata_names


class Reports(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted reports as they stand in the file, and what became of the others.

    `sizes` are the registered ones of those who hide theirs; `strata` are the round's classes.
    """

    reports: tuple[msgspec.Raw, ...]
    checked: agreement.Checked
    faulty: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    registered: bool = False
    sizes_known: bool = True
    sizes: dict[str, int] = {}
    strata: tuple[By, Names] | None = None

    @staticmethod
    def of(federation: Federation) -> Reports:
        """What stands in a file for a federation."""
        hidden = {
            client: int(size)
            for client, size in zip(federation.ids, federation.sizes, strict=True)
            if federation.private and federation.sizes_known
        }
        by = federation.strata
        return Reports(
            **{name: getattr(federation, name) for name in _AS_THEY_ARE},
            reports=msgspec.Raw(b"[" + b",".join(federation.to_json()) + b"]"),  # type: ignore[arg-type]
            sizes=hidden,
            strata=None if by is None else (by.by, by.names),
        )

    def read(self) -> Federation:
        """The federation, every report checked as when it came."""
        for name in self.missing:
            check_client(name)
        common = self.strata and (self.strata[0], check_strata_names(*self.strata))
        told = {name: getattr(self, name) for name in _AS_THEY_ARE}
        return Federation(**taken_before(map(bytes, self.reports), self.sizes, common), **told)


_AS_THEY_ARE = ("checked", "faulty", "missing", "registered", "sizes_known")

if TYPE_CHECKING:
    Held: TypeAlias = Federation
    Numbers: TypeAlias = NDArray[np.float64]
    Words: TypeAlias = Mapping[str, str]
else:  # what stands in a file for them: the record reads it when it is made
    Held, Numbers, Words = Reports, dict[str, float], dict[str, str]


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
    remedy: ClassVar[str] = "pass the file that robfcp calibrate wrote beside the calibration"
    most_bytes: ClassVar[int] = 2**32

    federation: Held
    oddness: Numbers
    flagged: Words
    remarks: tuple[str, ...]
    defence: str
    parameters: dict[str, bool | int | float | str | None]
    promise: Promise | None = None
    clusters: dict[str, str] | None = None
    anchor: dict[str, Any] | None = None
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.federation, Reports):
            force_setattr(self, "federation", self.federation.read())
        if isinstance(self.oddness, dict):
            said, ids = self.oddness, self.federation.ids
            each = [said.get(client, np.nan) for client in ids]
            force_setattr(self, "oddness", np.array(each if len(said) == len(ids) else [np.nan]))

    @cached_property
    def trusted_mask(self) -> NDArray[np.bool_]:
        """(K,) whom the threshold rests on."""
        if (rows := getattr(self.flagged, "rows", None)) is None:
            return np.array([name not in self.flagged for name in self.federation.ids], dtype=bool)
        mask = np.ones(self.federation.n_clients, dtype=bool)
        mask[rows] = False
        return mask

    @property
    def alike_within_classes(self) -> float:
        """How far honest sites' scores may differ within a class, as declared; 0 if nothing was."""
        return self.promise.alike if isinstance(self.promise, LabelShift) else 0.0

    @property
    def trusted_samples(self) -> Report | None:
        """The report of trusted samples that held the threshold."""
        return None if self.anchor is None else Report.from_json(msgspec.json.encode(self.anchor))

    @property
    def summary(self) -> Summary:
        """How many sites became what."""
        federation = self.federation
        return Summary(
            n_clients=federation.n_clients,
            n_samples=federation.n_samples,
            n_trusted=federation.n_clients - len(self.flagged),
            n_flagged=len(self.flagged),
            n_faulty=len(federation.faulty),
            n_missing=len(federation.missing),
            grid=federation.grid.digest,
            round=federation.round,
            model=federation.model,
        )

    def problem(self) -> str:
        """Verdicts that cannot belong to the reports beside them."""
        federation, sizes = self.federation, self.federation.sizes
        wrong = {
            "a size is impossible": not ((sizes > 0) & (sizes <= MAX_SAMPLES)).all(),
            "oddness is not one a site": np.isnan(self.oddness).any(),
            "a flagged site did not report": not set(self.flagged) <= set(federation.ids),
            "nobody is trusted": not self.trusted_mask.any(),
        }
        found = next((words for words, holds in wrong.items() if holds), "")
        return found and f"the parts of the file contradict each other ({found})"

    def body(self) -> dict[str, Any]:
        """What the file holds: the reports themselves."""
        oddness = dict(zip(self.federation.ids, self.oddness.tolist(), strict=True))
        told = {"federation": Reports.of(self.federation), "oddness": oddness}
        told["flagged"] = dict(self.flagged.items())
        return {**msgspec.structs.asdict(self), **told}
