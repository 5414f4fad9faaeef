"""Federated training in PyTorch (install the extra `train`).

`train` runs rounds of local training and averaging; `TrainingSettings` and `recipe` say how. May
import `experiments` and the shared private modules.
"""

from __future__ import annotations

from robfcp.errors import RobfcpError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise RobfcpError('training: torch is not installed; pip install "robfcp[train]"') from error

from robfcp.experiments.training.federated import train
from robfcp.experiments.training.local import TrainingSettings, recipe

__all__ = ["TrainingSettings", "recipe", "train"]
