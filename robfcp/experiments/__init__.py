"""The test range: attacks, partitions, simulation, red team, data sets, training, the paper.

It may import everything; nothing but the commands imports it. What it needs beyond the core comes
with the extras `lab` and `train`.
"""

from robfcp.experiments import attacks, outputs, partitions
from robfcp.experiments.scenarios import ScenarioConfig
from robfcp.experiments.simulation import simulate, summarize

__all__ = ["ScenarioConfig", "attacks", "outputs", "partitions", "simulate", "summarize"]
