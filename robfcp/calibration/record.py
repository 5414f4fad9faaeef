"""The record of a calibration: reports and verdicts, kept by the server for auditors."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from robfcp.arguments import MAX_SAMPLES, check_client
from robfcp.calibration.calibration import Summary
from robfcp.calibration.document import SealedFile
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation, Stratified, check_extent, table
from robfcp.grid import Grid
from robfcp.guarantees import LabelShift, Promise
from robfcp.privacy import Privacy
from robfcp.report import By, Report, agreement, check_strata_names, number_of, wire
from robfcp.scores import Risk

_PIECE = 2**18  # numbers turned into JSON at a time


class ByClassColumns(msgspec.Struct, forbid_unknown_fields=True):
    """Counts by class of the sites at `rows`; row r's cells are cells[starts[r]:...]."""

    by: By
    names: tuple[str, ...] | int
    rows: list[int]
    starts: list[int]
    cells: list[int]
    counts: list[int]


class Columns(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted reports in columns; row k's bins are bins[starts[k]:starts[k + 1]].

    The sizes are the sums of the counts and are stated only where these hold noise.
    """

    grid: wire.WireGrid
    score: wire.WireScore | None
    round: str | None
    model: str | None
    registered: bool
    checked: agreement.Checked
    ids: tuple[str, ...]
    starts: list[int]
    bins: list[int]
    counts: list[int]
    faulty: tuple[Fault, ...]
    missing: tuple[str, ...]
    privacy: tuple[Privacy | None, ...] = ()
    sizes: list[int] = []
    sizes_known: bool = True
    risk: Risk | None = None
    strata: ByClassColumns | None = None
    set_sizes: ByClassColumns | None = None


_OTHERWISE = {"grid", "score", "starts", "bins", "counts", "sizes", "strata", "set_sizes"}
_AS_THEY_ARE = set(Columns.__struct_fields__) - _OTHERWISE  # fields that need no other form

if TYPE_CHECKING:
    Reports: TypeAlias = Federation
    Numbers: TypeAlias = NDArray[np.float64]
else:  # what stands in a file for them: the record reads it when it is made
    Reports, Numbers = Columns, list[float]


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

    federation: Reports
    oddness: Numbers
    flagged: dict[str, str]
    remarks: tuple[str, ...]
    defence: str
    parameters: dict[str, bool | int | float | str | None]
    promise: Promise | None = None
    clusters: dict[str, str] | None = None
    anchor: dict[str, Any] | None = None
    provenance: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.federation, Columns):
            force_setattr(self, "federation", _read(self.federation))
        if isinstance(self.oddness, list):
            force_setattr(self, "oddness", np.array(self.oddness, dtype=np.float64))

    @cached_property
    def trusted_mask(self) -> NDArray[np.bool_]:
        """(K,) whom the threshold rests on."""
        return np.array([name not in self.flagged for name in self.federation.ids], dtype=bool)

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
        federation = self.federation
        sizes, n_clients = federation.sizes, federation.n_clients
        wrong = {
            "sizes differ from the sites in number": len(sizes) != n_clients,
            "a size is impossible": not ((sizes > 0) & (sizes <= MAX_SAMPLES)).all(),
            "oddness is not one a site": self.oddness.shape != (n_clients,),
            "a flagged site did not report": not set(self.flagged) <= set(federation.ids),
            "nobody is trusted": not self.trusted_mask.any(),
        }
        found = next((words for words, holds in wrong.items() if holds), "")
        return found and f"the parts of the file contradict each other ({found})"

    def body(self) -> dict[str, Any]:
        """What the file holds: the reports in columns."""
        return {**msgspec.structs.asdict(self), "federation": _columns(self.federation)}


def _columns(federation: Federation) -> Columns:
    starts, bins, counts = (_column(column) for column in federation.entries())
    return Columns(
        **{name: getattr(federation, name) for name in _AS_THEY_ARE},
        grid=wire.wire_grid(federation.grid),
        score=wire.wire_score(federation.score),
        starts=starts,
        bins=bins,
        counts=counts,
        sizes=federation.sizes.tolist() if federation.private else [],
        strata=_by_class(federation.strata),
        set_sizes=_by_class(federation.set_sizes),
    )


def _by_class(strata: Stratified | None) -> ByClassColumns | None:
    if strata is None:
        return None
    starts, cells, counts = (_column(column) for column in strata.table.entries())
    rows = strata.rows.tolist()
    return ByClassColumns(strata.by, strata.names, rows, starts, cells, counts)


def _column(numbers: NDArray[np.integer[Any]]) -> Any:
    """The numbers as a JSON list, written piece by piece: Python integers take ten times more."""
    pieces = (numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE))
    return msgspec.Raw(
        b"[" + b",".join(msgspec.json.encode(piece.tolist())[1:-1] for piece in pieces) + b"]"
    )


def _read(said: Columns) -> Federation:
    """The federation, its columns refused before anything is allocated for them."""
    private, n_clients = any(said.privacy), len(said.ids)
    _need(private or not said.privacy, "privacy is stated though no report is private")
    _need(not private or len(said.privacy) == n_clients, "privacy is not stated for every site")
    grid = wire.read_grid(said.grid)
    check_extent(n_clients, grid.n_bins)
    for kind, names in (("listed", said.ids), ("missing", said.missing)):
        for name in names:
            check_client(name)
        _need(len(set(names)) == len(names), f"a site is {kind} twice")
    columns = _checked(said.starts, said.bins, said.counts, n_clients, grid.n_bins)
    exact = np.array([one is None for one in said.privacy or (None,) * n_clients])
    _need(bool(np.diff(columns[0])[exact].all()), "a site has no samples")
    positive = (columns[2] > 0) | np.repeat(~exact, np.diff(columns[0]))
    _need(bool(positive.all()), "a count is not positive")
    counts = table(*columns, grid.n_bins)
    totals, unit = counts.below(grid.n_bins - 1), 1 if said.risk is None else said.risk.resolution
    _need(private or not said.sizes, "sizes are stated though no report is private")
    whole = private or not (totals % unit).any()
    _need(whole, "the losses of a site do not fall by whole samples")
    strata, set_sizes = (
        None if one is None else _read_by_class(one, n_clients, grid)
        for one in (said.strata, said.set_sizes)
    )
    if set_sizes is not None and said.set_sizes is not None:  # the scores of all labels
        counted = set_sizes.names == 1 and min(said.set_sizes.counts, default=0) >= 0
        _need(counted, "sizes of sets are no counts")
    return Federation(
        **{name: getattr(said, name) for name in _AS_THEY_ARE},
        table=counts,
        sizes=np.array(said.sizes, dtype=np.int64) if private else totals // unit,
        grid=grid,
        score=wire.read_score(said.score),
        strata=strata,
        set_sizes=set_sizes,
    )


def _read_by_class(said: ByClassColumns, n_clients: int, grid: Grid) -> Stratified:
    """The counts by class, refused before anything is allocated for them."""
    names = check_strata_names(said.by, said.names)
    nobody = [row for row in said.rows if not 0 <= row < n_clients]
    _need(not nobody and said.rows == sorted(set(said.rows)), "counts by class belong to nobody")
    rows = np.array(said.rows, dtype=np.int64)
    width = number_of(names) * grid.n_bins
    columns = _checked(said.starts, said.cells, said.counts, len(rows), width)
    return Stratified(said.by, names, table(*columns, width), rows, grid.n_bins)


def _checked(
    starts: list[int], bins: list[int], counts: list[int], n_clients: int, n_bins: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The columns of the counts, refused before anything is allocated for them."""
    try:
        start, bin_, count = (np.array(one, dtype=np.int64) for one in (starts, bins, counts))
    except OverflowError:
        raise RobfcpError("a number exceeds 64 bits") from None
    _need(start.size == n_clients + 1 and bin_.size == count.size, "columns differ in length")
    _need(start[0] == 0 and start[-1] == bin_.size, "starts do not span the counts")
    _need(start.min() >= 0 and start.max() <= bin_.size, "starts leave the counts")
    _need(bool((np.diff(start) >= 0).all()), "starts do not rise")
    within = bin_.min(initial=0) >= 0 and bin_.max(initial=0) < n_bins
    _need(within, f"a bin is outside 0..{n_bins - 1}")
    steps = np.diff(bin_) > 0
    steps[start[(start > 0) & (start < bin_.size)] - 1] = True
    _need(bool(steps.all()), "a site's bins do not rise")
    _need(bool((np.abs(count) <= MAX_SAMPLES).all()), f"a count exceeds {MAX_SAMPLES}")
    return start, bin_, count


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise RobfcpError(f"the parts of the file contradict each other ({problem})")
