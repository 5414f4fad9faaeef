"""What changed from one round of calibration to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import abbreviate, check_fraction
from robfcp.calibration import Calibration
from robfcp.certificates import format_loss_upper, format_lower
from robfcp.federation import Federation
from robfcp.scores import Risk

MIN_SAMPLES_FOR_UNCHANGED = 30  # reports of fewer samples may be equal by chance
MAX_CLIENTS_IN_LINE = 12


@dataclass(frozen=True)
class LevelComparison:
    """What two rounds give for the same coverage level.

    Attributes
    ----------
    coverage : Fraction
        The level. Of losses: one minus the mean loss accepted, as a fraction of the largest loss.
    previous_threshold, current_threshold : float
        In the unit of the score; infinite if every set contains all labels. By class or group: the
        largest.
    previous_lower, current_lower : float
        Certified lower bounds on coverage. Of losses: one minus the certified upper bound on the
        mean loss, as a fraction of the largest loss.
    risk : Risk, optional
        The loss that is bounded in place of coverage.
    """

    coverage: Fraction
    previous_threshold: float
    current_threshold: float
    previous_lower: float
    current_lower: float
    risk: Risk | None = None

    @property
    def line(self) -> str:
        """The thresholds and what is certified of them, in words."""
        threshold_before = _threshold_text(self.previous_threshold)
        threshold_now = _threshold_text(self.current_threshold)
        thresholds = f"threshold {threshold_before} -> {threshold_now}"
        if self.risk is None:
            lower_before = format_lower(self.previous_lower)
            lower_now = format_lower(self.current_lower)
            bounds = f"certified lower bound {lower_before} -> {lower_now}"
            return f"coverage {float(self.coverage):g}: {thresholds}, {bounds}"

        target = _max_loss_text(self.coverage, self.risk)
        previous_upper = _max_loss_text(self.previous_lower, self.risk)
        current_upper = _max_loss_text(self.current_lower, self.risk)
        bounds = f"certified upper bound {previous_upper} -> {current_upper}"
        return f"mean {self.risk.name} of at most {target}: {thresholds}, {bounds}"


@dataclass(frozen=True)
class RoundComparison:
    """What changed from one round of calibration to the next.

    Attributes
    ----------
    levels : tuple of LevelComparison
        Of every level that both calibrations have.
    joined_clients : tuple of str
        Clients with a valid report now and none before.
    left_clients : tuple of str
        Clients with a valid report before and none now: missing, refused or excluded.
    newly_flagged_clients : tuple of str
        Clients of both rounds that the defense flags now and did not flag before.
    no_longer_flagged_clients : tuple of str
        Clients of both rounds that the defense flagged before and does not flag now.
    drift_distances : mapping of str to float
        Clients whose scores differ from those of their own previous report by more than chance:
        the Kolmogorov distance of the two reports, above 0 and at most 1. In alphabetical order;
        empty where drift was not tested.
    unchanged_clients : tuple of str
        Clients that sent the very same report again: no fresh samples went into it.
    is_drift_tested : bool
        Whether the reports of the two rounds could be tested for drift.
    """

    levels: tuple[LevelComparison, ...]
    joined_clients: tuple[str, ...]
    left_clients: tuple[str, ...]
    newly_flagged_clients: tuple[str, ...]
    no_longer_flagged_clients: tuple[str, ...]
    drift_distances: Mapping[str, float]
    unchanged_clients: tuple[str, ...]
    is_drift_tested: bool

    @property
    def lines(self) -> list[str]:
        """The changes, a line each; of many clients only the first are named."""
        lines = [level.line for level in self.levels]
        changes: dict[str, Sequence[str]] = {
            "joined": self.joined_clients,
            "left": self.left_clients,
            "newly flagged": self.newly_flagged_clients,
            "no longer flagged": self.no_longer_flagged_clients,
            "drifted": list(self.drift_distances),
            "sent the report of the round before again": self.unchanged_clients,
        }
        for change, clients in changes.items():
            if clients:
                lines.append(f"{change}: {abbreviate(clients, MAX_CLIENTS_IN_LINE)}")
        if not self.is_drift_tested:
            lines.append(
                "drift was not tested: it needs scores of one kind on one binning, without noise"
            )
        return lines


def compare_rounds(
    previous: Calibration, current: Calibration, *, delta: float = 0.05
) -> RoundComparison:
    """Compare the calibrations of two consecutive rounds.

    Parameters
    ----------
    previous, current : Calibration
        The earlier and the later one, both with their records.
    delta : float
        Probability that any client is said to have drifted although none has. It holds for this
        comparison; for a false alarm in any of many rounds to be as rare, pass
        6 delta / (pi r)**2 in round r = 1, 2, ..., which sums to delta.

    Returns
    -------
    RoundComparison

    Raises
    ------
    RobfcpError
        If a calibration came without its record.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.monitoring import compare_rounds
    >>> first = robfcp.Federation.from_counts([[95, 5], [95, 5], [95, 5]])
    >>> second = robfcp.Federation.from_counts([[95, 5], [950, 50], [500, 500]])
    >>> before = robfcp.calibrate(first, defense="none")
    >>> now = robfcp.calibrate(second, defense="none")
    >>> print(*compare_rounds(before, now).lines, sep="\\n")
    coverage 0.9: threshold 0.5 -> 1, certified lower bound 90.38% -> 99.79%
    drifted: client-2
    sent the report of the round before again: client-0
    """
    check_fraction("delta", delta, "use a value such as 0.05")
    clients_before = set(previous.federation.clients)
    clients_now = set(current.federation.clients)
    flagged_before = set(previous.flagged_clients)
    flagged_now = set(current.flagged_clients)

    is_drift_tested = _is_drift_testable(previous.federation, current.federation)
    distances: dict[str, float] = {}
    if is_drift_tested:
        distances = drift_distances(previous.federation, current.federation, delta)

    return RoundComparison(
        levels=_compare_levels(previous, current),
        joined_clients=tuple(sorted(clients_now - clients_before)),
        left_clients=tuple(sorted(clients_before - clients_now)),
        newly_flagged_clients=tuple(sorted((flagged_now - flagged_before) & clients_before)),
        no_longer_flagged_clients=tuple(sorted((flagged_before - flagged_now) & clients_now)),
        drift_distances=distances,
        unchanged_clients=unchanged_clients(previous.federation, current.federation),
        is_drift_tested=is_drift_tested,
    )


def drift_distances(previous: Federation, current: Federation, delta: float) -> dict[str, float]:
    """Find the clients whose two reports differ by more than chance.

    Client k is listed if the Kolmogorov distance of the empirical CDFs of its two reports, the
    largest difference at any bin edge, exceeds

        sqrt(ln(4 K / delta) / (2 n_k)) + sqrt(ln(4 K / delta) / (2 n'_k)).

    K is the number of clients in both rounds; n_k and n'_k are the client's numbers of samples
    before and now. If the scores of no client have changed their distribution, the probability
    that any is listed is at most delta: by the inequality of Dvoretzky, Kiefer and Wolfowitz with
    Massart's constant an empirical CDF is farther than sqrt(ln(2 / e) / (2 n)) from the true one
    with probability at most e, here delta / (2 K) for each of 2 K reports (docs/alarms.md,
    section 6).

    The counts of a coarsened report give its empirical CDF up to a range. Its distance is then
    the smallest that both ranges allow, so that rounding is not taken for drift.

    Parameters
    ----------
    previous, current : Federation
        Reports of scores of one kind, on one binning and without noise, as `_is_drift_testable`
        checks for `compare_rounds`.
    delta : float
        Probability of listing any client by chance.

    Returns
    -------
    dict of str to float
        The distances of the clients listed, in alphabetical order.
    """
    clients = _common_clients(previous, current)
    if not clients:
        return {}

    # The gap between the two ranges of each of the n clients in both rounds, at each bin edge:
    # (n, H), negative where they overlap.
    previous_lower, previous_upper = _cdf_range(previous, clients)
    current_lower, current_upper = _cdf_range(current, clients)
    gaps = np.maximum(previous_lower - current_upper, current_lower - previous_upper)
    distances = gaps.max(axis=1, initial=0)

    # (n,) the largest distance by chance: the radii of a client's two CDFs together.
    log_term = np.log(4 * len(clients) / delta)
    radii = np.zeros(len(clients))
    for federation in (previous, current):
        sizes = federation.sample_sizes[_rows_of(federation, clients)]
        radii += np.sqrt(log_term / (2 * sizes))

    return {clients[k]: float(distances[k]) for k in np.flatnonzero(distances > radii)}


def unchanged_clients(previous: Federation, current: Federation) -> tuple[str, ...]:
    """Find the clients whose two reports have equal counts in every bin.

    Reports of fewer than 30 samples may be equal by chance and are not listed, nor are coarsened
    ones of fewer than 30 of the smallest cells. Where the binnings differ none is.

    Parameters
    ----------
    previous, current : Federation
        The reports of two rounds.

    Returns
    -------
    tuple of str
        In alphabetical order.
    """
    if previous.binning != current.binning:
        return ()
    clients = _common_clients(previous, current)
    if not clients:
        return ()

    previous_counts = _cumulative_counts(previous, clients)
    current_counts = _cumulative_counts(current, clients)
    is_equal = (previous_counts == current_counts).all(axis=1)
    # Coarsening places the samples of a smallest cell as one.
    rows = _rows_of(current, clients)
    n_placed = current.sample_sizes[rows] // current.min_cell_counts[rows]
    is_large = n_placed >= MIN_SAMPLES_FOR_UNCHANGED
    return tuple(clients[k] for k in np.flatnonzero(is_equal & is_large))


def _compare_levels(previous: Calibration, current: Calibration) -> tuple[LevelComparison, ...]:
    """Compare the levels that both calibrations have, in the order of the later one.

    Levels are matched by their exact target coverage. None can be compared where one round bounds
    a loss and the other coverage, or another loss.
    """
    if previous.risk != current.risk:
        return ()
    previous_levels = {level.coverage: level for level in previous.levels}
    comparisons = []
    for level in current.levels:
        previous_level = previous_levels.get(level.coverage)
        if previous_level is None:
            continue
        comparison = LevelComparison(
            coverage=level.coverage,
            previous_threshold=previous_level.threshold,
            current_threshold=level.threshold,
            previous_lower=previous_level.certificate.lower,
            current_lower=level.certificate.lower,
            risk=current.risk,
        )
        comparisons.append(comparison)
    return tuple(comparisons)


def _is_drift_testable(previous: Federation, current: Federation) -> bool:
    """Return whether both rounds hold scores of one kind, counted without noise on one binning.

    If reports hold losses, a sample has several counts, to which the inequality of
    `drift_distances` does not apply.
    """
    if previous.risk is not None or current.risk is not None:
        return False
    if previous.has_noise or current.has_noise:
        return False
    return previous.score == current.score and previous.binning == current.binning


def _common_clients(previous: Federation, current: Federation) -> list[str]:
    """Return the clients with a valid report in both rounds, in alphabetical order."""
    return sorted(set(previous.clients) & set(current.clients))


def _rows_of(federation: Federation, clients: Sequence[str]) -> IndexArray:
    """Return the rows of some clients in a federation, (n,), in the order of `clients`.

    Parameters
    ----------
    federation : Federation
        The reports, with one of each of these clients.
    clients : sequence of str
        The n names.
    """
    row_of_client = {client: row for row, client in enumerate(federation.clients)}
    return np.array([row_of_client[client] for client in clients], dtype=np.intp)


def _select(federation: Federation, clients: Sequence[str]) -> Federation:
    """Return the reports of some clients, in the order of the federation and in memory."""
    return federation.select_rows(np.sort(_rows_of(federation, clients)))


def _cumulative_counts(federation: Federation, clients: Sequence[str]) -> IntArray:
    """Return the cumulative counts of some clients, (n, H), in the order of `clients`.

    Entry (k, h) counts the scores at or below the upper edge of bin h.
    """
    selected = _select(federation, clients)
    return selected.cumulative_counts()[_rows_of(selected, clients)]


def _cdf_range(federation: Federation, clients: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds of the empirical CDFs of some clients, (n, H) each.

    They differ for coarsened reports alone, whose samples may be in lower bins than counted.

    Parameters
    ----------
    federation : Federation
        Reports of scores without noise.
    clients : sequence of str
        The n clients, each with a report.

    Returns
    -------
    lower, upper : ndarray of shape (n, H)
        Shares of each client's samples up to each upper edge, in the order of `clients`.
    """
    selected = _select(federation, clients)
    rows = _rows_of(selected, clients)
    sizes = selected.sample_sizes[rows, None]
    # Samples that lie in lower bins make the CDF larger.
    lower = selected.cumulative_counts()[rows] / sizes
    upper = selected.counts_in_lowest_bins().cumulative_counts()[rows] / sizes
    return lower, upper


def _threshold_text(threshold: float) -> str:
    """Return a threshold in words."""
    return f"{threshold:.5g}" if np.isfinite(threshold) else "infinite"


def _max_loss_text(coverage: float | Fraction, risk: Risk) -> str:
    """Return the mean loss of a level in words, in the unit of the loss.

    Parameters
    ----------
    coverage : float or Fraction
        One minus the mean loss, as a fraction of the largest loss.
    risk : Risk
        For the largest loss, `bound`.
    """
    return format_loss_upper(float(1 - coverage) * risk.upper_bound, risk.upper_bound)
