"""The validated reports of one round, stacked; the faulty ones listed with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._private_reports import hides_size, marks_of, same_noise, size_of
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import Report
from robfcp.scores import Score

Untrusted = Report | bytes | str | Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """Why a client's report was left out."""

    client: str
    field: str
    reason: str


@dataclass(frozen=True, eq=False)
class Federation:
    """K clients' counts on one grid, with those who failed to send a valid report.

    `privacy` holds an entry for each client if any report is private, and is empty otherwise.
    Private counts hold noise; `sizes` are then noisy totals unless `sizes_known`.
    """

    ids: tuple[str, ...]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    grid: Grid
    score: Score | None = None
    round: str | None = None
    model: str | None = None
    faulty: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    registered: bool = False
    privacy: tuple[Privacy | None, ...] = ()
    sizes_known: bool = True

    @property
    def private(self) -> bool:
        """Whether any client's counts hold noise."""
        return bool(self.privacy)

    @property
    def variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        if not self.privacy:
            return np.zeros(self.n_clients)
        return np.array([0.0 if p is None else p.noise.variance for p in self.privacy])

    @property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.ids)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports."""
        return int(self.sizes.sum())

    def below(self, index: int) -> NDArray[np.int64]:
        """(K,) counts at or below the upper edge of bin `index`."""
        return self.counts[:, : index + 1].sum(axis=1)

    def cumulative(self) -> NDArray[np.int64]:
        """(K, H) counts at or below every upper edge."""
        return np.cumsum(self.counts, axis=1)

    def pooled(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(H,) counts of the chosen clients together."""
        if mask is None:
            return self.counts.sum(axis=0)
        return self.counts[mask].sum(axis=0)

    def merged(self, ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """(K, B) counts of merged bins; `ends` holds the last bin of each, the last one H - 1."""
        starts = np.concatenate([[0], np.asarray(ends)[:-1] + 1])
        return np.add.reduceat(self.counts, starts, axis=1)

    def subset(self, mask: NDArray[np.bool_]) -> Federation:
        """The chosen clients alone."""
        chosen = np.flatnonzero(mask)
        ids = tuple(self.ids[k] for k in chosen)
        part = replace(self, ids=ids, counts=self.counts[chosen], sizes=self.sizes[chosen])
        if not self.privacy:
            return part
        return replace(part, privacy=marks_of(self.privacy[k] for k in chosen))

    def __iter__(self) -> Iterator[Report]:
        """The reports the federation was made of."""
        context = self.grid, self.score, self.round, self.model
        if not self.privacy:
            for client, counts in zip(self.ids, self.counts, strict=True):
                yield Report(client, counts, *context)
            return
        columns = zip(self.ids, self.counts, self.sizes, self.privacy, strict=True)
        for client, counts, size, mark in columns:
            stated: Any = None if mark is not None and mark.hides_size else int(size)
            yield Report(client, counts, *context, stated, mark)

    @staticmethod
    def from_counts(
        counts: ArrayLike,
        grid: Grid | None = None,
        ids: Sequence[str] | None = None,
        score: Score | None = None,
        *,
        privacy: Privacy | Sequence[Privacy | None] | None = None,
        sizes: ArrayLike | None = None,
    ) -> Federation:
        """A federation of trusted in-process counts (K, H), for simulations; order is kept.

        Counts that hold the noise of `privacy` (one for all, or one a client) may be negative;
        `sizes` are then the n_k, hidden where they are not given.
        """
        array = np.asarray(counts)
        if privacy is not None:
            return _private_counts(array, grid, ids, score, privacy, sizes)
        if array.ndim != 2 or array.dtype.kind not in "iu" or (array.size and array.min() < 0):
            raise RobfcpError("counts: need a (clients, bins) array of non-negative integers")
        grid = Grid.uniform(array.shape[1]) if grid is None else grid
        if array.shape[1] != grid.n_bins:
            raise RobfcpError(f"counts: {array.shape[1]} bins do not fit the grid's {grid.n_bins}")
        if not array.any(axis=1).all():
            raise RobfcpError("counts: a client has no samples; leave it out")
        width = len(str(max(0, len(array) - 1)))
        names = tuple(ids) if ids is not None else numbered(len(array), width)
        if len(names) != len(array) or len(set(names)) != len(names):
            raise RobfcpError("ids: need one distinct name a client")
        array = array.astype(np.int64)
        return Federation(names, array, array.sum(axis=1), grid, score)

    @staticmethod
    def from_reports(
        reports: Iterable[Untrusted],
        *,
        sizes: Mapping[str, int] | None = None,
        quorum: int | float | None = None,
        grid: Grid | None = None,
        score: Score | None = None,
        round: str | None = None,
        model: str | None = None,
        faults: Iterable[Fault] = (),
    ) -> Federation:
        """The valid reports in the order of their names; the rest listed as faulty or missing.

        `sizes` registers who may report and with how many samples. Grid, score, round and model
        are the expected ones if given, else those of the majority. `quorum` is the least number
        of valid reports, or their least share of those expected. `faults` were found before.
        """
        accepted, faulty = _read_all(reports, faults)
        received = len(accepted) + len(faulty)
        if sizes is not None:
            accepted = _keep(accepted, faulty, lambda report: _registered(report, sizes))
        expected = {"grid": grid, "score": score, "round": round, "model": model}
        for field, value in expected.items():
            accepted = _keep(accepted, faulty, _same(field, value, accepted))
        known = sizes is not None or not any(hides_size(report) for report in accepted)
        if not known:
            accepted = _keep(accepted, faulty, same_noise(accepted))
        seen = {report.client for report in accepted} | {fault.client for fault in faulty}
        missing = tuple(sorted(set(sizes or ()) - seen))
        _check_quorum(len(accepted), received if sizes is None else len(sizes), quorum, faulty)
        accepted.sort(key=lambda report: report.client)
        first = accepted[0]
        marks = marks_of(report.privacy for report in accepted)
        return Federation(
            tuple(report.client for report in accepted),
            np.stack([report.counts for report in accepted]),
            np.array([size_of(report, sizes) for report in accepted], dtype=np.int64),
            first.grid,
            first.score,
            first.round,
            first.model,
            tuple(sorted(faulty, key=lambda fault: fault.client)),
            missing,
            sizes is not None,
            marks,
            known,
        )


def numbered(n_clients: int, width: int) -> tuple[str, ...]:
    """client-00, client-01, ... padded so that names sort as numbers."""
    return tuple(f"client-{k:0{width}d}" for k in range(n_clients))


def _private_counts(
    array: NDArray[Any],
    grid: Grid | None,
    ids: Sequence[str] | None,
    score: Score | None,
    privacy: Privacy | Sequence[Privacy | None],
    sizes: ArrayLike | None,
) -> Federation:
    """`from_counts` for noisy counts: names and grid as there, any whole numbers."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise RobfcpError("counts: need a (clients, bins) array of integers")
    plain = Federation.from_counts(np.ones_like(array), grid, ids, score)
    marks = (privacy,) * len(array) if isinstance(privacy, Privacy) else tuple(privacy)
    if len(marks) != len(array):
        raise RobfcpError("privacy: need one entry a client")
    known = sizes is not None or not any(mark and mark.hides_size for mark in marks)
    if known and sizes is None:
        raise RobfcpError("sizes: private counts need the true sizes beside them")
    totals = np.maximum(array.sum(axis=1), 1) if sizes is None else np.asarray(sizes)
    return replace(
        plain,
        counts=array.astype(np.int64),
        sizes=totals.astype(np.int64),
        privacy=marks_of(marks),
        sizes_known=known,
    )


def _read_all(
    reports: Iterable[Untrusted], faults: Iterable[Fault]
) -> tuple[list[Report], list[Fault]]:
    """Decode what is not yet a report; a name that comes twice is faulty altogether."""
    accepted: dict[str, Report] = {}
    faulty = {fault.client: fault for fault in faults}
    for position, item in enumerate(reports):
        try:
            report = _decode(item, f"report {position + 1}")
        except ReportError as error:
            faulty.setdefault(error.client, Fault(error.client, error.field, str(error)))
            accepted.pop(error.client, None)
            continue
        if report.client in accepted or report.client in faulty:
            accepted.pop(report.client, None)
            reason = f"{report.client}: reported more than once; send one report a round"
            faulty[report.client] = Fault(report.client, "client", reason)
        else:
            accepted[report.client] = report
    return list(accepted.values()), list(faulty.values())


def _decode(item: Untrusted, source: str) -> Report:
    if isinstance(item, Report):
        return item
    if isinstance(item, (bytes, str)):
        return Report.from_json(item, source)
    if isinstance(item, Mapping):
        import msgspec

        try:
            return Report.from_json(msgspec.json.encode(dict(item)), source)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, ReportError):
                raise
            raise ReportError(source, "report", "is not JSON data", "send a report") from None
    kind = type(item).__name__
    raise ReportError(source, "report", f"{kind} is not a report", "pass Report objects or JSON")


def _keep(
    reports: list[Report], faulty: list[Fault], check: Callable[[Report], ReportError | None]
) -> list[Report]:
    """The reports without objection; the others join the faulty."""
    kept = []
    for report in reports:
        error = check(report)
        if error is None:
            kept.append(report)
        else:
            faulty.append(Fault(report.client, error.field, str(error)))
    return kept


def _registered(report: Report, sizes: Mapping[str, int]) -> ReportError | None:
    if report.client not in sizes:
        return ReportError(report.client, "client", "is not registered", "add it to the registry")
    expected = sizes[report.client]
    if report.n_samples == expected or hides_size(report):
        return None
    return ReportError(
        report.client,
        "n_samples",
        f"counts sum to {report.n_samples} but {expected} samples were registered",
        "rebuild the report or fix the registry",
    )


def _same(
    field: str, expected: Any, reports: list[Report]
) -> Callable[[Report], ReportError | None]:
    """A check that the field is the expected one, or the majority's where none is given."""
    if expected is None and reports:
        (expected, votes), *others = Counter(getattr(r, field) for r in reports).most_common(2)
        if others and others[0][1] == votes:
            raise RobfcpError(
                f"{field}: the reports are split evenly between {expected} and {others[0][0]}; "
                f"pass the expected {field}"
            )

    def check(report: Report) -> ReportError | None:
        found = getattr(report, field)
        if found == expected:
            return None
        return ReportError(
            report.client, field, f"{field} is {found}, not {expected}", f"use this round's {field}"
        )

    return check


def _check_quorum(
    valid: int, expected: int, quorum: int | float | None, faulty: list[Fault]
) -> None:
    needed = 1 if quorum is None else quorum
    if isinstance(needed, float) and 0 < needed <= 1:
        needed = int(np.ceil(needed * expected - 1e-9))
    if valid < needed or valid == 0:
        first = f" (first fault: {faulty[0].reason})" if faulty else ""
        raise QuorumError(
            f"only {valid} of {expected} reports are valid but the quorum is {needed}{first}; "
            "fix the faulty sites or lower the quorum"
        )
