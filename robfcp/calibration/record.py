"""The JSON form of the evidence: reports in columns, sparse counts, verdicts, and a digest."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.checks import check_counts, check_evidence, check_names, checked_columns
from robfcp.calibration.evidence import Evidence
from robfcp.calibration.sealed import decode_body, seal, unseal
from robfcp.errors import RobfcpError
from robfcp.federation import Checked, Fault, Federation, Stratified, check_extent, table
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report import By, check_strata_names, wire
from robfcp.scores import Risk

KIND = "evidence"
SCHEMA = 1
_PIECE = 2**18  # numbers turned into JSON at a time
_REMEDY = "pass the file that robfcp calibrate wrote beside the calibration"


class WireFederation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted reports in columns; row k's bins are bins[starts[k]:starts[k + 1]].

    The sizes are the sums of the counts and are stated only where these hold noise.
    """

    grid: wire.WireGrid
    score: wire.WireScore | None
    round: str | None
    model: str | None
    registered: bool
    ids: list[str]
    starts: list[int]
    bins: list[int]
    counts: list[int]
    faulty: list[Fault]
    missing: list[str]
    privacy: list[Privacy | None] = []
    sizes: list[int] = []
    sizes_known: bool = True
    risk: Risk | None = None
    strata: WireStratified | None = None
    set_sizes: WireStratified | None = None


class WireStratified(msgspec.Struct, forbid_unknown_fields=True):
    """Counts by class of the clients at `rows`; row r's cells are cells[starts[r]:...]."""

    by: By
    names: list[str] | int
    rows: list[int]
    starts: list[int]
    cells: list[int]
    counts: list[int]


class EvidenceBody(msgspec.Struct, forbid_unknown_fields=True):
    """Everything the digest covers."""

    federation: WireFederation
    checked: Checked
    flagged: dict[str, str]
    oddness: list[float]
    remarks: list[str]
    provenance: dict[str, Any]


def encode_evidence(evidence: Evidence) -> bytes:
    """The evidence as sealed JSON."""
    return seal(
        KIND,
        SCHEMA,
        EvidenceBody(
            federation=_columns(evidence.federation),
            checked=evidence.federation.checked,
            flagged={client: evidence.reasons.get(client, "") for client in evidence.flagged},
            oddness=evidence.oddness.tolist(),
            remarks=list(evidence.remarks),
            provenance=dict(evidence.provenance),
        ),
    )


def decode_evidence(data: bytes | str, source: str) -> Evidence:
    """The evidence in a file, or one line that says what is wrong with it."""
    _, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
    body = decode_body(raw, EvidenceBody, KIND, source, _REMEDY)
    try:
        return _read(body)
    except RobfcpError as error:
        raise RobfcpError(
            f"{source}: the parts of the file contradict each other ({error}); "
            "calibrate again from the reports"
        ) from None


def _read(body: EvidenceBody) -> Evidence:
    federation = read_federation_columns(body.federation, body.checked)
    evidence = Evidence(
        federation=federation,
        oddness=np.array(body.oddness, dtype=np.float64),
        trusted_mask=np.array([c not in body.flagged for c in federation.ids], dtype=bool),
        reasons=body.flagged,
        remarks=tuple(body.remarks),
        provenance=body.provenance,
    )
    check_evidence(evidence)
    return evidence


def read_federation_columns(body: WireFederation, checked: Checked | None = None) -> Federation:
    """The federation, its columns refused before anything is allocated for them."""
    private = any(body.privacy)
    if body.privacy and not private:
        raise RobfcpError("privacy is stated though no report is private")
    if private and len(body.privacy) != len(body.ids):
        raise RobfcpError("privacy is not stated for every site")
    grid = wire.read_grid(body.grid)
    check_extent(len(body.ids), grid.n_bins)
    check_names(body.ids, "listed")
    check_names(body.missing, "missing")
    columns = checked_columns(body.starts, body.bins, body.counts, len(body.ids), grid.n_bins)
    check_counts(columns, np.array([p is None for p in body.privacy or (None,) * len(body.ids)]))
    counts = table(*columns, grid.n_bins)
    unit = 1 if body.risk is None else body.risk.resolution
    totals = counts.below(grid.n_bins - 1)
    if not private and body.sizes:
        raise RobfcpError("sizes are stated though no report is private")
    if not private and (totals % unit).any():
        raise RobfcpError("the losses of a site do not fall by whole samples")
    return Federation(
        ids=tuple(body.ids),
        table=counts,
        sizes=np.array(body.sizes, dtype=np.int64) if private else totals // unit,
        grid=grid,
        score=wire.read_score(body.score),
        round=body.round,
        model=body.model,
        faulty=tuple(body.faulty),
        missing=tuple(body.missing),
        registered=body.registered,
        privacy=tuple(body.privacy),
        sizes_known=body.sizes_known,
        checked=Checked() if checked is None else checked,
        risk=body.risk,
        strata=None if body.strata is None else _read_strata(body.strata, len(body.ids), grid),
        set_sizes=_read_set_sizes(body.set_sizes, len(body.ids), grid),
    )


def _columns(federation: Federation) -> WireFederation:
    starts, bins, values = (_column(column) for column in federation.entries())
    return WireFederation(
        grid=wire.wire_grid(federation.grid),
        score=wire.wire_score(federation.score),
        round=federation.round,
        model=federation.model,
        registered=federation.registered,
        ids=list(federation.ids),
        starts=starts,
        bins=bins,
        counts=values,
        faulty=list(federation.faulty),
        missing=list(federation.missing),
        privacy=list(federation.privacy),
        sizes=federation.sizes.tolist() if federation.private else [],
        sizes_known=federation.sizes_known,
        risk=federation.risk,
        strata=None if federation.strata is None else _wire_strata(federation.strata),
        set_sizes=None if federation.set_sizes is None else _wire_strata(federation.set_sizes),
    )


def _wire_strata(strata: Stratified) -> WireStratified:
    starts, cells, counts = (_column(column) for column in strata.table.entries())
    return WireStratified(
        by=strata.by,
        names=strata.names if isinstance(strata.names, int) else list(strata.names),
        rows=strata.rows.tolist(),
        starts=starts,
        cells=cells,
        counts=counts,
    )


def _read_strata(wire: WireStratified, n_clients: int, grid: Grid) -> Stratified:
    """The counts by class, refused before anything is allocated for them."""
    names = check_strata_names(
        wire.by, wire.names if isinstance(wire.names, int) else tuple(wire.names)
    )
    n_strata = names if isinstance(names, int) else len(names)
    try:
        rows = np.array(wire.rows, dtype=np.int64)
    except OverflowError:
        raise RobfcpError("counts by class belong to nobody") from None
    if rows.size and (rows[0] < 0 or rows[-1] >= n_clients or (np.diff(rows) <= 0).any()):
        raise RobfcpError("counts by class belong to nobody")
    width = n_strata * grid.n_bins
    columns = checked_columns(wire.starts, wire.cells, wire.counts, len(rows), width)
    return Stratified(wire.by, names, table(*columns, width), rows, grid.n_bins)


def _read_set_sizes(wire: WireStratified | None, n_clients: int, grid: Grid) -> Stratified | None:
    """The scores of all labels: one stratum of counts that are not negative."""
    if wire is None:
        return None
    found = _read_strata(wire, n_clients, grid)
    if found.names != 1 or min(wire.counts, default=0) < 0:
        raise RobfcpError("sizes of sets are no counts")
    return found


def _column(numbers: NDArray[np.integer[Any]]) -> Any:
    """The numbers as a JSON list, written piece by piece: Python integers take ten times more."""
    pieces = (numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE))
    return msgspec.Raw(
        b"[" + b",".join(msgspec.json.encode(piece.tolist())[1:-1] for piece in pieces) + b"]"
    )
