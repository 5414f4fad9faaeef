"""Rules PC and T at an edge that covers just too little: accepted in at most delta of the runs."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "label_shift.py"
_SPEC = importlib.util.spec_from_file_location("label_shift_simulation", SCRIPT)
simulation = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = simulation
_SPEC.loader.exec_module(simulation)

WORLD = simulation.World(16, 200, 4, 1.0, 4)
TIGHT = simulation.World(9, 20_000, 2, 5.0, 3)


def most(runs):
    """Failures that a rule with a chance of delta exceeds once in a thousand times."""
    return simulation.DELTA * runs + 3.1 * (simulation.DELTA * runs) ** 0.5


@pytest.mark.parametrize("rule", ["PC", "T"])
def test_every_attack_leaves_a_round_that_the_rules_can_read(rule):
    for attack in simulation.ATTACKS:
        assert simulation.failures(WORLD, attack, rule, [4], 5) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["PC", "T"])
@pytest.mark.parametrize("attack", simulation.ATTACKS)
def test_whatever_the_liars_report_the_edge_is_rarely_accepted(attack, rule):
    assert simulation.failures(WORLD, attack, rule, [4], 2000) <= most(2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "attack"),
    [("PC", simulation.just_unseen), ("PC", simulation.best_copied), ("T", simulation.just_unseen)],
)
def test_one_liar_too_few_is_caught(rule, attack):
    right, short = simulation.failures(TIGHT, attack, rule, [3, 2], 1000)
    assert right <= most(1000)
    assert short > 1.4 * most(1000)
