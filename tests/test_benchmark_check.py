"""The check of speed: twice the time fails, noise does not."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from check import LIMIT, Stage, ratio, slower, too_slow


class Machine:
    """A clock that work moves on, up to 30% faster or slower than it should."""

    def __init__(self, seed, noise=0.3):
        self.now = 0.0
        self._rng, self._noise = np.random.default_rng(seed), noise

    def clock(self):
        return self.now

    def work(self, seconds):
        def run():
            self.now += seconds * self._rng.uniform(1 - self._noise, 1 + self._noise)

        return run


def judged(seed, slowdown):
    machine = Machine(seed)
    stages = {
        name: Stage(machine.work(3e-3 * factor), machine.work(1e-3))
        for name, factor in {"same": 1.0, "changed": slowdown}.items()
    }
    measure = {"measure": lambda stage: ratio(stage, machine.clock)}
    return slower(stages, {"same": 3.0, "changed": 3.0}, **measure)[1]


@pytest.mark.parametrize("seed", range(50))
def test_noise_does_not_fail_and_twice_the_time_does(seed):
    assert judged(seed, 1.0) == {}
    assert judged(seed, 1.2) == {}
    assert list(judged(seed, 2.0)) == ["changed"]


def test_what_is_slow_once_is_measured_again():
    turns = iter([9.0, 3.0])
    found, failed = slower(
        {"calibrate": Stage(int, int)}, {"calibrate": 3.0}, lambda stage: next(turns)
    )
    assert found == {"calibrate": 3.0}
    assert failed == {}


def test_a_stage_without_a_baseline_passes():
    assert too_slow({"new": 100.0}, {}) == {}
    assert too_slow({"old": LIMIT * 1.01}, {"old": 1.0}) == {"old": LIMIT * 1.01}
