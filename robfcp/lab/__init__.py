"""The test range: attacks, partitions, simulation, red team, data sets, training, the paper.

It may import everything; nothing but the commands imports it. What it needs beyond the core comes
with the extras `lab` and `train`.
"""

from robfcp.lab import attacks, outputs, partitions
from robfcp.lab.simulation import simulate, summarise
from robfcp.lab.worlds import Setting

__all__ = ["Setting", "attacks", "outputs", "partitions", "simulate", "summarise"]
