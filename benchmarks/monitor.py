"""The results of docs/alarms.md: `python benchmarks/monitor.py` measures and writes them there.

Everything is seeded. `--quick` takes a hundredth of the runs and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from measure import into_page, markdown
from numpy.typing import NDArray

from robfcp.figures import CYCLE, GRAY, new_axes, save, style
from robfcp.monitoring import _e_values as betting

MIN_COVERAGE = 0.9
ALLOWED = 1 - MIN_COVERAGE  # miss rate
DELTA = 0.05  # probability of a false alarm
HORIZON = 10_000  # samples that a client is watched for
STEPS = np.arange(1, HORIZON + 1)
DROPS = (0.02, 0.05, 0.10)  # of coverage
CHUNK = 1000  # runs that are drawn at a time
MAX_WEALTH = 1e200  # keeps products finite
PAGE = Path(__file__).parents[1] / "docs" / "alarms.md"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "monitor.png"

Table = tuple[list[str], list[list[str]]]
Misses = NDArray[np.int64]  # (R, T) cumulated misses of R runs
Rate = float | NDArray[np.float64]  # of misses: one for all, (T,) or (R, 1)
AlarmRule = Callable[[Misses], NDArray[np.bool_]]  # (R, T) at which samples it raises an alarm


def draw_misses(n_runs: int, miss_rate: Rate, seed: int) -> Iterator[Misses]:
    """Yield cumulated misses of clients that miss that often, some runs at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, n_runs, CHUNK):
        shape = (min(CHUNK, n_runs - start), HORIZON)
        rates = miss_rate
        if isinstance(miss_rate, np.ndarray) and miss_rate.ndim == 2:
            rates = miss_rate[start : start + CHUNK]
        is_missed = rng.random(shape, dtype=np.float32) < rates
        yield np.cumsum(is_missed, axis=1, dtype=np.int32)


def first_alarms(alarms: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (R,) after how many samples each run has an alarm; infinite where it has none."""
    return np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1.0, np.inf)


def delays(alarm_rule: AlarmRule, n_runs: int, miss_rate: Rate, seed: int) -> NDArray[np.float64]:
    """Return (R,) after how many samples a rule raises an alarm."""
    chunks = [first_alarms(alarm_rule(misses)) for misses in draw_misses(n_runs, miss_rate, seed)]
    return np.concatenate(chunks)


def cusum(misses: Misses, drop: float) -> NDArray[np.float32]:
    """Return (R, T) CUSUM against a miss rate of allowed + drop.

    It is max over s of the log likelihood ratio of the samples since s (Page 1954).
    """
    miss_rate = ALLOWED + drop
    log_ratio_missed = np.log(miss_rate / ALLOWED)
    log_ratio_covered = np.log((1 - miss_rate) / (1 - ALLOWED))
    sums = misses * (log_ratio_missed - log_ratio_covered) + STEPS * log_ratio_covered
    sums = sums.astype(np.float32)
    lowest = np.minimum(np.minimum.accumulate(sums, axis=1), 0)
    return np.asarray(sums - lowest)


def cusum_rule(drop: float, threshold: float) -> AlarmRule:
    """Return the rule that raises an alarm where CUSUM reaches a threshold."""

    def raise_alarms(misses: Misses) -> NDArray[np.bool_]:
        return cusum(misses, drop) >= threshold

    return raise_alarms


def betting_rule(weights: NDArray[np.float64], threshold: float) -> AlarmRule:
    """Return the rule of X_t = (X_{t-1} + weight_t) factor_t, averaged over all bets.

    It raises an alarm where the mean reaches the threshold; what weights below 1 have not bet yet,
    1 / (t + 1), counts too.
    """
    factors = np.exp(betting.log_bet_factors(MIN_COVERAGE, np.array([False, True])))
    not_bet = np.zeros(HORIZON)
    if weights[-1] < 1:
        not_bet = 1 / (STEPS + 1)

    def raise_alarms(misses: Misses) -> NDArray[np.bool_]:
        is_missed = np.diff(misses, axis=1, prepend=0).T.astype(np.intp)
        alarms = np.empty(is_missed.shape, dtype=bool)
        wealth = np.zeros((misses.shape[0], betting.N_BETS))
        for t in range(HORIZON):
            wealth += weights[t]
            wealth *= factors[is_missed[t]]
            np.minimum(wealth, MAX_WEALTH, out=wealth)
            alarms[t] = wealth.mean(axis=1) + not_bet[t] >= threshold
        return alarms.T

    return raise_alarms


def wealth_rule() -> AlarmRule:
    """Return the monitor's rule at delta."""
    return betting_rule(1 / (STEPS * (STEPS + 1.0)), 1 / DELTA)


def change_rule(average_run_length: float) -> AlarmRule:
    """Return the rule of Shiryaev and Roberts at an average run length."""
    return betting_rule(np.ones(HORIZON), average_run_length)


def false_alarms(n_runs: int) -> Table:
    """Return how often a client at the minimum coverage has an alarm within 10,000 samples."""
    alarm_rule = wealth_rule()
    n_alarms = 0
    for misses in draw_misses(n_runs, ALLOWED, 1):
        n_alarms += int(alarm_rule(misses).any(axis=1).sum())
    n_drift_alarms = sum(has_drift_alarm(seed, 500, HORIZON) for seed in range(n_runs))
    n_change_runs = max(20, n_runs // 20)
    change_delays = np.minimum(delays(change_rule(2000.0), n_change_runs, ALLOWED, 2), HORIZON)

    counts = {
        "the alarm against the minimum coverage": n_alarms,
        "the alarm of drift, 500 reported": n_drift_alarms,
    }
    for n in (200, 1000, 5000):
        rank = int(np.ceil(MIN_COVERAGE * (n + 1)))
        coverages = np.random.default_rng(n).beta(rank, n + 1 - rank, (n_runs, 1))
        name = f"the alarm against 1 - alpha, good clients with {n:,} calibration samples"
        counts[name] = int(np.isfinite(delays(alarm_rule, n_runs, 1 - coverages, n)).sum())
    rows = [[name, f"{count / n_runs:.4f}", f"{n_runs:,}"] for name, count in counts.items()]
    change_name = "R at 2,000: mean samples to a false alarm, cut at 10,000"
    rows.append([change_name, f"{change_delays.mean():,.0f}", f"{len(change_delays):,}"])
    return ["false alarms within 10,000 samples, delta 0.05", "fraction", "runs"], rows


def has_drift_alarm(seed: int, n_reported: int, n: int) -> bool:
    """Return whether the test of exchangeability raises an alarm for scores that do not drift."""
    rng = np.random.default_rng([3, seed])
    scores = rng.beta(0.6, 2.5, n_reported + n)
    bins = np.minimum((scores * 100).astype(np.intp), 99)
    reported_counts = np.bincount(bins[:n_reported], minlength=100)
    p_values = betting.conformal_p_values(reported_counts, bins[n_reported:], rng.random(n))
    factors = betting.log_p_value_bets(p_values, np.zeros(betting.N_CELLS, dtype=np.int64))
    no_wealth = np.full(betting.N_EXCHANGE_BETS, -np.inf)
    log_wealths = betting.log_mixture_wealth(no_wealth, 0, factors)
    return bool(betting.log_wealth(log_wealths, 0).max() >= -np.log(DELTA))


def delay_table(n_runs: int, start: int = 0) -> Table:
    """Return samples until a drop is seen that begins after some good ones; late alarms only."""
    rows = []
    for drop in DROPS:
        miss_rates = np.where(start < STEPS, ALLOWED + drop, ALLOWED)
        few_runs = max(20, n_runs // 10)
        maxima = [cusum(misses, drop).max(axis=1) for misses in draw_misses(n_runs, ALLOWED, 5)]
        cusum_threshold = np.quantile(np.concatenate(maxima), 1 - DELTA)
        all_delays = [
            delays(wealth_rule(), n_runs, miss_rates, 4),
            delays(change_rule(HORIZON / DELTA), few_runs, miss_rates, 4),
            delays(cusum_rule(drop, cusum_threshold), n_runs, miss_rates, 4),
        ]
        cells = [quantiles_text(values[values > start] - start) for values in all_delays]
        rows.append([f"{100 * drop:.0f} points", *cells])
    when = f"after {start:,} good samples" if start else "from the first sample"
    head = [f"drop from 0.90 {when}", "alarm", "R at 200,000", "CUSUM given the drop"]
    return head, rows


def quantiles_text(values: NDArray[np.float64]) -> str:
    """Return the median, and what nine in ten stay below; never where there is no alarm."""
    quantiles = np.quantile(values, [0.5, 0.9], method="higher")
    texts = ["never" if np.isinf(value) else f"{value:,.0f}" for value in quantiles]
    return " / ".join(texts)


def log_wealth_of(is_missed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return (T,) the logarithm of one client's wealth."""
    factors = betting.log_bet_factors(MIN_COVERAGE, is_missed)
    no_wealth = np.full(betting.N_BETS, -np.inf)
    return betting.log_wealth(betting.log_mixture_wealth(no_wealth, 0, factors), 0)


def attacked_alarms(n_runs: int) -> Table:
    """Return false alarms and delays of the merged e-value, at 2 / delta: 8 of 20 malicious."""
    n_clients = 20
    n_malicious = 8
    horizon = 2000
    rng = np.random.default_rng(6)
    # Case -> miss rates of the benign clients, and the logarithm that malicious ones report.
    cases = {
        "no drift, malicious report 1e12": (np.full(12, 0.1), 27.6),
        "all 12 benign drift to 0.20, malicious report 0": (np.full(12, 0.2), -np.inf),
        "11 benign drift to 0.30, malicious report 0": (np.repeat([0.3, 0.1], [11, 1]), -np.inf),
        "8 benign drift to 0.30, malicious report 0": (np.repeat([0.3, 0.1], [8, 4]), -np.inf),
    }
    log_threshold = np.log(2 / DELTA)
    rows = []
    for name, (miss_rates, reported) in cases.items():
        merged_alarms = []
        mean_alarms = []
        for _ in range(n_runs):
            benign = [log_wealth_of(rng.random(horizon) < rate) for rate in miss_rates]
            malicious = np.full((horizon, n_malicious), reported)
            logs = np.column_stack([*benign, malicious])
            smallest = np.sort(logs, axis=1)[:, : n_clients - n_malicious]
            merged_alarms.append(log_mean(smallest) >= log_threshold)
            mean_alarms.append(log_mean(logs) >= log_threshold)
        merged_delays = first_alarms(np.array(merged_alarms))
        mean_delays = first_alarms(np.array(mean_alarms))
        rows.append([name, alarms_text(merged_delays), alarms_text(mean_delays)])
    return ["20 clients, 8 malicious", "mean of the 12 smallest", "mean of all"], rows


def log_mean(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (T,) the logarithm of the mean of (T, K) values given by their logarithms."""
    return np.asarray(np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1]))


def alarms_text(delays: NDArray[np.float64]) -> str:
    """Return how many runs had an alarm, and their median delay where most had."""
    has_alarm = np.isfinite(delays)
    text = f"{has_alarm.mean():.3f} with an alarm"
    if has_alarm.mean() > 0.5:
        text += f", median {np.median(delays[has_alarm]):,.0f}"
    return text


@style()
def draw(n_runs: int) -> None:
    """Draw delays at three drops, and without one."""
    (ax,) = new_axes(1)
    for color, drop in zip((*CYCLE[:3], GRAY), (*DROPS, 0.0), strict=True):
        seed = 4 if drop else 1
        sorted_delays = np.sort(delays(wealth_rule(), n_runs, ALLOWED + drop, seed))
        fractions = np.arange(1, len(sorted_delays) + 1) / len(sorted_delays)
        label = f"drop of {100 * drop:.0f} points" if drop else "no drop"
        ax.plot(sorted_delays, fractions, color=color, label=label)
    ax.axhline(DELTA, color=GRAY, linestyle=":", linewidth=1)
    ax.set(xscale="log", xlim=(20, HORIZON), xlabel="samples", ylabel="fraction with an alarm")
    ax.set_title("Until a drop from 0.90 is seen")
    ax.legend(fontsize=8, loc="upper left")
    save(ax, FIGURE)


def main() -> None:
    """Measure, print, and write the tables and the figure into the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    is_quick = parser.parse_args().quick
    n_runs = 100 if is_quick else 10_000
    start = time.perf_counter()

    # In reverse: the last ones take longest.
    tables: list[Table] = []
    for make_table in (
        partial(attacked_alarms, n_runs // 25),
        partial(delay_table, n_runs, 2000),
        partial(delay_table, n_runs),
        partial(false_alarms, n_runs),
    ):
        table = make_table()
        tables.insert(0, table)
        print(markdown(*table), f"\n{time.perf_counter() - start:.0f} s", flush=True)
    if not is_quick:
        draw(n_runs // 5)
        into_page(PAGE, "results", "\n\n".join(markdown(*table) for table in tables))


if __name__ == "__main__":
    main()
