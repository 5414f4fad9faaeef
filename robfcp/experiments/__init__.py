"""Experiments: attacks, partitions, simulation, red team, data sets, training, the paper.

`simulate` runs federations with and without an attack and a defense, `attacks` and `partitions`
make them, `outputs` holds outputs of models that ship. May import all packages but `integrations`
and `cli`; only the commands import it. Some modules need the extras `lab` and `train`.
"""

from robfcp.experiments import attacks, outputs, partitions
from robfcp.experiments.scenarios import ScenarioConfig
from robfcp.experiments.simulation import simulate, summarize

__all__ = ["ScenarioConfig", "attacks", "outputs", "partitions", "simulate", "summarize"]
