"""The results of docs/alarms.md: `python benchmarks/monitor.py` measures and writes them there.

Everything is seeded. `--quick` takes a hundredth of the runs and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from measure import into_page, markdown
from numpy.typing import NDArray

from robfcp.figures import CYCLE, GREY, new_axes, save, style
from robfcp.monitoring import _betting as betting

FLOOR, DELTA, HORIZON = 0.9, 0.05, 10_000
ALLOWED = 1 - FLOOR
STEPS = np.arange(1, HORIZON + 1)
DROPS = (0.02, 0.05, 0.10)
PAGE = Path(__file__).parents[1] / "docs" / "alarms.md"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "monitor.png"
Table = tuple[list[str], list[list[str]]]


Misses = NDArray[np.int64]
Rate = float | NDArray[np.float64]
Rule = Callable[[Misses], NDArray[np.bool_]]


def runs(number: int, missing: Rate, seed: int, piece: int = 1000) -> Iterator[Misses]:
    """(piece, T) cumulated misses of sites that miss that often."""
    rng = np.random.default_rng(seed)
    for start in range(0, number, piece):
        shape = (min(piece, number - start), HORIZON)
        rates = missing[start : start + piece] if np.ndim(missing) == 2 else missing
        yield np.cumsum(rng.random(shape, dtype=np.float32) < rates, axis=1, dtype=np.int32)


def first(rings: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(R,) after how many samples each run rang; infinite where it never did."""
    return np.where(rings.any(axis=1), rings.argmax(axis=1) + 1.0, np.inf)


def delays(
    rule: Callable[[Misses], NDArray[np.bool_]], number: int, missing: Rate, seed: int
) -> NDArray[np.float64]:
    """(R,) delays of a rule on (piece, T) cumulated misses."""
    return np.concatenate([first(rule(part)) for part in runs(number, missing, seed)])


def scored(misses: Misses, drop: float) -> NDArray[np.float32]:
    """(R, T) CUSUM against a miss rate of allowed + drop: max over s of the log ratio since s."""
    q = ALLOWED + drop
    up, down = np.log(q / ALLOWED), np.log((1 - q) / (1 - ALLOWED))
    sums = (misses * (up - down) + STEPS * down).astype(np.float32)
    lowest = np.minimum(np.minimum.accumulate(sums, axis=1), 0)
    return np.asarray(sums - lowest)


def bets_ring(weights: NDArray[np.float64], limit: float) -> Rule:
    """Rings where the mean of X_t = (X_{t-1} + weight_t) x factor_t reaches limit - 1 / (t + 1)."""
    both = np.exp(betting.log_bet_factors(FLOOR, np.array([False, True])))
    kept = 1 / (STEPS + 1) if weights[-1] < 1 else np.zeros(HORIZON)

    def rule(misses: Misses) -> NDArray[np.bool_]:
        steps = np.diff(misses, axis=1, prepend=0).T.astype(np.intp)
        found = np.empty(steps.shape, dtype=bool)
        total = np.zeros((misses.shape[0], betting.N_BETS))
        for t in range(HORIZON):
            total += weights[t]
            total *= both[steps[t]]
            np.minimum(total, 1e200, out=total)
            found[t] = total.mean(axis=1) + kept[t] >= limit
        return found.T

    return rule


def wealth_rings() -> Rule:
    """The monitor's rule at delta."""
    return bets_ring(1 / (STEPS * (STEPS + 1.0)), 1 / DELTA)


def change_rings(run_length: float) -> Rule:
    """R_t of Shiryaev and Roberts at this run length."""
    return bets_ring(np.ones(HORIZON), run_length)


def false_alarms(number: int) -> Table:
    """How often a site exactly at the floor rings, looked at after each of 10,000 samples."""
    rule = wealth_rings()
    rung = sum(int(rule(part).any(axis=1).sum()) for part in runs(number, ALLOWED, 1))
    drift = sum(drifts(seed, 500, HORIZON) for seed in range(number))
    mean = np.minimum(delays(change_rings(2000.0), max(20, number // 20), ALLOWED, 2), HORIZON)
    shares = {
        "the alarm against the floor": rung,
        "the alarm of drift, 500 reported": drift,
    }
    for n in (200, 1000, 5000):
        rank = int(np.ceil(FLOOR * (n + 1)))
        rates = 1 - np.random.default_rng(n).beta(rank, n + 1 - rank, (number, 1))
        found = delays(rule, number, rates, n)
        name = f"the alarm against 1 - alpha, good sites with {n:,} calibration samples"
        shares[name] = int(np.isfinite(found).sum())
    rows = [[name, f"{count / number:.4f}", f"{number:,}"] for name, count in shares.items()]
    words = "R at 2,000: mean samples to a false alarm, cut at 10,000"
    rows.append([words, f"{mean.mean():,.0f}", f"{len(mean):,}"])
    return ["false alarms within 10,000 samples, delta 0.05", "share", "runs"], rows


def drifts(seed: int, reported: int, n: int) -> bool:
    """Whether the second wealth rings for scores that do not drift."""
    rng = np.random.default_rng([3, seed])
    bins = np.minimum((rng.beta(0.6, 2.5, reported + n) * 100).astype(np.intp), 99)
    bag = np.bincount(bins[:reported], minlength=100)
    p = betting.conformal_p_values(bag, bins[reported:], rng.random(n))
    factors = betting.log_p_value_bets(p, np.zeros(betting.N_CELLS, dtype=np.int64))
    started = betting.log_mixture_wealth(np.full(betting.N_EXCHANGE_BETS, -np.inf), 0, factors)
    return bool(betting.log_wealth(started, 0).max() >= -np.log(DELTA))


def delay_table(number: int, start: int = 0) -> Table:
    """Samples until a drop is seen that begins after `start` good ones; earlier alarms left out."""
    rows = []
    for drop in DROPS:
        missing = np.where(start < STEPS, ALLOWED + drop, ALLOWED)
        few = max(20, number // 10)
        highest = [scored(part, drop).max(axis=1) for part in runs(number, ALLOWED, 5)]
        limit = np.quantile(np.concatenate(highest), 1 - DELTA)
        found = [
            delays(wealth_rings(), number, missing, 4),
            delays(change_rings(HORIZON / DELTA), few, missing, 4),
            delays(lambda part: scored(part, drop) >= limit, number, missing, 4),  # noqa: B023
        ]
        cells = [spread(values[values > start] - start) for values in found]
        rows.append([f"{100 * drop:.0f} points", *cells])
    when = f"after {start:,} good samples" if start else "from the first sample"
    head = [f"drop from 0.90 {when}", "alarm", "R at 200,000", "CUSUM told the drop"]
    return head, rows


def spread(values: NDArray[np.float64]) -> str:
    """Median, and what nine in ten stay below; never where they did not ring."""
    middle, high = np.quantile(values, [0.5, 0.9], method="higher")
    return " / ".join("never" if np.isinf(v) else f"{v:,.0f}" for v in (middle, high))


def wealth(missed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(T,) ln of one site's wealth."""
    factors = betting.log_bet_factors(FLOOR, missed)
    started = betting.log_mixture_wealth(np.full(betting.N_BETS, -np.inf), 0, factors)
    return betting.log_wealth(started, 0)


def liars(number: int) -> Table:
    """20 sites, 8 lie: false alarms and delays of the merged strength, which rings at 2 / delta."""
    n_sites, m, horizon = 20, 8, 2000
    rng = np.random.default_rng(6)
    cases = {
        "nobody drifts, liars report 1e12": (np.full(12, 0.1), 27.6),
        "all 12 honest drift to 0.20, liars report 0": (np.full(12, 0.2), -np.inf),
        "11 honest drift to 0.30, liars report 0": (np.repeat([0.3, 0.1], [11, 1]), -np.inf),
        "8 honest drift to 0.30, liars report 0": (np.repeat([0.3, 0.1], [8, 4]), -np.inf),
    }
    rows = []
    for name, (missing, lie) in cases.items():
        found, plain = [], []
        for _ in range(number):
            honest = np.column_stack([wealth(rng.random(horizon) < q) for q in missing])
            logs = np.column_stack([honest, np.full((horizon, m), lie)])
            kept = np.sort(logs, axis=1)[:, : n_sites - m]
            merged = np.logaddexp.reduce(kept, axis=1) - np.log(n_sites - m)
            whole = np.logaddexp.reduce(logs, axis=1) - np.log(n_sites)
            found.append(first((merged >= np.log(2 / DELTA))[None])[0])
            plain.append(first((whole >= np.log(2 / DELTA))[None])[0])
        rows.append([name, told(np.array(found)), told(np.array(plain))])
    return ["20 sites, 8 of them lie", "mean of the 12 smallest", "mean of all"], rows


def told(values: NDArray[np.float64]) -> str:
    """How many runs rang, and their median delay."""
    rang = np.isfinite(values)
    words = f"{rang.mean():.3f} ring"
    return f"{words}, median {np.median(values[rang]):,.0f}" if rang.mean() > 0.5 else words


@style()
def draw(number: int) -> None:
    """Delays at three drops, and without one."""
    (ax,) = new_axes(1)
    for colour, drop in zip((*CYCLE[:3], GREY), (*DROPS, 0.0), strict=True):
        found = np.sort(delays(wealth_rings(), number, ALLOWED + drop, 4 if drop else 1))
        label = f"drop of {100 * drop:.0f} points" if drop else "no drop"
        ax.plot(found, np.arange(1, len(found) + 1) / len(found), color=colour, label=label)
    ax.axhline(DELTA, color=GREY, linestyle=":", linewidth=1)
    ax.set(xscale="log", xlim=(20, HORIZON), xlabel="samples", ylabel="share that has rung")
    ax.set_title("Until a drop from 0.90 is seen")
    ax.legend(fontsize=8, loc="upper left")
    save(ax, FIGURE)


def main() -> None:
    """Measure, print, and write the tables and the figure into the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    number, began = (100 if quick else 10_000), time.perf_counter()
    tables: list[Table] = []
    for make in (
        lambda: liars(number // 25),
        lambda: delay_table(number, 2000),
        lambda: delay_table(number),
        lambda: false_alarms(number),
    ):
        tables.insert(0, make())
        print(markdown(*tables[0]), f"\n{time.perf_counter() - began:.0f} s", flush=True)
    if not quick:
        draw(number // 5)
        into_page(PAGE, "results", "\n\n".join(markdown(*table) for table in tables))


if __name__ == "__main__":
    main()
