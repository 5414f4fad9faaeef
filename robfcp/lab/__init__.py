"""The test range: attacks, partitions, simulation, red team, data sets, training, the paper.

It may import everything; nothing but the commands imports it. What it needs beyond the core comes
with the extras `lab` and `train`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from robfcp.lab import attacks, partitions

if TYPE_CHECKING:
    from robfcp.lab.simulation import simulate

__all__ = ["attacks", "partitions", "simulate"]


def __getattr__(name: str) -> Any:
    if name != "simulate":
        raise AttributeError(f"module 'robfcp.lab' has no attribute {name!r}")
    return import_module("robfcp.lab.simulation").simulate
