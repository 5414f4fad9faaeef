"""What one report counts, read off its file: every rule about a report is asked of it here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, compress
from operator import lt
from typing import Any, NamedTuple

import msgspec
import numpy as np

from robfcp._validation import check_client_name, check_text
from robfcp.binning import Binning, named_binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.privacy import Privacy
from robfcp.reports import _checks, _wire
from robfcp.reports._checks import REBUILD_HINT, CountSummary, IntSequence, StratumSummary
from robfcp.reports._strata import (
    Strata,
    StratifiedCounts,
    StratumNames,
    check_stratum_names,
    n_strata,
)
from robfcp.reports._wire import WireCounts, WireReport, WireStratifiedCounts
from robfcp.scores import Risk, Score

_MAX_HEADERS = 256  # remembered at a time
_MAX_HEADER_BYTES = 2**16  # of the JSON of a header that is remembered
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class BinningDigest:
    """What is kept of a binning until the vote: a few bytes can name thousands of edges.

    Parameters
    ----------
    digest : str
        What the edges make; equal digests are one binning.
    n_bins : int
        H.
    name, parameters
        How the binning is built again.
    explicit : Binning, optional
        The binning itself where nothing but its edges tells it.
    """

    digest: str
    n_bins: int = field(compare=False)
    name: str = field(compare=False)
    parameters: Mapping[str, Any] = field(compare=False)
    explicit: Binning | None = field(compare=False)

    def __str__(self) -> str:
        return f"Binning({self.name}, {self.n_bins} bins, {self.digest[:8]})"

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
    strata: Strata | None = None
    min_cell_count: int = 1
    class_names: StratumNames | None = None  # of class totals

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


class CellCounts(NamedTuple):
    """Cells and what they hold.

    Attributes
    ----------
    cells : sequence of int
        Bins; of counts by class the cell c H + h of class c and bin h. They rise strictly.
    counts : sequence of int
        As many counts.
    """

    cells: IntSequence
    counts: IntSequence


class ReportRow(NamedTuple):
    """What one valid report counts.

    Attributes
    ----------
    client : str
        The client's name.
    n_samples : int
        n_k; the noisy total where privacy hides it.
    header : Header
        What it states besides.
    counts : CellCounts or None
        The counts other than 0; None where they are the sums of counts by class.
    strata : CellCounts or None
        Counts by class or group, as they are listed.
    all_label_counts : CellCounts or None
        The scores of all labels, those other than 0.
    class_totals : CellCounts or None
        The rounded samples of each class, those other than 0; the cells are classes.
    """

    client: str
    n_samples: int
    header: Header
    counts: CellCounts | None
    strata: CellCounts | None
    all_label_counts: CellCounts | None
    class_totals: CellCounts | None = None


class HeaderReader:
    """Reads what reports state besides their numbers, each different text once.

    Most reports of a round state the same, and building binnings and scores takes longer than
    reading the numbers. Hostile reports may all differ: what is remembered is bounded.

    Parameters
    ----------
    expected : Binning, optional
        The round's binning where it is known. Reports on others were refused before.
    """

    def __init__(self, expected: Binning | None = None) -> None:
        self._expected = expected
        self._headers: dict[bytes, Header] = {}

    def read(self, report: WireReport) -> Header:
        """Return the header of a report; refuse what cannot be understood.

        Raises
        ------
        ReportError
            Naming client, field and remedy.
        """
        _check_is_complete(report)
        key = _header_json(report)
        header = self._headers.get(key)
        if header is not None:
            return header

        try:
            header = self._build(report)
        except ReportError:
            raise
        except RobfcpError as error:
            raise _wire.as_report_error(report.client, error) from None
        if len(key) <= _MAX_HEADER_BYTES:
            if len(self._headers) >= _MAX_HEADERS:
                self._headers.clear()
            self._headers[key] = header
        return header

    def _build(self, report: WireReport) -> Header:
        """Return the header, built from its names and parameters."""
        binning = self._expected
        if binning is None:
            binning = _wire.from_wire_binning(report.binning)
        score = _wire.from_wire_score(report.score)
        strata = None
        if report.strata is not None:
            names = msgspec.json.decode(report.strata.names)
            strata = report.strata.by, check_stratum_names(report.strata.by, names)
        class_names = None
        if report.class_totals is not None:
            names = msgspec.json.decode(report.class_totals.names)
            class_names = _check_class_names(report.client, names)
        return Header(
            BinningDigest.of(binning),
            score,
            report.round,
            report.model,
            report.risk,
            report.privacy,
            strata,
            _checks.check_min_cell_count(report.client, report.min_cell_count, report.privacy),
            class_names,
        )


def _check_class_names(client: str, names: Any) -> StratumNames:
    """Return the names of the classes that totals are of; refuse what cannot be names."""
    try:
        return check_stratum_names("class", names)
    except RobfcpError as error:
        raise ReportError(client, "class_totals", str(error), REBUILD_HINT) from None


def _header_json(report: WireReport) -> bytes:
    """Return all that a report states besides client and numbers, as JSON.

    As keys objects would be too much alike: 1, 1.0 and true are equal.
    """
    strata = report.strata
    by = None if strata is None else strata.by
    names = None if strata is None else strata.names
    return msgspec.json.encode(
        (
            report.binning,
            report.score,
            report.round,
            report.model,
            report.risk,
            report.privacy,
            by,
            names,
            report.min_cell_count,
            # In a tuple, so that names of null are not taken for no totals.
            None if report.class_totals is None else (report.class_totals.names,),
        )
    )


def _check_is_complete(report: WireReport) -> None:
    """Refuse a file that states no counts, or counts twice, or leaves out what it must state."""
    client = report.client
    if (report.strata is None) == (report.counts is msgspec.UNSET):
        problem = "a report has counts or counts by class"
        raise ReportError(client, "counts", problem, REBUILD_HINT)
    if report.strata is not None and report.class_totals is not None:
        problem = "class totals go with counts of all classes together"
        raise ReportError(client, "class_totals", problem, REBUILD_HINT)
    if report.n_samples is None and report.privacy is None:
        raise ReportError(client, "n_samples", "n_samples is missing", REBUILD_HINT)
    if report.min_cell_count is msgspec.UNSET:
        problem = "min_cell_count is missing"
        raise ReportError(client, "min_cell_count", problem, "state it; 1 means exact counts")


def validate_report(report: WireReport, headers: HeaderReader) -> ReportRow:
    """Return the row of a report; refuse one that breaks any rule.

    Builtin functions look at its lists: for so few numbers they are faster than arrays.

    Parameters
    ----------
    report : WireReport
        What `parse_report` returned.
    headers : HeaderReader
        Reads what the report states besides its numbers.

    Raises
    ------
    ReportError
        Naming client, field and remedy.
    """
    client = report.client
    check_client_name(client)
    header = headers.read(report)
    n_bins = header.binning.n_bins

    # What is listed, and whether cells are where they may be.
    counts = None
    strata = None
    all_labels = None
    if report.strata is not None:
        strata = _read_strata(client, report.strata, n_bins * header.n_strata)
    elif report.counts is not msgspec.UNSET:
        counts = _read_counts(client, report.counts, n_bins)
    if report.all_label_counts is not None:
        all_labels = _read_counts(client, report.all_label_counts, n_bins)

    check_text(client, "round", report.round)
    check_text(client, "model", report.model)

    # The counts themselves. Counts by class make the counts of all.
    strata_summary = None
    if strata is not None:
        summary = _check_sums_of_strata(client, header, strata)
        strata_summary = _check_strata(client, header, strata)
    else:
        assert counts is not None
        summary = _check_counts(client, header, counts)
        counts = _without_zeros(counts)

    n_samples = _check_size(client, header, report.n_samples, summary, strata_summary)
    listed = counts if strata is None else strata
    assert listed is not None
    min_count = header.min_cell_count * header.counts_per_sample
    if header.min_cell_count > 1:
        _checks.check_coarsened_cells(client, listed.cells, listed.counts, n_bins, min_count)
    totals = None
    if report.class_totals is not None:
        totals = _read_class_totals(client, header, report.class_totals.totals, n_samples)
    if all_labels is not None:
        _checks.check_all_labels_allowed(client, header.privacy, header.risk)
        _check_is_vector(client, "all_label_counts", all_labels, n_bins)
        label_summary = _checks.summarize_list(all_labels.counts, n_bins)
        _checks.check_all_label_counts(client, label_summary, n_samples)
        all_labels = _without_zeros(all_labels)
        _checks.check_coarsened_cells(
            client, all_labels.cells, all_labels.counts, n_bins, header.min_cell_count
        )
    return ReportRow(client, n_samples, header, counts, strata, all_labels, totals)


def _read_class_totals(
    client: str, header: Header, totals: list[int], n_samples: int
) -> CellCounts:
    """Return the class totals that a file lists, but for zeros; refuse what they must not be."""
    assert header.class_names is not None
    n_classes = n_strata(header.class_names)
    if len(totals) != n_classes:
        problem = f"class totals: {len(totals)} of them for {n_classes} classes"
        raise ReportError(client, "class_totals", problem, REBUILD_HINT)
    _checks.check_class_totals(
        client, totals, n_samples, header.min_cell_count, header.privacy, header.risk
    )
    return _without_zeros(CellCounts(range(n_classes), totals))


def _read_counts(client: str, declared: list[int] | WireCounts, n_bins: int) -> CellCounts:
    """Return the bins and counts that a file lists; refuse bins beyond the binning."""
    if isinstance(declared, WireCounts):
        bins = declared.bins
        if len(bins) != len(declared.counts):
            problem = "counts: bins and counts differ in length; rebuild the report"
            raise _wire.as_report_error(client, RobfcpError(problem))
        if bins and (bins[-1] >= n_bins or not all(map(lt, bins, bins[1:]))):
            problem = f"counts: bins must rise strictly within 0..{n_bins - 1}; rebuild it"
            raise _wire.as_report_error(client, RobfcpError(problem))
        return CellCounts(bins, declared.counts)

    return CellCounts(range(n_bins), declared)


def _check_is_vector(client: str, field: str, counts: CellCounts, n_bins: int) -> None:
    """Refuse a list that is not of one integer of 64 bits for each bin."""
    declared = counts.counts
    if not isinstance(counts.cells, range):
        return
    if len(declared) == n_bins and min(declared) >= _MIN_INT64 and max(declared) <= _MAX_INT64:
        return
    _checks.as_count_vector(client, field, declared, n_bins)


def _read_strata(client: str, declared: WireStratifiedCounts, n_cells: int) -> CellCounts:
    """Return the cells and counts by class that a file lists; refuse cells beyond the classes."""
    steps = declared.cell_steps
    if len(steps) != len(declared.counts):
        problem = "strata: cells and counts differ in length; rebuild the report"
        raise _wire.as_report_error(client, RobfcpError(problem))
    cells = list(accumulate(steps))
    if cells and (cells[-1] >= n_cells or 0 in steps[1:]):
        problem = f"strata: cells must rise strictly within 0..{n_cells - 1}; rebuild it"
        raise _wire.as_report_error(client, RobfcpError(problem))
    return CellCounts(cells, declared.counts)


def _check_counts(client: str, header: Header, counts: CellCounts) -> CountSummary:
    """Return the summary of the counts on a binning; refuse what counts must not be."""
    n_bins = header.binning.n_bins
    _check_is_vector(client, "counts", counts, n_bins)
    summary = _checks.summarize_list(counts.counts, n_bins)
    _checks.check_limits(client, "counts", summary)
    if header.privacy is None:
        if summary.smallest < 0:
            position = list(counts.counts).index(summary.smallest)
            _checks.reject_negative_count(client, counts.cells[position])
        _checks.check_not_empty(client, summary)
    return summary


def _check_sums_of_strata(client: str, header: Header, strata: CellCounts) -> CountSummary:
    """Return the summary of the counts of all classes together; refuse what counts must not be."""
    n_bins = header.binning.n_bins
    if header.privacy is None and min(strata.counts, default=0) > 0:
        # Sums of positive counts are within 0 and the total.
        total = sum(strata.counts)
        summary = CountSummary(n_bins, 0, total, total)
        _checks.check_limits(client, "counts", summary)
        return summary

    assert header.strata is not None
    by, names = header.strata
    cells = np.array(strata.cells, dtype=np.int64)
    counts = np.array(strata.counts, dtype=np.int64)
    sums = StratifiedCounts(by, names, cells, counts, n_bins).pooled_counts
    return _check_counts(client, header, CellCounts(range(n_bins), sums.tolist()))


def _check_strata(client: str, header: Header, strata: CellCounts) -> StratumSummary:
    """Return the summary of counts by class; refuse what they must not be."""
    _checks.check_strata_go_with_scores(client, header.risk)
    assert header.strata is not None
    listed = _checks.summarize_list(strata.counts, len(strata.counts))
    summary = StratumSummary(header.strata[0], header.n_strata, listed)
    if header.privacy is None:
        _checks.check_positive_strata(client, summary)
    return summary


def _check_size(
    client: str,
    header: Header,
    declared: int | None,
    counts: CountSummary,
    strata: StratumSummary | None,
) -> int:
    """Return n_k; refuse counts that cannot come from it."""
    counts_per_sample = header.counts_per_sample
    if header.privacy is None:
        return _checks.check_sample_size(client, declared, counts.total, counts_per_sample)
    return _checks.check_noisy_size(
        client, header.privacy, declared, counts_per_sample, counts, strata
    )


def _without_zeros(counts: CellCounts) -> CellCounts:
    """Return the counts other than 0."""
    if 0 not in counts.counts:
        return counts
    cells = list(compress(counts.cells, counts.counts))
    return CellCounts(cells, list(filter(None, counts.counts)))
