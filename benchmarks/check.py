"""Has a stage become slower? `make benchmark-check` compares a few ratios with their baseline.

Each stage's processor time is divided by that of plain numpy work of its size in the same process,
least times of several turns, so that the machine and what else it does matter little. A stage fails
whose ratio is more than LIMIT times its baseline, twice: a stage of twice the time does, noise does
not. `--write` makes what is measured the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

BASELINE = Path(__file__).resolve().parent / "history" / "baseline.json"
LIMIT = 1.7  # times the baseline that a stage may take: noise stays below, twice the time does not
MIN_TURNS = 7
MAX_TURNS = 40 * MIN_TURNS
MIN_SECONDS = 0.2  # that a stage is measured for, unless that takes more than MAX_TURNS

Ratios = dict[str, float]


class Stage(NamedTuple):
    """A piece of work and the plain work that it is measured by."""

    work: Callable[[], Any]
    yardstick: Callable[[], Any]


def ratio(stage: Stage, clock: Callable[[], float] = time.process_time) -> float:
    """Return the least time of the work over the least time of its yardstick, in turns."""
    stage.work()
    stage.yardstick()
    work_times: list[float] = []
    yardstick_times: list[float] = []
    first_start = clock()
    n_turns = 0
    while n_turns < MIN_TURNS or (clock() - first_start < MIN_SECONDS and n_turns < MAX_TURNS):
        for work, times in ((stage.work, work_times), (stage.yardstick, yardstick_times)):
            start = clock()
            work()
            times.append(clock() - start)
        n_turns += 1
    return min(work_times) / min(yardstick_times)


def slower(
    stages: Mapping[str, Stage],
    baseline: Mapping[str, float],
    measure: Callable[[Stage], float] = ratio,
) -> tuple[Ratios, Ratios]:
    """Return all ratios, and those that are too large also when measured again."""
    ratios = {name: measure(stage) for name, stage in stages.items()}
    for name in too_slow(ratios, baseline):
        ratios[name] = min(ratios[name], measure(stages[name]))
    return ratios, too_slow(ratios, baseline)


def too_slow(ratios: Mapping[str, float], baseline: Mapping[str, float]) -> Ratios:
    """Return the ratios that are more than LIMIT times their baseline; without one they pass."""
    return {
        name: value for name, value in ratios.items() if value > LIMIT * baseline.get(name, value)
    }


def stages() -> dict[str, Stage]:
    """Return the stages, each small enough for a few turns within seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other take time too
    import intake
    import numpy as np
    import server
    from stages import probabilities

    import robfcp
    from robfcp.page import PageInfo, page_data

    outputs, labels = probabilities(2000, 1000)
    scores = np.random.default_rng(0).beta(0.4, 2, 20_000)
    uniforms = np.random.default_rng(1).random(200_000)
    reports = list(intake.lines(500))
    pooled = server.federation(1000)
    large = server.federation(50_000)
    classes = robfcp.Federation.from_reports(intake.lines(100, 100))
    bin_index = server.fcp_bin_index(large, server.LEVEL)
    calibration = robfcp.calibrate(server.federation(100, malicious_fraction=0.02))
    _, bins, values = large.table.entries()
    bins = bins.astype(np.uint16)  # so the baseline was measured
    values = values.astype(np.uint8)

    # Stable sorts: others are as fast as the processor's widest words.
    sort_uniforms = partial(np.sort, uniforms, kind="stable")
    sort_rows = partial(np.sort, outputs, axis=1, kind="stable")
    sort_scores = partial(np.sort, scores, kind="stable")

    return {
        "scores, lac": Stage(partial(robfcp.LAC(), outputs, labels), sort_rows),
        "scores, aps": Stage(partial(robfcp.APS(), outputs, labels, rng=1), sort_rows),
        "sets, aps": Stage(partial(robfcp.APS().prediction_sets, outputs, [0.9], 1), sort_rows),
        "sets, raps": Stage(partial(robfcp.RAPS().prediction_sets, outputs, [0.9], 1), sort_rows),
        "sketch": Stage(partial(server.BINNING.counts, scores), sort_scores),
        "intake": Stage(
            partial(intake.take_in_lines, reports), partial(intake.decode_lines, reports)
        ),
        "calibrate": Stage(partial(server.calibrate_fresh, pooled), sort_uniforms),
        "calibrate without a defense": Stage(
            partial(server.calibrate_fresh, pooled, defense="none"), sort_uniforms
        ),
        "calibrate by a hundred classes": Stage(
            partial(server.calibrate_fresh, classes, by="class", defense="none"), sort_uniforms
        ),
        "certify": Stage(
            partial(server.certify_fresh, large, bin_index, 5000),
            partial(server.add_up, bins, values),
        ),
        "page": Stage(partial(page_data, calibration, PageInfo()), sort_uniforms),
    }


def main() -> None:
    """Measure, compare, say what failed; or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    is_writing = parser.parse_args().write
    baseline = {} if is_writing else json.loads(BASELINE.read_text(encoding="utf-8"))
    ratios, failed = slower(stages(), baseline)
    for name, value in ratios.items():
        comparison = ""
        if name in baseline:
            comparison = f"{value / baseline[name]:6.2f} of the baseline"
        print(f"{name:34}{value:10.3f} x its yardstick{comparison}")
    if is_writing:
        BASELINE.write_text(json.dumps(ratios, indent=1) + "\n", encoding="utf-8")
    elif failed:
        sys.exit(f"slower than {LIMIT} times the baseline: {', '.join(failed)}")


if __name__ == "__main__":
    main()
