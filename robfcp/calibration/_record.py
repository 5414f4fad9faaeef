"""The record of a calibration: reports and verdicts, kept by the server for auditors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np

from robfcp._files import read_bounded
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._typing import BoolArray, FloatArray
from robfcp._validation import MAX_SAMPLES, check_client_name
from robfcp.calibration._document import CONTRADICTION, RoundSummary
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, RejectedReport, RoundStrata, rebuild_from_record
from robfcp.guarantees import Guarantee, LabelShiftGuarantee
from robfcp.reports import Report, Strata, StratumNames, check_stratum_names, terms

DefenseParameters = dict[str, bool | int | float | str | None]


class FederationDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The reports of a round as they stand in the file of a record.

    Attributes
    ----------
    reports : tuple of msgspec.Raw
        The accepted reports, each as it was sent.
    verification : Verification
        How each part of the reports was checked.
    rejected_reports : tuple of RejectedReport
        The rejected reports.
    missing_clients : tuple of str
        The registered clients that sent nothing.
    sizes_registered : bool
        Whether the numbers of samples were registered beforehand.
    sizes_known : bool
        Whether the numbers of samples are exact.
    sample_sizes : dict of str to int
        The registered numbers of samples of clients whose reports hide theirs.
    strata : tuple of kind and names, optional
        The classes or groups of the round.
    class_names : tuple of str or int, optional
        The classes that class totals are of.
    """

    reports: tuple[msgspec.Raw, ...]
    verification: terms.Verification
    rejected_reports: tuple[RejectedReport, ...] = ()
    missing_clients: tuple[str, ...] = ()
    sizes_registered: bool = False
    sizes_known: bool = True
    sample_sizes: dict[str, int] = {}
    strata: Strata | None = None
    class_names: StratumNames | None = None

    @staticmethod
    def from_federation(federation: Federation) -> FederationDocument:
        """Return what stands in a file for a federation.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        """
        # Reports without noise state their sizes; where noise may hide some, all are written.
        registered_sizes: dict[str, int] = {}
        if federation.has_private_reports and federation.sizes_known:
            sizes = federation.sample_sizes.tolist()
            registered_sizes = dict(zip(federation.clients, sizes, strict=True))

        strata = None
        if federation.strata is not None:
            strata = (federation.strata.by, federation.strata.names)

        class_names = None
        if federation.class_totals is not None:
            class_names = federation.class_totals.names

        reports = b"[" + b",".join(federation.to_json()) + b"]"
        return FederationDocument(
            reports=msgspec.Raw(reports),  # type: ignore[arg-type]
            verification=federation.verification,
            rejected_reports=federation.rejected_reports,
            missing_clients=federation.missing_clients,
            sizes_registered=federation.sizes_registered,
            sizes_known=federation.sizes_known,
            sample_sizes=registered_sizes,
            strata=strata,
            class_names=class_names,
        )

    def to_federation(self) -> Federation:
        """Return the federation; every report is validated as when it arrived.

        A file is untrusted input: names are checked here, reports by `rebuild_from_record`.

        Raises
        ------
        RobfcpError
            Where a report or a name is not valid.
        """
        for client in self.missing_clients:
            check_client_name(client)
        strata = None
        if self.strata is not None:
            kind, names = self.strata
            strata = (kind, check_stratum_names(kind, names))
        class_names = None
        if self.class_names is not None:
            class_names = check_stratum_names("class", self.class_names)
        round_strata = RoundStrata(strata, class_names)
        reports = rebuild_from_record(map(bytes, self.reports), self.sample_sizes, round_strata)
        return Federation(
            **reports,
            verification=self.verification,
            rejected_reports=self.rejected_reports,
            missing_clients=self.missing_clients,
            sizes_registered=self.sizes_registered,
            sizes_known=self.sizes_known,
        )


class RecordDocument(SealedFile, frozen=True, forbid_unknown_fields=True):
    """What stands in the file of a record.

    The fields are the keys of the file. `Record` says what they mean.
    """

    kind: ClassVar[str] = "record"
    hint: ClassVar[str] = "pass the file that robfcp calibrate wrote beside the calibration"
    max_bytes: ClassVar[int] = 2**32

    federation: FederationDocument
    maliciousness: dict[str, float]
    flagged: dict[str, str]
    notes: tuple[str, ...]
    defense: str
    parameters: DefenseParameters
    guarantee: Guarantee | None = None
    clusters: dict[str, str] | None = None
    trusted_report: dict[str, Any] | None = None
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Record:
    """What a calibration rests on.

    Attributes
    ----------
    federation : Federation
        The validated reports, of K clients.
    maliciousness : ndarray of float, shape (K,)
        The maliciousness score that the defense gives each client, in the defense's unit and the
        order of the federation.
    reasons : mapping of str to str
        The excluded clients by name, each with the reason, which may be empty. Whoever is not among
        them is benign.
    notes : tuple of str
        What else must be said; it may name clients.
    defense : str
        The defense by name; `custom:NAME` for one that cannot be written down. Name and parameters
        are those of `robfcp.defense.recorded_parameters`.
    parameters : dict
        The parameters that make the same defense again, by `robfcp.defense.rebuild_defense`.
    guarantee : Guarantee or None
        What the thresholds guarantee, if anything was asked for.
    clusters : dict of str to str, optional
        The cluster of each class or group, where some share a threshold.
    trusted_report : Report or None
        The report of the server's trusted samples, which hold the threshold.
    provenance : mapping
        An integration's account of the round.
    file_digest : str
        SHA-256 of the file that the record was read from; empty where it was not read.
    """

    federation: Federation
    maliciousness: FloatArray
    reasons: Mapping[str, str]
    notes: tuple[str, ...]
    defense: str
    parameters: DefenseParameters
    guarantee: Guarantee | None = None
    clusters: dict[str, str] | None = None
    trusted_report: Report | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    file_digest: str = ""

    @cached_property
    def benign_mask(self) -> BoolArray:
        """(K,) the clients that the threshold rests on."""
        clients = self.federation.clients
        return np.array([client not in self.reasons for client in clients], dtype=bool)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the record's file: of the one it was read from, else of that it would make."""
        return self.file_digest or sha256_of(self.to_json())

    @property
    def heterogeneity_within_classes(self) -> float:
        """How far benign clients' score CDFs within a class were declared to be from a common one.

        The largest Kolmogorov distance; 0 without such a declaration.
        """
        if isinstance(self.guarantee, LabelShiftGuarantee):
            return self.guarantee.heterogeneity
        return 0.0

    @property
    def summary(self) -> RoundSummary:
        """How many clients became what."""
        federation = self.federation
        return RoundSummary(
            n_clients=federation.n_clients,
            n_samples=federation.n_samples,
            n_benign=federation.n_clients - len(self.reasons),
            n_flagged=len(self.reasons),
            n_rejected=len(federation.rejected_reports),
            n_missing=len(federation.missing_clients),
            binning=federation.binning.digest,
            round=federation.round,
            model=federation.model,
        )

    def find_contradiction(self) -> str:
        """Return what verdicts cannot say of the reports beside them; empty if nothing is wrong."""
        sizes = self.federation.sample_sizes
        clients = set(self.federation.clients)
        if not ((sizes > 0) & (sizes <= MAX_SAMPLES)).all():
            return f"{CONTRADICTION} (a size is impossible)"
        if np.isnan(self.maliciousness).any():
            return f"{CONTRADICTION} (oddness is not one a site)"
        if not set(self.reasons) <= clients:
            return f"{CONTRADICTION} (a flagged site did not report)"
        if not self.benign_mask.any():
            return f"{CONTRADICTION} (nobody is trusted)"
        return ""

    def to_document(self) -> RecordDocument:
        """Return what stands in the file of the record."""
        clients = self.federation.clients
        trusted_report = None
        if self.trusted_report is not None:
            trusted_report = msgspec.json.decode(self.trusted_report.to_json())
        return RecordDocument(
            federation=FederationDocument.from_federation(self.federation),
            maliciousness=dict(zip(clients, self.maliciousness.tolist(), strict=True)),
            flagged=dict(self.reasons),
            notes=self.notes,
            defense=self.defense,
            parameters=self.parameters,
            guarantee=self.guarantee,
            clusters=self.clusters,
            trusted_report=trusted_report,
            provenance=dict(self.provenance),
        )

    def to_json(self) -> bytes:
        """Return the file of the record: one JSON object, sealed by a digest."""
        return self.to_document().to_json()

    @staticmethod
    def from_json(data: bytes, source: str = "") -> Record:
        """Read a record; every report is validated as when it arrived.

        Parameters
        ----------
        data : bytes
            The contents of the file.
        source : str
            How errors name it.

        Raises
        ------
        RobfcpError
            Where it is no record, or its parts contradict each other.
        """
        document = RecordDocument.from_json(data, source)
        try:
            federation = document.federation.to_federation()
            trusted_report = None
            if document.trusted_report is not None:
                trusted_report = Report.from_json(msgspec.json.encode(document.trusted_report))
        except RobfcpError as error:
            raise RecordDocument.unreadable(source, str(error)) from None

        record = Record(
            federation=federation,
            maliciousness=_maliciousness_of_clients(document.maliciousness, federation),
            reasons=document.flagged,
            notes=document.notes,
            defense=document.defense,
            parameters=document.parameters,
            guarantee=document.guarantee,
            clusters=document.clusters,
            trusted_report=trusted_report,
            provenance=document.provenance,
            file_digest=sha256_of(data),
        )
        contradiction = record.find_contradiction()
        if contradiction:
            raise RobfcpError(
                f"{source or RecordDocument.kind}: {contradiction}; {RecordDocument.hint}"
            )
        return record

    @staticmethod
    def load(path: FilePath) -> Record:
        """Read a record from its file, as `from_json` does.

        Parameters
        ----------
        path : str or PathLike
            The file.
        """
        return Record.from_json(read_bounded(path, RecordDocument.max_bytes), str(path))

    def save(self, path: FilePath) -> None:
        """Write the file of the record, whole or not at all; only its owner can read it.

        Parameters
        ----------
        path : str or PathLike
            The file; an old one is replaced.
        """
        self.to_document().save(path)


def _maliciousness_of_clients(values: Mapping[str, float], federation: Federation) -> FloatArray:
    """Return (K,) the scores in the order of the clients; NaN where a client has none.

    All are NaN where there are scores of others, too. `Record.find_contradiction` refuses NaN.

    Parameters
    ----------
    values : mapping of str to float
        The scores by client, as they stand in a file.
    federation : Federation
        The K clients.
    """
    if len(values) != federation.n_clients:
        return np.full(federation.n_clients, np.nan)
    return np.array([values.get(client, np.nan) for client in federation.clients])
