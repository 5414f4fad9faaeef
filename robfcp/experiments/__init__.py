"""Experiments: attacks, partitions, simulation, red team, data sets, training, the paper.

The package may import all others; only the commands import it. What it needs beyond the core comes
with the extras `lab` and `train`.
"""

from robfcp.experiments import attacks, outputs, partitions
from robfcp.experiments.scenarios import ScenarioConfig
from robfcp.experiments.simulation import simulate, summarize

__all__ = ["ScenarioConfig", "attacks", "outputs", "partitions", "simulate", "summarize"]
