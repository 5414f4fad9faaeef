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
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

BASELINE = Path(__file__).resolve().parent / "history" / "baseline.json"
LIMIT = 1.7
TURNS = 7
AT_LEAST = 0.2  # seconds that a stage is measured for, as long as it takes few turns

Ratios = dict[str, float]


class Stage(NamedTuple):
    """A piece of work and the plain work that it is measured by."""

    work: Callable[[], Any]
    yardstick: Callable[[], Any]


def ratio(stage: Stage, clock: Callable[[], float] = time.process_time) -> float:
    """The least time of the work over the least time of its yardstick, in turns."""
    stage.work()
    stage.yardstick()
    times: tuple[list[float], list[float]] = [], []
    began, turns = clock(), 0
    while turns < TURNS or (clock() - began < AT_LEAST and turns < 40 * TURNS):
        for work, spent in zip(stage, times, strict=True):
            start = clock()
            work()
            spent.append(clock() - start)
        turns += 1
    return min(times[0]) / min(times[1])


def slower(
    stages: Mapping[str, Stage],
    baseline: Mapping[str, float],
    measure: Callable[[Stage], float] = ratio,
) -> tuple[Ratios, Ratios]:
    """What was measured, and of it what is slower than allowed also when measured again."""
    found = {name: measure(stage) for name, stage in stages.items()}
    for name in too_slow(found, baseline):
        found[name] = min(found[name], measure(stages[name]))
    return found, too_slow(found, baseline)


def too_slow(found: Mapping[str, float], baseline: Mapping[str, float]) -> Ratios:
    """The ratios that are more than LIMIT times their baseline; a stage without one passes."""
    return {
        name: value for name, value in found.items() if value > LIMIT * baseline.get(name, value)
    }


def stages() -> dict[str, Stage]:
    """The stages, each small enough for a few turns within seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other take time too
    import intake
    import msgspec
    import numpy as np
    import server
    from stages import probabilities

    import robfcp
    from robfcp.page import PageInfo, page_data

    p, labels = probabilities(2000, 1000)
    scores = np.random.default_rng(0).beta(0.4, 2, 20_000)
    numbers = np.random.default_rng(1).random(200_000)
    reports = list(intake.lines(500))
    thousand, many = server.federation(1000), server.federation(50_000)
    classes = robfcp.Federation.from_reports(intake.lines(100, 100))
    index = server.fcp_bin_index(many, server.LEVEL)
    calibration = robfcp.calibrate(server.federation(100, share=0.02))
    _, bins, values = many.table.entries()
    bins = bins.astype(np.uint16)  # so the baseline was measured
    values = values.astype(np.uint8)

    def certified() -> None:
        fresh = replace(many)
        server.certify_threshold(fresh, index, 5000)

    def sort_some() -> None:
        np.sort(numbers, kind="stable")  # others are as fast as the processor's widest words

    def sort_rows() -> None:
        np.sort(p, axis=1, kind="stable")

    return {
        "scores, lac": Stage(lambda: robfcp.LAC()(p, labels), sort_rows),
        "scores, aps": Stage(lambda: robfcp.APS()(p, labels, rng=1), sort_rows),
        "sets, aps": Stage(lambda: robfcp.APS().prediction_sets(p, [0.9], 1), sort_rows),
        "sets, raps": Stage(lambda: robfcp.RAPS().prediction_sets(p, [0.9], 1), sort_rows),
        "sketch": Stage(lambda: server.GRID.counts(scores), lambda: np.sort(scores, kind="stable")),
        "intake": Stage(
            lambda: robfcp.Federation.from_reports(iter(reports)),
            lambda: [msgspec.json.decode(line) for line in reports],
        ),
        "calibrate": Stage(lambda: robfcp.calibrate(replace(thousand)), sort_some),
        "calibrate without a defence": Stage(
            lambda: robfcp.calibrate(replace(thousand), defense="none"), sort_some
        ),
        "calibrate by a hundred classes": Stage(
            lambda: robfcp.calibrate(replace(classes), by="class", defense="none"),
            sort_some,
        ),
        "certify": Stage(certified, lambda: (bins.sum(), values.sum())),
        "page": Stage(lambda: page_data(calibration, PageInfo()), sort_some),
    }


def main() -> None:
    """Measure, compare, say what failed; or write the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    writes = parser.parse_args().write
    baseline = {} if writes else json.loads(BASELINE.read_text(encoding="utf-8"))
    found, failed = slower(stages(), baseline)
    for name, value in found.items():
        beside = f"{value / baseline[name]:6.2f} of the baseline" if name in baseline else ""
        print(f"{name:34}{value:10.3f} x its yardstick{beside}")
    if writes:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    elif failed:
        sys.exit(f"slower than {LIMIT} times the baseline: {', '.join(failed)}")


if __name__ == "__main__":
    main()
