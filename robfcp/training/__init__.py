"""Federated training in PyTorch (install the extra `train`)."""

from __future__ import annotations

from robfcp.errors import RobfcpError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise RobfcpError('training: torch is not installed; pip install "robfcp[train]"') from error

from robfcp.training.federated import Progress, Trained, train
from robfcp.training.recipes import recipe
from robfcp.training.settings import Settings

__all__ = ["Progress", "Settings", "Trained", "recipe", "train"]
