"""The check of speed: twice the time fails, noise does not."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from check import LIMIT, Stage, ratio, slower, too_slow


def judged(seed, slowdown):
    """What is found too slow where a clock runs up to 30% faster or slower than it should."""
    rng, now = np.random.default_rng(seed), [0.0]

    def work(seconds):
        return lambda: now.append(now[-1] + seconds * rng.uniform(0.7, 1.3))

    factors = {"same": 1.0, "changed": slowdown}
    stages = {name: Stage(work(3e-3 * factor), work(1e-3)) for name, factor in factors.items()}
    measure = {"measure": lambda stage: ratio(stage, lambda: now[-1])}
    return list(slower(stages, {"same": 3.0, "changed": 3.0}, **measure)[1])


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_fail_and_twice_the_time_does(seed):
    assert judged(seed, 1.2) == judged(seed, 1.0) == []
    assert judged(seed, 2.0) == ["changed"]


def test_what_is_slow_once_is_measured_again_and_what_is_new_passes():
    turns = iter([9.0, 3.0])
    again = slower({"old": Stage(int, int)}, {"old": 3.0}, lambda stage: next(turns))
    assert again == ({"old": 3.0}, {})
    assert too_slow({"new": 100.0, "old": LIMIT * 1.01}, {"old": 1.0}) == {"old": LIMIT * 1.01}
