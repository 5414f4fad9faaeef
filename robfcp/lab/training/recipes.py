"""The settings each shipped model was trained with."""

from __future__ import annotations

from typing import Any

from robfcp.lab.training.settings import TrainingSettings

RECIPES: dict[str, dict[str, Any]] = {
    "mnist": {
        "model": "cnn", "rounds": 40, "fraction": 0.1, "local_epochs": 10, "batch": 64,
        "learning_rate": 0.02,
    },
    "medmnist": {
        "model": "cnn", "rounds": 100, "fraction": 0.2, "local_epochs": 10, "batch": 50,
        "learning_rate": 0.02, "augment": True, "mirror": True,
    },
    "sleep": {
        "model": "mlp", "rounds": 60, "fraction": 0.2, "local_epochs": 5, "batch": 64,
        "learning_rate": 0.02,
    },
    "cifar10": {
        "model": "resnet18", "rounds": 70, "fraction": 0.2, "local_epochs": 5, "batch": 50,
        "learning_rate": 0.05, "augment": True, "mirror": True,
    },
    "tinyimagenet": {
        "model": "resnet18", "rounds": 65, "fraction": 0.1, "local_epochs": 10, "batch": 100,
        "learning_rate": 0.05, "augment": True, "mirror": True,
    },
}  # fmt: skip


def recipe(dataset: str, **changes: Any) -> TrainingSettings:
    """The data set's settings with those changes that are not None."""
    base = RECIPES.get(dataset, RECIPES["medmnist"])
    return TrainingSettings(
        **{**base, **{key: value for key, value in changes.items() if value is not None}}
    )
