"""The state of a monitor: what its file holds, and how fresh scores change it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from robfcp._sealed import SealedFile, sha256_of
from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp._validation import are_client_names
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.monitoring._e_values import (
    N_BETS,
    N_CELLS,
    N_EXCHANGE_BETS,
    conformal_p_values,
    log_bet_factors,
    log_mean,
    log_mixture_wealth,
    log_p_value_bets,
    log_shiryaev_roberts,
    log_wealth,
    philox_uniforms,
)
from robfcp.monitoring._fields import (
    Count,
    Digest,
    HalfDigest,
    OpenFraction,
    PositiveCount,
    RowDigest,
)
from robfcp.reports import Report

MAX_POINTS = 400  # of the curve, beside those at which an alarm rang
MAX_NEW_POINTS = 100  # of the curve, from one batch
MAX_ROW_DIGESTS = 1024  # digests of rows that have no names: the smallest, a random sample of all
ABOVE_EVERY_DIGEST = "g"  # digests are hexadecimal
MIN_REPEATS_PER_DUPLICATE = 20  # see `with_seen_rows`
MAX_PLAIN_LOG = 50  # logarithms of e-values beyond it, either way, are printed as a power of ten

AlarmName = Literal["coverage", "change", "drift"]


class MonitorPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Natural logarithms of the e-values after n samples; in the file an array in this order.

    Attributes
    ----------
    n_samples : int
        The number of samples.
    log_e_coverage : float
        ln of the e-value against "coverage is at least the floor".
    log_shiryaev_roberts : float
        ln of the mean of R_t of Shiryaev and Roberts over the bets.
    log_e_exchangeability : float or None
        ln of the e-value against "fresh scores are like those reported"; None without a report.
    """

    n_samples: PositiveCount
    log_e_coverage: float
    log_shiryaev_roberts: float
    log_e_exchangeability: float | None = None


class ExchangeabilityState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of the test of "fresh scores are like those reported".

    Attributes
    ----------
    report_sha256 : str
        SHA-256 of the client's report as JSON.
    n_reference : int
        Its number of scores.
    bins, counts : list of int
        The histogram of all scores so far, the report's first: the non-empty bins, rising, and the
        number of scores in each.
    log_wealths : list of float
        ln A_t of each bet, as `log_mixture_wealth` gives it; empty before the first fresh score.
    p_value_counts : list of int
        The number of conformal p-values so far in each cell.
    """

    report_sha256: Digest
    n_reference: PositiveCount
    bins: list[Annotated[int, Meta(ge=0, le=2**24)]]
    counts: list[PositiveCount]
    log_wealths: list[float]
    p_value_counts: list[Count]

    @staticmethod
    def from_report(report: Report, calibration: Calibration) -> ExchangeabilityState:
        """Return the state before the first fresh score, given the client's report.

        Parameters
        ----------
        report : Report
            The client's report in the round.
        calibration : Calibration
            The calibration monitored; its binning, score and model must be those of the report.

        Raises
        ------
        RobfcpError
            Where fresh scores cannot be compared with the report.
        """
        problem = _problem_of_reference(report, calibration)
        if problem:
            raise RobfcpError(f"{report.client}: {problem}")

        bins = np.flatnonzero(report.counts)
        return ExchangeabilityState(
            report_sha256=sha256_of(report.to_json()),
            n_reference=report.n_samples,
            bins=bins.tolist(),
            counts=report.counts[bins].tolist(),
            log_wealths=[],
            p_value_counts=[0] * N_CELLS,
        )

    def advance(
        self, scores: FloatArray, binning: Binning, *, n_before: int, seed: int
    ) -> tuple[ExchangeabilityState, FloatArray]:
        """Bet on fresh scores in their order; this state is not changed.

        Parameters
        ----------
        scores : ndarray of shape (T,)
            The fresh scores, at least one; scores outside the binning or NaN are refused.
        binning : Binning
            That of the report.
        n_before : int
            The number of fresh scores before these.
        seed : int
            Of the draws that break ties; draw t belongs to fresh score t, however they are batched.

        Returns
        -------
        ExchangeabilityState
            The state with these scores.
        ndarray of shape (T,)
            ln of the e-value after each of them.
        """
        # Both are changed in place: the fresh scores and their p-values join them.
        histogram = np.zeros(binning.n_bins, dtype=np.int64)
        histogram[self.bins] = self.counts
        p_value_counts: IntArray = np.array(self.p_value_counts, dtype=np.int64)

        uniforms = philox_uniforms(seed, n_before, len(scores))
        p_values = conformal_p_values(histogram, binning.bin_indices(scores), uniforms)
        factors = log_p_value_bets(p_values, p_value_counts)
        log_wealths = log_mixture_wealth(
            _stored_logs(self.log_wealths, N_EXCHANGE_BETS), n_before, factors
        )

        bins = np.flatnonzero(histogram)
        state = ExchangeabilityState(
            report_sha256=self.report_sha256,
            n_reference=self.n_reference,
            bins=bins.tolist(),
            counts=histogram[bins].tolist(),
            log_wealths=log_wealths[-1].tolist(),
            p_value_counts=p_value_counts.tolist(),
        )
        return state, log_wealth(log_wealths, n_before)

    def is_consistent_with(self, n_samples: int) -> bool:
        """Return whether the histogram holds the report and exactly so many fresh scores.

        Parameters
        ----------
        n_samples : int
            The number of samples that the monitor counted, each of which is a fresh score.
        """
        is_rising = self.bins == sorted(set(self.bins))
        is_histogram = is_rising and len(self.bins) == len(self.counts)

        n_wealths = N_EXCHANGE_BETS if n_samples else 0
        has_all_bets = len(self.log_wealths) == n_wealths
        has_all_cells = len(self.p_value_counts) == N_CELLS

        n_fresh_scores = sum(self.counts) - self.n_reference
        n_p_values = sum(self.p_value_counts)
        counts_match = n_fresh_scores == n_p_values == n_samples
        return is_histogram and has_all_bets and has_all_cells and counts_match


def _problem_of_reference(report: Report, calibration: Calibration) -> str:
    """Return why fresh scores cannot be compared with a report; empty if they can.

    Noise and coarse cells would look like drift, as would another binning, score or model.
    """
    if report.privacy is not None:
        return "privacy: the report holds noise; keep an exact one at the site and pass that"
    if report.min_cell_count > 1:
        return (
            "coarsened counts show no drift; pass a report with --min-cell-count 1 "
            "(min_cell_count=1)"
        )

    summary = calibration.summary
    # The keys are names of options, which the message advises.
    agreements = {
        "binning": (report.binning.digest, summary.binning),
        "score": (report.score, calibration.score),
        "model": (report.model, summary.model),
    }
    for name, (reported, calibrated) in agreements.items():
        if reported != calibrated:
            return f"{name}: not the calibration's; make it with its --terms or --{name}"
    return ""


class MonitorState(SealedFile, frozen=True):
    """The state of a monitor: what it monitors, its e-values, and the samples counted so far.

    The fields, or the names given with them, are keys of the file. All logarithms are natural.

    Attributes
    ----------
    calibration : str
        The `Calibration.fingerprint` of the calibration monitored.
    client : str or None
        The name of the client, if it has one.
    level : int
        The index of the level of the calibration.
    n_samples : int
        The number of samples counted.
    n_missed : int
        The number of them whose label is not in the set.
    min_coverage, source : float, str
        The coverage to hold, and what certifies it.
    delta : float
        The probability that a false alarm is ever raised, at any number of inspections.
    average_run_length : float, optional
        The mean number of samples to a false alarm for a change; None if there is no such alarm.
    seed : int
        The seed of the draws that break ties among scores.
    log_wealths : tuple of float
        ln A_t of each of J = `N_BETS` bets against the floor, then of each against the target
        coverage, 2 J in all, as `log_mixture_wealth` gives them; empty before the first sample.
    log_sr_statistics : tuple of float
        ln R_t of each of J bets against the floor, as `log_shiryaev_roberts` gives them; empty
        before the first sample.
    alarm_steps : dict of str to int
        The alarms raised so far, and the sample after which each was first raised, counted from 1.
    points : tuple of MonitorPoint
        The e-values over time, at up to 400 of the samples and those with an alarm; by rising n,
        the last one at the last sample.
    batch_digests : tuple of str
        The digests of the batches that were counted: of their names, else of their contents.
    row_ids : tuple of str
        The digests of the names of the samples that were counted.
    exchangeability : ExchangeabilityState, optional
        The state of the test against the client's report, if there is one.
    threshold : float, optional
        The threshold of the client, if that is monitored.
    target_coverage, target_missed_since : float, int or None
        The target coverage, and the sample since which it is significantly missed, with the same
        probability of an error; None while it is not. This is reported; it raises no alarm.
    row_digests_sample : tuple of str
        The smallest digests of the contents of rows without names, ascending; at most 1024.
    n_repeated_rows : int
        The estimated number of rows without names that were counted before.
    """

    kind = "monitor"
    hint = "pass the state file that robfcp monitor wrote, or start a new one"

    calibration: Digest
    client: str | None
    level: Count
    min_coverage: OpenFraction
    source: str
    target_coverage: OpenFraction
    delta: OpenFraction
    average_run_length: Annotated[float, Meta(ge=1)] | None
    seed: Annotated[int, Meta(ge=0, lt=2**62)]
    n_samples: Count = 0
    n_missed: Count = 0
    log_wealths: tuple[float, ...] = ()
    log_sr_statistics: tuple[float, ...] = ()
    alarm_steps: dict[AlarmName, PositiveCount] = msgspec.field(default_factory=dict)
    points: tuple[MonitorPoint, ...] = ()
    batch_digests: tuple[HalfDigest, ...] = ()
    row_ids: tuple[RowDigest, ...] = ()
    exchangeability: ExchangeabilityState | None = None
    threshold: float | None = None
    target_missed_since: PositiveCount | None = None
    row_digests_sample: tuple[RowDigest, ...] = ()
    n_repeated_rows: Count = 0

    @property
    def has_alarm(self) -> bool:
        """Whether any alarm was raised."""
        return bool(self.alarm_steps)

    @property
    def log_alarm_threshold(self) -> float:
        """ln of the e-value at which an alarm is raised: two alarms have half of delta each."""
        n_alarms = 1 if self.exchangeability is None else 2
        return math.log(n_alarms / self.delta)

    @property
    def log_e_coverage(self) -> float:
        """ln of the e-value against "coverage is at least the floor"."""
        if not self.points:
            return 0.0
        return self.points[-1].log_e_coverage

    @property
    def log_shiryaev_roberts(self) -> float | None:
        """ln R_t of Shiryaev and Roberts, for a change at an unknown time; None before a sample."""
        if not self.points:
            return None
        return self.points[-1].log_shiryaev_roberts

    @property
    def log_e_exchangeability(self) -> float | None:
        """ln of the e-value against "scores are like those reported"; None without a report."""
        if self.points:
            return self.points[-1].log_e_exchangeability
        return None if self.exchangeability is None else 0.0

    @property
    def line(self) -> str:
        """The alarms or e-values and what to do, in one line."""
        if not self.n_samples:
            return f"no samples yet; watching for coverage below {self.min_coverage:.4f}"

        if self.alarm_steps:
            alarms_text = ", ".join(
                f"{name} at sample {step}" for name, step in self.alarm_steps.items()
            )
            return f"alarm ({alarms_text}): {self._counts_text()}; recalibrate now on fresh samples"
        e_value = _e_value_text(self.log_e_coverage)
        alarm_threshold = math.exp(self.log_alarm_threshold)
        return (
            f"no alarm: {self._counts_text()}; "
            f"alarm strength {e_value}, it rings at {alarm_threshold:g}"
        )

    def _counts_text(self) -> str:
        """Return the samples and their coverage, beside the floor and the target coverage.

        There must be a sample, as `line` ensures.
        """
        coverage = 1 - self.n_missed / self.n_samples
        target_status = "not shown to be missed"
        if self.target_missed_since:
            target_status = f"missed (shown at {self.target_missed_since})"
        text = (
            f"{self.n_samples} samples, {coverage:.4f} covered, floor {self.min_coverage:.4f}"
            f", the wanted {self.target_coverage:.4f} is {target_status}"
        )
        if self.n_repeated_rows:
            text += f", about {self.n_repeated_rows} rows came before"
        return text

    def find_contradiction(self) -> str:
        """Return the first contradiction between the fields, or "" if they are consistent.

        A state file is untrusted input. Its digest shows that it is complete, not that a monitor
        wrote it, so everything that later code relies on is checked here.
        """
        if self.client is not None and not are_client_names([self.client])[0]:
            return "client is no name"
        if self.n_missed > self.n_samples:
            return "more misses than samples"

        # Both processes exist from the first sample on: one wealth of each bet against the floor
        # and one against the target coverage; one statistic of each bet against the floor.
        n_wealths = 2 * N_BETS if self.n_samples else 0
        n_statistics = N_BETS if self.n_samples else 0
        if len(self.log_wealths) != n_wealths or len(self.log_sr_statistics) != n_statistics:
            return "started or changes do not fit the samples"

        if max(self.alarm_steps.values(), default=0) > self.n_samples:
            return "an alarm rang at no sample"

        steps = [point.n_samples for point in self.points]
        is_rising = steps == sorted(set(steps))
        last_step = steps[-1] if steps else 0
        if not is_rising or last_step != self.n_samples:
            return "the curve does not rise to n"

        state = self.exchangeability
        if state is not None and not state.is_consistent_with(self.n_samples):
            return "the bag does not hold the report and the samples"
        return ""

    def with_seen_rows(self, rows: NDArray[Any]) -> MonitorState:
        """Return the state with the digests of these rows, and with the number of repeated rows.

        Only the smallest digests of all rows are stored, a random sample of them: the fraction of
        the batch's digests in their range that are among them estimates the fraction of all its
        digests (Beyer et al. 2007, k minimum values). Rows that are equal within a batch do not
        identify samples: unless the estimate is far larger than their number, it counts as 0.

        Parameters
        ----------
        rows : ndarray of shape (n, C + 1)
            The predictions and the target of every sample. State files store digests of the bytes
            of rows, so that type and order of the columns must not change.
        """
        digests = {sha256_of(row.tobytes())[:16] for row in rows}
        sample = self.row_digests_sample
        is_full = len(sample) == MAX_ROW_DIGESTS
        largest = sample[-1] if is_full else ABOVE_EVERY_DIGEST

        # Digests above the largest stored one may have been seen and dropped: they tell nothing.
        in_range = {digest for digest in digests if digest <= largest}
        n_counted_in_range = len(in_range.intersection(sample))
        n_counted = len(digests) * n_counted_in_range // max(1, len(in_range))
        n_duplicates = len(rows) - len(digests)
        n_repeated = n_counted if n_counted > MIN_REPEATS_PER_DUPLICATE * n_duplicates else 0

        updated_sample = sorted(digests.union(sample))[:MAX_ROW_DIGESTS]
        return msgspec.structs.replace(
            self,
            row_digests_sample=tuple(updated_sample),
            n_repeated_rows=self.n_repeated_rows + n_repeated,
        )


def advance(
    state: MonitorState, scores: FloatArray, thresholds: FloatArray, binning: Binning | None
) -> MonitorState:
    """Count fresh samples in their order, and raise the alarms that are due at any of them.

    Parameters
    ----------
    state : MonitorState
        The state so far.
    scores : ndarray of shape (T,)
        Nonconformity scores of the true labels, at least one.
    thresholds : ndarray of shape (T,)
        The threshold of each sample: a score above it is a miss.
    binning : Binning, optional
        The binning of the client's report, if scores are compared with one.

    Returns
    -------
    MonitorState
        A new state. The digests of batches and rows are those of `state`: the caller adds its own.
    """
    is_missed = scores > thresholds
    samples = state.n_samples + np.arange(1, len(scores) + 1)  # (T,) their numbers, from 1

    # The same bets run against the floor, which raises alarms, and against the target coverage,
    # which is reported only.
    floor_factors = log_bet_factors(state.min_coverage, is_missed)
    target_factors = log_bet_factors(state.target_coverage, is_missed)
    previous_wealths = _stored_logs(state.log_wealths, 2 * N_BETS)
    log_wealths = log_mixture_wealth(
        previous_wealths, state.n_samples, np.hstack([floor_factors, target_factors])
    )
    previous_statistics = _stored_logs(state.log_sr_statistics, N_BETS)
    log_sr_statistics = log_shiryaev_roberts(previous_statistics, floor_factors)
    # ln of the e-values after each sample, (T,): the first J wealths are those against the floor.
    coverage = log_wealth(log_wealths[:, :N_BETS], state.n_samples)
    target = log_wealth(log_wealths[:, N_BETS:], state.n_samples)
    change = log_mean(log_sr_statistics)

    # Against "fresh scores are like those reported".
    exchangeability = state.exchangeability
    drift: FloatArray | None = None
    if exchangeability is not None and binning is not None:
        exchangeability, drift = exchangeability.advance(
            scores, binning, n_before=state.n_samples, seed=state.seed
        )

    alarm_steps = _alarms_after(state, samples, coverage, change, drift)
    target_missed_since = _first(samples, target >= -math.log(state.delta))
    points = _new_points(samples, coverage, change, drift, alarm_steps)
    return msgspec.structs.replace(
        state,
        n_samples=int(samples[-1]),
        n_missed=state.n_missed + int(is_missed.sum()),
        log_wealths=tuple(log_wealths[-1].tolist()),
        log_sr_statistics=tuple(log_sr_statistics[-1].tolist()),
        alarm_steps=alarm_steps,
        points=_drop_points([*state.points, *points], set(alarm_steps.values())),
        exchangeability=exchangeability,
        target_missed_since=state.target_missed_since or target_missed_since,
    )


def _alarms_after(
    state: MonitorState,
    samples: IntArray,
    coverage: FloatArray,
    change: FloatArray,
    drift: FloatArray | None,
) -> dict[AlarmName, int]:
    """Return the alarms raised so far, and the sample after which each was first raised.

    Parameters
    ----------
    state : MonitorState
        The state before these samples; its alarms stay as they are.
    samples : ndarray of int, shape (T,)
        The numbers of the samples, from 1.
    coverage, change : ndarray of shape (T,)
        ln of the e-values after each sample, as in `MonitorPoint`.
    drift : ndarray of shape (T,) or None
        The same against drift; None without a report.
    """
    is_raised: dict[AlarmName, BoolArray] = {"coverage": coverage >= state.log_alarm_threshold}
    if state.average_run_length is not None:
        is_raised["change"] = change >= np.log(state.average_run_length)
    if drift is not None:
        is_raised["drift"] = drift >= state.log_alarm_threshold

    alarms = dict(state.alarm_steps)
    for name, is_raised_at in is_raised.items():
        first_sample = _first(samples, is_raised_at)
        if first_sample is not None:
            alarms.setdefault(name, first_sample)
    return alarms


def _stored_logs(values: Sequence[float], n_bets: int) -> FloatArray:
    """Return stored logarithms, (J,); before the first sample all are minus infinity.

    Parameters
    ----------
    values : sequence of float
        J logarithms, or none before the first sample.
    n_bets : int
        J.
    """
    return np.array(values or [-np.inf] * n_bets, dtype=np.float64)


def _first(samples: IntArray, condition: BoolArray) -> int | None:
    """Return the first of some samples for which a condition holds; None if there is none.

    Parameters
    ----------
    samples : ndarray of int, shape (T,)
        The numbers of the samples, from 1 and rising.
    condition : ndarray of bool, shape (T,)
        Whether it holds after each of them.
    """
    if not condition.any():
        return None
    return int(samples[np.argmax(condition)])


def _new_points(
    samples: IntArray,
    coverage: FloatArray,
    change: FloatArray,
    drift: FloatArray | None,
    alarm_steps: Mapping[AlarmName, int],
) -> list[MonitorPoint]:
    """Return the points of a batch: up to 100 evenly spaced, and those with an alarm.

    Parameters
    ----------
    samples : ndarray of int, shape (T,)
        The numbers of the samples, from 1 and consecutive; at least one.
    coverage, change : ndarray of shape (T,)
        ln of the e-values after each sample, as in `MonitorPoint`.
    drift : ndarray of shape (T,) or None
        The same against drift; None without a report.
    alarm_steps : mapping of str to int
        All alarms so far, also of earlier batches, with their samples.

    Returns
    -------
    list of MonitorPoint
        By rising n; the last one is at the last sample.
    """
    n_samples = len(samples)
    evenly_spaced = np.linspace(0, n_samples - 1, min(n_samples, MAX_NEW_POINTS)).round()
    with_alarm = [step - samples[0] for step in alarm_steps.values() if step >= samples[0]]
    points = []
    for index in np.unique([*evenly_spaced, *with_alarm]).astype(np.intp):
        point = MonitorPoint(
            n_samples=int(samples[index]),
            log_e_coverage=float(coverage[index]),
            log_shiryaev_roberts=float(change[index]),
            log_e_exchangeability=None if drift is None else float(drift[index]),
        )
        points.append(point)
    return points


def _drop_points(
    points: Sequence[MonitorPoint], alarm_steps: Collection[int]
) -> tuple[MonitorPoint, ...]:
    """Return the curve with few enough points: every second is dropped, as often as needed.

    The last point and those with an alarm stay.

    Parameters
    ----------
    curve : sequence of MonitorPoint
        By rising n.
    alarm_steps : collection of int
        The samples at which an alarm was raised.
    """
    while len(points) > MAX_POINTS + len(alarm_steps):
        parity_of_last = (len(points) - 1) % 2
        points = [
            point
            for index, point in enumerate(points)
            if index % 2 == parity_of_last or point.n_samples in alarm_steps
        ]
    return tuple(points)


def _e_value_text(log_e_value: float) -> str:
    """Return an e-value in words, given its natural logarithm.

    It is a power of ten if it is very large or very small.
    """
    if abs(log_e_value) < MAX_PLAIN_LOG:
        return f"{math.exp(log_e_value):.3g}"
    return f"10^{log_e_value / math.log(10):.0f}"
