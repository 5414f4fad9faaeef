"""The check of running times: twice the time fails, noise does not."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from check import LIMIT, Stage, ratio, slower, too_slow


def slow_stages(seed, slowdown):
    """Return the stages that are too slow by a clock with errors of up to 30%."""
    rng, times = np.random.default_rng(seed), [0.0]

    def stage_of(seconds):
        return lambda: times.append(times[-1] + seconds * rng.uniform(0.7, 1.3))

    factors = {"same": 1.0, "changed": slowdown}
    stages = {
        name: Stage(stage_of(3e-3 * factor), stage_of(1e-3)) for name, factor in factors.items()
    }
    options = {"measure": lambda stage: ratio(stage, lambda: times[-1])}
    return list(slower(stages, {"same": 3.0, "changed": 3.0}, **options)[1])


@pytest.mark.parametrize("seed", range(20))
def test_noise_passes_and_twice_the_time_fails(seed):
    assert slow_stages(seed, 1.2) == slow_stages(seed, 1.0) == []
    assert slow_stages(seed, 2.0) == ["changed"]


def test_a_slow_stage_is_measured_again_and_a_new_one_passes():
    ratios = iter([9.0, 3.0])
    result = slower({"old": Stage(int, int)}, {"old": 3.0}, lambda stage: next(ratios))
    assert result == ({"old": 3.0}, {})
    assert too_slow({"new": 100.0, "old": LIMIT * 1.01}, {"old": 1.0}) == {"old": LIMIT * 1.01}
